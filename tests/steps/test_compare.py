"""The comparison: verdicts, statistics against scipy, guards and the gate."""

import math

import numpy as np
import pytest
from scipy import stats

from pgle.errors import UserError
from pgle.steps.autocorrelation import autocorrelation_time, block_length, blocks
from pgle.steps.bootstrap import bootstrap_medians
from pgle.steps.compare import Assumptions, Comparison, Design, Side, Verdict, compare
from pgle.steps.gate import Limits, gate, parse_share
from pgle.steps.interval import of_pairs, of_runs, rank_test
from pgle.steps.series import Step, make_series
from pgle.steps.steady import steady


def run(level: float, seed: int, *, count: int = 200, noise: float = 0.01, loss: float = math.nan, **series: float):
    random = np.random.default_rng(seed)
    times = level * np.exp(noise * random.standard_normal(count))
    memory = series.pop("memory", math.nan)
    steps = [Step(i, t, loss, memory) for i, t in enumerate(times.tolist())]
    return steady(make_series("mem", "jsonl", steps, **series))


def side(*runs, label: str = "side") -> Side:
    return Side(label, tuple(runs))


def against(ratio: float, **options: float) -> Comparison:
    return compare(side(run(0.2, 1, **options)), side(run(0.2 * ratio, 2, **options)))


def test_two_percent_worse_is_slower() -> None:
    found = against(1.02)
    assert found.verdict is Verdict.SLOWER
    assert found.ci[0] < 1.02 < found.ci[1]


def test_two_percent_better_is_faster() -> None:
    assert against(0.98).verdict is Verdict.FASTER


def test_within_noise_is_never_faster_or_slower() -> None:
    assert against(1.003).verdict is Verdict.UNDECIDED
    assert against(0.998).verdict not in (Verdict.FASTER, Verdict.SLOWER)


def test_the_same_steps_are_the_same() -> None:
    one = side(run(0.2, 1))
    found = compare(one, one)
    assert (found.verdict, found.ratio, found.p) == (Verdict.SAME, 1.0, 1.0)


def test_equality_is_only_said_where_it_was_shown() -> None:
    assert against(1.0, count=30, noise=0.05).verdict is Verdict.UNDECIDED


def test_the_same_input_gives_the_same_interval() -> None:
    assert against(1.01).ci == against(1.01).ci


def test_dependent_steps_leave_it_undecided() -> None:
    walk = np.cumsum(np.random.default_rng(0).normal(0, 0.01, 60))
    steps = [Step(i, float(t)) for i, t in enumerate(0.2 * np.exp(walk))]
    walking = side(steady(make_series("walk", "jsonl", steps)))
    found = compare(walking, side(run(0.3, 1)))
    assert found.verdict is Verdict.UNDECIDED
    assert any("autocorrelation" in line for line in found.footnotes)


def test_one_run_per_side_assumes_noise_between_launches_and_says_so() -> None:
    found = against(1.003, noise=0.001)
    assert found.verdict is Verdict.UNDECIDED
    assert "0.15% of noise between launches" in found.footnotes[0]
    sure = compare(found.base, found.new, Assumptions(run_noise=0.0))
    assert sure.verdict is Verdict.SLOWER


def test_simulated_runs_assume_none_and_are_labelled() -> None:
    one, two = (side(run(level, 1, simulated=True)) for level in (0.2, 0.201))
    found = compare(one, two)
    assert found.assumptions.run_noise == 0
    assert found.footnotes[0].startswith("simulated")


def test_runs_are_the_unit_where_there_are_several() -> None:
    base = side(*(run(0.2 * level, seed) for seed, level in enumerate((1.0, 1.004, 0.997, 1.001))))
    new = side(*(run(0.2 * level, seed) for seed, level in enumerate((1.05, 1.052, 1.049, 1.055), 9)))
    found = compare(base, new)
    reference = stats.ttest_ind(new.log_medians, base.log_medians, equal_var=False).confidence_interval(0.95)
    assert found.design is Design.RUNS
    assert found.n == (4, 4)
    assert found.ci == pytest.approx((math.exp(reference.low), math.exp(reference.high)))


def test_pairs_take_what_both_have_in_common_out() -> None:
    levels = (1.0, 1.03, 0.97, 1.02, 0.99, 1.01)
    base = side(*(run(0.2 * level, seed, noise=0.001) for seed, level in enumerate(levels)))
    new = side(*(run(0.2 * level * 1.01, seed, noise=0.001) for seed, level in enumerate(levels, 20)))
    paired = compare(base, new, Assumptions(paired=True))
    assert paired.verdict is Verdict.SLOWER
    assert compare(base, new).verdict is Verdict.UNDECIDED


def test_pairs_agree_with_scipy() -> None:
    base, new = np.random.default_rng(0).normal(0, 1, (2, 7))
    found = of_pairs(base, new, alpha=0.05)
    reference = stats.ttest_rel(new, base).confidence_interval(0.95)
    assert found.difference - found.half_width == pytest.approx(reference.low)
    assert found.p == stats.wilcoxon(new - base).pvalue


def test_one_run_against_several_is_a_prediction_interval() -> None:
    base = np.array([1.0, 1.1, 0.9, 1.0])
    found = of_runs(base, np.array([1.05]), alpha=0.05)
    assert found.half_width == pytest.approx(stats.t.ppf(0.975, 3) * base.std(ddof=1) * math.sqrt(1 + 1 / 4))


def test_the_rank_test_is_exact_for_few() -> None:
    assert rank_test(np.array([1.0, 2, 3, 4]), np.array([5.0, 6, 7, 8])) == (pytest.approx(2 / 70), 2 / 70)


def test_too_few_runs_for_the_rank_test_is_said() -> None:
    base = side(*(run(0.2, seed) for seed in (1, 2, 3)))
    new = side(*(run(0.25, seed) for seed in (4, 5, 6)))
    found = compare(base, new)
    assert found.verdict is Verdict.SLOWER
    assert any("needs 4 runs per side" in line for line in found.footnotes)


def test_runs_that_drift_apart_widen_the_interval() -> None:
    times = 0.2 * np.exp(0.005 * np.random.default_rng(5).standard_normal(200) + np.linspace(0, 0.004, 200))
    drifting = steady(make_series("mem", "jsonl", [Step(i, t) for i, t in enumerate(times.tolist())]))
    found = compare(side(run(0.2, 1, noise=0.005)), side(drifting))
    assert found.verdict is Verdict.UNDECIDED
    assert any("drift apart" in line for line in found.footnotes)


def test_autocorrelation_time_of_a_first_order_process() -> None:
    random = np.random.default_rng(0)
    values = np.zeros(20_000)
    for i in range(1, len(values)):
        values[i] = 0.8 * values[i - 1] + random.standard_normal()
    assert autocorrelation_time(values) == pytest.approx((1 + 0.8) / (1 - 0.8), rel=0.15)
    assert autocorrelation_time(random.standard_normal(20_000)) == pytest.approx(1, abs=0.1)


def test_blocks_leave_the_rest_out_at_the_start() -> None:
    assert blocks(np.array([9.0, 1, 2, 3, 4, 5, 6]), 3).tolist() == [2.0, 5.0]
    assert block_length(np.ones(100)) == 10


def test_bootstrap_error_of_a_median_is_that_of_theory() -> None:
    """The median of n normal values has the standard error sqrt(pi / 2 n)."""
    errors = [bootstrap_medians(np.random.default_rng(seed).standard_normal(400), 1).std() for seed in range(20)]
    assert np.mean(errors) == pytest.approx(math.sqrt(math.pi / 2 / 400), rel=0.12)


def test_a_trace_is_not_compared_with_a_log() -> None:
    trace = steady(make_series("t", "trace", [Step(i, 1.0) for i in range(20)]))
    with pytest.raises(UserError, match="profiler trace"):
        compare(side(trace), side(run(1, 1)))


def test_no_steady_steps_says_what_was_left_out() -> None:
    empty = steady(make_series("log", "jsonl", []))
    with pytest.raises(UserError, match="no steady step"):
        compare(side(empty), side(run(1, 1)))


def checks(found: Comparison, **limits) -> dict[str, bool]:
    return {check.name: check.ok for check in gate(found, Limits(**limits))}


def test_the_gate_fails_two_percent_and_passes_a_third_of_one_in_noise() -> None:
    assert checks(against(1.02), fail_slower=0.01) == {"step time": False}
    assert checks(against(1.003), fail_slower=0.01) == {"step time": True}


def test_a_slowdown_of_the_bound_itself_fails() -> None:
    assert checks(against(1.02), fail_slower=0.02) == {"step time": False}


def test_a_slowdown_below_the_bound_whose_interval_reaches_it_fails_and_says_so() -> None:
    step_time = gate(against(1.019), Limits(fail_slower=0.02))[0]
    assert not step_time.ok
    assert "the bound is 2.00%, which the interval reaches" in step_time.message


def test_a_slowdown_shown_to_be_within_the_bound_passes() -> None:
    assert checks(against(1.01, noise=0.003), fail_slower=0.02) == {"step time": True}


def test_a_comparison_that_cannot_see_the_bound_says_so_and_can_fail() -> None:
    found = against(1.0, count=30, noise=0.05)
    assert "is not ruled out" in gate(found, Limits(fail_slower=0.01))[0].message
    assert checks(found, fail_slower=0.01, fail_undecided=True) == {"step time": False}


def test_require_faster() -> None:
    assert checks(against(1.0), require_faster=True) == {"step time": False}
    assert checks(against(0.98), require_faster=True) == {"step time": True}


def guarded(new_loss: float = 2.0, new_memory: float = 100.0, new_compile: float = 10.0) -> Comparison:
    base = run(0.2, 1, loss=2.0, memory=100.0, compile_time_s=10.0)
    new = run(0.2, 2, loss=new_loss, memory=new_memory, compile_time_s=new_compile)
    return compare(side(base), side(new))


LIMITS = {"max_loss_change": 0.01, "max_memory_growth": 0.05, "max_compile_growth": 0.5}


def test_guards_within_their_bands() -> None:
    assert all(checks(guarded(2.01, 104, 14), **LIMITS).values())


@pytest.mark.parametrize(
    ("name", "values"), [("loss", (2.1,)), ("loss", (1.9,)), ("peak memory", (2, 106)), ("compile time", (2, 100, 16))]
)
def test_guards_outside_their_bands(name: str, values: tuple[float, ...]) -> None:
    assert [key for key, ok in checks(guarded(*values), **LIMITS).items() if not ok] == [name]


def test_a_loss_that_is_not_finite_always_fails() -> None:
    assert checks(guarded(math.inf)) == {"step time": True, "loss": False}


def test_a_guard_without_data_fails_where_it_was_asked_for() -> None:
    assert checks(against(1.0), max_memory_growth=0.05) == {"step time": True, "peak memory": False}


@pytest.mark.parametrize(("text", "share"), [("2%", 0.02), ("0.5 %", 0.005), ("0.02", 0.02), ("0", 0.0), ("150%", 1.5)])
def test_shares(text: str, share: float) -> None:
    assert parse_share(text, "--x") == pytest.approx(share)


@pytest.mark.parametrize("text", ["2", "fast", "-1%", "nan", "inf%"])
def test_what_is_no_share(text: str) -> None:
    with pytest.raises(UserError, match="is not a share; write"):
        parse_share(text, "--x")


def test_sides_in_other_units_are_refused_both_ways() -> None:
    seconds, milliseconds = side(run(0.2, 1)), side(run(200, 2))
    for sides in ((seconds, milliseconds), (milliseconds, seconds)):
        with pytest.raises(UserError, match=r"factor of .*other units"):
            compare(*sides)


def test_runs_of_one_side_in_other_units_are_refused() -> None:
    with pytest.raises(UserError, match="other units"):
        compare(side(run(0.2, 1), run(200, 2)), side(run(0.2, 3), run(0.2, 4)))


def test_a_job_that_ended_after_its_compile_is_not_of_another_unit() -> None:
    check = gate(compare(side(run(0.2, 1)), side(run(60, 2, count=1))), Limits(fail_slower=0.02))[0]
    assert not check.ok
    assert "did the run end early" in check.message


def test_times_printed_with_few_digits_have_an_interval() -> None:
    times = np.full(60, 1.235)
    times[[7, 30, 52]] = 1.236
    one = side(steady(make_series("m", "maxtext", [Step(i, t) for i, t in enumerate(times.tolist())])))
    found = compare(one, one)
    assert found.verdict is Verdict.SAME


def lossy(losses: list[float]) -> Side:
    return side(steady(make_series("m", "jsonl", [Step(i, 0.2, loss) for i, loss in enumerate(losses)])))


@pytest.mark.parametrize("base", [[2.0] * 20, [math.nan] * 20, [2.0] * 15 + [math.inf] * 5, [2.0] * 10])
def test_a_loss_of_new_that_breaks_fails_whatever_base_recorded(base: list[float]) -> None:
    found = compare(lossy(base), lossy([2.0] * 15 + [math.inf] * 5))
    check = gate(found, Limits())[-1]
    assert (check.name, check.ok) == ("loss", False)
    assert "not a finite number in step 15" in check.message
