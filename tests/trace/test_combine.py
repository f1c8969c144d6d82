"""Several inputs as one table."""

import dataclasses

import numpy as np

from pgle.trace.table import Device, Source, combine


def window(make_trace, process, executions, *, first_start=0):
    """One device that ran a step of one kernel some times."""
    rows = [
        (0, number, "gemm", number, first_start + 100 * number, 10)
        for number in range(executions)
    ]
    return dataclasses.replace(make_trace(rows), devices=(Device(process, 0),))


def test_ranks_stay_apart(make_trace):
    trace = combine([window(make_trace, "a:1", 2), window(make_trace, "b:1", 2)])
    assert [device.process for device in trace.devices] == ["a:1", "b:1"]
    assert trace.execution.tolist() == [0, 1, 0, 1]


def test_a_second_window_of_one_process_is_numbered_on(make_trace):
    trace = combine(
        [window(make_trace, "a:1", 3), window(make_trace, "a:1", 2, first_start=5_000)]
    )
    assert len(trace.devices) == 1
    assert trace.execution.tolist() == [0, 1, 2, 3, 4]


def test_times_of_compilation_move_with_the_window_of_their_process(make_trace):
    times = np.array([[10, 20]], np.int64)
    first, second = (
        dataclasses.replace(window(make_trace, "a:1", 2), compiling={"a:1": times})
        for _ in range(2)
    )
    found = combine(
        [first, dataclasses.replace(second, duration_ns=second.duration_ns + 1)]
    )
    assert found.compiling["a:1"].tolist() == [[10, 20], [110_010, 110_020]]


def test_what_all_files_warn_of_is_said_once(make_trace):
    traces = [
        dataclasses.replace(
            window(make_trace, f"{rank}:1", 2),
            sources=(Source(f"/run/rank{rank}.xplane.pb", "xplane"),),
            warnings=(f"rank{rank}.xplane.pb: simulated", "a line of no file"),
        )
        for rank in range(3)
    ]
    assert combine(traces).warnings == (
        "rank0.xplane.pb and 2 more: simulated",
        "a line of no file",
    )
