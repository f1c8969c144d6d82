"""What compilations are at, on stderr: a live line for each on a terminal, elsewhere a line where one takes long."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from pgle.report.text import say
from pgle.run.rehearse.compiler.request import OnPhase, Phase

SILENT_S = 2.0  # what is done sooner is not spoken of
AGAIN_S = 30.0  # how often a compilation in a log is spoken of though nothing has changed


class _Compilations:
    """The compilations that run, by folder, each with its phase and when it began; and how long the last one took."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.running: dict[str, tuple[Phase, float]] = {}
        self.last_s: float | None = None

    def note(self, phase: Phase) -> None:
        name, now = phase.request.dump_dir.name, time.monotonic()
        with self.lock:
            if phase.name == "done":
                _, since = self.running.pop(name, (phase, now))
                self.last_s = now - since if now - since > SILENT_S else self.last_s
            else:
                self.running[name] = (phase, self.running.get(name, (phase, now))[1])

    def lines(self) -> list[str]:
        """A line on each that has run for long enough."""
        now = time.monotonic()
        with self.lock:
            return [
                self._line(name, phase, now - since)
                for name, (phase, since) in self.running.items()
                if now - since > SILENT_S
            ]

    def _line(self, name: str, phase: Phase, seconds: float) -> str:
        module = f", {phase.module} for {phase.devices} devices" if phase.module else ""
        rest = f" of about {self.last_s:.0f} s" if self.last_s and self.last_s > seconds else ""
        return f"{name}{module}: {phase.name}, {seconds:.0f} s{rest}"


@contextmanager
def phases() -> Iterator[OnPhase]:
    """A function that takes phases, which are shown while the context lasts."""
    compilations, ended = _Compilations(), threading.Event()
    show = _live if sys.stderr.isatty() else _logged
    thread = threading.Thread(target=show, args=(compilations, ended), daemon=True)
    thread.start()
    try:
        yield compilations.note
    finally:
        ended.set()
        thread.join()


def _live(compilations: _Compilations, ended: threading.Event) -> None:
    from rich.live import Live
    from rich.progress_bar import ProgressBar
    from rich.table import Table

    from pgle.report.text import console

    with Live(console=console(stderr=True).screen, transient=True, auto_refresh=False) as screen:
        while not ended.wait(0.2):
            shown = Table.grid(padding=(0, 1))
            for line in compilations.lines():
                shown.add_row(ProgressBar(total=None, width=16, pulse=True), line)
            screen.update(shown, refresh=True)


def _logged(compilations: _Compilations, ended: threading.Event) -> None:
    said: dict[str, float] = {}
    while not ended.wait(0.2):
        for line in compilations.lines():
            about = line.rsplit(",", 1)[0]
            if time.monotonic() - said.get(about, -AGAIN_S) >= AGAIN_S:
                said[about] = time.monotonic()
                say(line)
