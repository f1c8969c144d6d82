"""Parts, bounds, and the search for flags, for the accounts of a schedule and of a trace alike."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from math import isclose

from pgle.account.next_move import BY_ADVISE
from pgle.account.value import (
    Basis,
    ContentionLoss,
    Opportunity,
    OpportunityKind,
    Place,
    StepBounds,
    StepPart,
)
from pgle.costs.measure.contention import Contention
from pgle.next import Next
from pgle.schedule.simulate import Breakdown

EQUAL = 1e-3
"""Two sums of exposed time are equal if they differ by a smaller share. A trace has whole
nanoseconds, and collectives are summed in another order than the step."""


def parts_of(
    parts: Breakdown, other_us: float | None = None
) -> Mapping[StepPart, float]:
    """Microseconds of each part. They add up to the step.

    Args:
        other_us: work that belongs to no instruction; None for a schedule, which has none.
    """
    other = {} if other_us is None else {StepPart.OTHER: other_us}
    return {
        StepPart.COMPUTE: parts.compute_us,
        StepPart.COMMUNICATION: parts.exposed_communication_us,
        StepPart.COPIES: parts.exposed_copy_us,
        **other,
        StepPart.IDLE: parts.idle_us,
    }


def bounds_of(
    parts: Breakdown, *, best_order_us: float, contended_us: float
) -> StepBounds:
    """The lower bounds of a step.

    Without collectives, a step loses both their exposed time and the contention that the hidden
    ones cause.
    """
    exposed_us = parts.exposed_communication_us
    return StepBounds(
        best_order_us=best_order_us,
        without_communication_us=parts.step_us - exposed_us - contended_us,
        without_copies_us=parts.step_us - parts.exposed_copy_us,
    )


def best_order_us(step_us: float, hideable_us: float, shortest_us: float) -> float:
    """The shortest step that any order of the instructions could reach, in microseconds.

    Args:
        hideable_us: exposed time of all collectives that independent compute could hide.
        shortest_us: the lower bound over all schedules (`schedule.bounds`).
    """
    return min(max(shortest_us, step_us - hideable_us), step_us)


def loss_by(found: Contention, us: float) -> ContentionLoss | None:
    """What a step loses to contention, with the factors; None if it loses nothing."""
    if us <= 0:
        return None
    return ContentionLoss(
        us=us,
        product=found.likely.product,
        other=found.likely.other,
        launches=found.samples,
    )


@dataclass(frozen=True, slots=True)
class PlacedCollective:
    """The facts about a collective that decide whether flags can hide it."""

    kind: str  # ``all-gather``
    us: float  # exposed time in a step, 0 and more
    count: float  # executions in a step
    is_stuck: bool  # no compute in its computation is independent of it
    arrays: int = 1  # arrays that it moves; several if XLA combined collectives


def reach_of_flags_us(collectives: Iterable[PlacedCollective]) -> float:
    """Exposed microseconds that combining, splitting or pipelining collectives could hide.

    A stuck collective does not count if it is the only one of its kind, runs once, and moves one
    array. XLA cannot combine it with another, split it, or move it into another iteration.
    """
    found = tuple(collectives)
    runs = Counter[str]()
    for item in found:
        runs[item.kind] += max(round(item.count), 1) * max(item.arrays, 1)
    return sum(item.us for item in found if not item.is_stuck or runs[item.kind] > 1)


def search_for_flags(
    reach_us: float,
    exposed_us: float,
    basis: Basis,
    command: Next | None,
    where: tuple[Place, ...] = (),
    *,
    has_waits: bool = False,
) -> tuple[Opportunity, ...]:
    """A search for flags as an opportunity; empty if flags can hide nothing.

    Args:
        reach_us: from `reach_of_flags_us`.
        exposed_us: all exposed communication; a search can save no more.
        command: the command that searches; None if unknown.
        where: the exposed collectives, the most exposed first.
        has_waits: whether some exposed time is waits for other ranks, which no flag hides.
    """
    most_us = min(reach_us, exposed_us)
    if most_us <= 0:
        return ()
    why = "all exposed communication is the most that they can hide"
    if has_waits:
        why = "at most all that is exposed, without waits"
    if not isclose(most_us, exposed_us, rel_tol=EQUAL):
        why = (
            "the most that they can hide; the rest of the exposed communication runs "
            "once, and nothing is independent of it"
        )
    found = Opportunity(
        kind=OpportunityKind.FLAGS,
        expected_us=None,
        least_us=0.0,
        most_us=most_us,
        part=StepPart.COMMUNICATION,
        basis=basis,
        title="Search for flags that combine or pipeline collectives",
        why=why,
        command=command,
        where=where,
    )
    return (found,)


def tried_by(
    advise: Next | None, levers: Iterable[Opportunity]
) -> tuple[Opportunity, ...]:
    """Add the command of `advise` to the edits that it can try.

    Args:
        advise: None if unknown; then nothing changes.
    """
    if advise is None:
        return tuple(levers)
    found = []
    for item in levers:
        command = advise if item.kind in BY_ADVISE else item.command
        found.append(replace(item, command=command))
    return tuple(found)
