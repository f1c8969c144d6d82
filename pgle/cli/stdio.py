"""``-`` for a file: what comes on stdin is read as one, what would be written to one goes to stdout."""

from __future__ import annotations

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import click

from pgle.errors import UserError
from pgle.run.inputs.piped import STDIN, keep_stdin


class Dash(type(Path())):  # type: ignore[misc]
    """A temporary file that is called ``-`` wherever it is printed."""

    def __str__(self) -> str:
        return "-"

    def __fspath__(self) -> str:
        return str(super().__str__())


def stdin_file(ctx: click.Context, binary: str = ".log") -> Path:
    """Stdin as a file until the command ends; `binary` as of `keep_stdin`.

    Raises:
        UserError: nothing is piped in, or stdin was read already.
    """
    if "pgle.stdin" in ctx.meta:
        raise UserError("stdin can be read once only", where=STDIN, remedy="name the other files")
    ctx.meta["pgle.stdin"] = True
    return Dash(keep_stdin(Path(ctx.with_resource(TemporaryDirectory(prefix="pgle-"))), binary=binary))


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
