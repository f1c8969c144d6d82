"""What XLA does with names that a profile lacks, and what a schedule dump proves: did it believe the profile's costs?

Source: openxla/xla `xla/service/profile_guided_latency_estimator.cc` and `gpu_latency_hiding_scheduler.cc`; assumed
costs compared with jaxlib 0.10.2 and 0.12.0.1 in the tests.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pgle.xla.collectives import collective_kind, is_start
from pgle.xla.hlo.module import Instruction, Module

if TYPE_CHECKING:
    from pgle.xla.hlo.schedule_dump import LhsSchedule


LOW_US, MEDIUM_US, HIGH_US = 1.0, 1000.0, 5000.0
"""XLA's T-shirt sizes (``kLowCost``, ``kMediumCost``, ``kHighCost``), taken for microseconds under a profile."""

T_SHIRT_SIZES, LIGHT_SPEED = "T-shirt sizes", "speed-of-light model"  # what XLA takes costs for that a profile lacks


def assumed_us(module: Module, instruction: Instruction) -> float:
    """The cost that XLA's T-shirt sizes give an instruction without one."""
    opcode = instruction.opcode
    if opcode in ("send", "recv"):
        return 10 * HIGH_US if opcode == "send" else MEDIUM_US
    if is_start(instruction) or collective_kind(module, instruction) is not None:  # a plain one was a start then
        return HIGH_US
    if opcode == "fusion":
        return {"kLoop": MEDIUM_US, "kOutput": HIGH_US}.get(instruction.fusion_kind, LOW_US)
    return {"custom-call": MEDIUM_US, "convolution": HIGH_US}.get(opcode, LOW_US)


def fallback_of(module: Module) -> str:
    """What XLA takes the gaps of a module for: its model from Hopper on (jaxlib 0.10.2 and newer), else constants."""
    return LIGHT_SPEED if (module.compute_capability or (0, 0)) >= (9, 0) else T_SHIRT_SIZES


IDLE_CYCLES = 1e-3  # less is rounding: times are doubles from the start of the computation


START_CYCLES = 1.5  # starts take one cycle; what takes longer occupies its cost


@dataclass(frozen=True, kw_only=True)
class Fit:
    """How a profile fits a module, as far as somebody counted."""

    covered: int | None = None  # instructions with a cost of their own; None where nobody counts them
    # instructions that want one: XLA's `missing` also counts what no schedule needs, its `found` some twice and those
    # that got the cost of another program's instruction
    wanted: int | None = None
    # share of the module's time that these costs cover, as `pgle verify` weighs it; None where only a log speaks
    time_coverage: float | None = None
    # the rest of the step without the weight of collectives that have no cost; None likewise
    kept_share: float | None = None
    mismatched: int | None = None  # instructions that got the cost of another opcode or shape; None likewise


@dataclass(frozen=True)
class ScheduleEvidence:
    """The costs that the scheduler used, compared with a profile's."""

    module: str  # the dump's module
    compared: int  # scheduled instructions that the profile has a cost for
    equal: int  # those whose believed cost is the profile's
    instructions: int  # scheduled instructions that take time
    source: str  # the dump
    fit: Fit = Fit()  # of the profile to that module

    @property
    def sentence(self) -> str:
        """The finding in words."""
        if not self.compared:
            return f"none of the {self.instructions} instructions in the schedule dump has a cost in the profile"
        if self.equal == self.compared:
            return "the schedule dump shows that XLA took them"
        return (
            f"the schedule dump shows that XLA took {self.equal or 'none'} of the {self.compared} costs that can be "
            "seen in it"
        )

    @property
    def agrees(self) -> bool:
        """Whether the scheduler believed the profile: most of what can be compared is equal."""
        return self.compared > 0 and self.equal >= self.compared / 2


def schedule_evidence(schedule: LhsSchedule, costs: Mapping[str, float]) -> ScheduleEvidence:
    """Compare a schedule with a profile.

    Args:
        schedule: of `pgle.xla.hlo.schedule_dump.read_schedule_dump`.
        costs: effective cost in µs by name.

    An ordinary instruction occupies exactly its cost. Starts and dones occupy one cycle whatever the profile says;
    their latency shows only where the done had to wait for it, so only such pairs are compared. The start of an
    asynchronous fusion with a collective in it occupies its cost as well, before its latency (jaxlib 0.12.0.1).
    """
    compared = equal = instructions = 0
    slots = {name: slot for item in schedule.computations.values() for name, slot in item.slots.items()}
    starts = {name for name in schedule.latencies if name not in slots or slots[name].cycles <= START_CYCLES}
    waited = _waited(schedule)
    dones = {latency.pair.done for latency in schedule.latencies.values()}
    for computation in schedule.computations.values():
        for name, slot in computation.slots.items():
            if name in starts or name in dones or slot.cycles <= 0:
                continue
            instructions += 1
            if name in costs:
                compared += 1
                equal += _same(slot.cycles, costs[name])
    instructions += len(starts)
    for name in starts & waited & costs.keys():
        compared += 1
        equal += _same(schedule.latencies[name].span_cycles, costs[name])
    return ScheduleEvidence(schedule.module.name, compared, equal, instructions, schedule.source)


def _waited(schedule: LhsSchedule) -> set[str]:
    """Starts of operations whose done had to wait: only of these the schedule shows the latency."""
    start_of = {latency.pair.done: name for name, latency in schedule.latencies.items()}
    waited: set[str] = set()
    for computation in schedule.computations.values():
        free = 0.0
        for name, slot in computation.slots.items():
            if name in start_of and slot.start_cycles > free + IDLE_CYCLES:
                waited.add(start_of[name])
            free = max(free, slot.end_cycles)
    return waited


def _same(cycles: float, cost_us: float) -> bool:
    # times are doubles from the start of the computation: differences lose digits where it is long
    return math.isclose(cycles, cost_us, rel_tol=1e-3, abs_tol=1e-2)
