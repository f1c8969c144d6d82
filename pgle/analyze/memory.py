"""Device memory of a program at its peak, by XLA's own plan."""

from __future__ import annotations

from dataclasses import dataclass

from pgle.xla.hlo.module import Module
from pgle.xla.hlo.proto import BufferPlan

JAX_SHARE = 0.75
"""Of device memory that JAX takes when it starts, and all that programs get, unless
``XLA_PYTHON_CLIENT_MEM_FRACTION`` says otherwise (docs.jax.dev, "GPU memory allocation").
"""


@dataclass(frozen=True, slots=True)
class LiveValue:
    """One value in memory at the peak."""

    name: str  # the instruction that makes it
    size_bytes: int  # of it
    # shape, op_name, source: as text, the framework's name, file and line; empty where unknown
    shape: str
    op_name: str
    source: str


@dataclass(frozen=True)
class Memory:
    """Device memory of one execution of the main module, by XLA's own plan."""

    plan: BufferPlan
    live: tuple[LiveValue, ...]  # the largest temporary values at the peak
    device_bytes: int | None  # of the GPU; None where unknown

    @property
    def limit_bytes(self) -> int | None:
        """What a program can have: JAX's default share of it, or all where the program needs more
        than that.
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
        """Of the limit."""
        return self.plan.peak_bytes / self.limit_bytes if self.limit_bytes else None


def find_memory(module: Module, plan: BufferPlan, device_bytes: int | None) -> Memory:
    """What a module needs by XLA's plan."""
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
