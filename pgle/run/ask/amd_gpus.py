"""AMD's GPUs of this machine, from Linux's own files. This needs no program of ROCm."""

from __future__ import annotations

import re
from collections.abc import Callable

from pgle.run.directory.manifest import Gpu
from pgle.xla.targets import by_architecture
from pgle.xla.vendors import AMD

NODES = "/sys/class/kfd/kfd/topology/nodes/*/properties"
"""One file for each CPU and GPU that the compute part of the driver lists
(https://docs.kernel.org/gpu/amdgpu).
"""
MEMORY = "mem_banks/0/properties"  # file next to it with the device memory
#: exists for AMD's own package; the driver of Linux has none
DRIVER = "/sys/module/amdgpu/version"


def read_amd_gpus(
    read: Callable[[str], str | None], glob: Callable[[str], tuple[str, ...]]
) -> tuple[Gpu, ...]:
    """Return the GPUs; empty if there are none.

    Args:
        read: the text of a file, None where it cannot be read.
        glob: paths that match a pattern.
    """
    driver = (read(DRIVER) or "").strip()
    found: list[Gpu] = []
    for path in glob(NODES):
        properties = read(path) or ""
        number = _property(properties, "gfx_target_version")
        if not number:  # a CPU
            continue
        name = _gfx(number)
        architecture = AMD.find_architecture(name)
        memory = read(path.replace("properties", MEMORY)) or ""
        model = by_architecture(architecture).name.upper()
        gpu = Gpu(
            f"AMD {name} ({model} or like it)",
            driver,
            _property(memory, "size_in_bytes") >> 20,
            name,
            str(_property(properties, "unique_id") or ""),
        )
        found.append(gpu)
    return tuple(found)


def _property(text: str, name: str) -> int:
    """Return a number from a list of properties; 0 if it is absent."""
    found = re.search(rf"^{name}\s+(\d+)$", text, re.MULTILINE)
    return 0 if found is None else int(found[1])


def _gfx(number: int) -> str:
    """Convert the driver's number to an architecture: 90402 is gfx942."""
    major, rest = divmod(number, 10_000)
    minor, stepping = divmod(rest, 100)
    return f"gfx{major}{minor:x}{stepping:x}"
