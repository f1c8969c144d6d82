"""Files and GPUs on a command line: local paths, object stores, ``-`` for stdin or stdout, names of targets."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import click

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from pgle.files import AnyPath


class _Path(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.4
    """What every path has: the shell completes it."""

    name = "path"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """File names, by the shell."""
        from click.shell_completion import CompletionItem

        return [CompletionItem(incomplete, type="file")]


class Between(click.FloatRange):
    """A number in a range. Click takes ``nan`` for one in any."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The number."""
        found = super().convert(value, param, ctx)
        if found != found:
            self.fail(f"{value} is not in the range {self._describe_range()}.", param, ctx)
        return found


class _Bandwidth(Between):
    """GB/s, as a number or with a unit: ``50``, ``50GB/s``, ``400Gbit/s``."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The number."""
        number, unit = re.fullmatch(r"(.*?)\s*(GB/s|Gbit/s|Gb/s|Gbps)?", str(value), re.DOTALL).groups()  # type: ignore[union-attr]
        return super().convert(number, param, ctx) / (1 if unit in (None, "GB/s") else 8)


BANDWIDTH = _Bandwidth(0, 1e6, min_open=True)


class _In(_Path):
    """A file to read: a local path or one of an object store; ``-`` is stdin.

    Args:
        binary: suffix by which its readers know a protobuf message on stdin.
    """

    def __init__(self, binary: str = ".log") -> None:
        self.binary = binary

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> AnyPath:
        """As click asks for it."""
        from pgle.files import as_path

        return _stdin_file(ctx, self.binary) if value == "-" and ctx is not None else as_path(value)


class Out(_Path):
    """A file to write: a local path or one of an object store; ``-`` is stdout, which then has nothing else.

    Args:
        stdout: suffix of the form that goes to stdout; empty: none does.
        ends: how its name may end; empty: the command says. Of what it names `Command` checks before the work begins
            that it can be written.
    """

    def __init__(self, stdout: str, *ends: str) -> None:
        self.stdout, self.ends = stdout, ends

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> AnyPath:
        """As click asks for it."""
        from pgle.errors import UserError
        from pgle.files import as_path

        if value == "-" and ctx is not None:
            if not self.stdout:
                raise UserError("more than one file is written, and stdout holds one", where="-", remedy=self._remedy)
            return _stdout_file(ctx, self.stdout)
        path = as_path(value)
        if self.ends and not path.name.endswith(self.ends):
            raise UserError("is of no known form", where=path, remedy=self._remedy)
        return path

    @property
    def _remedy(self) -> str:
        return f"choose a name that ends in {', '.join(self.ends)}"


class _Local(_Path):
    """A file or folder of this machine; ``-`` is none, and neither is an address of an object store."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        """As click asks for it."""
        from pgle.errors import UserError
        from pgle.files import as_path

        if value == "-" or "://" in os.fspath(value):
            what = "is stdin or stdout" if value == "-" else "is no path of this machine"
            raise UserError(f"{what}, and {self.needed} is needed", where=value, remedy=self._remedy(value))
        return Path(as_path(value))

    needed = "a file"

    def _remedy(self, value: str) -> str:
        return "name one" if value == "-" else "copy it here first"


class _Folder(_Local):
    """A folder of this machine, there or to be made."""

    needed = "a folder"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        """As click asks for it."""
        from pgle.errors import UserError

        path = super().convert(value, param, ctx)
        if path.exists() and not path.is_dir():
            raise UserError("is a file, and a folder is needed", where=path, remedy="choose another")
        return path

    def _remedy(self, value: str) -> str:
        return "name one" if value == "-" else "choose one here, and copy it there afterwards"


PATH, HLO = _In(), _In(binary=".hlo.pb")
PROFILE_OUT, PAGE_OUT = Out(".pbtxt"), Out(".md")
LOCAL, FOLDER = _Local(), _Folder()


def check_outputs(ctx: click.Context) -> None:
    """Refuse what cannot be written before the work begins.

    Raises:
        UserError: as of `pgle.files.check_absent`; or stdout is to hold both a file and the object of ``--json``.
    """
    from pgle.errors import UserError
    from pgle.files import check_absent

    if ctx.meta.get("pgle.stdout") and ctx.params.get("as_json"):
        raise UserError("stdout holds a file or the object of --json, not both", where="-", remedy="name the file")
    for param in ctx.command.params:
        path = ctx.params.get(str(param.name))
        if isinstance(param.type, Out) and param.type.ends and path is not None:
            check_absent(path, force=bool(ctx.params.get("force")))


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
    from pgle.run.inputs.logs import STDIN, keep_stdin

    if "pgle.stdin" in ctx.meta:
        raise UserError("stdin can be read once only", where=STDIN, remedy="name the other files")
    ctx.meta["pgle.stdin"] = True
    return _Dash(keep_stdin(_folder(ctx), binary=binary))


class _Stdout(type(Path())):  # type: ignore[misc]
    """A file that is written to stdout, whole, when it is written; it is called ``-`` wherever it is printed."""

    stdout: TextIO
    is_stream = True  # as of `pgle.files.write_files`

    def __str__(self) -> str:
        return "-"

    def __fspath__(self) -> str:
        return str(super().__str__())

    def with_name(self, name: str) -> Path:
        """A file beside it, which goes nowhere."""
        return Path(os.fspath(self)).with_name(name)

    def write_bytes(self, data: bytes) -> int:
        """Give it to stdout now: what stdout does not take is said before anything is said to be good."""
        try:
            self.stdout.buffer.write(data)
            self.stdout.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), self.stdout.fileno())  # Python tries again at its end
            raise
        return len(data)


def _stdout_file(ctx: click.Context, suffix: str) -> Path:
    """Stdout as a file; tables go to stderr until the command ends.

    Raises:
        UserError: stdout is such a file already.
    """
    from pgle.errors import UserError

    if "pgle.stdout" in ctx.meta:
        raise UserError("stdout holds one file", where="-", remedy="name the other files")
    ctx.meta["pgle.stdout"] = True
    path = _Stdout(_folder(ctx) / f"stdout{suffix}")
    path.stdout, sys.stdout = sys.stdout, sys.stderr

    def restore() -> None:
        sys.stdout = path.stdout

    ctx.call_on_close(restore)
    return path


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
