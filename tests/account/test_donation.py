"""State that is copied because it was not donated."""

from __future__ import annotations

from priced import lever_of, priced

from pgle.account.value import Opportunity, OpportunityKind

DECODE = """HloModule jit_decode, is_scheduled=true, input_output_alias={ {0}: (1, {}, may-alias) }
ENTRY main {
  cache = bf16[64,2048,1024] parameter(0)
  step = s32[] parameter(1)
  row = bf16[64,1,1024] parameter(2)
  zero = s32[] constant(0)
  own = bf16[64,2048,1024] copy(cache)
  new = bf16[64,2048,1024] dynamic-update-slice(own, row, zero, step, zero)
  next = s32[] add(step, step)
  ROOT all = (s32[], bf16[64,2048,1024]) tuple(next, new)
}
"""


def donation(text: str) -> Opportunity | None:
    step = priced(text, {"own": 180.0, "new": 3.0, "next": 2.0}, gpu="h100-sxm")
    return lever_of(step, OpportunityKind.DONATION)


def test_the_copy_of_an_argument_that_a_result_replaces_is_saved() -> None:
    found = donation(DECODE)
    assert found is not None
    assert found.expected_us == 180
    assert "0.25 GiB" in found.why
    named = DECODE.replace(
        "parameter(0)", "parameter(0), metadata={op_name=\"kept['k']\"}"
    )
    edited = donation(named)
    assert edited is not None
    assert edited.code == 'donate_argnames=["kept"]'


def test_donated_state_is_copied_for_another_reason() -> None:
    assert donation(DECODE.replace("(1, {}", "(0, {}")) is None


def test_what_no_result_replaces_cannot_be_donated() -> None:
    other = DECODE.replace("tuple(next, new)", "tuple(next, next)")
    assert (
        donation(other.replace("(s32[], bf16[64,2048,1024])", "(s32[], s32[])")) is None
    )
