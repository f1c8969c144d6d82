"""`pgle profile`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from pgle.cli.help import Command
from pgle.cli.options import json_option, mode_option, stage_options, window_option


@click.command(cls=Command)
@stage_options
@mode_option
@window_option
@json_option
@click.pass_context
def command(
    ctx: click.Context, /, words: tuple[str, ...], run_dir: Path, mode: Any, flags: tuple[str, ...], force: bool,
    as_json: bool, **options: Any,
) -> None:  # fmt: skip
    """Run a program with the flags of a profile run and capture a trace.

    --mode sync: latency-hiding scheduler on, collectives synchronous; every cost is measured without overlap, and
    scheduling names lead back to the names that PGLE needs.

    --mode async: as the program will run, overlap on, so costs include contention.

    --mode sync-legacy: scheduler off as well (older guides); newer XLA then loses the names of collectives, so only for
    jaxlib older than 0.11.

    --window auto: 5 steps after 3 without compilation; where steps are not marked, 5 s or longer, once a module has
    been executed 3 times since the last compilation.

    --window steps:A-B: these marked steps (jax.profiler.StepTraceAnnotation, pgle.step) or printed ones.

    --window seconds:N: N seconds, begun as auto does without marks.

    --window all: from the first compilation to the end, for short programs.

    Command buffers (CUDA graphs) are off in every mode: they hide single operations from profilers. Exit code 1 where
    the program ran and left no trace, with the reason.

    \b
    pgle profile -- python train.py --config x
    pgle profile --run-dir runs/a --capture simulated --target h100 -- python train.py
    """
    from pgle.report import stage as report
    from pgle.run.experiment.directory import RunDirectory
    from pgle.run.experiment.run_stage import choose_back_end, run_stage
    from pgle.run.experiment.stage import StageRequest

    run = RunDirectory(run_dir)
    request = StageRequest("profile", words, run, mode, flags=flags, stdout=2 if as_json else 1)
    result = run_stage(request, choose_back_end(**options), force=force)
    (report.show_json if as_json else report.show_text)(result)
    ctx.exit(0 if result.good else 1)
