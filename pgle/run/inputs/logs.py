"""Texts of people: logs, and stdin kept as a file whose name says what it is."""

from __future__ import annotations

import codecs
import io
import sys
from collections.abc import Iterator
from pathlib import Path

from pgle.errors import UserError
from pgle.files import MAX_FILE_BYTES, open_bytes, read_head

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


STDIN = "-"  # the word for stdin on a command line

MAGIC = {
    b"SQLite format 3": ".sqlite",
    b"HloModule": ".txt",
    b"module @": ".mlir",
    b"#loc": ".mlir",
    b"ML\xefR": ".mlir",
    b"costs": ".pbtxt",
    b"# proto": ".pbtxt",
    b"{": ".jsonl",
}
"""How content begins → the suffix by which readers know it; else it is a log."""

_ARCHIVES = {b"\xfd7zXZ\x00": ".xz", b"\x1f\x8b": ".gz"}


def keep_stdin(folder: Path, *, binary: str = ".log") -> Path:
    """Stdin as a file ``stdin.SUFFIX`` of a folder that is there; `binary` is the suffix of a protobuf."""
    if sys.stdin is None or sys.stdin.isatty():
        what = "stdin is closed" if sys.stdin is None else "stdin is a terminal"
        raise UserError(what, where=STDIN, remedy="pipe a file in: cat FILE | pgle …")
    raw, left = folder / "stdin", MAX_FILE_BYTES
    with raw.open("wb") as file:
        while piece := sys.stdin.buffer.read(1 << 20):
            left -= file.write(piece)
            if left < 0:
                raise UserError(f"more than {MAX_FILE_BYTES:,} bytes", where=STDIN, remedy="give the part that matters")
    head = read_head(raw, HEAD_BYTES)
    archive = next((suffix for magic, suffix in _ARCHIVES.items() if head.startswith(magic)), "")
    if archive:
        raw = raw.rename(raw.with_suffix(archive))
        head = read_head(raw, HEAD_BYTES)
    return raw.rename(folder / f"stdin{_suffix(head, binary)}{archive}")


def _suffix(head: bytes, binary: str) -> str:
    text = head.removeprefix(codecs.BOM_UTF8).lstrip()
    found = next((suffix for magic, suffix in MAGIC.items() if text.startswith(magic)), "")
    return found or (binary if head.startswith(b"\n") and not head.isascii() else ".log")
