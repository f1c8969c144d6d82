"""One row of the answer: a program at one size, in one variant."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import msgspec
import numpy as np

from pgle.costs.estimate.communication import group_of
from pgle.costs.estimate.products import attention_operations, matmuls
from pgle.schedule.predict import Prediction
from pgle.xla.hardware import Hardware
from pgle.xla.hlo.module import Instruction, Module
from pgle.xla.kinds import KINDS

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


@dataclass(frozen=True)
class Row:
    """What was found at one size; times in microseconds of one step, on one GPU."""

    devices: int
    values: Mapping[str, str] = field(default_factory=dict)  # of each varied name
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
    operations: float = 0.0  # of matrix products and attention, on one GPU
    # argument_bytes, temp_bytes, memory_bytes: device memory by XLA's report, memory_bytes in all; None: no report
    argument_bytes: int | None = None
    temp_bytes: int | None = None
    memory_bytes: int | None = None
    limit_bytes: int | None = None  # that jax's allocator has; None: no limit
    costs_are: str = "estimated"  # ``measured``, ``estimated`` or ``mixed``
    measured_share: float | None = None  # of the computing time, the part with a cost of the given profile
    wall_s: float = 0.0  # that the row took
    scheduled: str = ""  # file of the scheduled module, from the folder of all rows on
    warnings: tuple[str, ...] = ()
    tried: Mapping[str, int | None] = field(default_factory=dict)  # by value of the fitted name, its memory_bytes

    @property
    def fits(self) -> bool | None:
        """Whether it fits into the memory of jax's allocator; None where XLA left no report."""
        if self.memory_bytes is None:
            return None
        return self.limit_bytes is None or self.memory_bytes <= self.limit_bytes

    @property
    def tflops(self) -> float:
        """10^12 operations of matrix products and attention per second and GPU."""
        return self.operations / self.step_us / 1e6 if self.step_us else 0.0

    @property
    def variant(self) -> tuple[tuple[str, str], ...]:
        """What it shares with the rows of other sizes."""
        return tuple(self.values.items())


def encoded(row: Row) -> bytes:
    """A row as a line of JSON."""
    return msgspec.json.encode(row)


def decoded(line: str) -> Row:
    """The row that `encoded` made a line of.

    Raises:
        ValueError: it is none.
    """
    return msgspec.json.decode(line, type=Row)


def exposed_by_collective(module: Module, prediction: Prediction, hardware: Hardware) -> tuple[Exposed, ...]:
    """The collectives of a step by kind, group and hosts, the most exposed first."""
    sums: dict[tuple[str, int, int], list[float]] = {}
    for item in prediction.timeline.exposures:
        if item.kind not in KINDS or item.name not in module.instructions:
            continue
        instruction = module.instructions[item.name]
        size, hosts = _reach(module, module.wrapped(instruction) or instruction, hardware)
        sums.setdefault((item.kind, size, hosts), []).extend((item.duration_us, item.exposed_us, item.count))
    found = [
        Exposed(
            kind, size, hosts, "network" if hosts > 1 else "NVLink", sum(of[::3]), sum(of[1::3]), int(sum(of[2::3]))
        )
        for (kind, size, hosts), of in sums.items()
    ]
    return tuple(sorted(found, key=lambda item: (-item.exposed_us, -item.time_us, item.kind)))


def _reach(module: Module, instruction: Instruction, hardware: Hardware) -> tuple[int, int]:
    """Devices that talk to each other, and hosts that they are on; of a permute those of its longest jump."""
    if pairs := instruction.source_target_pairs:
        jumps = (len({hardware.host(device) for device in pair}) for pair in pairs)
        return len({device for pair in pairs for device in pair}), max(jumps)
    group = group_of(module, instruction, hardware)
    return group.size, group.hosts


def operations_of(module: Module, prediction: Prediction) -> float:
    """Operations of matrix products and attention in a step, on one GPU; what is computed again counts again."""
    timeline = prediction.timeline
    counts = np.bincount(timeline.instruction, weights=timeline.count, minlength=len(timeline.names))
    total, executions = 0.0, Counter(dict(zip(timeline.names, counts.tolist(), strict=True)))
    for name, count in executions.items():
        if count and (item := module.instructions.get(name)) is not None:
            once = sum(product.operations for product in matmuls(module, item)) or attention_operations(module, item)
            total += once * count
    return total


def end_of(us: float) -> float | None:
    """A bound as it is written down: None where it is infinite."""
    return us if math.isfinite(us) else None
