"""Text for people: consoles, tables, bars and units."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any, TextIO, TypeAlias

from pgle.errors import named, one_line, printable, shown
from pgle.files import Progress

if TYPE_CHECKING:
    from pgle.report.screen import Screen

Console: TypeAlias = "Screen"
__all__ = ["bar", "console", "duration", "near", "printable", "say", "table", "warn"]

WIDTH, MIN_WIDTH, MAX_WIDTH = 100, 30, 200
"""Columns where nothing says how many there are, and limits: no table can be laid out in less."""


quiet = False
"""Whether an answer is its verdict alone, as ``--quiet`` asks."""


def console(*, stderr: bool = False) -> Screen:
    """A console as wide as COLUMNS says, else as the terminal is, else of 100 columns. `NO_COLOR` is respected."""
    from pgle.report.screen import Screen  # rich takes a tenth of a second, which --json does without

    stream = sys.stderr if stderr else sys.stdout
    return Screen(stream, _width(stream))


def table(
    columns: Sequence[str], rows: Iterable[Sequence[object]], *, right: str = "", whole: str = "", header: bool = True
) -> Any:
    """A table; a column without any text is left out. `right` and `whole` are heads, separated by ``|``."""
    from pgle.report.screen import grid

    cells = [[item if hasattr(item, "plain") else named(shown(str(item))) for item in row] for row in rows]
    filled = [at for at in range(len(columns)) if not cells or any(row[at] for row in cells)]
    heads = [columns[at] for at in filled]
    marked = [{at for at, head in enumerate(heads) if head in names.split("|")} for names in (right, whole)]
    return grid(heads, [[row[at] for at in filled] for row in cells], right=marked[0], whole=marked[1], header=header)


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


@contextmanager
def progress(description: str) -> Iterator[Progress]:
    """A bar that appears at the first call of the yielded function."""
    if not sys.stderr.isatty():
        yield lambda done, total: None
        return
    from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as RichProgress

    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with RichProgress(*columns, console=console(stderr=True), transient=True) as rich_bar:
        task = rich_bar.add_task(description, total=None)
        yield lambda done, total: rich_bar.update(task, completed=done, total=total or None)
