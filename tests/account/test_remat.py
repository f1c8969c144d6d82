"""Products that are computed again, with and without memory to keep their results."""

from __future__ import annotations

import pytest
from priced import lever_of, priced

from pgle.account.value import Opportunity, OpportunityKind

AGAIN = """HloModule jit_step, is_scheduled=true
ENTRY main {
  x = bf16[8192,4096] parameter(0)
  w = bf16[4096,16384] parameter(1)
  forward = bf16[8192,16384] dot(x, w), lhs_contracting_dims={1},
    rhs_contracting_dims={0}, metadata={op_name="jit(step)/jvp()/dot_general"}
  again = bf16[8192,16384] dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0},
    metadata={op_name="jit(step)/transpose(jvp())/checkpoint/rematted_computation/dot_general"}
  ROOT y = bf16[8192,16384] add(forward, again)
}
"""
KERNELS = {"forward": 1500.0, "again": 1500.0, "y": 300.0}
RESULT = 8192 * 16384 * 2
LIMIT = 60 << 30


def remat(peak_bytes: int | None, text: str = AGAIN) -> Opportunity | None:
    step = priced(
        text, KERNELS, gpu="h100-sxm", peak_bytes=peak_bytes, limit_bytes=LIMIT
    )
    return lever_of(step, OpportunityKind.REMAT, OpportunityKind.KEEP_LESS)


def test_a_result_that_fits_is_kept() -> None:
    found = remat(LIMIT - RESULT)
    assert found is not None
    assert found.expected_us == 1500  # outside of a loop it stays where it is
    assert found.instructions == {"again"}


def test_a_result_that_does_not_fit_is_computed_again() -> None:
    assert remat(LIMIT - RESULT + 1) is None


def test_without_a_memory_plan_there_is_only_a_bound() -> None:
    found = remat(None)
    assert found is not None
    assert found.expected_us is None
    assert found.most_us == 1500


def test_in_a_loop_keeping_takes_time() -> None:
    """Five passes over the result, each at 0.9 of 3,352 GB/s, or longer."""
    loop = AGAIN.replace("ENTRY main", "body").replace("ROOT y", "ROOT z")
    header, _, body = loop.partition("\nbody")
    text = (
        f"{header}\ncond {{ p = bf16[8192,16384] parameter(0)\n"
        "  ROOT c = pred[] constant(true) }\n"
        f"\nbody{body}"
        "\nENTRY main { s = bf16[8192,16384] parameter(0)\n"
        "  ROOT l = bf16[8192,16384] while(s), condition=cond, body=body }\n"
    )
    found = remat(0, text)
    assert found is not None
    assert found.expected_us is not None
    assert 1500 - found.expected_us > 5 * RESULT / (0.9 * 3352e3)


def test_nearly_full_memory_is_said_without_a_saving() -> None:
    text = AGAIN.replace("rematted_computation/", "")
    found = remat(LIMIT - 1, text)
    assert found is not None
    assert found.kind is OpportunityKind.KEEP_LESS
    assert (found.expected_us, found.most_us) == (None, 0.0)
    assert remat(LIMIT // 2, text) is None


def test_scores_of_attention_are_not_kept() -> None:
    batched = AGAIN.replace("[8192,", "[8,1024,").replace(
        "[4096,16384]", "[8,4096,16384]"
    )
    batched = batched.replace(
        "lhs_contracting_dims={1}, rhs_contracting_dims={0}",
        "lhs_batch_dims={0}, rhs_batch_dims={0}, lhs_contracting_dims={2}, "
        "rhs_contracting_dims={1}",
    )
    assert remat(0, batched) is None


@pytest.mark.parametrize("peak_bytes", [None, 0])
def test_no_more_is_saved_than_the_product_takes(peak_bytes: int | None) -> None:
    found = remat(peak_bytes)
    assert found is not None
    assert found.most_us <= KERNELS["again"]
