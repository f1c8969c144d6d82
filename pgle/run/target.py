"""Find the GPU that a dump was compiled for, what names it, and whether ``--target`` contradicts
it.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from pgle.errors import UserError
from pgle.xla.hlo.module import Module, architecture_in_name
from pgle.xla.targets import (
    Hardware,
    Target,
    by_architecture,
    description_beside,
    find_hardware,
    load_target,
    shipped_name,
    target_beside,
)
from pgle.xla.vendors import Architecture, maker_of

TargetFrom: TypeAlias = Literal[
    "option", "description", "file name", "trace", "nothing"
]
"""What names the GPU of a module: ``--target``, XLA's description next to the dump, the
architecture in the dump's name, or the trace. If nothing names one, an H100 is assumed.
"""

FROM_WORDS: Mapping[TargetFrom, str] = {
    "option": "by --target",
    "description": "by the description next to the dump",
    "file name": "by the name of the dump",
    "trace": "by the trace",
    "nothing": "assumed: say --target",
}


@dataclass(frozen=True)
class GpuFound:
    """The GPU whose figures an answer uses."""

    hardware: Hardware
    by: TargetFrom
    # one line if the dump's GPU generation differs from that of ``--target``
    doubt: str = ""

    @property
    def by_words(self) -> str:
        """What names the GPU of a dump, in words."""
        if self.by == "description":
            return "by the description next to it"
        return f"by the {maker_of(self.hardware).architecture_words} of its name"


def gpu_of(
    source: str, named: Target | None = None, traced: Architecture | None = None
) -> GpuFound:
    """Return the GPU of a dump, or the named one.

    Args:
        source: path of the dump, such as ``module_0042.jit_step.….hlo.pb``.
        named: the GPU of ``--target``; None: the dump decides.
        traced: architecture of the GPU on which a trace of the dump's program was recorded.
    """
    described = target_beside(source) if source else None
    architecture = architecture_in_name(source)
    if described is not None:
        found = GpuFound(find_hardware(described), "description")
        architecture = described.architecture
    elif architecture is not None:
        found = GpuFound(by_architecture(architecture), "file name")
    elif traced is not None:
        found = GpuFound(by_architecture(traced), "trace")
        architecture = traced
    else:
        found = GpuFound(by_architecture(None), "nothing")
    if named is None:
        return found
    return GpuFound(find_hardware(named), "option", _doubt(found, architecture, named))


def _doubt(found: GpuFound, architecture: Architecture | None, named: Target) -> str:
    if architecture is None or architecture == named.architecture:
        return ""
    return (
        f"the dump was compiled for {architecture.name} ({found.hardware.name}), "
        f"{found.by_words}, and --target {named.name} is another generation: its kernels and "
        "schedule differ there"
    )


def same_gpu_of(module: Module, named: Target | None) -> GpuFound:
    """Return the GPU of a module, which may also be named.

    Raises:
        UserError: the module was compiled for another generation than the named one.
    """
    found = gpu_of(module.source, named)
    if found.doubt:
        raise UserError(
            found.doubt,
            where=module.source,
            remedy="leave --target out, or give the dump of that GPU",
        )
    return found


def dump_in(path: Path) -> str:
    """Return the file that identifies the GPU: the module itself, or in a folder the first dump
    whose name has an architecture.
    """
    if not path.is_dir():
        return str(path)
    files = sorted(file for file in path.iterdir() if file.is_file())
    named = [file for file in files if architecture_in_name(file.name) is not None]
    return str((named or [path / "module"])[0])


def target_named_by(source: str) -> str:
    """Return the GPU of a dump in a form for `load_target`: a name, or the path of its description.

    Empty if the dump does not identify the GPU.
    """
    file = description_beside(source)
    if file is not None:
        with suppress(UserError):
            return shipped_name(load_target(str(file))) or str(file)
    architecture = architecture_in_name(source)
    return "" if architecture is None else by_architecture(architecture).name
