"""Why there is no GPU: none in the machine, none in the container, or a driver that does not work."""

from __future__ import annotations

import re

from pgle.run.doctor.machine import SMI_QUERY, Check, Machine, fail, warn

WITHOUT = "rehearse, convert, verify and the simulated capture work without"
IN_CONTAINER = (
    "start the container with its GPUs: docker run --gpus all, podman run --device nvidia.com/gpu=all, "
    "apptainer exec --nv, in Kubernetes the resource nvidia.com/gpu"
)
CONTAINER_FILES = ("/.dockerenv", "/run/.containerenv")
CONTAINER_VARIABLES = ("container", "KUBERNETES_SERVICE_HOST", "APPTAINER_CONTAINER", "SINGULARITY_CONTAINER")
NVIDIA_VENDOR = "0x10de"
DISPLAY_CLASS = "0x03"  # PCI classes 0x0300 and 0x0302: what NVIDIA's GPUs are

# What nvidia-smi prints (texts of NVML's error strings and of nvidia-smi itself), and what helps.
_REMEDIES: tuple[tuple[str, str], ...] = (
    (
        r"version mismatch",
        "the driver was updated while its old kernel module ran: reboot, or unload and load the nvidia modules; "
        "a container keeps the old library: restart it",
    ),
    (
        r"couldn't communicate with the NVIDIA driver|Driver Not Loaded",
        "the kernel module is not loaded: 'modprobe nvidia', and see dmesg why not (new kernel, Secure Boot)",
    ),
    (
        r"Insufficient Permissions|No permission|Permission denied",
        "this user may not open /dev/nvidia*: see their group (ls -l /dev/nvidia*), or ask the scheduler for GPUs",
    ),
    (
        r"NVML: Unknown Error",
        "typical of a container that lost its devices (systemd reloaded cgroups): restart the container; "
        "else see dmesg",
    ),
    (
        r"NVIDIA-SMI couldn't find libnvidia-ml|libnvidia-ml\.so|NVML: .*Not Found",
        "the driver's libraries are missing; in a container set NVIDIA_DRIVER_CAPABILITIES=compute,utility",
    ),
    (
        r"is lost|fallen off the bus|device handle",
        "a GPU failed: look for Xid in dmesg; reset or reboot the host, or leave it out with CUDA_VISIBLE_DEVICES",
    ),
    (
        r"No devices were found",
        "the driver runs and sees none: look for NVRM in dmesg; in a job ask the scheduler for GPUs (srun --gpus)",
    ),
    (r"did not answer", "the driver hangs: look for Xid in dmesg, and reboot the host"),
)


def check_no_gpu(machine: Machine) -> Check:
    """What to say where nvidia-smi lists no GPU."""
    if machine.which("nvidia-smi"):
        return _failed(machine.ask(SMI_QUERY)[1].strip())
    driver = loaded_driver(machine)
    devices = machine.glob("/dev/nvidia[0-9]*")
    if devices:
        found = f"{', '.join(devices[:4])}{', …' if len(devices) > 4 else ''}, but no nvidia-smi to ask for them"
        remedy = (
            "install the driver's utilities; in a container set NVIDIA_DRIVER_CAPABILITIES=compute,utility "
            "and start it again"
        )
        return fail(found, remedy)
    present = driver or _on_bus(machine)
    if _in_container(machine):
        if present:
            host = f"driver {driver}" if driver else "an NVIDIA GPU"
            return warn(f"none in this container; its host has {host}", f"{IN_CONTAINER}; {WITHOUT}")
        return warn("none in this container", f"{IN_CONTAINER}; {WITHOUT}")
    if driver:
        found = f"driver {driver} is loaded, but there is no /dev/nvidia0 and no nvidia-smi"
        return fail(found, "install the driver's utilities, then run nvidia-smi as root once")
    if present:
        return warn("an NVIDIA GPU on the PCI bus, and no driver", f"install NVIDIA's driver; {WITHOUT}")
    return warn("none", f"profile and perf need one; {WITHOUT}")


def _failed(text: str) -> Check:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    said = lines[0] if lines else "it printed nothing"
    remedy = next((remedy for pattern, remedy in _REMEDIES if re.search(pattern, text, re.IGNORECASE)), "")
    return fail(f"nvidia-smi fails: {said}", remedy or "run nvidia-smi, and see dmesg")


def loaded_driver(machine: Machine) -> str:
    """Version of the loaded driver; containers see that of their host."""
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
