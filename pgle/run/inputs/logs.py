"""Texts of people: logs."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path

from pgle.errors import UserError
from pgle.files import open_bytes

HEAD_BYTES = 4096  # of a file, to decide whether it is text

LONGEST_LINE = 1 << 20  # characters; what a line has beyond is left out

# of so many lines that are shorter on average, ends counted, none can tell of steps; an archive may hold a billion
MANY_LINES, SHORTEST_MEAN = 1 << 20, 4


def is_text(head: bytes) -> bool:
    """Whether a file that begins so is text: one zero byte or another is left by a file system, many are binary."""
    return head.count(0) <= len(head) // 10


class TextLines:
    """The lines of a text file without their ends, read anew by each iteration, so that memory does not grow with it.

    ``.gz`` and ``.xz`` are unpacked.
    """

    def __init__(self, path: Path, remedy: str = "give a log, CSV or JSON lines") -> None:
        self.path, self.remedy = path, remedy

    def has_more_than(self, lines: int) -> bool:
        """Whether there are more lines than so many; counts line feeds, a hundred times faster than reading."""
        with open_bytes(self.path) as file:
            count = 0
            while count <= lines and (piece := file.read(1 << 20)):
                count += piece.count(b"\n")
        return count > lines

    def __iter__(self) -> Iterator[str]:
        with open_bytes(self.path) as file:
            if not is_text(file.peek(HEAD_BYTES)[:HEAD_BYTES]):
                raise UserError("is not text", where=self.path, remedy=self.remedy)
            text = io.TextIOWrapper(file, "utf-8-sig", errors="replace")
            lines = characters = 0
            while line := text.readline(LONGEST_LINE):
                yield line.rstrip("\n")
                lines, characters = lines + 1, characters + len(line)
                if lines > MANY_LINES and characters < SHORTEST_MEAN * lines:
                    what = f"its first {MANY_LINES:,} lines are next to empty"
                    raise UserError(what, where=self.path, remedy=self.remedy)
                while len(line) == LONGEST_LINE and not line.endswith("\n"):
                    line = text.readline(LONGEST_LINE)
