"""Products in f32 are priced with inputs of fewer bits."""

from __future__ import annotations

import re

import pytest
from priced import lever_of, priced

from pgle.account.value import Opportunity, OpportunityKind
from pgle.costs.estimate.products import Matmul, matmul_us
from pgle.xla.hardware import KERNEL_US
from pgle.xla.targets import find_hardware

DOT = """HloModule jit_step, is_scheduled=true
ENTRY main {
  x = f32[8192,4096] parameter(0)
  w = f32[4096,4096] parameter(1)
  ROOT y = f32[8192,4096] dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}
"""
EXACT = DOT.replace(
    "rhs_contracting_dims={0}",
    "rhs_contracting_dims={0}, operand_precision={highest,highest}",
)


def precision(text: str, us: float, gpu: str = "h100-sxm") -> Opportunity | None:
    """What products save alone."""
    return lever_of(priced(text, {"y": us}, gpu=gpu), OpportunityKind.PRECISION)


def cast(text: str, us: float, **others: float) -> Opportunity | None:
    """What a cast of parameters and activations saves."""
    step = priced(text, {"y": us, **others}, gpu="h100-sxm")
    return lever_of(step, OpportunityKind.CAST)


def product_us(dtype: str, rounded: str = "") -> float:
    size = Matmul(batch=1, m=8192, n=4096, k=4096, dtype=dtype, precision=rounded)
    return matmul_us(size, find_hardware("h100-sxm"))


def cast_us(elements: int) -> float:
    """A kernel that reads four bytes of each element and writes two."""
    return KERNEL_US + find_hardware("h100-sxm").memory_us(6 * elements)


def test_f32_becomes_bfloat16() -> None:
    found = cast(DOT, 900)
    assert found is not None
    casts_us = cast_us(8192 * 4096) + cast_us(4096 * 4096)
    then_us = 900 * product_us("bf16") / product_us("f32")
    assert found.expected_us == pytest.approx(900 - then_us - casts_us)
    assert found.title == "Cast to bfloat16"
    assert found.most_us < 900


def test_operands_are_rounded_without_casts() -> None:
    found = precision(DOT, 900)
    assert found is not None
    then_us = 900 * product_us("f32", "dot_bf16_bf16_f32") / product_us("f32")
    assert found.expected_us == pytest.approx(900 - then_us)
    assert found.title == "Multiply in bfloat16"


def test_only_nvidia_s_gpus_round_operands() -> None:
    assert precision(DOT, 900, gpu="mi300x") is None


def test_full_precision_becomes_tf32() -> None:
    found = precision(EXACT, 5000)
    assert found is not None
    assert found.expected_us == pytest.approx(5000 - product_us("f32"))
    assert found.title == "Multiply as TF32"


def test_a_convolution_in_full_precision_becomes_tf32() -> None:
    text = """HloModule jit_step, is_scheduled=true
ENTRY main {
  x = f32[64,56,56,256] parameter(0)
  w = f32[3,3,256,256] parameter(1)
  ROOT y = f32[64,56,56,256] convolution(x, w), window={size=3x3 pad=1_1x1_1},
    dim_labels=b01f_01io->b01f, operand_precision={highest,highest}
}
"""
    found = precision(text, 7000)
    assert found is not None
    assert found.title == "Multiply as TF32"


def test_bfloat16_stays() -> None:
    text = DOT.replace("f32[", "bf16[")
    assert (precision(text, 900), cast(text, 900)) == (None, None)


def test_a_product_that_is_bound_by_latency_stays() -> None:
    small = DOT.replace("8192", "16").replace("4096", "64")
    assert (precision(small, 2), cast(small, 2)) == (None, None)


def test_a_kernel_of_f32_activations_takes_half_as_long_and_casts_may_cost_all() -> (
    None
):
    alone = cast(DOT, 900, z=100)
    turned = "ROOT z = f32[4096,8192] transpose(y), dimensions={1,0}"
    text = DOT.replace("ROOT y", "y").replace("\n}", f"\n  {turned}\n}}")
    found = cast(text, 900, z=100)
    assert alone is not None
    assert found is not None
    # half of its bytes; a hundredth of its time is no bytes
    assert found.expected_us == pytest.approx((alone.expected_us or 0.0) + 50, abs=1)
    assert found.most_us == pytest.approx(alone.most_us + 50, abs=1)
    assert found.least_us <= 0.0


def test_what_another_type_divides_from_the_products_stays() -> None:
    text = DOT.replace("ROOT y", "y").replace(
        "\n}",
        "\n  h = bf16[8192,4096] convert(y)\n  g = f32[8192,4096] convert(h)"
        "\n  ROOT z = f32[4096,8192] transpose(g), dimensions={1,0}\n}",
    )
    near = cast(DOT, 900)
    found = cast(text, 900, z=100)
    assert near is not None
    assert found is not None
    assert found.most_us == near.most_us


def test_words_of_a_cast_account_for_all_that_it_saves() -> None:
    turned = "ROOT z = f32[4096,8192] transpose(y), dimensions={1,0}"
    text = DOT.replace("ROOT y", "y").replace("\n}", f"\n  {turned}\n}}")
    text = text.replace("parameter(0)", "parameter(0)\n  v = f32[8192,4096] negate(x)")
    found = cast(text.replace("dot(x, w)", "dot(v, w)"), 900, v=700, z=900)
    assert found is not None
    said = [read_time_us(text) for text in re.findall(r"[\d.]+ [mµ]s", found.why)]
    now_us, then_us, elsewhere_us = said
    saved_us = now_us - then_us + elsewhere_us
    assert saved_us == pytest.approx(found.expected_us, rel=0.01)


def read_time_us(text: str) -> float:
    number, unit = text.split()
    return float(number) * {"ms": 1000, "µs": 1}[unit]
