"""Stages are run: on which back end, with which copy of the profile, and as the same program as before."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, TypeAlias

from pgle.costs.profile.files import read_profile, sidecar_path
from pgle.errors import UserError
from pgle.files import AnyPath, sha256, write_files
from pgle.run.directory.directory import RunDirectory
from pgle.run.directory.manifest import read_manifest, settle
from pgle.run.inputs.same_program import same_program
from pgle.run.process.environment import find_rank
from pgle.run.stages.real import RealBackEnd, checked_window
from pgle.run.stages.simulated import SimulatedBackEnd
from pgle.run.stages.stage import BackEnd, StageRequest, StageResult

Capture: TypeAlias = Literal["auto", "jax", "nsys", "simulated"]

GPU_DRIVER = Path("/proc/driver/nvidia/version")


def choose_back_end(capture: Capture, window: str = "auto", **simulated: Any) -> BackEnd:
    """The back end that `--capture` names: for ``auto`` the devices of this machine where there is an NVIDIA GPU.

    Args:
        capture: the profiler, or ``simulated``.
        window: what is traced.
        simulated: the fields of `SimulatedBackEnd`.

    Raises:
        UserError: `window` is none.
    """
    if capture == "auto":
        capture = "jax" if GPU_DRIVER.exists() and shutil.which("nvidia-smi") else "simulated"
    if capture == "simulated":
        checked_window(window)
        return SimulatedBackEnd(**simulated)
    return RealBackEnd(capture, checked_window(window))


def run_stage(request: StageRequest, back_end: BackEnd, *, force: bool = False) -> StageResult:
    """Run one stage by itself.

    Raises:
        UserError: it cannot be run, XLA would not use the profile, or another pgle is at work in the run directory.
        WorkloadError: the user's program failed.
    """
    if request.profile is not None:
        read_profile(request.profile)
    back_end.check(request)
    is_alone = find_rank().is_alone
    with request.run.held(shared=not is_alone):
        if is_alone:
            settle(request.run)
        return run_held(request, back_end, again=force, force=force)


def run_held(request: StageRequest, back_end: BackEnd, *, again: bool, force: bool) -> StageResult:
    """Run a stage in a run directory that is held already; `again` and `force` as in `BackEnd.run`."""
    if request.profile is not None:
        request = replace(request, profile=content_addressed(request.profile, request.run))
    try:
        result = back_end.run(request, again=again, force=force)
    except BaseException:
        if find_rank().is_alone:
            settle(request.run)
        raise
    return replace(result, warnings=(*result.warnings, *_mismatches(request)))


def _mismatches(request: StageRequest) -> tuple[str, ...]:
    """The differences between this stage's program and the profile run's in its run directory."""
    manifest = read_manifest(request.run.path)
    profiled, now = manifest.last("profile"), manifest.last(request.stage)
    if request.stage == "profile" or profiled is None or now is None:
        return ()
    return tuple(f"against the profile run, {line}" for line in same_program(profiled, now))


def content_addressed(profile: AnyPath, run: RunDirectory) -> Path:
    """A copy of a profile whose name carries its hash: JAX's compilation cache keys on the path, not on the content.

    A directory is used in place. Raises `UserError` if it is in an object store.
    """
    if profile.is_dir():
        if not isinstance(profile, Path):
            raise UserError("is a directory of an object store", where=profile, remedy="copy it here first")
        return profile.resolve()
    data = profile.read_bytes()
    named = run.content_named(sha256(data), profile.suffix)
    if not named.exists() or named.read_bytes() != data:  # changed since, its name would lie
        sidecar = sidecar_path(profile)
        files: dict[AnyPath, bytes | str] = {named: data}
        if sidecar.exists():
            files[sidecar_path(named)] = sidecar.read_bytes()
        write_files(files, force=True)  # ranks may write the same content at once
    return named.resolve()
