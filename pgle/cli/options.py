"""Arguments and options that several commands share: each is stated here once."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from pgle.cli.paths import BANDWIDTH, FOLDER, LOCAL, PATH, PROFILE_OUT, Between

if TYPE_CHECKING:
    from pgle.files import AnyPath
    from pgle.run.rehearse_program import RehearseCommand

F = TypeVar("F", bound=Callable[..., Any])


def REGEX(text: str) -> str:  # noqa: N802
    """A regular expression that Python can compile; it stays text."""
    try:
        re.compile(text)
    except (re.error, OverflowError, RecursionError) as error:
        raise click.BadParameter(f"{text!r} is not a regular expression ({error})") from None
    return text


def _together(*options: Callable[[F], F]) -> Callable[[F], F]:
    """Several options as one decorator; `--help` lists them in this order."""

    def decorate(function: F) -> F:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


def _how(ctx: click.Context, param: click.Parameter, value: Any) -> None:
    """Keep how the answer is printed, for `Command`."""
    ctx.meta[f"pgle.{param.name}"] = value


json_option = click.option("--json", "as_json", is_flag=True, is_eager=True, expose_value=False, callback=_how,
                           help="Print one JSON object instead of a table.")  # fmt: skip
page_options = _together(
    click.option("--all", "everything", is_flag=True, is_eager=True, expose_value=False, callback=_how,
                 help="Print every section and every row."),
    click.option("--section", "sections", multiple=True, metavar="NAME", expose_value=False, callback=_how,
                 help="Print this section too; repeatable."),
    json_option,
)  # fmt: skip
"""What every command has whose answer is a page."""
force_option = click.option("--force", is_flag=True, help="Overwrite output files that exist.")
profile_argument = click.argument("profile", type=PATH, metavar="PROFILE")
profile_output = click.option(
    "-o",
    "--output",
    type=PROFILE_OUT,
    required=True,
    metavar="OUT",
    help="Profile to write: .pbtxt, .pb, or - (stdout).",
)
stat_option = click.option(
    "--stat", default="median", show_default=True, metavar="NAME", help="Compute: median, mean, min, max, pNN."
)


def targets(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """The GPUs that are known by name, for the shell."""
    from pgle.xla.targets import BUILT_IN

    return [name for name in BUILT_IN if name.startswith(incomplete)]


target_option = click.option(
    "--target",
    shell_complete=targets,
    default="h100",
    show_default=True,
    metavar="NAME|FILE",
    help="GPU: a100, a100-80, h100, h200, b200, … or a gpu_target_config.pbtxt.",
)
topology_option = click.option(
    "--topology", metavar="SxHxD", help="Slices x hosts of a slice x GPUs of a host: 4x1x8 is 4 hosts of 8 GPUs."
)
network_option = click.option(
    "--network",
    "network_gb_s",
    type=BANDWIDTH,
    metavar="GB/s",
    help="Network bandwidth per GPU, one direction: 50, 50GB/s, 400Gbit/s; else 25 (A100), 50, or 100 (GB300).",
)


def _read_flags(ctx: click.Context, _: click.Parameter, path: AnyPath | None) -> None:
    """Keep the flags of a file, one a line or as in XLA_FLAGS, for `_all_flags`."""
    if path is not None:
        from pgle.errors import UserError
        from pgle.files import read_bytes
        from pgle.xla.flags.text import FOUND_BY_SEARCH

        found: list[str] = []
        first = None  # of those that a search found
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


flag_option = _together(
    click.option(
        "--flag",
        "flags",
        multiple=True,
        metavar="--xla_…",
        callback=_all_flags,
        help="One more XLA flag, after XLA_FLAGS; repeatable.",
    ),
    click.option(
        "--flags-file",
        type=PATH,
        metavar="FILE",
        callback=_read_flags,
        expose_value=False,
        is_eager=True,
        help="XLA flags from a file, as 'pgle tune' writes it.",
    ),
)
window_option = click.option(
    "--window", default="auto", show_default=True, metavar="auto|steps:A-B|seconds:N|all", help="What is traced."
)
mode_option = click.option(
    "--mode",
    default="sync",
    show_default=True,
    type=click.Choice(["sync", "async"]),
    help="How collectives run while they are measured; 'pgle profile --help' says more.",
)
quiet_option = click.option(
    "--quiet-for",
    "quiet_s",
    default=20.0,
    show_default=True,
    metavar="SECONDS",
    help="Without a GPU: stop the program when it has compiled nothing new for so long.",
)
module_options = _together(
    click.option(
        "--profile", type=LOCAL, metavar="PROFILE", help="Measured costs; without, estimates stand in for them."
    ),
    target_option,
    click.option(
        "--devices", type=click.IntRange(1), metavar="N", help="Devices on one host; short for --topology 1x1xN."
    ),
    topology_option,
    network_option,
    flag_option,
)
"""What every command has that compiles a module for GPUs that are not there: rehearse, tune; `asked_of` takes them."""


def asked_of(
    ctx: click.Context, words: tuple[str, ...], output: Path | None, options: dict[str, Any]
) -> RehearseCommand:
    """What is to be compiled; the options that say so are taken out of `options`."""
    from pgle.run.rehearse_program import RehearseCommand

    if ctx.get_parameter_source("target") is click.core.ParameterSource.DEFAULT:
        options["target"] = ""  # of a run directory its own
    taken = {
        name: options.pop(name)
        for name in ("profile", "target", "devices", "network_gb_s", "flags", "choose", "quiet_s")
    }
    shape = options.pop("topology") or (f"1x1x{taken['devices']}" if taken["devices"] else None)
    taken["profile"], out = (None if path is None else str(path) for path in (taken["profile"], output))
    return RehearseCommand(words, topology=shape, out=out, cached=options.pop("cached"), **taken)


choose_option = click.option(
    "--choose",
    type=REGEX,
    metavar="NAME|REGEX",
    help="Without a GPU: which of several modules, by name; else the program's step.",
)


def _bound(name: str, default: float, text: str) -> Callable[[F], F]:
    """A share from 0 to 1 that a profile must reach."""
    return click.option(name, default=default, show_default=True, type=Between(0, 1), help=text)


bounds_options = _together(
    _bound("--min-time-coverage", 0.95, "Exit with 1 if the profile covers less of the main module's time."),
    _bound(
        "--min-collectives", 0.99, "Exit with 1 if collectives without a cost weigh more than the rest of the step."
    ),
)
"""What a profile must cover to count as used; the defaults are those of `pgle.xla.log.module_verdict.Bounds`."""
jaxlib_option = click.option("--jaxlib", metavar="VERSION", help="Speak of this release rather than the installed one.")
python_option = click.option(
    "--python", metavar="PATH", help="The Python of your program, whose jaxlib is asked.  [default: pgle's own]"
)


def pattern_option(text: str) -> Callable[[F], F]:
    """``--pattern``: the user's own console lines."""
    return click.option("--pattern", type=REGEX, metavar="REGEX", help=text)


def hlo_option(of: str = "", *, required: bool = False) -> Callable[[F], F]:
    """``--hlo``, several times; `of` says of which run."""
    text = f"HLO dump file or directory{of}; repeatable."
    return click.option("--hlo", type=PATH, multiple=True, required=required, metavar="PATH", help=text)


def module_option(text: str, *, default: str | None = "", metavar: str = "REGEX") -> Callable[[F], F]:
    """``--module REGEX``."""
    shown = bool(default)
    return click.option("--module", default=default, show_default=shown, type=REGEX, metavar=metavar, help=text)


def run_dir_option(default: str | None = "runs/default", text: str = "Where the experiment lives.") -> Callable[[F], F]:
    """``--run-dir``."""
    shown = default is not None
    return click.option("--run-dir", default=default, show_default=shown, type=FOLDER, metavar="DIR", help=text)


capture_option = click.option(
    "--capture",
    default="auto",
    show_default=True,
    type=click.Choice(["auto", "jax", "nsys", "simulated"]),
    help="Profiler; simulated needs no GPU. auto: jax if there is a GPU.",
)
stage_options = _together(
    click.argument("words", nargs=-1, metavar="-- COMMAND..."),
    run_dir_option(),
    capture_option,
    target_option,
    click.option("--devices", type=click.IntRange(1), metavar="N", help="Devices to simulate.  [default: 4]"),
    topology_option,
    flag_option,
    choose_option,
    quiet_option,
    click.option("--force", is_flag=True, help="Run a stage again; its old folder is kept under another name."),
)
"""What every command has that launches a program: profile, perf, run."""
