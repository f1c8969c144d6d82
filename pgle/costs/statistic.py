"""Statistics over samples of one instruction, chosen by name: ``median``, ``mean``, ``min``, ``max``, ``pNN``."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from pgle.errors import UserError
from pgle.trace.columns import Codes, Floats, Ints

_PERCENTILE = re.compile(r"p(\d{1,2}(?:\.\d+)?|100)")


@dataclass(frozen=True, slots=True)
class Statistic:
    """A statistic of a group of samples."""

    name: str  # as the user gave it
    percentile: float | None  # 0 to 100 with linear interpolation; None for the mean

    def over_groups(self, values: Floats, groups: Codes, count: int, weights: Ints | None = None) -> Floats:
        """The statistic of the values of each group 0 … count-1; NaN for a group without values.

        Args:
            weights: int64[n], how often each value counts, at least once; None: once.

        Returns:
            float64[count].
        """
        sizes = np.bincount(groups, weights=weights, minlength=count).astype(np.int64)
        if self.percentile is None:
            times = values if weights is None else values * weights
            sums = np.bincount(groups, weights=times, minlength=count)
            means: Floats = np.full(count, np.nan)
            np.divide(sums, sizes, out=means, where=sizes > 0)
            return means
        order = by_group(values, groups, count)
        reached = None if weights is None else np.cumsum(weights[order])
        return percentile_of_sorted(values[order], sizes, self.percentile, reached)


def by_group(values: Floats, groups: Codes, count: int) -> Ints:
    """The order of (group, value), of groups 0 … count-1."""
    by_value = np.argsort(values)  # several times faster than as a key of `lexsort`
    groups = groups[by_value]
    narrow = groups.astype(np.int16) if count < 2**15 else groups  # two bytes are sorted by counting
    return by_value[np.argsort(narrow, kind="stable")]


def percentile_of_sorted(ordered: Floats, sizes: Ints, percentile: float, reached: Ints | None = None) -> Floats:
    """The percentile of each group, linear between neighbours as `numpy.percentile`; NaN where a group is empty.

    Args:
        reached: how many there are up to each of `ordered`, where one counts several times.
    """
    result = np.full(len(sizes), np.nan)
    filled = sizes > 0
    start = (np.cumsum(sizes) - sizes)[filled]
    position = (sizes[filled] - 1) * (percentile / 100)
    low, high = np.floor(position).astype(np.int64), np.ceil(position).astype(np.int64)
    places = start + low, start + high
    if reached is not None:
        places = np.searchsorted(reached, places[0], side="right"), np.searchsorted(reached, places[1], side="right")
    below, above = ordered[places[0]], ordered[places[1]]
    result[filled] = below + (above - below) * (position - low)
    return result


def parse_statistic(text: str) -> Statistic:
    """The statistic called `text`.

    Raises:
        UserError: the name is not one of ``median``, ``mean``, ``min``, ``max``, ``p0`` … ``p100``.
    """
    named = {"median": 50.0, "mean": None, "min": 0.0, "max": 100.0}
    if text in named:
        return Statistic(text, named[text])
    match = _PERCENTILE.fullmatch(text)
    if match is None:
        raise UserError(f"unknown statistic {text!r}", remedy="use median, mean, min, max or pNN such as p90")
    return Statistic(text, float(match[1]))
