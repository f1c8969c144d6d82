"""Checks of Python packages, the CUDA plugin, flags, caches and the host: disk, permissions, limits, shared memory."""

from __future__ import annotations

from pathlib import Path

from pgle.errors import UserError
from pgle.run.ask.flag_probe import lint_flags
from pgle.run.ask.machine import Check, Machine, fail, ok, warn
from pgle.run.ask.plugins import repair
from pgle.run.directory.manifest import Gpu
from pgle.run.process.environment import user_flags
from pgle.xla.flags.catalogue import catalogue, nearest, release
from pgle.xla.flags.text import as_bool

OLDEST_REHEARSAL = "0.4.34"  # first plugin that compiles without a GPU (0.4.36 does not)


def check_jax(machine: Machine) -> Check:
    """Whether jax, jaxlib and the CUDA plugin fit together."""
    versions = machine.installed.versions
    jax, jaxlib = versions.get("jax"), versions.get("jaxlib")
    if not jax or not jaxlib:
        missing = " and ".join(name for name in ("jax", "jaxlib") if name not in versions)
        return fail(f"no {missing} in {machine.python}", "name the Python of your program: --python PATH")
    found = f"jax {jax}, jaxlib {jaxlib}, Python {versions.get('python', '?')}"
    if release(jaxlib) > release(jax):
        return fail(f"{found}: jaxlib is newer, jax will not import", f"pip install jax=={jaxlib}")
    return ok(found)


def check_plugin(machine: Machine) -> Check:
    """Whether the CUDA plugin is there, complete, alone and of jaxlib's version."""
    jaxlib = machine.installed.jaxlib
    found = ", ".join(f"{name} {version}" for name, version in machine.installed.plugins.items())
    mended = repair(machine.installed.versions, machine.python)
    if mended is not None:
        what = f"{found}: {mended.what}" if found else "none: no GPU and no rehearsal"
        return (fail if mended.fails else warn)(what, f"{mended.line}, or: pgle doctor --fix")
    if not found or release(jaxlib) < release(OLDEST_REHEARSAL) or jaxlib == "0.4.36":
        found = f"{found or 'none'}: cannot compile without a GPU"
        return warn(found, "use another jaxlib to rehearse")
    return ok(f"{found}: usable for rehearsals")


def check_ptxas(machine: Machine) -> Check:
    """Whether there is a ptxas, which code generation needs (rehearsals do not)."""
    places = [machine.environ.get(name, "") for name in ("CUDA_HOME", "CUDA_PATH", "CUDA_ROOT")] + ["/usr/local/cuda"]
    site = str(Path(machine.installed.jaxlib_at or "/nowhere"))
    patterns = [f"{place}/bin/ptxas" for place in places if place]
    patterns += [f"{site}/nvidia/cuda_nvcc/bin/ptxas", f"{site}/nvidia/cu1*/bin/ptxas"]
    found = machine.which("ptxas") or next((path for pattern in patterns for path in machine.glob(pattern)), None)
    if found:
        return ok(found)
    return warn("none: rehearsals stop after scheduling, which suffices", "pip install nvidia-cuda-nvcc")


def check_packages(machine: Machine) -> Check:
    """Whether Python, numpy and protobuf are new enough for us."""
    versions = machine.installed.versions
    needed = {"python": "3.11", "numpy": "1.26", "protobuf": "4.25"}
    found = ", ".join(f"{name} {versions[name]}" for name in needed if name in versions)
    old = [name for name, least in needed.items() if name in versions and release(versions[name]) < release(least)]
    if old:
        what = ", ".join(f"{name} {needed[name]} or newer" for name in old)
        return warn(found, f"pgle itself needs {what}; it may run from another Python (--python)")
    return ok(found)


def check_flags(machine: Machine) -> Check:
    """Whether the user's XLA_FLAGS are accepted."""
    try:
        flags = user_flags(machine.environ)
        if not flags.flags and not flags.findings:
            return ok("not set")
        result = lint_flags(flags, python=machine.python)
    except UserError as error:
        return fail(error.what, error.remedy or "")
    errors = [finding for finding in result.findings if finding.level == "error"]
    warnings = [finding for finding in result.findings if finding.level == "warning"]
    if errors:
        return fail(errors[0].line(), "'pgle flags lint' says all")
    if warnings:
        return warn(warnings[0].line(), "'pgle flags lint' says all")
    return ok(f"{result.flags} flags accepted by jaxlib {result.jaxlib}")


def check_log(machine: Machine) -> Check:
    """Whether XLA's lines about the profile will be seen."""
    level = machine.environ.get("TF_CPP_MIN_LOG_LEVEL")
    if level in (None, "0"):
        return ok("pgle sets TF_CPP_MIN_LOG_LEVEL=0" if level is None else "TF_CPP_MIN_LOG_LEVEL=0")
    remedy = "unset TF_CPP_MIN_LOG_LEVEL: yours stays, and hides the lines that confirm a profile"
    return warn(f"TF_CPP_MIN_LOG_LEVEL={level}", remedy)


def check_compilation_cache(machine: Machine) -> Check:
    """What the persistent compilation cache does to profiles."""
    folder = machine.environ.get("JAX_COMPILATION_CACHE_DIR", "")
    if not folder or as_bool(machine.environ.get("JAX_ENABLE_COMPILATION_CACHE")) is False:
        return ok("off")
    if "://" not in folder and not machine.writable(folder):
        return warn(f"{folder} cannot be written", "mend its permissions, or unset it")
    remedy = (
        "its key holds a profile's path, not its content, and a cached executable gives neither log nor dumps: pgle "
        "switches it off in its runs; elsewhere give every profile its own name"
    )
    return warn(folder, remedy)


def check_variables(machine: Machine) -> Check:
    """Variables about PGLE, memory or logging that nobody reads, or that exclude each other."""
    both = ("XLA_PYTHON_CLIENT_MEM_FRACTION", "XLA_CLIENT_MEM_FRACTION")
    if all(machine.environ.get(name) for name in both):
        return fail(f"{' and '.join(both)} are both set: jax will not start", f"unset {both[0]}")
    settings = catalogue()
    for name in sorted(machine.environ):
        setting = settings.get(name)
        if setting is not None and setting.reader == "nobody":
            return warn(f"{name} is read by nobody", f"use {setting.use}")
        if setting is None and name.startswith("JAX_") and "PGLE" in name:
            near = nearest(name, [item for item in settings if item.startswith("JAX_")])
            remedy = f"did you mean {near[0]}?" if near else "'pgle flags list PGLE' shows what there is"
            return warn(f"{name} is no setting of JAX that we know", remedy)
    return ok("none that is without effect")


GIB = 1 << 30
ENOUGH_DISK = 20 * GIB
"""Three profiled steps of a large model gave 118 MB of trace for each process; dumps of modules come on top."""
LITTLE_DISK = 2 * GIB
ENOUGH_FILES = 4096
ENOUGH_SHARED_MEMORY = GIB  # NCCL shares buffers between processes of a host in /dev/shm; containers often get 64 MiB


def check_disk(machine: Machine, run_dir: str) -> Check:
    """Whether there is room for traces and dumps."""
    free = machine.free_bytes(run_dir)
    found = f"{free / GIB:.0f} GiB free for {run_dir}"
    if free < LITTLE_DISK:
        return fail(found, "free some, or choose another --run-dir")
    if free < ENOUGH_DISK:
        return warn(found, "traces of large models take gigabytes: choose another --run-dir")
    return ok(found)


def check_run_dir(machine: Machine, run_dir: str) -> Check:
    """Whether the run directory can be made and written."""
    if machine.writable(run_dir):
        return ok(run_dir)
    return fail(f"{run_dir} cannot be written", "choose another --run-dir")


def check_limits(machine: Machine) -> Check:
    """Limits that stop large programs: open files, locked memory."""
    files, memory = machine.limit("RLIMIT_NOFILE"), machine.limit("RLIMIT_MEMLOCK")
    locked = "unlimited" if memory == -1 else f"{memory >> 10} KiB"
    found = f"open files {files if files != -1 else 'unlimited'}, locked memory {locked}"
    if 0 <= files < ENOUGH_FILES:
        return warn(found, f"ulimit -n {ENOUGH_FILES}, or the process may run out of files")
    if memory != -1 and memory < 64 << 20 and machine.glob("/dev/infiniband/uverbs*"):
        return warn(found, "ulimit -l unlimited: InfiniBand registers memory by locking it")
    return ok(found)


def check_shared_memory(machine: Machine, gpus: tuple[Gpu, ...]) -> Check:
    """Whether NCCL has shared memory between the processes of this host."""
    free = machine.free_bytes("/dev/shm")
    found = f"{free / GIB:.1f} GiB free in /dev/shm"
    if len(gpus) > 1 and free < ENOUGH_SHARED_MEMORY:
        return warn(found, "NCCL needs it between processes: docker run --shm-size=8g")
    return ok(found)
