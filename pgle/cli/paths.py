"""Files and bandwidths on a command line: local paths, object stores, ``-`` for stdin or stdout."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import click

if TYPE_CHECKING:
    from pgle.files import AnyPath


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
        found = re.fullmatch(r"([\d.e+-]+)\s*(GB/s|Gbit/s|Gb/s|Gbps)?", str(value).strip())
        if found is None:
            self.fail(f"{value!r} is no bandwidth: say 50GB/s or 400Gbit/s.", param, ctx)
        return super().convert(found[1], param, ctx) / (1 if found[2] in (None, "GB/s") else 8)


class _Share(click.ParamType):  # type: ignore[type-arg]  # it has none in click 8.1
    """``2%`` or ``0.02``."""

    name = "share"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The share, 0 to 1."""
        from pgle.steps.compare import parse_share

        return value if isinstance(value, float) else parse_share(value, param.opts[0] if param else "")


BANDWIDTH, SHARE = _Bandwidth(0, 1e6, min_open=True), _Share()


class _In(click.Path):
    """A file to read: a local path or one of an object store; ``-`` is stdin."""

    binary = ".log"  # suffix by which its readers know a protobuf message on stdin

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> AnyPath:
        """The path."""
        from pgle.files import as_path

        return _stdin_file(ctx, self.binary) if value == "-" and ctx is not None else as_path(value)


class _Hlo(_In):
    binary = ".hlo.pb"


class Out(click.Path):
    """A file to write: a local path or one of an object store; ``-`` is stdout, which then has nothing else.

    Args:
        stdout: suffix of the form that goes to stdout; empty: none does.
        ends: how its name may end; empty: the command says. Of what it names `Command` checks before the work begins
            that it can be written.
    """

    def __init__(self, stdout: str, *ends: str) -> None:
        super().__init__()
        self.stdout, self.ends = stdout, ends

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> AnyPath:
        """The path."""
        from pgle.errors import UserError
        from pgle.files import as_path

        remedy = f"choose a name that ends in {', '.join(self.ends)}"
        if value == "-" and ctx is not None:
            if not self.stdout:
                raise UserError("more than one file is written, and stdout holds one", where="-", remedy=remedy)
            return _stdout_file(ctx, self.stdout)
        path = as_path(value)
        if self.ends and not path.name.endswith(self.ends):
            raise UserError("is of no known form", where=path, remedy=remedy)
        return path


class _Local(click.Path):
    """A file of this machine, or a folder, there or to be made; ``-`` is neither, nor is an address of an object store.

    Args:
        needed: ``a file`` or ``a folder``.
        remedy: for an address.
    """

    def __init__(self, needed: str, remedy: str) -> None:
        super().__init__()
        self.needed, self.remedy = needed, remedy

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        """The path."""
        from pgle.errors import UserError
        from pgle.files import as_path

        if value == "-":
            raise UserError(f"is stdin or stdout, and {self.needed} is needed", where=value, remedy="name one")
        if "://" in os.fspath(value):
            raise UserError(f"is no path of this machine, and {self.needed} is needed", where=value, remedy=self.remedy)
        path = Path(as_path(value))
        if self.needed == "a folder" and path.exists() and not path.is_dir():
            raise UserError("is a file, and a folder is needed", where=path, remedy="choose another")
        return path


PATH, HLO = _In(), _Hlo()
PROFILE_OUT, PAGE_OUT = Out(".pbtxt"), Out(".md")
LOCAL = _Local("a file", "copy it here first")
FOLDER = _Local("a folder", "choose one here, and copy it there afterwards")


def check_outputs(ctx: click.Context) -> None:
    """Refuse what cannot be written before the work begins.

    Raises:
        UserError: as of `pgle.files.check_absent`; or stdout is to hold both a file and the object of ``--json``.
    """
    from pgle.errors import UserError
    from pgle.files import check_absent

    if ctx.meta.get("pgle.stdout") and ctx.meta.get("pgle.as_json"):
        raise UserError("stdout holds a file or the object of --json, not both", where="-", remedy="name the file")
    for param in ctx.command.params:
        path = ctx.params.get(str(param.name))
        if isinstance(param.type, Out) and param.type.ends and path is not None:
            check_absent(path, force=bool(ctx.params.get("force")))


def stdin_as_file(ctx: click.Context, words: tuple[str, ...]) -> tuple[str, ...]:
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


class _Stdout(_Dash):
    """A file that is written to stdout, whole, when it is written."""

    stdout: TextIO
    is_stream = True  # as of `pgle.files.write_files`

    def with_name(self, name: str) -> Path:
        """A file next to it, which goes nowhere."""
        return Path(os.fspath(self)).with_name(name)

    def write_bytes(self, data: bytes) -> int:
        """Give it to stdout now: what stdout does not take must fail before any answer is good."""
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
    path.stdout = leave_stdout(ctx)
    return path


def leave_stdout(ctx: click.Context) -> TextIO:
    """Have pages go to stderr until the command ends, as stdout is for something else; returns stdout."""
    stdout, sys.stdout = sys.stdout, sys.stderr
    ctx.call_on_close(lambda: setattr(sys, "stdout", stdout))
    return stdout


def _folder(ctx: click.Context) -> Path:
    """A folder that is there until the command ends."""
    from tempfile import TemporaryDirectory

    return Path(ctx.with_resource(TemporaryDirectory(prefix="pgle-")))
