"""Which changes of a step are sure, by what two compilations predict of them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from pgle.costs.estimate.unknown import Range
from pgle.schedule.control import Controlled
from pgle.schedule.predict import Gain, Prediction, Steps, Uncertain, gain
from pgle.schedule.verdict import ENDS, Verdict, judge, turned_by_data


def of(first: float, other: float | None = None, idle: float = 0.0) -> Controlled:
    one = Gain(first, first, first, idle)
    return Controlled(one, None if other is None else Gain(other, other, other, idle))


@pytest.mark.parametrize(
    ("first", "other", "verdict"),
    [
        (0.043, 0.035, Verdict.BETTER),
        (0.006, None, Verdict.BETTER),
        (0.029, 0.004, Verdict.UNSURE),
        (0.0, 0.0, Verdict.SAME),
        (0.05, -0.05, Verdict.UNSURE),
        (-0.124, -0.11, Verdict.WORSE),
    ],
)
def test_both_compilations_must_agree(
    first: float, other: float | None, verdict: Verdict
) -> None:
    assert judge(of(first, other)).verdict is verdict


@pytest.mark.parametrize("sign", [1, -1])
def test_a_change_smaller_than_the_disagreement_of_both_is_unsure(sign: int) -> None:
    assert judge(of(sign * 0.031, sign * 0.009)).verdict is Verdict.UNSURE
    assert judge(of(sign * 0.031, sign * 0.016)).verdict is not Verdict.UNSURE


def test_a_gain_of_launch_gaps_is_unsure() -> None:
    found = judge(of(0.02, 0.02, idle=0.017))
    assert found == (Verdict.UNSURE, "only guessed launch gaps change")


def test_the_estimate_that_turns_the_sign_is_named() -> None:
    one = Gain(0.02, -0.01, 0.05, 0.0, at_ends=(-0.01, 0.05, 0.02, 0.02, 0.02, 0.02))
    found = judge(Controlled(one, one))
    assert found == (Verdict.UNSURE, "contention may turn its sign")
    assert len(Steps._fields) == 1 + 2 * len(ENDS)


def step(busy_us: float, idle_us: float) -> Prediction:
    """A step as far as a gain reads it."""
    step_us = busy_us + idle_us
    steps_us = (step_us,) * len(Steps._fields)
    timeline = SimpleNamespace(breakdown=SimpleNamespace(idle_us=idle_us))
    found = SimpleNamespace(step_us=step_us, steps_us=steps_us, timeline=timeline)
    return cast(Prediction, found)


def test_twice_the_work_in_less_than_twice_the_time_is_a_gain() -> None:
    before, after = step(80, 20), step(140, 20)
    assert judge(Controlled(gain(before, after))).verdict is Verdict.WORSE
    found = Controlled(gain(before, after, work=2.0))
    assert found.shares == pytest.approx((0.2,))
    assert judge(found).verdict is Verdict.BETTER


def test_gaps_that_twice_the_work_shares_are_no_gain() -> None:
    found = gain(step(80, 20), step(160, 20), work=2.0)
    assert (found.share, found.idle_share) == pytest.approx((0.1, 0.1))
    why = "only guessed launch gaps change"
    assert judge(Controlled(found)) == (Verdict.UNSURE, why)


def step_with(step_us: float, *costs: Uncertain) -> Prediction:
    return cast(Prediction, SimpleNamespace(step_us=step_us, uncertain=costs))


def scatter(name: str, cost_us: float, extreme_us: float) -> Uncertain:
    spread = Range(cost_us, 2 * cost_us, "rows", extreme_us, "all rows are the same")
    return Uncertain(name, cost_us, spread, 1)


def test_a_scatter_that_goes_away_may_make_a_longer_step_shorter() -> None:
    before = step_with(1000, scatter("scatter.1", 100, 9000), scatter("other", 50, 900))
    after = step_with(1300, scatter("renamed", 50, 900))
    found = turned_by_data(before, after)
    assert found.startswith("scatter.1 decides: estimated at 100 µs, ")
    assert "shorter above 400 µs (9 ms if all rows are the same)" in found


@pytest.mark.parametrize(
    ("after_us", "extreme_us"), [(900, 9000), (1300, 350), (1300, None)]
)
def test_data_does_not_decide_what_it_cannot_turn(
    after_us: float, extreme_us: float | None
) -> None:
    most_us = 9000 if extreme_us is None else extreme_us
    item = scatter("scatter.1", 100, most_us)
    left = (item,) if extreme_us is None else ()
    before = step_with(1000, item)
    assert turned_by_data(before, step_with(after_us, *left)) == ""


def test_data_that_lengthens_what_replaces_a_scatter_does_not_decide() -> None:
    before = step_with(1000, scatter("scatter.1", 100, 9000))
    after = step_with(1300, scatter("sorted", 150, 9000))
    assert turned_by_data(before, after) == ""
