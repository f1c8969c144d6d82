"""Text for a terminal: consoles, tables within 100 columns, bars and units."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal, NoReturn

from rich.console import Console
from rich.table import Table
from rich.text import Text

MAX_WIDTH = 100
_BLANKS_AT_END = re.compile(r"[ \t]+$", re.MULTILINE)


def reader_left() -> NoReturn:
    """End quietly, with 0, when the reader of stdout went away (``pgle show … | head``); click and rich say 1."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    raise SystemExit(0)


class _Console(Console):
    def print(self, *objects: Any, **options: Any) -> None:
        """As rich prints; but lines in files and pipes end where their text does, tables too."""
        if self.is_terminal:
            super().print(*objects, **options)
            return
        with self.capture() as lines:
            super().print(*objects, **options)
        self.file.write(_BLANKS_AT_END.sub("", lines.get()))

    def on_broken_pipe(self) -> None:
        reader_left()


def console(*, stderr: bool = False) -> Console:
    """A console of at most 100 columns; exactly 100 where output is not a terminal. `NO_COLOR` is respected.

    Text is taken as it is: in paths and names, ``[red]`` is no markup and ``:smile:`` no emoji.
    """
    stream = sys.stderr if stderr else sys.stdout
    width = None
    if not stream.isatty():
        width = MAX_WIDTH
    else:
        try:
            width = min(os.get_terminal_size(stream.fileno()).columns, MAX_WIDTH)
        except OSError:
            width = MAX_WIDTH
    return _Console(file=stream, width=width, highlight=False, soft_wrap=False, markup=False, emoji=False)


def table(
    columns: Sequence[str], rows: Iterable[Sequence[object]], *, right: str = "", whole: str = "", title: str = ""
) -> Table:
    """A borderless table.

    Args:
        columns: their heads.
        rows: cells are plain text (never markup).
        right: the columns to align right, separated by ``|``.
        whole: the columns whose cells stay on one line, separated by ``|``; the others are folded to fit the width.
        title: above the table.
    """
    numeric, unbroken = set(right.split("|")), set(whole.split("|"))
    result = Table(box=None, pad_edge=False, title=title or None, title_justify="left", title_style="bold")
    for name in columns:
        justify: Literal["right", "left"] = "right" if name in numeric else "left"
        result.add_column(name, justify=justify, overflow="fold", no_wrap=name in unbroken)
    for row in rows:
        result.add_row(*(cell if isinstance(cell, Text) else Text(str(cell)) for cell in row))
    return result


def bar(fraction: float, width: int = 20) -> str:
    """A bar of eighth blocks: ``fraction`` of ``width`` columns (0 to 1, clipped)."""
    eighths = round(min(max(fraction, 0.0), 1.0) * width * 8)
    full, rest = divmod(eighths, 8)
    return ("█" * full + ("" if rest == 0 else "▏▎▍▌▋▊▉"[rest - 1])).ljust(width)


def printable(name: str) -> str:
    """A name from a file, with what could move the cursor or break the line (control characters) escaped."""
    if name.isprintable():
        return name
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in name)


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
    """Print warnings to stderr, one line each."""
    for line in lines:
        print(f"pgle: warning: {' '.join(line.split())}", file=sys.stderr)
