"""What `pgle rehearse` says to do next."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from pgle.report.schedules.rehearse import advice
from pgle.schedule.compare import Move, Placement, judge_gain


@pytest.mark.parametrize(
    ("independent_us", "worth", "following"),
    [
        (
            0.0,
            "nothing independent to hide behind, so no profile hides it",
            "No order of these instructions hides it",
        ),
        (90.0, "perfect overlap would save 39.0%", "Up to 39.0 % of the step could be hidden"),
    ],
)
def test_where_nothing_is_independent_flags_that_make_other_instructions_are_named_and_else_room(
    independent_us: float, worth: str, following: str
) -> None:
    parts = SimpleNamespace(
        step_us=100.0,
        idle_us=0.0,
        copy_us=0.0,
        exposed_copy_us=0.0,
        exposed_communication_us=40.0,
        communication_us=40.0,
    )
    prediction: Any = SimpleNamespace(
        step_us=100.0, exposed_us=40.0, lower_bound=False, steps_us=(100.0,) * 5, ceiling=SimpleNamespace(step_us=61.0),
        contention=SimpleNamespace(samples=0), timeline=SimpleNamespace(breakdown=parts),
    )  # fmt: skip
    placed = Placement("all-gather", "all-gather", True, 0, 0.0, 40.0, 40.0, independent_us)
    moves = [Move("all-gather", placed, placed)]
    side = SimpleNamespace(prediction=prediction)
    result: Any = SimpleNamespace(
        setting=SimpleNamespace(no_step=""),
        good=True,
        baseline=side,
        profiled=side,
        moves=moves,
        tune="pgle tune step.hlo",
        costs_are="measured",
    )
    assert worth in judge_gain(prediction, prediction, moves, "measured")
    why, command = advice(result)
    assert following in why
    assert command == "pgle tune step.hlo"
