"""Whatever an export holds of the recorded environment, nothing that is not a flag of XLA leaves
`pgle`.
"""

from __future__ import annotations

import itertools
import random
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from pgle.cli.main import run
from pgle.trace.nsys.read import xla_flags

SECRET = "hunter2secret"
SEPARATORS = (
    " ",
    "\n",
    "\t",
    "\0",
    ";",
    ",",
    "; ",
    '","',
    "','",
    '" "',
    "|",
    "&&",
    " && ",
    "\r\n",
    ":",
    "\x1f",
)
BEFORE = (
    "",
    f"HF_TOKEN={SECRET}",
    f"A_PASS='{SECRET}'",
    "PATH=/bin",
    f"MY_XLA_FLAGS={SECRET}",
    f"{SECRET}",
)
FLAGS = (
    "--xla_a=1",
    "--xla_a=b,c",
    '"--xla_a=1 --xla_b=2"',
    "'--xla_a=1'",
    "--xla_a='x y'",
    "",
    "--a=1",
    "/flags.txt",
)
AFTER = (
    f"HF_TOKEN={SECRET}",
    f"AWS_SECRET={SECRET} X=1",
    f'P="{SECRET}"',
    f"PASS={SECRET},x",
    f"URL=s3://a:{SECRET}@b",
)


def planted(source: Path, path: Path, draw: random.Random) -> None:
    """A copy of an export whose recorded environment holds secrets."""
    shutil.copy(source, path)
    separator = draw.choice(SEPARATORS)
    value = separator.join(
        [draw.choice(BEFORE), f"XLA_FLAGS={draw.choice(FLAGS)}", *draw.sample(AFTER, 3)]
    )
    table, name = draw.choice(
        [
            ("META_DATA_CAPTURE", "PROCESS_0:ENVIRONMENT_VARIABLE"),
            ("META_DATA_CAPTURE", "COMMAND_LINE"),
            ("TARGET_INFO_SYSTEM_ENV", "DeviceEnvironment"),
        ]
    )
    if draw.random() < 0.5 and table == "META_DATA_CAPTURE":
        value = value[value.index("XLA_FLAGS") :]
    with closing(sqlite3.connect(path)) as database, database:
        database.execute(f"CREATE TABLE IF NOT EXISTS {table} (name TEXT, value TEXT)")
        database.execute(
            f"INSERT INTO {table} (name, value) VALUES (?, ?)", (name, value)
        )


@pytest.mark.parametrize("seed", range(8))
def test_no_secret_of_the_recorded_environment_leaves(
    testdata: Path, tmp_path: Path, seed: int, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    trace, profile = tmp_path / "trace.sqlite", tmp_path / "out" / "profile.pbtxt"
    planted(
        testdata / "nsys_synthetic/synthetic_cases.sqlite", trace, random.Random(seed)
    )
    assert run(["convert", str(trace), "-o", str(profile), "--json"]) == 0
    assert run(["show", str(profile), "--json"]) == 0
    printed = capfdbinary.readouterr()
    written = b"".join(file.read_bytes() for file in (tmp_path / "out").iterdir())
    assert SECRET.encode() not in printed.out + printed.err + written


class OneRow:
    """An export with one row of environment."""

    def __init__(self, table: str, value: str) -> None:
        self._table, self._value = table, value

    def rows(
        self, table: str, columns: tuple[str, ...], like: object = None
    ) -> list[tuple[str, ...]]:
        if table != self._table:
            return []
        return (
            [(self._value,)]
            if columns == ("value",)
            else [("DeviceEnvironment", self._value)]
        )


@pytest.mark.parametrize("table", ["META_DATA_CAPTURE", "TARGET_INFO_SYSTEM_ENV"])
@pytest.mark.parametrize("separator", [*SEPARATORS, "&", "=", "+"])
def test_nothing_but_flags_of_xla_is_taken_from_a_recorded_environment(
    table: str, separator: str
) -> None:
    for before, flags, after in itertools.product(BEFORE, FLAGS, AFTER):
        for parts in (
            (before, f"XLA_FLAGS={flags}", after),
            (f"XLA_FLAGS={flags}", after),
        ):
            assert SECRET not in xla_flags(OneRow(table, separator.join(parts)))  # type: ignore[arg-type]
