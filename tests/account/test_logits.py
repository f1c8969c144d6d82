"""A loss passes over logits as seldom as it can."""

from __future__ import annotations

import pytest
from priced import lever_of, priced

from pgle.account.value import Opportunity, OpportunityKind

LOSS = """HloModule jit_step, is_scheduled=true

max { a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT r = f32[] maximum(a, b) }

sum { c = f32[] parameter(0)
  d = f32[] parameter(1)
  ROOT t = f32[] add(c, d) }

highest { l = bf16[8192,32000] parameter(0)
  f = f32[8192,32000] convert(l)
  low = f32[] constant(-inf)
  ROOT h = f32[8192] reduce(f, low), dimensions={1}, to_apply=max }

total { l2 = bf16[8192,32000] parameter(0)
  f2 = f32[8192,32000] convert(l2)
  h2 = f32[8192] parameter(1)
  wide = f32[8192,32000] broadcast(h2), dimensions={0}
  below = f32[8192,32000] subtract(f2, wide)
  e = f32[8192,32000] exponential(below)
  zero = f32[] constant(0)
  ROOT s = f32[8192] reduce(e, zero), dimensions={1}, to_apply=sum }

slope { l3 = bf16[8192,32000] parameter(0)
  f3 = f32[8192,32000] convert(l3)
  e3 = f32[8192,32000] exponential(f3)
  ROOT g = bf16[8192,32000] convert(e3) }

ENTRY main {
  x = bf16[8192,1024] parameter(0)
  table = bf16[1024,32000] parameter(1)
  logits = bf16[8192,32000] dot(x, table), lhs_contracting_dims={1},
    rhs_contracting_dims={0}, metadata={op_name="jit(step)/jvp()/dot_general"}
  k1 = f32[8192] fusion(logits), kind=kInput, calls=highest
  k2 = f32[8192] fusion(logits, k1), kind=kInput, calls=total
  k3 = bf16[8192,32000] fusion(logits), kind=kLoop, calls=slope
  ROOT dx = bf16[8192,1024] dot(k3, table), lhs_contracting_dims={1},
    rhs_contracting_dims={1}, metadata={op_name="jit(step)/transpose(jvp())/dot_general"}
}
"""

KERNELS = {"logits": 700.0, "k1": 600.0, "k2": 900.0, "k3": 900.0, "dx": 700.0}


def logits(text: str) -> Opportunity | None:
    step = priced(text, KERNELS, gpu="h100-sxm")
    return lever_of(step, OpportunityKind.LOGITS)


def test_four_passes_over_the_logits_are_enough() -> None:
    found = logits(LOSS)
    assert found is not None
    assert found.expected_us is not None
    assert found.instructions == {"k1", "k2", "k3"}
    passes = 4 * 8192 * 32000 * 2 / (0.9 * 3352e3)
    assert 2400 - found.expected_us == pytest.approx(passes, rel=0.01)


def test_the_products_are_left_as_they_are() -> None:
    found = logits(LOSS)
    assert found is not None
    assert found.most_us < 600 + 900 + 900


def test_a_softmax_that_a_layer_goes_on_with_is_no_loss() -> None:
    assert logits(LOSS.replace("transpose(jvp())", "jvp()")) is None


def test_few_words_are_left() -> None:
    assert logits(LOSS.replace("32000", "1000")) is None


def test_soft_labels_are_read_in_both_directions() -> None:
    soft = LOSS.replace("f3 = f32", "w3 = f32[8192,32000] parameter(1)\n  f3 = f32")
    soft = soft.replace("exponential(f3)", "multiply(f3, w3)")
    soft = soft.replace(
        "fusion(logits), kind=kLoop", "fusion(logits, soft), kind=kLoop"
    )
    given = "table = bf16[1024,32000] parameter(1)"
    soft = soft.replace(given, f"{given}\n  soft = f32[8192,32000] parameter(2)")
    hard, found = logits(LOSS), logits(soft)
    assert hard is not None
    assert found is not None
    assert hard.expected_us is not None
    assert found.expected_us is not None
    reads = 2 * 8192 * 32000 * 4 / (0.9 * 3352e3)
    assert hard.expected_us - found.expected_us == pytest.approx(reads, rel=0.01)
