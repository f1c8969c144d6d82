"""`pgle run --tune` as a function: an experiment, the search with its profile, the experiment under what it found."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import TypeAlias

from pgle.costs.profile.coverage import Coverage
from pgle.errors import UserError
from pgle.run.compare import CompareRequest, run_compare
from pgle.run.compiler.compile import OnPhase
from pgle.run.convert import Conversion
from pgle.run.directory.directory import RunDirectory
from pgle.run.directory.out import check_folder
from pgle.run.process.environment import check_compiler
from pgle.run.rehearse_program import RehearseCommand, launch, prepared
from pgle.run.stages.pipeline import Announce, Pipeline, PipelineRequest, run_pipeline
from pgle.run.stages.stage import StageResult
from pgle.run.tune import OnTrial, TuneRequest, Tuning, begun, tune
from pgle.steps.compare import Check, Comparison, Limits

TUNED = "tuned"  # folder of a run directory: what the search found, and in ``run`` the experiment under its flags
UNDER_NEW_FLAGS = "under the new flags: "  # begins each announcement of that

Searching: TypeAlias = Callable[[], AbstractContextManager[tuple[OnTrial, OnPhase]]]
"""What hears of trials and compilations while a search runs."""
OnPart: TypeAlias = Callable[[StageResult | Conversion | Coverage | Pipeline | Tuning], None]


@dataclass(frozen=True)
class TunedRun:
    """An experiment, its program tuned, and the experiment again under the flags that were found."""

    first: Pipeline  # by the user's own flags
    tuning: Tuning  # of its program, with the measured profile
    second: Pipeline | None = None  # under the new flags, profiled again; None where nothing better was found
    # performance run of the second against the first's; None if absent
    comparison: Comparison | None = None
    checks: tuple[Check, ...] = ()  # what it had to keep
    warnings: tuple[str, ...] = ()  # one line each

    @property
    def good(self) -> bool:
        """Whether every check passed."""
        return (
            self.first.good
            and self.tuning.good
            and (self.second is None or self.second.good)
            and not any(check.failed for check in self.checks)
        )


def run_and_tune(
    request: PipelineRequest, announce: Announce, searching: Searching, on_result: OnPart = lambda part: None
) -> TunedRun:
    """All stages, the search with the measured profile, all stages again under what it found, and the comparison.

    Args:
        request: the experiment.
        announce: as in `run_pipeline`.
        searching: entered for the search; gives what `tune` calls.
        on_result: called with each part as it ends: what `run_pipeline` calls it with, both experiments, the search.

    Raises:
        as `run_pipeline` and `tune`.
    """
    run = request.stage.run
    check_folder(run.path / TUNED, begun)
    check_compiler(request.stage.command, by_name=True)
    first = run_pipeline(request, announce, on_result)
    on_result(first)
    announce("tune")
    command = RehearseCommand((str(run.path),), out=str(run.path / TUNED))
    with prepared(command, resumes=begun) as (command, asked), searching() as (on_trial, on_phase):
        found = tune(TuneRequest(**vars(asked)), on_trial=on_trial, on_phase=on_phase)
    found = replace(found, launch=launch(command))
    on_result(found)
    if found.proof is None:
        return TunedRun(first, found)
    flags = tuple(f"--{name}={value}" for name, value in found.tuned.trial.flags.items())
    again = RunDirectory(run.path / TUNED / "run")
    stage = replace(request.stage, run=again, flags=(*request.stage.flags, *flags))
    second = run_pipeline(replace(request, stage=stage), lambda line: announce(f"{UNDER_NEW_FLAGS}{line}"), on_result)
    on_result(second)
    sides = (str(run.stage("perf").path), str(again.stage("perf").path))
    try:
        limits = Limits(fail_slower=request.fail_slower)
        comparison, checks = run_compare(CompareRequest(sides, labels=("before", "tuned"), limits=limits))
    except UserError as error:
        return TunedRun(first, found, second, warnings=(f"step times were not compared: {error}",))
    return TunedRun(first, found, second, comparison, checks)
