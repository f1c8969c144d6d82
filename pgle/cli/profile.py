"""`pgle profile`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from pgle.cli.options import json_option, stage_options


@click.command()
@stage_options
@click.option("--mode", default="sync", show_default=True, type=click.Choice(["sync", "async", "sync-legacy"]),
              help="How collectives run while they are measured; see below.")  # fmt: skip
@click.option(
    "--window", default="auto", show_default=True, metavar="auto|steps:A-B|seconds:N|all", help="What is traced."
)
@json_option
def command(
    words: tuple[str, ...], run_dir: Path, as_json: bool, force: bool, flags: tuple[str, ...], **options: Any
) -> None:
    """Run a program with the flags of a profile run and capture a trace.

    \b
    --mode sync         latency-hiding scheduler on, collectives synchronous: every cost is measured
                        without overlap, and scheduling names lead back to the names that PGLE needs.
    --mode async        as the program will run: overlap on, so costs include contention.
    --mode sync-legacy  scheduler off as well (older guides): newer XLA then loses the names of
                        collectives; only for jaxlib older than 0.11.

    Command buffers (CUDA graphs) are off in every mode: they hide single operations from profilers.

    \b
    --window auto       5 steps after 3 without compilation; where steps are not marked, 5 s or longer,
                        once a module has been executed 3 times since the last compilation.
    --window steps:A-B  these marked steps (jax.profiler.StepTraceAnnotation, pgle.step) or printed ones.
    --window seconds:N  N seconds, begun as auto does without marks.
    --window all        from the first compilation to the end, for short programs.

    \b
    pgle profile -- python train.py --config x
    pgle profile --run-dir runs/a --capture simulated --target h100 -- python train.py
    """
    from pgle.report import stage as report
    from pgle.run.experiment.stage import StageRequest
    from pgle.run.stages import run_stage

    request = StageRequest("profile", words, run_dir, flags=flags, stdout=2 if as_json else 1, **options)
    result = run_stage(request, force=force)
    (report.show_json if as_json else report.show_text)(result)
