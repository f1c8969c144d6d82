"""Small exports, written row by row, and what they must read as."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from trace_rows import left_out, resolved

from pgle.trace.nsys.read import read_nsys
from pgle.trace.table import ActivityKind, ModuleKey

TESTDATA = Path(__file__).parents[3] / "testdata"
MACHINE = 1 << 48
STEP = "XlaModule:#hlo_module=jit_step,program_id=7#"


def pid(number: int, machine: int = MACHINE) -> int:
    return machine | number << 24


def test_a_kernel_belongs_to_the_thunk_and_module_around_its_launch(
    export: Any,
) -> None:
    export.step_with("fusion.1", "dot.2")
    trace = export.read()
    assert resolved(trace) == [("jit_step", 0, "fusion.1"), ("jit_step", 0, "dot.2")]
    assert trace.modules == (ModuleKey("jit_step", 7),)
    assert trace.duration_ns.tolist() == [10, 10]
    assert trace.unresolved == ()


def test_the_innermost_of_nested_thunks_owns_the_kernel(export: Any) -> None:
    export.range(STEP, 0, 1000)
    export.range("Thunk:#hlo_op=while.6#", 10, 900)
    export.range("Thunk:#hlo_op=body.1#", 20, 40)
    export.launch(30)
    export.launch(60)
    assert [name for _, _, name in resolved(export.read())] == ["body.1", "while.6"]


def test_rows_may_come_in_any_order(export: Any) -> None:
    export.range("Thunk:#hlo_op=b#", 110, 190)
    export.range("Thunk:#hlo_op=a#", 10, 90)
    export.range(STEP, 0, 1000)
    export.launch(150, gpu=5000)
    export.launch(50, gpu=4000)
    assert [name for _, _, name in resolved(export.read())] == ["a", "b"]


def test_ranges_of_nccl_and_of_the_user_are_looked_through(export: Any) -> None:
    export.range("my training loop", 0, 2000)
    export.range(STEP, 5, 1000)
    export.range("Thunk:#hlo_op=all-gather-start#", 10, 90)
    export.range("ncclGroupEnd", 20, 80)
    export.launch(50)
    assert resolved(export.read()) == [("jit_step", 0, "all-gather-start")]


def test_copies_and_memsets_belong_to_their_thunks(export: Any) -> None:
    export.range(STEP, 0, 1000)
    export.range("Thunk:#hlo_op=copy.4#", 10, 90)
    export.work(1000, export.call(20), table="MEMCPY")
    export.work(1100, export.call(30), table="MEMSET")
    trace = export.read()
    assert trace.kind.tolist() == [ActivityKind.MEMCPY, ActivityKind.MEMSET]
    assert trace.instance.tolist() == [0, 0]


def test_equal_correlation_ids_of_two_processes_are_kept_apart(export: Any) -> None:
    for process, name in ((pid(1), "first"), (pid(2), "second")):
        export.range(STEP, 0, 1000, process=process)
        export.range(f"Thunk:#hlo_op={name}#", 10, 90, process=process)
        export.work(
            2000, export.call(50, process=process, correlation=77), process=process
        )
    trace = export.read()
    assert [name for _, _, name in resolved(trace)] == ["first", "second"]
    assert [device.process for device in trace.devices] == ["report:1", "report:2"]


def test_texts_that_were_not_registered_stand_in_the_row(export: Any) -> None:
    export.range(STEP, 0, 1000, registered=False)
    export.range("Thunk:#hlo_op=fusion.1#", 10, 90, registered=False)
    export.range("something else", 20, 80, registered=False)
    export.launch(50)
    assert resolved(export.read()) == [("jit_step", 0, "fusion.1")]


def test_a_range_without_an_end_is_still_open(export: Any) -> None:
    export.range(STEP, 0, None)
    export.range("Thunk:#hlo_op=fusion.1#", 10, 90)
    export.launch(50)
    assert resolved(export.read()) == [("jit_step", 0, "fusion.1")]


def test_identifiers_with_the_sign_bit_set_are_read(export: Any) -> None:
    process = pid(5, machine=-(1 << 63))
    export.range(STEP, 0, 1000, process=process)
    export.range("Thunk:#hlo_op=fusion.1#", 10, 90, process=process)
    export.launch(50, process=process)
    assert export.read().devices[0].process == "report:5"


def test_times_may_be_negative(export: Any) -> None:
    export.range(STEP, -5000, -1000)
    export.range("Thunk:#hlo_op=fusion.1#", -4000, -3000)
    export.launch(-3500)
    assert export.read().start_ns.tolist() == [-2500]


def test_executions_are_counted_per_device_and_module(export: Any) -> None:
    for device, process in ((0, pid(1)), (0, pid(2))):
        for start in (0, 1000):
            export.range(STEP, start, start + 900, process=process)
            export.range("Thunk:#hlo_op=a#", start + 10, start + 20, process=process)
            export.launch(start + 15, process=process, device=device)
    trace = export.read()
    assert list(zip(trace.device.tolist(), trace.execution.tolist(), strict=True)) == [
        (0, 0),
        (0, 1),
        (1, 0),
        (1, 1),
    ]


def test_the_rows_of_one_thunk_share_a_launch(export: Any) -> None:
    export.range(STEP, 0, 1000)
    export.range("Thunk:#hlo_op=conv.1#", 10, 90)
    export.launch(20)
    export.launch(40)
    export.range("Thunk:#hlo_op=conv.1#", 110, 190)
    export.launch(120)
    assert export.read().instance.tolist() == [0, 0, 1]


@pytest.mark.parametrize(
    "around",
    [
        "XlaAutotunerMeasurement:#hlo_op=gemm_fusion_dot.1#",
        "XlaCompile:#module=jit_step,program_id=7#",
        None,
    ],
)
def test_autotuning_is_left_out(export: Any, around: str | None) -> None:
    export.step_with("dot.2")
    if around is not None:
        export.range(around, 2000, 3000)
    export.range(
        "XlaModule:#hlo_module=gemm_fusion_dot.1#" if around is None else STEP,
        2010,
        2900,
    )
    export.range("Thunk:#hlo_op=gemm_fusion_dot.1#", 2020, 2090)
    export.launch(2050)
    trace = export.read()
    assert resolved(trace) == [("jit_step", 0, "dot.2")]
    assert left_out(trace) == {"autotuner": 1}


def test_what_has_no_instruction_is_counted_by_reason(export: Any) -> None:
    export.step_with("dot.2")
    export.launch(950)
    export.launch(5000)
    export.range("Thunk:#hlo_op=late.1#", 6000, 6100)
    export.launch(6050)
    export.work(7000, 12345, duration=30)
    export.row(
        "CUPTI_ACTIVITY_KIND_KERNEL", start=9, end=3, deviceId=0, streamId=7, correlationId=1, globalPid=pid(1)
    )  # fmt: skip
    trace = export.read()
    assert left_out(trace) == {
        "no-api-row": 1,
        "no-range": 1,
        "no-thunk": 1,
        "no-module": 1,
        "reversed": 1,
    }
    assert (
        next(
            entry.duration_ns
            for entry in trace.unresolved
            if entry.reason == "no-api-row"
        )
        == 30
    )


@pytest.mark.parametrize(
    "version",
    json.loads((TESTDATA / "nsys_schema/columns_by_version.json").read_text()),
)
def test_every_schema_is_read(new_export: Any, tmp_path: Path, version: str) -> None:
    facts = json.loads((TESTDATA / "nsys_schema/columns_by_version.json").read_text())
    tables = {
        name: [column[0] for column in columns]
        for name, columns in facts[version].items()
    }
    tables.setdefault(
        "NVTX_EVENTS",
        ["start", "end", "eventType", "text", "globalTid", "textId", "domainId"],
    )
    tables.setdefault("META_DATA_EXPORT", ["name", "value"])
    export = new_export(tmp_path / "report.sqlite", tables)
    export.step_with("fusion.1", "dot.2")
    export.work(5000, export.call(60), table="MEMCPY")
    assert [name for _, _, name in resolved(export.read())] == [
        "fusion.1",
        "dot.2",
        "fusion.1",
    ]


def test_only_xla_flags_of_the_environment_are_kept(export: Any) -> None:
    export.step_with("dot.2")
    for line in (
        'SECRET_TOKEN="hunter2"',
        "XLA_FLAGS=\"--xla_a=1 --xla_b='x y'\"",
        'MY_XLA_FLAGS="hunter3"',
    ):
        export.row(
            "META_DATA_CAPTURE", name="PROCESS_0:ENVIRONMENT_VARIABLE", value=line
        )
    trace = export.read()
    assert trace.xla_flags == "--xla_a=1 --xla_b='x y'"
    assert "hunter" not in repr(trace)


@pytest.mark.parametrize("between", [" ", ",", "\t", "\0", '","', "','", "; ", "\n"])
@pytest.mark.parametrize(
    "flags", ["--a=1", "--xla_a=b,c", '--xla_b="x y"', "--xla_c='us=1'", ""]
)
def test_no_other_variable_is_taken_for_flags(
    export: Any, between: str, flags: str
) -> None:
    export.step_with("a")
    value = between.join(
        ["TOKEN=hunter2", f"XLA_FLAGS={flags}", "HF_TOKEN=hunter3", "PASS=--word"]
    )
    export.row("TARGET_INFO_SYSTEM_ENV", name="DeviceEnvironment", value=value)
    assert export.read().xla_flags == (flags if "--xla" in flags else "")


def test_xla_flags_are_found_in_the_device_environment(export: Any) -> None:
    export.step_with("dot.2")
    export.row(
        "TARGET_INFO_SYSTEM_ENV",
        name="DeviceEnvironment",
        value="TOKEN=hunter2\nXLA_FLAGS=--xla_a=1\nB=2",
    )
    assert export.read().xla_flags == "--xla_a=1"


def test_processes_are_named_after_the_host(export: Any) -> None:
    export.step_with("dot.2")
    export.row("TARGET_INFO_SYSTEM_ENV", name="Hostname", value="node17")
    assert export.read().devices[0].process == "node17:1"


def test_a_device_is_named_by_xla(export: Any) -> None:
    export.step_with("dot.2")
    export.row(
        "TARGET_INFO_NVTX_CUDA_DEVICE",
        name="Xla:#global=3,local=0,process=3,slice=0#",
        deviceId=3,
    )
    assert export.read().devices[0].global_id == 3


def test_launcher_threads_tell_the_devices_of_several_processes_apart(
    export: Any,
) -> None:
    for number in (1, 2):
        process = pid(number)
        export.range(STEP, 0, 1000, process=process)
        export.range("Thunk:#hlo_op=a#", 10, 90, process=process)
        export.launch(50, process=process)
        name = export.string(
            f"XlaLauncher:#global={number + 4},local=0,process={number},partition=0#"
        )
        export.row("ThreadNames", nameId=name, globalTid=process | 9)
        # both call their device 0
        name = f"Xla:#global={number + 4},local=0,process={number},partition=0#"
        export.row("TARGET_INFO_NVTX_CUDA_DEVICE", name=name, deviceId=0)
    assert [(device.ordinal, device.global_id) for device in export.read().devices] == [
        (0, 5),
        (0, 6),
    ]


def test_another_major_schema_is_a_warning(export: Any) -> None:
    export.step_with("dot.2")
    export.database.execute("UPDATE META_DATA_EXPORT SET value = '4.0.0'")
    assert "schema 4.0.0" in export.read().warnings[0]


def test_progress_reaches_the_end(export: Any) -> None:
    export.step_with("dot.2", "dot.3")
    seen: list[tuple[int, int]] = []
    read_nsys(export.path, progress=lambda done, total: seen.append((done, total)))
    assert seen[-1] == (7, 7)


def test_kernels_of_libraries_are_known_by_instruction(export: Any) -> None:
    export.range(STEP, 0, 1000)
    for number, kernel in enumerate(("ampere_sgemm_128x64_tn", "splitKreduce_kernel")):
        export.range(
            "Thunk:#hlo_op=custom-call.1#", number * 100 + 10, number * 100 + 90
        )
        export.work(2000 + number * 20, export.call(number * 100 + 50), kernel=kernel)
    assert export.read().kernels == {
        ("jit_step", "custom-call.1"): {"ampere_sgemm_128x64_tn"}
    }


def test_times_of_compilation_are_known_by_process(export: Any) -> None:
    export.step_with("fusion.1")
    export.range("XlaCompile:#module=jit_other#", 5000, 9000)
    export.range("XlaPass:#name=cse#", 5100, 5200)
    export.range("XlaAutotunerMeasurement:#hlo_op=dot.1#", 9500, 9700)
    trace = export.read()
    assert trace.compiling[trace.devices[0].process].tolist() == [
        [5000, 9000],
        [9500, 9700],
    ]
