"""Change points: where the level of a series of numbers changes for good."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from pgle.steps.series import Floats

MANY = 2000  # longer series are thinned to so many medians of blocks, since the search is quadratic
SHORTEST = 3  # values in a segment; fewer are an excursion, no new level
PENALTY = 3.0
"""A further change point must lower the sum of squares by this many ``noise² · ln n`` (the Bayesian information
criterion has 2; autocorrelation asks for more)."""


CLEAR = 4.0
"""Standard errors by which the means of two levels must differ: of skewed noise alone (5 %, exponential, 10 to 60
values) 2 to 4 of 100 series pass, and 9 to 15 pass the penalty."""


def change_points(values: Floats) -> tuple[int, ...]:
    """Indices at which a new level begins, by penalised least squares, solved exactly.

    Optimal partitioning (Jackson et al., "An algorithm for optimal partitioning of data on an interval", IEEE Signal
    Processing Letters 12, 2005): the segmentation that minimises squared distance to segment means plus a penalty per
    change. Quadratic in the number of values.

    Args:
        values: in order of time; pass logarithms to find relative changes.
    """
    count = len(values)
    if count < 2 * SHORTEST:
        return ()
    sigma = robust_noise(values)
    penalty = PENALTY * max(sigma, 1e-12) ** 2 * np.log(count)
    centred = without_excursions(values - np.median(values), sigma)
    sums = np.concatenate([[0.0], np.cumsum(centred)])
    squares = np.concatenate([[0.0], np.cumsum(centred**2)])
    best = np.full(count + 1, np.inf)
    best[0] = -penalty
    begins = np.zeros(count + 1, np.int64)
    for end in range(SHORTEST, count + 1):
        start = np.arange(0, end - SHORTEST + 1)
        start = start[(start == 0) | (start >= SHORTEST)]
        residual = squares[end] - squares[start] - (sums[end] - sums[start]) ** 2 / (end - start)
        cost = best[start] + residual + penalty
        chosen = int(np.argmin(cost))
        best[end], begins[end] = cost[chosen], start[chosen]
    found: list[int] = []
    at = int(begins[count])
    while at > 0:
        found.append(at)
        at = int(begins[at])
    return tuple(reversed(found))


def without_excursions(values: Floats, sigma: float) -> Floats:
    """Values farther than 4 `sigma` from the median of the five around them, replaced by it (Hampel's filter)."""
    padded = np.pad(values, 2, mode="edge")
    around = np.median(np.lib.stride_tricks.sliding_window_view(padded, 5), axis=1)
    return np.where(np.abs(values - around) > 4 * sigma, around, values)


def robust_noise(values: Floats) -> float:
    """Standard deviation of the values about a level that may change, from the median of successive differences."""
    differences = np.abs(np.diff(values))
    return float(1.4826 * np.median(differences) / np.sqrt(2)) if len(differences) else 0.0


def level_shift(values: Floats, least: float) -> tuple[int, float] | None:
    """The largest lasting change of level: (index, difference of the medians after and before).

    None where it is below `least`, or not `CLEAR` of what the values before and after it differ among themselves.
    """
    block = -(-len(values) // MANY) if len(values) else 1
    whole = len(values) // block * block
    thinned = np.median(values[:whole].reshape(-1, block), axis=1) if whole else values
    points = change_points(thinned)
    if not points:
        return None
    edges = (0, *points, len(thinned))
    levels = [thinned[a:b] for a, b in pairwise(edges)]
    shifts = np.diff([float(np.median(level)) for level in levels])
    largest = int(np.argmax(np.abs(shifts)))
    before, after = levels[largest : largest + 2]
    error = np.sqrt(before.var(ddof=1) / len(before) + after.var(ddof=1) / len(after))
    if abs(shifts[largest]) < least or abs(after.mean() - before.mean()) < CLEAR * error:
        return None
    return points[largest] * block, float(shifts[largest])
