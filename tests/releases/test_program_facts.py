"""Exact facts of two modules, from HLO text that a person can read."""

from __future__ import annotations

import pytest

from pgle.releases.changes import changes
from pgle.releases.facts import CollectiveUse, facts_of
from pgle.xla.hlo.text import module_from_text

HEAD = """HloModule jit_step, is_scheduled=true, num_partitions=4

%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %sum = f32[] add(%a, %b)
}
"""
GROUPS = "replica_groups={{0,1,2,3}}, use_global_device_ids=true"
GATHER = f"all-gather(%p), channel_id=1, {GROUPS}, dimensions={{0}}"
REDUCE = f"all-reduce(%p), channel_id=2, {GROUPS}, to_apply=%add"


def facts(body: str, computations: str = ""):
    """The facts of a module whose entry has these lines."""
    lines = "\n".join(f"  {line}" for line in body.strip().splitlines())
    entry = (
        "ENTRY %main (p: f32[8]) -> f32[8] {\n"
        f"  %p = f32[8]{{0}} parameter(0)\n{lines}\n}}\n"
    )
    return facts_of(module_from_text(f"{HEAD}{computations}\n{entry}".encode(), "t"))


def test_a_start_may_overlap_and_a_plain_collective_does_not():
    found = facts(f"""
%ags = (f32[8]{{0}}, f32[32]{{0}}) all-gather-start(%p), channel_id=1, {GROUPS}, dimensions={{0}}
%agd = f32[32]{{0}} all-gather-done(%ags)
%ag = f32[32]{{0}} {GATHER}
ROOT %out = f32[8]{{0}} slice(%agd), slice={{[0:8]}}
""")
    # two results of 32 floats of 4 bytes
    assert found.collectives == {"all-gather": CollectiveUse(2, 1, 256)}


def test_a_collective_in_a_loop_counts_as_often_as_it_runs():
    loop = f"""
%body (x: f32[8]) -> f32[8] {{
  %x = f32[8]{{0}} parameter(0)
  ROOT %ar = f32[8]{{0}} all-reduce(%x), channel_id=2, {GROUPS}, to_apply=%add
}}
%cond (y: f32[8]) -> pred[] {{
  %y = f32[8]{{0}} parameter(0)
  ROOT %go = pred[] constant(true)
}}
"""
    found = facts(
        "ROOT %w = f32[8]{0} while(%p), condition=%cond, body=%body, "
        'backend_config={"known_trip_count":{"n":"3"}}',
        loop,
    )
    assert found.collectives == {"all-reduce": CollectiveUse(3, 0, 3 * 32)}


PRODUCT = """
%fused (q: {type}[8,8]) -> f32[8,8] {{
  %q = {type}[8,8]{{1,0}} parameter(0)
  ROOT %dot = f32[8,8]{{1,0}} dot(%q, %q), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
}}
"""


def with_product(dtype: str):
    """A module with a product of arrays of a type, inside a fusion."""
    return facts(
        f"""
%c = {dtype}[8,8]{{1,0}} broadcast(%p), dimensions={{0}}
%f = f32[8,8]{{1,0}} fusion(%c), kind=kCustom, calls=%fused
ROOT %out = f32[8]{{0}} reshape(%f)
""",
        PRODUCT.format(type=dtype),
    )


@pytest.mark.parametrize(
    ("dtype", "words"), [("f8e4m3fn", "fp8"), ("f16", "f16"), ("bf16", "bf16")]
)
def test_a_product_inside_a_fusion_has_the_type_of_its_operands(dtype, words):
    assert with_product(dtype).products == {words: 1}


def test_a_release_that_widens_fp8_products_is_found():
    found = changes(with_product("f8e4m3fn"), with_product("f16"))
    assert found.products == {"fp8": (1, 0), "f16": (0, 1)}
    assert not found.is_empty


def test_the_same_module_has_no_changes():
    one = with_product("bf16")
    assert changes(one, one).is_empty


def test_another_order_of_the_same_collectives_is_one_fact():
    first = facts(f"""
%ag = f32[32]{{0}} {GATHER}
%ar = f32[8]{{0}} {REDUCE}
ROOT %out = f32[8]{{0}} add(%ar, %p)
""")
    second = facts(f"""
%ar = f32[8]{{0}} {REDUCE}
%ag = f32[32]{{0}} {GATHER}
ROOT %out = f32[8]{{0}} add(%ar, %p)
""")
    found = changes(first, second)
    assert (found.collectives, found.gone, found.come) == ({}, 0, 0)
    old, new = (side.collective.kind for side in found.order.sides)
    assert (found.order.position, old, new) == (1, "all-gather", "all-reduce")


def test_an_asynchronous_collective_that_gets_synchronous_is_a_change_of_its_kind():
    first = facts(f"""
%s = f32[8]{{0}} all-reduce-start(%p), channel_id=2, {GROUPS}, to_apply=%add
ROOT %d = f32[8]{{0}} all-reduce-done(%s)
""")
    second = facts(f"ROOT %ar = f32[8]{{0}} {REDUCE}")
    found = changes(first, second).collectives
    assert found == {"all-reduce": (CollectiveUse(1, 1, 32), CollectiveUse(1, 0, 32))}
