"""Arguments and options that several commands share, each declared here once, and how their values
are read.
"""

from __future__ import annotations

import math
import os
import re
from pathlib import Path
from typing import Any

import click

from pgle.checks import NUMBERS, check_pattern
from pgle.errors import UserError
from pgle.files import NO_PIPE, AnyPath, as_path, check_absent, read_bytes
from pgle.xla.flags.text import FOUND_BY_SEARCH


class Between(click.FloatRange):
    """A number in a range. Click takes ``nan`` for one in any."""

    @classmethod
    def of(cls, name: str) -> Between:
        """The range that `pgle.checks` has for a name."""
        rule = NUMBERS[name]
        return cls(
            rule.least,
            None if rule.most == math.inf else rule.most,
            min_open=rule.above,
        )

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> Any:
        """The number."""
        found = super().convert(value, param, ctx)
        if found != found:
            self.fail(
                f"{value} is not in the range {self._describe_range()}.", param, ctx
            )
        return found


class _Bandwidth(Between):
    """GB/s, as a number or with a unit: ``50``, ``50GB/s``, ``400Gbit/s``."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> Any:
        """The number."""
        found = re.fullmatch(
            r"([\d.e+-]+)\s*(GB/s|Gbit/s|Gb/s|Gbps)?", str(value).strip()
        )
        if found is None:
            self.fail(
                f"{value!r} is no bandwidth: say 50GB/s or 400Gbit/s.", param, ctx
            )
        return super().convert(found[1], param, ctx) / (
            1 if found[2] in (None, "GB/s") else 8
        )


class _Share(click.ParamType):  # type: ignore[type-arg]  # it has none in click 8.1
    """``2%`` or ``0.02``."""

    name = "share"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """The share, 0 to 1."""
        from pgle.steps.compare import parse_share

        return (
            value
            if isinstance(value, float)
            else parse_share(value, param.opts[0] if param else "")
        )


class Place(click.Path):
    """A file or folder to read or to write.

    Args:
        ends: how the name of a file to write may end; empty: the command says. `check_places` looks
            at such a file.
        needed: ``a file`` or ``a folder``.
        remedy: for an address of an object store; empty: it may be one.
    """

    def __init__(self, *ends: str, needed: str = "a file", remedy: str = "") -> None:
        super().__init__()
        self.ends, self.needed, self.remedy = ends, needed, remedy

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> AnyPath:
        """The path."""
        if value == "-":
            raise UserError(
                NO_PIPE.replace("a file", self.needed), where=value, remedy="name one"
            )
        if self.remedy and "://" in os.fspath(value):
            raise UserError(
                f"is no path of this machine, and {self.needed} is needed",
                where=value,
                remedy=self.remedy,
            )
        path = as_path(value)
        if self.ends and not path.name.endswith(self.ends):
            remedy = f"choose a name that ends in {', '.join(self.ends)}"
            raise UserError("is of no known form", where=path, remedy=remedy)
        if self.needed == "a folder" and path.exists() and not path.is_dir():
            raise UserError(
                "is a file, and a folder is needed", where=path, remedy="choose another"
            )
        return path


def whole_number(name: str) -> click.IntRange:
    """The range that `pgle.checks` has for a whole number of a name."""
    rule = NUMBERS[name]
    return click.IntRange(
        int(rule.least), None if rule.most == math.inf else int(rule.most)
    )


BANDWIDTH = _Bandwidth.of("network_gb_s")
SHARE = _Share()
PATH, LOCAL = Place(), Place(remedy="copy it here first")
FOLDER = Place(
    needed="a folder", remedy="choose one here, and copy it there afterwards"
)


def check_inputs(ctx: click.Context) -> None:
    """Refuse an input that is not there, before anything is said of an option that is missing."""
    for param in ctx.command.params:
        value = ctx.params.get(str(param.name))
        if not isinstance(param.type, Place) or param.type.ends or "-o" in param.opts:
            continue
        for path in value if isinstance(value, tuple) else (value,):
            if isinstance(path, Path) and not path.exists():
                raise UserError(
                    "no such file or folder", where=path, remedy="check the path"
                )


def check_places(ctx: click.Context) -> None:
    """Refuse what cannot be read or written before the work begins."""
    for param in ctx.command.params:
        path = ctx.params.get(str(param.name))
        is_place = "|" in str(param.metavar) and not ctx.params.get(
            "rounds"
        )  # else words are a command
        if param.name == "words" and is_place and (path or ())[:1] == ("-",):
            raise UserError(NO_PIPE, where="-", remedy="name one")
        if isinstance(param.type, Place) and param.type.ends and path is not None:
            check_absent(path, force=bool(ctx.params.get("force")))


def argument(name: str, metavar: str, type: Any = PATH, **how: Any) -> click.Argument:
    """An argument; ``nargs=-1`` for several."""
    return click.Argument([name], metavar=metavar, type=type, **how)


def option(
    names: str, help: str, metavar: str | None = None, type: Any = None, **how: Any
) -> click.Option:
    """An option by its names, with blanks between them; `--help` shows a default that is not
    empty.
    """
    how.setdefault("show_default", bool(how.get("default")))
    return click.Option(names.split(), help=help, metavar=metavar, type=type, **how)


def flag(names: str, help: str, **how: Any) -> click.Option:
    """An option without a value."""
    return click.Option(names.split(), help=help, is_flag=True, **how)


def choice(names: str, help: str, *values: str, **how: Any) -> click.Option:
    """An option with one of some values."""
    return option(names, help, type=click.Choice(values), **how)


def REGEX(text: str) -> str:  # noqa: N802
    """A regular expression that Python can compile; it stays text."""
    try:
        check_pattern("", text)
    except UserError as error:
        raise click.BadParameter(error.what) from None
    return text


def _keep(ctx: click.Context, param: click.Parameter, value: Any) -> None:
    """Keep how the answer is printed, for `Command`."""
    ctx.meta[f"pgle.{param.name}"] = value


_PRINTED: dict[str, Any] = {"expose_value": False, "callback": _keep}
JSON = flag(
    "--json as_json",
    "Print one JSON object instead of a table.",
    is_eager=True,
    **_PRINTED,
)
PAGE = (
    flag(
        "--all everything",
        "Print every section and every row.",
        is_eager=True,
        **_PRINTED,
    ),
    option(
        "--section sections",
        "Print this section too; repeatable.",
        "NAME",
        multiple=True,
        **_PRINTED,
    ),
    JSON,
)
"""What every command has whose answer is a page."""
FORCE = flag("--force", "Overwrite output files that exist.")
INPUTS = argument("inputs", "INPUT...", nargs=-1, required=True)
PROFILE = argument("profile", "PROFILE")
OUT = option(
    "-o --output", "Profile to write: .pbtxt or .pb.", "OUT", PATH, required=True
)
STAT = option(
    "--stat", "Compute: median, mean, min, max, pNN.", "NAME", default="median"
)


def targets(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """The GPUs that are known by name, for the shell."""
    from pgle.xla.targets import BUILT_IN

    return [name for name in BUILT_IN if name.startswith(incomplete)]


def target(help: str, **how: Any) -> click.Option:
    """``--target``."""
    return option("--target", help, "NAME|FILE", shell_complete=targets, **how)


_GPU = "GPU: a100, a100-80, h100, h200, b200, … or a gpu_target_config.pbtxt."
TARGET = target(_GPU, default="h100")
TOPOLOGY = option(
    "--topology",
    "Slices x hosts of a slice x GPUs of a host: 4x1x8 is 4 hosts of 8 GPUs.",
    metavar="SxHxD",
)
NETWORK = option(
    "--network network_gb_s",
    "Network bandwidth per GPU, one direction: 50, 50GB/s, 400Gbit/s; else 25 (A100), 50, or 100 (GB300).",
    "GB/s",
    BANDWIDTH,
)


def devices_per_host(help: str, **how: Any) -> click.Option:
    """``--devices-per-host``."""
    return option(
        "--devices-per-host", help, "N", whole_number("devices_per_host"), **how
    )


def _read_flags(ctx: click.Context, _: click.Parameter, path: AnyPath | None) -> None:
    """Keep the flags of a file, one a line or as in XLA_FLAGS, for `_all_flags`."""
    if path is not None:
        found: list[str] = []
        first = None  # of the ones that a search found
        for number, line in enumerate(
            read_bytes(path, max_bytes=1 << 20).decode(errors="replace").splitlines(), 1
        ):
            first = len(found) if line == FOUND_BY_SEARCH else first
            words = [] if line.lstrip().startswith("#") else line.split()
            if wrong := next(
                (word for word in words if not word.startswith("--")), None
            ):
                what = f"'{wrong}' does not begin with --"
                raise UserError(
                    what,
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


FLAGS = (
    option(
        "--flag flags",
        "One more XLA flag, after XLA_FLAGS; repeatable.",
        "--xla_…",
        multiple=True,
        callback=_all_flags,
    ),
    option(
        "--flags-file",
        "XLA flags from a file, as 'pgle tune' writes it.",
        "FILE",
        PATH,
        callback=_read_flags,
        expose_value=False,
        is_eager=True,
    ),
)


CACHE = option(
    "--cache/--no-cache cached",
    "Keep compilations in the user's cache, up to PGLE_CACHE_MIB (2048).",
    default=True,
)
WINDOW = option(
    "--window", "The part to trace.", "auto|steps:A-B|seconds:N|all", default="auto"
)
MODE = choice(
    "--mode",
    "How collectives run while they are measured; 'pgle profile --help' says more.",
    "sync",
    "async",
    default="sync",
)
CHOOSE = option(
    "--choose",
    "Without a GPU: which of several modules, by name; else the program's step.",
    "NAME|REGEX",
    REGEX,
)
QUIET = option(
    "--quiet-for quiet_s",
    "Without a GPU: stop the program when it has compiled nothing new for so long.",
    "SECONDS",
    Between.of("quiet_s"),
    default=20.0,
)
COMPILED_FOR = target(f"{_GPU}  [default: the dump's, else h100]")
COMPILED = (
    option(
        "--profile",
        "Measured costs; without, estimates stand in for them.",
        "PROFILE",
        LOCAL,
    ),
    COMPILED_FOR,
    option(
        "--devices",
        "Devices on one host; short for --topology 1x1xN.",
        "N",
        whole_number("devices"),
    ),
    TOPOLOGY,
    NETWORK,
    *FLAGS,
)
"""What every command has that compiles a module for GPUs that are not there: rehearse, tune."""
BOUNDS = (
    option(
        "--min-time-coverage",
        "Exit with 1 if the profile covers less of the main module's time.",
        default=0.95,
        type=Between.of("min_time_coverage"),
    ),
    option(
        "--min-collectives",
        "Exit with 1 if collectives without a cost weigh more than the rest of the step.",
        default=0.99,
        type=Between.of("min_collectives"),
    ),
)
"""What a profile must cover to count as used; the defaults are those of
`pgle.xla.log.verdict.Bounds`.
"""
JAXLIB = option(
    "--jaxlib", "Speak of this release rather than the installed one.", "VERSION"
)
PATTERN = option(
    "--pattern",
    "Own console lines: groups s, ms or us; and step, loss if there.",
    "REGEX",
    REGEX,
)
PYTHON = option(
    "--python",
    "The Python of your program, whose jaxlib is asked.  [default: pgle's own]",
    "PATH",
)


def hlo(of: str = "", **how: Any) -> click.Option:
    """``--hlo``, several times; `of` says of which run."""
    return option(
        "--hlo",
        f"HLO dump file or directory{of}; repeatable.",
        "PATH",
        PATH,
        multiple=True,
        **how,
    )


def module(help: str, default: str | None = "", metavar: str = "REGEX") -> click.Option:
    """``--module REGEX``."""
    return option("--module", help, metavar, REGEX, default=default)


def run_dir(
    default: str | None = "runs/default", help: str = "Where the experiment lives."
) -> click.Option:
    """``--run-dir``."""
    return option("--run-dir", help, "DIR", FOLDER, default=default)


CAPTURE = choice(
    "--capture",
    "Profiler; simulated needs no GPU. auto: jax if there is a GPU.",
    "auto",
    "jax",
    "nsys",
    "simulated",
    default="auto",
)
STAGE = (
    argument("words", "-- COMMAND...", None, nargs=-1),
    run_dir(),
    CAPTURE,
    TARGET,
    option(
        "--devices", "Devices to simulate.  [default: 4]", "N", whole_number("devices")
    ),
    TOPOLOGY,
    *FLAGS,
    CHOOSE,
    QUIET,
    flag("--force", "Run a stage again; its old folder is kept under another name."),
)
"""What every command has that launches a program: profile, perf, run."""
