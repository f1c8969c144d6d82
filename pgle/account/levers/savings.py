"""What the saving of an edit is worth that nobody tried."""

from __future__ import annotations

from dataclasses import replace
from math import fsum

from pgle.account.step_costs import StepCosts
from pgle.account.value import Opportunity
from pgle.schedule.predict import ESTIMATE_RANGE


def least_saved_us(now_us: float, estimated_us: float) -> float:
    """Microseconds that an edit saves at least, if what replaces `now_us` takes longer than
    estimated.
    """
    return max(now_us - ESTIMATE_RANGE[1] * estimated_us, 0.0)


def between_kernels_us(step: StepCosts) -> float:
    """Microseconds of a step in which nothing computes, most of it exposed communication."""
    return max(step.step_us - fsum(step.whole_us.values()), 0.0)


def bound_alone(item: Opportunity) -> Opportunity:
    """The opportunity of which only the most that it can save is known."""
    return replace(item, expected_us=None, least_us=0.0)
