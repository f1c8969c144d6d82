"""What a schedule dump proves: did the scheduler believe the costs of the profile?"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from pgle.xla.hlo.schedule_dump import LhsSchedule

IDLE_CYCLES = 1e-3  # less is rounding: times are doubles from the start of the computation


START_CYCLES = 1.5  # starts take one cycle; what takes longer occupies its cost


@dataclass(frozen=True)
class ScheduleEvidence:
    """The costs that the scheduler used, compared with a profile's."""

    module: str  # the dump's module
    compared: int  # scheduled instructions that the profile has a cost for
    equal: int  # those whose believed cost is the profile's
    instructions: int  # scheduled instructions that take time
    source: str  # the dump
    # of the module's instructions that want a cost those that have one of their own, as `pgle verify` counts them; None
    # where nobody counted
    covered: int | None = None
    wanted: int | None = None  # all that want one
    # time_coverage, kept_share: what of the module's time these costs cover, as `pgle verify` weighs it
    time_coverage: float | None = None
    kept_share: float | None = None
    mismatched: int | None = None  # instructions that have the cost of another opcode or shape

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
