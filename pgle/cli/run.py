"""`pgle run`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from pgle.cli.options import json_option, stage_options


@click.command()
@stage_options
@click.option("--mode", default="sync", show_default=True, type=click.Choice(["sync", "async", "sync-legacy"]),
              help="Flags of the profile run; see 'pgle profile --help'.")  # fmt: skip
@click.option(
    "--window", default="auto", show_default=True, metavar="auto|steps:A-B|seconds:N|all", help="What is traced."
)
@click.option("--min-time-coverage", default=0.95, show_default=True, type=click.FloatRange(0, 1))
@click.option("--fail-slower", default="1%", show_default=True, metavar="SHARE", help="Bound on a slowdown.")
@json_option
@click.pass_context
def command(
    ctx: click.Context,
    /,
    words: tuple[str, ...],
    run_dir: Path,
    min_time_coverage: float,
    fail_slower: str,
    as_json: bool,
    force: bool,
    flags: tuple[str, ...],
    **options: Any,
) -> None:
    """All stages on a program: profile, convert, verify, baseline, perf, compare.

    After a failure or a change the same command goes on where it must: a stage is skipped while its inputs are
    unchanged. Exit code 1 where the profile covers too little, was not used, or made the step slower.

    \b
    pgle run -- python train.py --config x
    pgle run -- srun python train.py         # several ranks: one pgle, the launcher inside
    pgle run --run-dir runs/a --capture simulated --target a100 -- python train.py
    """
    from pgle.report import pipeline as report
    from pgle.run.experiment.stage import StageRequest
    from pgle.run.pipeline import PipelineRequest, run_pipeline
    from pgle.steps.gate import parse_share

    stage = StageRequest("profile", words, run_dir, flags=flags, stdout=2, **options)
    request = PipelineRequest(stage, min_time_coverage, parse_share(fail_slower, "--fail-slower"), force)
    result = run_pipeline(request, report.announce)
    (report.show_json if as_json else report.show_text)(result)
    ctx.exit(0 if result.good else 1)
