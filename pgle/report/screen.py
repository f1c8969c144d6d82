"""A console of rich that never breaks a word; nothing that is printed controls a terminal."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Sequence
from textwrap import wrap
from typing import Any, TextIO

from rich import table
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.segment import Segment
from rich.text import Text

from pgle.errors import LONGEST_LINE, named, printable, shown

GAP = 2  # columns between those of a table
SHORT, LABEL, SENTENCE = 14, 24, 20
"""Characters of a cell that stays on one line, and of a row's name that does where that was asked for; the least width
of a column of sentences."""
_TIED = "\ue000"  # stands for the blank of "12.3 ms" until it is printed, so that no line ends there
_UNIT = re.compile(r"(?<=\d) (?=(?:[µmn]?s|[KMGT]i?B)\b)")
_COMMAND = re.compile(r"\s*(?:[^:'\"]*: )?(?:\S*/|\S+ -m )?(?:pgle|export|eval|git) ")
_QUOTED = re.compile(r"'[^']*'")
_BLANKS_AT_END = re.compile(r"[ \t]+$", re.MULTILINE)
_ENDLESS = re.compile(rf"[^\n]{{{LONGEST_LINE + 1},}}")


def _cut_short(line: re.Match[str]) -> str:
    return shown(line[0], LONGEST_LINE)


def _tied(text: str) -> str:
    return _UNIT.sub(_TIED, text)


def _drawable(item: Any) -> Any:
    return _tied(named(_ENDLESS.sub(_cut_short, item))) if isinstance(item, str) else item


def is_width_asked() -> bool:
    """Whether COLUMNS says how wide lines may be, in a pipe too."""
    return os.environ.get("COLUMNS", "").isdecimal()


class Screen(Console):
    """A console of rich that takes text as it is."""

    def __init__(self, stream: TextIO, width: int) -> None:
        super().__init__(file=stream, width=width, highlight=False, soft_wrap=False, markup=False, emoji=False)

    def print(self, *objects: Any, **options: Any) -> None:
        """As rich prints, but words are never broken or cut, and lines in pipes end where their text does.

        Lines with ``soft_wrap`` stay whole where nothing says how wide the reader is; a command that does not fit goes
        on after a backslash, so that it can be copied.
        """
        options.setdefault("crop", False)
        objects = tuple(map(_drawable, objects))
        if objects and all(isinstance(item, str | Text) for item in objects):
            whole = options.get("soft_wrap", False) and not (self.is_terminal or is_width_asked())
            words = (word for item in objects for word in str(item).split())
            if options.get("soft_wrap") or any(cell_len(word) > self.width for word in words):
                objects = objects if whole else tuple(map(self._wrapped, objects))
                options["soft_wrap"] = True
        if self.is_terminal:
            super().print(*objects, **options)
            return
        with self.capture() as lines:
            super().print(*objects, **options)
        self.file.write(_BLANKS_AT_END.sub("", lines.get()))

    def _wrapped(self, item: Any) -> Text:
        lines: list[str] = []
        for line in str(item).split("\n"):
            if cell_len(line) <= self.width:
                lines.append(line)
                continue
            follow_on = " \\" if _COMMAND.match(line) else ""
            if follow_on:  # what is quoted stays whole
                line = _QUOTED.sub(lambda quoted: quoted[0].replace(" ", _TIED), line)
            indent = " " * (len(line) - len(line.lstrip()) + 2 * len(follow_on))
            parts = wrap(line, self.width - len(follow_on), break_long_words=False, break_on_hyphens=False,
                         subsequent_indent=indent)  # fmt: skip
            lines += [f"{part}{follow_on}" for part in parts[:-1]] + parts[-1:]
        return Text("\n".join(lines), item.style if isinstance(item, Text) else "")

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """As rich renders; what a name holds is printed, never obeyed by the terminal."""
        for segment in super().render(renderable, options):
            text = segment.text.replace(_TIED, " ")
            if segment.control or text.isprintable():
                yield segment if text == segment.text else Segment(text, segment.style)
            else:
                yield Segment("\n".join(map(printable, text.split("\n"))), segment.style)

    def on_broken_pipe(self) -> None:
        """Left to the command line, which ends quietly; rich would end with 1."""
        raise BrokenPipeError


def grid(
    heads: Sequence[str],
    rows: Iterable[Sequence[Any]],
    *,
    right: Collection[int] = (),
    whole: Collection[int] = (),
    header: bool = True,
) -> table.Table:
    """A borderless table, as wide as there is room.

    Args:
        heads: of its columns.
        rows: cells, plain text (never markup) or a `rich.text.Text`.
        right: the columns to align right.
        whole: the columns whose cells stay on one line if there is room; the others wrap between words.
        header: whether the heads are shown.
    """  # fmt: skip
    result = _Layout(box=None, pad_edge=False, show_header=header)
    for at, head in enumerate(heads):
        result.add_column(head, justify="right" if at in right else "left", overflow="fold", no_wrap=at in whole)
    for row in rows:
        result.add_row(*(Text(_tied(cell)) if isinstance(cell, str) else cell for cell in row))
    return result


class _Layout(table.Table):
    """A table that breaks no word: columns for which there is no room stand below their row, the last ones first."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        heads = [str(column.header) * self.show_header for column in self.columns]
        texts = [[head, *map(str, column.cells)] for head, column in zip(heads, self.columns, strict=True)]
        least = [_least(*column) for column in texts]
        if self.columns and self.columns[0].no_wrap:
            least[0] = max(least[0], min(max(map(cell_len, texts[0])), LABEL))
        room = next((k for k in range(len(least), 1, -1) if sum(least[:k]) + GAP * (k - 1) <= options.max_width), 1)
        shown = self.columns[:room]
        whole = [column.no_wrap for column in shown]
        widths = _widths(texts[:room], whole, least, options.max_width - GAP * (room - 1))
        for column, width in zip(shown, widths, strict=True):
            column.width, column.no_wrap = width, False
        self.width = sum(widths) + GAP * (room - 1)
        if room == len(least):
            yield from self._plainly(console, options)
            return
        for index in range(self.row_count):
            row = _Layout(box=None, pad_edge=False, show_header=self.show_header and not index)
            for column in shown:
                row.add_column(column.header, justify=column.justify, overflow="fold", width=column.width)
            row.add_row(*(list(column.cells)[index] for column in shown))
            yield from row._plainly(console, options)
            rest = map(_below, self.columns[room:], ((text[0], text[index + 1]) for text in texts[room:]))
            for line in wrap(", ".join(filter(None, rest)), max(options.max_width - 4, 20), break_long_words=False,
                             break_on_hyphens=False):  # fmt: skip
                yield Text(f"    {line}".replace(_TIED, " "), no_wrap=True, overflow="ignore")

    def _plainly(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for item in super().__rich_console__(console, options):
            yield Segment(item.text.replace(_TIED, " "), item.style) if isinstance(item, Segment) else item


def _below(column: table.Column, cell: tuple[str, str]) -> str:
    """Head and text of a cell that stands below its row; empty where it has no words, as a bar."""
    head, text = cell[0].strip(), cell[1]
    named = f"{head}{':' * (column.justify != 'right')} {text}" if head else text
    return named if re.search(r"\w", text) else ""


def _widths(texts: Sequence[Sequence[str]], whole: Sequence[bool], least: Sequence[int], room: int) -> list[int]:
    """The width of each column, so that they fit into `room` where `least` does.

    Args:
        texts: of each column the head and the cells.
        whole: the columns whose cells stay on one line where there is room.
        least: the width of each column's longest word.
        room: for all columns together.
    """
    widest = [max(cell_len(line) for text in column for line in text.split("\n")) for column in texts]
    widths = [wide if keep else word for wide, keep, word in zip(widest, whole, least, strict=False)]
    for index in sorted(range(len(widths)), key=lambda index: least[index] - widths[index]):  # wrap the widest first
        widths[index] = max(least[index], widths[index] - max(sum(widths) - room, 0))
    wishes = {index: widest[index] - widths[index] for index in range(len(widths))}
    spare = max(room - sum(widths), 0)
    for rank, index in enumerate(sorted(wishes, key=wishes.__getitem__)):  # the most modest first
        more = min(wishes[index], spare // (len(wishes) - rank))
        widths[index] += more
        spare -= more
    return widths


def _least(head: str, *cells: str) -> int:
    """The columns that cells need so that no word is broken and no sentence becomes a tower."""
    words = [*head.split(), *(part for cell in cells for part in _unbroken(cell))]
    return max(*map(cell_len, words), min(max(map(cell_len, cells), default=0), SENTENCE), 0)


def _unbroken(cell: str) -> list[str]:
    """What of a cell stays on one line: it whole where it is short (``12.3 ms``), else its words."""
    return [cell] if len(cell) <= SHORT else re.findall(r"^\s*\S+|\S+", cell)
