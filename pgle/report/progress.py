"""What a command is doing: one live line on a terminal from 0.3 s on, and in a log a line every ten seconds."""

from __future__ import annotations

import shutil
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pgle.errors import cut, printable
from pgle.files import Progress

if TYPE_CHECKING:
    from pgle.run.compiler.compile import OnPhase, Phase

FIRST_S, TURN_S, LOG_S = 0.3, 0.1, 10.0
is_shown = False
"""Whether it is said at all: commands do, and the library does not."""
SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
SCHEDULES = {
    "default": "XLA's default schedule", "baseline": "the schedule without a profile",
    "profiled": "the schedule with the profile", "proof": "the proof",
}  # fmt: skip
"""What a compilation is for, by the name of its folder."""


@dataclass
class Line:
    """The state of the work; any thread may change it."""

    what: str  # ``reading traces``
    done: int = 0  # of `total`
    total: int = 0  # 0: not known
    noun: str = ""  # the counted thing: ``trial``; empty: a share is shown
    best: str = ""  # the best so far, in words
    since: float = field(default_factory=time.monotonic)

    def text(self, now: float) -> str:
        """``trial 5 of 20 · best −4.4 % · compiling · 18 s, about 50 s left``."""
        parts, elapsed = [], now - self.since
        if self.total:
            share = f"{self.done / self.total:.0%}".replace("%", " %")
            parts.append(f"{self.noun} {self.done} of {self.total}" if self.noun else share)
        parts += [f"best {self.best}"] if self.best else []
        rest = elapsed / self.done * (self.total - self.done) if self.total and 0 < self.done < self.total else 0.0
        left = f", about {rest:.0f} s left" if rest >= 1 else ""
        return printable(" · ".join([*parts, self.what, f"{elapsed:.0f} s{left}"]))


@contextmanager
def live(what: str) -> Iterator[Line]:
    """A line that is shown while the context lasts, if `is_shown`; the work changes what it says."""
    line, ended = Line(what), threading.Event()
    if not is_shown:
        yield line
        return
    thread = threading.Thread(target=_drawn if sys.stderr.isatty() else _logged, args=(line, ended), daemon=True)
    thread.start()
    try:
        yield line
    finally:
        ended.set()
        thread.join()


@contextmanager
def progress(what: str) -> Iterator[Progress]:
    """A line on work that says how much of it is done: the yielded function takes (done, total)."""
    with live(what) as line:

        def advance(done: int, total: int) -> None:
            # What was read is not yet understood: a full bar that goes on waiting would lie.
            line.done, line.total = (done, total) if done < total else (0, 0)
            line.what = what if done < total else f"{what}: all read, working on it"

        yield advance


@contextmanager
def phases(line: Line | None = None) -> Iterator[OnPhase]:
    """A function that takes the phases of compilations, and has a line show them."""
    running: dict[str, Phase] = {}
    with live("starting XLA's compiler") if line is None else nullcontext(line) as shown:

        def note(phase: Phase) -> None:
            name = phase.request.dump_dir.name
            if phase.name == "done":
                running.pop(name, None)
            else:
                running[name] = phase
            if running:
                shown.what = _words(*list(running.items())[-1], others=len(running) - 1)

        yield note


def _words(folder: str, phase: Phase, others: int) -> str:
    what = SCHEDULES.get(folder, "")
    module = f" {phase.module}" if phase.module else ""
    more = f" and {others} more" if others else ""
    return f"compiling{module}{f', {what}' if what else ''} ({phase.name}){more}"


def _drawn(line: Line, ended: threading.Event) -> None:
    out, turn, shown = sys.stderr, 0, False
    wait = FIRST_S
    while not ended.wait(wait):
        wait, shown = TURN_S, True
        width = shutil.get_terminal_size().columns
        out.write(f"\r\x1b[2K{cut(f'{SPINNER[turn % len(SPINNER)]} {line.text(time.monotonic())}', width - 1)}")
        out.flush()
        turn += 1
    if shown:
        out.write("\r\x1b[2K")
        out.flush()


def _logged(line: Line, ended: threading.Event) -> None:
    while not ended.wait(LOG_S):
        print(f"pgle: {line.text(time.monotonic())}", file=sys.stderr, flush=True)
