"""The peak of device memory, by XLA's own plan."""

from pathlib import Path

import pytest

from pgle.analyze.memory import JAX_SHARE, find_memory
from pgle.files import as_path, read_bytes
from pgle.xla.hlo.dumps import read_module
from pgle.xla.hlo.proto import BufferPlan, buffers_from_bytes
from tests.analyze.conftest import PAX


@pytest.fixture(scope="module")
def dump() -> Path:
    return next((PAX / "proc0/dump").glob("module_0040*after_optimizations*"))


@pytest.fixture(scope="module")
def plan(dump: Path) -> BufferPlan:
    found = buffers_from_bytes(read_bytes(as_path(dump)))
    assert found is not None
    return found


def test_the_plan_of_the_real_job_is_what_xla_allocates(plan: BufferPlan) -> None:
    # one allocation holds the temporary values; what its heap trace has live at once fills it
    live_bytes = sum(item.size_bytes for item in plan.live)
    assert 16e9 < live_bytes <= plan.temporary_bytes < live_bytes + 2**20
    assert plan.peak_at == "input_convert_reduce_fusion.13"


def test_the_limit_is_jaxs_share_unless_the_program_needs_more(
    plan: BufferPlan, dump: Path
) -> None:
    module, peak = read_module(as_path(dump)), plan.peak_bytes
    assert find_memory(module, plan, 2 * peak).limit_bytes == int(2 * peak * JAX_SHARE)
    assert find_memory(module, plan, peak + 1).limit_bytes == peak + 1
    assert find_memory(module, plan, None).used_share is None


def test_what_is_no_plan_is_none() -> None:
    assert buffers_from_bytes(b"\xff" * 9) is None
    assert buffers_from_bytes(b"") is None
