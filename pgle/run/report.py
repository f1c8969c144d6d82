"""`pgle report` as a function: all that is known of a run directory or of traces, gathered in one value."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from pgle.costs.estimate.estimate import hardware_of
from pgle.costs.lookup.coverage import Coverage
from pgle.costs.profile.files import read_profile
from pgle.costs.profile.value import Profile
from pgle.errors import UserError
from pgle.files import AnyPath, Progress
from pgle.run.analyze import Analysis, analyze
from pgle.run.compare import CompareRequest, run_compare
from pgle.run.coverage import verify
from pgle.run.directory.directory import COMPARED, RunDirectory
from pgle.run.directory.manifest import Manifest, StageRecord, read_manifest
from pgle.run.inputs.measured_step import Side
from pgle.run.inputs.traces import is_run_dir
from pgle.schedule.predict import Prediction, predict
from pgle.steps.compare import Check, Comparison
from pgle.xla.hlo.module import Module
from pgle.xla.hlo.reader import read_modules

T = TypeVar("T")


@dataclass(frozen=True)
class Scheduled:
    """The schedule that a stage ran, with what its step takes by the profile."""

    label: str
    module: Module
    prediction: Prediction


@dataclass(frozen=True)
class Gathered:
    """Facts about a run."""

    inputs: tuple[AnyPath, ...]  # what was given
    run: RunDirectory | None = None  # the run directory; None for traces
    manifest: Manifest = field(default_factory=Manifest)  # its stages
    analysis: Analysis | None = None  # of the trace; None if absent
    profile: Profile | None = None  # the cost profile
    coverage: Coverage | None = None  # of the traced module by the profile
    # comparison, checks: step times of baseline and performance run
    comparison: Comparison | None = None
    checks: tuple[Check, ...] = ()
    schedules: tuple[Scheduled, ...] = ()  # of these two, predicted with the profile
    missing: tuple[str, ...] = ()  # the unknowns, and why, a line each

    @property
    def performance(self) -> StageRecord | None:
        """The record of the performance run."""
        return self.manifest.last("perf")


def gather(side: Side, other: Side | None = None, *, progress: Progress | None = None) -> Gathered:
    """Read and analyse all that there is. Of a run directory any stage may be missing.

    Args:
        other: another step of the same program, from before; then only the steps are compared.

    Raises:
        UserError: an input is bad, or nothing is known of the run.
    """
    if other is not None or len(side.inputs) != 1 or not is_run_dir(side.inputs[0]):
        return Gathered(side.inputs, analysis=analyze(side, other, progress=progress))
    run, missing = RunDirectory(Path(side.inputs[0])), []

    def part(what: str, make: Callable[[], T]) -> T | None:
        try:
            return make()
        except UserError as error:
            missing.append(f"{what}: {error.line()}")
            return None

    analysis = part("no timeline and findings", lambda: analyze(side, progress=progress))
    profile = part("no costs", lambda: read_profile(run.profile_to_use()))
    coverage = comparison = None
    if profile is not None:
        dumps = side.hlo or (run.dump_to_cover,)
        coverage = part("no coverage", lambda: verify(run.profile_to_use(), dumps))
    if all(run.stage(name).path.is_dir() for name in COMPARED):
        comparison = part("step times not compared", lambda: run_compare(CompareRequest((str(run.path),))))
    else:
        missing.append("no before and after: 'pgle run' or 'pgle perf' makes the runs to compare")
    if analysis is None and profile is None and comparison is None:
        raise UserError("nothing to report on yet", where=run.path, remedy=missing[0])
    manifest = read_manifest(run.path)
    return Gathered(
        inputs=side.inputs,
        run=run,
        manifest=manifest,
        analysis=analysis,
        profile=profile,
        coverage=coverage,
        comparison=None if comparison is None else comparison[0],
        checks=() if comparison is None else comparison[1],
        schedules=_schedules(run, manifest, profile) if profile is not None else (),
        missing=tuple(missing),
    )


def _schedules(run: RunDirectory, manifest: Manifest, profile: Profile) -> tuple[Scheduled, ...]:
    """What baseline and performance run were compiled to, where both left their dumps."""
    found = []
    labels = ("baseline: LHS, no profile", "performance run: LHS with the profile")
    for label, stage in zip(labels, COMPARED, strict=True):
        record = manifest.last(stage)
        folder = run.stage(stage).rank().hlo
        if record is None or not folder.is_dir():
            return ()
        try:
            modules = [module for module in read_modules(folder) if module.is_scheduled]
        except UserError:
            return ()
        if not modules:
            return ()
        name = str(record.facts.get("module", ""))
        module = max(modules, key=lambda item: (item.name == name, len(item.instructions)))
        found.append(Scheduled(label, module, predict(module, profile, hardware_of(module))))
    return tuple(found) if len({item.module.name for item in found}) == 1 else ()
