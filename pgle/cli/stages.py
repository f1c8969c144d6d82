"""Commands that run your program: all stages, one of them, or JAX's AutoPGLE; and what its log says afterwards."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import click

from pgle import api
from pgle.api import Answer
from pgle.cli import options as opt
from pgle.cli.help import command
from pgle.cli.paths import FOLDER, PATH, SHARE, leave_stdout

if TYPE_CHECKING:
    from pgle.run.stages.stage import StageRequest


def _asked(ctx: click.Context, stage: Any, options: dict[str, Any], mode: Any, **fields: Any) -> StageRequest:
    """A stage as `opt.STAGE` asks for it; what is of no back end goes out of `options`.

    With ``--json`` stdout is for results, and the program's own goes to stderr.
    """
    from pgle.run.directory.directory import RunDirectory
    from pgle.run.stages.stage import StageRequest
    from pgle.xla.log.verdict import Bounds

    words, run, flags = options.pop("words"), RunDirectory(options.pop("run_dir")), options.pop("flags")
    if "min_collectives" in options:
        fields["bounds"] = Bounds(options.pop("min_time_coverage"), options.pop("min_collectives"))
    stdout: Literal[1, 2] = 2 if ctx.meta["pgle.as_json"] else 1
    return StageRequest(stage, words, run, mode, **{"flags": flags, "stdout": stdout, **fields})


@command(
    *opt.STAGE, opt.MODE, opt.WINDOW, *opt.BOUNDS,
    opt.option("--fail-slower", "Bound on a slowdown.", "SHARE", SHARE, default="1%"),
    *opt.PAGE,
)  # fmt: skip
@click.pass_context
def run_command(
    ctx: click.Context, /, mode: Any, force: bool, fail_slower: float, **options: Any
) -> Answer[Any] | None:
    """All stages on a program: profile, convert, baseline, verify, perf, compare.

    After a failure or a change the same command goes on where it must: a stage is skipped while its command, flags and
    input files are the same and its outputs are still there. Exit code 1 where no trace came of the profile run, or the
    profile covers too little, was not used, or made the step slower. With a --flags-file of 'pgle tune' the baseline
    runs without the flags that it found: the answer is what they and the profile bring.

    \b
    pgle run -- python train.py --config x
    pgle run -- srun python train.py         # several ranks: one pgle, the launcher inside
    pgle run --run-dir runs/a --capture simulated --target a100 -- python train.py
    """
    from pgle.report import stages as report
    from pgle.report.text import say
    from pgle.run.stages.pipeline import PipelineRequest, choose_back_end, run_pipeline
    from pgle.run.stages.simulated import SimulatedBackEnd

    stage = _asked(ctx, "profile", options, mode, stdout=2)
    judged = ctx.meta.get("pgle.judged", ())
    request = PipelineRequest(stage, choose_back_end(**options), fail_slower, force, judged)
    if ctx.meta["pgle.as_json"]:
        result = run_pipeline(request, say)
        warnings: tuple[str, ...] = ()
    else:
        with report.Stages(simulated=isinstance(request.back_end, SimulatedBackEnd)) as stages:
            result = run_pipeline(request, stages.announce, stages.show)
        stages.show_end(result)
        warnings = stages.warnings
    return api.answer("run", result, report.run_page(result, warnings), report.run_document(result), result.good)


@command(*opt.STAGE, opt.MODE, opt.WINDOW, *opt.PAGE)
@click.pass_context
def profile_command(ctx: click.Context, /, mode: Any, force: bool, **options: Any) -> Answer[Any] | None:
    """Run a program with the flags of a profile run and capture a trace.

    --mode sync: latency-hiding scheduler on, collectives synchronous; every cost is measured without overlap, and
    scheduling names lead back to the names that PGLE needs.

    --mode async: as the program will run, overlap on, so costs include contention.

    --window auto: 5 steps after 3 without compilation; where steps are not marked, 5 s or longer, once a module has
    been executed 3 times since the last compilation.

    --window steps:A-B: these marked steps (jax.profiler.StepTraceAnnotation, pgle.step).

    --window seconds:N: N seconds, begun as auto does without marks.

    --window all: from the first compilation to the end, for short programs.

    Command buffers (CUDA graphs) are off in every mode: they hide single operations from profilers. Exit code 1 where
    the program ran and left no trace, with the reason.

    \b
    pgle profile -- python train.py --config x
    pgle profile --run-dir runs/a --capture simulated --target h100 -- python train.py
    """
    return _run(ctx, _asked(ctx, "profile", options, mode), options, force=force)


def _run(ctx: click.Context, request: StageRequest, options: dict[str, Any], *, force: bool) -> Answer[Any] | None:
    """Run a stage; its page goes to stderr if stdout is the program's own, and of several ranks the first prints it."""
    from pgle.report import stages as report
    from pgle.report.text import warn
    from pgle.run.stages.pipeline import choose_back_end, run_stage

    result = run_stage(request, choose_back_end(**options), force=force)
    if ctx.meta["pgle.as_json"]:
        warn([f"{request.stage} failed: {result.failed}"] if result.failed else [])
    elif result.rank:
        warn(f"rank {result.rank}: {line}" for line in report.troubles(result))
        ctx.exit(not result.good)
    elif not result.simulated:
        leave_stdout(ctx)
    return api.answer(request.stage, result, report.stage_page(result), report.stage_document(result), result.good)


@command(
    *opt.STAGE,
    opt.option("--profile", "[default: from the run directory]", "PROFILE", PATH),
    opt.flag("--baseline", "Run without the profile, scheduler on: what to compare with."),
    *opt.BOUNDS, *opt.PAGE,
)  # fmt: skip
@click.pass_context
def perf_command(
    ctx: click.Context, /, profile: Any, baseline: bool, force: bool, **options: Any
) -> Answer[Any] | None:
    """Run a program with a profile, and confirm from XLA's log that its main module used it.

    The profile is given under a name that carries its hash, and the compilation cache is left aside, so that what runs
    is what was asked for. Exit code 1 where the main module did not use the profile, or used too little of it: the
    bounds are those of 'pgle verify'.

    \b
    pgle perf --run-dir runs/a -- python train.py --config x
    pgle perf --run-dir runs/a --baseline -- python train.py --config x
    """
    from dataclasses import replace

    name = "baseline" if baseline else "perf"
    request = _asked(ctx, name, options, name)
    request = request if baseline else replace(request, profile=profile or request.run.profile_to_use())
    return _run(ctx, request, options, force=force)


@command(
    opt.argument("words", "-- COMMAND...", None, nargs=-1),
    opt.run_dir(),
    opt.option("--runs", "Executions of each function to trace.", default=3, type=click.IntRange(1)),
    opt.option("--percentile", "Of the costs over them.", default=90, type=click.IntRange(0, 100)),
    opt.flag("--then-nsys", "Run again under nsys, with the compiled program from the cache."),
    opt.option("--cache", "JAX's compilation cache.  [default: a new one in the run directory]", "DIR", FOLDER),
    opt.WINDOW, *opt.FLAGS,
    opt.flag("--force", "Run again; old folders are kept under other names."),
    *opt.PAGE,
)  # fmt: skip
@click.pass_context
def auto_command(ctx: click.Context, /, **options: Any) -> Answer[Any]:
    """Run a command with JAX's AutoPGLE, and hand the result over to nsys.

    AutoPGLE traces the first executions of every jitted function, then compiles it again with the measured costs, all
    in one run. It does not reach functions compiled ahead of time, and holds CUPTI, so that nsys sees nothing next to
    it. --then-nsys starts the command a second time: the optimised programs come from JAX's compilation cache
    (JAX_COMPILATION_CACHE_EXPECT_PGLE), and nsys traces them.

    Exit code 1 where nothing was compiled again, with the reason.

    \b
    pgle auto -- python train.py
    pgle auto --runs 5 --percentile 50 --then-nsys --run-dir runs/a -- python train.py
    """
    from pgle.report import stages as report
    from pgle.report.text import warn
    from pgle.run.stages.auto import AutoOptions, run_auto

    request = _asked(ctx, "auto", options, "baseline")
    result = run_auto(request, AutoOptions(**options))
    if not ctx.meta["pgle.as_json"]:
        if result.stage.rank:
            warn(f"rank {result.stage.rank}: {line}" for line in result.warnings)
            ctx.exit(not result.good)
        leave_stdout(ctx)
    return api.answer("auto", result, report.auto_page(result), report.auto_document(result), result.good)


@command(
    opt.argument("log", "LOG", None),
    opt.module("The main module; default: the one that weighs most in the log.", None),
    opt.option("--schedule", "Schedule dump of the same run (file or directory): what the scheduler believed.", "PATH",
               PATH),
    opt.option("--profile", "The profile of the run; default: the one that the log names.", "PROFILE", PATH),
    opt.option("--jax", "The jax that wrote the log; default: guessed from its wordings.", "VERSION"),
    *opt.BOUNDS, *opt.PAGE,
)  # fmt: skip
def confirm_command(log: str, **options: Any) -> Answer[Any]:
    """Read an XLA log: was the profile used, by which module, and what proves it.

    LOG is the output of a run, stdout and stderr together, of any size; - reads stdin; a run directory stands for its
    perf stage, with its schedule dump. Ranks are known by the labels of srun -l, mpirun, torchrun, kubectl and others,
    and each is judged. XLA says most of it at level INFO, which JAX hides: set TF_CPP_MIN_LOG_LEVEL=0 before Python
    starts. A schedule dump (--xla_dump_latency_hiding_schedule=true) proves use without any log line.

    Verdicts: used, partly-used, used-without-matches, not-used, wrong-format, cannot-tell. Exit code 0 when the main
    module used the profile, 1 otherwise; partly-used is less than the two bounds, those of 'pgle verify'. Without a
    schedule dump nobody knows times, and --min-time-coverage is held against the share of instructions.

    \b
    pgle confirm run.log
    python train.py 2>&1 | tee run.log | pgle confirm -
    pgle confirm run.log --schedule dump/ --profile profile.pbtxt
    """
    return api.confirm(log, **options)  # no spooled stdin: a program that still runs may be at the other end
