"""Text for people: consoles, bars, and lines on stderr."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, TextIO

from pgle.errors import named, one_line, printable

if TYPE_CHECKING:
    from pgle.report.screen import Screen

__all__ = ["bar", "console", "duration", "near", "printable", "say", "warn"]

WIDTH, MIN_WIDTH, MAX_WIDTH = 100, 30, 200
"""Columns where nothing says how many there are, and limits: no table can be laid out in less."""


quiet = False
"""Whether an answer is its verdict alone, as ``--quiet`` asks."""


def console(*, stderr: bool = False) -> Screen:
    """A console as wide as COLUMNS says, else as the terminal is, else of 100 columns. `NO_COLOR` is respected."""
    from pgle.report.screen import Screen  # rich takes a tenth of a second, which --json does without

    stream = sys.stderr if stderr else sys.stdout
    return Screen(stream, _width(stream))


def _width(stream: TextIO) -> int:
    asked = os.environ.get("COLUMNS", "")
    columns = int(asked) if asked.isdecimal() and len(asked) < 10 else 0
    if not columns and stream.isatty():
        with suppress(OSError):
            columns = os.get_terminal_size(stream.fileno()).columns
    return max(MIN_WIDTH, min(columns, MAX_WIDTH)) if columns else WIDTH


def bar(fraction: float, width: int = 20) -> str:
    """A bar of eighth blocks: ``fraction`` of ``width`` columns (0 to 1, clipped)."""
    eighths = round(min(max(fraction, 0.0), 1.0) * width * 8)
    full, rest = divmod(eighths, 8)
    return ("█" * full + ("" if rest == 0 else "▏▎▍▌▋▊▉"[rest - 1])).ljust(width)


def near(path: Path) -> Path:
    """A path as short as it can be typed here: relative where it lies below the working directory."""
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path


def duration(microseconds: float) -> str:
    """A duration in µs, ms or s with four significant digits."""
    value = abs(microseconds)
    if value < 1e3:
        return f"{microseconds:.4g} µs"
    if value < 1e6:
        return f"{microseconds / 1e3:.4g} ms"
    return f"{microseconds / 1e6:.4g} s"


def warn(lines: Iterable[str]) -> None:
    """Print warnings to stderr, one line each; on a terminal they wrap between words."""
    for line in lines:
        say(f"warning: {line}")


def say(line: str) -> None:
    """Print a line of pgle's own to stderr."""
    text = f"pgle: {named(one_line(line))}"
    if sys.stderr.isatty():
        text = fill(text, _width(sys.stderr), subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
    print(text, file=sys.stderr, flush=True)
