"""`pgle doctor`: check whether this machine is ready to profile, rehearse and run, and name the
remedies. ``--prove`` runs the whole workflow.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from pgle.costs.profile.files import read_profile
from pgle.errors import UserError, as_change, in_percent, many, with_counts
from pgle.masking import kept_text
from pgle.requests.stages import Stage
from pgle.run.amd_checks import check_amd_driver, check_amd_gpus
from pgle.run.ask.amd_gpus import read_amd_gpus
from pgle.run.ask.jaxlib import lint_flags, repair
from pgle.run.ask.machine import (
    SMI_QUERY,
    WITHOUT,
    Level,
    Machine,
    MachineCheck,
    all_gpus,
    fail,
    ok,
    read_gpus,
    warn,
)
from pgle.run.directory.directory import RunDirectory
from pgle.run.directory.manifest import Gpu
from pgle.run.process.flags import user_flags
from pgle.run.stages.pipeline import Capture, Experiment, Pipeline, choose_back_end
from pgle.run.stages.simulated import SimulatedBackEnd
from pgle.run.stages.stage import StageRequest
from pgle.xla.flags.catalogue import catalogue, nearest, release
from pgle.xla.flags.shared import PROFILE, content_of
from pgle.xla.flags.text import as_bool
from pgle.xla.vendors import AMD, NVIDIA, VENDORS, Vendor

NOT_LOADED = "couldn't communicate with the NVIDIA driver|Driver Not Loaded"
_SMI = {
    "version mismatch": (
        "the driver was updated while its old kernel module ran: reboot, or unload and "
        "load the nvidia modules; a container keeps the old library: restart it"
    ),
    NOT_LOADED: "the kernel module is not loaded: 'modprobe "
    "nvidia', and see dmesg why not (new kernel, Secure Boot)",
    "Insufficient Permissions|No permission|Permission denied": (
        "this user may not open /dev/nvidia*: see their group (ls -l /dev/nvidia*), or ask "
        "the scheduler for GPUs"
    ),
    "NVML: Unknown Error": (
        "typical of a container that lost its devices (systemd reloaded cgroups): restart "
        "the container; else see dmesg"
    ),
    r"NVIDIA-SMI couldn't find libnvidia-ml|libnvidia-ml\.so|NVML: .*Not Found": (
        "the driver's libraries are missing; in a container set "
        "NVIDIA_DRIVER_CAPABILITIES=compute,utility"
    ),
    "is lost|fallen off the bus|device handle": (
        "a GPU failed: look for Xid in dmesg; reset or reboot the host, or leave it out "
        "with CUDA_VISIBLE_DEVICES"
    ),
    "No devices were found": (
        "the driver runs and sees none: look for NVRM in dmesg; in a job ask the scheduler "
        "for GPUs (srun --gpus)"
    ),
    "did not answer": "the driver hangs: look for Xid in dmesg, and reboot the host",
    "": "run nvidia-smi, and see dmesg",
}
"""Patterns of what nvidia-smi prints if it fails (NVML's error strings and its own), with remedies.
"""

DCGM_PROCESSES = frozenset({"nv-hostengine", "dcgm-exporter", "dcgmproftester"})
INJECTIONS = (
    "CUDA_INJECTION64_PATH",
    "NVTX_INJECTION64_PATH",
    "NSYS_PROFILING_SESSION_ID",
)
"""Environment variables by which NVIDIA's tools attach to a process."""
# first jaxlib whose profiler can share CUPTI, with CUDA 13.2 (jax-ml/jax#37117)
MULTI_SUBSCRIBER = "0.11.1"


def _profilers(machine: Machine) -> str:
    """Return the variables that attach a profiler to the program, with their values."""
    attached = [name for name in INJECTIONS if machine.environ.get(name)]
    if "nsys" in machine.environ.get("LD_PRELOAD", ""):
        attached.append("LD_PRELOAD")
    if as_bool(machine.environ.get("JAX_ENABLE_PGLE")):
        attached.append("JAX_ENABLE_PGLE")
    return ", ".join(attached)


def _nsys(machine: Machine) -> str:
    nsys = machine.nsys()
    if nsys is None:
        return ""
    version = ".".join(map(str, nsys.version[:3])) or "unknown version"
    return f"{version} ({nsys.path})"


def _cache(machine: Machine) -> str:
    is_off = as_bool(machine.environ.get("JAX_ENABLE_COMPILATION_CACHE")) is False
    return "" if is_off else machine.environ.get("JAX_COMPILATION_CACHE_DIR", "")


_TEXTS: Mapping[str, tuple[Callable[[Machine], str], str]] = {
    "CUPTI": (
        lambda machine: (
            "" if machine.is_root else machine.read("/proc/driver/nvidia/params") or ""
        ),
        "no restriction found",
    ),
    "DCGM": (
        lambda machine: ", ".join(sorted(machine.processes() & DCGM_PROCESSES)),
        "not running",
    ),
    "profilers": (_profilers, "none attached"),
    "nsys": (_nsys, "{}"),
    "XLA log": (
        lambda machine: machine.environ.get("TF_CPP_MIN_LOG_LEVEL", "0"),
        "0 in runs of pgle",
    ),
    "compilation cache": (_cache, "off"),
}
"""Checks that look for symptoms in a text: how to get the text, and what to answer without one."""

_SYMPTOMS: tuple[tuple[str, str, Level, str, str], ...] = (
    (
        "CUPTI",
        "RmProfilingAdminOnly: 1",
        "warn",
        "for administrators only (RmProfilingAdminOnly: 1)",
        "if traces come out empty (CUPTI_ERROR_INSUFFICIENT_PRIVILEGES): put 'options "
        "nvidia NVreg_RestrictProfilingToAdminUsers=0' into /etc/modprobe.d and reload the "
        "driver, or run with SYS_ADMIN",
    ),
    (
        "DCGM",
        ".",
        "warn",
        "{} running",  # DCGM occupies the profiler while it collects profiling metrics
        "if a trace comes out empty: 'dcgmi profile --pause' before the run, '--resume' after it",
    ),
    (
        "profilers",
        ", JAX_ENABLE_PGLE$",
        "fail",
        "another tool and AutoPGLE at once ({})",
        "unset JAX_ENABLE_PGLE, or hand over with JAX_COMPILATION_CACHE_EXPECT_PGLE ('pgle auto')",
    ),
    (
        "profilers",
        "^JAX_ENABLE_PGLE$",
        "warn",
        "{} is on",
        "unset it for 'pgle profile' and 'pgle perf'",
    ),
    (
        "profilers",
        ".",
        "warn",
        "another tool is attached ({})",
        f"do not use --capture jax under it (shared only from jaxlib {MULTI_SUBSCRIBER} "
        "with CUDA 13.2)",
    ),
    (
        "nsys",
        "^$",
        "warn",
        "not installed",
        "--capture jax needs none; its exports (.sqlite) are read without",
    ),
    # Duplicate range ids with CUDA graphs; NVIDIA/JAX-Toolbox has a patch.
    (
        "nsys",
        r"^2024\.[56]\b",
        "warn",
        "{}",
        "its ranges are wrong with CUDA graphs: use 2025.1 or newer",
    ),
    (
        "XLA log",
        "[^0]",
        "warn",
        "TF_CPP_MIN_LOG_LEVEL={}",
        "unset TF_CPP_MIN_LOG_LEVEL: yours stays, and hides the lines that confirm a profile",
    ),
    (
        "compilation cache",
        ".",
        "warn",
        "{}",
        "its key holds a profile's path, not its content, and a cached executable gives "
        "neither log nor dumps: pgle switches it off in its runs; elsewhere give every "
        "profile its own name",
    ),
)
"""Rows of check, pattern in its text, level, finding (braces take the matched text), and remedy."""


def check_text(name: str, machine: Machine) -> MachineCheck:
    """Return the result of a check that looks for symptoms in a text. The first symptom counts."""
    source, fine = _TEXTS[name]
    text = source(machine)
    for check, pattern, verdict, found, remedy in _SYMPTOMS:
        if check == name and re.search(pattern, text):
            return MachineCheck(name, verdict, found.format(text), remedy)
    return MachineCheck(name, "ok", fine.format(text))


HIDING = ("", "-1", "NoDevFiles")
"""Values of CUDA_VISIBLE_DEVICES that hide all GPUs from CUDA. Slurm sets the last one in steps
without GPUs.
"""
IN_CONTAINER = (
    "start the container with its GPUs: docker run --gpus all, podman run --device "
    "nvidia.com/gpu=all, apptainer exec --nv, in Kubernetes the resource nvidia.com/gpu"
)
CONTAINER_FILES = ("/.dockerenv", "/run/.containerenv")
CONTAINER_VARIABLES = (
    "container",
    "KUBERNETES_SERVICE_HOST",
    "APPTAINER_CONTAINER",
    "SINGULARITY_CONTAINER",
)


def check_gpus(machine: Machine, gpus: tuple[Gpu, ...]) -> MachineCheck:
    """Return which GPUs exist."""
    if not gpus:
        return _check_no_gpu(machine)
    names = [
        f"{gpu.name} ({gpu.memory_mib / 1024:.0f} GiB, sm_{gpu.compute_capability})"
        for gpu in gpus
    ]
    found = with_counts(names)
    visible = machine.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None and visible.strip() in HIDING:
        return warn(
            f"{found}, hidden by CUDA_VISIBLE_DEVICES='{visible}'",
            "unset CUDA_VISIBLE_DEVICES; in a job ask the scheduler for GPUs",
        )
    if len(set(names)) > 1:
        return warn(
            found, "costs are of one kind of GPU: choose with CUDA_VISIBLE_DEVICES"
        )
    return ok(found)


def _check_no_gpu(machine: Machine) -> MachineCheck:
    """Return the finding and the remedy if nvidia-smi lists no GPU."""
    driver = _loaded_driver(machine)
    devices = machine.glob("/dev/nvidia[0-9]*")
    if machine.which("nvidia-smi"):
        text = machine.ask(SMI_QUERY)[1].strip()
        first = text.partition("\n")[0].strip() or "it printed nothing"
        if _has_no_nvidia(machine) and re.search(NOT_LOADED, text, re.IGNORECASE):
            return warn(
                "none", f"profile and perf need one; {WITHOUT}{_about_plugin(machine)}"
            )
        known = (
            remedy
            for pattern, remedy in _SMI.items()
            if re.search(pattern, text, re.IGNORECASE)
        )
        return fail(f"nvidia-smi fails: {first}", next(known))
    if devices:
        listed = ", ".join(devices[:4])
        more = ", …" if len(devices) > 4 else ""
        found = f"{listed}{more}, but no nvidia-smi to ask for them"
        remedy = (
            "install the driver's utilities; in a container set "
            "NVIDIA_DRIVER_CAPABILITIES=compute,utility"
        )
        return fail(found, f"{remedy} and start it again")
    if _is_in_container(machine):
        host = f"; its host has driver {driver}" if driver else ""
        return warn(f"none in this container{host}", f"{IN_CONTAINER}; {WITHOUT}")
    if driver:
        return fail(
            f"driver {driver} is loaded, but there is no /dev/nvidia0 and no nvidia-smi",
            "install the driver's utilities, then run nvidia-smi as root once",
        )
    needs = "profile and perf need one, with NVIDIA's driver"
    return warn("none", f"{needs}; {WITHOUT}{_about_plugin(machine)}")


PCI_VENDORS = "/sys/bus/pci/devices/*/vendor"
"""Files in which Linux names the vendor of each PCI device."""


def _has_no_nvidia(machine: Machine) -> bool:
    """Whether the machine lists its devices and none of them is NVIDIA's."""
    makers = [(machine.read(path) or "").strip() for path in machine.glob(PCI_VENDORS)]
    return bool(makers) and NVIDIA.presence.pci not in makers


def _is_in_container(machine: Machine) -> bool:
    """Whether this process runs in a container."""
    files = map(machine.read, CONTAINER_FILES)
    variables = map(machine.environ.get, CONTAINER_VARIABLES)
    return any(text is not None for text in files) or any(variables)


def vendors_of(machine: Machine, wanted: Vendor | None) -> tuple[Vendor, ...]:
    """Return the vendors to check: the wanted one; else those with an installed plugin, and AMD if
    the machine has AMD GPUs; else the first vendor.
    """
    if wanted is not None:
        return (wanted,)
    has_amd = bool(read_amd_gpus(machine.read, machine.glob))
    found = [
        vendor
        for vendor in VENDORS.values()
        if machine.installed.plugins_of(vendor) or (vendor is AMD and has_amd)
    ]
    return tuple(found) or (NVIDIA,)


def _about_plugin(machine: Machine) -> str:
    """Return how to run plain programs with jax's CUDA plugin but no GPU; empty if no advice is
    needed.
    """
    if machine.environ.get("JAX_PLATFORMS"):
        return ""
    return (
        "; set JAX_PLATFORMS=cpu for your own programs here: else jax prints a traceback "
        "of its CUDA plugin"
    )


DRIVER_FOR_CUDA = {"12": 525, "13": 580}
"""Oldest driver branch for each CUDA major (CUDA toolkit release notes, minor version
compatibility).
"""


def _loaded_driver(machine: Machine) -> str:
    """Return the version of the loaded driver. A container sees its host's driver."""
    match = re.search(
        r"\s(\d+\.\d+(?:\.\d+)?)\s", machine.read("/proc/driver/nvidia/version") or ""
    )
    return match[1] if match else ""


def check_driver(machine: Machine, gpus: tuple[Gpu, ...]) -> MachineCheck:
    """Return whether the driver is new enough for the CUDA version of jax's plugin."""
    version = gpus[0].driver if gpus else _loaded_driver(machine)
    if not version:
        if _has_no_nvidia(machine):
            return ok("none, and no GPU")
        return warn("none", "install NVIDIA's driver where the GPUs are")
    for name in machine.installed.plugins_of(NVIDIA):
        cuda = re.sub(r"\D", "", name)
        needed = DRIVER_FOR_CUDA.get(cuda, 0)
        if int(version.split(".")[0]) < needed:
            return fail(
                f"{version}, older than CUDA {cuda} needs ({needed})",
                f"update the driver to {needed} or newer, or install jax[cuda12]",
            )
    return ok(version)


OLDEST_REHEARSAL = "0.4.38"  # oldest jaxlib that `pgle rehearse` supports


def check_jax(machine: Machine) -> MachineCheck:
    """Return whether the versions of jax and jaxlib fit together."""
    versions = machine.installed.versions
    jax = versions.get("jax")
    jaxlib = versions.get("jaxlib")
    if not jax or not jaxlib:
        missing = " and ".join(
            name for name in ("jax", "jaxlib") if name not in versions
        )
        return fail(
            f"no {missing} in {machine.python}",
            "name the Python of your program: --python PATH",
        )
    found = f"jax {jax}, jaxlib {jaxlib}, Python {versions.get('python', '?')}"
    if release(jaxlib) > release(jax):
        return fail(
            f"{found}: jaxlib is newer, jax will not import",
            f"pip install jax=={jaxlib}",
        )
    return ok(found)


def check_plugin(machine: Machine, vendor: Vendor = NVIDIA) -> MachineCheck:
    """Return whether a vendor's plugin is installed, complete, not duplicated, and of jaxlib's
    version.
    """
    plugins = machine.installed.plugins_of(vendor)
    found = ", ".join(f"{name} {version}" for name, version in plugins.items())
    mended = repair(machine.installed.versions, machine.python, vendor)
    if mended is not None:
        what = f"{found}: {mended.what}" if found else "none: no GPU and no rehearsal"
        marked = fail if mended.fails else warn
        return marked(what, mended.line, command=mended.line)
    if not found or release(machine.installed.jaxlib) < release(OLDEST_REHEARSAL):
        return warn(
            f"{found or 'none'}: cannot compile without a GPU",
            "use another jaxlib to rehearse",
        )
    return ok(f"{found}: usable for rehearsals")


def check_flags(machine: Machine) -> MachineCheck:
    """Return whether XLA accepts the user's XLA_FLAGS."""
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
    found = f"{result.flags} flags accepted by jaxlib {result.jaxlib}"
    if profile := flags.value(PROFILE):
        # a rank with another profile, or with none, can hang the job
        found += f"; on every rank the profile must be {content_of(profile)}"
    return ok(found)


def check_variables(machine: Machine) -> MachineCheck:
    """Return which variables about PGLE, memory or logging are ignored or contradict each other."""
    both = ("XLA_PYTHON_CLIENT_MEM_FRACTION", "XLA_CLIENT_MEM_FRACTION")
    if all(machine.environ.get(name) for name in both):
        return fail(
            f"{' and '.join(both)} are both set: jax will not start", f"unset {both[0]}"
        )
    settings = catalogue()
    for name in sorted(machine.environ):
        setting = settings.get(name)
        if setting is not None and setting.reader == "nobody":
            return warn(f"{name} is read by nobody", f"use {setting.use}")
        if setting is None and name.startswith("JAX_") and "PGLE" in name:
            near = nearest(name, [item for item in settings if item.startswith("JAX_")])
            remedy = (
                f"did you mean {near[0]}?"
                if near
                else "'pgle flags list PGLE' shows what there is"
            )
            return warn(f"{name} is no setting of JAX that we know", remedy)
    return ok("none that is without effect")


GIB = 1 << 30
ENOUGH_DISK = 20 * GIB
"""Free space to ask for. Three profiled steps of a large model wrote 118 MB of trace per process,
and module dumps need more.
"""
LITTLE_DISK = 2 * GIB


def check_run_dir(machine: Machine, run_dir: str) -> MachineCheck:
    """Return whether the run directory can be written and has space for traces and dumps."""
    if not machine.writable(run_dir):
        return fail(f"{run_dir} cannot be written", "choose another --run-dir")
    free = machine.free_bytes(run_dir)
    found = f"{free / GIB:.0f} GiB free for {run_dir}"
    if free < LITTLE_DISK:
        return fail(found, "free some, or choose another --run-dir")
    if free < ENOUGH_DISK:
        return warn(
            found, "traces of large models take gigabytes: choose another --run-dir"
        )
    return ok(found)


def plugin_check(vendor: Vendor) -> str:
    """Return the name of the check of a vendor's plugin."""
    return f"{vendor.toolkit} plugin"


PLUGINS = tuple(map(plugin_check, VENDORS.values()))
TO_REHEARSE = ("jax", *PLUGINS, "XLA_FLAGS", "run directory")
"""Checks that matter on a machine without a GPU."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The results of all checks, in the order of the table."""

    checks: tuple[MachineCheck, ...]  # one result per check
    gpus: tuple[Gpu, ...]  # GPUs of this machine

    @property
    def keeps_from_profiling(self) -> tuple[str, ...]:
        """Names of the checks that prevent profiling and measuring on this machine, ``GPUs`` if it
        has no GPU. Empty: it can profile.
        """
        none = () if self.gpus else ("GPUs",)
        return tuple(dict.fromkeys((*none, *self._names("fail"))))

    @property
    def keeps_from_rehearsing(self) -> tuple[str, ...]:
        """Names of the checks that prevent compiling and simulating for GPUs on this machine.
        Empty: it can.
        """
        plugin = [name for name in self._names("warn") if name in PLUGINS]
        return (*(name for name in self._names("fail") if name in TO_REHEARSE), *plugin)

    @property
    def ok(self) -> bool:
        """Whether no check fails. Warnings are allowed."""
        return not self._names("fail")

    def _names(self, verdict: str) -> list[str]:
        return [check.name for check in self.checks if check.verdict == verdict]


def diagnose(
    machine: Machine, run_dir: str = ".", wanted: Vendor | None = None
) -> Diagnosis:
    """Run all checks. A check that raises an error becomes a warning, never a traceback.

    Args:
        machine: the machine to look at.
        run_dir: the directory for run directories.
        wanted: the vendor that the user asks about; None: those of the machine and its plugins.
    """
    vendors = vendors_of(machine, wanted)
    gpus: tuple[Gpu, ...] = ()
    probes: dict[str, Callable[[], MachineCheck]] = {}
    if NVIDIA in vendors:
        gpus = read_gpus(machine.ask)
        probes["GPUs"] = partial(check_gpus, machine, gpus)
        probes["driver"] = partial(check_driver, machine, gpus)
    if AMD in vendors:
        found = read_amd_gpus(machine.read, machine.glob)
        gpus = gpus or found
        probes |= _amd_probes(machine, found, alone=len(vendors) == 1)
    probes |= {
        name: partial(check_text, name, machine)
        for name in _TEXTS
        if NVIDIA in vendors or name not in OF_NVIDIA
    }
    probes["jax"] = lambda: check_jax(machine)
    for vendor in vendors:
        probes[plugin_check(vendor)] = partial(check_plugin, machine, vendor)
    probes["XLA_FLAGS"] = lambda: check_flags(machine)
    probes["variables"] = lambda: check_variables(machine)
    probes["run directory"] = lambda: check_run_dir(machine, run_dir)
    with ThreadPoolExecutor(len(probes)) as pool:  # nsys and jaxlib answer in parallel
        return Diagnosis(tuple(pool.map(_safely, probes, probes.values())), gpus)


OF_NVIDIA = ("CUPTI", "DCGM", "nsys")  # checks of NVIDIA's tools


def _amd_probes(
    machine: Machine, gpus: tuple[Gpu, ...], *, alone: bool
) -> dict[str, Callable[[], MachineCheck]]:
    """Return the checks of AMD GPUs and their driver.

    Args:
        machine: the machine to look at.
        gpus: its AMD GPUs.
        alone: whether no other vendor is checked.
    """
    suffix = "" if alone else " (AMD)"
    in_container = _is_in_container(machine)
    return {
        f"GPUs{suffix}": lambda: check_amd_gpus(
            machine, gpus, in_container=in_container
        ),
        f"driver{suffix}": lambda: check_amd_driver(machine, gpus),
    }


def _safely(name: str, probe: Callable[[], MachineCheck]) -> MachineCheck:
    try:
        check = probe()
        return replace(
            check,
            name=name,
            found=kept_text(check.found),
            remedy=kept_text(check.remedy),
        )
    except Exception as error:
        what = f"could not be looked at ({type(error).__name__}: {error})"
        return MachineCheck(name, "warn", what, "please report this")


PROGRAM = ("-m", "pgle.workloads", "overlap")
"""Two gathers and an independent chain of matmuls. The program takes two seconds on a GPU, and a
profile changes its schedule.
"""
DEVICES = 4
"""The most devices to use. With one GPU there are no collectives, and kernel costs prove the chain.
"""


@dataclass(frozen=True, slots=True)
class ChainLink:
    """One link of the chain from a kernel to a faster step."""

    name: str  # name of the link
    ok: bool  # whether it held
    proves: str  # what a held link proves
    found: str  # the evidence


@dataclass(frozen=True, slots=True)
class Chain:
    """The chain from a kernel to a faster step, link by link."""

    links: tuple[ChainLink, ...]  # in the order of the stages
    simulated: bool  # whether the GPU, and so every time, is simulated
    run: Path  # the run directory, which pgle keeps

    @property
    def ok(self) -> bool:
        """Whether every link held."""
        return all(link.ok for link in self.links)


def prove(
    run: Path, capture: Capture, target: str, announce: Callable[[str], None]
) -> Chain:
    """Run all stages of `pgle run` on a small program of pgle's own, and check what each stage
    left.

    Args:
        run: path of a new run directory.
        capture: how to capture traces, as in `pgle run`.
        target: the GPU to simulate on a machine without GPUs.
        announce: called with one line per stage, as in `Experiment`.
    """
    if run.exists() and any(run.iterdir()):
        raise UserError("is not empty", where=run, remedy="choose a new --run-dir")
    directory = RunDirectory(run)
    asked = Stage(capture=capture, target=target, devices=DEVICES)
    back_end = choose_back_end(asked)
    simulated = isinstance(back_end, SimulatedBackEnd)
    devices = DEVICES if simulated else min(DEVICES, _count_gpus()) or DEVICES
    only = ("--compile-only",) if simulated else ()
    words = (sys.executable, *PROGRAM, "--devices", str(devices), *only)
    stage = StageRequest("profile", words, directory, "sync", flags=(), stdout=2)
    result = Experiment(stage, back_end, announce).run()
    return Chain(links(result), simulated, run)


def _count_gpus() -> int:
    """Return the number of GPUs, by the drivers' tools or by NVIDIA's device files without
    nvidia-smi.
    """
    return len(all_gpus()) or len(list(Path("/dev").glob("nvidia[0-9]*")))


def links(result: Pipeline) -> tuple[ChainLink, ...]:
    """Return what each stage left, as evidence."""
    profile = read_profile(result.run.profile)
    traces = result.run.stage("profile").trace_files()
    size = sum(path.stat().st_size for path in traces)
    modules = result.coverage.main
    wanted = "collectives"
    shares = [module.collectives for module in modules]
    # a program on one GPU has no collectives
    if not any(share.total for share in shares):
        wanted = "instructions"
        shares = [module.count for module in modules]
    covered = sum(share.covered for share in shares)
    total = sum(share.total for share in shares)
    time = min((module.time.value or 0.0 for module in modules), default=0.0)
    name = modules[0].module if modules else "no module"
    verdict = next((item.verdict for item in result.stages if item.verdict), None)
    compared = result.comparison
    change = (
        f"{compared.verdict}, {as_change(compared.ratio - 1)}"
        if compared
        else "; ".join(result.warnings)
    )
    capture = ChainLink(
        "capture",
        size > 0,
        "a profiler records the steps of a program here",
        f"{many(len(traces), 'trace')}, {size:,} bytes",
    )
    conversion = ChainLink(
        "conversion",
        len(profile) > 0,
        "kernels of steady steps become costs",
        f"{len(profile)} costs of {name}",
    )
    names = ChainLink(
        "names",
        0 < total == covered,
        "costs have the names that the scheduler looks up",
        f"{covered:g} of {total:g} {wanted}",
    )
    coverage = ChainLink(
        "coverage",
        result.covered,
        "XLA will find the costs of this module",
        f"{in_percent(time)} of its time",
    )
    use = ChainLink(
        "use",
        result.used,
        "XLA scheduled with these costs, by its own schedule and log",
        verdict.why if verdict else "no verdict",
    )
    step_times = ChainLink(
        "step times",
        compared is not None,
        "runs without and with the profile can be compared",
        change,
    )
    return capture, conversion, names, coverage, use, step_times
