"""Bounds of the saving of an edit that nobody has tried."""

from __future__ import annotations

from dataclasses import replace
from math import fsum

from pgle.account.step_costs import StepCosts
from pgle.account.value import Opportunity
from pgle.schedule.predict import ESTIMATE_RANGE


def least_saved_us(now_us: float, estimated_us: float) -> float:
    """Microseconds that an edit saves at least.

    Args:
        now_us: time of the instructions that it replaces.
        estimated_us: estimated time of the replacement. It may take `ESTIMATE_RANGE[1]` times as
            long.
    """
    return max(now_us - ESTIMATE_RANGE[1] * estimated_us, 0.0)


def between_kernels_us(step: StepCosts) -> float:
    """Microseconds of a step in which nothing computes. Most of it is exposed communication."""
    return max(step.step_us - fsum(step.whole_us.values()), 0.0)


def bound_alone(item: Opportunity) -> Opportunity:
    """The opportunity with its upper bound only: no expected saving, and at least 0."""
    return replace(item, expected_us=None, least_us=0.0)
