"""What gets shorter if parameters and activations are cast to 16 bits."""

from __future__ import annotations

from dataclasses import replace

import pytest
from priced import priced

from pgle.account.levers.flow import Flow
from pgle.account.levers.narrowed import Narrowed, narrowed
from pgle.account.levers.retyped import Retyped
from pgle.account.step_costs import StepCosts

FSDP = """HloModule jit_step, is_scheduled=true, num_partitions=4
add {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = f32[] add(a, b)
}
ENTRY main {
  w = f32[2048,8192] parameter(0), sharding={devices=[4,1]<=[4]}
  x = f32[4096,8192] parameter(1), sharding={devices=[4,1]<=[4]}
  gather = f32[8192,8192] all-gather(w), replica_groups={{0,1,2,3}}, dimensions={0}
  y = f32[4096,8192] dot(x, gather), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  whole = f32[8192,8192] dot(x, y), lhs_contracting_dims={0}, rhs_contracting_dims={0}
  g = f32[2048,8192] reduce-scatter(whole), replica_groups={{0,1,2,3}}, dimensions={0},
    to_apply=add
  new = f32[2048,8192] subtract(w, g)
  ROOT out = (f32[2048,8192]) tuple(new)
}
"""
MOVED_US = {"gather": 100.0, "g": 200.0}


def retyped(text: str, products: tuple[str, ...] = ("y", "whole")) -> Retyped:
    return Retyped(Flow(priced(text, {}).module), products)


def types(text: str, *names: str) -> list[str]:
    """The types of some results after the cast."""
    found = retyped(text).module.instructions
    return [found[name].shape.dtype for name in names]


def found(step: StepCosts) -> Narrowed:
    return narrowed(step, Flow(step.module), ["y", "whole"])


def step(text: str = FSDP, **us: float) -> StepCosts:
    """Collectives that are all exposed, next to two products."""
    costs = priced(text, {"y": 1000.0, "whole": 1000.0, **us}, gpu="h100-sxm")
    return replace(costs, step_us=costs.step_us + 300, exposed_us=MOVED_US)


def test_gathered_weights_and_scattered_gradients_have_16_bits() -> None:
    assert types(FSDP, "gather", "whole", "g") == ["bf16"] * 3
    saved = found(step()).communication_us
    # half of the bytes, and all of the latency
    assert 0.4 * 300 < saved < 0.5 * 300


def test_a_parameter_and_its_update_stay_in_32_bits() -> None:
    assert types(FSDP, "w", "new") == ["f32"] * 2
    # the shard is cast, not what is gathered of it
    assert [item.name for item in retyped(FSDP).casts] == ["w", "x"]


def test_the_update_of_a_shard_that_is_gathered_stays_in_32_bits() -> None:
    gathered = FSDP.replace(
        "ROOT out = (f32[2048,8192]) tuple(new)",
        "n = f32[8192,8192] all-gather(new), replica_groups={{0,1,2,3}}, dimensions={0}\n"
        "  ROOT out = (f32[2048,8192], f32[8192,8192]) tuple(new, n)",
    )
    assert types(gathered, "new", "n", "gather") == ["f32", "f32", "bf16"]


def test_of_a_combined_collective_only_some_arrays_get_narrow() -> None:
    combined = FSDP.replace(
        "  g = f32[2048,8192] reduce-scatter(whole), replica_groups={{0,1,2,3}}, dimensions={0},"
        "\n    to_apply=add\n",
        "  lengths = f32[8192] parameter(2)\n"
        "  both = (f32[8192,8192], f32[8192]) all-reduce(whole, lengths),\n"
        "    replica_groups={{0,1,2,3}}, to_apply=add\n"
        "  whole.1 = f32[8192,8192] get-tuple-element(both), index=0\n"
        "  g = f32[2048,8192] slice(whole.1), slice={[0:2048], [0:8192]}\n",
    )
    shape = retyped(combined).module.instructions["both"].shape
    assert [each.dtype for each in shape.elements] == ["bf16", "f32"]


def test_what_is_hidden_behind_kernels_that_get_shorter_is_exposed() -> None:
    costs = step()
    hidden = replace(costs, communication_us={"gather": 1000.0, "g": 200.0})
    assert found(hidden).communication_us < found(costs).communication_us
    # if kernels took as long as before, nothing of the gather would be left
    assert found(hidden).most_communication_us == pytest.approx(200, rel=0.1)


def test_weights_that_a_loop_slices_are_cast_before_it() -> None:
    text = """HloModule jit_step, is_scheduled=true
cond {
  p = (s32[], f32[1024,1024], f32[8,1024,1024]) parameter(0)
  ROOT c = pred[] constant(true)
}
body {
  q = (s32[], f32[1024,1024], f32[8,1024,1024]) parameter(0)
  i = s32[] get-tuple-element(q), index=0
  x = f32[1024,1024] get-tuple-element(q), index=1
  all = f32[8,1024,1024] get-tuple-element(q), index=2
  zero = s32[] constant(0)
  one = f32[1,1024,1024] dynamic-slice(all, i, zero, zero),
    dynamic_slice_sizes={1,1024,1024}
  w = f32[1024,1024] bitcast(one)
  y = f32[1024,1024] dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT t = (s32[], f32[1024,1024], f32[8,1024,1024]) tuple(i, y, all)
}
ENTRY main {
  a = f32[1024,1024] parameter(0)
  b = f32[8,1024,1024] parameter(1)
  n = s32[] constant(0)
  s = (s32[], f32[1024,1024], f32[8,1024,1024]) tuple(n, a, b)
  ROOT l = (s32[], f32[1024,1024], f32[8,1024,1024]) while(s), condition=cond, body=body
}
"""
    after = retyped(text, ("y",))
    names = ("x", "all", "one", "w", "y")
    assert {after.module.instructions[name].shape.dtype for name in names} == {"bf16"}
    assert [item.name for item in after.casts] == ["a", "b"]


def test_a_softmax_stays_in_32_bits() -> None:
    text = """HloModule jit_step, is_scheduled=true
add {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = f32[] add(a, b)
}
ENTRY main {
  q = f32[512,512] parameter(0)
  k = f32[512,512] parameter(1)
  y = f32[512,512] dot(q, k), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  e = f32[512,512] exponential(y)
  zero = f32[] constant(0)
  sum = f32[512] reduce(e, zero), dimensions={1}, to_apply=add
  rows = f32[512,512] broadcast(sum), dimensions={0}
  p = f32[512,512] divide(e, rows)
  ROOT whole = f32[512,512] dot(p, k), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}
"""
    assert types(text, "y", "e", "p", "whole") == ["bf16", "f32", "bf16", "bf16"]


def test_kernels_of_attention_count_although_another_edit_replaces_them() -> None:
    costs = step()
    assert found(costs.without({"y"})) == found(costs)
