"""Make the click arguments and options of a command from the fields of its request."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import click

from pgle.checks import Rule, check_pattern
from pgle.errors import UserError
from pgle.files import NO_PIPE, AnyPath, as_path, check_absent, read_bytes
from pgle.requests import kinds
from pgle.requests.option import Declared, Request, declared


class Between(click.FloatRange):
    """A number in a range. Click alone accepts ``nan`` for any range."""

    def __init__(self, rule: Rule) -> None:
        most = None if rule.most == math.inf else rule.most
        super().__init__(rule.least, most, min_open=rule.above)

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> Any:
        """The number."""
        found = super().convert(value, param, ctx)
        if found != found:
            what = f"{value} is not in the range {self._describe_range()}."
            self.fail(what, param, ctx)
        return found


class _Bandwidth(Between):
    """A bandwidth in GB/s, as a number or with a unit."""

    def __init__(self, kind: kinds.Bandwidth) -> None:
        super().__init__(kind.rule)
        self.kind = kind

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> Any:
        """The number."""
        found = self.kind.parts(str(value))
        if found is None:
            what = f"{value!r} is no bandwidth: say 50GB/s or 400Gbit/s."
            self.fail(what, param, ctx)
        number, per_gb = found
        return super().convert(number, param, ctx) / per_gb


class _ShareType(click.ParamType):  # type: ignore[type-arg]  # it has none in click 8.1
    """A share: ``2%`` or ``0.02``."""

    name = "share"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """The share, 0 to 1."""
        from pgle.steps.compare import parse_share

        if isinstance(value, float):
            return value
        return parse_share(value, param.opts[0] if param else "")


class PathType(click.Path):
    """A file or folder to read or write. `check_places` checks it."""

    def __init__(self, kind: kinds.PathOf) -> None:
        super().__init__()
        self.kind = kind

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> AnyPath:
        """The path."""
        needed = self.kind.needed
        ends = self.kind.ends
        remedy = self.kind.remedy
        if value == "-":
            what = NO_PIPE.replace("a file", needed)
            raise UserError(what, where=value, remedy="name one")
        if remedy and "://" in os.fspath(value):
            what = f"is no path of this machine, and {needed} is needed"
            raise UserError(what, where=value, remedy=remedy)
        path = as_path(value)
        if ends and not path.name.endswith(ends):
            remedy = f"choose a name that ends in {', '.join(ends)}"
            raise UserError("its ending is unknown", where=path, remedy=remedy)
        if needed == "a folder" and path.exists() and not path.is_dir():
            what = "is a file, and a folder is needed"
            raise UserError(what, where=path, remedy="choose another")
        return path


def check_inputs(ctx: click.Context) -> None:
    """Refuse an absent input before click complains about a missing option."""
    for param in ctx.command.params:
        value = ctx.params.get(str(param.name))
        if not isinstance(param.type, PathType):
            continue
        if param.type.kind.ends or "-o" in param.opts:
            continue
        for path in value if isinstance(value, tuple) else (value,):
            if isinstance(path, Path) and not path.exists():
                raise UserError(
                    "no such file or folder", where=path, remedy="check the path"
                )


def check_places(ctx: click.Context) -> None:
    """Before the work begins, refuse paths that cannot be read or written."""
    for param in ctx.command.params:
        path = ctx.params.get(str(param.name))
        # otherwise the words are a command
        is_place = "|" in str(param.metavar) and not ctx.params.get("rounds")
        if param.name == "words" and is_place and (path or ())[:1] == ("-",):
            raise UserError(NO_PIPE, where="-", remedy="name one")
        is_output = isinstance(param.type, PathType) and bool(param.type.kind.ends)
        if is_output and path is not None:
            force = bool(ctx.params.get("force"))
            check_absent(path, force=force, inputs=_inputs(ctx))


def _inputs(ctx: click.Context) -> Iterator[AnyPath]:
    """The files and folders that a command reads."""
    for param in ctx.command.params:
        if not isinstance(param.type, PathType) or param.type.kind.ends:
            continue
        given = ctx.params.get(str(param.name))
        if given is not None:
            yield from given if isinstance(given, tuple) else (given,)


def REGEX(text: str) -> str:  # noqa: N802
    """A regular expression that Python can compile; it stays text."""
    try:
        check_pattern("", text)
    except UserError as error:
        raise click.BadParameter(error.what) from None
    return text


def targets(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Complete the names of known GPUs, for the shell."""
    from pgle.xla.targets import BUILT_IN

    return [name for name in BUILT_IN if name.startswith(incomplete)]


class _Renamed(click.Option):
    """An option with an older name, which `--help` leaves out."""

    def __init__(self, *words: Any, older: str, **options: Any) -> None:
        super().__init__(*words, **options)
        self.older = older

    def add_to_parser(self, parser: Any, ctx: click.Context) -> None:
        """Let the parser accept the older name, too."""
        super().add_to_parser(parser, ctx)
        if self.older:
            parser.add_option(self, [self.older], self.name, nargs=self.nargs)


def parameters(request: type[Request]) -> Iterator[click.Parameter]:
    """The arguments and options of a request, in its order."""
    fields = declared(request)
    for item in fields:
        if item.option.is_argument:
            yield _argument(item)
    for item in fields:
        if not item.option.is_argument:
            yield from _options(item)


def _argument(item: Declared) -> click.Argument:
    """The click argument of a field."""
    option = item.option
    # `help.Command` and `check_places` find the words of a command by this name
    name = "words" if isinstance(option.kind, kinds.Words) else item.name
    how: dict[str, Any] = {}
    if item.default not in (None, ()):  # click takes None as a value
        how["default"] = item.default
    return click.Argument(
        [name],
        metavar=option.metavar,
        type=_type(option.kind),
        nargs=-1 if option.is_listed else 1,
        required=item.is_required,
        **how,
    )


def _options(item: Declared) -> Iterator[click.Option]:
    """Return the click option of a field. For flags, add the option that reads them from a file."""
    option = item.option
    names = [*option.names.split(), item.name]
    made = partial(_Renamed, names, help=option.help, older=option.older)
    if option.kind == kinds.SWITCH and "/" not in option.names:
        yield made(is_flag=True)
        return
    how: dict[str, Any] = {"multiple": option.is_listed}
    default = item.default if option.default is None else option.default
    if default not in (None, ()):
        how["default"] = default
    if option.kind == kinds.SWITCH:
        how["show_default"] = True
    else:
        how["show_default"] = bool(default)
        how["type"] = _type(option.kind)
    if option.kind == kinds.PAIR:
        how.update(nargs=2, show_default=False)
    if option.kind == kinds.GPU:
        how["shell_complete"] = targets
    if option.kind == kinds.XLA_FLAGS:
        how["callback"] = _all_flags
    yield made(metavar=option.metavar, required=item.is_required, **how)
    if option.kind == kinds.XLA_FLAGS:
        yield FLAGS_FILE


def _type(kind: kinds.Kind) -> Any:
    """Return the click type of a kind; None means text."""
    match kind:
        case kinds.Bandwidth():
            return _Bandwidth(kind)
        case kinds.Portion():
            return _ShareType()
        case kinds.Number(rule):
            return _whole(rule) if rule.whole else Between(rule)
        case kinds.Pattern():
            return REGEX
        case kinds.OneOf(values):
            return click.Choice(values)
        case kinds.PathOf():
            return PathType(kind)
        case kinds.Word():
            return _read(kind)
    return None


def _whole(rule: Rule) -> click.IntRange:
    """A click type for whole numbers."""
    most = None if rule.most == math.inf else int(rule.most)
    return click.IntRange(int(rule.least), most)


def _read(kind: kinds.Word) -> Callable[[str], Any]:
    """Return the function that reads a word of this kind."""

    def read(text: str) -> Any:
        try:
            return kind.read(text)
        except ValueError as error:
            raise click.BadParameter(str(error)) from None

    return read


def _read_flags(ctx: click.Context, _: click.Parameter, path: AnyPath | None) -> None:
    """Store the flags of a file, one a line or as in XLA_FLAGS, for `_all_flags`."""
    if path is None:
        return
    text = read_bytes(path, max_bytes=1 << 20).decode(errors="replace")
    found: list[str] = []
    first = None  # of the ones that a search found
    for number, line in enumerate(text.splitlines(), 1):
        if line == kinds.FOUND_BY_SEARCH:
            first = len(found)
        words = [] if line.lstrip().startswith("#") else line.split()
        wrong = [word for word in words if not word.startswith("--")]
        if wrong:
            raise UserError(
                f"'{wrong[0]}' does not begin with --",
                where=f"{path}, line {number}",
                remedy="write --name=value; # begins a remark",
            )
        found += words
    ctx.meta["pgle.flags"] = tuple(found)
    ctx.meta["pgle.judged"] = () if first is None else tuple(found[first:])


def _all_flags(
    ctx: click.Context, _: click.Parameter, flags: tuple[str, ...]
) -> tuple[str, ...]:
    return (*ctx.meta.get("pgle.flags", ()), *flags)


FLAGS_FILE = click.Option(
    ["--flags-file"],
    help="XLA flags from a file, as 'pgle tune' writes it.",
    metavar="FILE",
    type=PathType(kinds.FILE),
    callback=_read_flags,
    expose_value=False,
    is_eager=True,
)
