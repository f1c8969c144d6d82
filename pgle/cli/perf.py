"""`pgle perf`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from pgle.cli.options import json_option, stage_options


@click.command()
@stage_options
@click.option(
    "--profile", type=click.Path(path_type=Path), metavar="PROFILE", help="[default: that of the run directory]"
)
@click.option("--baseline", is_flag=True, help="Run without the profile, scheduler on: what to compare with.")
@json_option
@click.pass_context
def command(
    ctx: click.Context,
    /,
    words: tuple[str, ...],
    run_dir: Path,
    profile: Path | None,
    baseline: bool,
    as_json: bool,
    force: bool,
    flags: tuple[str, ...],
    **options: Any,
) -> None:
    """Run a program with a profile, and confirm from XLA's log that its main module used it.

    The profile is given under a name that carries its hash, and the compilation cache is left aside, so that what runs
    is what was asked for. Exit code 1 where the main module did not use the profile.

    \b
    pgle perf --run-dir runs/a -- python train.py --config x
    pgle perf --run-dir runs/a --baseline -- python train.py --config x
    """
    from pgle.report import stage as report
    from pgle.run.experiment.stage import StageRequest
    from pgle.run.stages import profile_of, run_stage

    options["stdout"] = 2 if as_json else 1
    if baseline:
        request = StageRequest("baseline", words, run_dir, "baseline", flags=flags, **options)
    else:
        used = profile or profile_of(run_dir)
        request = StageRequest("perf", words, run_dir, "perf", profile=used, flags=flags, **options)
    result = run_stage(request, force=force)
    (report.show_json if as_json else report.show_text)(result)
    ctx.exit(0 if result.good else 1)
