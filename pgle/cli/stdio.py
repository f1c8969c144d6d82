"""``-`` for a file: what comes on stdin is read as one, what would be written to one goes to stdout."""

from __future__ import annotations

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import click

from pgle.errors import UserError
from pgle.files import MAX_FILE_BYTES

MAGIC = {
    b"SQLite format 3": ".sqlite",
    b"HloModule": ".txt",
    b"module @": ".mlir",
    b"#loc": ".mlir",
    b"costs": ".pbtxt",
    b"# proto": ".pbtxt",
    b"{": ".jsonl",
}
"""How content begins → the suffix by which readers know it; else it is a log."""


class Dash(type(Path())):  # type: ignore[misc]
    """A temporary file that is called ``-`` wherever it is printed."""

    def __str__(self) -> str:
        return "-"

    def __fspath__(self) -> str:
        return str(super().__str__())


def stdin_file(ctx: click.Context) -> Path:
    """Stdin as a file until the command ends.

    Raises:
        UserError: nothing is piped in, or stdin was read already.
    """
    if sys.stdin is None or sys.stdin.isatty():
        raise UserError("stdin is a terminal", where="-", remedy="pipe a file in: cat FILE | pgle …")
    if "pgle.stdin" in ctx.meta:
        raise UserError("stdin can be read once only", where="-", remedy="name the other files")
    ctx.meta["pgle.stdin"] = True
    raw = Path(ctx.with_resource(TemporaryDirectory(prefix="pgle-"))) / "stdin"
    left = MAX_FILE_BYTES
    with raw.open("wb") as file:
        while piece := sys.stdin.buffer.read(1 << 20):
            left -= file.write(piece)
            if left < 0:
                raise UserError(f"more than {MAX_FILE_BYTES:,} bytes", where="-", remedy="give the part that matters")
    with raw.open("rb") as file:
        head = file.read(4096).lstrip()
    suffix = next((suffix for magic, suffix in MAGIC.items() if head.startswith(magic)), ".log")
    return Dash(raw.rename(raw.with_suffix(suffix)))


def stdout_file(ctx: click.Context, suffix: str) -> Path:
    """A file to write, whose content goes to stdout when the command ends; tables go to stderr meanwhile."""
    path = Path(ctx.with_resource(TemporaryDirectory(prefix="pgle-"))) / f"stdout{suffix}"
    stdout, sys.stdout = sys.stdout, sys.stderr

    def give() -> None:
        sys.stdout = stdout
        if path.exists():
            stdout.buffer.write(path.read_bytes())
            stdout.flush()

    ctx.call_on_close(give)
    return Dash(path)
