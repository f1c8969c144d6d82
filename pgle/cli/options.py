"""Arguments and options that several commands share: each is declared here once."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import click

from pgle.cli.paths import BANDWIDTH, FOLDER, LOCAL, PATH, PROFILE_OUT, Between

if TYPE_CHECKING:
    from pgle.files import AnyPath


def argument(name: str, metavar: str, type: Any = PATH, **how: Any) -> click.Argument:
    """An argument; ``nargs=-1`` for several."""
    return click.Argument([name], metavar=metavar, type=type, **how)


def option(names: str, help: str, metavar: str | None = None, type: Any = None, **how: Any) -> click.Option:
    """An option by its names, with blanks between them; `--help` shows a default that is not empty."""
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
        re.compile(text)
    except (re.error, OverflowError, RecursionError) as error:
        raise click.BadParameter(f"{text!r} is not a regular expression ({error})") from None
    return text


def _how(ctx: click.Context, param: click.Parameter, value: Any) -> None:
    """Keep how the answer is printed, for `Command`."""
    ctx.meta[f"pgle.{param.name}"] = value


_PRINTED: dict[str, Any] = {"expose_value": False, "callback": _how}
JSON = flag("--json as_json", "Print one JSON object instead of a table.", is_eager=True, **_PRINTED)
PAGE = (
    flag("--all everything", "Print every section and every row.", is_eager=True, **_PRINTED),
    option("--section sections", "Print this section too; repeatable.", "NAME", multiple=True, **_PRINTED),
    JSON,
)
"""What every command has whose answer is a page."""
FORCE = flag("--force", "Overwrite output files that exist.")
INPUTS = argument("inputs", "INPUT...", nargs=-1, required=True)
PROFILE = argument("profile", "PROFILE")
OUT = option("-o --output", "Profile to write: .pbtxt, .pb, or - (stdout).", "OUT", PROFILE_OUT, required=True)
STAT = option("--stat", "Compute: median, mean, min, max, pNN.", "NAME", default="median")


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
    "--topology", "Slices x hosts of a slice x GPUs of a host: 4x1x8 is 4 hosts of 8 GPUs.", metavar="SxHxD"
)
NETWORK = option(
    "--network network_gb_s",
    "Network bandwidth per GPU, one direction: 50, 50GB/s, 400Gbit/s; else 25 (A100), 50, or 100 (GB300).",
    "GB/s",
    BANDWIDTH,
)


def devices(help: str) -> click.Option:
    """``--devices``."""
    return option("--devices", help, "N", click.IntRange(1))


def devices_per_host(help: str, **how: Any) -> click.Option:
    """``--devices-per-host``."""
    return option("--devices-per-host", help, "N", click.IntRange(1), **how)


def _read_flags(ctx: click.Context, _: click.Parameter, path: AnyPath | None) -> None:
    """Keep the flags of a file, one a line or as in XLA_FLAGS, for `_all_flags`."""
    if path is not None:
        from pgle.errors import UserError
        from pgle.files import read_bytes
        from pgle.xla.flags.text import FOUND_BY_SEARCH

        found: list[str] = []
        first = None  # of the ones that a search found
        for number, line in enumerate(read_bytes(path, max_bytes=1 << 20).decode(errors="replace").splitlines(), 1):
            first = len(found) if line == FOUND_BY_SEARCH else first
            words = [] if line.lstrip().startswith("#") else line.split()
            if wrong := next((word for word in words if not word.startswith("--")), None):
                what = f"'{wrong}' does not begin with --"
                raise UserError(what, where=f"{path}, line {number}", remedy="write --name=value; # begins a remark")
            found += words
        ctx.meta["pgle.flags"] = tuple(found)
        ctx.meta["pgle.judged"] = () if first is None else tuple(found[first:])


def _all_flags(ctx: click.Context, _: click.Parameter, flags: tuple[str, ...]) -> tuple[str, ...]:
    return (*ctx.meta.get("pgle.flags", ()), *flags)


FLAGS = (
    option("--flag flags", "One more XLA flag, after XLA_FLAGS; repeatable.", "--xla_…", multiple=True,
           callback=_all_flags),
    option("--flags-file", "XLA flags from a file, as 'pgle tune' writes it.", "FILE", PATH, callback=_read_flags,
           expose_value=False, is_eager=True),
)  # fmt: skip


def cache(help: str) -> click.Option:
    """``--cache/--no-cache``."""
    return option("--cache/--no-cache cached", help, default=True)


WINDOW = option("--window", "The part to trace.", "auto|steps:A-B|seconds:N|all", default="auto")
MODE = choice("--mode", "How collectives run while they are measured; 'pgle profile --help' says more.", "sync",
              "async", default="sync")  # fmt: skip
CHOOSE = option("--choose", "Without a GPU: which of several modules, by name; else the program's step.", "NAME|REGEX",
                REGEX)  # fmt: skip
QUIET = option("--quiet-for quiet_s", "Without a GPU: stop the program when it has compiled nothing new for so long.",
               "SECONDS", default=20.0)  # fmt: skip
COMPILED = (
    option("--profile", "Measured costs; without, estimates stand in for them.", "PROFILE", LOCAL),
    target(f"{_GPU}  [default: h100]"),  # of a run directory its own
    devices("Devices on one host; short for --topology 1x1xN."),
    TOPOLOGY,
    NETWORK,
    *FLAGS,
)
"""What every command has that compiles a module for GPUs that are not there: rehearse, tune."""
BOUNDS = (
    option("--min-time-coverage", "Exit with 1 if the profile covers less of the main module's time.", default=0.95,
           type=Between(0, 1)),
    option("--min-collectives", "Exit with 1 if collectives without a cost weigh more than the rest of the step.",
           default=0.99, type=Between(0, 1)),
)  # fmt: skip
"""What a profile must cover to count as used; the defaults are those of `pgle.xla.log.verdict.Bounds`."""
JAXLIB = option("--jaxlib", "Speak of this release rather than the installed one.", "VERSION")
PYTHON = option("--python", "The Python of your program, whose jaxlib is asked.  [default: pgle's own]", "PATH")


def pattern(help: str) -> click.Option:
    """``--pattern``: the user's own console lines."""
    return option("--pattern", help, "REGEX", REGEX)


def hlo(of: str = "", **how: Any) -> click.Option:
    """``--hlo``, several times; `of` says of which run."""
    return option("--hlo", f"HLO dump file or directory{of}; repeatable.", "PATH", PATH, multiple=True, **how)


def module(help: str, default: str | None = "", metavar: str = "REGEX") -> click.Option:
    """``--module REGEX``."""
    return option("--module", help, metavar, REGEX, default=default)


def run_dir(default: str | None = "runs/default", help: str = "Where the experiment lives.") -> click.Option:
    """``--run-dir``."""
    return option("--run-dir", help, "DIR", FOLDER, default=default)


CAPTURE = choice("--capture", "Profiler; simulated needs no GPU. auto: jax if there is a GPU.", "auto", "jax", "nsys",
                 "simulated", default="auto")  # fmt: skip
STAGE = (
    argument("words", "-- COMMAND...", None, nargs=-1),
    run_dir(),
    CAPTURE,
    TARGET,
    devices("Devices to simulate.  [default: 4]"),
    TOPOLOGY,
    *FLAGS,
    CHOOSE,
    QUIET,
    flag("--force", "Run a stage again; its old folder is kept under another name."),
)
"""What every command has that launches a program: profile, perf, run."""
