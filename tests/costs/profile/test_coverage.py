"""How well a profile fits a module: the real step, and dumps of two generations of XLA."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from same_work import estimated_once

from pgle.costs.profile.coverage import (
    Coverage,
    ModuleCoverage,
    cover,
    estimate_profile,
)
from pgle.costs.profile.files import read_profile
from pgle.costs.profile.value import Cost, Origin, Profile
from pgle.errors import UserError
from pgle.xla.hlo.dumps import read_module, read_modules
from pgle.xla.hlo.module import Module
from pgle.xla.log.verdict import Bounds
from pgle.xla.targets import find_hardware

pytestmark = pytest.mark.usefixtures("read_once")


@pytest.fixture(scope="module", autouse=True)
def same_estimates() -> Iterator[None]:
    with estimated_once():
        yield


TESTDATA = Path(__file__).parents[3] / "testdata"
STEP = (
    TESTDATA
    / "pax_fsdp4/proc0/dump/module_0040.pjit__wrapped_step_fn.sm_8.0_gpu_after_optimizations.hlo.pb.xz"
)
VERSIONS = ["jax-0.10.2", "jax-0.12.0.1"]


@pytest.fixture(scope="module")
def step() -> Module:
    return read_module(STEP)


@pytest.fixture(scope="module")
def full(step: Module) -> Profile:
    """Estimates that count as measured."""
    profile = estimate_profile(step, find_hardware("a100-40gb"))
    return replace(
        profile,
        costs=tuple(cost._replace(origin=Origin.MEASURED) for cost in profile.costs),
    )


def without(profile: Profile, *names: str) -> Profile:
    return replace(
        profile, costs=tuple(cost for cost in profile.costs if cost.name not in names)
    )


def main_of(coverage: Coverage) -> ModuleCoverage:
    return coverage.modules[0]


def test_a_complete_profile_covers_everything(step: Module, full: Profile) -> None:
    found = main_of(cover(full, [step]))
    assert (found.count.value, found.time.value, found.collectives.value) == (1, 1, 1)
    assert (found.count.total, found.collectives.total) == (2513, 23)
    assert found.gaps == ()


def test_a_gap_weighs_what_its_neighbours_of_the_same_shape_cost(
    step: Module, full: Profile
) -> None:
    costs = {cost.name: cost for cost in full.costs}
    gone = "custom-call.176.0"
    (gap,) = main_of(cover(without(full, gone), [step])).gaps
    assert (gap.name, gap.basis) == (gone, Origin.SAME_SHAPE)
    assert gap.cost_us == pytest.approx(costs[gone].cost_us)


@pytest.mark.parametrize(
    ("factor", "is_implausible"),
    [(29, False), (31, True), (1 / 29, False), (1 / 31, True)],
)
def test_a_cost_of_something_else_is_told_by_the_estimate(
    step: Module, full: Profile, factor: float, is_implausible: bool
) -> None:
    name = "custom-call.219.0"  # 2.8 of 170 ms, estimated
    changed = tuple(
        cost._replace(cost_us=cost.cost_us * factor) if cost.name == name else cost
        for cost in full.costs
    )
    found = cover(replace(full, costs=changed), [step])
    assert [item.name for item in main_of(found).implausible] == (
        [name] if is_implausible else []
    )


HLO = """HloModule jit_step, is_scheduled=true

add {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT sum = f32[] add(a, b)
}

ENTRY main {
  table = f32[4096,128] parameter(0)
  places = s32[100000,1] parameter(1)
  rows = f32[100000,128] parameter(2)
  ROOT OPERATION
}
"""
SCATTER = """it = f32[4096,128] scatter(table, places, rows), update_window_dims={1}, inserted_window_dims={0}, \
scatter_dims_to_operand_dims={0}, index_vector_dim=1, to_apply=add"""


@pytest.mark.parametrize(
    ("operation", "is_implausible"),
    [
        (SCATTER, False),  # as long as rows repeat
        (
            'it = f32[4096,128] custom-call(table), custom_call_target="my_kernel"',
            False,
        ),  # anything
        ("it = f32[4096,128] negate(table)", True),
    ],
)
def test_a_cost_that_data_decides_or_nobody_knows_may_be_large(
    tmp_path: Path, operation: str, is_implausible: bool
) -> None:
    (tmp_path / "step.txt").write_text(HLO.replace("OPERATION", operation))
    found = main_of(
        cover(Profile((Cost("it", 3000.0),)), [read_module(tmp_path / "step.txt")])
    )
    assert (found.count.value, bool(found.implausible)) == (1, is_implausible)


def test_time_coverage_counts_loops_by_their_trips() -> None:
    (module,) = read_modules(TESTDATA / "hlo/jax-0.12.0.1/async")
    profile = estimate_profile(module, find_hardware("a100-40gb"))
    cost = next(
        cost for cost in profile.costs if cost.name == "gemm_fusion_dot.3"
    )  # in a loop of four
    (gap,) = main_of(cover(without(profile, cost.name), [module])).gaps
    assert gap.total_us == pytest.approx(4 * cost.cost_us)


def test_estimates_of_gaps_are_scaled_to_the_profile(
    step: Module, full: Profile
) -> None:
    tenfold = replace(
        full,
        costs=tuple(cost._replace(cost_us=10 * cost.cost_us) for cost in full.costs),
    )
    costs = {cost.name: cost for cost in tenfold.costs}
    found = main_of(cover(without(tenfold, "all-gather-start.7"), [step]))
    (gap,) = found.gaps
    assert gap.basis == Origin.ESTIMATED
    assert gap.cost_us == pytest.approx(costs["all-gather-start.7"].cost_us)


def test_xla_takes_a_lost_collective_for_five_milliseconds(
    step: Module, full: Profile
) -> None:
    found = main_of(cover(without(full, "all-gather-start.7"), [step]))
    assert found.fallback == "T-shirt sizes"
    assert found.gaps[0].assumed_us == 5000
    assert found.collectives.value == pytest.approx(22 / 23)


def test_the_wrapped_name_covers_a_generic_start(step: Module, full: Profile) -> None:
    renamed = tuple(
        cost._replace(name="reduce-scatter.131")
        if cost.name == "reduce-scatter-start"
        else cost
        for cost in full.costs
    )
    assert main_of(cover(Profile(renamed), [step])).count.value == 1


def test_a_name_of_another_shape_is_a_mismatch_and_no_coverage(
    step: Module, full: Profile
) -> None:
    costs = tuple(
        cost._replace(shape="f32[7]") if cost.name == "all-gather-start.7" else cost
        for cost in full.costs
    )
    found = main_of(cover(Profile(costs), [step]))
    assert (found.mismatched, found.gaps[0].name, found.gaps[0].is_mismatch) == (
        1,
        "all-gather-start.7",
        True,
    )
    assert found.gaps[0].hint == "a cost of all-gather f32[7]"
    assert found.collectives.covered == 22


def test_names_without_opcode_and_shape_may_match_by_accident(step: Module) -> None:
    profile = read_profile(TESTDATA / "maxtext_pgle/llama2_70b_bf16_pgle_128vm.pbtxt")
    coverage = cover(profile, [step])
    found = main_of(coverage)
    assert found.unchecked == found.count.covered == 322
    assert any("by accident" in line for line in coverage.warnings)
    assert (found.count.value or 1) < 0.2
    assert any("pgle profile" in str(hint) for hint in found.hints)


def test_filled_in_costs_are_counted_apart(step: Module, full: Profile) -> None:
    estimated = replace(
        full, costs=tuple(cost._replace(origin=Origin.ESTIMATED) for cost in full.costs)
    )
    assert main_of(cover(estimated, [step])).filled_in == 2513
    assert main_of(cover(full, [step])).filled_in == 0


def test_filling_gaps_is_a_remedy_only_if_enough_is_measured_then(
    step: Module, full: Profile
) -> None:
    estimated = tuple(cost._replace(origin=Origin.ESTIMATED) for cost in full.costs)
    for costs, remedy in ((full.costs, "pgle complete"), (estimated, "pgle profile")):
        half = without(Profile(costs), "input_reduce_fusion.1")
        (hint,) = main_of(cover(half, [step])).remedies(Bounds())
        assert remedy in str(hint)


def test_fingerprint_names_count_for_their_module_only(
    step: Module, full: Profile
) -> None:
    def under(fingerprint: str) -> ModuleCoverage:
        costs = tuple(cost._replace(fingerprint=fingerprint) for cost in full.costs)
        return main_of(cover(Profile(costs), [step]))

    assert under(step.fingerprint).count.value == 1
    other = under("0" * 32)
    assert (other.count.covered, other.is_of_others) == (0, True)
    assert any("another module's fingerprint" in str(hint) for hint in other.hints)


def test_costs_that_no_module_takes_are_unused(step: Module, full: Profile) -> None:
    inner = step.computations[
        next(item.called[0] for item in step.walk() if item.opcode == "fusion")
    ].root
    extra = [
        Cost("all-gather-done.7", 1.0),
        Cost(inner, 1.0),
        Cost("no.such.name", 1.0),
        Cost("all-gather-start.7", 1.0, fingerprint="0" * 32),
    ]
    coverage = cover(replace(full, costs=(*full.costs, *extra)), [step])
    assert [cost.full_name for cost in coverage.unused] == [
        cost.full_name for cost in extra
    ]


def test_processes_that_compiled_differently_must_all_be_covered(full: Profile) -> None:
    modules = [
        module
        for module in read_modules(TESTDATA / "pax_fsdp4")
        if module.program_id == 40
    ]
    mine = replace(
        full,
        costs=tuple(
            cost._replace(fingerprint=modules[0].fingerprint) for cost in full.costs
        ),
    )
    assert cover(full, modules).is_ok(Bounds(1.0))
    assert not cover(mine, modules).is_ok(Bounds(0.5))


def test_another_compilation_of_the_same_name_is_another_module(
    step: Module, full: Profile
) -> None:
    other = read_module(
        STEP.with_name("module_0001.jit__psum.sm_8.0_gpu_after_optimizations.hlo.pb.xz")
    )
    coverage = cover(full, [replace(other, name=step.name), step])
    assert [item.program_id for item in coverage.modules if item.is_main] == [40]
    assert coverage.is_ok(Bounds(1.0))


def test_nothing_to_compare_with_is_a_user_error(full: Profile) -> None:
    with pytest.raises(UserError, match="no HLO module"):
        cover(full, [])


def recorded(version: str, run: str) -> Module:
    (module,) = read_modules(TESTDATA / "hlo" / version / run)
    return module


def lhs(version: str) -> dict[str, Module]:
    return {
        "jit_step": read_module(
            TESTDATA / "hlo" / version / "async/jit_step.schedule.pb.xz"
        )
    }


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("with_dump", [False, True])
def test_scheduling_names_of_a_sync_profile_run_cover_the_performance_run(
    version: str, with_dump: bool
) -> None:
    profile = estimate_profile(recorded(version, "sync"), find_hardware("a100-40gb"))
    found = main_of(
        cover(profile, [recorded(version, "async")], lhs(version) if with_dump else {})
    )
    assert found.against == ("schedule dump" if with_dump else "scheduling names")
    assert (found.collectives.value, found.gaps) == (1, ())


def test_a_profile_run_without_lhs_loses_every_collective_of_newer_xla() -> None:
    """In 0.12 collectives that stayed synchronous have new names, and without LHS no scheduling
    name.
    """
    profile = estimate_profile(
        recorded("jax-0.12.0.1", "off"), find_hardware("a100-40gb")
    )
    found = main_of(
        cover(profile, [recorded("jax-0.12.0.1", "async")], lhs("jax-0.12.0.1"))
    )
    assert (found.collectives.covered, found.collectives.total) == (0, 10)
    assert len(found.gaps) == 10


@pytest.mark.parametrize("version", VERSIONS)
def test_gaps_are_among_the_names_that_xla_logs_as_missing(version: str) -> None:
    said = json.loads((TESTDATA / "hlo" / version / "checker.json").read_text())
    assert len(said) >= 12
    for line in said:
        given = Profile(tuple(Cost(name, 1.0) for name in line["names"]))
        gaps = {
            gap.name
            for gap in main_of(
                cover(given, [recorded(version, "async")], lhs(version))
            ).gaps
        }
        others = set(line["missing"]) - gaps
        assert gaps <= set(line["missing"])
        assert all(
            "-done" in name or "-start" in name or "compare" in name for name in others
        ), others


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("with_dump", [False, True])
def test_a_condition_that_no_schedule_asks_for_is_no_gap(
    version: str, with_dump: bool
) -> None:
    module = recorded(version, "async")
    lhs_modules = lhs(version) if with_dump else {}
    profile = estimate_profile(module, find_hardware("a100-40gb"))
    bare = without(profile, "loop_compare_fusion", "loop_compare_fusion.1")
    all_of_it, rest = (
        main_of(cover(profile, [module], lhs_modules)),
        main_of(cover(bare, [module], lhs_modules)),
    )
    assert rest.gaps == ()
    assert rest.count.total == all_of_it.count.total - 2


def test_renamed_collectives_without_scheduling_names_are_pointed_out() -> None:
    module = recorded("jax-0.12.0.1", "off")
    profile = estimate_profile(
        recorded("jax-0.12.0.1", "sync"), find_hardware("a100-40gb")
    )
    found = main_of(cover(profile, [module]))
    (hint,) = [hint for hint in found.hints if "renamed after scheduling" in str(hint)]
    assert "give its schedule dump in --hlo too" in str(hint)
    assert found.collectives.covered == 0
    assert {gap.assumed_us for gap in found.gaps if gap.kind == "collective"} == {5000}
