"""Edits of the program that would shorten a step, read from its scheduled HLO and its costs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from pgle.account.levers import (
    attention,
    copies,
    dense_gradient,
    donation,
    logits,
    optimizer,
    precision,
    remat,
    replicated,
    scatter,
)
from pgle.account.levers.flow import Flow
from pgle.account.step_costs import StepCosts
from pgle.account.value import Opportunity, in_order
from pgle.worth import is_worth
from pgle.xla.vendors import maker_of

LEVERS: tuple[Callable[[StepCosts, Flow], Opportunity | None], ...] = (
    replicated.find,
    attention.find,
    scatter.find,
    dense_gradient.find,
    logits.find,
    precision.find,
    copies.find,
    donation.find,
    remat.find,
    optimizer.find,
    remat.find_room,
)
"""A function for each edit, which returns its opportunity, or None if the edit does not apply. If
several edits remove an instruction, it belongs to the first.
"""


def find_levers(step: StepCosts) -> tuple[Opportunity, ...]:
    """The edits that may be worth an action, the largest expected saving first.

    No instruction belongs to two of them. The exception is a scatter that makes a whole gradient
    which devices then reduce.
    """
    flow = Flow(step.module)
    found = []
    for lever in LEVERS:
        item = lever(step, flow)
        if item is None:
            continue
        if item.instructions and not is_worth(item.at_stake_us, step.step_us):
            continue
        found.append(item)
        step = step.without(item.instructions)
    maker = maker_of(step.hardware)
    return in_order([replace(item, why=maker.worded(item.why)) for item in found])
