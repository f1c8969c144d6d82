"""One row of the answer: a program at one size, in one variant."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from math import isfinite, prod
from typing import Literal

import msgspec
import numpy as np

from pgle.costs.estimate.communication import group_of
from pgle.costs.estimate.kernels import attention_operations, is_product, matmuls
from pgle.costs.profile.value import has_remat
from pgle.schedule.predict import Prediction
from pgle.xla.collectives import KINDS
from pgle.xla.hlo.module import Instruction, Module, trip_count
from pgle.xla.targets import Hardware

Fabric = Literal["NVLink", "network"]


@dataclass(frozen=True, slots=True)
class Exposed:
    """The collectives of one kind among groups of one size."""

    kind: str  # ``all-reduce``
    group: int  # devices that talk to each other
    hosts: int  # that they are on
    fabric: Fabric  # the slowest links between them
    time_us: float  # of all executions in a step
    exposed_us: float  # the part during which nothing computes
    count: int  # executions in a step
    weights_us: float = 0.0  # of `exposed_us`, the part of collectives whose arrays are as large as weights

    @property
    def moves_weights(self) -> bool:
        """Whether weights or gradients, and not activations, are most of the exposed communication."""
        return 2 * self.weights_us > self.exposed_us

    @property
    def moves_gradients(self) -> bool:
        """Whether gradients are most of the exposed communication."""
        return KINDS[self.kind].moves == "gradients" and self.moves_weights


@dataclass(frozen=True)
class ScaleRow:
    """What was found at one size; times in microseconds of one step, on one GPU."""

    devices: int
    values: Mapping[str, str] = field(default_factory=dict)  # of each varied name
    shown: Mapping[str, str] = field(default_factory=dict)  # the same as they are at this size
    failure: str = ""  # why there is no step, in one line; then all below is empty
    module: str = ""  # name of the step's module
    hosts: int = 1
    step_us: float = 0.0
    # least_us, most_us: the range of the step that follows from estimated costs and contention
    least_us: float = 0.0
    most_us: float | None = 0.0  # None: no end, a loop has an unknown length
    compute_us: float = 0.0
    exposed_us: float = 0.0  # collectives run, nothing computes
    copy_us: float = 0.0  # only copies run
    idle_us: float = 0.0  # nothing runs
    ceiling_us: float = 0.0  # the step if all communication were hidden
    by_collective: tuple[Exposed, ...] = ()  # the most exposed first
    operations: float = 0.0  # as of `operations_of`
    # argument_bytes, temp_bytes, memory_bytes: device memory by XLA's report, memory_bytes in all; None: no report
    argument_bytes: int | None = None
    temp_bytes: int | None = None
    memory_bytes: int | None = None
    limit_bytes: int | None = None  # that jax's allocator has; None: no limit
    costs_are: str = "estimated"  # ``measured``, ``estimated`` or ``mixed``
    covered_share: float | None = None  # of the computing time, the part with a cost of the given profile
    wall_s: float = 0.0  # that the row took
    scheduled: str = ""  # file of the scheduled module, from the folder of all rows on
    grown: str = ""  # file of the program's module, from that folder on, if it is larger than a capture
    warnings: tuple[str, ...] = ()
    fitted: str = ""  # the name whose value was chosen so that the row fits
    tried: Mapping[str, int | None] = field(default_factory=dict)  # by value of the fitted name, its memory_bytes

    @property
    def fits(self) -> bool | None:
        """Whether it fits into the memory of jax's allocator; None where XLA left no report."""
        if self.memory_bytes is None:
            return None
        return self.limit_bytes is None or self.memory_bytes <= self.limit_bytes

    @property
    def tflops(self) -> float:
        """10^12 operations of `operations` per second and GPU: what MFU is computed from."""
        return self.operations / self.step_us / 1e6 if self.step_us else 0.0

    @property
    def variant(self) -> tuple[tuple[str, str], ...]:
        """What it shares with the rows of other sizes."""
        return tuple(pair for pair in self.values.items() if pair[0] != self.fitted)


def encoded(row: ScaleRow) -> bytes:
    """A row as a line of JSON."""
    return msgspec.json.encode(row)


def decoded(line: str) -> ScaleRow:
    """The row that `encoded` made a line of.

    Raises:
        ValueError: it is not one.
    """
    return msgspec.json.decode(line, type=ScaleRow)


def exposed_by_collective(module: Module, prediction: Prediction, hardware: Hardware) -> tuple[Exposed, ...]:
    """The collectives of a step by kind, group and hosts, the most exposed first."""
    found: dict[tuple[str, int, int], Exposed] = {}
    weights, flow = _weight_sizes(module), _Flow.of(module)
    for item in prediction.timeline.exposures:
        if item.kind not in KINDS or item.name not in module.instructions:
            continue
        instruction = module.instructions[item.name]
        inner = module.wrapped(instruction) or instruction
        size, hosts = _reach(module, inner, hardware)
        # activations come from products and go to others; weights and gradients do one of both
        is_weights = _moves_weights(module, item.kind, inner, size, weights) and not (
            item.name in flow.before and (item.name in flow.after or KINDS[item.kind].moves == "gradients")
        )
        fabric: Fabric = "network" if hosts > 1 else "NVLink"
        was = found.get((item.kind, size, hosts)) or Exposed(item.kind, size, hosts, fabric, 0.0, 0.0, 0)
        found[item.kind, size, hosts] = replace(
            was,
            time_us=was.time_us + item.duration_us,
            exposed_us=was.exposed_us + item.exposed_us,
            count=was.count + item.count,
            weights_us=was.weights_us + item.exposed_us * is_weights,
        )
    return tuple(sorted(found.values(), key=lambda item: (-item.exposed_us, -item.time_us, item.kind)))


def _weight_sizes(module: Module) -> frozenset[int]:
    """Elements of what a step returns, its weights and the optimizer's state, and of their slices in loops."""
    root = module.instructions[module.entry_computation.root].shape
    trips = {count for item in module.walk() if item.opcode == "while" and (count := trip_count(item))} | {1}
    sizes = {prod(shape.dimensions) for shape in root.elements or (root,) if shape.dimensions}
    return frozenset(size // count for size in sizes for count in trips if size % count == 0 and size > count)


@dataclass(frozen=True)
class _Flow:
    """What matrix products and loops feed and use, each within its computation."""

    after: frozenset[str]  # instructions that one feeds, itself or through others
    before: frozenset[str]  # instructions that feed one

    @classmethod
    def of(cls, module: Module) -> _Flow:
        after, before = set[str](), set[str]()
        for computation in map(module.computations.__getitem__, module.scheduled):
            works = {
                item.name for item in computation.instructions if item.opcode == "while" or is_product(module, item)
            }
            for item in computation.instructions:
                if any(name in works or name in after for name in item.operands):
                    after.add(item.name)
            for item in reversed(computation.instructions):
                if item.name in works or item.name in before:
                    before.update(item.operands)
        return cls(frozenset(after), frozenset(before))


def _moves_weights(module: Module, kind: str, item: Instruction, group: int, weights: Collection[int]) -> bool:
    """Whether half of the bytes of a collective, as each GPU holds them, are as large as weights or their gradients."""
    if not KINDS[kind].moves:
        return False
    shapes = [module.instructions[name].shape for name in item.operands if name in module.instructions]
    parts = group if kind == "reduce-scatter" else 1
    alike = sum(shape.size_bytes for shape in shapes if prod(shape.dimensions) // parts in weights)
    return 2 * alike > sum(shape.size_bytes for shape in shapes)


def _reach(module: Module, instruction: Instruction, hardware: Hardware) -> tuple[int, int]:
    """Devices that talk to each other, and hosts that they are on; of a permute those of its longest jump."""
    if pairs := instruction.source_target_pairs:
        jumps = (len({hardware.host(device) for device in pair}) for pair in pairs)
        return len({device for pair in pairs for device in pair}), max(jumps)
    group = group_of(module, instruction, hardware)
    return group.size, group.hosts


RECOMPUTED = "rematted_computation"
"""In the framework's name of what `jax.checkpoint` computes again; XLA ends names of its own copies in ``.remat``."""


def operations_of(module: Module, prediction: Prediction) -> float:
    """Operations of matrix products and attention in a step, on one GPU, without recomputation."""
    timeline = prediction.timeline
    counts = np.bincount(timeline.instruction, weights=timeline.count, minlength=len(timeline.names))
    total = 0.0
    for name, count in zip(timeline.names, counts.tolist(), strict=True):
        item = module.instructions.get(name)
        if count and item is not None and not _is_recomputed(module, item):
            once = sum(product.operations for product in matmuls(module, item)) or attention_operations(module, item)
            total += once * count
    return total


def _is_recomputed(module: Module, item: Instruction) -> bool:
    fused = module.fused(item)
    inner = () if fused is None else (one for one in fused.instructions if one.opcode in ("dot", "convolution"))
    return has_remat(item.name) or any(RECOMPUTED in one.op_name for one in (item, *inner))


def end_of(us: float) -> float | None:
    """A bound as it is written down: None where it is infinite."""
    return us if isfinite(us) else None
