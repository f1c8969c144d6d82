"""Equally named processes of several inputs: one process in two windows, or two ranks."""

import dataclasses

import pytest
from calls import calls_of
from nsys_export import write_nsys_sqlite

from pgle.trace.nsys.read import read_nsys
from pgle.trace.table import Device, Recording, Source, combine
from pgle.trace.xplane.read import read_xplane
from pgle.trace.xplane.writer import write_xplane

NAME = "pod:1"
NOON = 1_700_000_000_000_000_000
SECOND = 1_000_000_000


def window(make_trace, source, *, number=None, executions=3, **known):
    """300 µs of one device whose process has the same name in every input."""
    rows = [
        (0, execution, "gemm", execution, 100 * execution, 100)
        for execution in range(executions)
    ]
    return dataclasses.replace(
        make_trace(rows),
        devices=(Device(NAME, 0, number),),
        sources=(Source(source, "nsys-sqlite"),),
        recordings={NAME: Recording(**known)},
    )


def processes(trace):
    return [device.process for device in trace.devices]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        pytest.param(
            {"utc_ns": NOON}, {"utc_ns": NOON + 50_000}, id="at the same time"
        ),
        pytest.param(
            {"gpus": frozenset({"uuid:a"})}, {"gpus": frozenset({"uuid:b"})}, id="GPUs"
        ),
        pytest.param(
            {"gpus": frozenset({"bus:1"})},
            {"gpus": frozenset({"bus:2"})},
            id="GPUs by bus",
        ),
        pytest.param(
            {"namespace": "pid:[7]"}, {"namespace": "pid:[8]"}, id="containers"
        ),
        pytest.param({"number": 0}, {"number": 1}, id="JAX's device numbers"),
    ],
)
def test_two_ranks_are_told_apart_by(make_trace, one, other):
    trace = combine(
        [
            window(make_trace, "a/x.sqlite", **one),
            window(make_trace, "b/x.sqlite", **other),
        ]
    )
    assert processes(trace) == [NAME, f"{NAME} (b/x.sqlite)"]
    assert trace.execution.tolist() == [0, 1, 2, 0, 1, 2]
    assert trace.warnings == ()
    assert set(trace.recordings) == set(processes(trace))


def test_windows_one_after_the_other_are_of_one_process(make_trace):
    later = window(make_trace, "b", utc_ns=NOON + SECOND)
    trace = combine([window(make_trace, "a", utc_ns=NOON), later])
    assert processes(trace) == [NAME]
    assert trace.execution.tolist() == [0, 1, 2, 3, 4, 5]
    assert int(trace.start_ns[3]) == SECOND
    assert trace.warnings == ()


def test_windows_given_in_the_wrong_order_are_numbered_in_the_right_one(make_trace):
    later = window(make_trace, "b", utc_ns=NOON + SECOND, executions=2)
    trace = combine([later, window(make_trace, "a", utc_ns=NOON)])
    assert trace.execution.tolist() == [0, 1, 2, 3, 4]
    assert (trace.start_ns[1:] > trace.start_ns[:-1]).all()


def test_three_pods_are_three_processes(make_trace):
    pods = [
        window(make_trace, f"rank{number}.sqlite", utc_ns=NOON + number)
        for number in range(3)
    ]
    assert processes(combine(pods)) == [
        NAME,
        f"{NAME} (rank1.sqlite)",
        f"{NAME} (rank2.sqlite)",
    ]


def test_two_windows_of_each_of_two_pods_are_two_processes(make_trace):
    times = (NOON, NOON + 1, NOON + SECOND, NOON + SECOND + 1)
    gpus = ("uuid:a", "uuid:b", "uuid:a", "uuid:b")
    inputs = [
        window(make_trace, f"{number}.sqlite", utc_ns=utc_ns, gpus=frozenset({gpu}))
        for number, (utc_ns, gpu) in enumerate(zip(times, gpus, strict=True))
    ]
    trace = combine(inputs)
    assert processes(trace) == [NAME, f"{NAME} (1.sqlite)"]
    assert trace.execution.tolist() == [0, 1, 2, 3, 4, 5] * 2


def test_the_same_gpu_tells_that_it_is_one_process(make_trace):
    gpu = frozenset({"uuid:a"})
    trace = combine(
        [window(make_trace, "a", gpus=gpu), window(make_trace, "b", gpus=gpu)]
    )
    assert (processes(trace), trace.warnings) == ([NAME], ())


def test_a_second_copy_of_a_recording_is_left_out(make_trace):
    trace = combine(
        [
            window(make_trace, "a.nsys-rep", utc_ns=NOON),
            window(make_trace, "a.sqlite", utc_ns=NOON),
        ]
    )
    assert (processes(trace), len(trace)) == ([NAME], 3)
    assert trace.warnings == (
        "a.sqlite: another copy of a recording that was given; left out",
    )


def test_two_inputs_of_which_nothing_tells_are_both_named(make_trace):
    trace = combine([window(make_trace, "a.sqlite"), window(make_trace, "b.sqlite")])
    assert trace.warnings[0].startswith("a.sqlite and b.sqlite both name their process")


def test_where_nothing_tells_a_line_says_what_to_do(make_trace):
    trace = combine([window(make_trace, f"{folder}/x.sqlite") for folder in "abcd"])
    assert processes(trace) == [NAME]
    (line,) = trace.warnings
    assert line.startswith(
        f"a/x.sqlite, b/x.sqlite and 2 more all name their process {NAME}, taken for windows of it"
    )
    assert line.endswith("give the trace of one rank only")


def test_windows_of_unknown_time_follow_each_other(make_trace):
    trace = combine([window(make_trace, "a"), window(make_trace, "b")])
    assert (trace.start_ns[1:] > trace.start_ns[:-1]).all()
    assert trace.execution.tolist() == [0, 1, 2, 3, 4, 5]


def test_an_nsys_export_tells_when_it_was_recorded(make_trace, tmp_path):
    write_nsys_sqlite(window(make_trace, "a", utc_ns=NOON), tmp_path / "a.sqlite")
    assert read_nsys(tmp_path / "a.sqlite").recordings == {NAME: Recording(NOON)}


def test_an_xplane_tells_when_it_was_recorded(make_trace, tmp_path):
    path = tmp_path / "pod.xplane.pb"
    path.write_bytes(write_xplane(window(make_trace, "a", utc_ns=NOON)))
    assert read_xplane([path]).recordings == {NAME: Recording(NOON)}


@pytest.mark.parametrize(
    "known",
    [
        pytest.param(lambda rank: {"gpus": frozenset({f"uuid:{rank}"})}, id="ranks"),
        pytest.param(lambda rank: {"utc_ns": NOON + rank * SECOND}, id="windows"),
        pytest.param(lambda rank: {}, id="nothing tells"),
    ],
)
def test_four_times_the_inputs_are_four_times_the_work(make_trace, known):
    inputs = [window(make_trace, f"{rank}/x", **known(rank)) for rank in range(200)]
    few, many = (
        calls_of(lambda part=part: combine(inputs[:part])) for part in (50, 200)
    )
    assert many <= 4.1 * few
