"""Records that cannot be true, and work of no instruction, planted into the real recording: named,
counted, in no verdict.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest
from faults import CALLS, KERNELS, Faulty

from pgle.analyze.analysis import MeasuredStep
from pgle.analyze.rules import find_findings
from pgle.analyze.window import RowGroup
from pgle.run.analyze import StepInput, measured_step

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("work_found_once")]

PAX = Path(__file__).parents[2] / "testdata" / "pax_fsdp4"
DUMP = PAX / "proc0" / "dump"
MAIN = "pjit__wrapped_step_fn"
MS = 1_000_000  # ns

Change = Callable[[sqlite3.Connection, Faulty], None]


def step_of(paths: list[Path]) -> MeasuredStep:
    return measured_step(StepInput(tuple(paths), hlo=(DUMP,)))


def planted(folder: Path, change: Change, rank: int = 1) -> MeasuredStep:
    """The step of both ranks, with a change in the tables of one."""
    faulty = Faulty([PAX / "proc0.sqlite", PAX / "proc3.sqlite"], folder, MAIN)
    faulty.edit(lambda file: change(file, faulty), rank)
    return step_of(faulty.paths)


@pytest.fixture(scope="module")
def clean() -> MeasuredStep:
    return step_of([PAX / "proc0.sqlite", PAX / "proc3.sqlite"])


def rows_of(faulty: Faulty, execution: int, first: int, count: int) -> list[int]:
    """Kernels of one execution on the second rank, by their numbers in it: rowids."""
    rank = faulty.ranks[1]
    return [int(rank.rows[at]) for at in rank.of(execution)[first : first + count]]


def update(file: sqlite3.Connection, rows: list[int], change: str) -> None:
    marks = ",".join(map(str, rows))
    file.execute(f"update {KERNELS} set {change} where rowid in ({marks})")


def bad_end(file: sqlite3.Connection, faulty: Faulty) -> None:
    update(file, rows_of(faulty, 3, 700, 1), f"end = start + {1600 * MS}")


def bad_start(file: sqlite3.Connection, faulty: Faulty) -> None:
    update(file, rows_of(faulty, 3, 700, 1), f"start = start - {200 * MS}")


def no_stamps(file: sqlite3.Connection, faulty: Faulty) -> None:
    update(
        file,
        rows_of(faulty, 3, 700, 2) + rows_of(faulty, 4, 200, 1),
        "start = 0, end = 0",
    )


def reversed_stamps(file: sqlite3.Connection, faulty: Faulty) -> None:
    update(file, rows_of(faulty, 2, 700, 2), "start = end, end = start")


def moved(file: sqlite3.Connection, faulty: Faulty) -> None:
    update(
        file,
        rows_of(faulty, 4, 700, 1),
        f"start = start - {140 * MS}, end = end - {140 * MS}",
    )


def far_away(file: sqlite3.Connection, faulty: Faulty) -> None:
    last = rows_of(faulty, 4, -1, 1) or rows_of(faulty, 4, 0, 10**6)[-1:]
    update(file, last, f"start = start + {90_000 * MS}, end = end + {90_000 * MS}")


WRONG: dict[str, tuple[Change, str]] = {
    "an end stamp 1.6 s late": (bad_end, "1 GPU record overlapped the next one"),
    "a start stamp 200 ms early": (
        bad_start,
        "1 GPU record overlapped the next one",
    ),
    "three records without stamps": (no_stamps, "3 GPU records without a time stamp"),
    "two records with stamps in the wrong order": (
        reversed_stamps,
        "2 GPU records that end before",
    ),
    "a record moved into another execution": (moved, "1 GPU record"),
    "a record 90 s behind all others": (far_away, "1 GPU record far away"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_record_that_cannot_be_true_is_named_and_changes_no_verdict(
    name: str, tmp_path: Path, clean: MeasuredStep
) -> None:
    change, words = WRONG[name]
    step = planted(tmp_path, change)
    lines = [line for line in step.trace.warnings if "GPU record" in line]
    assert [words in line for line in lines] == [True]
    assert step.steps == clean.steps
    assert step.step_us == pytest.approx(clean.step_us, rel=0.001)
    assert step.breakdown.idle_us == pytest.approx(clean.breakdown.idle_us, rel=0.02)
    assert [one.id for one in find_findings(step)] == [
        one.id for one in find_findings(clean)
    ]


def test_the_clean_recording_has_no_such_record_and_no_other_work(
    clean: MeasuredStep,
) -> None:
    assert not [line for line in clean.trace.warnings if "GPU record" in line]
    assert clean.breakdown.other_us == 0
    assert clean.costs.window.lost == {}


def test_a_lost_stretch_of_one_rank_is_named_and_its_execution_left_out(
    tmp_path: Path, clean: MeasuredStep
) -> None:
    def lose(file: sqlite3.Connection, faulty: Faulty) -> None:
        marks = ",".join(map(str, rows_of(faulty, 3, 900, 300)))
        file.execute(f"delete from {KERNELS} where rowid in ({marks})")

    step = planted(tmp_path, lose)
    (line,) = (line for line in step.costs.warnings if "lost" in line)
    assert "300 GPU records lost in execution 3, on device 0 of proc3" in line
    assert [item.execution for item in step.parts.steps] == [2]
    assert step.breakdown.compute_us == pytest.approx(
        clean.breakdown.compute_us, rel=0.01
    )


def test_the_recorders_own_note_on_lost_records_is_a_warning(tmp_path: Path) -> None:
    def note(file: sqlite3.Connection, _: Faulty) -> None:
        file.execute(
            "create table DIAGNOSTIC_EVENT (timestamp INTEGER, severity INTEGER, text TEXT)"
        )
        text = "CUPTI dropped 1234 records. Some CUPTI events might be missing."
        file.execute("insert into DIAGNOSTIC_EVENT values (1, 2, ?)", (text,))

    (line,) = (
        line for line in planted(tmp_path, note).trace.warnings if "nsys lost" in line
    )
    assert "nsys lost 1,234 GPU records" in line


def other_library(file: sqlite3.Connection, faulty: Faulty) -> None:
    """Behind each execution another library runs a kernel of 3 ms, launched outside of XLA's
    ranges.
    """
    columns = [row[1] for row in file.execute(f"pragma table_info({KERNELS})")]
    calls = [row[1] for row in file.execute(f"pragma table_info({CALLS})")]
    for execution in (2, 3):
        row = rows_of(faulty, execution, 0, 10**6)[-1]
        kernel = file.execute(
            f"select * from {KERNELS} where rowid = ?", (row,)
        ).fetchone()
        values = dict(zip(columns, kernel, strict=True))
        found = file.execute(
            f"select * from {CALLS} where correlationId = ?", (values["correlationId"],)
        ).fetchone()
        call = dict(zip(calls, found, strict=True))
        values |= {"correlationId": 10**9 + execution, "start": values["end"] + 100_000}
        values |= {"end": values["start"] + 3 * MS, "streamId": 99}
        call |= {"correlationId": 10**9 + execution, "start": 10, "end": 20}
        for table, new in ((KERNELS, values), (CALLS, call)):
            marks = ",".join("?" * len(new))
            file.execute(f"insert into {table} values ({marks})", list(new.values()))


def test_a_kernel_of_another_library_between_steps_is_no_idle_time(
    tmp_path: Path, clean: MeasuredStep
) -> None:
    step = planted(tmp_path, other_library)
    other = step.parts.of(RowGroup.OTHER)
    assert other == pytest.approx(
        {"kernels outside of XLA programs": 3000 / 2}, rel=0.01
    )
    less = clean.breakdown.idle_us - step.breakdown.idle_us
    assert less == pytest.approx(3000 / 2, rel=0.01)
    assert step.step_us == pytest.approx(clean.step_us)


def test_executions_that_lost_the_times_of_many_records_do_not_count(
    tmp_path: Path, clean: MeasuredStep
) -> None:
    """A tenth of the records of one execution has zeros for stamps."""

    def change(file: sqlite3.Connection, faulty: Faulty) -> None:
        every = rows_of(faulty, 2, 0, 10**6)
        update(file, every[5::10], "start = 0, end = 0")

    step = planted(tmp_path, change)
    assert [item.execution for item in step.parts.steps] == [3, 4]
    assert step.step_us == pytest.approx(clean.step_us, rel=0.01)
    assert step.breakdown.idle_us == pytest.approx(clean.breakdown.idle_us, rel=0.05)


def test_times_that_every_execution_lacks_are_a_share_that_cannot_be_told(
    tmp_path: Path,
) -> None:
    """Every tenth kernel of the three executions, another one in each, has zeros for stamps."""

    def change(file: sqlite3.Connection, faulty: Faulty) -> None:
        for execution in (2, 3, 4):
            every = rows_of(faulty, execution, 0, 10**6)
            update(file, every[execution::10], "start = 0, end = 0")

    findings = {one.id: one for one in find_findings(planted(tmp_path, change))}
    found = findings["untimed-records"]
    assert "of the step cannot be told" in found.number
    assert found.reached == pytest.approx(0.1 / 2, rel=0.5)  # of one of two ranks
