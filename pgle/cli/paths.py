"""Files and GPUs on a command line: local paths, object stores, ``-`` for stdin or stdout, names of targets."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from pgle.files import AnyPath


class _File(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.4
    """A local path or one of an object store; ``-`` is stdin, or stdout where `written` says with which suffix.

    Args:
        written: suffix of what the command writes there; empty: it reads.
        binary: suffix by which its readers know a protobuf message on stdin.
    """

    name = "path"

    def __init__(self, written: str = "", *, binary: str = ".log") -> None:
        self.written, self.binary = written, binary

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> AnyPath:
        """As click asks for it."""
        from pgle.files import as_path

        if value == "-" and ctx is not None:
            return _stdout_file(ctx, self.written) if self.written else _stdin_file(ctx, self.binary)
        return as_path(value)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """File names, by the shell."""
        from click.shell_completion import CompletionItem

        return [CompletionItem(incomplete, type="file")]


PATH, HLO = _File(), _File(binary=".hlo.pb")
PROFILE_OUT, PAGE_OUT = _File(".pbtxt"), _File(".md")


def piped(ctx: click.Context, words: tuple[str, ...]) -> tuple[str, ...]:
    """Names of files, with a file of what comes on stdin for ``-``."""
    if "-" not in words:
        return words

    from pgle.errors import call_stdin

    def kept() -> str:
        path = os.fspath(_stdin_file(ctx))
        call_stdin(path)
        return path

    return tuple(kept() if word == "-" else word for word in words)


class _Dash(type(Path())):  # type: ignore[misc]
    """A temporary file that is called ``-`` wherever it is printed."""

    def __str__(self) -> str:
        return "-"

    def __fspath__(self) -> str:
        return str(super().__str__())


def _stdin_file(ctx: click.Context, binary: str = ".log") -> Path:
    """Stdin as a file until the command ends; `binary` as of `keep_stdin`.

    Raises:
        UserError: nothing is piped in, or stdin was read already.
    """
    from pgle.errors import UserError
    from pgle.run.inputs.piped import STDIN, keep_stdin

    if "pgle.stdin" in ctx.meta:
        raise UserError("stdin can be read once only", where=STDIN, remedy="name the other files")
    ctx.meta["pgle.stdin"] = True
    return _Dash(keep_stdin(_folder(ctx), binary=binary))


def _stdout_file(ctx: click.Context, suffix: str) -> Path:
    """A file to write, whose content goes to stdout when the command ends; tables go to stderr meanwhile."""
    path = _folder(ctx) / f"stdout{suffix}"
    stdout, sys.stdout = sys.stdout, sys.stderr

    def give() -> None:
        sys.stdout = stdout
        if path.exists():
            stdout.buffer.write(path.read_bytes())
            stdout.flush()

    ctx.call_on_close(give)
    return _Dash(path)


def _folder(ctx: click.Context) -> Path:
    """A folder that is there until the command ends."""
    from tempfile import TemporaryDirectory

    return Path(ctx.with_resource(TemporaryDirectory(prefix="pgle-")))


class _Target(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.4
    """The name of a GPU, or a file; it stays text."""

    name = "target"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """The GPUs that are known by name."""
        from click.shell_completion import CompletionItem

        from pgle.xla.targets import BUILT_IN

        return [CompletionItem(name) for name in BUILT_IN if name.startswith(incomplete)]


TARGET = _Target()
