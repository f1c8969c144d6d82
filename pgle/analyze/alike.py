"""Whether instructions take longer by one factor, as on a GPU with lower clocks."""

from __future__ import annotations

from math import sqrt

import numpy as np

from pgle.trace.columns import BEYOND_CHANCE, Floats


def common_ratio(before: Floats, after: Floats) -> float:
    """The factor by which all instructions take longer; 1 if their changes differ from each other.

    The factor must explain more of the changes than it leaves. And more instructions must get
    longer (or shorter) than by chance.

    Args:
        before: float64[n], times of n instructions. Those with a time of 0 are left out.
        after: float64[n], their times on the other side.
    """
    both = (before > 0) & (after > 0)
    if not both.any():
        return 1.0
    before, after = before[both], after[both]
    ratio = _median_ratio(before, after)
    changed = np.abs(after - before).sum()
    left = np.abs(after - ratio * before).sum()
    if left > changed / 2:
        return 1.0
    is_longer = after > before
    alike = is_longer if ratio > 1 else ~is_longer
    return ratio if exceeds_chance(int(alike.sum()), len(alike)) else 1.0


def _median_ratio(before: Floats, after: Floats) -> float:
    """The median of ``after / before``, weighted by the time before."""
    ratios = after / before
    order = np.argsort(ratios, kind="stable")
    reached = np.cumsum(before[order])
    middle = np.searchsorted(reached, reached[-1] / 2)
    return float(ratios[order][middle])


def exceeds_chance(count: int, total: int) -> bool:
    """Whether more than half of all signs are alike, beyond chance (sign test at 1 %).

    Args:
        count: number of signs that are alike.
        total: number of all signs.
    """
    deviation = sqrt(total) / 2
    return count - total / 2 > BEYOND_CHANCE * deviation
