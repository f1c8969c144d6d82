"""What a profile, baseline or perf stage did, and what `pgle auto` came to."""

from __future__ import annotations

import statistics

from pgle.masking import kept_argv
from pgle.next import typed
from pgle.report import json
from pgle.report.experiment.confirm import main_lines
from pgle.report.onward import next_line, show_next
from pgle.report.text import console, duration, printable, warn
from pgle.run.experiment.auto import AutoResult, used
from pgle.run.experiment.directory import RunDirectory, free
from pgle.run.experiment.next_command import Launch, following
from pgle.run.experiment.stage import StageResult
from pgle.xla.flags.modes import SYNC_MODES

_RUNS = {
    "profile": "profile run",
    "baseline": "baseline run (without the profile)",
    "perf": "performance run (with the profile)",
}
"""What each stage is, in words."""


def show_text(result: StageResult, *, next_step: bool = True) -> None:
    """A few lines, warnings on stderr. Where stdout was the program's own, all goes to stderr, and rank 0 speaks."""
    request = result.request
    if result.rank:
        warn(f"rank {result.rank}: {line}" for line in (*result.warnings, *_failed(result)))
        return
    aside = not result.simulated and request.stdout == 1
    out = console(stderr=aside)
    label = " on the simulated GPU" if result.simulated else ""
    module = f" of {result.facts['module']}" if result.facts.get("module") else ""
    out.print(f"{_RUNS.get(request.stage, request.stage)}{module}{label}, in {request.folder.path}", style="bold",
              soft_wrap=True)  # fmt: skip
    for line in provenance(result):
        out.print(line, soft_wrap=True)
    if result.step_times_s:
        middle = duration(statistics.median(result.step_times_s) * 1e6)
        out.print(f"{len(result.step_times_s)} steps, median {middle}{_simulated(result)}", soft_wrap=True)
    if request.stage == "profile":
        window = f" ({result.facts['window']})" if "window" in result.facts else ""
        for path in request.folder.traces():
            out.print(f"trace {path}{window}", soft_wrap=True)
    if result.verdict is not None:
        for line in main_lines(result.verdict):
            out.print(printable(line), soft_wrap=True)
    warn((*result.warnings, *_failed(result)))
    if next_step and (result.good or result.verdict is None) and not result.failed:
        show_next([next_line(request.run, following(request.run))], stderr=aside)


def _simulated(result: StageResult) -> str:
    """What is behind a simulated step time: the prediction for the schedule, which `pgle rehearse` gives as well."""
    if not result.simulated:
        return ""
    alone = f"the schedule alone is predicted to take {duration(float(result.facts['predicted_step_us']))}"
    why = "but kernels vary, and every rank waits for the slowest"
    if result.request.stage == "profile" and result.request.mode in SYNC_MODES:
        why += "; collectives are synchronous in this run alone, to be measured one by one"
    return f" (simulated: {alone}, {why})"


def provenance(result: StageResult) -> tuple[str, ...]:
    """What was run: the module's file, compiler, devices and flags, one line each."""
    facts = result.facts
    program = f"{facts['program']}, " if facts.get("program") else ""
    compiler = f"compiled by jaxlib {facts['jaxlib']}" if facts.get("jaxlib") else ""
    devices = f" for {facts['devices']}" if facts.get("devices") else ""
    lines = [f"{program}{compiler}{devices}", f"XLA_FLAGS {facts.get('flags', '')}"]
    return tuple(line for line in lines if line.strip() and line != "XLA_FLAGS ")


def _failed(result: StageResult) -> tuple[str, ...]:
    return (f"{result.request.stage} failed: {result.failed}",) if result.failed else ()


def show_json(result: StageResult) -> None:
    """``pgle.profile/1``, ``pgle.baseline/1`` or ``pgle.perf/1``."""
    request = result.request
    json.show(
        f"pgle.{request.stage}/1",
        {
            "ok": result.good,
            "run_dir": request.run.path,
            **json.picked(result, "simulated exit_code failed verdict"),
            "steps": len(result.step_times_s),
            "median_step_s": statistics.median(result.step_times_s) if result.step_times_s else None,
            "traces": request.folder.traces() if request.stage == "profile" else (),
            **json.picked(result, "facts warnings"),
        },
    )
    warn(_failed(result))


MAX_MODULES = 10


def show_auto(result: AutoResult) -> None:
    """A few lines on stderr, since stdout is the program's own."""
    if result.stage.rank:
        warn(f"rank {result.stage.rank}: {line}" for line in result.warnings)
        return
    out = console(stderr=True)
    out.print(f"AutoPGLE: {result.outcome}: {result.why}", style="bold")
    for name, size in list(result.recompiled.items())[:MAX_MODULES]:
        out.print(f"  {name}: compiled again with {size:,} bytes of costs")
    for name in result.loaded[:MAX_MODULES]:
        out.print(f"  {name}: from the cache")
    if result.verdict is not None:
        out.print(f"XLA's log: {result.verdict.verdict}: {result.verdict.why}")
    _steps("steps", result.stage)
    if result.handover is not None:
        out.print(f"under nsys: {len(result.handed_over)} modules as AutoPGLE had left them", style="bold")
        _steps("steps under nsys", result.handover)
        for path in result.traces:
            out.print(f"trace {path}", soft_wrap=True)
    warn(result.warnings)
    show_next(after_auto(result), stderr=True)


def after_auto(result: AutoResult) -> list[str]:
    """Where the traced step goes, or what AutoPGLE brought; where it did nothing, another way."""
    request, run = result.request, RunDirectory(result.request.run_dir)
    launch = Launch(request.command).with_flags(request.flags)
    baseline, auto = run.stage("baseline").path, run.stage("auto").path
    if result.traces:
        return [f"next, where its step goes: {typed('pgle', 'analyze', run.stage('auto-nsys').path)}"]
    if result.outcome == "no-gpu":
        again = typed("pgle", "rehearse", "--", *kept_argv(request.command))
        return [f"next, what a profile would change on a GPU: {again}"]
    if result.outcome not in ("recompiled", "loaded"):
        by_hand = launch.line("run", free(run.path.with_name(f"{run.path.name}-stages")))
        return [f"next, the same stage by stage, for any program: {by_hand}"]
    without = [] if baseline.is_dir() else [f"next, a run without it: {launch.line('perf', run.path, '--baseline')}"]
    return [*without, f"{'then' if without else 'next'}, what it brought: {typed('pgle', 'compare', baseline, auto)}"]


def _steps(label: str, stage: StageResult) -> None:
    if stage.step_times_s:
        middle = duration(statistics.median(stage.step_times_s) * 1e6)
        console(stderr=True).print(f"{label}: {len(stage.step_times_s)}, median {middle}")


def show_auto_json(result: AutoResult) -> None:
    """``pgle.auto/1``."""
    json.show(
        "pgle.auto/1",
        {
            "ok": result.good,
            **json.picked(result, "outcome why recompiled loaded"),
            "used": used(result),
            "proof": "" if result.verdict is None else result.verdict.proof,
            "run_dir": result.request.run_dir,
            "cache": result.request.cache_dir,
            "steps": len(result.stage.step_times_s),
            **json.picked(result, "handed_over traces warnings"),
        },
    )
