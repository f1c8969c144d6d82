"""Edits of the program that would shorten a step, read from its scheduled HLO and its costs."""

from __future__ import annotations

from collections.abc import Callable

from pgle.account.levers import attention, scatter
from pgle.account.levers.flow import Flow
from pgle.account.step_costs import StepCosts
from pgle.account.value import LEAST_WORTH, Opportunity, in_order

LEVERS: tuple[Callable[[StepCosts, Flow], Opportunity | None], ...] = (
    attention.find,
    scatter.find,
)
"""A function for each edit: what it would save, or None where it does not apply."""


def find_levers(step: StepCosts) -> tuple[Opportunity, ...]:
    """The edits that may save 1 % of the step or more, the largest expected saving first."""
    flow = Flow(step.module)
    found = (lever(step, flow) for lever in LEVERS)
    worth = LEAST_WORTH * step.step_us
    return in_order(
        item for item in found if item is not None and item.most_us >= worth
    )
