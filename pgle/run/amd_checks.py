"""The checks of `pgle doctor` on machines with AMD GPUs: devices, permissions and driver."""

from __future__ import annotations

from pgle.errors import with_counts
from pgle.run.ask.machine import WITHOUT, Machine, MachineCheck, fail, ok, warn
from pgle.run.directory.manifest import Gpu
from pgle.xla.vendors import AMD

COMPUTE = "/dev/kfd"  # the device file that ROCm opens for all GPUs of a machine
IN_CONTAINER = (
    "start the container with its GPUs: docker run --device /dev/kfd --device /dev/dri "
    "--group-add video --group-add render --ipc host --security-opt seccomp=unconfined, "
    "apptainer exec --rocm, in Kubernetes the resource amd.com/gpu"
)


def check_amd_gpus(
    machine: Machine, gpus: tuple[Gpu, ...], *, in_container: bool
) -> MachineCheck:
    """Return which AMD GPUs exist, and whether this process may use them."""
    if not gpus:
        remedy = IN_CONTAINER if in_container else "profile and perf need one"
        return warn("none of AMD's", f"{remedy}; {WITHOUT}")
    found = with_counts(f"{gpu.name}, {gpu.memory_mib / 1024:.0f} GiB" for gpu in gpus)
    for variable in AMD.presence.hiding_variables:
        value = machine.environ.get(variable)
        if value is not None and value.strip() in ("", "-1"):
            return warn(
                f"{found}, hidden by {variable}='{value}'",
                f"unset {variable}; in a job ask the scheduler for GPUs",
            )
    if not machine.glob(COMPUTE):
        return fail(f"{found}, but no {COMPUTE}", IN_CONTAINER)
    if not machine.writable(COMPUTE):
        remedy = "add this user to the groups render and video, and log in again"
        return fail(f"{found}, but {COMPUTE} may not be opened", remedy)
    return ok(found)


def check_amd_driver(machine: Machine, gpus: tuple[Gpu, ...]) -> MachineCheck:
    """Return whether the amdgpu driver is loaded."""
    if gpus:
        version = gpus[0].driver
        return ok(f"amdgpu {version}" if version else "amdgpu of this Linux")
    return ok("none, and no GPU of AMD")
