"""Loops whose iterations run small kernels."""

from __future__ import annotations

from priced import lever_of

from pgle.account.step_costs import StepCosts
from pgle.account.value import Basis, Opportunity, OpportunityKind
from pgle.xla.hlo.text import module_from_text
from pgle.xla.targets import find_hardware

SCAN = """HloModule jit_step, is_scheduled=true
condition {
  state = (s32[], f32[8,768]) parameter(0)
  number = s32[] get-tuple-element(state), index=0
  length = s32[] constant(1024)
  ROOT less = pred[] compare(number, length), direction=LT
}
body {
  carried = (s32[], f32[8,768]) parameter(0)
  old = s32[] get-tuple-element(carried), index=0
  one = s32[] constant(1)
  next = s32[] add(old, one)
  values = f32[8,768] get-tuple-element(carried), index=1
  decay = f32[8,768] multiply(values, values)
  ROOT both = (s32[], f32[8,768]) tuple(next, decay)
}
ENTRY main {
  zero = s32[] constant(0)
  given = f32[8,768] parameter(0)
  first = (s32[], f32[8,768]) tuple(zero, given)
  loop = (s32[], f32[8,768]) while(first), condition=condition, body=body
  ROOT last = f32[8,768] get-tuple-element(loop), index=1
}
"""


def loop(iterations: float, kernel_us: float) -> Opportunity | None:
    """The lever of a loop with two kernels in each iteration, in a step that has nothing else."""
    names = ("next", "decay")
    step = StepCosts(
        module=module_from_text(SCAN.encode(), "scan.txt"),
        hardware=find_hardware("h100-sxm"),
        step_us=2 * iterations * kernel_us,
        us=dict.fromkeys(names, iterations * kernel_us),
        count=dict.fromkeys(names, iterations),
        basis=Basis.ESTIMATED,
    )
    return lever_of(step, OpportunityKind.UNROLL)


def test_a_loop_of_many_small_kernels_has_a_bound_and_no_expectation() -> None:
    found = loop(1024, 2.0)
    assert found is not None
    assert found.expected_us is None
    assert found.most_us == 4096
    assert "2 kernels in 1 loop, 1,024 iterations a step, 2 µs each" in found.why


def test_a_loop_over_layers_is_left() -> None:
    assert loop(32, 2.0) is None


def test_a_loop_of_large_kernels_is_left() -> None:
    assert loop(1024, 50.0) is None
