"""The peak of a program's device memory, by XLA's own plan."""

from __future__ import annotations

from dataclasses import dataclass

from pgle.xla.hlo.module import Module
from pgle.xla.hlo.proto import BufferPlan

JAX_SHARE = 0.75
"""Share of device memory that JAX takes when it starts. Programs get no more, unless
``XLA_PYTHON_CLIENT_MEM_FRACTION`` is set (docs.jax.dev, "GPU memory allocation").
"""


@dataclass(frozen=True, slots=True)
class LiveValue:
    """One value in memory at the peak."""

    name: str  # the instruction that makes it
    size_bytes: int
    # shape, op_name, source: shape as text, the framework's name, file and line; empty if unknown
    shape: str
    op_name: str
    source: str


@dataclass(frozen=True)
class Memory:
    """Device memory of one execution of the main module, by XLA's own plan."""

    plan: BufferPlan
    live: tuple[LiveValue, ...]  # the largest temporary values at the peak
    device_bytes: int | None  # memory of the GPU; None if unknown

    @property
    def limit_bytes(self) -> int | None:
        """The most memory that a program can have: JAX's default share of the GPU's. If the program
        needs more, it is all of the GPU's. None if unknown.
        """
        share = (
            None if self.device_bytes is None else int(self.device_bytes * JAX_SHARE)
        )
        return (
            share
            if share is None or self.plan.peak_bytes <= share
            else self.device_bytes
        )

    @property
    def used_share(self) -> float | None:
        """The peak as a share of `limit_bytes`; None if unknown."""
        return self.plan.peak_bytes / self.limit_bytes if self.limit_bytes else None


def find_memory(module: Module, plan: BufferPlan, device_bytes: int | None) -> Memory:
    """The memory of a module by XLA's plan, with the 20 largest values at the peak.

    Args:
        device_bytes: memory of the GPU; None if unknown.
    """
    live = []
    for item in plan.live[:20]:
        about = ("", "", "")
        if (made := module.instructions.get(item.instruction)) is not None:
            shape = made.shape
            for index in item.shape_index:
                shape = shape.elements[index] if index < len(shape.elements) else shape
            about = (str(shape), made.op_name, made.source)
        live.append(LiveValue(item.instruction, item.size_bytes, *about))
    return Memory(plan, tuple(live), device_bytes)
