"""Small exports, written row by row, and what they must read as."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest

from pgle.errors import UserError
from pgle.trace.nsys import read_nsys
from pgle.trace.nsys_schema import TABLES
from pgle.trace.table import Kind, ModuleKey, Trace

TESTDATA = Path(__file__).parents[2] / "testdata"
MACHINE = 1 << 48
STEP = "XlaModule:#hlo_module=jit_step,program_id=7#"


def pid(number: int, machine: int = MACHINE) -> int:
    return machine | number << 24


class Export:
    """An export under construction: ranges and launches on threads, in the columns of a schema."""

    def __init__(self, path: Path, tables: dict[str, list[str]] | None = None) -> None:
        self.path = path
        self.tables = tables or {name: [part.split()[0] for part in sql.split(", ")] for name, sql in TABLES.items()}
        self.database = sqlite3.connect(path, isolation_level=None)
        self.database.executescript("PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF")
        self.strings: dict[str, int] = {}
        self.correlation = 0
        self.row("META_DATA_EXPORT", name="EXPORT_SCHEMA_VERSION", value="3.7.2")

    def row(self, table: str, **values: object) -> None:
        columns = self.tables[table]
        self.database.execute(f'CREATE TABLE IF NOT EXISTS "{table}" ({", ".join(map(repr, columns))})')
        marks = ", ".join("?" * len(columns))
        self.database.execute(f'INSERT INTO "{table}" VALUES ({marks})', [values.get(name) for name in columns])

    def string(self, text: str) -> int:
        if text not in self.strings:
            self.strings[text] = len(self.strings) + 100
            self.row("StringIds", id=self.strings[text], value=text)
        return self.strings[text]

    def range(self, text: str, start: int, end: int | None, *, process: int = pid(1), registered: bool = True) -> None:
        name = {"textId": self.string(text)} if registered else {"text": text}
        self.row("NVTX_EVENTS", start=start, end=end, eventType=59, globalTid=process | 1, domainId=1, **name)

    def call(self, at: int, *, process: int = pid(1), name: str = "cuLaunchKernel", correlation: int = 0) -> int:
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

    def launch(self, at: int, *, process: int = pid(1), device: int = 0, gpu: int | None = None) -> None:
        """A kernel, launched at `at`, that runs a second later or at `gpu`."""
        self.work(at + 1000 if gpu is None else gpu, self.call(at, process=process), process=process, device=device)

    def read(self) -> Trace:
        return read_nsys(self.path)


@pytest.fixture
def export(tmp_path: Path) -> Export:
    return Export(tmp_path / "report.sqlite")


def resolved(trace: Trace) -> list[tuple[str, int, str]]:
    """(module, execution, instruction) of each row."""
    rows = zip(trace.module.tolist(), trace.execution.tolist(), trace.instruction.tolist(), strict=True)
    return [(trace.modules[module].name, execution, trace.instructions[name]) for module, execution, name in rows]


def left_out(trace: Trace) -> dict[str, int]:
    return {entry.reason: entry.count for entry in trace.unresolved}


def step_with(export: Export, *thunks: str) -> None:
    """One execution of jit_step from 0 to 1000 whose thunks, one every 100, launch a kernel each."""
    export.range(STEP, 0, 1000)
    for number, name in enumerate(thunks):
        export.range(f"Thunk:#hlo_op={name}#", number * 100 + 10, number * 100 + 90)
        export.launch(number * 100 + 50)


def test_a_kernel_belongs_to_the_thunk_and_module_around_its_launch(export: Export) -> None:
    step_with(export, "fusion.1", "dot.2")
    trace = export.read()
    assert resolved(trace) == [("jit_step", 0, "fusion.1"), ("jit_step", 0, "dot.2")]
    assert trace.modules == (ModuleKey("jit_step", 7),)
    assert trace.duration_ns.tolist() == [10, 10]
    assert trace.unresolved == ()


def test_the_innermost_of_nested_thunks_owns_the_kernel(export: Export) -> None:
    export.range(STEP, 0, 1000)
    export.range("Thunk:#hlo_op=while.6#", 10, 900)
    export.range("Thunk:#hlo_op=body.1#", 20, 40)
    export.launch(30)
    export.launch(60)
    assert [name for _, _, name in resolved(export.read())] == ["body.1", "while.6"]


def test_rows_may_come_in_any_order(export: Export) -> None:
    export.range("Thunk:#hlo_op=b#", 110, 190)
    export.range("Thunk:#hlo_op=a#", 10, 90)
    export.range(STEP, 0, 1000)
    export.launch(150, gpu=5000)
    export.launch(50, gpu=4000)
    assert [name for _, _, name in resolved(export.read())] == ["a", "b"]


def test_ranges_of_nccl_and_of_the_user_are_looked_through(export: Export) -> None:
    export.range("my training loop", 0, 2000)
    export.range(STEP, 5, 1000)
    export.range("Thunk:#hlo_op=all-gather-start#", 10, 90)
    export.range("ncclGroupEnd", 20, 80)
    export.launch(50)
    assert resolved(export.read()) == [("jit_step", 0, "all-gather-start")]


def test_copies_and_memsets_belong_to_their_thunks(export: Export) -> None:
    export.range(STEP, 0, 1000)
    export.range("Thunk:#hlo_op=copy.4#", 10, 90)
    export.work(1000, export.call(20), table="MEMCPY")
    export.work(1100, export.call(30), table="MEMSET")
    trace = export.read()
    assert trace.kind.tolist() == [Kind.MEMCPY, Kind.MEMSET]
    assert trace.instance.tolist() == [0, 0]


def test_equal_correlation_ids_of_two_processes_are_kept_apart(export: Export) -> None:
    for process, name in ((pid(1), "first"), (pid(2), "second")):
        export.range(STEP, 0, 1000, process=process)
        export.range(f"Thunk:#hlo_op={name}#", 10, 90, process=process)
        export.work(2000, export.call(50, process=process, correlation=77), process=process)
    trace = export.read()
    assert [name for _, _, name in resolved(trace)] == ["first", "second"]
    assert [device.process for device in trace.devices] == ["report:1", "report:2"]


def test_texts_that_were_not_registered_stand_in_the_row(export: Export) -> None:
    export.range(STEP, 0, 1000, registered=False)
    export.range("Thunk:#hlo_op=fusion.1#", 10, 90, registered=False)
    export.range("something else", 20, 80, registered=False)
    export.launch(50)
    assert resolved(export.read()) == [("jit_step", 0, "fusion.1")]


def test_a_range_without_an_end_is_still_open(export: Export) -> None:
    export.range(STEP, 0, None)
    export.range("Thunk:#hlo_op=fusion.1#", 10, 90)
    export.launch(50)
    assert resolved(export.read()) == [("jit_step", 0, "fusion.1")]


def test_identifiers_with_the_sign_bit_set_are_read(export: Export) -> None:
    process = pid(5, machine=-(1 << 63))
    export.range(STEP, 0, 1000, process=process)
    export.range("Thunk:#hlo_op=fusion.1#", 10, 90, process=process)
    export.launch(50, process=process)
    assert export.read().devices[0].process == "report:5"


def test_times_may_be_negative(export: Export) -> None:
    export.range(STEP, -5000, -1000)
    export.range("Thunk:#hlo_op=fusion.1#", -4000, -3000)
    export.launch(-3500)
    assert export.read().start_ns.tolist() == [-2500]


def test_executions_are_counted_per_device_and_module(export: Export) -> None:
    for device, process in ((0, pid(1)), (0, pid(2))):
        for start in (0, 1000):
            export.range(STEP, start, start + 900, process=process)
            export.range("Thunk:#hlo_op=a#", start + 10, start + 20, process=process)
            export.launch(start + 15, process=process, device=device)
    trace = export.read()
    assert list(zip(trace.device.tolist(), trace.execution.tolist(), strict=True)) == [(0, 0), (0, 1), (1, 0), (1, 1)]


def test_the_rows_of_one_thunk_share_a_launch(export: Export) -> None:
    export.range(STEP, 0, 1000)
    export.range("Thunk:#hlo_op=conv.1#", 10, 90)
    export.launch(20)
    export.launch(40)
    export.range("Thunk:#hlo_op=conv.1#", 110, 190)
    export.launch(120)
    assert export.read().instance.tolist() == [0, 0, 1]


@pytest.mark.parametrize(
    "around",
    ["XlaAutotunerMeasurement:#hlo_op=gemm_fusion_dot.1#", "XlaCompile:#module=jit_step,program_id=7#", None],
)
def test_autotuning_is_left_out(export: Export, around: str | None) -> None:
    step_with(export, "dot.2")
    if around is not None:
        export.range(around, 2000, 3000)
    export.range("XlaModule:#hlo_module=gemm_fusion_dot.1#" if around is None else STEP, 2010, 2900)
    export.range("Thunk:#hlo_op=gemm_fusion_dot.1#", 2020, 2090)
    export.launch(2050)
    trace = export.read()
    assert resolved(trace) == [("jit_step", 0, "dot.2")]
    assert left_out(trace) == {"autotuner": 1}


def test_what_has_no_instruction_is_counted_by_reason(export: Export) -> None:
    step_with(export, "dot.2")
    export.launch(950)
    export.launch(5000)
    export.range("Thunk:#hlo_op=late.1#", 6000, 6100)
    export.launch(6050)
    export.work(7000, 12345, duration=30)
    export.row(
        "CUPTI_ACTIVITY_KIND_KERNEL", start=9, end=3, deviceId=0, streamId=7, correlationId=1, globalPid=pid(1)
    )  # fmt: skip
    trace = export.read()
    assert left_out(trace) == {"no-api-row": 1, "no-range": 1, "no-thunk": 1, "no-module": 1, "bad-time": 1}
    assert next(entry.duration_ns for entry in trace.unresolved if entry.reason == "no-api-row") == 30


@pytest.mark.parametrize("version", json.loads((TESTDATA / "nsys_schema/columns_by_version.json").read_text()))
def test_every_schema_is_read(tmp_path: Path, version: str) -> None:
    facts = json.loads((TESTDATA / "nsys_schema/columns_by_version.json").read_text())
    tables = {name: [column[0] for column in columns] for name, columns in facts[version].items()}
    tables.setdefault("NVTX_EVENTS", ["start", "end", "eventType", "text", "globalTid", "textId", "domainId"])
    tables.setdefault("META_DATA_EXPORT", ["name", "value"])
    export = Export(tmp_path / "report.sqlite", tables)
    step_with(export, "fusion.1", "dot.2")
    export.work(5000, export.call(60), table="MEMCPY")
    assert [name for _, _, name in resolved(export.read())] == ["fusion.1", "dot.2", "fusion.1"]


def test_only_xla_flags_of_the_environment_are_kept(export: Export) -> None:
    step_with(export, "dot.2")
    for line in ('SECRET_TOKEN="hunter2"', "XLA_FLAGS=\"--xla_a=1 --xla_b='x y'\"", 'MY_XLA_FLAGS="hunter3"'):
        export.row("META_DATA_CAPTURE", name="PROCESS_0:ENVIRONMENT_VARIABLE", value=line)
    trace = export.read()
    assert trace.xla_flags == "--xla_a=1 --xla_b='x y'"
    assert "hunter" not in repr(trace)


def test_xla_flags_are_found_in_the_device_environment(export: Export) -> None:
    step_with(export, "dot.2")
    export.row("TARGET_INFO_SYSTEM_ENV", name="DeviceEnvironment", value="TOKEN=hunter2\nXLA_FLAGS=--xla_a=1\nB=2")
    assert export.read().xla_flags == "--xla_a=1"


def test_processes_are_named_after_the_host(export: Export) -> None:
    step_with(export, "dot.2")
    export.row("TARGET_INFO_SYSTEM_ENV", name="Hostname", value="node17")
    assert export.read().devices[0].process == "node17:1"


def test_a_device_is_named_by_xla(export: Export) -> None:
    step_with(export, "dot.2")
    export.row("TARGET_INFO_NVTX_CUDA_DEVICE", name="Xla:#global=3,local=0,process=3,slice=0#", deviceId=3)
    assert export.read().devices[0].global_id == 3


def test_launcher_threads_tell_the_devices_of_several_processes_apart(export: Export) -> None:
    for number in (1, 2):
        process = pid(number)
        export.range(STEP, 0, 1000, process=process)
        export.range("Thunk:#hlo_op=a#", 10, 90, process=process)
        export.launch(50, process=process)
        name = export.string(f"XlaLauncher:#global={number + 4},local=0,process={number},partition=0#")
        export.row("ThreadNames", nameId=name, globalTid=process | 9)
        # both call their device 0
        name = f"Xla:#global={number + 4},local=0,process={number},partition=0#"
        export.row("TARGET_INFO_NVTX_CUDA_DEVICE", name=name, deviceId=0)
    assert [(device.ordinal, device.global_id) for device in export.read().devices] == [(0, 5), (0, 6)]


def test_another_major_schema_is_a_warning(export: Export) -> None:
    step_with(export, "dot.2")
    export.database.execute("UPDATE META_DATA_EXPORT SET value = '4.0.0'")
    assert "schema 4.0.0" in export.read().warnings[0]


def test_progress_reaches_the_end(export: Export) -> None:
    step_with(export, "dot.2", "dot.3")
    seen: list[tuple[int, int]] = []
    read_nsys(export.path, progress=lambda done, total: seen.append((done, total)))
    assert seen[-1] == (7, 7)


# CUDA graphs


def graph_step(export: Export) -> int:
    """A step whose command buffer is launched at 50; returns the launch's correlation id."""
    export.range(STEP, 0, 1000)
    export.range("Thunk:#hlo_op=command_buffer_1#", 10, 90)
    return export.call(50, name="cuGraphLaunch")


@pytest.mark.parametrize("table", ["CUDA_GRAPH_EVENTS", "CUDA_GRAPH_NODE_EVENTS"])
def test_a_graph_node_belongs_to_the_thunk_that_made_it(export: Export, table: str) -> None:
    export.tables[table] = export.tables["CUDA_GRAPH_EVENTS"]
    correlation = graph_step(export)
    for number, name in enumerate(("mul.20", "sub.21")):
        export.range(f"Thunk:#hlo_op={name}#", 12 + 10 * number, 18 + 10 * number)
        export.row(table, start=14 + 10 * number, globalTid=pid(1) | 1, graphNodeId=500 + number)
        # instantiated, then updated: two clones in a chain
        export.row(table, start=40, globalTid=pid(1) | 1, graphNodeId=600 + number, originalGraphNodeId=500 + number)
        export.row(table, start=41, globalTid=pid(1) | 1, graphNodeId=700 + number, originalGraphNodeId=600 + number)
        export.work(2000 + 100 * number, correlation, kernel="library", node=700 + number)
    trace = export.read()
    assert resolved(trace) == [("jit_step", 0, "mul.20"), ("jit_step", 0, "sub.21")]
    assert len(set(trace.instance.tolist())) == 2
    assert trace.unresolved == ()


def test_clones_that_lead_in_a_circle_are_left_out(export: Export) -> None:
    correlation = graph_step(export)
    for node, original in ((1, 2), (2, 1)):
        export.row(
            "CUDA_GRAPH_EVENTS", start=20, globalTid=pid(1) | 1, graphNodeId=node, originalGraphNodeId=original
        )  # fmt: skip
    export.work(2000, correlation, node=1)
    export.range("Thunk:#hlo_op=dot.2#", 110, 190)
    export.launch(150)
    assert left_out(export.read()) == {"graph-node": 1}


def test_kernels_of_xla_name_their_instruction_where_the_graph_was_made_before_the_capture(export: Export) -> None:
    correlation = graph_step(export)
    export.work(2000, correlation, kernel="loop_mul_fusion_20", node=7, duration=70)
    export.work(2100, correlation, kernel="ampere_sgemm_128x64_tn", node=8, duration=50)
    trace = export.read()
    assert resolved(trace) == [("jit_step", 0, "loop_mul_fusion.20")]
    assert left_out(trace) == {"graph-node": 1}
    assert any("--xla_gpu_enable_command_buffer=" in warning for warning in trace.warnings)


def test_graph_mode_hides_activities(export: Export) -> None:
    step_with(export, "dot.2")
    export.call(950, name="cuGraphLaunch")
    columns = ["start", "end", "deviceId", "streamId", "correlationId", "globalPid", "graphId"]
    export.tables["CUPTI_ACTIVITY_KIND_GRAPH_TRACE"] = columns
    export.row("CUPTI_ACTIVITY_KIND_GRAPH_TRACE", start=3000, end=3400, correlationId=export.correlation)
    trace = export.read()
    assert [(entry.reason, entry.count, entry.duration_ns) for entry in trace.unresolved] == [("graph-launch", 1, 400)]
    assert "CUDA graphs" in trace.warnings[0]


def test_graph_launches_that_show_nothing_are_counted(export: Export) -> None:
    step_with(export, "dot.2")
    export.call(950, name="cudaGraphLaunch_v10000")
    assert left_out(export.read()) == {"graph-launch": 1}


def test_only_graphs_is_an_error(export: Export) -> None:
    graph_step(export)
    with pytest.raises(UserError, match=r"only CUDA graphs .*--xla_gpu_enable_command_buffer="):
        export.read()


# bad input


def test_no_activity_is_an_error(export: Export) -> None:
    export.range(STEP, 0, 1000)
    export.range("Thunk:#hlo_op=dot.2#", 10, 90)
    with pytest.raises(UserError, match=r"no GPU activity;.*--trace=cuda,nvtx"):
        export.read()


def test_no_thunk_is_an_error(export: Export) -> None:
    export.range("my range", 0, 1000)
    export.launch(50)
    with pytest.raises(UserError, match="no `Thunk:` ranges"):
        export.read()


def test_nothing_resolved_is_an_error_that_says_why(export: Export) -> None:
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
        (b"NVIDIA Tegra Profiler Report 2024@1@1@59-1v0.", "is a report, not an export"),
        (b"SQLite format 3\0", "truncated"),
    ],
)
def test_a_file_that_is_no_database_is_named(tmp_path: Path, content: bytes | None, message: str) -> None:
    path = tmp_path / "x.sqlite"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UserError, match=message):
        read_nsys(path)


def test_a_truncated_database_is_an_error(export: Export) -> None:
    step_with(export, "dot.2")
    export.database.close()
    data = export.path.read_bytes()
    export.path.write_bytes(data[: len(data) // 2])
    with pytest.raises(UserError, match="truncated: "):
        export.read()


def test_a_damaged_database_is_an_error(export: Export) -> None:
    step_with(export, *(f"dot.{number}" for number in range(300)))
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
    ("name", "message"),
    [
        ("healthy_1pct.sqlite", "CUPTI_ACTIVITY_KIND_KERNEL lacks the column globalPid"),
        ("mock.sqlite", "no NVTX ranges"),
        ("h100_2gpu_1s.sqlite", "no `Thunk:` ranges"),
    ],
)
def test_real_exports_without_xla_are_refused(name: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        read_nsys(TESTDATA / "nsys_exports" / name)


def test_text_where_a_number_belongs_is_an_error(export: Export) -> None:
    step_with(export, "dot.2")
    export.database.execute("UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET deviceId = 'zero'")
    with pytest.raises(UserError, match="damaged database"):
        export.read()


def test_absurd_numbers_cost_no_memory(export: Export) -> None:
    step_with(export, "dot.2")
    huge = 2**62
    export.row("StringIds", id=huge, value="Thunk:#hlo_op=far.1#")
    export.row("NVTX_EVENTS", start=200, end=300, eventType=59, globalTid=pid(1) | 1, textId=huge)
    export.work(3000, export.call(250, correlation=huge), device=huge)
    export.work(-(2**63), huge, duration=0)
    export.row(
        "CUPTI_ACTIVITY_KIND_KERNEL", start=1, end=2**63 - 1, deviceId=0, streamId=0, correlationId=1,
        globalPid=pid(1),
    )  # fmt: skip
    export.database.execute("UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET rowid = ? WHERE deviceId = ?", (huge, huge))
    trace = export.read()
    assert [name for _, _, name in resolved(trace)] == ["dot.2", "far.1"]
    assert [device.ordinal for device in trace.devices] == [0, huge]
    assert left_out(trace) == {"bad-time": 2}


def test_absurd_nesting_is_an_error(export: Export) -> None:
    for depth in range(1200):
        export.range("Thunk:#hlo_op=dot.2#", depth, 10_000 - depth)
    export.launch(5000)
    with pytest.raises(UserError, match="nested 1,199 deep"):
        export.read()
