"""Filling gaps: small modules by hand, and a real profile half of which is hidden and guessed
again.
"""

import random
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from statistics import median

import pytest
from simulated import simulate

from pgle.costs.measure.measured import aggregate, find_programs
from pgle.costs.profile.coverage import complete_profile, cover
from pgle.costs.profile.files import read_profile
from pgle.costs.profile.value import Cost, CostKind, Origin, Profile
from pgle.errors import UserError
from pgle.requests.profiles import Complete
from pgle.run.coverage import complete_file
from pgle.trace.nsys.read import read_nsys
from pgle.xla.hlo.dumps import read_module
from pgle.xla.hlo.module import Computation, Instruction, Module, Shape
from pgle.xla.targets import find_hardware

A100 = find_hardware("a100")
pytestmark = pytest.mark.usefixtures("read_once")

DATA = Path(__file__).parents[3] / "testdata" / "pax_fsdp4"
DUMP = next((DATA / "proc0" / "dump").glob("module_0040*after_optimizations*"))


def fusion(name: str, size: int, computation: str = "e") -> Instruction:
    return Instruction(
        name, "fusion", Shape("f32", (size,)), computation, fusion_kind="kLoop"
    )


def module(*entry: Instruction, **bodies: tuple[Instruction, ...]) -> Module:
    named = {"e": entry, **bodies}
    computations = {
        name: Computation(name, items, items[-1].name) for name, items in named.items()
    }
    return Module("m", 1, "", "e", computations, True, num_partitions=4)


def filled(of: Module, **costs: float) -> dict[str, Cost]:
    profile = Profile(tuple(Cost(name, value) for name, value in costs.items()))
    return {cost.name: cost for cost in complete_profile(profile, of, A100).filled}


def test_an_instruction_of_the_same_shape_lends_its_cost() -> None:
    found = filled(module(fusion("a", 8), fusion("b", 8), fusion("c", 8)), a=3.0, b=5.0)
    assert list(found) == ["c"]
    assert (found["c"].cost_us, found["c"].origin) == (4.0, Origin.SAME_SHAPE)


def test_another_shape_is_estimated_and_scaled_by_what_was_measured() -> None:
    of = module(*(fusion(f"k{i}", 1 << 24) for i in range(3)), fusion("big", 1 << 26))
    plain = filled(of)["big"].cost_us
    measured = {f"k{i}": 2 * filled(of)["k0"].cost_us for i in range(3)}
    found = filled(of, **measured)["big"]
    assert found.origin is Origin.ESTIMATED
    assert found.cost_us == pytest.approx(2 * plain)


def test_nothing_measured_is_changed() -> None:
    given = Profile((Cost("a", 3.0), Cost("unknown", 7.0)))
    found = complete_profile(given, module(fusion("a", 8), fusion("b", 9)), A100)
    assert found.profile.costs[:2] == given.costs
    assert (found.wanted, found.measured) == (2, 1)


def test_a_cost_of_another_shape_is_replaced_like_a_gap() -> None:
    of = module(fusion("a", 8), fusion("b", 8))
    mine = Cost("a", 3.0, opcode="fusion", shape="f32[8]")
    other = Cost("b", 99.0, opcode="fusion", shape="f32[4]")
    found = complete_profile(Profile((mine, other)), of, A100)
    costs = [(cost.name, cost.cost_us) for cost in found.profile.costs]
    assert costs == [("a", 3.0), ("b", 3.0)]
    assert (found.wanted, found.measured) == (2, 1)
    assert "pgle carry" in found.warnings[0]
    assert not cover(found.profile, [of]).modules[0].gaps


def test_a_collective_is_filed_under_the_name_it_had_when_lhs_ran() -> None:
    plain = Instruction(
        "psum.14",
        "all-reduce",
        Shape("f32", (8,)),
        "e",
        scheduling_name="all-reduce-start",
    )
    assert list(filled(module(plain))) == ["all-reduce-start"]
    assert filled(module(plain), **{"all-reduce-start": 5.0}) == {}


def test_a_loop_costs_its_trips_times_its_body() -> None:
    config = '{"known_trip_count":{"n":"10"}}'
    loop = Instruction(
        "w", "while", Shape("f32", (8,)), "e", called=("b",), backend_config=config
    )
    found = filled(
        module(loop, b=(fusion("x", 8, "b"), fusion("y", 9, "b"))), x=3.0, y=4.0
    )
    assert (found["w"].cost_us, found["w"].kind) == (70.0, CostKind.LOOP)


def test_a_profile_with_fingerprint_names_is_completed_with_such() -> None:
    of = replace(module(fusion("a", 8), fusion("b", 8)), fingerprint="f" * 32)
    found = complete_profile(Profile((Cost("a", 3.0, fingerprint="f" * 32),)), of, A100)
    assert found.profile.costs[-1].full_name == f"{'f' * 32}::b"


def test_provenance_says_what_was_filled() -> None:
    found = complete_profile(
        Profile((Cost("a", 3.0),)), module(fusion("a", 8), fusion("b", 8)), A100
    ).profile
    notes = found.provenance["completed"]
    assert isinstance(notes, list)
    assert notes[0]["filled"] == {"same-shape": 1, "estimated": 0}


@cache
def real() -> tuple[Module, tuple[Cost, ...]]:
    of, trace = read_module(DUMP), read_nsys(DATA / "proc0.sqlite")
    return of, aggregate(trace, [find_programs(trace, [of])[0]])[0].costs


def hide(keep: Callable[[Cost], bool]) -> tuple[Profile, dict[str, float]]:
    costs = real()[1]
    kept = tuple(cost for cost in costs if keep(cost))
    return Profile(kept), {
        cost.name: cost.cost_us for cost in costs if cost not in kept
    }


def test_half_of_a_real_profile_is_guessed_within_five_per_cent_where_a_twin_was_measured() -> (
    None
):
    chance = random.Random(0)
    profile, hidden = hide(lambda cost: chance.random() < 0.5)
    found = complete_profile(profile, real()[0], A100)
    twins = [
        cost
        for cost in found.filled
        if cost.origin is Origin.SAME_SHAPE and cost.name in hidden
    ]
    ratios = [cost.cost_us / hidden[cost.name] for cost in twins]
    assert len(ratios) > 0.9 * len(hidden)
    assert median(abs(ratio - 1) for ratio in ratios) < 0.05


def test_kinds_without_a_measurement_are_estimated_within_a_factor_of_two() -> None:
    profile, hidden = hide(lambda cost: cost.opcode != "custom-call")
    found = complete_profile(profile, real()[0], A100)
    ratios = [
        cost.cost_us / hidden[cost.name] for cost in found.filled if cost.name in hidden
    ]
    assert {cost.origin for cost in found.filled} == {Origin.ESTIMATED}
    assert 0.5 < median(ratios) < 2


def test_a_completed_profile_predicts_the_real_step_again() -> None:
    chance = random.Random(1)
    profile, _ = hide(
        lambda cost: cost.kind == CostKind.COLLECTIVE or chance.random() < 0.5
    )
    of, costs = real()
    whole = simulate(of, {cost.name: cost for cost in costs}).step_us
    half = simulate(of, {cost.name: cost for cost in profile.costs}).step_us
    full = simulate(
        of,
        {cost.name: cost for cost in complete_profile(profile, of, A100).profile.costs},
    ).step_us
    assert half < 0.75 * whole  # with gaps that take no time, a quarter is missing
    assert full == pytest.approx(whole, rel=0.02)


def test_the_command_writes_a_profile_whose_sidecar_marks_what_was_filled(
    tmp_path: Path,
) -> None:
    given = tmp_path / "half.pbtxt"
    given.write_text(
        "".join(
            f'costs {{ name: "{c.name}" cost_us: {c.cost_us} }}\n'
            for c in real()[1][::2]
        )
    )
    full = tmp_path / "full.pbtxt"
    asked = Complete(given, hlo=[DUMP], output=full, target="a100")
    completions, _, _ = complete_file(asked)
    written = read_profile(tmp_path / "full.pbtxt")
    assert len(written) == completions[0].wanted
    assert {cost.origin for cost in written.costs[-100:]} <= {
        Origin.SAME_SHAPE,
        Origin.ESTIMATED,
    }


def test_a_profile_of_another_program_is_refused(tmp_path: Path) -> None:
    given = tmp_path / "other.pbtxt"
    given.write_text('costs { name: "nothing.here" cost_us: 1 }\n')
    with pytest.raises(UserError, match="no cost of any instruction"):
        full = tmp_path / "full.pbtxt"
        complete_file(Complete(given, hlo=[DUMP], output=full, target="a100"))
    assert not (tmp_path / "full.pbtxt").exists()
