"""The stages of an experiment, each by the means that this machine has."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

from pgle.costs.profile.files import read_profile, sidecar_path
from pgle.errors import UserError
from pgle.files import AnyPath, sha256, write_files
from pgle.run.experiment.manifest import read_manifest, same_program
from pgle.run.experiment.stage import Capture, StageRequest, StageResult
from pgle.run.launch.simulated import run_simulated

GPU_DRIVER = Path("/proc/driver/nvidia/version")


def run_stage(request: StageRequest, *, force: bool = False) -> StageResult:
    """Run a profile, baseline or perf stage: on the GPUs of this machine, or simulated.

    Raises:
        UserError: the request cannot be met; nothing was run.
        WorkloadError: the user's program failed.
    """
    request = replace(request, capture=choose_capture(request.capture))
    if request.profile is not None:
        request = replace(request, profile=content_addressed(request.profile, request.run_dir))
    if request.capture == "simulated":
        result = run_simulated(request, force=force)
    else:
        from pgle.run.launch.real import run_real

        result = run_real(request, force=force)
    return replace(result, warnings=(*result.warnings, *_mismatches(request)))


def _mismatches(request: StageRequest) -> tuple[str, ...]:
    """In what this stage was another program than the profile run of its run directory."""
    manifest = read_manifest(request.run_dir)
    profiled, now = manifest.last("profile"), manifest.last(request.stage)
    if request.stage == "profile" or profiled is None or now is None:
        return ()
    return tuple(f"against the profile run, {item.line()}" for item in same_program(profiled, now))


def choose_capture(capture: Capture) -> Capture:
    """What ``auto`` means here: the JAX profiler where there is an NVIDIA GPU, else simulated."""
    if capture != "auto":
        return capture
    return "jax" if GPU_DRIVER.exists() and shutil.which("nvidia-smi") else "simulated"


def content_addressed(profile: Path, run_dir: Path) -> Path:
    """A copy of a profile whose name carries its hash: JAX's compilation cache keys on the path, not on the content.

    Raises:
        UserError: XLA would not use the profile.
    """
    read_profile(profile)
    if profile.is_dir():
        return profile.resolve()
    data = profile.read_bytes()
    named = run_dir / "profiles" / f"profile-{sha256(data)[:12]}{profile.suffix}"
    if not named.exists():
        beside = sidecar_path(profile)
        files: dict[AnyPath, bytes | str] = {named: data}
        if beside.exists():
            files[sidecar_path(named)] = beside.read_bytes()
        write_files(files, force=True)  # ranks may write the same content at once
    return named.resolve()


def profile_of(run_dir: Path) -> Path:
    """The profile that `pgle convert RUN_DIR` wrote.

    Raises:
        UserError: there is none yet.
    """
    for name in ("profile.pbtxt", "profile.pb"):
        if (run_dir / name).is_file():
            return run_dir / name
    raise UserError("no profile there yet", where=run_dir, remedy=f"run 'pgle convert {run_dir}' or pass --profile")
