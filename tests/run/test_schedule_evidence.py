"""Schedule dumps held against profiles, on schedules small enough to read."""

from __future__ import annotations

from pgle.run.confirm import schedule_evidence
from pgle.xla.collectives import AsyncPair
from pgle.xla.hlo.module import Module
from pgle.xla.hlo.schedule_dump import ComputationSchedule, Latency, LhsSchedule, Slot
from pgle.xla.log.verdict import ScheduleEvidence


def evidence(costs: dict[str, float], *, exposed: float = 69.0, start: float = 1.0) -> ScheduleEvidence:
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
    return AsyncPair(**{field.name: given.get(field.name, "") for field in fields(AsyncPair)})  # type: ignore[arg-type]


def test_an_instruction_occupies_its_cost() -> None:
    assert (evidence({"gemm": 30.0}).compared, evidence({"gemm": 30.0}).equal) == (1, 1)


def test_another_cost_is_not_equal() -> None:
    assert (evidence({"gemm": 31.0}).compared, evidence({"gemm": 31.0}).equal) == (1, 0)


def test_a_hidden_collective_shows_no_latency() -> None:
    assert evidence({"all-gather-start": 60.0}, exposed=0.0).compared == 0


def test_an_exposed_collective_shows_its_latency() -> None:
    found = evidence({"all-gather-start": 100.0}, exposed=69.0)
    assert (found.compared, found.equal) == (1, 1)


def test_the_start_of_an_asynchronous_fusion_occupies_its_cost_before_its_latency() -> None:
    found = evidence({"all-gather-start": 20.0}, start=20.0)
    assert (found.compared, found.equal, found.instructions) == (1, 1, 2)


def test_what_takes_no_time_is_not_counted() -> None:
    assert evidence({"tuple": 5.0}).compared == 0
    assert evidence({}).instructions == 2


def test_the_sentence_counts() -> None:
    assert evidence({"gemm": 30.0}).sentence == "the schedule dump shows that XLA took them"
    assert "took none of the 1 costs that can be seen" in evidence({"gemm": 31.0}).sentence
    assert evidence({"other": 1.0}).sentence.startswith("none of the 2 instructions in the schedule dump has a cost")
