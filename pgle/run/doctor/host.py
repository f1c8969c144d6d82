"""Checks of the host: disk, permissions, limits, shared memory."""

from __future__ import annotations

from pgle.run.doctor.world import Check, World
from pgle.run.experiment.manifest import Gpu

GIB = 1 << 30
ENOUGH_DISK = 20 * GIB
"""Three profiled steps of a large model gave 118 MB of trace for each process; dumps of modules come on top."""
LITTLE_DISK = 2 * GIB
ENOUGH_FILES = 4096
ENOUGH_SHARED_MEMORY = GIB
"""NCCL shares buffers between processes of a host in /dev/shm; containers often get 64 MiB."""


def check_disk(world: World, run_dir: str) -> Check:
    """Whether there is room for traces and dumps."""
    free = world.free_bytes(run_dir)
    found = f"{free / GIB:.0f} GiB free for {run_dir}"
    if free < LITTLE_DISK:
        return Check("disk", "fail", found, "free some, or choose another --run-dir")
    if free < ENOUGH_DISK:
        return Check("disk", "warn", found, "traces of large models take gigabytes: choose another --run-dir")
    return Check("disk", "ok", found)


def check_run_dir(world: World, run_dir: str) -> Check:
    """Whether the run directory can be made and written."""
    if world.writable(run_dir):
        return Check("run directory", "ok", run_dir)
    return Check("run directory", "fail", f"{run_dir} cannot be written", "choose another --run-dir")


def check_limits(world: World) -> Check:
    """Limits that stop large programs: open files, locked memory."""
    files, memory = world.limit("RLIMIT_NOFILE"), world.limit("RLIMIT_MEMLOCK")
    locked = "unlimited" if memory == -1 else f"{memory >> 10} KiB"
    found = f"open files {files if files != -1 else 'unlimited'}, locked memory {locked}"
    if 0 <= files < ENOUGH_FILES:
        return Check("limits", "warn", found, f"ulimit -n {ENOUGH_FILES}, or the process may run out of files")
    if memory != -1 and memory < 64 << 20 and world.glob("/dev/infiniband/uverbs*"):
        return Check("limits", "warn", found, "ulimit -l unlimited: InfiniBand registers memory by locking it")
    return Check("limits", "ok", found)


def check_shared_memory(world: World, gpus: tuple[Gpu, ...]) -> Check:
    """Whether NCCL has shared memory between the processes of this host."""
    free = world.free_bytes("/dev/shm")
    found = f"{free / GIB:.1f} GiB free in /dev/shm"
    if len(gpus) > 1 and free < ENOUGH_SHARED_MEMORY:
        return Check("shared memory", "warn", found, "NCCL needs it between processes: docker run --shm-size=8g")
    return Check("shared memory", "ok", found)
