"""What casting f32 activations to 16 bits does to the kernels around products, by their bytes."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from math import fsum

from pgle.account.levers.flow import Flow
from pgle.account.step_costs import StepCosts
from pgle.xla.collectives import collective_kind
from pgle.xla.hardware import KERNEL_US
from pgle.xla.hlo.module import Module, Shape

_WIDE = "f32"


@dataclass(frozen=True, slots=True)
class Narrowed:
    """Microseconds of a step that casting activations saves and costs."""

    kernels_us: float  # saved by kernels that compute with f32 activations
    communication_us: float  # saved at most by collectives of f32 values
    # of values that enter the products from outside, if each is a kernel
    casts_us: float


def narrowed(step: StepCosts, flow: Flow, products: Collection[str]) -> Narrowed:
    """What follows if activations around some products become half as wide.

    Args:
        products: nodes of f32 products that take 16 bits then.
    """
    around = _around(flow, products)
    kernels = {flow.kernel[name] for name in around}
    multiplying = {flow.kernel[name] for name in (*flow.products, *flow.convolutions)}
    kept = state_sizes(step.module)
    saved = []
    for kernel in kernels - multiplying:
        share = _share(step.module, kernel, kept)
        saved.append(step.us.get(kernel, 0.0) * share / 2)
    return Narrowed(
        kernels_us=fsum(saved),
        communication_us=fsum(_reduced_us(step)) / 2,
        casts_us=fsum(_casts_us(step, flow, products)),
    )


def _around(flow: Flow, products: Iterable[str]) -> list[str]:
    """Nodes that are joined to products by f32 values, which no other type interrupts."""
    todo = list(products)
    seen = set(todo)
    for name in todo:
        for near in (*flow.users.get(name, ()), *flow.inputs[name]):
            is_new = near in flow.nodes and near not in seen
            if is_new and flow.shape(near).dtype == _WIDE:
                seen.add(near)
                todo.append(near)
    return todo


def _share(module: Module, kernel: str, kept: Collection[tuple[int, ...]]) -> float:
    """The part of a kernel's bytes that f32 activations have; state stays as it is."""
    item = module.instructions[kernel]
    shapes = list(item.shape.arrays)
    for name in item.operands:
        shapes += module.instructions[name].shape.arrays
    wide = [
        shape.size_bytes
        for shape in shapes
        if shape.dtype == _WIDE and shape.dimensions not in kept
    ]
    return sum(wide) / max(sum(shape.size_bytes for shape in shapes), 1)


def _reduced_us(step: StepCosts) -> Iterator[float]:
    """Exposed time of collectives that move f32 values."""
    module = step.module
    for name, us in step.exposed_us.items():
        item = module.instructions[name]
        shapes: list[Shape] = []
        for each in item.operands:
            shapes += module.instructions[each].shape.arrays
        is_wide = any(shape.dtype == _WIDE for shape in shapes)
        if is_wide and collective_kind(module, item):
            yield us


def _casts_us(step: StepCosts, flow: Flow, products: Iterable[str]) -> Iterator[float]:
    """Time to read f32 parameters and inputs of products, and to write them with 16 bits."""
    times: dict[str, float] = {}
    for product in products:
        count = step.count.get(flow.kernel[product], 0.0)
        for name in flow.inputs[product][:2]:
            times[name] = max(count, times.get(name, 0.0))
    for name, count in times.items():
        shape = flow.shape(name)
        if shape.dtype == _WIDE and flow.is_weight(name):
            cast_us = step.hardware.memory_us(1.5 * shape.size_bytes)
            yield count * (KERNEL_US + cast_us)


def state_sizes(module: Module) -> set[tuple[int, ...]]:
    """The sizes of arrays that the step takes and returns: parameters, and their gradients."""
    entry = module.entry_computation
    taken: set[tuple[int, ...]] = set()
    for item in entry.instructions:
        if item.opcode == "parameter":
            taken.update(sizes(item.shape))
    return taken.intersection(sizes(module.instructions[entry.root].shape))


def sizes(shape: Shape) -> Iterator[tuple[int, ...]]:
    """The sizes of an array with axes, or of those in a tuple."""
    for each in shape.arrays:
        if each.dimensions:
            yield each.dimensions
