"""A table as text, laid out where nothing in it needs to be wrapped, which takes no rich."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from pgle.errors import named, shown

GAP = 2  # columns between those of a table
BLANKS_AT_END = re.compile(r"[ \t]+$", re.MULTILINE)


def is_width_asked() -> bool:
    """Whether COLUMNS says how wide lines may be, in a pipe too."""
    return os.environ.get("COLUMNS", "").isdecimal()


@dataclass(frozen=True, eq=False)
class Table:
    """A borderless table."""

    columns: Sequence[str]  # their heads
    rows: Sequence[Sequence[Any]]  # cells: plain text, or a `rich.text.Text`
    right: Collection[str]  # the columns to align right
    whole: Collection[str]  # the columns whose cells stay on one line where there is room
    header: bool = True  # whether the heads are shown

    def plain(self, width: int) -> str | None:
        """Its lines where no cell needs to be wrapped in this width, else None."""
        texts = [[head] * self.header + [str(row[at]) for row in self.rows] for at, head in enumerate(self.columns)]
        widths = [max(map(len, column), default=0) for column in texts]
        if not widths or sum(widths) + GAP * (len(widths) - 1) > width:
            return None
        for column, head, wide in zip(texts, self.columns, widths, strict=True):
            column[:] = (cell.rstrip().rjust(wide) if head in self.right else cell.ljust(wide) for cell in column)
        lines = [(" " * GAP).join(line) for line in zip(*texts, strict=True)]
        return None if not lines or any("\n" in line for line in lines) else "\n".join(lines)


def table(
    columns: Sequence[str], rows: Iterable[Sequence[object]], *, right: str = "", whole: str = "", header: bool = True
) -> Table:
    """A table; a column without any text is left out.

    Args:
        columns: their heads.
        rows: cells are plain text (never markup).
        right: the columns to align right, separated by ``|``.
        whole: the columns whose cells stay on one line where there is room, separated by ``|``; the others wrap
            between words.
        header: whether the heads are shown.
    """
    cells = [[item if hasattr(item, "plain") else named(shown(str(item))) for item in row] for row in rows]
    filled = [index for index in range(len(columns)) if not cells or any(row[index] for row in cells)]
    return Table(
        columns=[columns[index] for index in filled],
        rows=[[row[index] for index in filled] for row in cells],
        right=set(right.split("|")) - {""},
        whole=set(whole.split("|")) if whole else set(),
        header=header,
    )


def numbers(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> Table:
    """A table of numbers, which stay whole, with their names in the first column."""
    return table(columns, rows, right="|".join(columns[1:]), whole="|".join(columns[1:]))
