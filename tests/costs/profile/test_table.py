"""Which cost of a profile XLA finds for an instruction, and what filling gaps leaves of measured
costs.
"""

import random
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from same_work import estimated_once

from pgle.costs.profile.coverage import complete_profile, cover, estimate_profile
from pgle.costs.profile.lookup import LookupTable
from pgle.costs.profile.value import Cost, CostKind, Origin, Profile, effective_costs
from pgle.xla.hlo.dumps import read_module, read_modules
from pgle.xla.hlo.module import Computation, Instruction, Module, Shape
from pgle.xla.hlo.schedule_dump import find_schedule_dumps, read_schedule_dump
from pgle.xla.log.verdict import Bounds
from pgle.xla.targets import find_hardware

pytestmark = pytest.mark.usefixtures("same_estimates")


@pytest.fixture(scope="module")
def same_estimates() -> Iterator[None]:
    with estimated_once():
        yield


TESTDATA = Path(__file__).parents[3] / "testdata"
A100 = find_hardware("a100")
STEP = "pax_fsdp4/proc0/dump/module_0040.pjit__wrapped_step_fn.sm_8.0_gpu_after_optimizations.hlo.pb.xz"
PROGRAMS = [
    f"{version}/{run}"
    for version in ("jax-0.10.2", "jax-0.12.0.1")
    for run in ("async", "sync", "off", "collectives")
]


@cache
def program(name: str) -> tuple[Module, Module | None]:
    """The final module, and the module as LHS saw it where there is a dump."""
    if name == "pax":
        return read_module(TESTDATA / STEP), None
    (module,) = read_modules(TESTDATA / "hlo" / name)
    dumps = find_schedule_dumps(TESTDATA / "hlo" / name)
    return module, read_schedule_dump(
        dumps[module.name]
    ).module if module.name in dumps else None


def module(*entry: Instruction) -> Module:
    return Module(
        "m",
        1,
        "f" * 32,
        "e",
        {"e": Computation("e", entry, entry[-1].name)},
        True,
        num_partitions=4,
    )


def fusion(name: str, size: int = 8) -> Instruction:
    return Instruction(name, "fusion", Shape("f32", (size,)), "e", fusion_kind="kLoop")


def measured(name: str, chance: random.Random) -> Profile:
    """Some costs as measured: repeated names, rematerialized copies, names of this and of another
    fingerprint.
    """
    final, lhs = program(name)
    costs: list[Cost] = []
    for cost in estimate_profile(lhs or final, A100).costs:
        if chance.random() < 0.4:
            continue
        for spelling in chance.choice(
            [[""], [""], ["", ".remat"], ["", ""], [".remat", ".remat3"]]
        ):
            fingerprint = chance.choice(["", "", final.fingerprint, "0" * 32])
            value = chance.uniform(1, 1000)
            found = cost._replace(
                name=cost.name + spelling, cost_us=value, fingerprint=fingerprint
            )
            costs.append(found._replace(origin=Origin.MEASURED))
    if chance.random() < 0.5:
        costs = [cost for cost in costs if ".remat" not in cost.name]
    chance.shuffle(costs)
    return Profile(tuple(costs))


@pytest.mark.parametrize("name", [*PROGRAMS, "pax"])
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("with_dump", [False, True])
def test_completing_changes_no_measured_cost_of_any_module(
    name: str, seed: int, with_dump: bool
) -> None:
    profile = measured(name, random.Random(f"{name} {seed}"))
    final, lhs = program(name)
    done = complete_profile(
        profile, final, A100, lhs_module=lhs if with_dump else None
    ).profile
    for fingerprint in (final.fingerprint, "0" * 32, "1" * 32):
        before, after = (
            effective_costs(profile, fingerprint),
            effective_costs(done, fingerprint),
        )
        assert {key: after[key].cost_us for key in before} == {
            key: cost.cost_us for key, cost in before.items()
        }
    table = LookupTable(final, lhs)
    found = table.costs(profile)
    assert {
        key: cost.cost_us for key, cost in table.costs(done).items() if key in found
    } == {key: cost.cost_us for key, cost in found.items()}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_completed_profile_has_no_gap(name: str) -> None:
    final, lhs = program(name)
    if lhs is None:
        pytest.skip("LHS was off")
    rows = LookupTable(final, lhs).rows.values()
    some = tuple(Cost(row.filed_as, 7.0) for row in list(rows)[::5])
    done = complete_profile(Profile(some), final, A100, lhs_module=lhs).profile
    assert cover(done, [final], {final.name: lhs}).modules[0].gaps == ()


def test_converting_completes_for_the_module_as_lhs_saw_it() -> None:
    """The final module has copies of other names, which XLA never looks up."""
    final, lhs = program("jax-0.12.0.1/async")
    assert lhs is not None
    given = Profile((Cost("all-gather-start", 9.0),))
    done = complete_profile(given, final, A100, lhs_module=lhs).profile
    assert {cost.name for cost in done.costs} <= lhs.instructions.keys()
    assert (
        not {cost.name for cost in complete_profile(given, final, A100).profile.costs}
        <= lhs.instructions.keys()
    )


def test_a_rematerialized_copy_gets_no_cost_of_its_own() -> None:
    """Beside its original's XLA would average the two."""
    profile = Profile((Cost("a", 5.0),))
    done = complete_profile(
        profile, module(fusion("a"), fusion("a.remat", 1 << 20), fusion("b", 9)), A100
    ).profile
    assert [cost.name for cost in done.costs] == ["a", "b"]
    assert effective_costs(done)["a"].cost_us == 5


def test_a_bare_name_never_covers_that_of_another_module() -> None:
    profile = Profile((Cost("a", 5.0), Cost("b", 6.0, fingerprint="0" * 32)))
    done = complete_profile(profile, module(fusion("a"), fusion("b", 9)), A100).profile
    assert effective_costs(done, "0" * 32)["b"].cost_us == 6
    assert "b" in effective_costs(done, "f" * 32)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -5.0, 1e308])
def test_a_cost_that_is_no_time_is_a_gap_to_be_filled(value: float) -> None:
    done = complete_profile(
        Profile((Cost("a", 5.0), Cost("b", value))),
        module(fusion("a"), fusion("b")),
        A100,
    ).profile
    assert {cost.name: cost.cost_us for cost in done.costs} == {"a": 5.0, "b": 5.0}
    assert any(f"b ({value:g})" in line for line in done.warnings)


@pytest.mark.parametrize("name", [*PROGRAMS, "pax"])
def test_a_program_whose_collectives_all_lack_costs_fails(name: str) -> None:
    final, lhs = program(name)
    full = estimate_profile(lhs or final, A100)
    blind = replace(
        full,
        costs=tuple(
            cost for cost in full.costs if cost.kind is not CostKind.COLLECTIVE
        ),
    )
    assert len(blind) < len(full)
    assert not cover(blind, [final], {final.name: lhs}).is_ok(Bounds(0))


def test_the_collective_gate_is_a_share_of_the_step() -> None:
    """5 ms, which XLA takes a lost collective for, is 5 % of a step of 0.1 s, and 0.5 % of one of 1
    s.
    """
    start = Instruction("all-reduce-start", "all-reduce-start", Shape("f32", (8,)), "e")
    of = module(fusion("a"), start)
    assert not cover(Profile((Cost("a", 1e5),)), [of]).is_ok(Bounds(0))
    assert cover(Profile((Cost("a", 1e6),)), [of]).is_ok(Bounds(0))


def test_a_gap_weighs_what_it_costs_where_xla_takes_it_for_less() -> None:
    big = Instruction(
        "big", "fusion", Shape("f32", (1 << 28,)), "e", fusion_kind="kInput"
    )
    (gap,) = (
        cover(Profile((Cost("a", 5.0),)), [module(fusion("a"), big)]).modules[0].gaps
    )
    assert gap.assumed_us == 1 < gap.cost_us == gap.weight_us


def test_a_done_is_never_filled_in() -> None:
    final, lhs = program("jax-0.12.0.1/async")
    filled = complete_profile(
        Profile((Cost("all-gather-start", 9.0),)), final, A100, lhs_module=lhs
    ).filled
    assert not any("-done" in cost.name for cost in filled)


def test_an_asynchronous_fusion_is_filed_under_what_it_wraps() -> None:
    """Under the start's own name XLA takes a cost twice: as latency, and as time in which nothing
    else computes.
    """
    final, lhs = program("jax-0.12.0.1/async")
    table = LookupTable(final, lhs)
    row = table.rows["fusion-start"]
    assert row.accepted == ("fusion-start", row.filed_as)
    assert table.module.instructions[row.filed_as].opcode == "fusion"
