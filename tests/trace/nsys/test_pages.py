"""Columns decoded from SQLite's pages, against what SQLite says of the same file."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pgle.errors import UserError
from pgle.trace.nsys.tables import NULL, Tables

WIDTHS = [
    0,
    1,
    2,
    -1,
    2**7,
    -(2**15),
    2**23,
    -(2**31),
    2**47,
    -(2**47) - 1,
    2**63 - 1,
    -(2**63) + 2,
    None,
]
"""A value of each width that SQLite stores integers in."""

Row = tuple[int | None, str | None, int | None]

rows = st.tuples(
    st.sampled_from(WIDTHS) | st.integers(-(2**62), 2**62),
    st.none() | st.integers(0, 9000).map("x".__mul__),
    st.sampled_from(WIDTHS),
)


def write(
    path: Path,
    content: Sequence[Row],
    *,
    page: int = 4096,
    table: str = "CREATE TABLE t (a, text, b)",
) -> None:
    path.unlink(missing_ok=True)
    with sqlite3.connect(path) as database:
        database.executescript(
            f"PRAGMA page_size = {page}; PRAGMA synchronous = OFF; {table}"
        )
        database.executemany("INSERT INTO t (a, text, b) VALUES (?, ?, ?)", content)
    database.close()


def read(path: Path, columns: Sequence[str] = ("b", "a")) -> list[tuple[int, ...]]:
    tables = Tables(path)
    try:
        return [
            row
            for batch in tables.integers("t", columns)
            for row in zip(*map(np.ndarray.tolist, batch), strict=True)
        ]
    finally:
        tables.close()


def stored(content: Sequence[Row]) -> list[tuple[int, ...]]:
    return [
        tuple(NULL if value is None else value for value in (b, a))
        for a, _, b in content
    ]


@settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(st.lists(rows, max_size=60), st.sampled_from([512, 4096, 65536]))
def test_columns_are_those_that_were_stored(
    tmp_path: Path, content: list[Row], page: int
) -> None:
    write(tmp_path / "x.sqlite", content, page=page)
    assert read(tmp_path / "x.sqlite") == stored(content)


def test_a_table_of_many_pages_is_read_in_the_order_of_its_rows(tmp_path: Path) -> None:
    content: list[Row] = [
        (number, "y" * (number % 90), number * 7919 % 100_003)
        for number in range(5_000)
    ]
    write(tmp_path / "x.sqlite", content, page=512)
    assert read(tmp_path / "x.sqlite") == stored(content)


@pytest.mark.parametrize(
    "table",
    [
        "CREATE TABLE t (a, text, b, PRIMARY KEY (a)) WITHOUT ROWID",
        "CREATE TABLE t (a INTEGER PRIMARY KEY, text, b)",
        "CREATE TABLE t (text, a, c AS (a + 1), b)",
    ],
)
def test_tables_that_are_stored_otherwise_are_asked_of_sqlite(
    tmp_path: Path, table: str
) -> None:
    content: list[Row] = [(number, "y", -number) for number in range(2000)]
    write(tmp_path / "x.sqlite", content, table=table)
    assert read(tmp_path / "x.sqlite") == stored(content)


def test_a_column_that_was_added_later_has_its_default(tmp_path: Path) -> None:
    write(tmp_path / "x.sqlite", [(5, None, 6)])
    with sqlite3.connect(tmp_path / "x.sqlite") as database:
        database.executescript(
            "ALTER TABLE t ADD COLUMN later DEFAULT 9; ALTER TABLE t ADD COLUMN none"
        )
    assert read(tmp_path / "x.sqlite", ("later", "none", "a")) == [(9, NULL, 5)]


@pytest.mark.parametrize("value", ["12", 1.5, b"1"])
def test_anything_but_an_integer_is_damage(tmp_path: Path, value: object) -> None:
    write(tmp_path / "x.sqlite", [(1, None, 2)])
    with sqlite3.connect(tmp_path / "x.sqlite") as database:
        database.execute("UPDATE t SET a = ?", (value,))
    with pytest.raises(UserError, match="a number is expected"):
        read(tmp_path / "x.sqlite")


def test_bytes_that_were_overwritten_are_an_error_or_other_values(
    tmp_path: Path,
) -> None:
    content: list[Row] = [
        (number, "y" * (number % 700), -number) for number in range(200)
    ]
    write(tmp_path / "x.sqlite", content, page=512)
    whole = (tmp_path / "x.sqlite").read_bytes()
    errors = 0
    for seed in range(100):
        chance = random.Random(seed)
        data = bytearray(whole)
        for _ in range(chance.choice([1, 20])):
            data[chance.randrange(600, len(data))] = chance.choice(
                [0, 1, 127, 128, 255]
            )
        (tmp_path / "x.sqlite").write_bytes(data)
        try:
            read(tmp_path / "x.sqlite")
        except UserError:
            errors += 1
    assert errors > 20
