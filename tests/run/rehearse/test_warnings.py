"""What a rehearsal warns of."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pgle.run.rehearse.compiler.request import RehearsalResult
from pgle.run.rehearse.warnings import memory_warnings
from pgle.xla.targets import load_target

GIB = 1 << 30
SCHEDULER = "latency_hiding_scheduler.cc:4325] LatencyHidingScheduler current memory usage: {} bytes. Current limit: {}"


@pytest.fixture
def compiled(tmp_path: Path) -> RehearsalResult:
    log = tmp_path / "xla.log"
    log.write_text(SCHEDULER.format(20 * GIB, 40 * GIB))
    return RehearsalResult(
        "jit_step", 8, 1, tmp_path, None, None, log, "", 1.0, 0.0, 1.0, 1.0, 0, {"total": 30 * GIB}, "0.10.2"
    )


def test_enough_memory_is_nothing_to_say(compiled: RehearsalResult) -> None:
    assert memory_warnings(compiled, 60 * GIB, load_target("h100")) == []


def test_a_step_that_does_not_fit(compiled: RehearsalResult) -> None:
    (line,) = memory_warnings(replace(compiled, memory={"total": 101 * GIB}), 60 * GIB, load_target("h100"))
    assert line.startswith("the step needs 101.0 GiB and jax's allocator has 60.0 GiB of h100-sxm: it does not fit")
    assert "XLA_CLIENT_MEM_FRACTION" in line


def test_a_scheduler_that_is_short_of_memory(compiled: RehearsalResult) -> None:
    compiled.log.write_text(SCHEDULER.format(52 * GIB, 48 * GIB))
    (line,) = memory_warnings(compiled, 60 * GIB, load_target("h100"))
    assert line.startswith("the scheduler is short of memory (52.0 GiB of temporaries, 48.0 GiB left for them)")
