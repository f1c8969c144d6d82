"""What `pgle auto` came to."""

from __future__ import annotations

import statistics

from pgle.report import json
from pgle.report.onward import show_next
from pgle.report.text import console, duration, warn
from pgle.run.experiment.auto import AutoResult, used
from pgle.run.experiment.directory import RunDirectory, free
from pgle.run.experiment.onward import Launch, typed
from pgle.run.experiment.stage import StageResult

MAX_MODULES = 10


def show_text(result: AutoResult) -> None:
    """A few lines on stderr, since stdout is the program's own."""
    if result.stage.rank:
        warn(f"rank {result.stage.rank}: {line}" for line in result.warnings)
        return
    out = console(stderr=True)
    out.print(f"AutoPGLE: {result.outcome}: {result.why}", style="bold")
    for name, size in list(result.recompiled.items())[:MAX_MODULES]:
        out.print(f"  {name}: compiled again with {size:,} bytes of costs", markup=False)
    for name in result.loaded[:MAX_MODULES]:
        out.print(f"  {name}: from the cache", markup=False)
    if result.verdict is not None:
        out.print(f"XLA's log: {result.verdict.verdict}: {result.verdict.why}", markup=False)
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
        return [f"next, what a profile would change on a GPU: {typed('pgle', 'rehearse', '--', *request.command)}"]
    if result.outcome not in ("recompiled", "loaded"):
        by_hand = launch.line("run", free(run.path.with_name(f"{run.path.name}-stages")))
        return [f"next, the same stage by stage, for any program: {by_hand}"]
    without = [] if baseline.is_dir() else [f"next, a run without it: {launch.line('perf', run.path, '--baseline')}"]
    return [*without, f"{'then' if without else 'next'}, what it brought: {typed('pgle', 'compare', baseline, auto)}"]


def _steps(label: str, stage: StageResult) -> None:
    if stage.step_times_s:
        middle = duration(statistics.median(stage.step_times_s) * 1e6)
        console(stderr=True).print(f"{label}: {len(stage.step_times_s)}, median {middle}")


def show_json(result: AutoResult) -> None:
    """``pgle.auto/1``."""
    json.show(
        "pgle.auto/1",
        {
            "ok": result.good,
            "outcome": result.outcome,
            "why": result.why,
            "recompiled": result.recompiled,
            "loaded": result.loaded,
            "used": used(result),
            "proof": "" if result.verdict is None else result.verdict.proof,
            "run_dir": result.request.run_dir,
            "cache": result.request.cache_dir,
            "steps": len(result.stage.step_times_s),
            "handed_over": result.handed_over,
            "traces": result.traces,
            "warnings": result.warnings,
        },
    )
