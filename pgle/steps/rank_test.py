"""Ranks, and the Mann-Whitney test on them.

scipy has both; importing its `stats` takes half a second, most of what `pgle compare` would take. The tests hold these
against it.
"""

from __future__ import annotations

import math

import numpy as np

from pgle.steps.series import Floats

EXACT_UP_TO = 8
"""Units of the smaller side up to which p is counted rather than approximated, where there are no ties (as scipy)."""


def ranks(values: Floats) -> Floats:
    """The rank of each value from 1; equal values share the mean of theirs."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    result: Floats = (np.cumsum(counts) - (counts - 1) / 2)[inverse]
    return result


def mann_whitney_p(one: Floats, two: Floats) -> float:
    """Two-sided p of the Mann-Whitney test; by the normal approximation with continuity correction where not exact."""
    n, m = len(one), len(two)
    both = np.concatenate([one, two])
    first = float(ranks(both)[:n].sum()) - n * (n + 1) / 2
    larger = max(first, n * m - first)
    ties = np.unique(both, return_counts=True)[1].astype(np.float64)
    if min(n, m) <= EXACT_UP_TO and ties.max() == 1:
        return min(1.0, 2 * _exact_tail(round(larger), n, m))
    total = n + m
    tied = float((ties**3 - ties).sum()) / (total * (total - 1))
    deviation = math.sqrt(n * m / 12 * (total + 1 - tied))
    return min(1.0, math.erfc((larger - n * m / 2 - 0.5) / deviation / math.sqrt(2)))


def _exact_tail(least: int, n: int, m: int) -> float:
    """The probability that U is at least `least`.

    The number of orders with each U are the coefficients of a Gaussian binomial (Mann and Whitney, "On a test of
    whether one of two random variables is stochastically larger than the other", 1947).
    """
    few, many = sorted((n, m))
    orders = [1] + [0] * (n * m)
    for i in range(1, few + 1):
        for at in range(n * m, many + i - 1, -1):  # times 1 - q^(many + i)
            orders[at] -= orders[at - many - i]
        for at in range(i, n * m + 1):  # divided by 1 - q^i
            orders[at] += orders[at - i]
    return sum(orders[least:]) / math.comb(n + m, few)
