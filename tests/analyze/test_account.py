"""A measured step as an account: findings become opportunities, each in one place."""

from dataclasses import replace

import pytest

from pgle.account.scheduled import account_of_schedule
from pgle.account.value import OpportunityKind
from pgle.analyze.account import account_of_trace
from pgle.analyze.analysis import measure_step
from pgle.analyze.findings import StepFinding
from pgle.analyze.rules import RULES, find_findings
from pgle.costs.measure.contention import LaunchGaps
from pgle.costs.measure.measured import aggregate, find_programs
from pgle.report.account import headline, note
from pgle.schedule.predict import predict
from pgle.schedule.record import repeated as timeline_repeated
from pgle.trace.table import ActivityKind
from pgle.xla.hlo.dumps import read_scheduled
from pgle.xla.targets import TABLE
from tests.analyze.conftest import ROOT, SIDE, Run, repeated


def test_every_finding_is_an_opportunity_or_of_the_schedule_or_of_the_recording() -> (
    None
):
    of_schedule = {"synchronous-collective", "exposed-communication"}
    of_recording = {"other-work", "untimed-records", "window"}
    others = {rule.id for rule in RULES.values() if rule.kind is None}
    assert others == of_schedule | of_recording


def test_without_hlo_a_named_scatter_leads_before_a_smaller_sure_saving(
    measured,
) -> None:
    step = measured(
        repeated(
            Run("loop_add_fusion", 0, 300),
            Run("input_scatter_fusion", 300, 400),
            every=1000,
        )
    )
    found = account_of_trace(step, find_findings(step))
    assert found.lever is not None and found.lever.kind is OpportunityKind.INPUT
    assert found.needs_module
    words = headline(found)[0]
    assert words == (
        "Give the program's HLO: 40.0 % of the step is scatters, and only HLO prices an edit"
    )


def test_without_hlo_a_large_pause_leads_before_compute_that_no_name_points_to(
    measured,
) -> None:
    step = measured(repeated(Run("loop_add_fusion", 0, 700), every=1000))
    found = account_of_trace(step, find_findings(step))
    assert not found.needs_module
    assert headline(found)[0].startswith(
        "Keep the GPU busy between steps: saves 30.0 %"
    )
    assert "70.0 % of the step is compute" in note(found)


def test_without_hlo_compute_leads_before_a_small_pause(measured) -> None:
    step = measured(repeated(Run("loop_add_fusion", 0, 970), every=1000))
    found = account_of_trace(step, find_findings(step))
    assert "97.0 % of the step is compute" in headline(found)[0]


def test_without_hlo_copies_lead_if_they_save_most(measured) -> None:
    step = measured(
        repeated(
            Run("loop_add_fusion", 0, 700),
            Run("copy-start.1", 700, 250, SIDE, ActivityKind.MEMCPY),
            every=1000,
        )
    )
    found = account_of_trace(step, find_findings(step))
    assert headline(found)[0].startswith("Hide or avoid exposed copies: saves 25.0 %")


def test_softmax_kernels_are_named_with_what_they_may_be(measured) -> None:
    step = measured(repeated(Run("triton_softmax.3.0", 0, 600), every=1000))
    unread = account_of_trace(step, find_findings(step)).unread
    assert unread is not None and unread.what.startswith("softmax kernels (attention")


def test_the_gain_of_a_type_is_only_bounded_if_the_gpu_is_unknown(measured) -> None:
    trace = repeated(Run("cublas-gemm.1", 0, 900), every=1000)
    kernels = {("jit_step", "cublas-gemm.1"): frozenset({"ampere_sgemm_128x64_tn"})}
    step = measured(replace(trace, kernels=kernels))
    found = account_of_trace(step, find_findings(step)).opportunities
    precision = next(item for item in found if item.kind is OpportunityKind.PRECISION)
    assert precision.expected_us is None


@pytest.mark.parametrize("begin_us", [0.0, 50.0])
def test_a_schedule_and_its_trace_have_the_same_bounds(begin_us: float) -> None:
    (module,) = read_scheduled(ROOT / "testdata/hlo/jax-0.10.2/async")
    gpu = TABLE["a100-40gb"]
    launch = LaunchGaps(begin_us=begin_us)  # a wait that no order of launches hides
    prediction = predict(module, None, gpu, launch=launch, expand_loops=True)
    scheduled = account_of_schedule(module, prediction, gpu)
    trace = timeline_repeated(module, prediction.timeline)
    program = find_programs(trace, [module])[0]
    step = measure_step(trace, aggregate(trace, [program])[0], gpu)
    traced = account_of_trace(step, ())
    assert scheduled.contention is not None and traced.contention is not None
    # shares of time next to collectives are kept with four digits
    assert traced.contention.us == pytest.approx(scheduled.contention.us, rel=1e-3)
    assert traced.bounds.without_communication_us == pytest.approx(
        scheduled.bounds.without_communication_us, rel=1e-4
    )
    assert traced.bounds.best_order_us == pytest.approx(
        scheduled.bounds.best_order_us, rel=1e-4
    )


def test_what_a_lever_prices_from_hlo_is_no_finding_in_the_account() -> None:
    (module,) = read_scheduled(ROOT / "testdata/hlo/jax-0.10.2/async")
    gpu = TABLE["a100-40gb"]
    prediction = predict(module, None, gpu, expand_loops=True)
    trace = timeline_repeated(module, prediction.timeline)
    program = find_programs(trace, [module])[0]
    step = measure_step(trace, aggregate(trace, [program])[0], gpu)
    again = StepFinding(
        id="needless-rematerialisation",
        title="",
        todo="Recompute less",
        share=0.1,
        reached=0.1,
        lost_us=0.1 * step.step_us,
        number="",
        evidence=(),
        remedy="",
        unclaimed="",
    )
    kinds = {item.kind for item in account_of_trace(step, [again]).opportunities}
    assert OpportunityKind.REMAT not in kinds
