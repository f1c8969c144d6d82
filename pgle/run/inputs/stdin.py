"""What comes on stdin, kept as a file whose name says what it is."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from pgle.errors import UserError
from pgle.files import MAX_FILE_BYTES, read_head
from pgle.run.inputs.texts import utf8_head
from pgle.run.rehearse.folder import claim

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

_HEAD_BYTES = 4096


def keep_stdin(folder: Path, *, binary: str = ".log") -> Path:
    """Stdin as a file ``stdin.SUFFIX`` of a folder that is there.

    Args:
        binary: suffix of what begins as a protobuf message does.

    Raises:
        UserError: nothing is piped in, or more than `MAX_FILE_BYTES`.
    """
    if sys.stdin is None or sys.stdin.isatty():
        what = "stdin is closed" if sys.stdin is None else "stdin is a terminal"
        raise UserError(what, where=STDIN, remedy="pipe a file in: cat FILE | pgle …")
    raw, left = folder / "stdin", MAX_FILE_BYTES
    with raw.open("wb") as file:
        while piece := sys.stdin.buffer.read(1 << 20):
            left -= file.write(piece)
            if left < 0:
                raise UserError(f"more than {MAX_FILE_BYTES:,} bytes", where=STDIN, remedy="give the part that matters")
    head = read_head(raw, _HEAD_BYTES)
    archive = next((suffix for magic, suffix in _ARCHIVES.items() if head.startswith(magic)), "")
    if archive:
        raw = raw.rename(raw.with_suffix(archive))
        head = read_head(raw, _HEAD_BYTES)
    return raw.rename(folder / f"stdin{_suffix(head, binary)}{archive}")


def keep_module(out: Path) -> Path:
    """The module on stdin, kept in ``captured/`` of a folder; where one is kept already, it must be the same.

    Raises:
        UserError: as `keep_stdin`, or another module is kept there, which stays.
    """
    captured = out / "captured"
    claim(captured)
    captured.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out, prefix="stdin-") as folder:
        piped = keep_stdin(Path(folder), binary=".hlo.pb")
        kept = captured / piped.name
        if kept.exists() and kept.read_bytes() != piped.read_bytes():
            raise UserError("holds the search of another module", where=out, remedy="choose a new folder with -o DIR")
        return piped.replace(kept)


def _suffix(head: bytes, binary: str) -> str:
    text = utf8_head(head).lstrip()
    found = next((suffix for magic, suffix in MAGIC.items() if text.startswith(magic)), "")
    return found or (binary if head.startswith(b"\n") and not head.isascii() else ".log")
