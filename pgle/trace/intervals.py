"""Sets of time as arrays of intervals: union, measure, overlap.

An interval set is a pair of float64 arrays (start, end), ordered and disjoint; `union` makes one
from any intervals.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pgle.trace.columns import Floats, Ints


@dataclass(frozen=True, eq=False)
class Intervals:
    """A set of time: ordered, disjoint, non-empty intervals."""

    start: Floats  # float64[n], increasing
    end: Floats  # float64[n], each after its start and not after the next start

    def __len__(self) -> int:
        return len(self.start)

    @property
    def lengths(self) -> Floats:
        """float64[n], the length of each interval."""
        return self.end - self.start

    @property
    def length(self) -> float:
        """The total length of the set."""
        return float(np.sum(self.lengths))

    @property
    def ns(self) -> Ints:
        """int64[n, 2], the start and end of each interval, truncated to integers."""
        return np.stack([self.start, self.end], axis=1).astype(np.int64)


EMPTY = Intervals(np.empty(0), np.empty(0))


def union(start: npt.ArrayLike, end: npt.ArrayLike) -> Intervals:
    """Return the set that n intervals cover, given in any order. Empty intervals are dropped.

    Args:
        start, end: float[n].
    """
    first = np.asarray(start, dtype=np.float64)
    last = np.asarray(end, dtype=np.float64)
    filled = last > first
    if not filled.all():
        first = first[filled]
        last = last[filled]
    if len(first) == 0:
        return EMPTY
    if (first[1:] < first[:-1]).any():
        order = np.argsort(first, kind="stable")
        first = first[order]
        last = last[order]
    # the latest end so far: an interval that begins after it begins a new part of the set
    reach = np.maximum.accumulate(last)
    begins = np.flatnonzero(first[1:] > reach[:-1]) + 1
    heads = np.append(0, begins)
    tails = np.append(begins - 1, -1)
    return Intervals(first[heads], reach[tails])


def join(a: Intervals, b: Intervals) -> Intervals:
    """Return the set that `a` or `b` covers."""
    return union(np.concatenate([a.start, b.start]), np.concatenate([a.end, b.end]))


def covered(cover: Intervals, start: npt.ArrayLike, end: npt.ArrayLike) -> Floats:
    """Return how much of each of n intervals lies inside the set `cover`.

    Args:
        cover: a set of m intervals.
        start, end: float[n]. These intervals may overlap each other.

    Returns:
        float64[n], in O((n + m) log m) time.
    """
    first = np.asarray(start, dtype=np.float64)
    last = np.asarray(end, dtype=np.float64)
    inside = _measure_before(cover, last) - _measure_before(cover, first)
    lengths: Floats = np.maximum(inside, 0.0)
    return lengths


def _measure_before(cover: Intervals, time: Floats) -> Floats:
    """Return the length of cover ∩ (-∞, t) for each time t."""
    if len(cover) == 0:
        return np.zeros_like(time)
    lengths = cover.lengths
    before = np.append(0.0, np.cumsum(lengths))  # the length of the earlier intervals
    begun = np.searchsorted(cover.start, time, side="right")
    last = np.maximum(begun - 1, 0)  # the last interval that begins before the time
    inside = np.minimum(time - cover.start[last], lengths[last])
    return np.where(begun > 0, before[last] + inside, 0.0)


def overlap(a: Intervals, b: Intervals) -> float:
    """Return the length of a ∩ b."""
    return float(np.sum(covered(b, a.start, a.end)))


def complement(a: Intervals, start: float, end: float) -> Intervals:
    """Return the part of the window [start, end) that `a` does not cover."""
    inside = union(np.clip(a.start, start, end), np.clip(a.end, start, end))
    # a gap begins where an interval ends, and ends where the next one begins
    gap_start = np.append(start, inside.end)
    gap_end = np.append(inside.start, end)
    return union(gap_start, gap_end)


def without(a: Intervals, b: Intervals) -> Intervals:
    """Return the part of `a` that `b` does not cover."""
    if len(a) == 0 or len(b) == 0:
        return a
    start = float(min(a.start[0], b.start[0]))
    end = float(max(a.end[-1], b.end[-1]))
    return complement(join(complement(a, start, end), b), start, end)
