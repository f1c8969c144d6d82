"""Products that devices compute from the same values, and those that they divide."""

from __future__ import annotations

from dataclasses import replace

import pytest
from priced import lever_of, priced

from pgle.account.levers import find_levers
from pgle.account.levers.alike import moved
from pgle.account.levers.replicated import is_undivided
from pgle.account.value import Opportunity, OpportunityKind
from pgle.xla.hlo.replica_groups import shards_from_text

STEP = """HloModule jit_step, is_scheduled=true, num_partitions=4
ENTRY main {
  x = f32[1024,1024] parameter(0), sharding={OF_X}
  w = f32[1024,1024] parameter(1), sharding={replicated}
  y = f32[1024,1024] MAKES_Y
  product = f32[1024,1024] dot(y, w), lhs_contracting_dims={1}, rhs_contracting_dims={0},
    metadata={op_name="jit(step)/dot_general" source_file="train.py" source_line=7}
  ROOT z = f32[512,2048] reshape(product)
}
"""
LOOP = """HloModule jit_step, is_scheduled=true, num_partitions=4
cond {
  p = (f32[1024,1024], f32[1024,1024]) parameter(0)
  ROOT c = pred[] constant(true)
}
body {
  q = (f32[1024,1024], f32[1024,1024]) parameter(0)
  x = f32[1024,1024] get-tuple-element(q), index=0
  w = f32[1024,1024] get-tuple-element(q), index=1
  product = f32[1024,1024] dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT t = (f32[1024,1024], f32[1024,1024]) tuple(NEXT, w)
}
ENTRY main {
  a = f32[1024,1024] parameter(0), sharding={replicated}
  b = f32[1024,1024] parameter(1), sharding={OF_W}
  s = (f32[1024,1024], f32[1024,1024]) tuple(a, b)
  ROOT l = (f32[1024,1024], f32[1024,1024]) while(s), condition=cond, body=body
}
"""
SAME = "negate(x)"
BATCH = "devices=[4,1]<=[4]"
PAIRS = "devices=[2,1,2]<=[4] last_tile_dim_replicate"
BY_DEVICE = """  id = u32[] partition-id()
  table = s32[4] constant({0, 0, 3, 3})
  at = s32[1] dynamic-slice(table, id), dynamic_slice_sizes={1}
"""
US = {"product": 80.0, "z": 20.0}


def replicated(text: str, us: dict[str, float] = US) -> Opportunity | None:
    return lever_of(priced(text, us), OpportunityKind.REPLICATED)


def step(of_x: str, makes_y: str = SAME) -> str:
    return STEP.replace("OF_X", of_x).replace("MAKES_Y", makes_y)


def test_work_of_the_same_values_is_named_with_its_line() -> None:
    found = replicated(step("replicated"))
    assert found is not None
    assert (found.least_us, found.expected_us) == (0.0, 75.0)  # 3 of 4 devices
    assert found.line == "train.py:7"
    assert "all 4 devices" in found.why


def test_at_most_communication_goes_away_as_well() -> None:
    costs = priced(step("replicated"), US, step_us=300)
    (found,) = find_levers(costs)
    assert found.most_us == 75.0 + 200.0


def test_what_updates_state_stays_on_every_device() -> None:
    text = step("replicated").replace("f32[512,2048] reshape", "f32[1024,1024] negate")
    found = replicated(text)
    assert found is not None
    assert found.instructions == {"product"}


def test_devices_with_one_shard_in_common_repeat_each_other() -> None:
    found = replicated(step(PAIRS))
    assert found is not None
    assert found.expected_us == 50.0
    assert "2 of 4 devices" in found.why


@pytest.mark.parametrize(
    "text",
    [
        step(BATCH),
        step("replicated", "reduce-scatter(x), replica_groups={{0,1,2,3}}"),
        step("replicated").replace("num_partitions=4", "num_partitions=1"),
        step("replicated").replace("num_partitions=4", "replica_count=4"),
        step("manual"),
        STEP.replace(", sharding={OF_X}", "").replace("MAKES_Y", SAME),
    ],
    ids=["data", "scattered", "one device", "pmap", "unknown", "no sharding"],
)
def test_divided_work_is_not_named(text: str) -> None:
    assert replicated(text) is None


def test_a_gathered_batch_is_the_same_everywhere() -> None:
    gather = "all-gather(x), replica_groups={{0,1,2,3}}, dimensions={0}"
    assert replicated(step(BATCH, gather)) is not None
    pairs = gather.replace("{{0,1,2,3}}", "{{0,1},{2,3}}")
    found = replicated(step(BATCH, pairs))
    assert found is not None
    assert found.expected_us == 50.0


def test_little_work_is_not_named() -> None:
    text = step("replicated")
    found = find_levers(priced(text, US, step_us=200 * 75))
    assert [item.kind for item in found] == [OpportunityKind.REPLICATED]
    assert find_levers(priced(text, US, step_us=201 * 75)) == ()


@pytest.mark.parametrize(
    ("of_w", "next_x", "is_named"),
    [
        ("replicated", "product", True),
        ("replicated", "x", True),
        (BATCH, "x", False),
    ],
)
def test_a_loop_repeats_what_it_carries(of_w: str, next_x: str, is_named: bool) -> None:
    text = LOOP.replace("OF_W", of_w).replace("NEXT", next_x)
    assert (replicated(text, {"product": 80.0}) is not None) == is_named


def test_a_slice_by_a_table_of_devices_is_the_same_where_the_table_is() -> None:
    # On one line each, as XLA prints it: other forms of text leave the table out.
    text = step("replicated", "broadcast(at), dimensions={}").replace(",\n   ", ",")
    found = replicated(text.replace("  w =", f"{BY_DEVICE}  w ="))
    assert found is not None
    assert "2 of 4 devices" in found.why


def test_shards_are_numbered_by_device() -> None:
    assert shards_from_text("devices=[2,1]1,0") == (1, 0)
    assert shards_from_text("devices=[2,2]<=[2,2]T(1,0)") == (0, 2, 1, 3)
    assert shards_from_text(PAIRS) == (0, 0, 1, 1)
    assert shards_from_text("devices=[2,2]<=[4] last_tile_dims={manual}") == ()
    assert shards_from_text("devices=[2]0,9") == ()


def test_a_scatter_in_groups_of_the_same_values_leaves_one_copy_a_group() -> None:
    same = (0, 0, 0, 0)
    groups = ((0, 1), (2, 3))
    assert moved(same, groups, is_split=True) == (0, 1, 0, 1)
    assert moved((0, 1, 0, 1), groups, is_split=False) == same


@pytest.mark.parametrize(
    ("makes_y", "moves"),
    [
        ("all-gather(n), replica_groups={{0,1,2,3}}, dimensions={0}", True),
        ("all-gather(w), replica_groups={{0,1,2,3}}, dimensions={0}", False),
        ("all-reduce(n), replica_groups={{0,1,2,3}}, to_apply=cond", False),
    ],
    ids=["activations", "weights", "a sum"],
)
def test_a_loop_that_gathers_activations_may_be_divided_otherwise(
    makes_y: str, moves: bool
) -> None:
    text = LOOP.replace("OF_W", BATCH).replace("NEXT", "y")
    text = text.replace(
        "  product =",
        f"  n = f32[1024,1024] negate(x)\n  y = f32[1024,1024] {makes_y}\n  product =",
    )
    costs = replace(priced(text, {"product": 80.0}), exposed_us={"y": 4.0})
    assert is_undivided(costs, ()) == moves
    assert not is_undivided(replace(costs, exposed_us={"y": 3.9}), ())


def test_what_shard_map_leaves_whole_is_the_program_s_own_choice() -> None:
    text = STEP.replace("OF_X", "replicated").replace("MAKES_Y", SAME)
    assert replicated(text)
    assert not replicated(text.replace("jit(step)/dot", "jit(step)/shard_map/dot"))
