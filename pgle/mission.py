"""The mission, from a trace to the proof of a gain. `pgle run` runs `fulfil`.

XLA's latency-hiding scheduler hides communication behind compute, but guesses how long each
operation takes. pgle measures that, gives the costs to XLA, proves from XLA's log that they were
used, and compares step times:

    profile  run the program, traced          → StageFolder: traces, and the HLO that XLA compiled
    convert  measure every instruction        → Path of a Profile: instruction name → cost in µs
    baseline run the program without profile  → StageFolder: step times, and the HLO
    verify   look costs up as XLA will        → Fit: the Coverage, and the profile to use
    perf     run the program with the profile → StageFolder: step times, XLA's log
    confirm  read what the log proves         → KeptVerdict: whether XLA used the profile
    compare  steps without and with it        → Compared: the Comparison, or why there is none

`pgle run` prints a line for each step but confirm: the line of perf has its verdict. Each step
leaves its files in the run directory, so an interrupted run continues there. A `Keeper` runs the
long steps that are not done yet, and records them: `Experiment` in run/stages/pipeline.py.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from pgle.costs.profile.coverage import Coverage
from pgle.errors import UserError
from pgle.requests.profiles import Convert
from pgle.run.compare import CompareRequest, record_comparison, run_compare
from pgle.run.coverage import Fit, find_fit
from pgle.run.directory.directory import StageFolder
from pgle.run.stages.stage import KeptVerdict, StageRequest, kept_verdict
from pgle.steps.compare import Comparison, LimitCheck, Limits
from pgle.xla.log.verdict import Bounds


class Keeper(Protocol):
    """Runs and records the long steps that are due, and tells the user about every step."""

    def launch(self, stage: StageRequest) -> StageFolder:
        """Run the program, on GPUs or simulated ones; return the folder with its files."""

    def convert(self, request: Convert) -> Path:
        """Convert traces by `pgle.run.convert`; return the path of the profile."""

    def announce(self, step: str, /) -> None:
        """Say that a short step begins. Short steps are never skipped."""

    def on_result(self, found: Coverage, /) -> None:
        """Show what verify found."""


@dataclass(frozen=True)
class Compared:
    """Step times without the profile against those with it."""

    comparison: Comparison | None = None  # None: too few steps
    checks: tuple[LimitCheck, ...] = ()  # limits that the comparison had to keep
    problem: str = ""  # why there is no comparison


def fulfil(
    profile_stage: StageRequest,
    baseline_stage: StageRequest,
    limits: Limits,
    keeper: Keeper,
) -> tuple[Fit, KeptVerdict, Compared]:
    """Run the mission for a program.

    Args:
        profile_stage: how to run the program traced. Only stage, mode and profile differ for perf.
        baseline_stage: how to run it without the profile. If `pgle run` judges flags of a search,
            they are missing here.
        limits: what the change of the step time must keep.
        keeper: runs the long steps.
    """
    traced = profile(profile_stage, keeper)
    costs = convert(traced, keeper)
    before = keeper.launch(baseline_stage)
    keeper.announce("verify")
    # perf compiles with the flags of the profile stage, so verify needs HLO made with them
    has_flags_of_perf = baseline_stage.flags == profile_stage.flags
    compiled = before if has_flags_of_perf else traced
    fit = verify(costs, compiled, profile_stage.bounds)
    keeper.on_result(fit.coverage)
    after = perf(profile_stage, fit.profile, keeper)
    verdict = confirm(after)
    keeper.announce("compare")
    return fit, verdict, compare(before, after, limits)


def profile(profile_stage: StageRequest, keeper: Keeper) -> StageFolder:
    """Run the program, and trace a window of its steps."""
    return keeper.launch(profile_stage)


def convert(traced: StageFolder, keeper: Keeper) -> Path:
    """Measure what each instruction took, and write the profile into the run directory."""
    out = traced.run.profile
    return keeper.convert(Convert(traced.traces(), out, hlo=traced.dumps(), force=True))


def verify(costs: Path, compiled: StageFolder, bounds: Bounds) -> Fit:
    """Find the instructions that have a cost. If they are too few, write a profile whose costs are
    carried over to the compiled module.
    """
    return find_fit(costs, compiled.rank().hlo, bounds)


def perf(profile_stage: StageRequest, costs: Path, keeper: Keeper) -> StageFolder:
    """Run the program again; XLA schedules it by the profile."""
    stage = replace(profile_stage, stage="perf", mode="perf", profile=costs)
    return keeper.launch(stage)


def confirm(performed: StageFolder) -> KeptVerdict:
    """Return whether XLA used the profile. `confirm_stage` of run/stages/stage.py has read it from
    the log at the end of perf.
    """
    return kept_verdict(performed)


def compare(before: StageFolder, after: StageFolder, limits: Limits) -> Compared:
    """Compare the step times of both runs, and hold the change against the limits."""
    sides = (str(before.path), str(after.path))
    try:
        comparison, checks = run_compare(CompareRequest(sides, limits=limits))
    except UserError as error:  # keep the results of the earlier steps
        return Compared(problem=f"step times were not compared: {error}")
    record_comparison(after.run, comparison)
    return Compared(comparison, checks)
