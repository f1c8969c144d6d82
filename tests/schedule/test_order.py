"""When activities run that take other times: who waits for whom."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from random_modules import RandomModule
from simulated import simulate

from pgle.costs.measure.contention import LaunchGaps
from pgle.costs.profile.value import Cost
from pgle.schedule.predict import predict
from pgle.schedule.record import Noise, record
from pgle.schedule.simulate import Timeline
from pgle.trace.table import Trace
from pgle.xla.hlo.module import Computation, Instruction, Module, Shape

NO_GAPS = LaunchGaps(gap_us=0.0, switch_us=0.0, host_us=0.0)
STILL = Noise(
    kernel=0.0, outliers=0.0, warm_up=(), skew=0.0, first_wait_us=0.0, pause_us=0.0
)


def op(name: str, opcode: str = "fusion", *operands: str, **fields: object):
    shape = Shape("f32", (8,))
    return Instruction(name, opcode, shape, "entry", operands=operands, **fields)


def gather(groups: tuple[tuple[int, ...], ...] = ()) -> tuple[Instruction, Instruction]:
    start = op("ag-start", "all-gather-start", replica_groups=groups)
    return start, op("ag-done", "all-gather-done", "ag-start")


def module(*items: Instruction) -> Module:
    entry = Computation("entry", items, items[-1].name)
    return Module(
        "m",
        program_id=1,
        fingerprint="",
        entry="entry",
        computations={"entry": entry},
        is_scheduled=True,
        num_partitions=4,
    )


def step(of: Module, **costs_us: float) -> Timeline:
    named = {name.replace("_", "-"): us for name, us in costs_us.items()}
    costs = {name: Cost(name, us) for name, us in named.items()}
    return simulate(of, costs, launch=NO_GAPS, expand_loops=True)


def starts_us(timeline: Timeline, **times_us: list[float]) -> dict[str, list[float]]:
    """By activity when it begins on each rank, where some take other times on each."""
    ranks = len(next(iter(times_us.values())))
    duration = np.tile(timeline.duration_us[:, None, None], (1, 1, ranks))
    for name, times in times_us.items():
        duration[timeline.names.index(name), 0] = times
    assert timeline.order is not None
    nobody = [None] * len(timeline)
    start, _ = timeline.order.starts_us(duration, np.zeros((1, ranks)), nobody)
    names = [timeline.names[code] for code in timeline.instruction]
    return {name: start[row, 0].tolist() for row, name in enumerate(names)}


def ends_us(trace: Trace, device: int) -> float:
    rows = trace.device == device
    return int((trace.start_ns[rows] + trace.duration_ns[rows]).max()) / 1e3


@pytest.mark.parametrize("seed", range(40))
def test_with_the_same_times_activities_run_when_they_were_simulated(seed: int) -> None:
    timeline = predict(
        RandomModule(seed).module, None, "h100", expand_loops=True
    ).timeline
    assert timeline.order is not None
    times = timeline.duration_us[:, None, None]
    nobody = [None] * len(timeline)
    start, _ = timeline.order.starts_us(times, np.zeros((1, 1)), nobody)
    assert start[:, 0, 0] == pytest.approx(timeline.start_us, abs=1e-6)


def test_a_longer_kernel_delays_what_follows() -> None:
    timeline = step(module(op("a"), op("b")), a=10.0, b=5.0)
    assert starts_us(timeline, a=[10.0, 13.0])["b"] == [10.0, 13.0]


def test_a_longer_collective_delays_nothing_as_long_as_it_is_hidden() -> None:
    start, done = gather()
    timeline = step(module(start, op("a"), done, op("b")), ag_start=8.0, a=10.0, b=1.0)
    assert starts_us(timeline, **{"ag-start": [8.0, 9.0, 12.0]})["b"] == [10, 10, 12]


def test_every_iteration_of_a_loop_waits_for_the_one_before() -> None:
    body = Computation("body", (op("a"),), "a")
    loop = op(
        "while",
        "while",
        called=("body",),
        backend_config='{"known_trip_count":{"n":"50"}}',
    )
    of = module(loop)
    of = replace(of, computations={**of.computations, "body": body})
    timeline = step(of, a=10.0)
    duration = timeline.duration_us[:, None, None].copy()
    duration[7] += 5.0
    assert timeline.order is not None
    start, _ = timeline.order.starts_us(duration, np.zeros((1, 1)), [None] * 50)
    assert start[[7, 8, 49], 0, 0].tolist() == [70.0, 85.0, 495.0]


def late(of: Module, timeline: Timeline) -> Trace:
    """Four ranks, of which each begins a millisecond after the one before."""
    noise = Noise(kernel=0.0, outliers=0.0, warm_up=(), skew=0.0, first_wait_us=3000.0)
    return record(of, timeline, ranks=4, executions=1, noise=noise)


def test_a_collective_waits_for_the_ranks_of_its_group_alone() -> None:
    start, done = gather(((0, 1), (2, 3)))
    of = module(start, done, op("b"))
    trace = late(of, step(of, ag_start=10.0, b=1.0))
    assert [ends_us(trace, rank) for rank in range(4)] == [1011, 1011, 3011, 3011]


def test_a_permute_waits_for_its_pairs_alone() -> None:
    pairs = ((0, 1),)
    start = op("cp-start", "collective-permute-start", source_target_pairs=pairs)
    of = module(start, op("cp-done", "collective-permute-done", "cp-start"), op("b"))
    trace = late(of, step(of, cp_start=10.0, b=1.0))
    assert [ends_us(trace, rank) for rank in range(4)] == [1011, 1011, 2011, 3011]


def test_kernels_of_an_early_rank_run_while_its_collective_waits_for_the_last() -> None:
    start, done = gather()
    of = module(start, op("a"), done)
    trace = late(of, step(of, ag_start=10.0, a=100.0))
    kernels = trace.instruction == trace.instructions.index("a")
    first = kernels & (trace.device == 0)
    assert trace.start_ns[first].tolist() == [0]


def test_folded_loops_cannot_be_recorded() -> None:
    of = module(op("a"))
    with pytest.raises(ValueError, match="folds"):
        record(of, simulate(of, {"a": Cost("a", 1.0)}), ranks=1, noise=STILL)
