"""`pgle perf`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from pgle.cli.help import Command
from pgle.cli.options import PATH, bounds_options, json_option, stage_options

if TYPE_CHECKING:
    from pgle.files import AnyPath


@click.command(cls=Command)
@stage_options
@click.option("--profile", type=PATH, metavar="PROFILE", help="[default: that of the run directory]")
@click.option("--baseline", is_flag=True, help="Run without the profile, scheduler on: what to compare with.")
@bounds_options
@json_option
@click.pass_context
def command(
    ctx: click.Context, /, words: tuple[str, ...], run_dir: Path, profile: AnyPath | None, baseline: bool,
    flags: tuple[str, ...], force: bool, min_time_coverage: float, min_collectives: float, as_json: bool,
    **options: Any,
) -> None:  # fmt: skip
    """Run a program with a profile, and confirm from XLA's log that its main module used it.

    The profile is given under a name that carries its hash, and the compilation cache is left aside, so that what runs
    is what was asked for. Exit code 1 where the main module did not use the profile, or used too little of it: the
    bounds are those of 'pgle verify'.

    \b
    pgle perf --run-dir runs/a -- python train.py --config x
    pgle perf --run-dir runs/a --baseline -- python train.py --config x
    """
    from pgle.report import stage as report
    from pgle.run.experiment.directory import RunDirectory
    from pgle.run.experiment.run_stage import choose_back_end, run_stage
    from pgle.run.experiment.stage import StageRequest
    from pgle.xla.log.module_verdict import Bounds

    run = RunDirectory(run_dir)
    used = None if baseline else profile or run.profile_to_use()
    name: Literal["baseline", "perf"] = "baseline" if baseline else "perf"
    bounds = Bounds(min_time_coverage, min_collectives)
    request = StageRequest(name, words, run, name, used, flags, 2 if as_json else 1, bounds)
    result = run_stage(request, choose_back_end(**options), force=force)
    (report.show_json if as_json else report.show_text)(result)
    ctx.exit(0 if result.good else 1)
