"""Facts of a compiled program, read from its scheduled module. Nothing is estimated."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass

from pgle.schedule.launch_order import launch_order
from pgle.schedule.launches import Launches
from pgle.xla.async_pairs import result_shape
from pgle.xla.collectives import is_sync, walk_collectives
from pgle.xla.hlo.module import Instruction, Module, fusion_kind
from pgle.xla.matrix_products import is_attention, is_convolution, is_gemm
from pgle.xla.owners import known_times

FREE = frozenset(("bitcast", "constant", "get-tuple-element", "parameter", "tuple"))
"""Opcodes of instructions that do nothing at run time."""
NARROW = "fp8"  # name of all floating-point types of 8 bits


@dataclass(frozen=True, slots=True)
class CollectiveUse:
    """The collectives of one kind in one step. Loops count as often as they run."""

    count: int  # collectives that a step starts
    asynchronous: int  # how many of them may overlap compute
    size_bytes: int  # bytes of all results on one device


@dataclass(frozen=True)
class ProgramFacts:
    """The facts of a program as one release compiled it."""

    fingerprint: str  # of the module before scheduling; empty if unknown
    # device memory that one execution needs; None if XLA wrote no report
    memory_bytes: int | None
    collectives: Mapping[str, CollectiveUse]  # by kind
    order: Launches  # the order in which collectives start
    # number of matrix products, inside fusions too, by the types of their operands
    products: Mapping[str, int]
    # number of fusions by kind, and of custom calls by target
    kernels: Mapping[str, int]
    work: Mapping[Hashable, int]  # number of scheduled instructions by what they do


def facts_of(module: Module, memory_bytes: int | None = None) -> ProgramFacts:
    """The facts of a scheduled module.

    Args:
        module: scheduled, after all passes.
        memory_bytes: from XLA's report of its buffer assignment.
    """
    return ProgramFacts(
        fingerprint=module.fingerprint,
        memory_bytes=memory_bytes,
        collectives=_collectives(module),
        order=launch_order(module),
        products=Counter(_products(module)),
        kernels=Counter(_kernels(module)),
        work=Counter(map(module.work, _executed(module))),
    )


def _collectives(module: Module) -> dict[str, CollectiveUse]:
    found: dict[str, CollectiveUse] = {}
    for item, kind in walk_collectives(module):
        times = known_times(module, item.name)
        before = found.get(kind, CollectiveUse(0, 0, 0))
        overlapping = 0 if is_sync(module, item) else times
        size_bytes = result_shape(module, item).size_bytes
        found[kind] = CollectiveUse(
            count=before.count + times,
            asynchronous=before.asynchronous + overlapping,
            size_bytes=before.size_bytes + times * size_bytes,
        )
    return dict(sorted(found.items()))


def _products(module: Module) -> Iterator[str]:
    """The types of each product: ``bf16``, ``fp8``, ``bf16 × f32``, ``f32 (high)``."""
    for item in module.walk():
        is_call = is_gemm(item) or is_convolution(item) or is_attention(item)
        if is_call or item.opcode == "convolution":
            yield _types(module, item)


def _types(module: Module, item: Instruction) -> str:
    types: list[str] = []
    for name in item.operands[:2]:
        operand = module.instructions.get(name)
        if operand is not None:
            dtype = operand.shape.dtype
            types.append(NARROW if dtype.startswith("f8") else dtype)
    words = " × ".join(sorted(set(types))) or "unknown"
    return f"{words} ({item.precision})" if item.precision else words


def _kernels(module: Module) -> Iterator[str]:
    for item in _executed(module):
        if item.opcode == "fusion":
            yield f"fusion {fusion_kind(item)}"
        elif item.opcode == "custom-call":
            yield item.custom_call_target


def _executed(module: Module) -> Iterator[Instruction]:
    """The instructions outside fusions that do something at run time."""
    for computation in module.computations.values():
        if not computation.is_fusion:
            for item in computation.instructions:
                if item.opcode not in FREE:
                    yield item
