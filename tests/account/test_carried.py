"""A loop that begins with an array of the program's own keeps f32 if the loss's inputs are cast."""

from __future__ import annotations

import pytest
from priced import lever_of, priced

from pgle.account.levers.carried import Carried
from pgle.account.levers.flow import Flow
from pgle.account.levers.retyped import Retyped
from pgle.account.value import OpportunityKind

RNN = """HloModule jit_step, is_scheduled=true
condition {
  state = (s32[], f32[512,1024], f32[1024,1024], f32[512,1024]) parameter(0)
  number = s32[] get-tuple-element(state), index=0
  length = s32[] constant(128)
  ROOT less = pred[] compare(number, length), direction=LT
}
body {
  carried = (s32[], f32[512,1024], f32[1024,1024], f32[512,1024]) parameter(0)
  old = s32[] get-tuple-element(carried), index=0
  one = s32[] constant(1)
  next = s32[] add(old, one)
  h = f32[512,1024] get-tuple-element(carried), index=1
  own = f32[1024,1024] get-tuple-element(carried), index=2
  given = f32[512,1024] get-tuple-element(carried), index=3
  y = f32[512,1024] dot(h, own), lhs_contracting_dims={1}, rhs_contracting_dims={0},
    metadata={op_name="jit(step)/jvp()/while/body/dot_general"}
  z = f32[512,1024] add(y, given), metadata={op_name="jit(step)/jvp()/while/body/add"}
  ROOT all = (s32[], f32[512,1024], f32[1024,1024], f32[512,1024]) tuple(next, z, own, given)
}
ENTRY main {
  first = s32[] constant(0)
  zero = f32[] constant(0)
  zeros = f32[512,1024] broadcast(zero), dimensions={}
  x = f32[512,1024] parameter(0)
  w = f32[1024,1024] parameter(1)
  in = f32[1024,1024] parameter(2)
  made = f32[512,1024] dot(x, in), lhs_contracting_dims={1}, rhs_contracting_dims={0},
    metadata={op_name="jit(step)/jvp()/dot_general"}
  start = (s32[], f32[512,1024], f32[1024,1024], f32[512,1024]) tuple(first, zeros, w, made)
  loop = (s32[], f32[512,1024], f32[1024,1024], f32[512,1024]) while(start),
    condition=condition, body=body
  last = f32[512,1024] get-tuple-element(loop), index=1
  slope = f32[512,1024] negate(last), metadata={op_name="jit(step)/transpose(jvp())/neg"}
  to_in = f32[1024,1024] dot(x, slope), lhs_contracting_dims={0}, rhs_contracting_dims={0},
    metadata={op_name="jit(step)/transpose(jvp())/transpose"}
  to_w = f32[1024,1024] dot(last, slope), lhs_contracting_dims={0}, rhs_contracting_dims={0},
    metadata={op_name="jit(step)/transpose(jvp())/transpose"}
  ROOT out = (f32[1024,1024], f32[1024,1024]) tuple(to_in, to_w)
}
"""
PRODUCTS = ("y", "made", "to_in", "to_w")
OF_DATA = RNN.replace("tuple(first, zeros,", "tuple(first, x,")


def types(text: str, *names: str) -> dict[str, str]:
    """The types of some results after the cast."""
    flow = Flow(priced(text, {}).module)
    found = Retyped(flow, PRODUCTS, Carried(flow)).module.instructions
    return {name: found[name].shape.dtype for name in names}


def test_products_of_the_state_stay_and_those_of_data_do_not() -> None:
    assert types(RNN, "y", "made", "z") == {"y": "f32", "made": "bf16", "z": "f32"}


def test_a_state_that_begins_with_data_is_cast() -> None:
    assert types(OF_DATA, "y", "made", "z") == dict.fromkeys(("y", "made", "z"), "bf16")


def test_gradients_of_weights_have_16_bits() -> None:
    assert types(RNN, "to_in", "to_w") == {"to_in": "bf16", "to_w": "bf16"}


@pytest.mark.parametrize(
    ("product", "dtype"), [("to_in", "bf16"), ("y", "f32"), ("to_w", "f32")]
)
def test_both_inputs_of_a_product_have_the_type_of_the_forward_product(
    product: str, dtype: str
) -> None:
    flow = Flow(priced(RNN, {}).module)
    found = Retyped(flow, PRODUCTS, Carried(flow)).module
    shapes = found.operand_shapes(found.instructions[product])
    assert [shape.dtype for shape in shapes] == [dtype, dtype]


def test_rows_that_a_loop_writes_are_no_state_of_their_own() -> None:
    row = "dynamic-update-slice(h, y, next, next)"
    text = RNN.replace("add(y, given)", row)
    assert Carried(Flow(priced(text, {}).module)).loops == set()


def test_sums_of_gradients_are_no_state_of_their_own() -> None:
    text = RNN.replace("jvp()/while", "transpose(jvp())/while")
    assert Carried(Flow(priced(text, {}).module)).loops == set()


def test_the_edit_says_how_such_a_loop_begins_in_the_type_of_the_data() -> None:
    us = dict.fromkeys(PRODUCTS, 100.0)
    wide, narrow = (
        lever_of(priced(text, us, gpu="h100-sxm"), OpportunityKind.CAST)
        for text in (RNN, OF_DATA)
    )
    assert wide is not None
    assert narrow is not None
    assert "jnp.zeros(shape, x.dtype)" in wide.edit
    assert "jnp.zeros" not in narrow.edit
    assert wide.expected_us is not None
    assert narrow.expected_us is not None
    assert wide.expected_us < narrow.expected_us <= wide.most_us


def test_cublas_takes_promoted_weights_from_a_kernel_of_its_own() -> None:
    call = 'custom-call(h, own), custom_call_target="__cublas$gemm",'
    text = RNN.replace(
        "dot(h, own), lhs_contracting_dims={1}, rhs_contracting_dims={0},", call
    )
    flow = Flow(priced(text, {}).module)
    found = [*Retyped(flow, PRODUCTS, Carried(flow)).promotions]
    assert [(product, item.operands) for product, item in found] == [("y", ("own",))]
