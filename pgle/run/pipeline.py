"""`pgle run`: profile → convert → verify → baseline → perf → compare; what has not changed is skipped."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from pgle.costs.fit.coverage import Coverage
from pgle.errors import UserError
from pgle.files import sha256, write_files
from pgle.run.compare import CompareRequest, run_compare
from pgle.run.convert import Conversion, ConvertRequest, convert
from pgle.run.experiment.stage import StageFiles, StageRequest, StageResult, trace_files
from pgle.run.launch.masking import kept_argv
from pgle.run.launch.ranks import find_rank
from pgle.run.stages import choose_capture, run_stage
from pgle.run.verify import VerifyRequest, verify
from pgle.steps.compare import Comparison
from pgle.steps.gate import Check, Limits

STATE = "pipeline.json"


@dataclass(frozen=True)
class PipelineRequest:
    """An experiment.

    Attributes:
        stage: what all launching stages share: command, run directory, capture, target.
        mode: of the profile run.
        min_time_coverage: bound of the verify stage.
        fail_slower: bound of the compare stage, a share of the step time.
        force: run every stage again.
    """

    stage: StageRequest
    min_time_coverage: float = 0.95
    fail_slower: float = 0.01
    force: bool = False


@dataclass(frozen=True)
class Pipeline:
    """What an experiment came to.

    Attributes:
        skipped: stages whose inputs had not changed.
        stages: results of the launched stages that were run now.
        conversion: None where skipped.
        coverage: of the profile against the profiled module.
        covered: whether it reaches the bound.
        used: whether XLA used the profile in the performance run.
        comparison: of the step times; None where they are too few.
        checks: what the comparison had to keep.
        warnings: one line each.
    """

    skipped: tuple[str, ...]
    stages: tuple[StageResult, ...]
    conversion: Conversion | None
    coverage: Coverage
    covered: bool
    used: bool
    comparison: Comparison | None = None
    checks: tuple[Check, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def good(self) -> bool:
        """Whether every check passed."""
        return self.covered and self.used and all(check.ok for check in self.checks)


Announce = Callable[[str], None]


def run_pipeline(request: PipelineRequest, announce: Announce) -> Pipeline:
    """Run the stages that are due.

    Args:
        request: the experiment.
        announce: told the name of each stage before it starts, and which are skipped.

    Raises:
        UserError: a stage cannot be run; those before it are kept, and the next call goes on there. Or this is one of
            several ranks: each would convert and compare what the others have not finished writing.
        WorkloadError: the user's program failed.
    """
    rank = find_rank()
    if not rank.is_alone:
        raise UserError(
            f"'pgle run' was started by every rank of the job (here rank {rank.rank}, by {rank.launcher})",
            remedy="start it once, with the launcher inside: pgle run -- srun COMMAND; or stage by stage, as "
            "scripts/slurm/pgle.sbatch and scripts/k8s/pgle-jobset.yaml do",
        )
    run_dir = request.stage.run_dir
    base = replace(request.stage, capture=choose_capture(request.stage.capture))
    state = _State(run_dir, announce, request.force)
    results: list[StageResult] = []
    command = _key(kept_argv(base.command), base.capture, base.target, base.devices, base.topology, base.flags)

    def launch(stage_request: StageRequest) -> None:
        again = stage_request.files.folder.exists()
        results.append(run_stage(stage_request, force=again))

    profiled = replace(base, stage="profile")
    state.step("profile", _key(command, base.mode, base.window), lambda: launch(profiled))

    conversion: Conversion | None = None
    profile = run_dir / "profile.pbtxt"

    def to_profile() -> None:
        nonlocal conversion
        hlo = profiled.files.hlo
        dumps = (hlo,) if hlo.is_dir() else ()
        conversion = convert(ConvertRequest(trace_files(run_dir), profile, dumps, force=True))

    state.step("convert", _key(*map(_digest, trace_files(run_dir))), to_profile)
    announce("verify")
    coverage = verify(VerifyRequest(profile=profile, hlo=(profiled.files.hlo,)))
    baseline = replace(base, stage="baseline", mode="baseline", profile=None)
    state.step("baseline", command, lambda: launch(baseline))
    perf = replace(base, stage="perf", mode="perf", profile=profile)
    state.step("perf", _key(command, _digest(profile)), lambda: launch(perf))
    verdicts = [result.good for result in results if result.request.stage == "perf"]
    used = verdicts[0] if verdicts else state.used
    state.remember_used(used)
    announce("compare")
    comparison, checks, warnings = _compare(run_dir, request.fail_slower)
    return Pipeline(
        skipped=tuple(state.skipped),
        stages=tuple(results),
        conversion=conversion,
        coverage=coverage,
        covered=coverage.is_ok(request.min_time_coverage),
        used=used,
        comparison=comparison,
        checks=checks,
        warnings=warnings,
    )


def _compare(run_dir: Path, fail_slower: float) -> tuple[Comparison | None, tuple[Check, ...], tuple[str, ...]]:
    """Step times of baseline and perf. Too few of them is a warning: everything before is still worth having."""
    folders = tuple(str(StageFiles(run_dir, stage).folder) for stage in ("baseline", "perf"))
    try:
        comparison, checks = run_compare(CompareRequest(folders, limits=Limits(fail_slower=fail_slower)))
    except UserError as error:
        return None, (), (f"step times were not compared: {error}",)
    return comparison, checks, ()


class _State:
    """Which stages of a run directory are done, with what inputs."""

    def __init__(self, run_dir: Path, announce: Announce, force: bool) -> None:
        self._path = run_dir / STATE
        self._announce = announce
        self._force = force
        self._done: dict[str, str] = self._load()
        self.skipped: list[str] = []

    @property
    def used(self) -> bool:
        """Whether the last performance run used its profile."""
        return self._done.get("used") == "yes"

    def remember_used(self, used: bool) -> None:
        self._done["used"] = "yes" if used else "no"
        self._save()

    def step(self, name: str, key: str, run: Callable[[], None]) -> None:
        """Run a stage, unless it was completed with the same key."""
        if self._done.get(name) == key and not self._force:
            self._announce(f"{name}: unchanged, skipped")
            self.skipped.append(name)
            return
        self._announce(name)
        self._done.pop(name, None)
        run()
        self._done[name] = key
        self._save()

    def _load(self) -> dict[str, str]:
        if not self._path.is_file():
            return {}
        try:
            content = json.loads(self._path.read_text())
        except ValueError:
            raise UserError("damaged", where=self._path, remedy="remove it; every stage will run again") from None
        return {str(name): str(key) for name, key in content.items()} if isinstance(content, Mapping) else {}

    def _save(self) -> None:
        write_files({self._path: json.dumps(self._done, indent=2) + "\n"}, force=True)


def _key(*parts: object) -> str:
    return sha256(json.dumps(parts, default=str).encode())[:16]


def _digest(path: Path) -> str:
    """A hash of a file, or of the names and sizes of the files of a folder (traces can be large)."""
    if path.is_dir():
        return _key(*sorted((str(item.relative_to(path)), item.stat().st_size) for item in path.rglob("*")))
    return sha256(path.read_bytes())[:16]
