"""Price a step in which several devices divide a batch that each of them has whole now.

XLA then keeps the batch divided through the whole step, and kernels that devices repeat shrink. If
the same devices share a weight, it is gathered before each product, and its gradient is
reduce-scattered (FSDP). If each device has the whole weight, its gradient is all-reduced (data
parallelism; arXiv 2105.04663, section 3).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import fsum

from pgle.account.levers.alike import Alike, Classes, both, copies_of
from pgle.account.levers.batch_rows import (
    DataArray,
    axis_among,
    batch_among,
    keeps_leading,
    state_among,
)
from pgle.account.levers.flow import GRADIENT, RESHAPED, Flow
from pgle.account.step_costs import StepCosts
from pgle.costs.estimate.communication import (
    DeviceGroup,
    collective_us,
    group_of,
    group_us,
    largest_group,
    payload_bytes,
)
from pgle.costs.estimate.products import Matmul, matmul_us
from pgle.xla.collective_kinds import KIND_OF_OPCODE, KINDS
from pgle.xla.collectives import collective_kind
from pgle.xla.hlo.module import BITS, Instruction, Module, Shape
from pgle.xla.matrix_products import is_product
from pgle.xla.targets import KERNEL_US

COMBINED_BYTES = 30 << 20
"""XLA combines collectives up to this size (openxla/xla `gpu_compiler.cc`, default thresholds of
the combiners).
"""

_FROM_WEIGHTS = RESHAPED.union(
    ("slice", "dynamic-slice", "async-start", "async-done", "opt-barrier"),
    KIND_OF_OPCODE,
)
"""Opcodes between a parameter and a product's operand, including those by which XLA divides or
gathers it.
"""

_MOVES = ("transpose", "reverse", "slice")
"""Opcodes whose result may have other axes in the place of the leading ones."""

_LOOKED_UP = "gather"  # opcode of a lookup of rows


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch that several devices have whole."""

    rows: int  # length of the axis that is divided
    axis: int  # the number of that axis; loops take the axes before it apart
    count: int  # number of devices to divide it over
    groups: tuple[tuple[int, ...], ...]  # groups of such devices
    # whether each device of a group has the same weights, so that weights need not move
    is_apart: bool


@dataclass(frozen=True, slots=True)
class _Weight:
    """A parameter that products of one computation take."""

    parameter: str
    computation: str
    size_bytes: int  # of all its parts together, in the product's type
    is_shared: bool  # whether the devices of a group have different parts of it


def whole_batch(flow: Flow, alike: Alike) -> Batch | None:
    """The batch of a training step, if several devices have it whole and can divide it.

    None if they cannot, or if pgle cannot tell the batch from the state.
    """
    module = flow.module
    state = _state_of(module)
    arrays = [
        DataArray(
            item.name,
            item.shape.dtype,
            item.shape.dimensions,
            _scanned_axes(flow, item),
        )
        for item in module.entry_computation.parameters
        if item.name not in state
    ]
    data = batch_among(arrays)
    if not state or data is None:
        return None
    classes = alike.of_parameter(module.instructions[data.name])
    shared = classes
    for name in state:
        shared = both(shared, alike.of_parameter(module.instructions[name]))
    is_apart = copies_of(shared) > 1
    if is_apart:
        classes = shared
    count = copies_of(classes)
    if count < 2 or data.rows % count:
        return None
    axis = axis_among(arrays, data.rows)
    return Batch(data.rows, axis, count, _groups(classes), is_apart)


def _scanned_axes(flow: Flow, parameter: Instruction) -> int:
    """How many leading axes of a parameter loops take apart, an element at a time."""
    todo = [(parameter.name, parameter.shape.dimensions)]
    axes = {parameter.name: 0}
    for name, left in todo:
        users: set[str] = set()
        for each in (name, *flow.links.get(name, ())):
            users.update(flow.users.get(each, ()))
        for user in sorted(users - axes.keys()):
            opcode = flow.opcode(user)
            sizes = flow.shape(user).dimensions
            is_one = opcode == "dynamic-slice" and sizes[:2] == (1, *left[1:2])
            if is_one and left[0] > 1:
                axes[user] = axes[name] + 1
                todo.append((user, left[1:]))
            elif opcode not in _MOVES and left and keeps_leading(sizes, left):
                axes[user] = axes[name]
                todo.append((user, left))
    return max(axes.values())


def _state_of(module: Module) -> frozenset[str]:
    """Names of the parameters that are state: the donated ones; if none is donated, those with the
    shape of a result.
    """
    parameters = module.entry_computation.parameters
    donated = [item for item in parameters if item.parameter_number in module.donated]
    if donated:
        return frozenset([item.name for item in donated])
    arrays = {
        item.name: (str(item.shape),) for item in parameters if item.shape.dimensions
    }
    results = module.instructions[module.entry_computation.root].shape.arrays
    return frozenset(state_among(arrays, map(str, results)))


def _groups(classes: Classes) -> tuple[tuple[int, ...], ...]:
    """The devices of each class."""
    found: dict[int, list[int]] = {}
    for device, number in enumerate(classes):
        found.setdefault(number, []).append(device)
    return tuple(map(tuple, found.values()))


class Division:
    """The changes to a step if devices divide the batch.

    Args:
        copies: how many devices compute the same, by kernel. Kernels without copies are left out.
    """

    def __init__(
        self,
        step: StepCosts,
        flow: Flow,
        alike: Alike,
        batch: Batch,
        copies: Mapping[str, int],
    ) -> None:
        self._step = step
        self._flow = flow
        self._alike = alike
        self.batch = batch
        self._copies = copies
        self._state = _state_of(flow.module)
        self._state_sizes = sizes_of_state(flow.module)
        self._group = largest_group(batch.groups, step.hardware) or DeviceGroup(1, 1)

    def saved_us(self, kernels: Iterable[str]) -> float:
        """Microseconds of a step that kernels save: some repeated ones, and all products whose
        shapes change.
        """
        divided = {*kernels}
        saved = []
        for name, us in self._step.us.items():
            if name in divided or name in self._products:
                saved.append(us - self._then_us(name))
        return fsum(saved)

    def _then_us(self, kernel: str) -> float:
        """Microseconds of a kernel in a step with the divided batch, at least `KERNEL_US` for each
        launch.
        """
        now_us = self._step.us[kernel]
        least_us = KERNEL_US * self._step.count.get(kernel, 1.0)
        ratio = self._products.get(kernel, 1 / self._divisor(kernel))
        return min(max(ratio * now_us, least_us), now_us)

    def _divisor(self, kernel: str) -> int:
        return min(self._copies.get(kernel, 1), self.batch.count)

    @cached_property
    def _products(self) -> Mapping[str, float]:
        """New time of each kernel that multiplies rows of the batch, as a share of its time now.

        Each device has fewer rows. If it has a part of the weights now, it gets the whole weights.
        """
        flow = self._flow
        found = {}
        for name, size in (*flow.products.items(), *flow.convolutions.items()):
            kernel = flow.kernel[name]
            if size.batch > 1 or self._is_of_experts(name):
                continue
            other = self._reshaped(size, self.batch.count // self._divisor(kernel))
            if other is not None:
                hardware = self._step.hardware
                now_us = matmul_us(size, hardware)
                found[kernel] = matmul_us(other, hardware) / now_us
        return found

    def _reshaped(self, size: Matmul, parts: int) -> Matmul | None:
        """The product with fewer rows and with whole weights; None if it does not have all rows of
        the batch.

        Args:
            parts: number of parts into which devices divide the weights now.
        """
        sides = {"m": size.m, "n": size.n, "k": size.k}
        of_batch = [name for name, side in sides.items() if side % self.batch.rows == 0]
        if not of_batch:
            return None
        rows = max(of_batch, key=sides.__getitem__)
        rest = [name for name in sides if name != rows]
        cut = min(rest, key=sides.__getitem__)
        sides[rows] //= self.batch.count
        sides[cut] *= parts
        return replace(size, m=sides["m"], n=sides["n"], k=sides["k"])

    def _is_of_experts(self, name: str) -> bool:
        found = map(self._parameter, self._flow.inputs[name])
        return any(item is not None and self._is_expert(item.name) for item in found)

    @cached_property
    def exposed_us(self) -> float:
        """Exposed communication in a step with the divided batch, in microseconds."""
        return self._left_us() + self._gathered_us() + self._reduced_us()

    def _left_us(self) -> float:
        """Exposed microseconds of collectives that stay. They stay if other devices share the
        weights, or if tokens go to experts. Each then moves only a part of the batch.
        """
        if not self.batch.is_apart and not self._has_experts:
            return 0.0
        step = self._step
        found = []
        for name, us in step.exposed_us.items():
            item = step.module.instructions[name]
            kind = collective_kind(step.module, item)
            if kind is not None:
                found.append(us * self._part_left(item, kind))
        return fsum(found)

    def _part_left(self, item: Instruction, kind: str) -> float:
        """New time of a collective that moves a part of the batch, as a share of its time now."""
        module, hardware = self._step.module, self._step.hardware
        given = map(self._flow.made_by, item.operands)
        if all(map(self._flow.is_weight, given)) or not KINDS[kind].ends_together:
            return 1.0
        operation = module.operation(item)
        now_us = collective_us(module, kind, operation, hardware)
        size = payload_bytes(module, kind, operation) / self.batch.count
        group = group_of(module, operation, hardware)
        then_us = group_us(KINDS[kind].measured or kind, group, size, hardware)
        return min(then_us / now_us, 1.0) if now_us > 0 else 1.0

    @cached_property
    def _has_experts(self) -> bool:
        """Whether devices have one expert each. A product of experts has an axis for them, so XLA
        moves tokens to the weights.
        """
        return any(
            weight.is_shared and self._is_expert(weight.parameter)
            for weight in self._all_weights
        )

    def _is_expert(self, name: str) -> bool:
        sizes = self._flow.shape(name).dimensions
        return len(sizes) > 2 and sizes[0] == 1

    @cached_property
    def _all_weights(self) -> Sequence[_Weight]:
        """The weights that products and lookups take, once for each computation."""
        flow = self._flow
        found: dict[tuple[str, str], _Weight] = {}
        for name, node in flow.nodes.items():
            is_product = name in flow.products or name in flow.convolutions
            if not is_product and node.opcode != _LOOKED_UP:
                continue
            for given in flow.inputs[name]:
                parameter = self._parameter(given)
                computation = flow.computation[name]
                if parameter is not None and (parameter.name, computation) not in found:
                    weight = self._weight(parameter, given, computation)
                    found[parameter.name, computation] = weight
        return list(found.values())

    @property
    def _weights(self) -> Iterator[_Weight]:
        """The weights that are not experts. Experts do not move."""
        for weight in self._all_weights:
            if not (weight.is_shared and self._is_expert(weight.parameter)):
                yield weight

    def _parameter(self, name: str) -> Instruction | None:
        """The state parameter that a value holds, perhaps gathered; None if it holds another."""
        for each in self._flow.looked_at(name, _FROM_WEIGHTS):
            if each in self._state:
                return self._flow.module.instructions[each]
        return None

    def _weight(self, item: Instruction, given: str, computation: str) -> _Weight:
        classes = self._alike.of_parameter(item)
        parts = {
            frozenset(classes[device] for device in group)
            for group in self.batch.groups
        }
        count = max(map(len, parts))
        bits = BITS.get(self._flow.shape(given).dtype, 32)
        size = self._flow.elements(item.name) * count * bits // 8
        return _Weight(item.name, computation, size, count > 1)

    def _gathered_us(self) -> float:
        """Exposed microseconds of gathering shared weights. Nothing hides the first gather."""
        found = []
        for computation, size in self._sizes(is_shared=True).items():
            compute_us = self._compute_us(computation, is_backward=False)
            found.append(self._exposed_us("all-gather", computation, size, compute_us))
        return fsum(found)

    def _reduced_us(self) -> float:
        """Exposed microseconds of reducing gradients. Nothing hides the last reduction."""
        found = []
        seen: set[str] = set()
        for is_shared, kind in ((True, "reduce-scatter"), (False, "all-reduce")):
            sizes = self._sizes(is_shared=is_shared, seen=seen)
            for computation, size in sizes.items():
                compute_us = self._compute_us(computation, is_backward=True)
                found.append(self._exposed_us(kind, computation, size, compute_us))
        return fsum(found)

    def _sizes(
        self, *, is_shared: bool, seen: set[str] | None = None
    ) -> Mapping[str, int]:
        """Bytes of weights, by the computation that takes them.

        Args:
            seen: parameters that have counted already, and count no more. If None, a parameter
                counts once for each computation.
        """
        found: dict[str, int] = {}
        for weight in self._weights:
            is_new = seen is None or weight.parameter not in seen
            if weight.is_shared is not is_shared or not is_new:
                continue
            if seen is not None:
                seen.add(weight.parameter)
            size = found.get(weight.computation, 0)
            found[weight.computation] = size + weight.size_bytes
        return found

    def _exposed_us(
        self, kind: str, computation: str, size: int, compute_us: float
    ) -> float:
        """Exposed microseconds of collectives: the time beyond the compute that hides them, and at
        least one collective in each iteration.
        """
        times = self._times(computation)
        hardware = self._step.hardware
        count = max(size / times / COMBINED_BYTES, 1.0)
        one_us = group_us(kind, self._group, size / times / count, hardware)
        return times * max(count * one_us - compute_us / times, one_us)

    def _times(self, computation: str) -> float:
        """How often a computation runs in a step."""
        counts = [
            self._step.count.get(kernel, 0.0)
            for name, kernel in self._flow.kernel.items()
            if self._flow.computation[name] == computation
        ]
        return max([1.0, *counts])

    def _compute_us(self, computation: str, *, is_backward: bool) -> float:
        """Microseconds in a step of a computation's kernels, with the divided batch. In the entry,
        only those of one pass count. Updates of state belong to neither pass.
        """
        module = self._flow.module
        is_entry = computation == module.entry
        found = []
        for item in module.computations[computation].instructions:
            if item.name not in self._step.us:
                continue
            is_alike = not self._state_sizes.isdisjoint(sizes_of(item.shape))
            is_update = is_alike and not is_product(module, item)
            is_gradient = GRADIENT in item.op_name
            if not is_entry or (is_gradient is is_backward and not is_update):
                found.append(self._then_us(item.name))
        return fsum(found)


def sizes_of_state(module: Module) -> set[tuple[int, ...]]:
    """The dimensions of arrays that the step both takes and returns. Gradients have them, too.
    Dimensions are in ascending order, since gradients may be transposed.
    """
    entry = module.entry_computation
    taken: set[tuple[int, ...]] = set()
    for item in entry.parameters:
        taken.update(sizes_of(item.shape))
    return taken.intersection(sizes_of(module.instructions[entry.root].shape))


def sizes_of(shape: Shape) -> Iterator[tuple[int, ...]]:
    """The dimensions of an array, or of the arrays in a tuple, in ascending order. Scalars and
    dimensions of 1 are left out.
    """
    for each in shape.arrays:
        if each.dimensions:
            yield tuple(sorted(size for size in each.dimensions if size > 1))
