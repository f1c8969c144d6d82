"""A batch that is whole on every device while they share the weights, and what dividing it moves."""

from __future__ import annotations

from dataclasses import replace

import pytest
from priced import lever_of, priced

from pgle.account.levers.alike import Alike
from pgle.account.levers.divided import Batch, whole_batch
from pgle.account.levers.flow import Flow
from pgle.account.step_costs import StepCosts
from pgle.account.value import Opportunity, OpportunityKind, StepPart
from pgle.xla.hlo.text import module_from_text

STEP = """HloModule jit_step, is_scheduled=true, num_partitions=4
add {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT sum = f32[] add(a, b)
}
ENTRY main {
  x = f32[ROWS,4096] parameter(0), sharding={OF_X}
  w = f32[WEIGHT] parameter(1), sharding={OF_W}
  part = f32[ROWS,WIDTH] slice(x), slice={[0:ROWS], [0:WIDTH]}
  product = f32[ROWS,4096] dot(part, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  whole = f32[ROWS,4096] all-reduce(product), replica_groups={{0,1,2,3}}, to_apply=add
  kept = f32[ROWS,4096] negate(whole)
  slope = f32[WEIGHT] dot(part, kept), lhs_contracting_dims={0}, rhs_contracting_dims={0}
  ROOT then = f32[WEIGHT] subtract(w, slope)
}
"""
FOUR = "devices=[4,1]<=[4]"
PAIRS = "devices=[2,1,2]<=[4] last_tile_dim_replicate"


def text_of(
    rows: int = 65536,
    of_x: str = "replicated",
    of_w: str = FOUR,
    weight: str = "1024,4096",
) -> str:
    width = weight.split(",")[-2]
    text = STEP.replace("ROWS", str(rows)).replace("WEIGHT", weight)
    return text.replace("WIDTH", width).replace("OF_X", of_x).replace("OF_W", of_w)


def step_of(text: str) -> StepCosts:
    """Kernels of 3 ms, and 7 ms of communication that nothing hides."""
    us = {"product": 1000.0, "kept": 1000.0, "slope": 1000.0}
    costs = priced(text, us, gpu="h100", step_us=10_000)
    exposed = {"whole": 7000.0}
    return replace(costs, exposed_us=exposed, communication_us=exposed)


def lever(text: str) -> Opportunity | None:
    return lever_of(step_of(text), OpportunityKind.REPLICATED)


def batch_of(text: str) -> Batch | None:
    module = module_from_text(text.encode(), "step.txt")
    flow = Flow(module)
    return whole_batch(flow, Alike(flow))


def test_a_whole_batch_is_named_although_no_product_is_repeated() -> None:
    found = lever(text_of())
    assert found is not None
    assert found.title == "Divide the batch that every device has whole"
    assert "4 devices have all 65,536 rows" in found.why


def test_communication_of_activations_goes_and_that_of_weights_comes() -> None:
    found = lever(text_of())
    assert found is not None
    assert found.part is StepPart.COMMUNICATION
    # products of a fourth of the rows take a fourth at least; gathering weights is not free
    assert 750 < found.known_saving_us < 7000 + 0.75 * 3000


def test_larger_weights_leave_less_to_save() -> None:
    less = lever(text_of(weight="4096,4096"))
    more = lever(text_of())
    assert less is not None and more is not None
    assert less.known_saving_us < more.known_saving_us


@pytest.mark.parametrize(
    "text",
    [text_of(of_x=FOUR), text_of(rows=65534), text_of(of_x="manual")],
    ids=["divided", "indivisible", "unknown"],
)
def test_a_batch_that_cannot_be_divided_is_none(text: str) -> None:
    assert batch_of(text) is None


def test_a_step_without_state_does_not_say_what_its_batch_is() -> None:
    assert (
        batch_of(text_of().replace("ROOT then = f32[1024,4096]", "ROOT then = f32[4]"))
        is None
    )


def test_devices_with_the_same_weights_divide_the_batch_first() -> None:
    found = batch_of(text_of(of_w=PAIRS))
    assert found == Batch(65536, 0, 2, ((0, 1), (2, 3)), is_apart=True)


def test_devices_that_share_the_weights_divide_the_batch_among_all() -> None:
    found = batch_of(text_of())
    assert found == Batch(65536, 0, 4, ((0, 1, 2, 3),), is_apart=False)


SCANNED = """HloModule jit_step, is_scheduled=true, num_partitions=4
body {
  state = (s32[], f32[6,64,128], f32[64,128]) parameter(0)
  at = s32[] get-tuple-element(state), index=0
  xs = f32[6,64,128] get-tuple-element(state), index=1
  h = f32[64,128] get-tuple-element(state), index=2
  zero = s32[] constant(0)
  x = f32[1,64,128] dynamic-slice(xs, at, zero, zero), dynamic_slice_sizes={1,64,128}
  flat = f32[64,128] bitcast(x)
  next = f32[64,128] add(flat, h)
  ROOT left = (s32[], f32[6,64,128], f32[64,128]) tuple(at, xs, next)
}
cond {
  state2 = (s32[], f32[6,64,128], f32[64,128]) parameter(0)
  at2 = s32[] get-tuple-element(state2), index=0
  limit = s32[] constant(6)
  ROOT go = pred[] compare(at2, limit), direction=LT
}
ENTRY main {
  data = f32[6,64,16] parameter(0), sharding={replicated}
  table = f32[16,128] parameter(1), sharding={devices=[1,4]<=[4]}
  w = f32[64,128] parameter(2), sharding={devices=[4,1]<=[4]}
  made = f32[6,64,128] dot(data, table), lhs_contracting_dims={2}, rhs_contracting_dims={0}
  start = s32[] constant(0)
  given = (s32[], f32[6,64,128], f32[64,128]) tuple(start, made, w)
  loop = (s32[], f32[6,64,128], f32[64,128]) while(given), condition=cond, body=body
  then = f32[64,128] get-tuple-element(loop), index=2
  ROOT results = (f32[16,128], f32[64,128]) tuple(table, then)
}
"""


def test_the_batch_of_a_sequence_with_time_first_is_on_its_second_axis() -> None:
    found = batch_of(SCANNED)
    assert found is not None
    assert (found.rows, found.axis, found.count) == (64, 1, 4)
