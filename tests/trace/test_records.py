"""Records that cannot be true are clipped or left out; all others stay as they are."""

from __future__ import annotations

import numpy as np
import pytest

from pgle.trace.records import Mended, Records, mend, without_time
from pgle.trace.table import LeftOutReason

NAMES = ("a", "b")
Row = tuple[int, int, str]
"""(start, end, name) in µs."""


def records(
    rows: list[Row], *, stream: int = 7, runs: list[int] | None = None
) -> Records:
    rows = sorted(rows)
    start = np.array([row[0] for row in rows], np.int64) * 1000
    end = np.array([row[1] for row in rows], np.int64) * 1000
    return Records(
        device=np.zeros(len(rows), np.int16),
        stream=np.full(len(rows), stream, np.int16),
        start_ns=start,
        duration_ns=end - start,
        instruction=np.array([NAMES.index(row[2]) for row in rows], np.int16),
        instructions=NAMES,
        run=None if runs is None else np.array(runs, np.int32),
    )


def steady(count: int = 60) -> list[Row]:
    """Kernels of 40 µs, one every 50 µs."""
    return [(50 * at, 50 * at + 40, NAMES[at % 2]) for at in range(count)]


def mended(rows: list[Row]) -> Mended:
    found = mend(records(rows))
    assert found is not None
    return found


def times(found: Mended) -> list[tuple[int, int]]:
    """(start, end) in µs of the records that are left, by start."""
    left = found.reason == 0
    ends = found.start_ns + found.duration_ns
    columns = (found.start_ns[left] // 1000).tolist(), (ends[left] // 1000).tolist()
    return sorted(zip(*columns, strict=True))


def test_a_stream_that_runs_one_after_the_other_stays_as_it_is() -> None:
    assert mend(records(steady())) is None


def test_an_end_behind_the_next_start_is_clipped_to_what_the_instruction_usually_takes() -> (
    None
):
    rows = steady()
    rows[20] = (1000, 1_601_000, "a")
    found = mended(rows)
    assert times(found) == [row[:2] for row in steady()]
    assert found.remarks == [
        "1 GPU record overlapped the next one on the stream: clipped; "
        "a took 1,600,000 µs, now 40 µs"
    ]


def test_a_start_before_others_is_clipped_at_its_start() -> None:
    rows = steady()
    rows[20] = (333, 1040, "a")
    assert times(mended(rows)) == [row[:2] for row in steady()]


def test_a_record_inside_another_one_of_usual_length_is_left_out() -> None:
    found = mended([*steady(), (1010, 1015, "b")])
    assert times(found) == [row[:2] for row in steady()]
    assert found.reason[found.reason > 0].tolist() == [LeftOutReason.OVERLAP]


def test_stamps_that_are_a_little_off_are_no_fault() -> None:
    rows = [(start, start + 51, name) for start, _, name in steady()]
    assert mend(records(rows)) is None


def test_streams_whose_records_overlap_as_a_habit_stay_as_they_are() -> None:
    rows = [(start, end + 30, name) for start, end, name in steady()]
    assert mend(records(rows)) is None


def test_records_of_several_streams_may_overlap() -> None:
    rows = steady()
    found = records([(start, end + 30, name) for start, end, name in rows])
    found.stream[::2] = 20
    assert mend(found) is None


def test_nodes_of_a_graph_may_overlap() -> None:
    rows = steady()
    rows[20] = (1000, 1200, "a")
    plain = records(rows)
    in_graph = np.zeros(len(rows), np.bool_)
    in_graph[20] = True
    graph = Records(**{**vars(plain), "in_graph": in_graph})
    assert mend(plain) is not None
    assert mend(graph) is None


def test_the_same_record_twice_is_no_overlap() -> None:
    assert mend(records([*steady(), steady()[20]])) is None


def test_a_record_in_the_middle_of_another_execution_is_left_out() -> None:
    rows = [*steady(40), (530, 539, "a")]
    rows[10] = (540, 549, "a")
    runs = [at // 20 for at in range(40)]
    runs.insert(10, 1)  # the one that starts at 530 belongs to the second execution
    found = mend(records(sorted(rows), runs=runs))
    assert found is not None
    assert found.reason.tolist().count(LeftOutReason.MISPLACED) == 1


def test_a_record_far_behind_all_others_of_its_execution_is_left_out() -> None:
    rows = [*steady(40), (9_000_000, 9_000_040, "a")]
    found = mend(records(rows, runs=[0] * 41))
    assert found is not None
    assert found.reason.tolist() == [0] * 40 + [LeftOutReason.MISPLACED]


@pytest.mark.parametrize(("late_us", "is_far"), [(900, False), (1100, True)])
def test_a_host_may_keep_the_last_kernel_waiting_for_a_millisecond(
    late_us: int, is_far: bool
) -> None:
    """The last execution takes 20 µs before that, so ten times of it are far less."""
    first = [*steady(40), (2000, 2005, "a"), (2010, 2020, "b")]
    rows = [*first, (2010 + late_us, 2020 + late_us, "a")]
    found = mend(records(rows, runs=[0] * 40 + [1] * 3))
    assert (found is not None) == is_far


@pytest.mark.parametrize(("early_us", "is_far"), [(900, False), (1100, True)])
def test_a_first_kernel_a_millisecond_before_all_others_is_of_its_execution(
    early_us: int, is_far: bool
) -> None:
    """All others reach for 0.6 ms, so only the millisecond keeps it."""
    rows = [(15 * at, 15 * at + 10, NAMES[at % 2]) for at in range(40)]
    found = mend(records([(-early_us, -early_us + 10, "a"), *rows], runs=[0] * 41))
    assert (found is not None) == is_far


@pytest.mark.parametrize(
    ("start", "end", "reason"),
    [
        (5, 9, LeftOutReason.NONE),
        (0, 9, LeftOutReason.NONE),
        (9, 5, LeftOutReason.REVERSED),
        (0, 0, LeftOutReason.NO_TIME),
        (9, 0, LeftOutReason.NO_TIME),
        (-7, -7, LeftOutReason.NO_TIME),
    ],
)
def test_stamps_without_a_time(start: int, end: int, reason: LeftOutReason) -> None:
    assert without_time(np.array([start]), np.array([end])).tolist() == [reason]


def test_a_first_collective_that_waits_for_seconds_is_no_stray_record() -> None:
    """As on a rank that waits in its first execution for the one that compiles last."""
    rows = [(50 * at, 50 * at + 40, NAMES[at % 2]) for at in range(1, 40)]
    waits = (-2_000_000, 40, "a")
    assert mend(records([waits, *rows], runs=[0] * 40)) is None


def test_a_kernel_behind_a_last_collective_that_waits_is_no_stray_record() -> None:
    waits = (2000, 90_000, "a")
    rows = [*steady(40), waits, (90_010, 90_020, "b")]
    assert mend(records(rows, runs=[0] * 42)) is None
