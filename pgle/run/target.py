"""Which GPU a dump was compiled for, what says so, and whether ``--target`` contradicts it."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from pgle.errors import UserError
from pgle.xla.hlo.module import Module, capability_in_name
from pgle.xla.targets import (
    Hardware,
    Target,
    by_capability,
    description_beside,
    find_hardware,
    load_target,
    shipped_name,
    target_beside,
)

TargetFrom: TypeAlias = Literal["option", "description", "file name", "nothing"]
"""What names the GPU of a module: ``--target``; XLA's description next to the dump; the dump's
name, by compute capability; nothing, and an H100 is assumed.
"""
SAYS = {
    "description": "by the description next to it",
    "file name": "by the sm_… of its name",
}
"""In words."""


@dataclass(frozen=True)
class GpuFound:
    """The GPU that figures are for."""

    hardware: Hardware
    by: TargetFrom
    doubt: str = ""  # one line, if the dump is of another generation than ``--target``


def gpu_of(source: str, named: Target | None = None) -> GpuFound:
    """The GPU of a dump, or the named one.

    Args:
        source: path of the dump, ``module_0042.jit_step.….hlo.pb``.
        named: of ``--target``; None: as the dump says.
    """
    described, capability = target_beside(source), capability_in_name(source)
    if described is not None:
        found = GpuFound(find_hardware(described), "description")
        capability = described.compute_capability
    else:
        found = GpuFound(
            by_capability(capability), "nothing" if capability is None else "file name"
        )
    if named is None:
        return found
    return GpuFound(find_hardware(named), "option", _doubt(found, capability, named))


def _doubt(found: GpuFound, capability: tuple[int, int] | None, named: Target) -> str:
    if capability is None or capability == named.compute_capability:
        return ""
    major, minor = capability
    return (
        f"the dump was compiled for sm_{major}.{minor} ({found.hardware.name}), "
        f"{SAYS[found.by]}, and --target {named.name} is another generation: its kernels and "
        "schedule differ there"
    )


def same_gpu_of(module: Module, named: Target | None) -> GpuFound:
    """The GPU of a module, which may be named too.

    Raises:
        UserError: the module was compiled for another generation than the named one.
    """
    found = gpu_of(module.source, named)
    if found.doubt:
        remedy = "leave --target out, or give the dump of that GPU"
        raise UserError(found.doubt, where=module.source, remedy=remedy)
    return found


def dump_in(path: Path) -> str:
    """The file that says the GPU: a module's, or of a folder the first dump whose name has a
    compute capability.
    """
    if not path.is_dir():
        return str(path)
    files = sorted(file for file in path.iterdir() if file.is_file())
    named = [file for file in files if capability_in_name(file.name) is not None]
    return str((named or [path / "module"])[0])


def target_named_by(source: str) -> str:
    """What `load_target` takes for the GPU of a dump: a name, or the path of its description.

    Empty if the dump says none.
    """
    file = description_beside(source)
    if file is not None:
        with suppress(UserError):
            return shipped_name(load_target(str(file))) or str(file)
    capability = capability_in_name(source)
    return "" if capability is None else by_capability(capability).name
