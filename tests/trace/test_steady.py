import tracemalloc

import numpy as np

from pgle.trace.steady import find_executions


def executions(make_trace, durations, *others, devices=1, missing=()):
    every = [durations] * devices if not others else [durations, *others]
    rows = [
        (
            device,
            number,
            name,
            number,
            1000 * number + 10 * offset,
            time if name == "gemm" else 1,
        )
        for device, of_device in enumerate(every)
        for number, time in enumerate(of_device)
        for offset, name in enumerate(["gemm", "add", "mul"])
        if (device, number, name) not in missing
    ]
    trace = make_trace(rows)
    return find_executions(trace, np.zeros(len(trace.instructions), bool))


def kept(found):
    return found.execution[found.keep].tolist()


def test_steady_executions_are_all_kept(make_trace):
    assert kept(executions(make_trace, [100, 101, 100, 99, 100])) == [0, 1, 2, 3, 4]


def test_slow_leading_executions_are_warm_up(make_trace):
    found = executions(make_trace, [148, 134, 120, 121, 120])
    assert kept(found) == [2, 3, 4]
    assert found.reasons[0, 0].startswith("warm-up")


def test_an_execution_that_is_slow_on_few_devices_is_no_warm_up(make_trace):
    steady = [120, 120, 120, 121, 120]
    assert (
        kept(executions(make_trace, [148, *steady[1:]], steady, steady))
        == [0, 1, 2, 3, 4] * 3
    )
    assert (
        kept(executions(make_trace, [148, *steady[1:]], [90, *steady[1:]]))
        == [0, 1, 2, 3, 4] * 2
    )


def test_warm_up_that_most_devices_show_says_how_many(make_trace):
    found = executions(
        make_trace,
        [148, 120, 120, 121, 120],
        [144, 120, 120, 121, 120],
        [120, 120, 120, 121, 120],
    )
    assert kept(found) == [1, 2, 3, 4] * 3
    assert (
        found.reasons[0, 0]
        == "warm-up: compute 19.7 % above the steady median on 2 of 3 devices"
    )


def test_an_execution_that_waits_long_for_something_is_warm_up(make_trace):
    rows = [
        (0, number, "gemm", 0, 10_000 * number + offset, 50)
        for number in range(4)
        for offset in (0, 100)
    ]
    rows[1] = (0, 0, "gemm", 0, 3000, 50)
    found = find_executions(make_trace(rows), np.zeros(1, bool))
    assert (kept(found), found.reasons[0, 0]) == (
        [1, 2, 3], "warm-up: 20.3 times the steady median from first start to last end"
    )  # fmt: skip


def test_at_most_half_is_dropped_when_everything_gets_faster(make_trace):
    assert kept(executions(make_trace, [160, 150, 140, 130, 120])) == [2, 3, 4]


def test_only_what_leads_without_a_gap_is_warm_up(make_trace):
    assert kept(
        executions(make_trace, [140, 100, 100, 100, 130, 100, 100, 100, 100, 100])
    ) == list(range(1, 10))


def test_a_faster_first_execution_is_kept(make_trace):
    assert kept(executions(make_trace, [90, 100, 100, 100, 100])) == [0, 1, 2, 3, 4]


def test_differences_as_large_as_between_steady_executions_are_no_warm_up(make_trace):
    assert kept(executions(make_trace, [104, 103, 97, 104, 100])) == [0, 1, 2, 3, 4]


def test_a_slow_execution_later_on_is_kept(make_trace):
    assert kept(executions(make_trace, [100, 100, 100, 130, 100])) == [0, 1, 2, 3, 4]


def test_an_execution_cut_by_the_window_is_dropped_on_every_device(make_trace):
    found = executions(make_trace, [100] * 4, devices=2, missing={(1, 3, "mul")})
    assert kept(found) == [0, 1, 2, 0, 1, 2]
    assert found.reasons[0, 3] == "truncated: 2 of usually 3 activities"


def test_two_executions_are_too_few_to_judge(make_trace):
    assert kept(executions(make_trace, [500, 100])) == [0, 1]


def test_spans_run_from_first_start_to_last_end(make_trace):
    assert executions(make_trace, [100, 100, 100]).span_ns.tolist() == [100_000] * 3


def test_four_times_the_executions_take_four_times_the_memory(make_trace):
    def peak_bytes(count):
        durations = [100 + number * 7 % 5 for number in range(count)]
        tracemalloc.start()
        try:
            executions(make_trace, durations)
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    assert peak_bytes(8_000) <= 5 * peak_bytes(2_000)
