"""An nsys export written row by row."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from nsys_export import TABLES

from pgle.trace.nsys.read import read_nsys
from pgle.trace.table import Trace

MACHINE = 1 << 48
STEP = "XlaModule:#hlo_module=jit_step,program_id=7#"


def pid(number: int, machine: int = MACHINE) -> int:
    return machine | number << 24


class Export:
    """An export under construction: ranges and launches on threads, in the columns of a schema."""

    def __init__(self, path: Path, tables: dict[str, list[str]] | None = None) -> None:
        self.path = path
        self.tables = tables or {
            name: [part.split()[0] for part in sql.split(", ")]
            for name, sql in TABLES.items()
        }
        self.database = sqlite3.connect(path, isolation_level=None)
        self.database.executescript(
            "PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF"
        )
        self.strings: dict[str, int] = {}
        self.correlation = 0
        self.row("META_DATA_EXPORT", name="EXPORT_SCHEMA_VERSION", value="3.7.2")

    def row(self, table: str, **values: object) -> None:
        columns = self.tables[table]
        self.database.execute(
            f'CREATE TABLE IF NOT EXISTS "{table}" ({", ".join(map(repr, columns))})'
        )
        marks = ", ".join("?" * len(columns))
        self.database.execute(
            f'INSERT INTO "{table}" VALUES ({marks})',
            [values.get(name) for name in columns],
        )

    def string(self, text: str) -> int:
        if text not in self.strings:
            self.strings[text] = len(self.strings) + 100
            self.row("StringIds", id=self.strings[text], value=text)
        return self.strings[text]

    def range(
        self,
        text: str,
        start: int,
        end: int | None,
        *,
        process: int = pid(1),
        registered: bool = True,
    ) -> None:
        name = {"textId": self.string(text)} if registered else {"text": text}
        self.row(
            "NVTX_EVENTS",
            start=start,
            end=end,
            eventType=59,
            globalTid=process | 1,
            domainId=1,
            **name,
        )

    def call(
        self,
        at: int,
        *,
        process: int = pid(1),
        name: str = "cuLaunchKernel",
        correlation: int = 0,
    ) -> int:
        self.correlation = correlation or self.correlation + 1
        self.row(
            "CUPTI_ACTIVITY_KIND_RUNTIME", start=at, end=at + 1, eventClass=1, globalTid=process | 1,
            correlationId=self.correlation, nameId=self.string(name),
        )  # fmt: skip
        return self.correlation

    def work(
        self, start: int, correlation: int, *, table: str = "KERNEL", process: int = pid(1), device: int = 0,
        duration: int = 10, kernel: str = "gemm", node: int | None = None,
    ) -> None:  # fmt: skip
        self.row(
            f"CUPTI_ACTIVITY_KIND_{table}", start=start, end=start + duration, deviceId=device, streamId=7,
            correlationId=correlation, globalPid=process, shortName=self.string(kernel), graphNodeId=node,
        )  # fmt: skip

    def launch(
        self, at: int, *, process: int = pid(1), device: int = 0, gpu: int | None = None
    ) -> None:
        """A kernel, launched at `at`, that runs a second later or at `gpu`."""
        self.work(
            at + 1000 if gpu is None else gpu,
            self.call(at, process=process),
            process=process,
            device=device,
        )

    def read(self) -> Trace:
        return read_nsys(self.path)

    def step_with(self, *thunks: str) -> None:
        """One execution of jit_step from 0 to 1000 whose thunks, one every 100, launch a kernel
        each.
        """
        self.range(STEP, 0, 1000)
        for number, name in enumerate(thunks):
            self.range(f"Thunk:#hlo_op={name}#", number * 100 + 10, number * 100 + 90)
            self.launch(number * 100 + 50)


@pytest.fixture
def export(tmp_path: Path) -> Export:
    return Export(tmp_path / "report.sqlite")


@pytest.fixture
def new_export() -> type[Export]:
    return Export
