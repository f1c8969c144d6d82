"""Worlds: the same for every schedule, different from each other, and never kinder than their spread."""

import pytest

from pgle.costs.fit.contention import Contention, Slowdown
from pgle.costs.fit.launch import DEFAULT
from pgle.schedule.program import Action, Op, Program
from pgle.schedule.timeline import Stream
from pgle.tune.worlds import Spread, step_in, worlds

NO_CONTENTION = Contention(Slowdown(1.0, 1.0, 1.0), Slowdown(1.0, 1.0, 1.0))
GEMM = Op("g", Action.LAUNCH, cost_us=100.0, kind="matmul")
GATHER = Op("a", Action.LAUNCH, Stream.COMMUNICATION, cost_us=100.0, kind="all-gather")


def program(*ops: Op) -> Program:
    return Program("e", {"e": ops}, (), ())


def test_a_world_is_the_same_whenever_it_is_asked() -> None:
    assert [world.draw("x") for world in worlds(3)] == [world.draw("x") for world in worlds(3)]


def test_worlds_and_seeds_differ() -> None:
    drawn = {world.draw("x") for seed in (0, 1) for world in worlds(5, seed)}
    assert len(drawn) == 10


def test_without_spread_a_step_is_what_the_simulator_says() -> None:
    world = worlds(1, 0, Spread(0.0, 0.0, 0.0, 0.0))[0]
    assert step_in(world, program(GEMM, GATHER), {}, DEFAULT, NO_CONTENTION) == pytest.approx(
        200 + DEFAULT.gap_us, abs=2 * DEFAULT.gap_us
    )


def test_costs_stay_within_their_spread() -> None:
    for world in worlds(50):
        assert 90 <= world.cost_us(GEMM, "s") <= 110
        assert 80 <= world.cost_us(GATHER, "s") <= 120 * 1.3 + 20


def test_collectives_come_late_by_up_to_the_latency() -> None:
    late = [world.cost_us(GATHER, "s") - GATHER.cost_us for world in worlds(50, 0, Spread(0.0, 0.0, 20.0, 0.0))]
    assert 0 <= min(late) < 2
    assert 18 < max(late) <= 20


def test_kernels_of_one_shape_differ_together() -> None:
    world = worlds(1)[0]
    twin = Op("h", Action.LAUNCH, cost_us=100.0, kind="matmul")
    assert world.cost_us(GEMM, "bf16[8]") == world.cost_us(twin, "bf16[8]")
    assert world.cost_us(GEMM, "bf16[8]") != world.cost_us(GEMM, "bf16[16]")
