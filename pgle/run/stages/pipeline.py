"""Stages are run: one by itself, or with `pgle run` all of them, profile → convert → baseline →
verify → perf → compare, where what has not changed is skipped.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias

from pgle.costs.estimate.estimate import hardware_of
from pgle.costs.profile.coverage import Coverage
from pgle.costs.profile.files import profile_files, read_profile, sidecar_path
from pgle.costs.profile.lookup import LookupTable
from pgle.errors import UserError, WorkloadError
from pgle.files import AnyPath, check_absent, read_bytes, read_kept, sha256, write_files
from pgle.run.compare import CompareRequest, record_comparison, run_compare
from pgle.run.convert import Conversion, ConvertRequest, convert
from pgle.run.coverage import carried_over, table_of, verify
from pgle.run.directory.directory import COMPARED, RunDirectory
from pgle.run.directory.manifest import (
    StageRecord,
    extend_manifest,
    now,
    read_manifest,
    record_file,
    same_program,
    settle,
)
from pgle.run.process.environment import find_rank
from pgle.run.stages.real import RealBackEnd, checked_window, reported
from pgle.run.stages.simulated import SimulatedBackEnd
from pgle.run.stages.stage import StageRequest, StageResult, end_record
from pgle.steps.compare import Comparison, LimitCheck, Limits
from pgle.xla.flags.text import FOUND_BY_SEARCH
from pgle.xla.hlo.dumps import read_dumps
from pgle.xla.log.verdict import Bounds, ProfileUse

Capture: TypeAlias = Literal["auto", "jax", "nsys", "simulated"]
BackEnd: TypeAlias = RealBackEnd | SimulatedBackEnd

GPU_DRIVER = Path("/proc/driver/nvidia/version")


def choose_back_end(
    capture: Capture, window: str = "auto", **simulated: Any
) -> BackEnd:
    """The back end that `--capture` names: for ``auto`` the devices of this machine where there is
    an NVIDIA GPU.

    `simulated` has the fields of `SimulatedBackEnd`.
    """
    checked_window(window)
    if capture == "auto":
        capture = (
            "jax" if GPU_DRIVER.exists() and shutil.which("nvidia-smi") else "simulated"
        )
    return (
        SimulatedBackEnd(**simulated)
        if capture == "simulated"
        else RealBackEnd(capture, window)
    )


AGAINST = "against the profile run"  # begins a warning of another program


def run_stage(
    request: StageRequest, back_end: BackEnd, *, force: bool = False
) -> StageResult:
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
    """Run a stage in a run directory that is held already; `again` and `force` as in
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
    manifest = read_manifest(request.run.path)
    profiled, ran = manifest.last("profile"), manifest.last(request.stage)
    if request.stage == "profile" or profiled is None or ran is None:
        return result
    differing = (f"{AGAINST}, {line}" for line in same_program(profiled, ran))
    return replace(result, warnings=(*result.warnings, *differing))


def content_addressed(profile: AnyPath, run: RunDirectory) -> Path:
    """A copy of a profile whose name carries its hash: JAX's compilation cache keys on the path,
    not on the content.

    A directory is used in place. Raises `UserError` if it is in an object store.
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
    if (
        read_kept(named, max_bytes=len(data)) != data
    ):  # changed since, its name would lie
        sidecar = sidecar_path(profile)
        files: dict[AnyPath, bytes | str] = {named: data}
        if sidecar.exists():
            files[sidecar_path(named)] = read_bytes(sidecar)
        write_files(files, force=True)  # ranks may write the same content at once
    return named.resolve()


STAGES = ("profile", "convert", "baseline", "verify", "perf", "compare")


@dataclass(frozen=True)
class Pipeline:
    """What an experiment came to."""

    run: RunDirectory  # the run directory
    skipped: tuple[str, ...]  # stages that were done already
    stages: tuple[StageResult, ...]  # results of the launched stages that were run now
    # of the profile against the module that will use it, as the baseline compiled it
    coverage: Coverage
    covered: bool  # whether it reaches the bound
    used: bool  # whether XLA used the profile in the performance run, and enough of it
    use: str  # the verdict on that, and why, as recorded; empty if absent
    comparison: Comparison | None = (
        None  # of the step times; None where they are too few
    )
    checks: tuple[LimitCheck, ...] = ()  # what the comparison had to keep
    warnings: tuple[str, ...] = ()  # one line each
    facts: Mapping[str, Any] = field(default_factory=dict)  # of the performance run
    # predicted exposed communication per step without and with the profile; None unless the GPU is
    # simulated
    exposed_us: tuple[float, float] | None = None

    @property
    def simulated(self) -> bool:
        """Whether no GPU ran anything."""
        return self.exposed_us is not None

    @property
    def good(self) -> bool:
        """Whether every check passed."""
        return (
            self.covered
            and self.used
            and not any(check.failed for check in self.checks)
        )


@dataclass
class Experiment:
    """One pass over the stages of a run directory: those that the manifest does not hold as done
    are run.

    Where one fails, earlier ones are kept, and the next pass continues there.
    """

    profiled: StageRequest  # its profile stage; the others differ in mode and profile
    back_end: BackEnd  # what runs the stages
    announce: Callable[
        [str], None
    ]  # gets the name of each stage before it starts, also of the skipped ones
    on_result: Callable[[StageResult | Conversion | Coverage], None] = lambda result: (
        None
    )  # gets what each came to
    fail_slower: float = 0.01  # bound of the compare stage, a share of the step time
    force: bool = False  # run every stage again
    judged: tuple[str, ...] = ()  # flags of the stage that the baseline runs without
    _skipped: list[str] = field(default_factory=list, init=False)
    _recorded: dict[str, None] = field(
        default_factory=dict, init=False
    )  # warnings of the stages that are skipped
    _results: list[StageResult] = field(default_factory=list, init=False)

    def run(self) -> Pipeline:
        """All stages; raises `WorkloadError` if the user's program failed, with code 1 if it left
        not what its stage is for.
        """
        rank = find_rank()
        if (
            not rank.is_alone
        ):  # each would convert and compare what the others have not finished writing
            raise UserError(
                f"'pgle run' was started by every rank of the job (here rank {rank.rank}, by {rank.launcher})",
                remedy="start it once, with the launcher inside: pgle run -- srun COMMAND; or stage by stage, as "
                "the files of 'pgle init slurm' and 'pgle init k8s' do",
            )
        self.back_end.check(self.profiled)
        with self._run.held():
            settle(self._run)
            return self._stages()

    @property
    def _run(self) -> RunDirectory:
        return self.profiled.run

    def _stages(self) -> Pipeline:
        profiled = self.profiled
        for name in (profiled.stage, *COMPARED):
            self._run.stage(name).check(again=self._is_recorded(name) or self.force)
        if self.judged:
            write_files(
                {
                    self._run.judged_flags: "\n".join(
                        (FOUND_BY_SEARCH, *self.judged, "")
                    )
                },
                force=True,
            )
        self._launch(profiled)
        self._convert()
        without = tuple(flag for flag in profiled.flags if flag not in self.judged)
        baseline = replace(profiled, stage="baseline", mode="baseline", flags=without)
        self._launch(baseline)
        self.announce("verify")
        covers = (
            profiled if self.judged else baseline
        )  # a module that was compiled with the flags of the perf stage
        coverage = verify(self._run.profile, [covers.folder.rank().hlo])
        path, note = self._run.profile, ""
        if not coverage.is_ok(profiled.bounds):
            path, note = _carried(self._run, covers)
            coverage = verify(path, [covers.folder.rank().hlo]) if note else coverage
        self.on_result(coverage)
        profile = content_addressed(path, self._run)
        self._launch(replace(profiled, stage="perf", mode="perf", profile=profile))
        before, perf = (read_manifest(self._run.path).last(name) for name in COMPARED)
        stages = (record.facts for record in (before, perf) if record is not None)
        exposed = [
            facts["predicted_exposed_us"]
            for facts in stages
            if "predicted_exposed_us" in facts
        ]  # if simulated
        self.announce("compare")
        comparison: Comparison | None = None
        checks: tuple[LimitCheck, ...] = ()
        not_compared: tuple[str, ...] = ()
        try:
            words = tuple(str(self._run.stage(name).path) for name in COMPARED)
            comparison, checks = run_compare(
                CompareRequest(words, limits=Limits(fail_slower=self.fail_slower))
            )
            record_comparison(self._run, comparison)
        except (
            UserError
        ) as error:  # too few steps: everything before is still worth having
            not_compared = (f"step times were not compared: {error}",)
        return Pipeline(
            run=self._run,
            skipped=tuple(self._skipped),
            stages=tuple(self._results),
            coverage=coverage,
            covered=coverage.is_ok(profiled.bounds),
            used=perf is not None and _was_used(perf.facts, profiled.bounds),
            use=": ".join(
                perf.facts[key]
                for key in ("verdict", "why")
                if perf is not None and perf.facts.get(key)
            ),
            comparison=comparison,
            checks=checks,
            warnings=(
                *self._recorded,
                *([note] if note else self._other_names(coverage)),
                *not_compared,
            ),
            facts={}
            if perf is None
            else {**reported(None, perf.facts.get("hook", {}), perf), **perf.facts},
            exposed_us=(float(exposed[0]), float(exposed[1]))
            if len(exposed) == 2
            else None,
        )

    def _other_names(self, coverage: Coverage) -> tuple[str, ...]:
        """A line if the profile fits the module that it was measured on, but not the one that will
        use it.
        """
        stage = self.profiled
        fits = coverage.is_ok(stage.bounds)
        if fits or not verify(self._run.profile, [stage.folder.rank().hlo]).is_ok(
            stage.bounds
        ):
            return ()
        what = f"the profile fits the profile run, not the baseline: --mode {stage.mode} compiled other instructions"
        other = "sync" if stage.mode == "async" else "async"
        return (f"{what}; run again with --mode {other}",)

    def _launch(self, stage: StageRequest) -> None:
        """Run a stage by the back end, where it is due."""
        if not self._is_due(self.back_end.plan(stage)):
            return
        force = self.force
        if stage.stage == "profile":
            self._check_profile()
        result = run_held(
            stage,
            self.back_end,
            again=self._is_recorded(stage.stage) or force,
            force=force,
        )
        if self.judged and stage.stage == "baseline":  # it is meant to differ
            result = replace(
                result,
                warnings=tuple(line for line in result.warnings if AGAINST not in line),
            )
        if result.failed:
            raise WorkloadError(1, f"{stage.stage}: {result.failed}")
        self._results.append(result)
        self.on_result(result)

    def _convert(self) -> None:
        """Trace → profile."""
        run, folder = self._run, self.profiled.folder
        dumps = (folder.rank().hlo,) if folder.rank().hlo.is_dir() else ()
        inputs = tuple(
            record_file(path, run.path) for path in (*folder.trace_files(), *dumps)
        )
        planned = StageRecord("convert", inputs=inputs)
        if not self._is_due(planned):
            return
        self._check_profile()
        record = replace(planned, started=now())
        extend_manifest(run.path, record)
        try:
            conversion = convert(
                ConvertRequest(folder.traces(), run.profile, dumps, force=True)
            )
        except UserError as error:
            end_record(run, record, error.exit_code, failed=error.line())
            raise
        end_record(run, record, 0, outputs=(run.profile, sidecar_path(run.profile)))
        self.on_result(conversion)

    def _check_profile(self) -> None:
        """Refuse to overwrite a profile that this did not write, before the profile run too."""
        run = self._run
        last = read_manifest(run.path).last("convert")
        written = () if last is None else last.outputs
        was_killed = (
            last is not None and last.exit_code is None
        )  # what it left had no time to be recorded
        for path in (run.profile, sidecar_path(run.profile)):
            if (
                path.exists()
                and not (self.force or was_killed)
                and record_file(path, run.path) not in written
            ):
                what = "was not written by 'pgle run', or was changed since"
                raise UserError(
                    what,
                    where=path,
                    remedy="move it away, choose another --run-dir or pass --force",
                )
            check_absent(path, force=True)

    def _is_recorded(self, stage: str) -> bool:
        return read_manifest(self._run.path).last(stage) is not None

    def _is_due(self, planned: StageRecord) -> bool:
        """Whether a stage has to be run; says so, and why where it was run before."""
        manifest, stage = read_manifest(self._run.path), planned.stage
        why = "--force" if self.force else manifest.why_due(planned, self._run.path)
        if not why:
            self._skipped.append(stage)
            last = manifest.last(stage)
            self._recorded |= dict.fromkeys(last.warnings if last is not None else ())
            self.announce(f"{stage}: unchanged, skipped")
        else:
            self.announce(
                stage if manifest.last(stage) is None else f"{stage}: again, {why}"
            )
        return bool(why)


def _was_used(facts: Mapping[str, Any], bounds: Bounds) -> bool:
    """Whether a perf stage used its profile, by what it recorded; with other bounds than today's,
    perhaps.
    """
    verdict, time, kept = (
        facts.get(key) for key in ("verdict", "time_coverage", "kept_share")
    )
    if verdict in (ProfileUse.USED, ProfileUse.PARTLY_USED) and time is not None:
        return bounds.are_met(time, 1.0 if kept is None else kept)
    return verdict == ProfileUse.USED


def _carried(run: RunDirectory, baseline: StageRequest) -> tuple[Path, str]:
    """The profile carried over to what the baseline compiled, and what to say of it; as it is if
    that is no better.
    """
    dumps = read_dumps([baseline.folder.rank().hlo])
    given = read_profile(run.profile)
    module = max(dumps.modules, key=lambda item: len(LookupTable(item).rows))
    profile, note = carried_over(
        run.profile, given, table_of(dumps, module), hardware_of(module)
    )
    if not note:
        return run.profile, ""
    path = run.path / "profile.carried.pbtxt"
    write_files(profile_files(path, profile), force=True)
    return path, note
