"""What is no export, or none that costs can be read from: one line each."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from pgle.errors import UserError
from pgle.run.inputs.traces import read_traces
from pgle.trace.nsys.read import read_nsys

TESTDATA = Path(__file__).parents[2] / "testdata"
PROCESS = 1 << 48 | 1 << 24
STEP = "XlaModule:#hlo_module=jit_step,program_id=7#"


def test_no_activity_is_an_error(export: Any) -> None:
    export.range(STEP, 0, 1000)
    export.range("Thunk:#hlo_op=dot.2#", 10, 90)
    with pytest.raises(UserError, match=r"no GPU activity;.*--trace=cuda,nvtx"):
        export.read()


def test_no_thunk_is_an_error(export: Any) -> None:
    export.range("my range", 0, 1000)
    export.launch(50)
    with pytest.raises(UserError, match="no `Thunk:` ranges"):
        export.read()


def test_nothing_resolved_is_an_error_that_says_why(export: Any) -> None:
    export.range("Thunk:#hlo_op=dot.2#", 10, 90)
    export.launch(50)
    with pytest.raises(UserError, match="no-module 1"):
        export.read()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "no such file"),
        (b"", "is empty"),
        (b"hello", "not a SQLite database"),
        (
            b"NVIDIA Tegra Profiler Report 2024@1@1@59-1v0.",
            "is a report, not an export",
        ),
        (b"SQLite format 3\0", "truncated"),
    ],
)
def test_a_file_that_is_no_database_is_named(
    tmp_path: Path, content: bytes | None, message: str
) -> None:
    path = tmp_path / "x.sqlite"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UserError, match=message):
        read_nsys(path)


def test_a_truncated_database_is_an_error(export: Any) -> None:
    export.step_with("dot.2")
    export.database.close()
    data = export.path.read_bytes()
    export.path.write_bytes(data[: len(data) // 2])
    with pytest.raises(UserError, match="truncated: "):
        export.read()


def test_a_damaged_database_is_an_error(export: Any) -> None:
    export.step_with(*(f"dot.{number}" for number in range(300)))
    export.database.close()
    data = bytearray(export.path.read_bytes())
    data[8192:] = b"\xff" * (len(data) - 8192)
    export.path.write_bytes(data)
    with pytest.raises(UserError, match="damaged database"):
        export.read()


def test_another_database_is_an_error(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "x.sqlite") as database:
        database.execute("CREATE TABLE books (title TEXT)")
    with pytest.raises(UserError, match="not an Nsight Systems export"):
        read_nsys(tmp_path / "x.sqlite")


@pytest.mark.parametrize(
    "made",
    [
        "CREATE TABLE rocpd_string_0f3a (id INTEGER, string TEXT)",
        "CREATE VIEW rocpd_kernel_dispatch AS SELECT 1 AS id",
    ],
)
def test_a_database_of_amds_profiler_names_what_to_record(
    tmp_path: Path, made: str
) -> None:
    with sqlite3.connect(tmp_path / "x.db") as database:
        database.execute(made)
    with pytest.raises(UserError, match=r"rocpd database.*give its \.xplane\.pb"):
        read_nsys(tmp_path / "x.db")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "healthy_1pct.sqlite",
            "CUPTI_ACTIVITY_KIND_KERNEL lacks the column globalPid",
        ),
        ("mock.sqlite", "no NVTX ranges"),
        ("h100_2gpu_1s.sqlite", "no `Thunk:` ranges"),
    ],
)
def test_real_exports_without_xla_are_refused(name: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        read_nsys(TESTDATA / "nsys_exports" / name)


def test_text_where_a_number_belongs_is_an_error(export: Any) -> None:
    export.step_with("dot.2")
    export.database.execute("UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET deviceId = 'zero'")
    with pytest.raises(UserError, match="damaged database"):
        export.read()


def test_a_value_that_fills_the_memory_is_an_error(export: Any) -> None:
    export.step_with("dot.2")
    export.row("StringIds", id=999, value=bytes(2**24 + 1))
    with pytest.raises(UserError, match="damaged database"):
        export.read()


def test_a_view_in_place_of_a_table_is_an_error(export: Any) -> None:
    export.step_with("dot.2")
    export.database.execute("ALTER TABLE CUPTI_ACTIVITY_KIND_KERNEL RENAME TO kernels")
    export.database.execute(
        "CREATE VIEW CUPTI_ACTIVITY_KIND_KERNEL AS SELECT * FROM kernels"
    )
    with pytest.raises(
        UserError, match="CUPTI_ACTIVITY_KIND_KERNEL is a view, no table"
    ):
        export.read()


def test_a_table_without_row_numbers_is_read(export: Any) -> None:
    export.step_with("dot.2")
    ((sql,),) = export.database.execute(
        "SELECT sql FROM sqlite_master WHERE name = 'CUPTI_ACTIVITY_KIND_KERNEL'"
    )
    names = [
        name
        for _, name, *_ in export.database.execute(
            "PRAGMA table_info(CUPTI_ACTIVITY_KIND_KERNEL)"
        )
    ]
    export.database.execute("ALTER TABLE CUPTI_ACTIVITY_KIND_KERNEL RENAME TO kernels")
    export.database.execute(
        f"{sql.rstrip().removesuffix(')')}, PRIMARY KEY ({names[0]})) WITHOUT ROWID"
    )
    export.database.execute(
        "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL SELECT * FROM kernels"
    )
    assert len(export.read()) == 1


def test_absurd_numbers_cost_no_memory(export: Any) -> None:
    export.step_with("dot.2")
    huge = 2**62
    export.row("StringIds", id=huge, value="Thunk:#hlo_op=far.1#")
    export.row(
        "NVTX_EVENTS",
        start=200,
        end=300,
        eventType=59,
        globalTid=PROCESS | 1,
        textId=huge,
    )
    export.work(3000, export.call(250, correlation=huge), device=huge)
    export.work(-(2**63), huge, duration=0)
    export.row(
        "CUPTI_ACTIVITY_KIND_KERNEL", start=1, end=2**63 - 1, deviceId=0, streamId=0, correlationId=1,
        globalPid=PROCESS,
    )  # fmt: skip
    export.database.execute(
        "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET rowid = ? WHERE deviceId = ?",
        (huge, huge),
    )
    trace = export.read()
    assert [trace.instructions[at] for at in trace.instruction] == ["dot.2", "far.1"]
    assert [device.ordinal for device in trace.devices] == [0, huge]
    assert [(entry.reason, entry.count) for entry in trace.unresolved] == [
        ("bad-time", 2)
    ]


def test_absurd_nesting_is_an_error(export: Any) -> None:
    for depth in range(1200):
        export.range("Thunk:#hlo_op=dot.2#", depth, 10_000 - depth)
    export.launch(5000)
    with pytest.raises(UserError, match="nested 1,199 deep"):
        export.read()


def test_a_file_name_need_not_be_utf8(testdata: Path, tmp_path: Path) -> None:
    path = tmp_path / os.fsdecode(b"r\xff.sqlite")
    path.write_bytes((testdata / "nsys_synthetic/synthetic_cases.sqlite").read_bytes())
    assert len(read_nsys(path)) == 170


def test_a_database_whose_last_changes_lie_in_a_log_beside_it_is_an_error(
    testdata: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "report.sqlite"
    copy.write_bytes(
        (testdata / "nsys_synthetic" / "synthetic_cases.sqlite").read_bytes()
    )
    connection = sqlite3.connect(copy)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("CREATE TABLE later (x INTEGER)")
    connection.commit()  # the connection stays open, so nothing is written back
    with pytest.raises(UserError, match=r"still in report\.sqlite-wal"):
        read_nsys(copy)
    connection.close()
    assert len(read_nsys(copy))


def test_parquet_directories_are_refused_with_the_command_that_exports_sqlite(
    tmp_path: Path,
) -> None:
    (tmp_path / "NVTX_EVENTS.parquet").write_bytes(b"PAR1")
    with pytest.raises(UserError, match="nsys export --type sqlite"):
        read_traces([tmp_path])
