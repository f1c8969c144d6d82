"""Whether instructions take longer by one factor, as on a GPU with lower clocks."""

from __future__ import annotations

import numpy as np

from pgle.trace.columns import Floats

BY_CHANCE = 2.576  # standard deviations of a sign test: 1 %, two-sided


def common_ratio(before: Floats, after: Floats) -> float:
    """The factor by which all instructions take longer; 1 if their changes differ from each other.

    It is the median of their ratios, weighted by time. It must explain more of the changes than it
    leaves. And more instructions must get longer (or shorter) than by chance (sign test at 1 %).

    Args:
        before: float64[n], times of n instructions. Those with a time of 0 are left out.
        after: float64[n], their times on the other side.
    """
    both = (before > 0) & (after > 0)
    if not both.any():
        return 1.0
    before, after = before[both], after[both]
    ratios = after / before
    order = np.argsort(ratios, kind="stable")
    reached = np.cumsum(before[order])
    ratio = float(ratios[order][np.searchsorted(reached, reached[-1] / 2)])
    left = float(np.abs(after - ratio * before).sum())
    if left > float(np.abs(after - before).sum()) / 2:
        return 1.0
    longer = int((after > before).sum())
    deviation = np.sqrt(len(before)) / 2
    alike = longer if ratio > 1 else len(before) - longer
    return ratio if alike - len(before) / 2 > BY_CHANCE * deviation else 1.0
