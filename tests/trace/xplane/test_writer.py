"""A Trace written as an xplane reads back as itself, and jaxlib's own converter finds the same
costs in it.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import jaxlib
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pgle.trace.table import ActivityKind, Device, ModuleKey, Trace
from pgle.trace.xplane.read import read_xplane
from pgle.trace.xplane.writer import write_xplane
from pgle.xla.protos import profiled_instructions_pb2, xplane_pb2

Launch = tuple[int, int, int, int, list[tuple[int, int, int]]]
"""(device, module, execution, instruction, [(gap, duration, kind) of each activity])"""

MODULES = (
    ModuleKey("jit_step", 42),
    ModuleKey("jit_init", 1 << 40),
    ModuleKey("jit_other"),
)
NAMES = ("fusion.1", "all-gather-start", "copy", "größe")


def trace_of(launches: list[Launch]) -> Trace:
    """One activity after the other on each device, 1 ns or more apart."""
    clock: dict[int, int] = {}
    seen: dict[tuple[int, int], list[int]] = {}
    rows: list[tuple[int, ...]] = []
    for number, (device, module, execution, instruction, activities) in enumerate(
        launches
    ):
        known = seen.setdefault((device, module), [])
        if execution not in known:
            known.append(execution)
        for gap, duration, kind in activities:
            start = clock.get(device, 1_700_000_000_000_000_000) + gap
            clock[device] = start + duration
            stream = 13 + instruction % 2
            rows.append(
                (
                    device,
                    start,
                    duration,
                    kind,
                    stream,
                    module,
                    instruction,
                    known.index(execution),
                    number,
                )
            )
    rows.sort()
    columns = (
        [np.array(column) for column in zip(*rows, strict=True)]
        if rows
        else [np.empty(0)] * 9
    )
    types = (
        np.int32,
        np.int64,
        np.int64,
        np.uint8,
        np.int32,
        np.int32,
        np.int32,
        np.int32,
        np.int32,
    )
    names = (
        "device",
        "start_ns",
        "duration_ns",
        "kind",
        "stream",
        "module",
        "instruction",
        "execution",
        "instance",
    )
    return Trace(
        **{
            name: column.astype(kind)
            for name, column, kind in zip(names, columns, types, strict=True)
        },
        modules=MODULES,
        instructions=NAMES,
        devices=(Device("host:77", 0), Device("host:77", 3)),
    )


def rows_of(trace: Trace) -> list[tuple[object, ...]]:
    """Rows with their names; launches numbered by first row on their device."""
    launches: dict[tuple[int, int], int] = {}
    out = []
    for i in range(len(trace)):
        launch = launches.setdefault(
            (trace.device[i], trace.instance[i]), len(launches)
        )
        times = (
            int(trace.start_ns[i]),
            int(trace.duration_ns[i]),
            int(trace.kind[i]),
            int(trace.stream[i]),
        )
        names = (
            trace.devices[trace.device[i]],
            trace.modules[trace.module[i]],
            trace.instructions[trace.instruction[i]],
        )
        out.append((*times, *names, int(trace.execution[i]), launch))
    return out


def read_back(folder: Path, trace: Trace) -> Trace:
    path = folder / "host.xplane.pb"
    path.write_bytes(write_xplane(trace))
    return read_xplane([path])


# no record is so far from the others that its stamp is wrong (`LEAST_FAR_NS` of pgle/trace/records.py)
ACTIVITIES = st.lists(
    st.tuples(st.integers(1, 10**4), st.integers(1, 10**4), st.integers(0, 2)),
    min_size=1,
    max_size=3,
)
LAUNCHES = st.lists(
    st.tuples(
        st.integers(0, 1),
        st.integers(0, 2),
        st.integers(0, 3),
        st.integers(0, 3),
        ACTIVITIES,
    ),
    min_size=1,
    max_size=12,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(LAUNCHES)
def test_a_written_trace_reads_back_as_itself(tmp_path: Path, launches: list[Launch]):
    trace = trace_of(launches)
    assert rows_of(read_back(tmp_path, trace)) == rows_of(trace)


def test_hlo_and_warnings_come_back(tmp_path: Path):
    hlo = {MODULES[0]: b"\x0a\x06\x0a\x04main", MODULES[1]: b"\x0a\x03\x0a\x01x"}
    trace = replace(
        trace_of([(0, 0, 0, 0, [(1, 5, 0)])]), hlo=hlo, warnings=("7 events dropped",)
    )
    again = read_back(tmp_path, trace)
    assert again.hlo == hlo
    assert again.warnings == ("host.xplane.pb: 7 events dropped",)


def test_executions_that_are_not_known_are_for_the_reader(tmp_path: Path):
    trace = trace_of([(0, 0, 0, name, [(1, 5, 0)]) for name in (0, 1, 0, 1)])
    unknown = np.full(4, -1, np.int32)
    again = read_back(tmp_path, replace(trace, execution=unknown, instance=unknown))
    assert again.execution.tolist() == [0, 0, 1, 1]


def test_lines_are_named_after_streams_and_kinds():
    trace = trace_of(
        [(0, 0, 0, 0, [(1, 5, ActivityKind.KERNEL), (1, 5, ActivityKind.MEMCPY)])]
    )
    space = xplane_pb2.XSpace.FromString(write_xplane(trace))
    (line,) = next(
        plane for plane in space.planes if plane.name == "/device:GPU:0"
    ).lines
    assert (line.id, line.name) == (13, "Stream #13(Kernel,MemcpyD2D)")


def test_same_trace_gives_the_same_bytes():
    trace = trace_of(
        [
            (d, 0, e, i, [(1, 5, 0)])
            for e in range(2)
            for d in range(2)
            for i in range(4)
        ]
    )
    assert write_xplane(trace) == write_xplane(trace)


def test_several_processes_need_several_files():
    trace = replace(
        trace_of([(0, 0, 0, 0, [(1, 5, 0)])]), devices=(Device("a", 0), Device("b", 0))
    )
    with pytest.raises(ValueError, match="one process"):
        write_xplane(trace)


def jaxlib_costs(folder: Path, trace: Trace) -> dict[str, float]:
    profiler = pytest.importorskip("jax.experimental.profiler")
    (folder / "host.xplane.pb").write_bytes(write_xplane(trace))
    proto = profiler.get_profiled_instructions_proto(str(folder))
    costs = profiled_instructions_pb2.ProfiledInstructionsProto.FromString(proto).costs
    return {cost.name: cost.cost_us for cost in costs}


def test_jaxlib_finds_the_mean_of_launches_of_one_kernel(tmp_path: Path):
    launches = [
        (d, 0, e, i, [(1, 1000 * (1 + i + e), 0)])
        for e in range(3)
        for d in range(2)
        for i in range(3)
    ]
    assert jaxlib_costs(tmp_path, trace_of(launches)) == pytest.approx(
        {"fusion.1": 2.0, "all-gather-start": 3.0, "copy": 4.0}
    )


def test_jaxlib_from_0_12_takes_the_span_of_a_launch_and_before_the_mean_of_its_kernels(
    tmp_path: Path,
):
    trace = trace_of([(0, 0, 0, 0, [(1, 10_000, 0), (5_000, 15_000, 0)])])
    scoped = tuple(map(int, jaxlib.__version__.split(".")[:2])) >= (0, 12)
    assert jaxlib_costs(tmp_path, trace) == pytest.approx(
        {"fusion.1": 30.0 if scoped else 12.5}
    )
    assert read_back(tmp_path, trace).duration_ns.sum() == 25_000


def test_jaxlib_mixes_modules_that_share_a_name(tmp_path: Path):
    trace = trace_of([(0, 0, 0, 0, [(1, 10_000, 0)]), (0, 1, 0, 0, [(1, 30_000, 0)])])
    assert jaxlib_costs(tmp_path, trace) == pytest.approx({"fusion.1": 20.0})
    again = read_back(tmp_path, trace)
    assert [again.modules[code].name for code in again.module] == [
        "jit_step",
        "jit_init",
    ]


def test_blocks_join_without_a_seam(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    launches = [
        (d, 0, e, i, [(1, 5 + i, 0), (2, 3, 1)])
        for e in range(3)
        for d in range(2)
        for i in range(4)
    ]
    trace = trace_of(launches)
    monkeypatch.setattr("pgle.trace.xplane.planes.BLOCK_EVENTS", 2)
    assert rows_of(read_back(tmp_path, trace)) == rows_of(trace)
