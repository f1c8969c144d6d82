"""`pgle run`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from pgle.cli.help import Command
from pgle.cli.options import bounds_options, json_option, mode_option, stage_options, window_option


@click.command(cls=Command)
@stage_options
@mode_option
@window_option
@bounds_options
@click.option("--fail-slower", default="1%", show_default=True, metavar="SHARE", help="Bound on a slowdown.")
@click.option("--tune", "tunes", is_flag=True, help="Then search for flags, and run all stages again under them.")
@json_option
@click.pass_context
def command(
    ctx: click.Context, /, words: tuple[str, ...], run_dir: Path, mode: Any, flags: tuple[str, ...], force: bool,
    min_time_coverage: float, min_collectives: float, fail_slower: str, tunes: bool, as_json: bool, **options: Any,
) -> None:  # fmt: skip
    """All stages on a program: profile, convert, verify, baseline, perf, compare.

    After a failure or a change the same command goes on where it must: a stage is skipped while its command, flags and
    input files are the same and its outputs are still there. Exit code 1 where no trace came of the profile run, or the
    profile covers too little, was not used, or made the step slower.

    \b
    pgle run -- python train.py --config x
    pgle run --tune -- python train.py       # then 'pgle tune' by the measured costs, and the same under its flags
    pgle run -- srun python train.py         # several ranks: one pgle, the launcher inside
    pgle run --run-dir runs/a --capture simulated --target a100 -- python train.py
    """
    from pgle.report import pipeline as report
    from pgle.report.text import say
    from pgle.run.experiment.directory import RunDirectory
    from pgle.run.experiment.pipeline import PipelineRequest, run_pipeline
    from pgle.run.experiment.run_stage import choose_back_end
    from pgle.run.experiment.stage import StageRequest
    from pgle.steps.gate import parse_share
    from pgle.xla.log.module_verdict import Bounds

    bounds = Bounds(min_time_coverage, min_collectives)
    stage = StageRequest("profile", words, RunDirectory(run_dir), mode, flags=flags, stdout=2, bounds=bounds)
    request = PipelineRequest(stage, choose_back_end(**options), parse_share(fail_slower, "--fail-slower"), force)
    if tunes:
        from pgle.cli.tune import run_tuned

        ctx.exit(run_tuned(request, as_json))
    if as_json:
        report.show_json(result := run_pipeline(request, say))
    else:
        report.show_end(result := run_pipeline(request, say, report.show_part))
    ctx.exit(0 if result.good else 1)
