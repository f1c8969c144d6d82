"""What `pgle rehearse` says to do next."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from pgle.report import predict
from pgle.report.predict import advice, headline
from pgle.schedule.control import Controlled
from pgle.schedule.placements import Move, Placement
from pgle.schedule.predict import Gain


def rehearsed(
    independent_us: float,
    *,
    costs_are: str = "measured",
    tune: str = "pgle tune step.hlo",
) -> Any:
    """A step of 100 µs, of which 40 µs are exposed, that a profile does not change."""
    parts = SimpleNamespace(
        step_us=100.0,
        idle_us=0.0,
        copy_us=0.0,
        exposed_copy_us=0.0,
        exposed_communication_us=40.0,
        communication_us=40.0,
    )
    prediction: Any = SimpleNamespace(
        step_us=100.0, exposed_us=40.0, lower_bound=False, steps_us=(100.0,) * 7, ceiling_us=61.0,
        timeline=SimpleNamespace(breakdown=parts),
    )  # fmt: skip
    placed = Placement(
        "all-gather", "all-gather", True, 0, 0.0, 40.0, 40.0, independent_us
    )
    side = SimpleNamespace(prediction=prediction)
    return SimpleNamespace(
        request=SimpleNamespace(no_step="", failed=""),
        good=True,
        default=None,
        baseline=side,
        profiled=side,
        moves=[Move("all-gather", placed, placed)],
        tune=tune,
        costs_are=costs_are,
        gained=Controlled(gained(0.0)),
        lhs_gained=None,
    )


def gained(share: float) -> Gain:
    """A gain with no range and no part in idle time."""
    return Gain(share, share, share, 0.0)


@pytest.mark.parametrize(
    ("independent_us", "following"),
    [
        (0.0, "No order of these instructions hides it"),
        (90.0, "Another order saves at most 39.0 %"),
    ],
)
def test_where_nothing_is_independent_flags_that_make_other_instructions_are_named_and_else_room(
    independent_us: float, following: str
) -> None:
    why, command = advice(rehearsed(independent_us))
    assert following in why
    assert command == "pgle tune step.hlo"


@pytest.mark.parametrize(
    ("independent_us", "costs_are", "said"),
    [
        (0.0, "measured", "40.0 % of the step is exposed, and no order hides it"),
        (
            25.0,
            "measured",
            "The profile changes nothing; another order saves at most 25.0 %",
        ),
        (
            90.0,
            "estimated",
            "A profile would change nothing; another order saves at most 39.0 %",
        ),
    ],
)
def test_what_could_be_saved_is_bounded_by_what_is_independent(
    independent_us: float, costs_are: str, said: str
) -> None:
    assert headline(rehearsed(independent_us, costs_are=costs_are)) == (said, "warn")


def test_a_search_that_was_made_is_not_proposed_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        predict, "_analyze_command", lambda result: "pgle analyze rehearsal"
    )
    why, command = advice(rehearsed(90.0, tune=""))
    assert (why, command) == (
        "The search for flags in this run directory found nothing better.",
        "pgle analyze rehearsal",
    )


def test_a_gain_that_other_kernels_turn_into_a_loss_is_no_verdict() -> None:
    found = rehearsed(90.0)
    found.gained = Controlled(gained(-0.010), gained(0.014))
    words = "The profile depends on what autotuning picks: the step gets 1.0 % longer or 1.4 % shorter"
    assert headline(found) == (words, "warn")


def test_of_two_gains_the_smaller_is_the_verdict() -> None:
    found = rehearsed(90.0)
    found.gained = Controlled(gained(0.059), gained(0.009))
    assert headline(found) == (
        "The profile shortens the step by 0.9 % (predicted)",
        "good",
    )
