from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from nsys_export import TABLES, write_nsys_sqlite

from pgle.trace.nsys.read import read_nsys
from pgle.trace.table import ActivityKind, Device, ModuleKey, Trace

MODULES = (ModuleKey("jit_step", 7), ModuleKey("jit_step", 9), ModuleKey("jit_init", 2))
INSTRUCTIONS = ("loop_fusion.1", "all-gather-start", "while.3", "copy.4")
DEVICES = (
    Device("node1:41", 0, 4),
    Device("node1:41", 1, 5),
    Device("node1:42", 0, None),
)


@st.composite
def traces(draw: st.DrawFn) -> Trace:
    """Traces as a profiler would record them: per device one execution after the other, launches in
    order.
    """
    columns: list[tuple[int, int, int, int, int, int, int, int, int]] = []
    launch = 0
    for device in range(draw(st.integers(1, len(DEVICES)))):
        clock = draw(st.integers(-(10**6), 10**15))
        executions = dict.fromkeys(range(len(MODULES)), -1)
        for module in draw(
            st.lists(st.integers(0, len(MODULES) - 1), min_size=1, max_size=4)
        ):
            executions[module] += 1
            for instruction, kernels in draw(
                st.lists(
                    st.tuples(st.integers(0, 3), st.integers(1, 3)),
                    min_size=1,
                    max_size=4,
                )
            ):
                for _ in range(kernels):
                    kind, stream, duration = draw(
                        st.tuples(
                            st.integers(0, 2), st.integers(0, 40), st.integers(1, 99)
                        )
                    )
                    columns.append(
                        (
                            clock,
                            duration,
                            kind,
                            device,
                            stream,
                            module,
                            instruction,
                            executions[module],
                            launch,
                        )
                    )
                    # no record is so far from the others that its stamp is wrong
                    clock += 1 + draw(st.integers(0, 10**4))
                launch += 1
    types = (np.int64, np.int64, np.uint8, *(np.int32,) * 6)
    arrays = [
        np.array(column, dtype)
        for column, dtype in zip(zip(*columns, strict=True), types, strict=True)
    ]
    used = int(arrays[3].max()) + 1
    return Trace(
        *arrays, modules=MODULES, instructions=INSTRUCTIONS, devices=DEVICES[:used]
    )  # type: ignore[arg-type]


def rows(trace: Trace) -> list[tuple[object, ...]]:
    return list(
        zip(
            trace.start_ns.tolist(), trace.duration_ns.tolist(), trace.kind.tolist(), trace.stream.tolist(),
            [trace.devices[at] for at in trace.device], [trace.modules[at] for at in trace.module],
            [trace.instructions[at] for at in trace.instruction], trace.execution.tolist(), trace.instance.tolist(),
            strict=True,
        )
    )  # fmt: skip


@settings(
    max_examples=80,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(traces())
def test_what_is_written_reads_back(tmp_path: Path, trace: Trace) -> None:
    write_nsys_sqlite(trace, tmp_path / "x.sqlite")
    again = read_nsys(tmp_path / "x.sqlite")
    assert rows(again) == rows(trace)
    assert again.unresolved == ()


def test_xla_flags_survive(tmp_path: Path, make_trace: Callable[..., Trace]) -> None:
    trace = make_trace([(0, 0, "a", 0, 1, 1)])
    write_nsys_sqlite(
        replace(trace, xla_flags='--xla_a=1 --xla_b="x y"'), tmp_path / "x.sqlite"
    )
    assert read_nsys(tmp_path / "x.sqlite").xla_flags == '--xla_a=1 --xla_b="x y"'


def test_rows_of_unknown_launches_are_launches_of_their_own(
    tmp_path: Path, make_trace: Callable[..., Trace]
) -> None:
    trace = make_trace([(0, 0, "a", 0, 1, 1), (0, 0, "a", 0, 2, 1)])
    write_nsys_sqlite(
        replace(trace, instance=np.full(2, -1, np.int32)), tmp_path / "x.sqlite"
    )
    assert read_nsys(tmp_path / "x.sqlite").instance.tolist() == [0, 1]


def test_launches_precede_the_work_and_do_not_overlap(
    tmp_path: Path, make_trace: Callable[..., Trace]
) -> None:
    trace = make_trace([(0, 0, "a", number, 10 + number, 1) for number in range(50)])
    write_nsys_sqlite(trace, tmp_path / "x.sqlite")
    with sqlite3.connect(tmp_path / "x.sqlite") as database:
        calls = database.execute(
            "SELECT start, end FROM CUPTI_ACTIVITY_KIND_RUNTIME ORDER BY start"
        ).fetchall()
        first = database.execute(
            "SELECT min(start) FROM CUPTI_ACTIVITY_KIND_KERNEL"
        ).fetchone()[0]
    assert calls[0][1] < first
    assert all(before[1] < after[0] for before, after in pairwise(calls))


def test_only_tables_with_rows_are_made_and_each_has_nsys_columns(
    tmp_path: Path, make_trace: Callable[..., Trace]
) -> None:
    write_nsys_sqlite(make_trace([(0, 0, "a", 0, 1, 1)]), tmp_path / "x.sqlite")
    with sqlite3.connect(tmp_path / "x.sqlite") as database:
        found = {name for (name,) in database.execute("SELECT name FROM sqlite_master")}
    assert "CUPTI_ACTIVITY_KIND_MEMCPY" not in found
    assert found <= set(TABLES)


def test_columns_are_those_of_nsys_2023_4(testdata: Path) -> None:
    facts = json.loads((testdata / "nsys_schema/columns_by_version.json").read_text())
    columns = facts["2023.4.4.54 (schema 3.7.2, lazy=false)"]
    ours = {
        name: [part.split()[0] for part in sql.split(", ")]
        for name, sql in TABLES.items()
        if name in columns
    }
    assert ours == {name: [column[0] for column in columns[name]] for name in ours}


def test_host_work_and_several_machines_are_refused(
    tmp_path: Path, make_trace: Callable[..., Trace]
) -> None:
    trace = make_trace([(0, 0, "a", 0, 1, 1), (1, 0, "a", 0, 1, 1)])
    with pytest.raises(ValueError, match="GPU activities only"):
        write_nsys_sqlite(
            replace(trace, kind=np.full(2, ActivityKind.HOST, np.uint8)),
            tmp_path / "x.sqlite",
        )
    with pytest.raises(ValueError, match="one machine"):
        write_nsys_sqlite(
            replace(trace, devices=(Device("a:1", 0), Device("b:1", 0))),
            tmp_path / "x.sqlite",
        )
