"""Schedules made by the scheduling passes alone, held against whole compilations by the real
compiler.
"""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from pgle.run.compiler import worker
from pgle.run.compiler.compile import SCHEDULING_PASSES, Compiler, CompileRequest
from pgle.run.compiler.session import Session
from pgle.run.compiler.worker import (
    DUMP_BEFORE_SCHEDULING,
    UNSCHEDULED,
    keep_unscheduled,
)
from pgle.xla.hlo.dumps import read_module
from pgle.xla.hlo.schedule_dump import Slot, read_schedule_dump
from pgle.xla.targets import TABLE, load_target

pytestmark = [pytest.mark.rehearse, pytest.mark.usefixtures("plugin_loaded_once")]

LHS = "--xla_gpu_enable_latency_hiding_scheduler=true"
HARDWARE = TABLE["h100-sxm"]
COSTS = 'costs { name: "all-gather-start" cost_us: 500.0 }\ncosts { name: "all-gather-start.1" cost_us: 900.0 }\n'


@pytest.fixture
def base(testdata: Path) -> CompileRequest:
    release = "0.12.0.1" if sys.version_info >= (3, 12) else "0.10.2"
    module = testdata / "stablehlo" / f"fsdp_mlp_jax_{release}.mlir"
    target = load_target("h100")
    return CompileRequest(module, target.texts, Path(), flags=(LHS,))


def believed(schedule: Path | None) -> list[tuple[str, dict[str, Slot]]]:
    assert schedule is not None
    found = read_schedule_dump(schedule).computations.items()
    return sorted((name, dict(computation.slots)) for name, computation in found)


def test_scheduling_passes_alone_make_the_schedule_of_a_whole_compilation(
    base: CompileRequest, tmp_path: Path
) -> None:
    profile, trusted = tmp_path / "p.pbtxt", tmp_path / "trusted"
    profile.write_text(COSTS)
    with Compiler() as compiler:
        session = Session(
            compiler, replace(base, dump_dir=tmp_path / "session"), HARDWARE, trusted
        )
        schedules = [
            session.schedule("plain", [LHS]),
            session.schedule("costs", [LHS], profile),
        ]
        whole = [
            compiler.compile(replace(base, dump_dir=tmp_path / name, profile=costs))
            for name, costs in (("plain", None), ("costs", profile))
        ]
    assert trusted.exists()
    for schedule, compiled in zip(schedules, whole, strict=True):
        assert believed(schedule.schedule) == believed(compiled.schedule)
        assert (schedule.fingerprint, schedule.num_devices) == (compiled.fingerprint, 4)
        sizes = [
            len(list(read_module(item.after_optimizations).walk()))
            for item in (schedule, compiled)
        ]
        assert sizes[0] == sizes[1]
    assert believed(schedules[0].schedule) != believed(schedules[1].schedule)


RUNS = re.compile(
    r"on module (\S+): (.+)$|  HLO pass ([\w-]+?)(?:-\d+)?$|(Skipping) HLO pass ",
    re.MULTILINE,
)
ABSENT = {
    "0.10.2": {
        "dynamic-slice-copy-fusion-async-wrapper",
        "gpu-copy-async-wrapper",
        "pdl-launch-annotation",
    },
    "0.12.0.1": {"fusion-dynamic-memcpy-rewriter"},
}
"""Passes that a release does not have."""


def passes(log: Path) -> tuple[list[str], list[str]]:
    """Passes, and pipelines with a colon, that XLA ran on a step before its scheduling and from
    there on.
    """
    of_step, ran = False, list[str]()
    for module, pipeline, name, skipped in RUNS.findall(log.read_text()):
        of_step = (
            module == "jit_train_step" if module else of_step
        )  # products that are tried get modules of their own
        if of_step:
            ran.pop() if skipped else ran.append(name or f"{pipeline}:")
    start = ran.index("pre-scheduling-passes:")
    return ran[:start], ran[start:]


def test_the_listed_passes_are_those_of_a_whole_compilation_from_scheduling_on(
    base: CompileRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = worker.environment()
    monkeypatch.setattr(
        worker,
        "environment",
        lambda: environment | {"TF_CPP_VMODULE": "hlo_pass_pipeline=1"},
    )
    with Compiler() as compiler:
        session = Session(compiler, replace(base, dump_dir=tmp_path), HARDWARE)
        session.schedule("plain", [LHS])
        alone = session.schedule(
            "again", [LHS, "--xla_gpu_memory_limit_slop_factor=90"]
        )
        whole, dumped = tmp_path / "all-passes", tmp_path / "dumped"
        flags = (LHS, DUMP_BEFORE_SCHEDULING)
        again = replace(
            base,
            module=whole / UNSCHEDULED,
            dump_dir=dumped,
            topology="1x1x4",
            flags=flags,
        )
        compiler.compile(replace(again, passes="from scheduling on"))
    assert keep_unscheduled(dumped)
    (_, after), (before, late) = passes(whole / "xla.log"), passes(alone.log)
    del after[
        after.index("sanitize-constant-names:") + 1
    ]  # which names constants anew, and ran before, too
    assert late == after
    assert (
        set(SCHEDULING_PASSES.split(",")) - {name.rstrip(":") for name in after}
        == ABSENT[alone.jaxlib]
    )
    # Both of these ran in the same place before, and leave the module as it is.
    alone_before = {
        name for name in before if name[-1] != ":" and f"{name}:" not in before
    }
    assert alone_before <= {"fusion-wrapper", "stream-attribute-annotator"}
    modules = [read_module(folder / UNSCHEDULED) for folder in (whole, dumped)]
    assert modules[0].computations == modules[1].computations


def test_without_lhs_the_rest_is_scheduled_as_in_a_whole_compilation(
    base: CompileRequest, tmp_path: Path
) -> None:
    target = load_target("a100")  # where XLA runs no LHS by itself
    ampere = replace(base, targets=target.texts)
    with Compiler() as compiler:
        session = Session(
            compiler, replace(ampere, dump_dir=tmp_path / "session"), HARDWARE
        )
        session.schedule("lhs", [LHS])
        alone = session.schedule("default", [])
        whole = compiler.compile(replace(ampere, dump_dir=tmp_path / "whole", flags=()))
    one, other = (
        [
            item.opcode
            for item in read_module(
                found.after_optimizations
            ).entry_computation.instructions
        ]
        for found in (alone, whole)
    )
    assert one == other
    assert alone.schedule is None
    assert not (alone.log.parent / UNSCHEDULED).exists()


def test_flags_of_other_passes_compile_the_module_again(
    base: CompileRequest, tmp_path: Path
) -> None:
    with Compiler() as compiler:
        session = Session(compiler, replace(base, dump_dir=tmp_path), HARDWARE)
        session.schedule("plain", [LHS])
        session.schedule("slop", [LHS, "--xla_gpu_memory_limit_slop_factor=80"])
        assert len(list(tmp_path.glob(f"*/{UNSCHEDULED}"))) == 1
        session.schedule(
            "pipelined", [LHS, "--xla_gpu_enable_pipelined_all_gather=true"]
        )
    assert len(list(tmp_path.glob(f"*/{UNSCHEDULED}"))) == 2


def test_disabled_passes_stay_disabled(base: CompileRequest, tmp_path: Path) -> None:
    flags = (
        LHS,
        "--xla_disable_hlo_passes=rematerialization,collective-permute-motion",
    )
    with Compiler() as compiler:
        result = Session(compiler, replace(base, dump_dir=tmp_path), HARDWARE).schedule(
            "plain", flags
        )
    config = next(result.log.parent.glob("*.config.pbtxt")).read_text()
    assert 'xla_enable_hlo_passes_only: "remat-pipeline"' in config
    assert 'xla_enable_hlo_passes_only: "rematerialization"' not in config


def test_no_step_is_wrapped_into_command_buffers(
    base: CompileRequest, tmp_path: Path
) -> None:
    with Compiler() as compiler:
        result = Session(compiler, replace(base, dump_dir=tmp_path), HARDWARE).schedule(
            "plain", ["--xla_gpu_enable_command_buffer=FUSION", LHS]
        )
    config = next(result.log.parent.glob("*.config.pbtxt")).read_text()
    assert "xla_gpu_all_reduce_combine_threshold_bytes" in config
    assert "xla_gpu_enable_command_buffer: " not in config


def test_where_passes_alone_give_another_schedule_all_of_them_run(
    base: CompileRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = iter(
        (100.0, 100.2)
    )  # microseconds, a little more than the part by which they may differ
    monkeypatch.setattr(
        Session, "predicted", lambda session, made: SimpleNamespace(step_us=next(steps))
    )
    with Compiler() as compiler:
        result = Session(
            compiler, replace(base, dump_dir=tmp_path), HARDWARE, tmp_path / "trusted"
        ).schedule("plain", [LHS])
    assert (
        "xla_enable_hlo_passes_only"
        not in next(result.log.parent.glob("*.config.pbtxt")).read_text()
    )
    assert not (tmp_path / "trusted").exists()
