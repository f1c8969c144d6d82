"""Device memory of the main module: its peak, what lives there, and how far the GPU's limit is."""

from __future__ import annotations

from dataclasses import dataclass

from pgle.xla.hlo.module import Module
from pgle.xla.hlo.proto import Buffer, BufferPlan

JAX_SHARE = 0.75
"""Of device memory that JAX takes when it starts, and all that programs get, unless ``XLA_PYTHON_CLIENT_MEM_FRACTION``
says otherwise (docs.jax.dev, "GPU memory allocation")."""

SHOWN = 20  # values at the peak that are kept
_SIZES = ("peak_bytes", "arguments_bytes", "outputs_bytes", "constants_bytes", "temporary_bytes", "live_bytes")


@dataclass(frozen=True, slots=True)
class LiveValue:
    """One value in memory at the peak."""

    name: str  # the instruction that makes it
    size_bytes: int  # of it
    shape: str  # as text
    # op_name, source: the framework's name, file and line; empty where unknown
    op_name: str
    source: str


@dataclass(frozen=True)
class Memory:
    """Device memory of one execution."""

    peak_bytes: int  # all it needs
    # arguments_bytes, outputs_bytes, constants_bytes, temporary_bytes: parts that add up to it
    arguments_bytes: int
    outputs_bytes: int
    constants_bytes: int
    temporary_bytes: int
    at: str  # instruction at which temporary values are most; empty where unknown
    at_op_name: str  # the framework's name of it
    live: tuple[LiveValue, ...]  # the largest temporary values there
    live_bytes: int  # all of them; what `temporary_bytes` exceeds it by is fragmentation
    device_bytes: int | None  # of the GPU; None where unknown
    # what a program can have: JAX's default share of it, or all where the program needs more than that
    limit_bytes: int | None
    origin: str = "XLA's buffer assignment"  # where the figures come from

    @property
    def used_share(self) -> float | None:
        """Of the limit."""
        return None if not self.limit_bytes else self.peak_bytes / self.limit_bytes


def find_memory(module: Module, plan: BufferPlan, device_bytes: int | None) -> Memory:
    """What a module needs by XLA's own plan."""
    at = module.instructions.get(plan.peak_at)
    limit = None
    if device_bytes is not None:
        share = int(device_bytes * JAX_SHARE)
        limit = share if plan.peak_bytes <= share else device_bytes
    return Memory(
        **{name: getattr(plan, name) for name in _SIZES},
        at=plan.peak_at,
        at_op_name="" if at is None else at.op_name,
        live=tuple(_live(module, item) for item in plan.live[:SHOWN]),
        device_bytes=device_bytes,
        limit_bytes=limit,
    )


def _live(module: Module, item: Buffer) -> LiveValue:
    made = module.instructions.get(item.instruction)
    if made is None:
        return LiveValue(item.instruction, item.size_bytes, "", "", "")
    shape = made.shape
    for index in item.shape_index:
        shape = shape.elements[index] if index < len(shape.elements) else shape
    return LiveValue(item.instruction, item.size_bytes, str(shape), made.op_name, made.source)
