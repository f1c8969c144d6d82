"""The peak of device memory: XLA's own plan, and lifetimes where there is none."""

from pathlib import Path

import pytest

from pgle.analyze.memory import JAX_SHARE, estimated_plan, find_memory
from pgle.files import as_path, read_bytes
from pgle.xla.hlo.buffers import BufferPlan, buffers_from_bytes
from pgle.xla.hlo.module import Module
from pgle.xla.hlo.reader import read_module
from pgle.xla.hlo.text import module_from_text
from tests.analyze.conftest import PAX

KIB = 1024


def module_of(*lines: str, before: str = "") -> Module:
    body = "\n".join(f"  {line}" for line in lines)
    text = f"HloModule m, is_scheduled=true\n\n{before}ENTRY main {{\n  p = f32[256]{{0}} parameter(0)\n{body}\n}}\n"
    return module_from_text(text.encode(), "m.txt")


def test_a_value_lives_from_its_making_to_its_last_use() -> None:
    plan = estimated_plan(
        module_of(
            "a = f32[512]{0} broadcast(p)",
            "b = f32[1024]{0} broadcast(a)",
            "c = f32[2048]{0} broadcast(b)",
            "ROOT d = f32[256]{0} slice(c)",
        )
    )
    assert plan.arguments_bytes == KIB
    assert plan.temporary_bytes == (4 + 8) * KIB  # b and c; a is gone
    assert (plan.peak_at, [item.instruction for item in plan.live]) == ("c", ["c", "b"])


def test_views_and_updates_in_place_take_no_memory() -> None:
    plan = estimated_plan(
        module_of(
            "a = f32[1024]{0} broadcast(p)",
            "v = f32[32,32]{1,0} bitcast(a)",
            "u = f32[1]{0} slice(p)",
            "i = s32[] constant(0)",
            "ROOT d = f32[1024]{0} dynamic-update-slice(a, u, i)",
        )
    )
    assert plan.temporary_bytes == 4 * KIB + 4


def test_a_loop_holds_its_state_and_the_peak_of_its_body() -> None:
    body = """body {
  s = (f32[1024]{0}) parameter(0)
  x = f32[1024]{0} get-tuple-element(s), index=0
  big = f32[4096]{0} broadcast(x)
  y = f32[1024]{0} slice(big)
  ROOT t = (f32[1024]{0}) tuple(y)
}

condition {
  s2 = (f32[1024]{0}) parameter(0)
  ROOT yes = pred[] constant(true)
}

"""
    plan = estimated_plan(
        module_of(
            "a = f32[1024]{0} broadcast(p)",
            "t0 = (f32[1024]{0}) tuple(a)",
            "ROOT w = (f32[1024]{0}) while(t0), condition=condition, body=body",
            before=body,
        )
    )
    assert plan.temporary_bytes == (4 + 16 + 4) * KIB
    assert plan.peak_at == "y"


def test_what_a_collective_reads_lives_until_its_done() -> None:
    plan = estimated_plan(
        module_of(
            "a = f32[1024]{0} broadcast(p)",
            "s = (f32[1024]{0}, f32[2048]{0}) all-gather-start(a), replica_groups={{0,1}}, dimensions={0}",
            "b = f32[512]{0} broadcast(p)",
            "d = f32[2048]{0} all-gather-done(s)",
            "ROOT e = f32[512]{0} add(b, b)",
        )
    )
    assert {item.instruction: item.size_bytes for item in plan.live} == {"a": 4 * KIB, "s": 8 * KIB, "b": 2 * KIB}


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
    assert 16e9 < plan.live_bytes <= plan.temporary_bytes < plan.live_bytes + 2**20
    assert plan.peak_at == "input_convert_reduce_fusion.13"


def test_lifetimes_alone_come_near_to_it(plan: BufferPlan, dump: Path) -> None:
    estimated = estimated_plan(read_module(as_path(dump)))
    assert estimated.peak_bytes == pytest.approx(plan.peak_bytes, rel=0.05)
    assert estimated.peak_at == plan.peak_at


def test_the_limit_is_jaxs_share_unless_the_program_needs_more() -> None:
    module = module_of("ROOT a = f32[1024]{0} broadcast(p)")
    assert find_memory(module, None, 100 * KIB).limit_bytes == 100 * KIB * JAX_SHARE
    assert find_memory(module, None, 6 * KIB).limit_bytes == 6 * KIB
    assert find_memory(module, None, None).used_share is None


def test_what_is_no_plan_is_none() -> None:
    assert buffers_from_bytes(b"\xff" * 9) is None
    assert buffers_from_bytes(b"") is None
