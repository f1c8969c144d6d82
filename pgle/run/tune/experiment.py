"""`pgle tune RUN` and `pgle run --tune`: an experiment's program tuned with what was measured of it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pgle.errors import UserError
from pgle.run.compare import CompareRequest, run_compare
from pgle.run.experiment.directory import RunDirectory
from pgle.run.experiment.manifest import read_manifest
from pgle.run.experiment.pipeline import Announce, Pipeline, PipelineRequest, run_pipeline
from pgle.run.launch.captured import modules_in
from pgle.run.rehearse.command import RehearseCommand, prepared
from pgle.run.tune.record import begun
from pgle.run.tune.request import TuneRequest, Tuning
from pgle.run.tune.tune import OnTrial, tune
from pgle.steps.compare import Comparison
from pgle.steps.gate import Check, Limits
from pgle.xla.flags.text import format_flags, parse_flags
from pgle.xla.targets import load_target

BUDGET = 20
"""Trials at most."""
TUNED = "tuned"
"""Folder of a run directory: what the search found, and in ``run`` the experiment under its flags."""


@dataclass(frozen=True)
class TunedRun:
    """An experiment, its program tuned, and the experiment again under the flags that were found.

    Attributes:
        first: by the user's own flags.
        tuning: of its program, with the measured profile.
        second: under the new flags, profiled again; None where nothing better was found.
        comparison: performance run of the second against that of the first; None where there is none.
        checks: what it had to keep.
        warnings: one line each.
    """

    first: Pipeline
    tuning: Tuning
    second: Pipeline | None = None
    comparison: Comparison | None = None
    checks: tuple[Check, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def good(self) -> bool:
        """Whether every check passed."""
        return (
            self.first.good
            and self.tuning.good
            and (self.second is None or self.second.good)
            and all(check.ok for check in self.checks)
        )


def is_run(path: Path) -> bool:
    """Whether a folder is a run directory."""
    return RunDirectory(path).manifest().is_file()


def of_run(run: RunDirectory, given: RehearseCommand, *, with_target: bool) -> RehearseCommand:
    """What a search for flags takes from a run directory: modules, measured costs, flags, target and topology.

    Args:
        run: with a profile stage.
        given: the command line; what it says wins.
        with_target: take the target of the run.

    Raises:
        UserError: it holds no module of a profile stage.
    """
    places = (run.captured, run.stage("profile").rank().ir)
    folder = next((path for path in places if path.is_dir() and modules_in(path)), None)
    stage = read_manifest(run.path).last("profile")
    if folder is None or stage is None:
        remedy = "profile first: pgle profile -- COMMAND; or give a module's file"
        raise UserError("holds no module of a profile stage", where=run.path, remedy=remedy)
    asked: dict[str, Any] = dict(stage.asked)
    described = sorted(run.stage("profile").rank().hlo.glob("*.gpu_target_config.pbtxt"))
    target = asked.get("target") or (str(described[0]) if described else given.target)
    shape = asked.get("topology") or (f"1x1x{asked['devices']}" if asked.get("devices") else None)
    flags = (format_flags([flag]) for flag in parse_flags(asked.get("XLA_FLAGS") or "").flags)
    return replace(
        given,
        words=(str(folder),),
        profile=given.profile or (str(run.profile) if run.profile.exists() else None),
        target=target if with_target else given.target,
        topology=given.topology or shape,
        flags=(*flags, *given.flags),
        choose=given.choose or asked.get("choose"),
    )


def run_and_tune(request: PipelineRequest, announce: Announce, on_trial: OnTrial) -> TunedRun:
    """All stages, the search with the measured profile, all stages again under what it found, and the comparison.

    Args:
        request: the experiment.
        announce: as in `run_pipeline`.
        on_trial: as in `tune`.

    Raises:
        as `run_pipeline` and `tune`.
    """
    run = request.stage.run
    first = run_pipeline(request, announce)
    announce("tune")
    blank = RehearseCommand((), None, "h100", None, None, (), None, str(run.path / TUNED), None, 0.0)
    command = of_run(run, blank, with_target=True)
    with prepared(command, resumes=begun) as (out, setting):
        target, profile = load_target(command.target), Path(command.profile) if command.profile else None
        found = tune(TuneRequest(setting, target, out, profile, command.topology, BUDGET), on_trial=on_trial)
    if found.proof is None:
        return TunedRun(first, found)
    flags = tuple(f"--{name}={value}" for name, value in found.tuned.trial.flags.items())
    again = RunDirectory(run.path / TUNED / "run")
    stage = replace(request.stage, run=again, flags=(*request.stage.flags, *flags))
    second = run_pipeline(replace(request, stage=stage), lambda line: announce(f"under the new flags: {line}"))
    sides = (str(run.stage("perf").path), str(again.stage("perf").path))
    try:
        limits = Limits(fail_slower=request.fail_slower)
        comparison, checks = run_compare(CompareRequest(sides, labels=("before", "tuned"), limits=limits))
    except UserError as error:
        return TunedRun(first, found, second, warnings=(f"step times were not compared: {error}",))
    return TunedRun(first, found, second, comparison, checks)
