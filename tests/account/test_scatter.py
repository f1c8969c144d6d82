"""A scatter that takes far longer than a product with one-hot rows."""

from __future__ import annotations

import pytest
from priced import lever_of, priced

from pgle.account.value import Opportunity, OpportunityKind

SCATTER = """HloModule jit_step, is_scheduled=true

sum { a = bf16[] parameter(0)
  b = bf16[] parameter(1)
  ROOT t = bf16[] add(a, b) }

ENTRY main {
  zeros = bf16[32000,640] parameter(0)
  ids = s32[4096,1] parameter(1)
  rows = bf16[4096,640] parameter(2)
  ROOT grad = bf16[32000,640] scatter(zeros, ids, rows), update_window_dims={1},
    inserted_window_dims={0}, scatter_dims_to_operand_dims={0}, index_vector_dim=1,
    to_apply=sum, metadata={op_name="jit(step)/transpose(jvp(embed))/scatter-add"}
}
"""


def scatter(us: float, text: str = SCATTER) -> Opportunity | None:
    step = priced(text, {"grad": us}, gpu="h100-sxm", step_us=100_000)
    return lever_of(step, OpportunityKind.SCATTER)


def test_the_gradient_of_a_lookup_becomes_a_product() -> None:
    found = scatter(53_600)
    assert found is not None
    assert found.expected_us is not None
    # 2 · 4,096 · 32,000 · 640 operations at the peak of an H100
    assert 53_600 - found.most_us == pytest.approx(2 * 4096 * 32000 * 640 / 989e6)
    assert found.least_us < found.expected_us < found.most_us
    assert found.title.startswith("Write the lookup's gradient as a one-hot product")
    assert "jax.nn.one_hot" in found.code
    assert "negative ones too, then give zeros" in found.edit


def test_a_product_that_is_no_faster_is_not_proposed() -> None:
    """Sorted rows may be faster; nobody has tried."""
    found = scatter(1200, SCATTER.replace("32000", "3200000"))
    assert found is None or found.expected_us is None


def test_a_scatter_that_overwrites_makes_nobody_wait() -> None:
    overwrites = SCATTER.replace(
        "b = bf16[] parameter(1)\n  ROOT t = bf16[] add(a, b)",
        "ROOT b = bf16[] parameter(1)",
    )
    assert scatter(53_600, overwrites) is None


def test_where_one_hot_rows_take_longer_the_indices_are_sorted() -> None:
    found = scatter(30_000, SCATTER.replace("32000", "3200000"))
    assert found is not None
    assert found.expected_us is None
    assert "indices_are_sorted=True" in found.edit
