"""Which steps are left out, and by which rule."""

from pathlib import Path

import numpy as np
import pytest

from pgle.run.inputs.step_times import read_runs
from pgle.steps.series import (
    Mark,
    Rules,
    Step,
    StepTimes,
    make_series,
    steady,
    steady_median_s,
    truncation,
)


def run(
    times: list[float], marks: dict[int, Mark] | None = None, rules: Rules | None = None
) -> StepTimes:
    steps = [
        Step(i, value, mark=(marks or {}).get(i, Mark.NONE))
        for i, value in enumerate(times)
    ]
    return steady(make_series("mem", "jsonl", steps), rules or Rules())


def left_out(times: StepTimes) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for item in times.left_out:
        found.setdefault(item.rule, []).extend(item.steps)
    return found


def test_the_real_maxtext_log(testdata: Path) -> None:
    """A profiled run of 30 steps: nsys ran in steps 5 and 6, was stopped before 7, and wrote its
    report in 8.
    """
    times = steady(
        read_runs(str(testdata / "maxtext_pgle" / "llama2_7b_pgle_run.log"))[0]
    )
    assert left_out(times) == {"profiled": [5, 6, 7], "warm-up": [0, 1], "stall": [8]}
    assert times.step.tolist() == [2, 3, 4, *range(9, 30)]
    assert times.median_s == pytest.approx(4.202)
    assert "17.7 % longer from step 9 on" in times.warnings[0]


def test_a_compile_at_the_start_is_warm_up() -> None:
    assert left_out(run([30.0, *[1.0] * 20])) == {"warm-up": [0]}


def test_a_slow_start_is_warm_up() -> None:
    settling = [1 + 0.3 * 0.5**i for i in range(6)]
    times = [*settling, *(1 + 0.002 * (-1) ** i for i in range(40))]
    gone = left_out(run(times))["warm-up"]
    assert gone[:4] == [0, 1, 2, 3]
    assert len(gone) <= 8


def test_a_fast_start_is_no_warm_up() -> None:
    noise = np.random.default_rng(0).normal(0, 0.002, 40)
    assert left_out(run([0.9, 0.9, 0.9, *(1 + noise).tolist()])) == {}


def test_a_single_slow_step_is_a_stall() -> None:
    assert left_out(run([*[1.0] * 20, 9.0, *[1.0] * 9])) == {"stall": [20]}


def test_steps_recorded_as_profiled_or_compiled_go_whatever_their_time() -> None:
    assert left_out(run([1.0] * 30, {3: Mark.PROFILED, 9: Mark.COMPILED})) == {
        "profiled": [3],
        "compile": [9],
    }


def test_steps_not_waited_for_are_left_out_and_said() -> None:
    times = run([0.001, 0.001, *[1.0] * 20])
    assert left_out(times) == {"not waited for": [0, 1]}
    assert "block_until_ready" in times.warnings[0]


def test_frequent_slow_steps_are_no_stalls() -> None:
    times = run([1.0, 1.0, 2.0] * 12)
    assert left_out(times) == {}
    assert "too many to be stalls" in times.warnings[0]


def test_the_share_of_time_in_stalls() -> None:
    assert run([1.0] * 10 + [5.0] + [1.0] * 5).stall_share == pytest.approx(5 / 20)


def test_a_given_warm_up_and_window() -> None:
    assert left_out(run([1.0] * 30, rules=Rules(warmup=4))) == {"warm-up": [0, 1, 2, 3]}
    assert run([1.0] * 30, rules=Rules(first=10, last=12)).step.tolist() == [10, 11, 12]


def test_truncation_is_the_minimum_of_the_marginal_standard_error() -> None:
    values = np.random.default_rng(1).normal(0, 1, 60)
    values[:5] += 3.0
    bound = 5 * 1.4826 * np.median(np.abs(values - np.median(values)))
    clipped = np.clip(values, np.median(values) - bound, np.median(values) + bound)
    slow = [clipped[d:].var() / (len(clipped) - d) for d in range(31)]
    assert truncation(values) == int(np.argmin(slow))


def test_a_slow_start_counts_where_the_truncation_reaches_far_beyond_it() -> None:
    """MSER drops eighteen steps here, of which thirteen are steady."""
    times = 1 + np.random.default_rng(131).normal(0, 0.002, 200)
    times[1:6] *= 1 + 0.2 * np.exp(-np.arange(5) / 2)
    times[0] = 150
    assert left_out(run(times.tolist()))["warm-up"] == [0, 1, 2, 3, 4, 5]


def test_the_median_of_a_stage_leaves_out_its_compilation() -> None:
    times = [30.0, 1.0, 1.02, 1.0, 1.02, 1.0, 1.02]
    assert steady_median_s(times) == pytest.approx(1.01)
    assert steady_median_s(()) is None
