"""What a profile, baseline or perf stage did."""

from __future__ import annotations

import statistics

from pgle.report import json
from pgle.report.text import console, duration, warn
from pgle.run.experiment.stage import StageFiles, StageResult
from pgle.run.experiment.stage import trace_files as traces


def show_text(result: StageResult, *, next_step: bool = True) -> None:
    """A few lines, warnings on stderr. Where stdout was the program's own, all goes to stderr, and rank 0 speaks."""
    request = result.request
    if result.rank:
        warn(f"rank {result.rank}: {line}" for line in result.warnings)
        return
    out = console(stderr=not result.simulated and request.stdout == 1)
    label = " on the simulated GPU" if result.simulated else ""
    module = f" {result.facts['module']}" if result.facts.get("module") else ""
    out.print(f"{request.stage}{label}:{module} in {request.files.folder}", style="bold", soft_wrap=True)
    if result.step_times_s:
        middle = duration(statistics.median(result.step_times_s) * 1e6)
        out.print(f"{len(result.step_times_s)} steps, median {middle}{' (simulated)' if result.simulated else ''}")
    if request.stage == "profile":
        window = f" ({result.facts['window']})" if "window" in result.facts else ""
        for path in traces(request.run_dir):
            out.print(f"trace {path}{window}", soft_wrap=True)
    if result.verdict is not None:
        out.print(f"profile {result.verdict.verdict}: {result.verdict.why}")
        if result.verdict.proof:
            out.print(f"  {result.verdict.proof}", style="dim")
        if result.verdict.remedy:
            out.print(f"  {result.verdict.remedy}")
    if next_step and (request.stage != "profile" or traces(request.run_dir)):
        out.print(_next(result), style="dim", soft_wrap=True)
    warn(result.warnings)


def _next(result: StageResult) -> str:
    """The command to type next: the side of the comparison that is missing, else the comparison."""
    request, run = result.request, result.request.run_dir
    if request.stage == "profile":
        return f"next: pgle convert {run}"
    if request.stage == "baseline" and not StageFiles(run, "perf").folder.exists():
        return f"next: pgle perf --run-dir {run} -- COMMAND"
    if request.stage == "perf" and not StageFiles(run, "baseline").folder.exists():
        return f"next: pgle perf --baseline --run-dir {run} -- COMMAND"
    return f"next: pgle compare {run}/baseline {run}/perf"


def show_json(result: StageResult) -> None:
    """``pgle.profile/1``, ``pgle.baseline/1`` or ``pgle.perf/1``."""
    request = result.request
    json.show(
        f"pgle.{request.stage}/1",
        {
            "run_dir": request.run_dir,
            "simulated": result.simulated,
            "exit_code": result.exit_code,
            "verdict": result.verdict,
            "steps": len(result.step_times_s),
            "median_step_s": statistics.median(result.step_times_s) if result.step_times_s else None,
            "traces": traces(request.run_dir) if request.stage == "profile" else (),
            "facts": result.facts,
            "warnings": result.warnings,
        },
    )
    warn(result.warnings)
