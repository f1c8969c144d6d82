"""Arguments and options that several commands share, each declared here once, and how their values
are read.
"""

from __future__ import annotations

import math
from typing import Any

import click

from pgle.checks import NUMBERS
from pgle.cli.parameters import (
    REGEX,
    Between,
    Place,
    _Share,
    check_inputs,
    check_places,
    parameters,
    targets,
)
from pgle.requests import kinds, shared

__all__ = ["REGEX", "Place", "check_inputs", "check_places", "parameters"]


def between(name: str) -> Between:
    """The range that `pgle.checks` has for a name."""
    return Between(NUMBERS[name])


def whole_number(name: str) -> click.IntRange:
    """The range that `pgle.checks` has for a whole number of a name."""
    rule = NUMBERS[name]
    return click.IntRange(
        int(rule.least), None if rule.most == math.inf else int(rule.most)
    )


SHARE = _Share()
PATH, LOCAL = Place(kinds.FILE), Place(kinds.LOCAL)
FOLDER = Place(kinds.FOLDER)


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
(NETWORK,) = parameters(shared.Network)


def devices_per_host(help: str, **how: Any) -> click.Option:
    """``--devices-per-host``."""
    return option(
        "--devices-per-host", help, "N", whole_number("devices_per_host"), **how
    )


FLAGS = tuple(parameters(shared.Flags))


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
    between("quiet_s"),
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
        type=between("min_time_coverage"),
    ),
    option(
        "--min-collectives",
        "Exit with 1 if collectives without a cost weigh more than the rest of the step.",
        default=0.99,
        type=between("min_collectives"),
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
