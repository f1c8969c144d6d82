"""Commands that run your program or look at a run: stages, JAX's AutoPGLE, this machine, a measured
step, its page.

Each imports its code only when it runs: traces and schedules need NumPy, and help does not.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from pgle.api import looks
from pgle.api.answer import Answer, answer
from pgle.cli import options as opt
from pgle.cli.help import command
from pgle.cli.parameters import parameters
from pgle.report import text
from pgle.report.page import plain, value
from pgle.requests.looks import Analyze, Report
from pgle.requests.shared import Bounded
from pgle.requests.stages import Auto, Doctor, PerfStage, ProfileStage, Run, Stage

if TYPE_CHECKING:
    from pgle.run.stages.stage import StageRequest


def _stage(
    ctx: click.Context,
    asked: Stage | Auto,
    name: Any,
    mode: Any,
    stdout: Literal[1, 2] = 1,
) -> StageRequest:
    """Make a stage from a command's options. With ``--json`` the results go to stdout, and the
    program's output to stderr.
    """
    from pgle.run.directory.directory import RunDirectory
    from pgle.run.stages.stage import StageRequest
    from pgle.xla.log.verdict import BOUNDS, Bounds

    bounds = BOUNDS
    if isinstance(asked, Bounded):
        bounds = Bounds(asked.min_time_coverage, asked.min_collectives)
    return StageRequest(
        name,
        asked.words,
        RunDirectory(asked.run_dir),
        mode,
        flags=asked.flags,
        stdout=2 if ctx.meta["pgle.as_json"] else stdout,
        bounds=bounds,
    )


@command(*parameters(Run), opt.SHOW_OUTPUT, *opt.PAGE)
@click.pass_context
def run_command(ctx: click.Context, /, **options: Any) -> Answer[Any] | None:
    """Run all stages on a program: profile, convert, baseline, verify, perf, compare.

    After a failure or a change, repeat the command: pgle skips a stage if its command, flags and
    input files are the same and its outputs still exist. The exit code is 1 if the profile run left
    no trace, or if the profile covers too little, was not used, or made the step slower. With a
    --flags-file of 'pgle tune', the baseline runs without the flags that tune found, so the answer
    shows what these flags and the profile gain together.

    \b
    pgle run -- python train.py --config x
    pgle run -- srun python train.py         # several ranks: one pgle, the launcher inside
    pgle run --run-dir runs/a --capture simulated --target a100 -- python train.py
    """
    from pgle.report import stages
    from pgle.run.stages.pipeline import Experiment, choose_back_end
    from pgle.run.stages.simulated import SimulatedBackEnd

    asked = Run(**options)
    stage = _stage(ctx, asked, "profile", asked.mode, stdout=2)
    back_end = choose_back_end(asked)
    how: dict[str, Any] = {
        "fail_slower": asked.fail_slower,
        "force": asked.force,
        "judged": ctx.meta.get("pgle.judged", ()),
    }
    if ctx.meta["pgle.as_json"]:
        result = Experiment(stage, back_end, text.say, **how).run()
        warnings: tuple[str, ...] = ()
    else:
        with stages.Stages(simulated=isinstance(back_end, SimulatedBackEnd)) as shown:
            result = Experiment(
                stage, back_end, shown.announce, shown.show, **how
            ).run()
        shown.show(result)
        warnings = tuple(shown.warnings)
    return answer(
        "run",
        result,
        stages.run_page(result, warnings),
        stages.run_document(result),
        result.good,
    )


@command(*parameters(ProfileStage), opt.SHOW_OUTPUT, *opt.PAGE)
@click.pass_context
def profile_command(ctx: click.Context, /, **options: Any) -> Answer[Any] | None:
    """Run a program with the flags of a profile run and capture a trace.

    --mode sync: the latency-hiding scheduler is on and collectives are synchronous. Every cost is
    measured without overlap, and scheduling names lead back to the names that PGLE needs.

    --mode async: as the program will run. Overlap is on, so costs include contention.

    --window auto: 5 steps, after 3 without compilation. If steps are not marked: at least 5 s,
    after a module was executed 3 times since the last compilation.

    --window steps:A-B: these marked steps (jax.profiler.StepTraceAnnotation, pgle.step).

    --window seconds:N: N seconds, which begin as with auto without marks.

    --window all: from the first compilation to the end, for short programs.

    Command buffers (CUDA graphs) are off in every mode, because they hide single operations from
    profilers. The exit code is 1 if the program ran and left no trace; the answer says why.

    \b
    pgle profile -- python train.py --config x
    pgle profile --run-dir runs/a --capture simulated --target h100 -- python train.py
    """
    asked = ProfileStage(**options)
    return _run(ctx, _stage(ctx, asked, "profile", asked.mode), asked)


def _run(ctx: click.Context, request: StageRequest, asked: Stage) -> Answer[Any] | None:
    """Run a stage and answer with its page."""
    from pgle.report import stages
    from pgle.run.stages.pipeline import choose_back_end, run_stage

    result = run_stage(request, choose_back_end(asked), force=asked.force)
    if ctx.meta["pgle.as_json"]:
        text.warn([f"{request.stage} failed: {result.failed}"] if result.failed else [])
    elif result.rank or not result.simulated:
        _leave_stdout(ctx, result.rank, stages.troubles(result), good=result.good)
    return answer(
        request.stage,
        result,
        stages.stage_page(result),
        stages.stage_document(result),
        result.good,
    )


def _leave_stdout(
    ctx: click.Context, rank: int, warnings: Iterable[str], *, good: bool
) -> None:
    """Send pages to stderr until the command ends, because stdout carries the program's output (of
    rank 0 if there are several).
    """
    if rank:
        text.warn(f"rank {rank}: {line}" for line in warnings)
        ctx.exit(not good)
    stdout, sys.stdout = sys.stdout, sys.stderr
    ctx.call_on_close(lambda: setattr(sys, "stdout", stdout))


@command(*parameters(PerfStage), opt.SHOW_OUTPUT, *opt.PAGE)
@click.pass_context
def perf_command(ctx: click.Context, /, **options: Any) -> Answer[Any] | None:
    """Run a program with a profile, and confirm from XLA's log that its main module used it.

    XLA gets the profile under a name with its hash, and the compilation cache is off, so no older
    program can run. The exit code is 1 if the main module did not use the profile, or used
    less of it than the limits of 'pgle verify' ask.

    \b
    pgle perf --run-dir runs/a -- python train.py --config x
    pgle perf --run-dir runs/a --baseline -- python train.py --config x
    """
    asked = PerfStage(**options)
    if asked.baseline:
        return _run(ctx, _stage(ctx, asked, "baseline", "baseline"), asked)
    request = _stage(ctx, asked, "perf", "perf")
    profile = asked.profile or request.run.profile_to_use()
    return _run(ctx, replace(request, profile=profile), asked)


@command(*parameters(Auto), *opt.PAGE)
@click.pass_context
def auto_command(ctx: click.Context, /, **options: Any) -> Answer[Any]:
    """Run a command with JAX's AutoPGLE, and hand the result over to nsys.

    AutoPGLE traces the first executions of every jitted function, then compiles it again with the
    measured costs, all in one run. It does not reach functions that are compiled ahead of time. It
    holds CUPTI, so nsys sees nothing in the same run. --then-nsys starts the command a second time:
    the optimised programs come from JAX's compilation cache (JAX_COMPILATION_CACHE_EXPECT_PGLE),
    and nsys traces them.

    The exit code is 1 if nothing was compiled again; the answer says why.

    \b
    pgle auto -- python train.py
    pgle auto --runs 5 --percentile 50 --then-nsys --run-dir runs/a -- python train.py
    """
    from pgle.report import stages
    from pgle.run.stages.auto import run_auto

    asked = Auto(**options)
    result = run_auto(_stage(ctx, asked, "auto", "baseline"), asked)
    if not ctx.meta["pgle.as_json"]:
        _leave_stdout(ctx, result.stage.rank, result.warnings, good=result.good)
    return answer(
        "auto",
        result,
        stages.auto_page(result),
        stages.auto_document(result),
        result.good,
    )


@command(*parameters(Analyze), *opt.PAGE)
def analyze_command(**options: Any) -> Answer[Any]:
    """Show where the time of a step goes, and what could be saved.

    INPUT: traces (several are ranks of one job), a run directory, a stage of it (RUN/perf), a
    rehearsal, or scheduled HLO, whose step is simulated. Compute, exposed communication, exposed
    copies, other GPU work and idle add up to the time of the steady steps. Findings come in the
    order of what they could save at most, each with its number, its evidence and what to do. With
    --against, the answer shows what got slower, what is hidden less, what is new and what is gone,
    and how much of the step each is.

    \b
    pgle analyze report.nsys-rep --hlo dump/
    pgle analyze rank*.sqlite --hlo dump/ --json
    pgle analyze runs/b/perf --against runs/a/perf
    """
    from pgle.report import analyze

    found = looks.read_analysis(Analyze(**options))
    following = analyze.way_on(found)
    page = analyze.analyze_page(found, following)
    return answer("analyze", found, page, analyze.document(found))


@command(*parameters(Report), opt.JSON)
@click.pass_context
def report_command(ctx: click.Context, /, **options: Any) -> None:
    """Write a page on a run: verdict, what to do, a timeline to explore, before and after, costs,
    step times.

    RUN: a run directory, traces of one job, the folder of 'pgle rehearse' or 'pgle tune', or a
    report as JSON. The page is one file that loads nothing and sends nothing. Without -o it is
    report.html in the run directory, else in the current folder. With --against, both steps share
    one time axis, and the page shows what changed. For text use 'pgle analyze'.

    \b
    pgle report runs/a
    pgle report rank*.sqlite --hlo dump/ -o report.html -o report.md
    pgle report runs/b/perf --against runs/a/perf -o diff.html
    pgle report runs/a -o trace.json.gz
    """
    from pgle.report import report
    from pgle.run.analyze import other_of, step_of

    request = Report(**options)
    as_json = ctx.meta["pgle.as_json"]
    outputs = request.outputs
    if not outputs and not as_json:
        outputs = (report.default_output(request.inputs),)
    report.check_outputs(
        outputs, force=request.force, inputs=(*request.inputs, *request.against)
    )
    with text.progress("reading") as advance:
        page = report.page_of(step_of(request), other_of(request), progress=advance)
    lines = report.write(page, outputs, force=request.force)
    if as_json:
        click.echo(value.as_json(page), nl=False)
    else:
        plain.show(report.written(page, lines))


@command(*parameters(Doctor), *opt.PAGE)
def doctor_command(**options: Any) -> Answer[Any]:
    """Check GPUs, driver, jax, its plugin for GPUs, nsys, CUPTI, flags, caches and permissions.

    The exit code is 1 if a check fails; warnings do not count. With --prove, only what works
    counts, not the installed versions: pgle profiles a small program, converts and verifies the
    profile, runs the program with it, confirms and compares. It uses the GPUs of this machine, or
    the simulated GPU if there are none.

    \b
    pgle doctor
    pgle doctor --prove
    pgle doctor --python /path/to/env/bin/python
    pgle doctor --target mi350x
    """
    from pgle.report import start
    from pgle.run import doctor
    from pgle.run.ask.machine import this_machine
    from pgle.xla.targets import load_target
    from pgle.xla.vendors import NVIDIA

    asked = Doctor(**options)
    if asked.prove:
        proof = doctor.prove(
            asked.run_dir or Path("runs/proof"), asked.capture, asked.target, text.say
        )
        page = start.proof_page(proof)
        document = start.ProofDocument(proof.ok, proof)
        return answer("proof", proof, page, document, proof.ok)
    vendor = load_target(asked.target).vendor
    wanted = None if vendor is NVIDIA else vendor
    machine = this_machine(asked.python)
    diagnosis = doctor.diagnose(machine, str(asked.run_dir or "."), wanted)
    page = start.doctor_page(diagnosis)
    return answer(
        "doctor", diagnosis, page, start.doctor_document(diagnosis), diagnosis.ok
    )
