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
    loops,
    optimizer,
    precision,
    remat,
    replicated,
    scatter,
)
from pgle.account.levers.flow import Flow
from pgle.account.levers.places import with_shortened
from pgle.account.step_costs import StepCosts
from pgle.account.value import Opportunity, in_order
from pgle.worth import is_worth
from pgle.xla.vendors import maker_of

Lever = Callable[[StepCosts, Flow], Opportunity | None]

LEVERS: tuple[tuple[Lever, ...], ...] = (
    (replicated.find,),
    (attention.find,),
    (scatter.find,),
    (dense_gradient.find,),
    (logits.find,),
    (precision.find, precision.find_cast),
    (copies.find,),
    (donation.find,),
    (remat.find,),
    (optimizer.find,),
    (loops.find,),
    (remat.find_room,),
)
"""A function for each edit, which returns its opportunity, or None if the edit does not apply.

Edits of one row are ways to shorten the same instructions. Otherwise an instruction belongs to the
first that shortens it.
"""


def find_levers(step: StepCosts) -> tuple[Opportunity, ...]:
    """The edits that may be worth an action, the largest expected saving first.

    No instruction belongs to edits of two rows. The exception is a scatter that makes a whole
    gradient which devices then reduce.
    """
    flow = Flow(step.module)
    found: list[Opportunity] = []
    for ways in LEVERS:
        made = filter(None, [lever(step, flow) for lever in ways])
        kept = [item for item in made if _counts(step, item)]
        found += (with_shortened(step, item) for item in kept)
        for item in kept:
            step = step.without(item.instructions)
    maker = maker_of(step.hardware)
    return in_order([replace(item, why=maker.worded(item.why)) for item in found])


def _counts(step: StepCosts, item: Opportunity) -> bool:
    """Whether an edit is worth an action; one that shortens no instruction always is."""
    return not item.instructions or is_worth(item.at_stake_us, step.step_us)
