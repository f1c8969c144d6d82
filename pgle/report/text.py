"""Text for people: consoles, tables, bars and units. What fits into a pipe as it is needs no rich to be drawn."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any, TextIO

from pgle.errors import LONGEST_LINE, named, one_line, printable
from pgle.files import Progress
from pgle.report.table import BLANKS_AT_END, Table, is_width_asked, numbers, table

if TYPE_CHECKING:
    from pgle.report.drawn import Screen
    from pgle.run.profiles import Written

__all__ = ["Table", "bar", "console", "duration", "near", "numbers", "printable", "say", "table", "warn", "wrote"]

WIDTH, MIN_WIDTH, MAX_WIDTH = 100, 30, 200
"""Columns where nothing says how many there are, and limits: no table can be laid out in less."""
PLAIN = re.compile("[ -~¡-¬®-ʯ‐-‧←-⇿─-▟]*")
"""Lines of characters that are one column wide each, whatever the terminal: what rich has nothing to do for."""
_RICH = ("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE")  # what tells rich that a pipe is more than that


def console(*, stderr: bool = False) -> Console:
    """A console as wide as COLUMNS says, else as the terminal is, else of 100 columns. `NO_COLOR` is respected."""
    return Console(sys.stderr if stderr else sys.stdout)


class Console:
    """Where an answer is printed. Text is taken as it is: ``[red]`` in a path is no markup, ``:smile:`` no emoji."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._is_pipe = not stream.isatty() and not any(name in os.environ for name in _RICH)
        self.width = _width(stream)

    @cached_property
    def screen(self) -> Screen:
        """What draws here whatever has styles or needs to be laid out."""
        from pgle.report.drawn import Screen  # rich takes a tenth of what a small conversion takes to start

        return Screen(self._stream, self.width)

    def print(self, *objects: Any, soft_wrap: bool = False, **options: Any) -> None:
        """As `pgle.report.drawn.Screen` prints: text, tables, and what rich can draw."""
        text = self._plainly(*objects or ("",), soft_wrap=soft_wrap) if self._is_pipe and len(objects) < 2 else None
        if text is None:
            self.screen.print(*objects, soft_wrap=soft_wrap, **options)
            return
        self._stream.write(text)
        self._stream.flush()  # the result of a stage is there when the stage ends

    def _plainly(self, item: Any, *, soft_wrap: bool) -> str | None:
        """Text or a table as lines, where each fits as it is."""
        text = item.plain(self.width) if isinstance(item, Table) else named(item) if isinstance(item, str) else None
        lines = [] if text is None else text.split("\n")
        longest = LONGEST_LINE if soft_wrap and not is_width_asked() else self.width
        if text is None or not all(PLAIN.fullmatch(line) and len(line) <= longest for line in lines):
            return None
        return BLANKS_AT_END.sub("", text) + "\n"


def _width(stream: TextIO) -> int:
    asked = os.environ.get("COLUMNS", "")
    columns = int(asked) if asked.isdecimal() and len(asked) < 10 else 0
    if not columns and stream.isatty():
        with suppress(OSError):
            columns = os.get_terminal_size(stream.fileno()).columns
    return max(MIN_WIDTH, min(columns, MAX_WIDTH)) if columns else WIDTH


def show_rest(out: Console, left: int, what: str = "more") -> None:
    """Say how many rows a table leaves out, where it does."""
    if left > 0:
        out.print(f"… and {left:,} {what} (--json has all)", style="dim")


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


def wrote(written: Written) -> str:
    """The line on a profile that was written."""
    return f"wrote {written.path}  {written.names} names, sha256 {written.sha256[:12]}"


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
    with RichProgress(*columns, console=console(stderr=True).screen, transient=True) as rich_bar:
        task = rich_bar.add_task(description, total=None)
        yield lambda done, total: rich_bar.update(task, completed=done, total=total or None)
