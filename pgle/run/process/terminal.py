"""What a program that pgle runs and pgle itself print on one terminal, without one line sticking to
the other.
"""

from __future__ import annotations

import os
import select
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from pgle.errors import inert

LAST_LINES = 20  # shown of a program's hidden output, if it fails
CLEARED = "\r\x1b[2K"  # back to the start of the line, and all of it deleted

_lock = threading.RLock()
_is_drawn = False  # our live line is on the terminal
_ends_line = True  # the program's last byte ended a line
_status: list[str] = []

is_quiet = False
"""Whether only a verdict is wanted: then a program's output is shown only if the program fails."""

shows_output = False
"""Whether the user wants to see what a program prints that pgle runs for its own purposes."""


def status() -> str:
    """What is done right now, if it is not what the live line was made for; empty: nothing else."""
    return _status[-1] if _status else ""


@contextmanager
def working(what: str) -> Iterator[None]:
    """Have the live line say what is done; `now_doing` changes it."""
    _status.append(what)
    try:
        yield
    finally:
        _status.pop()


def now_doing(what: str) -> None:
    """Change what the innermost `working` says."""
    if _status:
        _status[-1] = what


def draw(line: str) -> None:
    """Draw the live line on stderr in place of the last one. Draw nothing while the program is in
    the middle of a line.
    """
    global _is_drawn
    with _lock:
        if not _ends_line:
            return
        sys.stderr.write(f"{CLEARED}{line}")
        sys.stderr.flush()
        _is_drawn = bool(line)


def clear() -> None:
    """Take the live line away, before anything else is printed."""
    with _lock:
        if _is_drawn:
            draw("")


def pass_on(descriptor: int, data: bytes) -> None:
    """Write what a program has printed to a descriptor of ours, all of it, also where that does not
    block.
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
    """Print a line on stderr; it begins at the start of a line."""
    global _ends_line
    with _lock:
        clear()
        begin = "" if _ends_line else "\n"
        _ends_line = True
        with suppress(BrokenPipeError):
            print(f"{begin}{inert(line)}", file=sys.stderr, flush=True)
