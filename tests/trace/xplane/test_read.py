"""xplane files as Trace tables: real files of three profilers, and small hand-made ones for each
rule.
"""

from __future__ import annotations

import gzip
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from pgle.trace.table import ActivityKind, Device, ModuleKey, Trace, Unresolved
from pgle.trace.xplane.read import find_xplanes, read_xplane
from pgle.xla.protos import hlo_pb2, xplane_pb2

Event = tuple[int, int, dict[str, object]]
"""(start µs, duration µs, stats); a string that begins with @ is stored as a reference."""


def add_plane(
    space: xplane_pb2.XSpace, name: str, lines: dict[str, list[Event]]
) -> xplane_pb2.XPlane:
    plane = space.planes.add(name=name)
    names: dict[str, int] = {}

    def number(text: str) -> int:
        if text not in names:
            names[text] = len(names) + 1
            plane.stat_metadata[names[text]].CopyFrom(
                xplane_pb2.XStatMetadata(id=names[text], name=text)
            )
        return names[text]

    for identity, (line_name, events) in enumerate(lines.items()):
        line = plane.lines.add(id=identity + 7, name=line_name, timestamp_ns=1_000)
        for start, duration, stats in events:
            kernel = str(stats.get("kernel", "kernel"))
            key = 1 + sum(map(ord, kernel))
            plane.event_metadata[key].CopyFrom(
                xplane_pb2.XEventMetadata(id=key, name=kernel)
            )
            event = line.events.add(
                metadata_id=key,
                offset_ps=start * 1_000_000,
                duration_ps=duration * 1_000_000,
            )
            for stat_name, value in stats.items():
                stat = event.stats.add(metadata_id=number(stat_name))
                if isinstance(value, str) and value.startswith("@"):
                    stat.ref_value = number(value[1:])
                elif isinstance(value, str):
                    stat.str_value = value
                elif isinstance(value, float):
                    stat.double_value = value
                else:
                    stat.int64_value = int(str(value))
    return plane


def op(name: str, module: str = "@jit_step", **more: object) -> dict[str, object]:
    return {"hlo_op": name, "hlo_module": module, "program_id": 3, **more}


def read(tmp_path: Path, space: xplane_pb2.XSpace) -> Trace:
    path = tmp_path / "host.xplane.pb"
    path.write_bytes(space.SerializeToString())
    return read_xplane([path])


def gpu(tmp_path: Path, lines: dict[str, list[Event]]) -> Trace:
    space = xplane_pb2.XSpace(hostnames=["host"])
    add_plane(space, "/device:GPU:0", lines)
    return read(tmp_path, space)


def names(trace: Trace) -> list[str]:
    return [trace.instructions[i] for i in trace.instruction]


def test_eight_gpu_program_of_rocm(testdata: Path):
    trace = read_xplane(
        [testdata / "jax_xplane" / "jax_conv_minimal_08_tw003.xplane.pb"]
    )
    assert [device.ordinal for device in trace.devices] == list(range(8))
    assert trace.modules == (ModuleKey("jit_forward_3d_conv", 15),)
    assert (len(trace), trace.unresolved) == (
        198,
        (Unresolved("no-range", 37, 586_401),),
    )
    # 5 executions of 3 one-kernel instructions and one of two kernels, per device; the first device
    # lost two kernels
    for device in range(1, 8):
        on_device = trace.device == device
        assert Counter(trace.execution[on_device].tolist()) == dict.fromkeys(
            range(5), 5
        )
        assert len(set(trace.instance[on_device].tolist())) == 5 * 4
    assert Counter(trace.execution[trace.device == 0].tolist()) == {
        0: 5,
        1: 3,
        2: 5,
        3: 5,
        4: 5,
    }


def test_older_layout_of_rocm(testdata: Path):
    trace = read_xplane([testdata / "jax_xplane" / "jax_conv_minimal_legacy.xplane.pb"])
    assert [device.ordinal for device in trace.devices] == [7]
    assert Counter(trace.execution.tolist()) == dict.fromkeys(range(5), 5)


def test_every_launch_of_a_module_of_one_kernel_is_an_execution(testdata: Path):
    trace = read_xplane([testdata / "jax_xplane" / "jax08_gemm.xplane.pb"])
    rows = trace.module == trace.modules.index(ModuleKey("jit_convert_element_type", 1))
    assert sorted(trace.execution[rows].tolist()) == list(range(12))


def test_embedded_hlo_is_taken_along(testdata: Path):
    trace = read_xplane(
        [testdata / "jax_xplane" / "jax_conv_minimal_08_tw003.xplane.pb"]
    )
    dumped = (
        testdata / "jax_xplane" / "hlo_proto" / "jit_forward_3d_conv(15).hlo_proto.pb"
    )
    module = hlo_pb2.HloProto.FromString(trace.hlo[trace.modules[0]]).hlo_module
    assert (
        module.name == hlo_pb2.HloProto.FromString(dumped.read_bytes()).hlo_module.name
    )
    assert {i.name for c in module.computations for i in c.instructions} >= set(
        trace.instructions
    )


@pytest.mark.parametrize("version", ["0_10_2", "0_12_0"])
def test_cpu_backend_rows_are_host_work_by_device_and_run(testdata: Path, version: str):
    trace = read_xplane([testdata / "jax_xplane" / f"cpu_4dev_jax_{version}.xplane.pb"])
    assert [device.ordinal for device in trace.devices] == [0, 1, 2, 3]
    assert set(trace.kind.tolist()) == {ActivityKind.HOST}
    # one step: 6 instructions outside, 6 in a loop of 3 iterations; the loop itself is not counted
    # again
    assert "while.8" not in trace.instructions
    for device in range(4):
        assert Counter(trace.execution[trace.device == device].tolist()) == {
            0: 24,
            1: 24,
            2: 24,
        }
    assert ModuleKey("jit_step", 10) in trace.hlo


def test_strings_stand_as_references_or_in_place(tmp_path: Path):
    trace = gpu(
        tmp_path,
        {
            "Stream #7(Kernel)": [
                (0, 5, op("@fusion")),
                (9, 5, op("dot.1", module="jit_step")),
            ]
        },
    )
    assert names(trace) == ["fusion", "dot.1"]
    assert trace.modules == (ModuleKey("jit_step", 3),)


def test_times_are_nanoseconds_since_the_origin_of_the_line(tmp_path: Path):
    trace = gpu(tmp_path, {"Stream #7(Kernel)": [(2, 5, op("a"))]})
    assert (
        trace.start_ns.tolist(),
        trace.duration_ns.tolist(),
        trace.stream.tolist(),
    ) == (
        [3_000],
        [5_000],
        [7],
    )


def test_lines_that_repeat_the_streams_are_not_counted(tmp_path: Path):
    events: list[Event] = [(0, 5, op("a"))]
    lines = dict.fromkeys(
        ("Stream #7(Kernel)", "XLA Modules", "XLA Ops", "Async XLA Ops"), events
    )
    assert len(gpu(tmp_path, lines)) == 1


def test_kinds_follow_the_details(tmp_path: Path):
    events: list[Event] = [
        (0, 1, op("a", kernel_details="@regs:4")),
        (2, 1, op("copy", memcpy_details="@kind_src:device")),
        (4, 1, op("zero", memset_details="@kind:device")),
        (6, 1, op("alloc", memalloc_details="@kind:device")),
    ]
    trace = gpu(tmp_path, {"Stream #7(Kernel)": events})
    assert trace.kind.tolist() == [
        ActivityKind.KERNEL,
        ActivityKind.MEMCPY,
        ActivityKind.MEMSET,
    ]


def test_what_belongs_to_no_instruction_is_counted_by_reason(tmp_path: Path):
    events: list[Event] = [
        (0, 1, op("a")),
        (1, 2, {}),
        (3, 3, {"hlo_module": "@jit_step"}),
        (6, 4, {"hlo_op": "@lonely"}),
        (10, 5, op("command_buffer", cuda_graph_exec_id=9)),
    ]
    trace = gpu(tmp_path, {"Stream #7(Kernel)": events})
    reasons = {item.reason: (item.count, item.duration_ns) for item in trace.unresolved}
    assert reasons == {
        "graph-launch": (1, 5000),
        "no-module": (1, 4000),
        "no-range": (1, 2000),
        "no-thunk": (1, 3000),
    }
    assert names(trace) == ["a"]


def test_rows_are_ordered_by_device_and_start_over_streams_and_hosts(tmp_path: Path):
    paths = []
    for host in ("b", "a"):
        space = xplane_pb2.XSpace(hostnames=[host])
        for ordinal in (1, 0):
            lines = {
                "Stream #1": [(4, 1, op("x")), (8, 1, op("y"))],
                "Stream #2": [(2, 1, op("z"))],
            }
            add_plane(space, f"/device:GPU:{ordinal}", lines)
        paths.append(tmp_path / f"{host}.xplane.pb")
        paths[-1].write_bytes(space.SerializeToString())
    trace = read_xplane(paths)
    assert trace.devices == (
        Device("a", 0),
        Device("a", 1),
        Device("b", 0),
        Device("b", 1),
    )
    assert trace.device.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3]
    assert names(trace) == ["z", "x", "y"] * 4
    assert [source.path for source in trace.sources] == [str(path) for path in paths]


def test_processes_are_told_by_pid_and_by_file(tmp_path: Path):
    paths = []
    for file in ("p0", "p1"):
        space = xplane_pb2.XSpace(hostnames=["node"])
        add_plane(space, "/device:GPU:0", {"Stream #1": [(0, 1, op("x"))]})
        paths.append(tmp_path / f"{file}.xplane.pb")
        paths[-1].write_bytes(space.SerializeToString())
    assert [device.process for device in read_xplane(paths).devices] == [
        "node",
        "node (p1.xplane.pb)",
    ]


def test_dropped_events_become_warnings(tmp_path: Path):
    space = xplane_pb2.XSpace(
        warnings=["Detected GPU events dropped on h:\n 7 events dropped"]
    )
    add_plane(space, "/device:GPU:0", {"Stream #1": [(0, 1, op("x"))]})
    assert read(tmp_path, space).warnings == (
        "host.xplane.pb: Detected GPU events dropped on h: 7 events dropped",
    )


def test_the_environment_of_the_process_is_never_read(tmp_path: Path):
    space = xplane_pb2.XSpace()
    add_plane(space, "/device:GPU:0", {"Stream #1": [(0, 1, op("x"))]})
    add_plane(
        space,
        "Task Environment",
        {"TOKEN=secret": [(0, 1, op("secret", module="@secret"))]},
    )
    assert "secret" not in repr(read(tmp_path, space))


def test_same_bytes_give_the_same_trace(testdata: Path):
    path = testdata / "jax_xplane" / "jax_conv_minimal_08_tw003.xplane.pb"
    first, second = read_xplane([path]), read_xplane([path])
    assert first.instructions == second.instructions
    assert np.array_equal(first.instance, second.instance)


def test_newest_run_of_a_log_directory_by_name(tmp_path: Path):
    for run in ("2025_01_02", "2024_12_31"):
        for host in ("b", "a"):
            file = tmp_path / "plugins" / "profile" / run / f"{host}.xplane.pb"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.touch()
    newest = tmp_path / "plugins" / "profile" / "2025_01_02"
    assert find_xplanes(tmp_path) == [newest / "a.xplane.pb", newest / "b.xplane.pb"]
    assert find_xplanes(newest.parent) == find_xplanes(newest) == find_xplanes(tmp_path)
    older = find_xplanes(newest.with_name("2024_12_31"))
    assert [path.parent.name for path in older] == ["2024_12_31"] * 2


def test_a_run_without_traces_is_passed_over(tmp_path: Path):
    for run, file in (("2025", "memory_profile.pb"), ("2024", "a.xplane.pb")):
        (tmp_path / "plugins" / "profile" / run).mkdir(parents=True)
        (tmp_path / "plugins" / "profile" / run / file).touch()
    assert [path.parent.name for path in find_xplanes(tmp_path)] == ["2024"]


def test_paths_of_object_stores_are_searched(tmp_path: Path):
    epath = pytest.importorskip("etils.epath")
    (tmp_path / "plugins" / "profile" / "2025").mkdir(parents=True)
    (tmp_path / "plugins" / "profile" / "2025" / "a.xplane.pb").touch()
    assert [path.name for path in find_xplanes(epath.Path(tmp_path))] == ["a.xplane.pb"]


def test_an_execution_is_told_by_the_hlo_of_that_name_where_there_is_no_program_id(
    tmp_path: Path,
):
    proto = hlo_pb2.HloProto(
        hlo_module=hlo_pb2.HloModuleProto(name="jit_f", id=8, entry_computation_id=1)
    )
    entry = proto.hlo_module.computations.add(id=1)
    for identity, name in enumerate("ab"):
        entry.instructions.add(name=name, id=identity)
    space = xplane_pb2.XSpace()
    metadata = add_plane(space, "/host:metadata", {}).event_metadata[8]
    metadata.name = "jit_f(8)"
    metadata.stats.append(xplane_pb2.XStat(bytes_value=proto.SerializeToString()))
    events: list[Event] = [
        (i, 1, {"hlo_op": f"@{name}", "hlo_module": "@jit_f"})
        for i, name in enumerate("babab")
    ]
    add_plane(space, "/device:GPU:0", {"Stream #1": events})
    trace = read(tmp_path, space)
    assert trace.modules == (ModuleKey("jit_f"),)
    assert trace.execution.tolist() == [0, 1, 1, 2, 2]


def test_records_without_a_possible_time_are_left_out_by_reason(tmp_path: Path):
    events = [(5, -1, op("a")), (9, 2, op("a")), (0, 0, op("a")), (0, 0, op("a"))]
    trace = gpu(tmp_path, {"Stream #1": events})
    assert trace.duration_ns.tolist() == [2000]
    assert [(item.reason, item.count) for item in trace.unresolved] == [
        ("no-time", 2),
        ("reversed", 1),
    ]
    assert any(
        "2 GPU records without a time stamp: left out" in line
        for line in trace.warnings
    )


def test_progress_goes_up_to_the_whole(testdata: Path):
    path = testdata / "jax_xplane" / "jax_conv_minimal_08_tw003.xplane.pb"
    seen: list[tuple[int, int]] = []
    read_xplane([path, path], progress=lambda done, total: seen.append((done, total)))
    assert seen == sorted(seen)
    assert seen[-1] == (2000, 2000)


def test_compressed_files_are_read(testdata: Path, tmp_path: Path):
    plain = testdata / "jax_xplane" / "jax08_gemm.xplane.pb"
    packed = tmp_path / "host.xplane.pb.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    assert find_xplanes(tmp_path) == [packed]
    assert len(read_xplane([packed])) == len(read_xplane([plain]))


def test_nested_thunks_are_told_across_blocks(
    testdata: Path, monkeypatch: pytest.MonkeyPatch
):
    path = testdata / "jax_xplane" / "cpu_4dev_jax_0_12_0.xplane.pb"
    whole = read_xplane([path])
    monkeypatch.setattr("pgle.trace.xplane.planes.BLOCK_EVENTS", 3)
    parts = read_xplane([path])
    assert names(parts) == names(whole)
    assert np.array_equal(parts.execution, whole.execution)


def test_kernels_of_libraries_are_known_by_instruction(tmp_path: Path) -> None:
    space = xplane_pb2.XSpace()
    events: list[Event] = [
        (0, 5, op("dot.1", kernel="nvjet_tst_64x8")),
        (9, 5, op("add.1", kernel="loop_add")),
    ]
    add_plane(space, "/device:GPU:0", {"Stream #7": events})
    assert read(tmp_path, space).kernels == {("jit_step", "dot.1"): {"nvjet_tst_64x8"}}


@pytest.mark.parametrize(
    "name",
    [
        "backend_compile_and_load",
        "backend_compile",
        "XlaCompile:#module=jit_step#",
        "PjRtStreamExecutorClient::Compile",
    ],
)
def test_the_times_in_which_xla_compiled_are_those_of_the_host_plane(
    name: str, tmp_path: Path
) -> None:
    space = xplane_pb2.XSpace(hostnames=["host"])
    add_plane(space, "/device:GPU:0", {"Stream #1(Kernel)": [(0, 5, op("@dot.1"))]})
    python = [(10, 20, {"kernel": name}), (12, 3, {"kernel": name}), (50, 1, {})]
    add_plane(space, "/host:CPU", {"python": python})
    (times,) = read(tmp_path, space).compiling.values()
    assert times.tolist() == [[11_000, 31_000]]


def test_a_host_plane_without_a_compilation_says_nothing(tmp_path: Path) -> None:
    space = xplane_pb2.XSpace(hostnames=["host"])
    add_plane(space, "/device:GPU:0", {"Stream #1(Kernel)": [(0, 5, op("@dot.1"))]})
    add_plane(space, "/host:CPU", {"python": [(10, 20, {"kernel": "step"})]})
    assert read(tmp_path, space).compiling == {}
