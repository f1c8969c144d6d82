"""XLA drops the algorithm of products of two matrices if it divides a program by Shardy."""

from __future__ import annotations

import pytest
from priced import lever_of, priced

from pgle.account.levers.algorithms import keeps_algorithm
from pgle.account.levers.flow import Flow
from pgle.account.value import OpportunityKind

ROWS = """HloModule jit_step, is_scheduled=true, num_partitions=4
ENTRY main {
  x = f32[4096,2048] parameter(0)
  w = f32[2048,1024] parameter(1)
  ROOT y = f32[4096,1024] dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0},
    metadata={op_name="jit(step)/jvp()/dot_general"}
}
"""
AXES = ROWS.replace(
    "x = f32[4096,2048] parameter(0)", "z = f32[16,256,2048] parameter(0)"
)
AXES = AXES.replace("  w =", "  x = f32[4096,2048] bitcast(z)\n  w =")
LENGTH_ONE = AXES.replace("16,256,2048", "1,4096,2048")
GRADIENT = ROWS.replace("jvp()", "transpose(jvp())")
AGAIN = GRADIENT.replace("/dot_general", "/rematted_computation/dot_general")
ALONE = ROWS.replace(", num_partitions=4", "")


@pytest.mark.parametrize(
    ("text", "keeps"),
    [
        (ROWS, False),
        (AXES, True),
        (LENGTH_ONE, False),
        (GRADIENT, True),
        (AGAIN, False),
        (ALONE, True),
    ],
    ids=["matrices", "axes", "length one", "gradient", "again", "one partition"],
)
def test_which_products_keep_it(text: str, keeps: bool) -> None:
    assert keeps_algorithm(Flow(priced(text, {}).module), "y") is keeps


def test_nothing_is_expected_of_a_product_that_loses_it() -> None:
    both = AXES.replace("ROOT y", "y").replace("\n}", f"\n{SECOND}\n}}")
    us = {"y": 100.0, "other": 100.0}
    found = lever_of(priced(both, us, gpu="h100-sxm"), OpportunityKind.PRECISION)
    alone = lever_of(
        priced(AXES, {"y": 100.0}, gpu="h100-sxm"), OpportunityKind.PRECISION
    )
    assert found is not None
    assert alone is not None
    assert found.expected_us == pytest.approx(alone.expected_us)
    assert found.instructions == {"y"}
    assert "XLA drops that of 1 other product" in found.why
    assert "give the data three axes there" in found.edit
    assert "three axes" not in alone.edit


SECOND = """  v = f32[4096,2048] parameter(2)
  ROOT other = f32[4096,1024] dot(v, w), lhs_contracting_dims={1}, rhs_contracting_dims={0},
    metadata={op_name="jit(step)/jvp()/dot_general"}"""


def test_convolutions_have_none() -> None:
    text = """HloModule jit_step, is_scheduled=true
ENTRY main {
  x = f32[64,56,56,256] parameter(0)
  w = f32[3,3,256,256] parameter(1)
  ROOT y = f32[64,56,56,256] convolution(x, w), window={size=3x3 pad=1_1x1_1},
    dim_labels=b01f_01io->b01f
}
"""
    step = priced(text, {"y": 7000.0}, gpu="h100-sxm")
    assert lever_of(step, OpportunityKind.PRECISION) is None
    assert lever_of(step, OpportunityKind.CAST) is not None
