"""Commands that run your program: all stages, one of them, or JAX's AutoPGLE."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from pgle.cli.help import Command
from pgle.cli.options import (
    bounds_options,
    flag_option,
    mode_option,
    page_options,
    run_dir_option,
    stage_options,
    window_option,
)
from pgle.cli.paths import FOLDER, PATH

if TYPE_CHECKING:
    from pgle.files import AnyPath


@click.command(cls=Command)
@stage_options
@mode_option
@window_option
@bounds_options
@click.option("--fail-slower", default="1%", show_default=True, metavar="SHARE", help="Bound on a slowdown.")
@click.option("--tune", "tunes", is_flag=True, help="Then search for flags, and run all stages again under them.")
@page_options
@click.pass_context
def run_command(
    ctx: click.Context, /, words: tuple[str, ...], run_dir: Path, mode: Any, flags: tuple[str, ...], force: bool,
    min_time_coverage: float, min_collectives: float, fail_slower: str, tunes: bool, sections: tuple[str, ...],
    as_json: bool, **options: Any,
) -> None:  # fmt: skip
    """All stages on a program: profile, convert, baseline, verify, perf, compare.

    After a failure or a change the same command goes on where it must: a stage is skipped while its command, flags and
    input files are the same and its outputs are still there. Exit code 1 where no trace came of the profile run, or the
    profile covers too little, was not used, or made the step slower.

    \b
    pgle run -- python train.py --config x
    pgle run --tune -- python train.py       # then 'pgle tune' by the measured costs, and the same under its flags
    pgle run -- srun python train.py         # several ranks: one pgle, the launcher inside
    pgle run --run-dir runs/a --capture simulated --target a100 -- python train.py
    """
    from pgle.report.experiment import pipeline as report
    from pgle.report.text import say
    from pgle.run.directory.directory import RunDirectory
    from pgle.run.stages.pipeline import PipelineRequest, run_pipeline
    from pgle.run.stages.running import choose_back_end
    from pgle.run.stages.simulated import SimulatedBackEnd
    from pgle.run.stages.stage import StageRequest
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
        with report.Stages(simulated=isinstance(request.back_end, SimulatedBackEnd)) as stages:
            result = run_pipeline(request, stages.announce, stages.show)
        report.show_end(result, stages, sections=sections)
    ctx.exit(0 if result.good else 1)


@click.command(cls=Command)
@stage_options
@mode_option
@window_option
@page_options
@click.pass_context
def profile_command(
    ctx: click.Context, /, words: tuple[str, ...], run_dir: Path, mode: Any, flags: tuple[str, ...], force: bool,
    sections: tuple[str, ...], as_json: bool, **options: Any,
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
    from pgle.report.experiment import stage as report
    from pgle.run.directory.directory import RunDirectory
    from pgle.run.stages.running import choose_back_end, run_stage
    from pgle.run.stages.stage import StageRequest

    run = RunDirectory(run_dir)
    request = StageRequest("profile", words, run, mode, flags=flags, stdout=2 if as_json else 1)
    result = run_stage(request, choose_back_end(**options), force=force)
    if as_json:
        report.show_json(result)
    else:
        report.show(result, sections=sections)
    ctx.exit(0 if result.good else 1)


@click.command(cls=Command)
@stage_options
@click.option("--profile", type=PATH, metavar="PROFILE", help="[default: that of the run directory]")
@click.option("--baseline", is_flag=True, help="Run without the profile, scheduler on: what to compare with.")
@bounds_options
@page_options
@click.pass_context
def perf_command(
    ctx: click.Context, /, words: tuple[str, ...], run_dir: Path, profile: AnyPath | None, baseline: bool,
    flags: tuple[str, ...], force: bool, min_time_coverage: float, min_collectives: float,
    sections: tuple[str, ...], as_json: bool, **options: Any,
) -> None:  # fmt: skip
    """Run a program with a profile, and confirm from XLA's log that its main module used it.

    The profile is given under a name that carries its hash, and the compilation cache is left aside, so that what runs
    is what was asked for. Exit code 1 where the main module did not use the profile, or used too little of it: the
    bounds are those of 'pgle verify'.

    \b
    pgle perf --run-dir runs/a -- python train.py --config x
    pgle perf --run-dir runs/a --baseline -- python train.py --config x
    """
    from pgle.report.experiment import stage as report
    from pgle.run.directory.directory import RunDirectory
    from pgle.run.stages.running import choose_back_end, run_stage
    from pgle.run.stages.stage import StageRequest
    from pgle.xla.log.module_verdict import Bounds

    run = RunDirectory(run_dir)
    used = None if baseline else profile or run.profile_to_use()
    name: Literal["baseline", "perf"] = "baseline" if baseline else "perf"
    bounds = Bounds(min_time_coverage, min_collectives)
    request = StageRequest(name, words, run, name, used, flags, 2 if as_json else 1, bounds)
    result = run_stage(request, choose_back_end(**options), force=force)
    if as_json:
        report.show_json(result)
    else:
        report.show(result, sections=sections)
    ctx.exit(0 if result.good else 1)


@click.command(cls=Command)
@click.argument("words", nargs=-1, metavar="-- COMMAND...")
@run_dir_option()
@click.option(
    "--runs", default=3, show_default=True, type=click.IntRange(1), help="Executions of each function to trace."
)
@click.option(
    "--percentile", default=90, show_default=True, type=click.IntRange(0, 100), help="Of the costs over them."
)
@click.option("--then-nsys", is_flag=True, help="Run again under nsys, with the compiled program from the cache.")
@click.option("--cache", type=FOLDER, metavar="DIR",
              help="JAX's compilation cache.  [default: a new one in the run directory]")  # fmt: skip
@window_option
@flag_option
@click.option("--force", is_flag=True, help="Run again; old folders are kept under other names.")
@page_options
@click.pass_context
def auto_command(
    ctx: click.Context, /, words: tuple[str, ...], sections: tuple[str, ...], as_json: bool, **options: Any
) -> None:
    """Run a command with JAX's AutoPGLE, and hand the result over to nsys.

    AutoPGLE traces the first executions of every jitted function, then compiles it again with the measured costs, all
    in one run. It does not reach functions compiled ahead of time, and holds CUPTI, so that nsys sees nothing beside
    it. --then-nsys starts the command a second time: the optimised programs come from JAX's compilation cache
    (JAX_COMPILATION_CACHE_EXPECT_PGLE), and nsys traces them.

    Exit code 1 where nothing was compiled again, with the reason.

    \b
    pgle auto -- python train.py
    pgle auto --runs 5 --percentile 50 --then-nsys --run-dir runs/a -- python train.py
    """
    from pgle.report.experiment import stage as report
    from pgle.run.stages.auto import AutoRequest, run_auto

    request = AutoRequest(words, stdout=2 if as_json else 1, **options)
    result = run_auto(request)
    if as_json:
        report.show_auto_json(result)
    else:
        report.show_auto(result, sections=sections)
    ctx.exit(0 if result.good else 1)
