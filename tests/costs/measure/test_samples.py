import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pgle.costs.measure.samples import _union_ns, collect_samples
from pgle.costs.profile.lookup import Naming
from pgle.costs.profile.value import Cost, CostKind


def naming(trace, iterations=0):
    filed = tuple(Cost(name, 0.0, kind=CostKind.COMPUTE) for name in trace.instructions)
    count = len(filed)
    return Naming(
        np.arange(count, dtype=np.int32),
        filed,
        ("",) * count,
        (iterations,) * count,
        ((),) * count,
    )


def samples_us(trace, iterations=0, kept=None):
    executions = int(trace.execution.max()) + 1
    keep = np.ones(executions, bool) if kept is None else np.array(kept)
    found = collect_samples(trace, 0, naming(trace, iterations), keep)
    rows = zip(
        found.name,
        found.device,
        found.execution,
        found.occurrence,
        found.time_ns,
        strict=True,
    )
    return [
        (trace.instructions[name], int(d), int(e), int(o), time / 1000)
        for name, d, e, o, time in rows
    ]


def test_kernels_of_one_launch_are_added_without_the_gaps_between_them(make_trace):
    trace = make_trace(
        [
            (0, 0, "gemm", 1, 0, 100),
            (0, 0, "gemm", 1, 101, 300),
            (0, 0, "gemm", 1, 402, 50),
        ]
    )
    assert samples_us(trace) == [("gemm", 0, 0, 0, 450)]


def test_overlapping_kernels_of_one_launch_count_once(make_trace):
    trace = make_trace([(0, 0, "gemm", 1, 0, 100), (0, 0, "gemm", 1, 50, 100)])
    assert samples_us(trace) == [("gemm", 0, 0, 0, 150)]


def test_adjoining_launches_of_one_name_are_one_run(make_trace):
    trace = make_trace(
        [(0, 0, "copy_fusion", launch, 10 * launch, 2) for launch in range(8)]
    )
    assert samples_us(trace) == [("copy_fusion", 0, 0, 0, 16)]


def test_launches_with_others_between_are_runs_of_their_own(make_trace):
    rows = [
        (0, 0, name, launch, 10 * launch, 5 + launch)
        for launch, name in enumerate(["a", "b", "a", "b"])
    ]
    assert sorted(samples_us(make_trace(rows))) == [
        ("a", 0, 0, 0, 5),
        ("a", 0, 0, 1, 7),
        ("b", 0, 0, 0, 6),
        ("b", 0, 0, 1, 8),
    ]


def test_a_trip_count_divides_adjoining_launches_into_iterations(make_trace):
    trace = make_trace(
        [(0, 0, "body_copy", launch, 10 * launch, launch + 1) for launch in range(6)]
    )
    times = [time for *_, time in samples_us(trace, iterations=3)]
    assert times == [1 + 2, 3 + 4, 5 + 6]


def test_dropped_executions_are_left_out(make_trace):
    trace = make_trace([(0, 0, "a", 0, 0, 9), (0, 1, "a", 1, 20, 5)])
    assert samples_us(trace, kept=[False, True]) == [("a", 0, 1, 0, 5)]


def test_rows_without_a_launch_number_are_launches_of_their_own(make_trace):
    trace = make_trace(
        [(0, 0, "a", -1, 0, 5), (0, 0, "b", -1, 5, 1), (0, 0, "a", -1, 7, 3)]
    )
    assert [row[-1] for row in samples_us(trace) if row[0] == "a"] == [5, 3]


@given(
    st.lists(
        st.lists(
            st.tuples(st.integers(0, 50), st.integers(0, 20)), min_size=1, max_size=6
        ),
        min_size=1,
        max_size=8,
    )
)
def test_union_is_what_a_set_of_unit_intervals_gives(groups):
    groups = [sorted(group) for group in groups]
    first = np.cumsum([0, *(len(group) for group in groups)])[:-1]
    flat = [interval for group in groups for interval in group]
    start = np.array([begin for begin, _ in flat], np.int64)
    end = np.array([begin + length for begin, length in flat], np.int64)
    expected = [
        len({tick for begin, length in group for tick in range(begin, begin + length)})
        for group in groups
    ]
    assert _union_ns(start, end, first).tolist() == expected


def test_union_survives_spans_too_long_for_one_running_maximum():
    year = 365 * 86400 * 10**9
    start = np.array([0, 10, 0, 5], np.int64)
    end = np.array([100 * year, 20, 10, 20], np.int64)
    many = 100
    first = np.arange(0, 4 * many, 2)
    assert (
        _union_ns(np.tile(start, many), np.tile(end, many), first).tolist()
        == [100 * year, 20] * many
    )
