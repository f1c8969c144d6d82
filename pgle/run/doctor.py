"""`pgle doctor`: is this machine ready to profile, rehearse and run, and what mends it; ``--prove`` runs it all."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from pgle.costs.profile.files import read_profile
from pgle.errors import UserError, many
from pgle.masking import kept_text
from pgle.run.ask.flag_probe import installed, lint_flags
from pgle.run.ask.machine import SMI_QUERY, Check, Machine, fail, ok, read_gpus, warn
from pgle.run.ask.plugins import Repair, repair
from pgle.run.directory.directory import RunDirectory
from pgle.run.directory.manifest import Gpu
from pgle.run.process.environment import user_flags
from pgle.run.stages.pipeline import Capture, Pipeline, PipelineRequest, choose_back_end, run_pipeline
from pgle.run.stages.simulated import SimulatedBackEnd
from pgle.run.stages.stage import StageRequest
from pgle.xla.flags.catalogue import catalogue, nearest, release
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

WITHOUT = "rehearse, convert, verify and the simulated capture work without"
IN_CONTAINER = (
    "start the container with its GPUs: docker run --gpus all, podman run --device nvidia.com/gpu=all, "
    "apptainer exec --nv, in Kubernetes the resource nvidia.com/gpu"
)
CONTAINER_FILES = ("/.dockerenv", "/run/.containerenv")
CONTAINER_VARIABLES = ("container", "KUBERNETES_SERVICE_HOST", "APPTAINER_CONTAINER", "SINGULARITY_CONTAINER")
NVIDIA_VENDOR = "0x10de"
DISPLAY_CLASS = "0x03"  # PCI classes 0x0300 and 0x0302: what NVIDIA's GPUs are

_REMEDIES = {
    r"version mismatch": "the driver was updated while its old kernel module ran: reboot, or unload and load the "
    "nvidia modules; a container keeps the old library: restart it",
    r"couldn't communicate with the NVIDIA driver|Driver Not Loaded": "the kernel module is not loaded: 'modprobe "
    "nvidia', and see dmesg why not (new kernel, Secure Boot)",
    r"Insufficient Permissions|No permission|Permission denied": "this user may not open /dev/nvidia*: see their group "
    "(ls -l /dev/nvidia*), or ask the scheduler for GPUs",
    r"NVML: Unknown Error": "typical of a container that lost its devices (systemd reloaded cgroups): restart the "
    "container; else see dmesg",
    r"NVIDIA-SMI couldn't find libnvidia-ml|libnvidia-ml\.so|NVML: .*Not Found": "the driver's libraries are missing; "
    "in a container set NVIDIA_DRIVER_CAPABILITIES=compute,utility",
    r"is lost|fallen off the bus|device handle": "a GPU failed: look for Xid in dmesg; reset or reboot the host, or "
    "leave it out with CUDA_VISIBLE_DEVICES",
    r"No devices were found": "the driver runs and sees none: look for NVRM in dmesg; in a job ask the scheduler for "
    "GPUs (srun --gpus)",
    r"did not answer": "the driver hangs: look for Xid in dmesg, and reboot the host",
}
"""What nvidia-smi prints (error strings of NVML and its own), as patterns, and what helps."""


def check_gpus(machine: Machine, gpus: tuple[Gpu, ...]) -> Check:
    """Which GPUs there are."""
    if not gpus:
        return _check_no_gpu(machine)
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
    version = gpus[0].driver if gpus else _loaded_driver(machine)
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


def _check_no_gpu(machine: Machine) -> Check:
    """What to say where nvidia-smi lists no GPU."""
    if machine.which("nvidia-smi"):
        text = machine.ask(SMI_QUERY)[1].strip()
        first = text.partition("\n")[0].strip() or "it printed nothing"
        known = (remedy for pattern, remedy in _REMEDIES.items() if re.search(pattern, text, re.IGNORECASE))
        return fail(f"nvidia-smi fails: {first}", next(known, "run nvidia-smi, and see dmesg"))
    driver = _loaded_driver(machine)
    if devices := machine.glob("/dev/nvidia[0-9]*"):
        found = f"{', '.join(devices[:4])}{', …' if len(devices) > 4 else ''}, but no nvidia-smi to ask for them"
        remedy = "install the driver's utilities; in a container set NVIDIA_DRIVER_CAPABILITIES=compute,utility"
        return fail(found, f"{remedy} and start it again")
    present = driver or _on_bus(machine)
    if _in_container(machine):
        host = f"; its host has {f'driver {driver}' if driver else 'an NVIDIA GPU'}" if present else ""
        return warn(f"none in this container{host}", f"{IN_CONTAINER}; {WITHOUT}")
    if driver:
        found = f"driver {driver} is loaded, but there is no /dev/nvidia0 and no nvidia-smi"
        return fail(found, "install the driver's utilities, then run nvidia-smi as root once")
    if present:
        return warn("an NVIDIA GPU on the PCI bus, and no driver", f"install NVIDIA's driver; {WITHOUT}")
    return warn("none", f"profile and perf need one; {WITHOUT}")


def _loaded_driver(machine: Machine) -> str:
    """Version of the loaded driver; containers see their host's."""
    match = re.search(r"\s(\d+\.\d+(?:\.\d+)?)\s", machine.read("/proc/driver/nvidia/version") or "")
    return match[1] if match else ""


def _on_bus(machine: Machine) -> bool:
    return any(
        (machine.read(path) or "").strip() == NVIDIA_VENDOR
        and (machine.read(path.removesuffix("vendor") + "class") or "").startswith(DISPLAY_CLASS)
        for path in machine.glob("/sys/bus/pci/devices/*/vendor")
    )


def _in_container(machine: Machine) -> bool:
    return any(machine.read(path) is not None for path in CONTAINER_FILES) or any(
        machine.environ.get(name) for name in CONTAINER_VARIABLES
    )


OLDEST_REHEARSAL = "0.4.38"  # oldest jaxlib that `pgle rehearse` takes


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
    if not found or release(jaxlib) < release(OLDEST_REHEARSAL):
        found = f"{found or 'none'}: cannot compile without a GPU"
        return warn(found, "use another jaxlib to rehearse")
    return ok(f"{found}: usable for rehearsals")


def check_flags(machine: Machine) -> Check:
    """Whether the user's XLA_FLAGS are accepted."""
    try:
        flags = user_flags(machine.environ)
        if not flags.flags and not flags.findings:
            return ok("not set")
        result = lint_flags(flags, python=machine.python)
    except UserError as error:
        return fail(error.what, error.remedy or "")
    for level, marked in (("error", fail), ("warning", warn)):
        for finding in result.findings:
            if finding.level == level:
                return marked(finding.line(), "'pgle flags lint' says all")
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


PLUGIN = "CUDA plugin"
TO_REHEARSE = ("jax", PLUGIN, "XLA_FLAGS", "disk", "run directory")
"""Checks that matter where there is no GPU."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """All checks, in the order of the table."""

    checks: tuple[Check, ...]  # what was looked at
    gpus: tuple[Gpu, ...]  # of this host

    @property
    def keeps_from_profiling(self) -> tuple[str, ...]:
        """Why this machine cannot profile or measure: names of checks, ``GPUs`` if it has no GPU; empty: it can."""
        return tuple(dict.fromkeys([*([] if self.gpus else ["GPUs"]), *self._names("fail")]))

    @property
    def keeps_from_rehearsing(self) -> tuple[str, ...]:
        """Why this machine cannot compile for GPUs and simulate them: names of checks; empty: it can."""
        plugin = [name for name in self._names("warn") if name == PLUGIN]
        return (*(name for name in self._names("fail") if name in TO_REHEARSE), *plugin)

    @property
    def ok(self) -> bool:
        """Whether nothing fails; warnings are allowed."""
        return not self._names("fail")

    def _names(self, verdict: str) -> list[str]:
        return [check.name for check in self.checks if check.verdict == verdict]


def diagnose(machine: Machine, run_dir: str = ".") -> Diagnosis:
    """Look at everything, for runs that are kept in `run_dir`; a check that breaks is a warning, never a traceback."""
    gpus = read_gpus(machine)
    probes: tuple[tuple[str, Callable[[], Check]], ...] = (
        ("GPUs", lambda: check_gpus(machine, gpus)),
        ("driver", lambda: check_driver(machine, gpus)),
        ("CUPTI", lambda: check_counters(machine)),
        ("DCGM", lambda: check_monitors(machine)),
        ("profilers", lambda: check_profilers(machine)),
        ("nsys", lambda: check_nsys(machine)),
        ("jax", lambda: check_jax(machine)),
        (PLUGIN, lambda: check_plugin(machine)),
        ("XLA_FLAGS", lambda: check_flags(machine)),
        ("variables", lambda: check_variables(machine)),
        ("XLA log", lambda: check_log(machine)),
        ("compilation cache", lambda: check_compilation_cache(machine)),
        ("disk", lambda: check_disk(machine, run_dir)),
        ("run directory", lambda: check_run_dir(machine, run_dir)),
        ("limits", lambda: check_limits(machine)),
        ("shared memory", lambda: check_shared_memory(machine, gpus)),
    )
    with ThreadPoolExecutor(len(probes)) as pool:  # nsys and jaxlib are asked at the same time
        return Diagnosis(tuple(pool.map(lambda probe: _safely(*probe), probes)), gpus)


def _safely(name: str, probe: Callable[[], Check]) -> Check:
    try:
        check = probe()
        return replace(check, name=name, found=kept_text(check.found), remedy=kept_text(check.remedy))
    except Exception as error:
        return Check(name, "warn", f"could not be looked at ({type(error).__name__}: {error})", "please report this")


@dataclass(frozen=True, slots=True)
class Mended:
    """What was to be mended, and what came of it."""

    repair: Repair | None  # None where nothing is wrong
    was_run: bool  # whether the commands were run
    # before, after: versions of jax, jaxlib and the plugin's wheels
    before: Mapping[str, str]
    after: Mapping[str, str]
    failed: str = ""  # what the command that failed printed last; empty where none did

    @property
    def ok(self) -> bool:
        """Whether nothing is left to do, and jax is what it was."""
        kept = all(self.before.get(name) == self.after.get(name) for name in ("jax", "jaxlib"))
        return self.repair is None or (self.was_run and not self.failed and kept)


def mend(machine: Machine, *, yes: bool) -> Mended:
    """Find the commands; run them where `yes` says so."""
    found = repair(machine.installed.versions, machine.python)
    before = _of_jax(machine.installed.versions)
    if found is None or not yes:
        return Mended(found, False, before, before)
    failed = ""
    for command in found.commands:
        done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False)
        if done.returncode:
            lines = [line for line in done.stderr.splitlines() if line.strip()]
            failed = lines[-1] if lines else f"{command[0]} ended with {done.returncode}"
            break
    return Mended(found, True, before, _of_jax(installed(machine.python).versions), failed)


def _of_jax(versions: Mapping[str, str]) -> dict[str, str]:
    return {name: version for name, version in versions.items() if name.startswith("jax")}


PROGRAM = ("-m", "pgle.workloads.overlap")
"""Two gathers and an independent chain of matmuls: two seconds on a GPU, and its schedule changes with a profile."""
DEVICES = 4


@dataclass(frozen=True, slots=True)
class Link:
    """One link of the chain."""

    name: str  # of the link
    ok: bool  # whether it held
    proves: str  # what that shows
    found: str  # the evidence


@dataclass(frozen=True, slots=True)
class Proof:
    """The chain."""

    links: tuple[Link, ...]  # in order
    simulated: bool  # whether the GPU is; then its times are of the simulation
    run: Path  # the run directory, which is kept

    @property
    def ok(self) -> bool:
        """Whether every link held."""
        return all(link.ok for link in self.links)


def prove(run: Path, capture: Capture, target: str, announce: Callable[[str], None]) -> Proof:
    """Run all stages of `pgle run` on our small program, and look at what each left.

    Args:
        run: a new run directory.
        capture: as of `pgle run`.
        target: the GPU to simulate on a machine without GPUs.
        announce: as of `run_pipeline`.
    """
    if run.exists() and any(run.iterdir()):
        raise UserError("is not empty", where=run, remedy="choose a new --run-dir")
    directory = RunDirectory(run)
    back_end = choose_back_end(capture, target=target, devices=DEVICES, topology=None, choose=None, quiet_s=20.0)
    simulated = isinstance(back_end, SimulatedBackEnd)
    words = (sys.executable, *PROGRAM, *(("--devices", str(DEVICES), "--compile-only") if simulated else ()))
    stage = StageRequest("profile", words, directory, "sync", flags=(), stdout=2)
    result = run_pipeline(PipelineRequest(stage, back_end), announce)
    return Proof(links(result), simulated, run)


def links(result: Pipeline) -> tuple[Link, ...]:
    """What each stage left, as evidence."""
    run = result.run
    profile = read_profile(run.profile)
    traces = run.stage("profile").trace_files()
    size = sum(path.stat().st_size for path in traces)
    modules = result.coverage.main
    collectives = [module.collectives for module in modules]
    covered = sum(share.covered for share in collectives), sum(share.total for share in collectives)
    time = min((module.time.value or 0.0 for module in modules), default=0.0)
    name = modules[0].module if modules else "no module"
    verdict = next((item.verdict for item in result.stages if item.verdict), None)
    compared = result.comparison
    change = f"{compared.verdict}, {compared.ratio - 1:+.1%}" if compared else "; ".join(result.warnings)
    traced = f"{many(len(traces), 'trace')}, {size:,} bytes"
    looked_up, use = f"{covered[0]:g} of {covered[1]:g} collectives", verdict.why if verdict else "no verdict"
    return (
        Link("capture", size > 0, "a profiler records the steps of a program here", traced),
        Link("conversion", len(profile) > 0, "kernels of steady steps become costs", f"{len(profile)} costs of {name}"),
        Link("names", 0 < covered[1] == covered[0], "costs have the names that the scheduler looks up", looked_up),
        Link("coverage", result.covered, "XLA will find the costs of this module", f"{time:.1%} of its time"),
        Link("use", result.used, "XLA scheduled with these costs, by its own schedule and log", use),
        Link("step times", compared is not None, "runs without and with the profile can be compared", change),
    )
