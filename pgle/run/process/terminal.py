"""Output of pgle and of the programs that it runs on one terminal, without joined lines."""

from __future__ import annotations

import os
import select
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from pgle.errors import inert

LAST_LINES = 20  # lines of a program's hidden output that are shown if it fails
CLEARED = "\r\x1b[2K"  # return to the start of the line, and delete it

_lock = threading.RLock()
_is_drawn = False  # whether our live line is on the terminal
_ends_line = True  # whether the program's last byte ended a line
_status: list[str] = []

is_quiet = False
"""Whether only the verdict is printed. Then a program's output is shown only if the program
fails.
"""

shows_output = False
"""Whether to show the output of programs that pgle runs for its own purposes."""


def status() -> str:
    """The current activity, if it differs from the live line's own; else empty."""
    return _status[-1] if _status else ""


@contextmanager
def working(what: str) -> Iterator[None]:
    """Show an activity on the live line; `now_doing` changes it."""
    _status.append(what)
    try:
        yield
    finally:
        _status.pop()


def now_doing(what: str) -> None:
    """Change the activity of the innermost `working`."""
    if _status:
        _status[-1] = what


def draw(line: str) -> None:
    """Draw the live line on stderr, in place of the last one. Skip it while the program is in the
    middle of a line.
    """
    global _is_drawn
    with _lock:
        if not _ends_line:
            return
        sys.stderr.write(f"{CLEARED}{line}")
        sys.stderr.flush()
        _is_drawn = bool(line)


def clear() -> None:
    """Remove the live line, before anything else is printed."""
    with _lock:
        if _is_drawn:
            draw("")


def pass_on(descriptor: int, data: bytes) -> None:
    """Write all of a program's output to a descriptor of ours, even if the descriptor is
    non-blocking.
    """
    global _ends_line
    with _lock:
        clear()
        _ends_line = data.endswith((b"\n", b"\r"))
        while data:
            try:
                data = data[os.write(descriptor, data) :]
            except BlockingIOError:
                select.select([], [descriptor], [])


def say(line: str) -> None:
    """Print a line on stderr, at the start of a line."""
    global _ends_line
    with _lock:
        clear()
        begin = "" if _ends_line else "\n"
        _ends_line = True
        with suppress(BrokenPipeError):
            print(f"{begin}{inert(line)}", file=sys.stderr, flush=True)
