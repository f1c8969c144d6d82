"""Run the user's command as if it ran alone: same bytes out, same signals in, same exit code, and a log of it all."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

from pgle.errors import UserError

CHUNK_BYTES = 1 << 16
FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)

OnLine = Callable[[str], None]


def launch(command: Sequence[str], environment: Mapping[str, str], log: Path, on_line: OnLine | None = None) -> int:
    """Run a command, its output teed unbuffered to ours and to a log.

    Args:
        command: the words of the command; no shell is involved.
        environment: of the command.
        log: where both streams are written, in the order in which they came.
        on_line: told every complete line of either stream, decoded.

    Returns:
        The exit code; 128 + N where signal N ended the command.

    Raises:
        UserError: it cannot be started.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab", buffering=0) as file:
        try:
            child = subprocess.Popen(
                list(command),
                env={**environment, "PYTHONUNBUFFERED": environment.get("PYTHONUNBUFFERED", "1")},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
            )
        except OSError as error:
            reason = error.strerror or str(error)
            raise UserError(f"cannot be started ({reason})", where=command[0], remedy="check the command") from None
        with _forwarding(child):
            pumps = [
                threading.Thread(target=_pump, args=(stream, descriptor, file, on_line), daemon=True)
                for stream, descriptor in ((child.stdout, 1), (child.stderr, 2))
            ]
            for pump in pumps:
                pump.start()
            code = child.wait()
            # A grandchild may keep the pipes open; what it prints after the command has ended is not waited for long.
            for pump in pumps:
                pump.join(timeout=5)
    return code if code >= 0 else 128 - code


def _pump(stream: BinaryIO, descriptor: int, log: BinaryIO, on_line: OnLine | None) -> None:
    """Copy a stream to one of ours and to the log, byte for byte."""
    rest = b""
    while data := os.read(stream.fileno(), CHUNK_BYTES):
        _write(descriptor, data)
        log.write(data)
        if on_line is None:
            continue
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            on_line(line.decode(errors="replace"))


def _write(descriptor: int, data: bytes) -> None:
    """Write all of it; a reader that went away is no reason to stop the program."""
    while data:
        try:
            data = data[os.write(descriptor, data) :]
        except BrokenPipeError:
            return


class _forwarding:  # noqa: N801 - reads as a word: `with _forwarding(child):`
    """Signals that we get go to the command; its end decides ours.

    From a terminal the whole foreground group gets SIGINT, so that one is not sent twice.
    """

    def __init__(self, child: subprocess.Popen[bytes]) -> None:
        self._child = child
        self._before: dict[int, signal.Handlers | Callable[..., object] | int | None] = {}

    def __enter__(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        for number in FORWARDED:
            self._before[number] = signal.signal(number, self._forward)

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)

    def _forward(self, number: int, _: object) -> None:
        if number == signal.SIGINT and os.isatty(0):
            return
        if self._child.poll() is None:
            self._child.send_signal(number)
