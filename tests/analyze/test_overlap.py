"""What a schedule could still hide, and what the scheduler was told, against what ran."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pgle.analyze.analysis import MeasuredStep
from pgle.analyze.collectives import Overlap
from pgle.costs.profile.value import Cost, Profile
from pgle.xla.hlo.module import Module
from pgle.xla.hlo.text import module_from_text
from tests.analyze.conftest import SIDE, Run, repeated


@pytest.fixture(scope="module")
def module() -> Module:
    """Two gathers; of the first kernel 1 is independent, of the second nothing."""
    text = """HloModule jit_step, is_scheduled=true, num_partitions=2

ENTRY main {
  p = f32[1024]{0} parameter(0)
  all-gather-start.1 = (f32[1024]{0}, f32[2048]{0}) all-gather-start(p), channel_id=1, replica_groups={{0,1}}, dimensions={0}, use_global_device_ids=true
  all-gather-done.1 = f32[2048]{0} all-gather-done(all-gather-start.1)
  negate.1 = f32[1024]{0} negate(p)
  negate.2 = f32[2048]{0} negate(all-gather-done.1)
  all-gather-start.2 = (f32[2048]{0}, f32[4096]{0}) all-gather-start(negate.2), channel_id=2, replica_groups={{0,1}}, dimensions={0}, use_global_device_ids=true
  all-gather-done.2 = f32[4096]{0} all-gather-done(all-gather-start.2)
  negate.3 = f32[4096]{0} negate(all-gather-done.2)
  ROOT result = (f32[1024]{0}, f32[4096]{0}) tuple(negate.1, negate.3)
}
"""  # noqa: E501
    return module_from_text(
        text.encode(),
        "module_0001.jit_step.sm_9.0_gpu_after_optimizations.txt",
        program_id=1,
    )


STEP = (
    Run("all-gather-start.1", 0, 100, SIDE),
    Run("negate.1", 100, 60),
    Run("negate.2", 160, 50),
    Run("all-gather-start.2", 210, 80, SIDE),
    Run("negate.3", 290, 50),
)


def overlap_of(
    measured: Callable[..., MeasuredStep], module: Module, **known: object
) -> Overlap:
    found = measured(repeated(*STEP, every=1000), module, **known).overlap
    assert found is not None
    return found


def test_only_independent_compute_can_hide_a_collective(measured, module) -> None:
    step = measured(repeated(*STEP, every=1000), module)
    judged = {
        item.name: (item.transfer_exposed_us, item.hideable_us)
        for item in step.exposed_collectives
    }
    # negate.1 is independent of both: it can hide 60 of the first, or of the second
    assert judged["all-gather-start.1"] == pytest.approx((100, 60))
    assert judged["all-gather-start.2"] == pytest.approx((80, 60))


def test_in_a_loop_each_iteration_hides_what_it_can(measured) -> None:
    text = """HloModule jit_step, is_scheduled=true, num_partitions=2

cond {
  c = (s32[], f32[1024]{0}) parameter(0)
  ROOT go = pred[] constant(true)
}

body {
  b = (s32[], f32[1024]{0}) parameter(0)
  i = s32[] get-tuple-element(b), index=0
  p = f32[1024]{0} get-tuple-element(b), index=1
  all-reduce-start.1 = f32[1024]{0} all-reduce-start(p), channel_id=1, replica_groups={{0,1}}, use_global_device_ids=true, to_apply=cond
  all-reduce-done.1 = f32[1024]{0} all-reduce-done(all-reduce-start.1)
  negate.1 = f32[1024]{0} negate(p)
  add.1 = f32[1024]{0} add(negate.1, all-reduce-done.1)
  ROOT next = (s32[], f32[1024]{0}) tuple(i, add.1)
}

ENTRY main {
  start = (s32[], f32[1024]{0}) parameter(0)
  ROOT while.1 = (s32[], f32[1024]{0}) while(start), condition=cond, body=body, backend_config={"known_trip_count":{"n":"3"}}
}
"""  # noqa: E501
    module = module_from_text(
        text.encode(),
        "module_0001.jit_step.sm_9.0_gpu_after_optimizations.txt",
        program_id=1,
    )
    of = ((Run("all-reduce-start.1", at, 100, SIDE), Run("negate.1", at + 100, 60), Run("add.1", at + 160, 10))
          for at in (0, 200, 400))  # fmt: skip
    step = measured(repeated(*(run for runs in of for run in runs), every=1000), module)
    assert [
        (item.transfer_exposed_us, item.hideable_us)
        for item in step.exposed_collectives
    ] == [pytest.approx((300, 180))]


def test_reasons_are_in_words(measured, module) -> None:
    why = {
        item.name: item.why
        for item in measured(repeated(*STEP, every=1000), module).exposed_collectives
    }
    assert set(why.values()) <= {
        "too little independent compute", "independent compute is not scheduled next to it",
        "nothing is scheduled next to it",
    }  # fmt: skip
    assert len(why) == 2


def test_a_profile_is_held_against_what_ran(measured, module) -> None:
    used = Profile(
        (
            Cost("negate.1", 60.0),
            Cost("negate.2", 150.0),
            Cost("all-gather-start.1", 90.0),
        )
    )
    use = overlap_of(measured, module, used=used).profile
    assert use is not None
    rows = {
        row.name: (row.profile_us, row.measured_us, row.error_us) for row in use.rows
    }
    assert rows["negate.2"] == pytest.approx((150, 50, -100))
    assert rows["all-gather-start.1"] == pytest.approx((90, 100, 10))
    assert rows["negate.3"][0] is None
    assert use.rows[0].name == "negate.2"
    assert use.covered == pytest.approx((60 + 50 + 100) / (60 + 50 + 100 + 80 + 50))
    assert use.off == pytest.approx((100 + 10) / (60 + 50 + 100))


def test_a_profile_of_the_run_itself_is_right(pax: MeasuredStep) -> None:
    assert pax.overlap is not None
    assert pax.overlap.profile is None
    assert pax.overlap.hideable_us + pax.overlap.stuck_us == pytest.approx(
        sum(item.transfer_exposed_us for item in pax.collectives)
    )
    assert pax.overlap.predicted.step_us == pytest.approx(
        pax.step_us - pax.idle_us["between steps"], rel=0.01
    )
