"""What a rehearsal warns of."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pgle.run.compiler.compile import CompileResult
from pgle.run.compiler.worker import memory_of
from pgle.run.rehearse import belief_warning, lhs_warning, memory_warning
from pgle.xla.protos import hlo_pb2
from pgle.xla.targets import load_target

GIB = 1 << 30
SCHEDULER = "latency_hiding_scheduler.cc:4325] LatencyHidingScheduler current memory usage: {} bytes. Current limit: {}"


@pytest.fixture
def compiled(tmp_path: Path) -> CompileResult:
    log = tmp_path / "xla.log"
    log.write_text(SCHEDULER.format(20 * GIB, 40 * GIB))
    return CompileResult(
        "jit_step", 8, tmp_path, None, log, "", 1.0, {"total": 30 * GIB}, "0.10.2"
    )


def test_enough_memory_is_nothing_to_say(compiled: CompileResult) -> None:
    assert memory_warning(compiled, 60 * GIB, load_target("h100")) == ""


def test_a_step_that_does_not_fit(compiled: CompileResult) -> None:
    line = memory_warning(
        replace(compiled, memory={"total": 101 * GIB}), 60 * GIB, load_target("h100")
    )
    assert line.startswith(
        "the step needs 101.0 GiB and jax's allocator has 60.0 GiB of h100-sxm: it does not fit"
    )
    assert "XLA_CLIENT_MEM_FRACTION" in line


def test_a_scheduler_that_is_short_of_memory(compiled: CompileResult) -> None:
    compiled.log.write_text(SCHEDULER.format(52 * GIB, 48 * GIB))
    line = memory_warning(compiled, 60 * GIB, load_target("h100"))
    assert line.startswith(
        "the scheduler is short of memory (52.0 GiB of temporaries, 48.0 GiB left for them)"
    )


@pytest.mark.parametrize(("need", "said"), [(58, False), (58.5, True), (60, True)])
def test_a_step_near_the_memory_limit(
    compiled: CompileResult, need: float, said: bool
) -> None:
    line = memory_warning(
        replace(compiled, memory={"total": int(need * GIB)}),
        60 * GIB,
        load_target("h100"),
    )
    assert (
        line.partition(", within")[0] == f"{need:.1f} GiB of 60.0 GiB are needed" * said
    )
    assert ("within 3 % of the memory limit: the gain may turn" in line) == said


def test_host_memory_is_not_counted_as_the_gpus(tmp_path: Path) -> None:
    """Colours of allocations are memory spaces; 5 is the host's."""
    proto = hlo_pb2.HloBuffersProto()
    for size, colour, is_argument in ((10, 0, True), (90, 0, False), (60, 5, False)):
        allocation = proto.buffer_assignment.buffer_allocations.add(
            size=size, color=colour
        )
        allocation.is_entry_computation_parameter = is_argument
    dump = tmp_path / "m.hlo.pb"
    dump.write_bytes(proto.SerializeToString())
    assert memory_of(dump) == {"argument": 10, "output": 0, "temp": 90, "total": 100}


OFF = "--xla_gpu_enable_latency_hiding_scheduler=false"


def test_lhs_that_runs_though_it_is_off() -> None:
    line = lhs_warning([OFF], runs=True)
    assert "add --xla_gpu_enable_analytical_sol_latency_estimator=false" in line


@pytest.mark.parametrize(
    ("flags", "runs"),
    [([OFF], False), ([], True), ([OFF, OFF.replace("false", "true")], True)],
)
def test_lhs_as_its_flag_says(flags: list[str], runs: bool) -> None:
    assert lhs_warning(flags, runs=runs) == ""


def test_lhs_that_expects_more_than_the_step() -> None:
    line = belief_warning(57_000.0, 451.0)
    assert (
        "LHS expects 57.0 ms of exposed time, more than the predicted step of 0.5 ms"
        in line
    )
    assert belief_warning(400.0, 451.0) == belief_warning(None, 451.0) == ""
