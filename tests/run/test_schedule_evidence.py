"""Schedule dumps held against profiles, on schedules small enough to read."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from pgle.costs.profile.coverage import cover, estimate_profile
from pgle.costs.profile.lookup import LookupTable
from pgle.run.schedule_evidence import compare, schedule_evidence
from pgle.xla.async_pairs import AsyncPair
from pgle.xla.hlo.dumps import read_modules
from pgle.xla.hlo.module import Module
from pgle.xla.hlo.schedule_dump import (
    ComputationSchedule,
    Latency,
    LhsSchedule,
    Slot,
    read_schedule_dump,
)
from pgle.xla.log.verdict import BOUNDS, ScheduleEvidence
from pgle.xla.targets import find_hardware


def evidence(
    costs: dict[str, float], *, exposed: float = 69.0, start: float = 1.0
) -> ScheduleEvidence:
    """An all-gather of 100 µs beside a matmul that ends `exposed` µs before it, and a tuple."""
    end = 100 - exposed
    slots = {
        "all-gather-start": Slot(0, start),
        "gemm": Slot(start, end),
        "tuple": Slot(end, end),
        "all-gather-done": Slot(100, 101),
    }
    module = Module("jit_step", 1, "", "main", {}, True)
    pair = _pair("all-gather-start", "all-gather-done")
    schedule = LhsSchedule(
        module,
        {"main": ComputationSchedule(slots)},
        {"all-gather-start": Latency(pair, 100)},
    )
    return schedule_evidence(schedule, costs)


def _pair(start: str, done: str) -> AsyncPair:
    from dataclasses import fields

    given = {"start": start, "done": done, "computation": "main"}
    return AsyncPair(
        **{field.name: given.get(field.name, "") for field in fields(AsyncPair)}
    )  # type: ignore[arg-type]


def test_an_instruction_occupies_its_cost() -> None:
    assert (evidence({"gemm": 30.0}).compared, evidence({"gemm": 30.0}).equal) == (1, 1)


def test_another_cost_is_not_equal() -> None:
    assert (evidence({"gemm": 31.0}).compared, evidence({"gemm": 31.0}).equal) == (1, 0)


def test_a_hidden_collective_shows_no_latency() -> None:
    assert evidence({"all-gather-start": 60.0}, exposed=0.0).compared == 0


def test_an_exposed_collective_shows_its_latency() -> None:
    found = evidence({"all-gather-start": 100.0}, exposed=69.0)
    assert (found.compared, found.equal) == (1, 1)


def test_the_start_of_an_asynchronous_fusion_occupies_its_cost_before_its_latency() -> (
    None
):
    found = evidence({"all-gather-start": 20.0}, start=20.0)
    assert (found.compared, found.equal, found.instructions) == (1, 1, 2)


def test_what_takes_no_time_is_not_counted() -> None:
    assert evidence({"tuple": 5.0}).compared == 0
    assert evidence({}).instructions == 2


def test_the_sentence_counts() -> None:
    assert (
        evidence({"gemm": 30.0}).sentence
        == "the schedule dump shows that XLA took them"
    )
    assert (
        "took none of the 1 costs that can be seen" in evidence({"gemm": 31.0}).sentence
    )
    assert evidence({"other": 1.0}).sentence.startswith(
        "none of the 2 instructions in the schedule dump has a cost"
    )


def test_matrix_products_without_a_cost_weigh_what_they_take_not_the_constant_that_xla_assumes(
    testdata: Path,
) -> None:
    """XLA takes a custom fusion for 1 µs: by that alone the rest of the profile would cover 97 % of
    the step.
    """
    schedule = read_schedule_dump(
        testdata / "hlo/jax-0.10.2/async/jit_step.schedule.pb.xz"
    )
    rows = LookupTable(schedule.module, schedule.module).rows
    products = {
        row.filed_as
        for row in rows.values()
        if row.instruction.fusion_kind == "kCustom"
        or row.instruction.opcode == "custom-call"
    }
    full = estimate_profile(schedule.module, find_hardware("a100-40gb"))
    profile = replace(
        full, costs=tuple(cost for cost in full.costs if cost.name not in products)
    )
    known = compare(schedule, profile).coverage
    assert known is not None and known.time_coverage is not None
    assert known.time_coverage < BOUNDS.time
    finals = read_modules(testdata / "hlo/jax-0.10.2/async")
    whole = cover(profile, finals, {"jit_step": schedule.module}).main[0]
    assert (known.time_coverage, known.kept_share) == (
        whole.time.value,
        whole.kept_share,
    )


def test_a_profile_without_a_gap_covers_all_of_the_step(testdata: Path) -> None:
    schedule = read_schedule_dump(
        testdata / "hlo/jax-0.10.2/async/jit_step.schedule.pb.xz"
    )
    full = estimate_profile(schedule.module, find_hardware("a100-40gb"))
    known, whole = (
        compare(schedule, full).coverage,
        cover(full, [schedule.module]).main[0],
    )
    assert known is not None
    assert (known.covered, known.wanted) == (whole.count.covered, whole.count.total)
    assert (
        (known.time_coverage, known.kept_share)
        == (whole.time.value, whole.kept_share)
        == (1.0, 1.0)
    )
    idle = compare(
        schedule,
        replace(full, costs=tuple(cost._replace(cost_us=0.0) for cost in full.costs)),
    ).coverage
    assert idle is not None
    assert (idle.covered, idle.wanted, idle.time_coverage) == (
        known.covered,
        known.wanted,
        None,
    )
