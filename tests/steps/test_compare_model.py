"""Simulated runs: the interval of a comparison holds what their model does not know."""

from __future__ import annotations

import numpy as np
import pytest

from pgle.report.compare import comparison_page
from pgle.report.page.plain import markdown
from pgle.steps.compare import Comparison, IntervalKind, compare
from pgle.steps.estimate import Assumptions
from pgle.steps.series import Side, Step, make_series, steady
from pgle.steps.verdict import Verdict


def side(level: float, modelled_us: tuple[float, ...], seed: int) -> Side:
    """Fifty simulated steps of about `level` seconds, with a jitter of one per mille."""
    jitter = np.random.default_rng(seed).standard_normal(50)
    steps = [
        Step(place, time)
        for place, time in enumerate((level * np.exp(0.001 * jitter)).tolist())
    ]
    series = make_series("mem", "jsonl", steps, simulated=True, modelled_us=modelled_us)
    return Side("side", (steady(series),))


def compared(before_us: tuple[float, ...], after_us: tuple[float, ...]) -> Comparison:
    return compare(side(1.0, before_us, 1), side(0.99, after_us, 2))


def test_jitter_alone_calls_one_per_cent_faster() -> None:
    assert compared((), ()).verdict is Verdict.FASTER


def test_a_gain_that_contention_may_take_away_is_undecided() -> None:
    found = compared((100.0, 100.0), (99.0, 101.0))
    assert found.verdict is Verdict.UNDECIDED
    low, high = found.ci
    assert low < 0.99 < 1.01 < high


def test_a_range_on_one_side_opens_that_end_only() -> None:
    jitter = compared((), ())
    found = compared((100.0, 100.0), (99.0, 97.0))
    assert found.verdict is Verdict.FASTER
    assert found.ci[0] == pytest.approx(0.97, abs=0.001)  # jitter moves the difference
    assert found.ci[1] == pytest.approx(jitter.ci[1])


def test_records_of_one_side_only_leave_the_interval_as_it_is() -> None:
    assert compared((100.0, 90.0), ()).ci == compared((), ()).ci


def test_noise_that_is_the_same_in_each_launch_is_no_change() -> None:
    launches = [side(1.0, (100.0, 100.0), seed=1).runs[0] for _ in range(2)]
    others = [side(1.0, (100.0, 100.0), seed=2).runs[0] for _ in range(2)]
    base = Side("base", tuple(launches))
    new = Side("new", tuple(others))
    found = compare(base, new, Assumptions(paired=True))
    assert found.verdict is Verdict.SAME
    low, high = found.ci
    assert low <= 1.0 <= high
    assert any(
        "holds the change that the model predicts" in line for line in found.warnings
    )


@pytest.mark.parametrize("after_us", [(99.0, 101.0), (99.0, 99.0), (99.0, 97.0), ()])
def test_a_simulated_comparison_has_one_range_with_one_name(
    after_us: tuple[float, ...],
) -> None:
    found = compared((100.0,) * len(after_us), after_us)
    page = comparison_page(found, ())
    lines = [line for line in markdown(page).splitlines() if "range" in line]
    assert len(lines) > 1
    assert all(IntervalKind.ESTIMATE in line for line in lines)
    assert [line for line in lines[1:] if "%" in line] == []
