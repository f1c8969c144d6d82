"""Two windows laid on each other by when the collectives in them ended.

A collective ends on all ranks of its group at about the same moment, however late each arrived: none can leave before
the last one is there. So the right way to lay two windows on each other is the one in which all ends are apart by one
constant, the difference of the two clocks. In the real 4 × A100 run in testdata/ the ends then differ from that
constant by 2 µs, in every other way by 560 µs and more. Where this does not tell, wall clocks do if they are known and
agree well within a step; else the windows are taken to begin with the same execution.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from pgle.trace.column import median

MAX_SAMPLED = 32  # executions whose ends are compared for each way to lay two windows on each other
MIN_POINTS = 4  # fewer ends are apart by one constant by chance

MAX_SPREAD_NS = 1_000_000.0
"""Ends of one collective that are further apart are not of one execution. Real ones are some µs apart."""

UNSUSPICIOUS_NS = 100_000.0  # ends that spread less do not speak against windows that begin together
RESOLUTION_NS = 1000.0  # a smaller spread is no better: timestamps are not that good

CLEARLY = 4.0
"""A way fits when every other one is worse by this factor, and by up to twice that where few executions are common."""

CLOCK_SHARE = 0.25  # clocks tell executions apart when they agree within this share of the time from one to the next

Floats = npt.NDArray[np.float64]


class Evidence(IntEnum):
    """What executions are matched by, the best first."""

    CLOCK = 0  # one clock: devices of one process, or of one recording
    ENDS = 1  # when collectives end
    WALL_CLOCKS = 2
    ORDER = 3  # taken to begin with the same one; what is seen does not speak against it
    NONE = 4  # taken to begin with the same one, and nothing tells
    APART = 5  # taken to begin with the same one, though by wall clocks none is common


def match(one: Floats, other: Floats, ahead_ns: float | None = None, same_clock: bool = False) -> tuple[int, Evidence]:
    """Which execution of one device is the first of another one.

    Args:
        one, other: float64[executions, collectives], ns, when each collective ended; NaN where it did not run.
        ahead_ns: what to add to the times of `one` for the other's clock; None where that is unknown.
        same_clock: `ahead_ns` is exact.

    Returns:
        What to add to the numbers of `other`, and what tells.
    """
    if not one.shape[1]:
        return 0, Evidence.ORDER  # they do not communicate, so nothing of theirs is compared
    one, other = _recorded(one), _recorded(other)
    ways = _ways(one, other)
    if not ways:
        return 0, Evidence.NONE
    if same_clock and ahead_ns is not None:
        return _by_one_clock(ways, ahead_ns, len(one) == len(other))
    period = _period(one, other)
    chosen = _clearest(ways)
    if chosen is not None and _believable(chosen, ways, ahead_ns, period):
        return chosen.shift, Evidence.ENDS
    if ahead_ns is not None and period > 0:
        nearest = min(ways, key=lambda way: abs(way.offset_ns - ahead_ns))
        off_ns = abs(nearest.offset_ns - ahead_ns)
        if max(off_ns, nearest.spread_ns) <= CLOCK_SHARE * period:
            return nearest.shift, Evidence.WALL_CLOCKS
        return 0, Evidence.APART if off_ns > period else Evidence.NONE
    least = min(way.spread_ns for way in ways if way.points >= MIN_POINTS or way is ways[0])
    if len(one) == len(other) and ways[0].spread_ns <= min(CLEARLY * least, UNSUSPICIOUS_NS):
        return 0, Evidence.ORDER
    return 0, Evidence.NONE


def _by_one_clock(ways: Sequence[Way], ahead_ns: float, as_many: bool) -> tuple[int, Evidence]:
    """The way in which ends differ least on one clock; windows are only moved where the ends then coincide."""

    def off_ns(way: Way) -> float:
        return max(abs(way.offset_ns - ahead_ns), way.spread_ns)

    nearest = min(ways, key=off_ns)
    if nearest.shift == 0 or off_ns(nearest) <= MAX_SPREAD_NS:
        return nearest.shift, Evidence.CLOCK
    return 0, Evidence.ORDER if as_many else Evidence.NONE


def _clearest(ways: Sequence[Way]) -> Way | None:
    """The way that fits, where the others clearly do not.

    The fewer executions are compared, the better they fit by chance; and within a step ends repeat to some 10 µs, from
    step to step to some 100. So long series are compared among themselves first, single executions last.
    """
    long = [way for way in ways if way.points >= MIN_POINTS]
    longest = max((way.common for way in long), default=0)
    for enough in (max(longest / 2, 2), 2, 1):
        among = [way for way in long if way.common >= enough]
        best = _clearly_least(among)
        if best is not None and len(long) > 1:
            fewer = min((way.spread_ns for way in long if way.common < enough), default=np.inf)
            if best.spread_ns <= (CLEARLY if len(among) > 1 else 1) * fewer:
                return best
    return None


def _clearly_least(ways: Sequence[Way]) -> Way | None:
    ordered = sorted(ways, key=lambda way: way.spread_ns)
    if not ordered or ordered[0].spread_ns > MAX_SPREAD_NS:
        return None
    # of two or three executions some pair fits by chance
    factor = CLEARLY * (1 + 1 / max(ordered[0].common - 1, 1))
    return ordered[0] if len(ordered) == 1 or ordered[0].spread_ns * factor <= ordered[1].spread_ns else None


def _believable(way: Way, ways: Sequence[Way], ahead_ns: float | None, period_ns: float) -> bool:
    """Whether a way that fits is right: no clock contradicts it, or it fits so much better that the clock is wrong."""
    if ahead_ns is not None and abs(way.offset_ns - ahead_ns) <= period_ns / 2:
        return True
    if way.common == 1:
        return False  # single executions resemble each other
    rival = min((other.spread_ns for other in ways if other is not way and other.common > 1), default=0)
    return ahead_ns is None or way.spread_ns * CLEARLY**2 <= rival


@dataclass(frozen=True, slots=True)
class Way:
    """One way to lay two windows on each other."""

    shift: int  # what is added to the numbers of the second
    offset_ns: float  # median of the second's ends minus the first's
    spread_ns: float  # median distance of those from their median, at least `RESOLUTION_NS`
    points: int  # how many there are
    common: int  # executions that are compared


def _ways(one: Floats, other: Floats) -> list[Way]:
    """All ways in which two windows have an execution in common, the shortest shift first."""
    if not len(one) or not len(other):
        return []
    shift = np.array(sorted(range(1 - len(other), len(one)), key=lambda by: (abs(by), by)), np.int64)
    low, high = np.maximum(0, shift), np.minimum(len(one), len(other) + shift)
    count = np.minimum(high - low, MAX_SAMPLED)
    place = np.arange(min(MAX_SAMPLED, len(one), len(other)))
    spaced = np.linspace(low, high - 1, MAX_SAMPLED, axis=1).astype(np.int64)[:, : len(place)]
    at = np.where((high - low > MAX_SAMPLED)[:, None], spaced, np.minimum(low[:, None] + place, high[:, None] - 1))
    apart = other[at - shift[:, None]] - one[at]
    apart[place >= count[:, None]] = np.nan
    common = np.isfinite(apart).any(axis=2).sum(axis=1)
    apart = apart.reshape(len(shift), len(place) * one.shape[1])
    points = np.isfinite(apart).sum(axis=1)
    offset = _medians(apart, points)
    spread = np.maximum(_medians(np.abs(apart - offset[:, None]), points), RESOLUTION_NS)
    columns = (column.tolist() for column in (shift, offset, spread, points, common))
    return [Way(*row) for row in zip(*columns, strict=True) if row[3]]


def _medians(values: Floats, known: npt.NDArray[np.int64]) -> Floats:
    """The median of the finite values of each row, of which there are `known`; NaN where there is none."""
    ordered = np.sort(values, axis=1)  # NaN come last
    rows, last = np.arange(len(values)), np.maximum(known, 1)
    medians: Floats = (ordered[rows, (last - 1) // 2] + ordered[rows, last // 2]) / 2
    return medians


def _recorded(ends: Floats) -> Floats:
    """The executions up to the last in which something ran."""
    ran = np.flatnonzero(np.isfinite(ends).any(axis=1))
    return ends[: int(ran.max(initial=-1)) + 1]


def _period(*windows: Floats) -> float:
    """The usual time from one execution to the next, in ns; 0 where no device has two."""
    gaps = np.concatenate([np.diff(ends, axis=0).ravel() for ends in windows])
    gaps = gaps[np.isfinite(gaps)]
    return median(gaps) if len(gaps) else 0.0
