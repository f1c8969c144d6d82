"""The gradient of a lookup that devices reduce as a whole table."""

from __future__ import annotations

from dataclasses import replace

from priced import lever_of, priced

from pgle.account.value import Opportunity, OpportunityKind, StepPart

STEP = """HloModule jit_step, is_scheduled=true, num_partitions=8
sum { a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT t = f32[] add(a, b) }

ENTRY main {
  ids = s32[8192,1] parameter(0)
  rows = f32[8192,128] parameter(1)
  zero = f32[] constant(0)
  zeros = f32[4194304,128] broadcast(zero), dimensions={}
  grad = f32[4194304,128] scatter(zeros, ids, rows), update_window_dims={1},
    inserted_window_dims={0}, scatter_dims_to_operand_dims={0}, index_vector_dim=1,
    to_apply=sum
  start = f32[4194304,128] all-reduce-start(grad), replica_groups={{0,1,2,3,4,5,6,7}},
    use_global_device_ids=true, channel_id=1, to_apply=sum
  ROOT done = f32[4194304,128] all-reduce-done(start)
}
"""


def lever(text: str) -> Opportunity | None:
    step = priced(text, {"grad": 100.0}, gpu="h100-sxm", step_us=20_000)
    step = replace(step, exposed_us={"start": 9000.0})
    return lever_of(step, OpportunityKind.DENSE_GRADIENT)


def test_only_the_rows_that_are_looked_up_have_to_be_exchanged() -> None:
    found = lever(STEP)
    assert found is not None
    assert found.expected_us is not None
    assert 8500 < found.expected_us < 9000
    assert found.most_us == 9000 + 7 / 8 * 100  # sharded, each device has its part
    assert found.part is StepPart.COMMUNICATION
    assert found.instructions == {"start", "grad"}
    assert "65,536 rows of 4,194,304" in found.why


def test_a_gradient_that_is_dense_by_another_path_too_is_left_alone() -> None:
    tied = STEP.replace("scatter(zeros,", "scatter(other,").replace(
        "  zero = f32[]", "  other = f32[4194304,128] parameter(2)\n  zero = f32[]"
    )
    assert lever(tied) is None


def test_a_table_that_is_smaller_than_what_is_looked_up_is_left_alone() -> None:
    small = STEP.replace("4194304", "4096").replace("8192", "1048576")
    assert lever(small) is None
