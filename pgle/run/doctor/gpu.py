"""Checks of GPUs, driver, and of what may keep a profiler from seeing them."""

from __future__ import annotations

import re

from pgle.run.doctor.machine import Check, Machine, fail, ok, warn
from pgle.run.doctor.no_gpu import check_no_gpu, loaded_driver
from pgle.run.experiment.manifest import Gpu
from pgle.xla.flags.text import as_bool

DRIVER_FOR_CUDA = {"12": 525, "13": 580}
"""Oldest driver branch for each CUDA major (CUDA toolkit release notes, minor version compatibility)."""
MULTI_SUBSCRIBER = "0.11.1"  # first jaxlib whose profiler can share CUPTI, with CUDA 13.2 (jax-ml/jax#37117)
DCGM_PROCESSES = ("nv-hostengine", "dcgm-exporter", "dcgmproftester")
INJECTIONS = ("CUDA_INJECTION64_PATH", "NVTX_INJECTION64_PATH", "NSYS_PROFILING_SESSION_ID")
"""Variables by which NVIDIA's tools attach to a process."""
HIDING = ("", "-1", "NoDevFiles")
"""Values of CUDA_VISIBLE_DEVICES that leave CUDA none; Slurm sets the last in steps without GPUs."""
NSYS_TROUBLE = ((2024, 5), (2024, 6))
"""Versions that give duplicate range ids with CUDA graphs; NVIDIA/JAX-Toolbox patches them."""


def check_gpus(machine: Machine, gpus: tuple[Gpu, ...]) -> Check:
    """Which GPUs there are."""
    if not gpus:
        return check_no_gpu(machine)
    names = [f"{gpu.name} ({gpu.memory_mib / 1024:.0f} GiB, sm_{gpu.compute_capability})" for gpu in gpus]
    found = ", ".join(f"{names.count(name)} x {name}" for name in dict.fromkeys(names))
    visible = machine.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None and visible.strip() in HIDING:
        shown = f"{found}, hidden by CUDA_VISIBLE_DEVICES='{visible}'"
        return warn(shown, "unset CUDA_VISIBLE_DEVICES; in a job ask the scheduler for GPUs")
    if len(set(names)) > 1:
        return warn(found, "costs are of one kind of GPU: choose with CUDA_VISIBLE_DEVICES")
    return ok(found)


def check_driver(machine: Machine, gpus: tuple[Gpu, ...]) -> Check:
    """Whether the driver is new enough for the CUDA that jax's plugin brings."""
    version = gpus[0].driver if gpus else loaded_driver(machine)
    if not version:
        return warn("none", "install NVIDIA's driver where the GPUs are")
    for name in machine.installed.plugins:
        cuda = re.sub(r"\D", "", name)
        needed = DRIVER_FOR_CUDA.get(cuda, 0)
        if int(version.split(".")[0]) < needed:
            found = f"{version}, older than CUDA {cuda} needs ({needed})"
            return fail(found, f"update the driver to {needed} or newer, or install jax[cuda12]")
    return ok(version)


def check_counters(machine: Machine) -> Check:
    """Whether users who are not administrators may profile."""
    text = machine.read("/proc/driver/nvidia/params")
    if text is None:
        return ok("no driver here")
    if "RmProfilingAdminOnly: 1" not in text:
        return ok("open to all users")
    if machine.is_root:
        return ok("for administrators only, and this is root")
    remedy = (
        "if traces come out empty (CUPTI_ERROR_INSUFFICIENT_PRIVILEGES): put 'options nvidia "
        "NVreg_RestrictProfilingToAdminUsers=0' into /etc/modprobe.d and reload the driver, or run with SYS_ADMIN"
    )
    return warn("for administrators only (RmProfilingAdminOnly: 1)", remedy)


def check_monitors(machine: Machine) -> Check:
    """Whether DCGM collects profiling metrics, which takes the profiler away."""
    found = sorted(machine.processes() & set(DCGM_PROCESSES))
    if not found:
        return ok("not running")
    remedy = "if a trace comes out empty: 'dcgmi profile --pause' before the run, '--resume' after it"
    return warn(f"{', '.join(found)} running", remedy)


def check_profilers(machine: Machine) -> Check:
    """Whether two profilers would meet in one process."""
    attached = [name for name in INJECTIONS if machine.environ.get(name)]
    if "nsys" in machine.environ.get("LD_PRELOAD", ""):
        attached.append("LD_PRELOAD")
    auto = as_bool(machine.environ.get("JAX_ENABLE_PGLE")) is True
    if attached and auto:
        remedy = "unset JAX_ENABLE_PGLE, or hand over with JAX_COMPILATION_CACHE_EXPECT_PGLE ('pgle auto')"
        return fail(f"another tool ({', '.join(attached)}) and AutoPGLE at once", remedy)
    if attached:
        remedy = f"do not use --capture jax under it (shared only from jaxlib {MULTI_SUBSCRIBER} with CUDA 13.2)"
        return warn(f"another tool is attached ({', '.join(attached)})", remedy)
    if auto:
        return warn("JAX_ENABLE_PGLE is on", "unset it for 'pgle profile' and 'pgle perf'")
    return ok("none attached")


def check_nsys(machine: Machine) -> Check:
    """Which nsys there is."""
    nsys = machine.nsys()
    if nsys is None:
        return warn("not installed", "--capture jax needs none; its exports (.sqlite) are read without")
    found = f"{'.'.join(map(str, nsys.version[:3])) or 'unknown version'} ({nsys.path})"
    if nsys.version[:2] in NSYS_TROUBLE:
        return warn(found, "its ranges are wrong with CUDA graphs: use 2025.1 or newer")
    return ok(found)
