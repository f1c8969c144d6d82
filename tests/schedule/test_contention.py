"""What collectives cost the kernels beside them, and what that does to a predicted gain."""

import numpy as np
import pytest

from pgle.costs.measure.contention import ASSUMED, Factors
from pgle.costs.profile.value import Cost, Profile
from pgle.schedule.predict import Prediction, contended_us, gain, predict
from pgle.schedule.simulate import Stream, Timeline
from pgle.xla.hlo.module import Computation, Instruction, Module, Shape


def timeline(*rows: tuple[str, Stream, float, float]) -> Timeline:
    """Rows of kind, stream, start and duration, each its own instruction."""
    kinds, streams, starts, durations = zip(*rows, strict=True)
    n = len(rows)
    return Timeline(
        names=tuple(f"i{number}" for number in range(n)),
        instruction=np.arange(n, dtype=np.int32),
        stream=np.array(streams, np.uint8),
        sync=np.zeros(n, bool),
        start_us=np.array(starts, float),
        duration_us=np.array(durations, float),
        count=np.ones(n, np.int64),
        origin=np.zeros(n, np.uint8),
        step_us=max(
            start + duration for start, duration in zip(starts, durations, strict=True)
        ),
        kinds=tuple(kinds),
        lhs_names=tuple(f"i{number}" for number in range(n)),
    )


def test_a_product_half_beside_a_collective_loses_half_of_that_half() -> None:
    found = timeline(
        ("matmul", Stream.COMPUTE, 0, 100),
        ("all-gather", Stream.COMMUNICATION, 50, 100),
    )
    assert contended_us(found, Factors(product=2.0, other=1.5)) == pytest.approx(25)


def test_other_kernels_lose_by_their_own_factor() -> None:
    found = timeline(
        ("fusion", Stream.COMPUTE, 0, 90), ("all-gather", Stream.COMMUNICATION, 0, 90)
    )
    assert contended_us(found, Factors(product=2.0, other=1.5)) == pytest.approx(30)


def test_without_overlap_nothing_is_lost() -> None:
    found = timeline(
        ("matmul", Stream.COMPUTE, 0, 100),
        ("all-gather", Stream.COMMUNICATION, 100, 100),
    )
    assert contended_us(found, Factors(2.0, 2.0)) == 0


def step(order: str) -> Module:
    """A gather and an independent product, hidden behind it (``start gemm done``) or not."""
    given, shape = (
        Instruction("x", "parameter", Shape("bf16", (4096, 4096)), "e"),
        Shape("bf16", (4096, 4096)),
    )
    pair = Shape("tuple", elements=(shape, shape))
    items = {
        "start": Instruction("start", "all-gather-start", pair, "e", ("x",)),
        "gemm": Instruction("gemm", "dot", shape, "e", ("x", "x")),
        "done": Instruction("done", "all-gather-done", shape, "e", ("start",)),
    }
    chosen = [items[name] for name in order.split()]
    root = Instruction(
        "root", "tuple", Shape("tuple", elements=(shape, shape)), "e", ("gemm", "done")
    )
    return Module(
        "m",
        1,
        "",
        "e",
        {"e": Computation("e", (given, *chosen, root), "root")},
        True,
        num_partitions=4,
    )


COSTS = Profile((Cost("gemm", 500.0), Cost("start", 400.0)))


def both(profile: Profile) -> tuple[Prediction, Prediction]:
    """The exposed gather and the hidden one, with costs of kernels as the first schedule shows
    them.
    """
    before = predict(step("start done gemm"), profile, "h100")
    return before, predict(
        step("start gemm done"), profile, "h100", contention=before.contention
    )


def test_a_gain_holds_the_contention_of_two_real_jobs_and_its_range_runs_from_none_to_twice_that() -> (
    None
):
    found = gain(*both(COSTS))
    factor = ASSUMED.product.likely
    assert found.share == pytest.approx((400 - 400 * (1 - 1 / factor)) / 900, abs=0.01)
    assert found.high == pytest.approx(400 / 900, abs=0.01)
    assert found.low == pytest.approx(
        (400 - 400 * (1 - 1 / (2 * factor - 1))) / 900, abs=0.01
    )


def test_costs_whose_overlap_nobody_recorded_are_those_of_the_schedule_at_hand() -> (
    None
):
    assert predict(step("start gemm done"), COSTS, "h100").step_us == pytest.approx(
        500, abs=1e-6
    )


def measured(share: float) -> Profile:
    """A trace in which products beside collectives took twice as long, and `gemm` was beside one
    for a share.
    """
    slowdown = {
        "likely": 2.0,
        "low": 1.8,
        "high": 2.2,
        "samples": 60,
    }  # low and high are quartiles
    contention = {"product": slowdown, "other": slowdown, "beside": {"gemm": share}}
    return Profile(COSTS.costs, {"modules": [{"name": "m", "contention": contention}]})


def test_a_kernel_beside_a_collective_takes_as_many_times_longer_as_was_measured() -> (
    None
):
    found = predict(step("start gemm done"), measured(0.0), "h100")
    assert found.step_us == pytest.approx(
        500 + 400 / 2, abs=5
    )  # the gather begins a launch gap later or earlier
    assert found.contended_us == pytest.approx(400 / 2, abs=5)


def test_a_cost_measured_beside_a_collective_is_met_again_beside_one() -> None:
    alone, again = (
        predict(step(order), measured(0.8), "h100")
        for order in ("start done gemm", "start gemm done")
    )
    assert alone.step_us == pytest.approx(400 + 500 * (1 - 0.8 / 2), abs=10)
    assert again.step_us == pytest.approx(500, abs=10)


def test_a_measured_gain_holds_the_measured_contention() -> None:
    before, after = both(measured(0.0))
    found = gain(before, after)
    assert found.share == pytest.approx(1 - 700 / 900, abs=0.01)
    assert found.high - found.low == pytest.approx(400 * (1 - 1 / 3) / 900, abs=0.01)


def test_a_gain_with_assumed_contention_has_its_range() -> None:
    found = gain(*both(COSTS))
    assert (found.low, found.high) == (
        pytest.approx(0.157, abs=5e-4),
        pytest.approx(0.448, abs=5e-4),
    )


@pytest.mark.parametrize("order", ["start done gemm", "start gemm done"])
def test_perfect_overlap_saves_no_more_than_what_is_exposed(order: str) -> None:
    found = predict(step(order), COSTS, "h100")
    assert found.shortest_us >= found.step_us - found.exposed_us - 1e-6


def test_perfect_overlap_has_the_contention_of_the_kernels_that_it_slows_least() -> (
    None
):
    found = predict(
        step("start done gemm"), measured(0.0), "h100"
    )  # 400 µs exposed; a product takes twice as long
    assert found.step_us - found.shortest_us == pytest.approx(400 / 2)


def test_a_step_without_collectives_has_nothing_to_save() -> None:
    x, out = (Shape("bf16", (64, 64)) for _ in range(2))
    items = [Instruction("x", "parameter", x, "e")]
    items += [
        Instruction(f"k{n}", "fusion", out, "e", (items[-1].name,), fusion_kind="kLoop")
        for n in range(20)
    ]
    module = Module("m", 1, "", "e", {"e": Computation("e", tuple(items), "k19")}, True)
    found = predict(
        module, Profile(tuple(Cost(f"k{n}", 2.0) for n in range(20))), "h100"
    )
    assert found.shortest_us == pytest.approx(found.step_us)


def test_a_gain_of_idle_time_is_known() -> None:
    slow = predict(step("start gemm done"), COSTS, "h100")
    fast = timeline(
        ("matmul", Stream.COMPUTE, 0, 500), ("all-gather", Stream.COMMUNICATION, 0, 400)
    )
    from dataclasses import replace

    idle = replace(
        slow,
        timeline=replace(
            slow.timeline, start_us=slow.timeline.start_us + 200, step_us=700.0
        ),
    )
    found = gain(idle, replace(slow, timeline=fast))
    assert found.idle_share > found.share / 2


def test_every_rank_waits_for_the_slowest() -> None:
    skewed = Profile((Cost("gemm", 500.0, slowest_us=600.0), Cost("start", 400.0)))
    typical, slowest = (
        predict(step("start done gemm"), profile, "h100") for profile in (COSTS, skewed)
    )
    assert slowest.step_us - typical.step_us == pytest.approx(100)
    assert slowest.skew_us == pytest.approx(100)


def test_costs_of_one_rank_are_taken_as_they_are() -> None:
    found = predict(step("start done gemm"), COSTS, "h100")
    assert [op.cost_us for op in found.program.ops if op.cost is not None] == [400, 500]
    assert found.skew_us == 0
