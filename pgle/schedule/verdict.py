"""Whether an edit of a program surely shortens its step, by the predictions of two compilations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from enum import StrEnum
from typing import NamedTuple

from pgle.errors import in_words
from pgle.schedule.control import ROUNDED, Controlled
from pgle.schedule.predict import Gain, Prediction, Uncertain
from pgle.worth import is_worth


class Verdict(StrEnum):
    """The result of trying an alternative."""

    BETTER = "better"  # both compilations: shorter by `LEAST_GAIN` or more, and it fits
    FITS = "fits"  # it fits into the GPU's memory; the program as it is does not
    WORSE = "worse"  # both: longer by `LEAST_GAIN` or more; or it does not fit
    SAME = "same step"  # both: no change except rounding
    UNSURE = "unsure"  # anything else
    DIFFERS = "differs"  # it changes the program's results


class Judged(NamedTuple):
    """A verdict with its reason."""

    verdict: Verdict
    why: str = ""  # one clause; empty if the figures are enough


ENDS = ("contention", "an uncertain cost", "the network")
"""Names of the uncertainties in `Steps`, in its order. Each has two ends there."""


def judge(gained: Controlled) -> Judged:
    """Judge a change of the step by two compilations.

    The verdict is sure if four things hold:
    - Both compilations agree on the sign.
    - Each change is `LEAST_GAIN` or more, also without the idle time. Launch gaps are one guess for
      all kernels.
    - The smaller change is at least the difference between both. The mean of the two then is at
      least three standard errors from zero, since half the difference is the standard error.
    - No estimate turns the sign at either of its ends.
    """
    shares = gained.shares
    sign = 1.0 if sum(shares) >= 0 else -1.0
    if max(map(abs, shares)) < ROUNDED:
        return Judged(Verdict.SAME)
    toward = [sign * share for share in shares]
    if gained.depends:
        return Judged(Verdict.UNSURE, "it depends on what autotuning picks")
    if not is_worth(min(toward)):
        return Judged(Verdict.UNSURE)
    # without the time in which nothing runs
    busy = (one.share - one.idle_share for one in _gains(gained))
    if not is_worth(min(sign * share for share in busy)):
        return Judged(Verdict.UNSURE, "only guessed launch gaps change")
    if min(toward) < max(toward) - min(toward):
        why = "the compilations differ by more than the smaller change"
        return Judged(Verdict.UNSURE, why)
    turning = dict.fromkeys(_turned_by(gained, sign))
    if turning:
        return Judged(Verdict.UNSURE, f"{' and '.join(turning)} may turn its sign")
    return Judged(Verdict.BETTER if sign > 0 else Verdict.WORSE)


def _gains(gained: Controlled) -> tuple[Gain, ...]:
    """Return the gain of each compilation."""
    return (gained.first,) if gained.other is None else (gained.first, gained.other)


def _turned_by(gained: Controlled, sign: float) -> Iterator[str]:
    """The estimates that turn the sign of a change at one of their ends."""
    for one in _gains(gained):
        for number, share in enumerate(one.at_ends):
            if sign * share < -ROUNDED:
                yield ENDS[number // 2]


def turned_by_data(before: Prediction, after: Prediction) -> str:
    """Which data would make a step shorter that is estimated to be no shorter, in words.

    Only costs that the change removes count, and that extreme data would raise. An example is a
    scatter whose rows are all the same. If that data raises costs after the change, these count
    against it.

    Returns:
        Empty if no data would make the step shorter.
    """
    costs = Counter(map(_cost_of, _extremes(before)))
    costs.subtract(map(_cost_of, _extremes(after)))
    removed = [item for item in _extremes(before) if costs[_cost_of(item)] > 0]
    longer_us = after.step_us - before.step_us
    spared_us = sum((cost.most_us - cost.us) * count for cost, count in costs.items())
    if not removed or not 0 <= longer_us < spared_us:
        return ""
    gone = +costs
    now_us = sum(cost.us * count for cost, count in gone.items())
    first = removed[0]
    return (
        f"{first.name} decides: estimated at {in_words(now_us)}, this is shorter above "
        f"{in_words(now_us + longer_us)} ({in_words(now_us + spared_us)} if "
        f"{first.range.extreme_why})"
    )


class _Cost(NamedTuple):
    """A cost that depends on data. It has no name, since each compilation chooses its own names."""

    us: float  # all executions, as estimated
    most_us: float  # all executions, with the most extreme data


def _extremes(prediction: Prediction) -> Iterator[Uncertain]:
    """The costs that extreme, implausible data makes much longer."""
    for item in prediction.uncertain:
        if item.range.extreme_us is not None:
            yield item


def _cost_of(item: Uncertain) -> _Cost:
    """Return the cost of something that depends on data, with that at its extreme."""
    us = round(item.cost_us * item.count, 1)
    return _Cost(us, round(item.range.possible_us * item.count, 1))
