"""Step times from traces."""

from collections.abc import Callable

import pytest

from pgle.errors import UserError
from pgle.steps.executions import execution_series
from pgle.trace.table import Trace


def test_a_step_is_as_long_as_the_slowest_device(
    make_trace: Callable[..., Trace],
) -> None:
    rows = [
        (0, 0, "fusion", 0, 0, 10), (0, 0, "dot", 1, 10, 10), (1, 0, "fusion", 0, 0, 10), (1, 0, "dot", 1, 20, 10),
        (0, 1, "fusion", 2, 100, 10), (0, 1, "dot", 3, 110, 15),
        (1, 1, "fusion", 2, 100, 10), (1, 1, "dot", 3, 110, 10),
    ]  # fmt: skip
    assert execution_series(
        make_trace(rows), "t"
    ).step_time_s.tolist() == pytest.approx([30e-6, 25e-6])


def test_warm_up_and_truncated_executions_are_marked(
    make_trace: Callable[..., Trace],
) -> None:
    rows = [
        (0, e, name, 2 * e + i, 1000 * e + 50 * i, 50 if e else 90)
        for e in range(8)
        for i, name in enumerate("ab")
    ]
    del rows[-1]
    series = execution_series(make_trace(rows), "t")
    assert [mark > 0 for mark in series.mark] == [True, *[False] * 6, True]


def test_a_trace_without_executions_is_refused(
    make_trace: Callable[..., Trace],
) -> None:
    with pytest.raises(UserError, match="without module executions"):
        execution_series(make_trace([(0, -1, "a", 0, 0, 1)]), "t")
