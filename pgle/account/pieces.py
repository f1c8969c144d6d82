"""What the accounts of a schedule and of a trace are made of alike: parts, bounds, and the search
for flags.
"""

from __future__ import annotations

from collections.abc import Mapping

from pgle.account.value import (
    Basis,
    Opportunity,
    OpportunityKind,
    Place,
    StepBounds,
    StepPart,
)
from pgle.next import Next
from pgle.schedule.simulate import Breakdown


def parts_of(
    parts: Breakdown, other_us: float | None = None
) -> Mapping[StepPart, float]:
    """Microseconds of each part; they add up to the step.

    Args:
        other_us: work of no instruction; None: a schedule has none.
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
    """What the step could come to at best.

    A step without collectives has neither their exposed time nor the contention that the hidden
    ones cause.
    """
    exposed_us = parts.exposed_communication_us
    return StepBounds(
        best_order_us=best_order_us,
        without_communication_us=parts.step_us - exposed_us - contended_us,
        without_copies_us=parts.step_us - parts.exposed_copy_us,
    )


def search_for_flags(
    exposed_us: float, basis: Basis, command: Next | None, where: tuple[Place, ...] = ()
) -> Opportunity:
    """A search for flags, which can save the exposed communication at most.

    Args:
        command: that searches; None: it is not known.
        where: the exposed collectives, the most exposed first.
    """
    return Opportunity(
        kind=OpportunityKind.FLAGS,
        expected_us=None,
        least_us=0.0,
        most_us=exposed_us,
        part=StepPart.COMMUNICATION,
        basis=basis,
        title="Search for flags that combine or pipeline collectives",
        why="all exposed communication is the most that they can hide",
        command=command,
        where=where,
    )
