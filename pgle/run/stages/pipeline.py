"""Run stages: one by itself, or all of them, as `pgle run` does.

`pgle.mission` decides which stages run, in which order. This file chooses the back end, skips
finished stages, and records results.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias

from pgle.costs.profile.coverage import Coverage
from pgle.costs.profile.files import read_profile, sidecar_path
from pgle.errors import UserError, WorkloadError
from pgle.files import (
    AnyPath,
    Json,
    check_absent,
    read_bytes,
    read_kept,
    sha256,
    write_files,
)
from pgle.mission import Compared, fulfil
from pgle.requests.kinds import FOUND_BY_SEARCH
from pgle.requests.profiles import Convert
from pgle.requests.stages import Stage, Windowed
from pgle.run.convert import Conversion, convert
from pgle.run.coverage import Fit, verify
from pgle.run.directory.directory import COMPARED, RunDirectory, StageFolder
from pgle.run.directory.manifest import (
    StageRecord,
    extend_manifest,
    keep_bounds,
    now,
    read_manifest,
    record_file,
    same_program,
    settle,
)
from pgle.run.process.launchers import find_rank
from pgle.run.stages.real import RealBackEnd, checked_window, reported
from pgle.run.stages.simulated import SimulatedBackEnd
from pgle.run.stages.stage import KeptVerdict, StageRequest, StageResult, end_record
from pgle.steps.compare import Comparison, LimitCheck, Limits
from pgle.xla.vendors import VENDORS
from pgle.xla.vendors.vendor import Presence

Capture: TypeAlias = Literal["auto", "jax", "nsys", "simulated"]
BackEnd: TypeAlias = RealBackEnd | SimulatedBackEnd


def has_gpus() -> bool:
    """Whether this machine has GPUs of any vendor, and their driver."""
    programs = [presence.list_program for presence in _drivers()]
    return any(not program or shutil.which(program) for program in programs)


def has_driver() -> bool:
    """Whether a vendor's driver is loaded."""
    return bool(_drivers())


def _drivers() -> list[Presence]:
    """Return the vendors whose driver is loaded."""
    found = [vendor.presence for vendor in VENDORS.values()]
    return [presence for presence in found if Path(presence.driver_file).exists()]


def choose_back_end(asked: Stage) -> BackEnd:
    """Return the back end that `--capture` names. ``auto`` uses GPUs if this machine has some."""
    window = checked_window(asked.window if isinstance(asked, Windowed) else "auto")
    capture = asked.capture
    if capture == "auto":
        capture = "jax" if has_gpus() else "simulated"
    if capture == "simulated":
        return SimulatedBackEnd(
            asked.target,
            asked.devices,
            asked.topology,
            choose=asked.module,
            quiet_s=asked.quiet_s,
        )
    return RealBackEnd(capture, window)


EXPOSED = "predicted_exposed_us"  # key in the facts of a simulated stage
AGAINST = "against the profile run"  # start of a warning that the program has changed


def run_stage(request: StageRequest, back_end: BackEnd, *, force: bool) -> StageResult:
    """Run one stage by itself; raises `WorkloadError` if the user's program failed."""
    if request.profile is not None:
        read_profile(request.profile)
    back_end.check(request)
    is_alone = find_rank().is_alone
    with request.run.held(shared=not is_alone):
        if is_alone:
            settle(request.run)
        return run_held(request, back_end, again=force, force=force)


def run_held(
    request: StageRequest, back_end: BackEnd, *, again: bool, force: bool
) -> StageResult:
    """Run a stage in a run directory that this process has locked. `again` and `force` as in
    `RealBackEnd.run`.
    """
    if request.profile is not None:
        request = replace(
            request, profile=content_addressed(request.profile, request.run)
        )
    try:
        result = back_end.run(request, again=again, force=force)
    except BaseException:
        if find_rank().is_alone:
            settle(request.run)
        raise
    if request.stage == "perf":
        bounds = request.bounds
        keep_bounds(request.run.path, bounds.time, bounds.collectives)
    manifest = read_manifest(request.run.path)
    profiled = manifest.last("profile")
    ran = manifest.last(request.stage)
    if request.stage == "profile" or profiled is None or ran is None:
        return result
    differing = (f"{AGAINST}, {line}" for line in same_program(profiled, ran))
    return replace(result, warnings=(*result.warnings, *differing))


def content_addressed(profile: AnyPath, run: RunDirectory) -> Path:
    """Copy a profile into the run directory, under a name with its hash; return the path.

    JAX's compilation cache uses a profile's path as a key, not its content. A directory is used in
    place. Raises `UserError` if it is in an object store.
    """
    if profile.is_dir():
        if not isinstance(profile, Path):
            raise UserError(
                "is a directory of an object store",
                where=profile,
                remedy="copy it here first",
            )
        return profile.resolve()
    data = read_bytes(profile)
    named = run.path / "profiles" / f"profile-{sha256(data)[:12]}{profile.suffix}"
    # a file with other content was edited later, so its name is wrong
    if read_kept(named, max_bytes=len(data)) != data:
        sidecar = sidecar_path(profile)
        files: dict[AnyPath, bytes | str] = {named: data}
        if sidecar.exists():
            files[sidecar_path(named)] = read_bytes(sidecar)
        write_files(files, force=True)  # ranks may write the same content at once
    return named.resolve()


STAGES = ("profile", "convert", "baseline", "verify", "perf", "compare")


@dataclass(frozen=True)
class Pipeline:
    """The result of all stages."""

    run: RunDirectory  # the run directory
    skipped: tuple[str, ...]  # stages that were already done
    stages: tuple[StageResult, ...]  # results of the launched stages that were run now
    # coverage of the module that will use the profile, as the baseline compiled it
    coverage: Coverage
    covered: bool  # whether the coverage reaches the bounds
    used: bool  # whether XLA used the profile in the performance run, and enough of it
    use: str  # that verdict and its reason, as recorded; empty if absent
    # of the step times; None if there are too few
    comparison: Comparison | None
    checks: tuple[LimitCheck, ...]  # limits that the comparison had to keep
    warnings: tuple[str, ...]  # one line each
    facts: Json  # facts of the performance run
    # predicted exposed communication per step without and with the profile; None unless the GPU is
    # simulated
    exposed_us: tuple[float, float] | None

    @property
    def simulated(self) -> bool:
        """Whether no GPU ran anything."""
        return self.exposed_us is not None

    @property
    def good(self) -> bool:
        """Whether every check succeeded."""
        return (
            self.covered
            and self.used
            and not any(check.failed for check in self.checks)
        )


@dataclass
class Experiment:
    """One pass over the stages of a run directory: the `Keeper` of `pgle.mission`.

    Stages that the manifest records as done are skipped. If a stage fails, the next pass continues
    there.
    """

    profile_stage: StageRequest  # the other stages differ in mode and profile only
    back_end: BackEnd  # what runs the stages
    # called with the name of each stage before it starts, also if it is skipped
    announce: Callable[[str], None]
    # called with the result of each stage
    on_result: Callable[[StageResult | Conversion | Coverage], None] = lambda result: (
        None
    )
    fail_slower: float = 0.01  # limit of the compare stage, as a share of the step time
    force: bool = False  # run every stage again
    #: flags that the run judges: the baseline runs without them
    judged: tuple[str, ...] = ()
    _skipped: list[str] = field(default_factory=list, init=False)
    # warnings of skipped stages
    _recorded: dict[str, None] = field(default_factory=dict, init=False)
    _results: list[StageResult] = field(default_factory=list, init=False)

    def run(self) -> Pipeline:
        """Run all stages that are due.

        Raises `WorkloadError` with the program's exit code if it failed, or with code 1 if it
        succeeded but its stage has no result.
        """
        rank = find_rank()
        if not rank.is_alone:
            # ranks would convert and compare what others have not finished writing
            raise UserError(
                "'pgle run' was started by every rank of the job "
                f"(here rank {rank.rank}, by {rank.launcher})",
                remedy="start it once, with the launcher inside: pgle run -- srun COMMAND; "
                "or stage by stage, as the files of 'pgle init slurm' and 'pgle init k8s' do",
            )
        self.back_end.check(self.profile_stage)
        with self._run.held():
            settle(self._run)
            return self._stages()

    @property
    def _run(self) -> RunDirectory:
        return self.profile_stage.run

    def _stages(self) -> Pipeline:
        for name in (self.profile_stage.stage, *COMPARED):
            self._run.stage(name).check(again=self._is_recorded(name) or self.force)
        if self.judged:
            lines = (FOUND_BY_SEARCH, *self.judged, "")
            write_files({self._run.judged_flags: "\n".join(lines)}, force=True)
        limits = Limits(fail_slower=self.fail_slower)
        fit, verdict, compared = fulfil(
            self.profile_stage, self._baseline(), limits, self
        )
        return self._result(fit, verdict, compared)

    def _baseline(self) -> StageRequest:
        flags = tuple(
            flag for flag in self.profile_stage.flags if flag not in self.judged
        )
        return replace(
            self.profile_stage, stage="baseline", mode="baseline", flags=flags
        )

    def _result(self, fit: Fit, verdict: KeptVerdict, compared: Compared) -> Pipeline:
        bounds = self.profile_stage.bounds
        keep_bounds(self._run.path, bounds.time, bounds.collectives)
        manifest = read_manifest(self._run.path)
        records = [manifest.last(name) for name in COMPARED]
        perf = records[-1]
        names = (fit.note,) if fit.note else self._other_mode_warning(fit.coverage)
        problems = (compared.problem,) if compared.problem else ()
        facts: dict[str, Any] = {}
        if perf is not None:
            facts = {**reported(None, perf.facts.get("hook", {}), perf), **perf.facts}
        warnings = (*self._recorded, *names, *problems)
        return Pipeline(
            run=self._run,
            skipped=tuple(self._skipped),
            stages=tuple(self._results),
            coverage=fit.coverage,
            covered=fit.coverage.is_ok(bounds),
            used=verdict.is_used(bounds),
            use=verdict.text,
            comparison=compared.comparison,
            checks=compared.checks,
            warnings=warnings,
            facts=facts,
            exposed_us=_predicted_exposed_us(records),
        )

    def _other_mode_warning(self, coverage: Coverage) -> tuple[str, ...]:
        """Warn if the profile fits the profile run's module, but not the module that will use
        it.
        """
        stage = self.profile_stage
        if coverage.is_ok(stage.bounds):
            return ()
        of_profile_run = verify(self._run.profile, [stage.folder.rank().hlo])
        if not of_profile_run.is_ok(stage.bounds):
            return ()
        what = (
            f"the profile fits the profile run, not the baseline: --mode {stage.mode} "
            "compiled other instructions"
        )
        other = "sync" if stage.mode == "async" else "async"
        return (f"{what}; run again with --mode {other}",)

    def launch(self, stage: StageRequest) -> StageFolder:
        """Run a stage on the back end if it is due; return its folder."""
        if stage.profile is not None:
            stage = replace(stage, profile=content_addressed(stage.profile, self._run))
        if not self._is_due(self.back_end.plan(stage)):
            return stage.folder
        if stage.stage == "profile":
            self._check_profile()
        again = self._is_recorded(stage.stage) or self.force
        result = run_held(stage, self.back_end, again=again, force=self.force)
        if self.judged and stage.stage == "baseline":  # the flags are meant to differ
            warnings = tuple(line for line in result.warnings if AGAINST not in line)
            result = replace(result, warnings=warnings)
        if result.failed:
            raise WorkloadError(1, f"{stage.stage}: {result.failed}")
        self._results.append(result)
        self.on_result(result)
        return stage.folder

    def convert(self, request: Convert) -> Path:
        """Convert the traces of the profile stage if due; return the path of the profile."""
        run = self._run
        sources = (
            *self.profile_stage.folder.trace_files(),
            *self.profile_stage.folder.dumps(),
        )
        inputs = tuple(record_file(path, run.path) for path in sources)
        planned = StageRecord("convert", inputs=inputs)
        if not self._is_due(planned):
            return run.profile
        self._check_profile()
        record = replace(planned, started=now())
        extend_manifest(run.path, record)
        try:
            conversion = convert(request)
        except UserError as error:
            end_record(run, record, error.exit_code, failed=error.line())
            raise
        end_record(run, record, 0, outputs=(run.profile, sidecar_path(run.profile)))
        self.on_result(conversion)
        return run.profile

    def _check_profile(self) -> None:
        """Before a profile run, refuse to overwrite a profile that `pgle run` did not write."""
        run = self._run
        last = read_manifest(run.path).last("convert")
        written = () if last is None else last.outputs
        # a killed conversion did not record its files
        was_killed = last is not None and last.exit_code is None
        may_overwrite = self.force or was_killed
        for path in (run.profile, sidecar_path(run.profile)):
            is_known = may_overwrite or not path.exists()
            if not is_known and record_file(path, run.path) not in written:
                raise UserError(
                    "was not written by 'pgle run', or was changed since",
                    where=path,
                    remedy="move it away, choose another --run-dir or pass --force",
                )
            check_absent(path, force=True)

    def _is_recorded(self, stage: str) -> bool:
        return read_manifest(self._run.path).last(stage) is not None

    def _is_due(self, planned: StageRecord) -> bool:
        """Whether a stage must run. Announce it, and the reason if it ran before."""
        manifest = read_manifest(self._run.path)
        stage = planned.stage
        why = "--force" if self.force else manifest.why_due(planned, self._run.path)
        if not why:
            self._skipped.append(stage)
            last = manifest.last(stage)
            self._recorded |= dict.fromkeys(last.warnings if last is not None else ())
            self.announce(f"{stage}: unchanged, skipped")
        elif manifest.last(stage) is None:
            self.announce(stage)
        else:
            self.announce(f"{stage}: again, {why}")
        return bool(why)


def _predicted_exposed_us(
    records: Sequence[StageRecord | None],
) -> tuple[float, float] | None:
    """The predicted exposed communication of both runs; None unless both were simulated."""
    facts = [record.facts for record in records if record is not None]
    found = [float(one[EXPOSED]) for one in facts if EXPOSED in one]
    return (found[0], found[1]) if len(found) == 2 else None
