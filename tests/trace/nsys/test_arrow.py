"""Parquet and Arrow directories against the SQLite file with the same tables."""

from __future__ import annotations

import sqlite3
import sys
from pathlib import Path

import numpy as np
import pytest

from pgle.errors import UserError
from pgle.trace.nsys.read import read_nsys

pa = pytest.importorskip("pyarrow")
import pyarrow.feather  # noqa: E402
import pyarrow.parquet  # noqa: E402


def convert(database: Path, folder: Path, suffix: str) -> Path:
    """What `nsys export --type parquetdir` or `arrowdir` makes of the same report: a file per table."""
    folder.mkdir()
    with sqlite3.connect(database) as connection:
        for (table,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
            cursor = connection.execute(f'SELECT * FROM "{table}"')
            names = [column[0] for column in cursor.description]
            rows = cursor.fetchall()
            columns = {name: [row[at] for row in rows] for at, name in enumerate(names)}
            content = pa.table(columns)
            if suffix == ".parquet":
                pyarrow.parquet.write_table(content, folder / f"{table}{suffix}", row_group_size=5000)
            else:
                pyarrow.feather.write_feather(content, folder / f"{table}{suffix}", compression="uncompressed")
    return folder


@pytest.mark.parametrize("suffix", [".parquet", ".arrow"])
@pytest.mark.parametrize("name", ["pax_fsdp4/proc0.sqlite", "nsys_synthetic/synthetic_cases.sqlite"])
def test_a_directory_reads_like_the_database(testdata: Path, tmp_path: Path, name: str, suffix: str) -> None:
    database = testdata / name
    expected = read_nsys(database)
    found = read_nsys(convert(database, tmp_path / database.stem, suffix))
    for column in ("start_ns", "duration_ns", "kind", "device", "stream", "execution", "instance"):
        assert np.array_equal(getattr(found, column), getattr(expected, column)), column
    assert [found.instructions[at] for at in found.instruction] == [
        expected.instructions[at] for at in expected.instruction
    ]
    assert found.devices == expected.devices
    assert found.sources[0].format == f"nsys-{suffix[1:]}"


def test_identifiers_may_be_unsigned(testdata: Path, tmp_path: Path) -> None:
    folder = convert(testdata / "nsys_synthetic/synthetic_cases.sqlite", tmp_path / "x", ".parquet")
    path = folder / "CUPTI_ACTIVITY_KIND_RUNTIME.parquet"
    content = pyarrow.parquet.read_table(path)
    at = content.schema.get_field_index("globalTid")
    pyarrow.parquet.write_table(content.set_column(at, "globalTid", content["globalTid"].cast(pa.uint64())), path)
    assert len(read_nsys(folder)) == 170


def test_a_damaged_file_is_named(testdata: Path, tmp_path: Path) -> None:
    folder = convert(testdata / "nsys_synthetic/synthetic_cases.sqlite", tmp_path / "x", ".parquet")
    (folder / "NVTX_EVENTS.parquet").write_bytes(b"PAR1 and no more")
    with pytest.raises(UserError, match=r"NVTX_EVENTS\.parquet: damaged file"):
        read_nsys(folder)


def test_a_directory_of_other_files_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").touch()
    with pytest.raises(UserError, match="in this directory"):
        read_nsys(tmp_path)


def test_without_pyarrow_the_remedy_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(UserError, match="pip install pyarrow"):
        read_nsys(tmp_path)


def test_the_largest_unsigned_number_is_read_as_sqlite_would(testdata: Path, tmp_path: Path) -> None:
    folder = convert(testdata / "nsys_synthetic/synthetic_cases.sqlite", tmp_path / "x", ".parquet")
    strings = pyarrow.parquet.read_table(folder / "StringIds.parquet")
    more = pa.table(
        {
            "id": pa.array([*strings["id"].to_pylist(), 2**64 - 1], pa.uint64()),
            "value": [*strings["value"].to_pylist(), "loop_fusion_1"],
        }
    )
    pyarrow.parquet.write_table(more, folder / "StringIds.parquet")
    assert len(read_nsys(folder)) == len(read_nsys(testdata / "nsys_synthetic/synthetic_cases.sqlite"))


def test_a_name_of_a_kernel_without_an_id_is_left_aside(testdata: Path, tmp_path: Path) -> None:
    folder = convert(testdata / "nsys_synthetic/synthetic_cases.sqlite", tmp_path / "parquet", ".parquet")
    names = pyarrow.parquet.read_table(folder / "StringIds.parquet").to_pylist()
    damaged = pa.Table.from_pylist([*names, {"id": None, "value": "cutlass_gemm"}])
    pyarrow.parquet.write_table(damaged, folder / "StringIds.parquet")
    assert len(read_nsys(folder)) > 0
