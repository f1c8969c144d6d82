"""What the simulated GPU records is what a profiler would have: the costs come back through every
reader.
"""

from dataclasses import replace

import numpy as np
import pytest
from nsys_export import write_nsys_sqlite
from simulated import simulate

from pgle.costs.measure.measured import (
    aggregate,
    find_programs,
    measure,
    measured_profile,
)
from pgle.costs.profile.value import Cost, Origin
from pgle.schedule.predict import predict
from pgle.schedule.record import Noise, record, repeated
from pgle.steps.executions import execution_series
from pgle.trace.nsys.read import read_nsys
from pgle.trace.steady import find_executions
from pgle.trace.xplane.read import read_xplane
from pgle.trace.xplane.writer import write_xplane
from pgle.xla.hlo.dumps import Dumps
from pgle.xla.hlo.module import Computation, Instruction, Module, Shape

TRUTH = {"dot": 400.0, "all-gather-start": 300.0, "loop_fusion": 50.0, "body": 20.0}
QUIET = Noise(kernel=0.0, outliers=0.0, warm_up=(), skew=0.0, first_wait_us=0.0)


def instruction(name, opcode, *operands, computation="main", **fields):
    return Instruction(
        name, opcode, Shape("f32", (8,)), computation, operands, **fields
    )


@pytest.fixture
def module():
    body = Computation(
        "loop", (instruction("body", "fusion", computation="loop"),), "body"
    )
    entry = (
        instruction("x", "parameter"),
        instruction("all-gather-start", "all-gather-start", "x"),
        instruction("dot", "custom-call", "x"),
        instruction("all-gather-done", "all-gather-done", "all-gather-start"),
        instruction("loop_fusion", "fusion", "all-gather-done", "dot"),
        instruction(
            "while",
            "while",
            "loop_fusion",
            called=("loop",),
            backend_config='{"known_trip_count":{"n":"3"}}',
        ),
    )
    computations = {"main": Computation("main", entry, "while"), "loop": body}
    return Module("jit_step", 7, "f" * 32, "main", computations, is_scheduled=True)


@pytest.fixture
def timeline(module):
    return simulate(
        module,
        {name: Cost(name, cost) for name, cost in TRUTH.items()},
        expand_loops=True,
    )


def costs(trace, module):
    (result,) = aggregate(trace, find_programs(trace, [module]))
    return {cost.name: cost for cost in result.costs}


def test_without_noise_the_costs_come_back(module, timeline):
    found = costs(record(module, timeline, ranks=2, noise=QUIET), module)
    assert {name: found[name].cost_us for name in TRUTH} == pytest.approx(
        TRUTH, rel=1e-4
    )


def test_a_repeated_step_is_the_schedule_itself(module, timeline):
    late = replace(timeline, start_us=timeline.start_us + 5.0, step_us=505.0)
    trace = repeated(module, late)
    first, second = np.flatnonzero(trace.execution == 0), trace.execution == 1
    assert trace.start_ns[first[0]] == 5000
    moved = trace.start_ns[second] - trace.start_ns[first]
    assert set(moved.tolist()) == {505_000}


def test_costs_survive_noise_warm_up_and_late_ranks(module, timeline):
    found = costs(record(module, timeline, ranks=4, executions=10), module)
    assert {name: found[name].cost_us for name in TRUTH} == pytest.approx(
        TRUTH, rel=0.03
    )


def test_simulated_costs_are_labelled(module, timeline):
    found = costs(record(module, timeline, ranks=2), module)
    assert {cost.origin for cost in found.values()} == {Origin.SIMULATED}


def test_collectives_of_early_ranks_wait(module, timeline):
    trace = record(module, timeline, ranks=2, noise=Noise(skew=0.8), executions=6)
    gathers = trace.instruction == trace.instructions.index("all-gather-start")
    by_rank = [
        trace.duration_ns[gathers & (trace.device == rank)] / 1e3 for rank in range(2)
    ]
    assert np.maximum(*by_rank).max() > 350
    assert np.minimum(*by_rank) == pytest.approx(np.full(6, 300.0), rel=0.2)


def test_the_step_of_a_trace_is_the_time_of_an_execution(module, timeline):
    found = find_executions(
        record(module, timeline, ranks=1, noise=QUIET, executions=10), np.zeros(9, bool)
    )
    step = (found.end_ns.max() - found.start_ns.min()) / 10
    assert step == pytest.approx(np.median(found.end_ns - found.start_ns), rel=0.01)


def test_executions_do_not_overlap_on_a_device(module, timeline):
    trace = record(module, timeline, ranks=3, executions=5)
    found = find_executions(trace, np.zeros(len(trace.instructions), bool))
    for device in range(3):
        here = found.device == device
        assert (found.start_ns[here][1:] > found.end_ns[here][:-1]).all()


def test_activities_of_one_stream_do_not_overlap(module, timeline):
    trace = record(module, timeline, ranks=3, executions=5)
    for device in range(3):
        for stream in np.unique(trace.stream):
            rows = (trace.device == device) & (trace.stream == stream)
            assert (trace.start_ns[rows][1:] >= trace.end_ns[rows][:-1] - 1).all()


def test_the_same_seed_gives_the_same_trace(module, timeline):
    one, two = (record(module, timeline, ranks=2, seed=3) for _ in range(2))
    assert (one.start_ns == two.start_ns).all()
    assert (one.duration_ns == two.duration_ns).all()
    assert (
        record(module, timeline, ranks=2, seed=4).duration_ns != one.duration_ns
    ).any()


def test_an_nsys_export_of_it_reads_back_with_its_label(module, timeline, tmp_path):
    trace = record(module, timeline, ranks=2)
    write_nsys_sqlite(trace, tmp_path / "simulated.sqlite")
    back = read_nsys(tmp_path / "simulated.sqlite")
    assert back.simulated
    assert {n: c.cost_us for n, c in costs(back, module).items()} == {
        n: c.cost_us for n, c in costs(trace, module).items()
    }


def test_an_xplane_of_it_reads_back_with_its_label(module, timeline, tmp_path):
    trace = record(module, timeline, ranks=2)
    (tmp_path / "host.xplane.pb").write_bytes(write_xplane(trace))
    back = read_xplane([tmp_path / "host.xplane.pb"])
    assert back.simulated
    assert {n: c.cost_us for n, c in costs(back, module).items()} == {
        n: c.cost_us for n, c in costs(trace, module).items()
    }


def test_jaxlibs_own_converter_returns_the_same_costs(module, timeline, tmp_path):
    from jax.experimental.profiler import get_profiled_instructions_proto

    from pgle.xla.protos.profiled_instructions_pb2 import ProfiledInstructionsProto

    trace = record(module, timeline, ranks=2, noise=QUIET)
    (tmp_path / "host.xplane.pb").write_bytes(write_xplane(trace))
    theirs = ProfiledInstructionsProto.FromString(
        get_profiled_instructions_proto(str(tmp_path))
    )
    assert {cost.name: cost.cost_us for cost in theirs.costs} == pytest.approx(
        TRUTH, rel=1e-4
    )


def test_a_synchronous_collective_runs_on_the_stream_of_the_kernels(module):
    costs_us = {name: Cost(name, cost) for name, cost in TRUTH.items()}
    start = module.instructions["all-gather-start"]
    sync = replace(
        start, backend_config='{"collective_backend_config":{"is_sync":true}}'
    )
    entry = module.computations["main"]
    items = tuple(sync if item is start else item for item in entry.instructions)
    computations = {**module.computations, "main": replace(entry, instructions=items)}
    step = replace(module, computations=computations)
    timeline = simulate(step, costs_us, expand_loops=True)
    trace = record(step, timeline, ranks=2, noise=QUIET)
    assert len(set(trace.stream.tolist())) == 1


def test_all_ranks_see_one_transfer_take_the_same_time(module, timeline):
    trace = record(
        module, timeline, ranks=4, noise=replace(QUIET, kernel=0.2), executions=4
    )
    gathers = trace.instruction == trace.instructions.index("all-gather-start")
    ends = [(trace.end_ns[gathers & (trace.device == rank)]) for rank in range(4)]
    assert np.ptp(ends, axis=0).max() <= 2


def test_costs_of_the_simulated_gpu_predict_its_step(module, timeline):
    """Ranks begin a step of half a millisecond some microseconds apart, and kernels differ."""
    trace = record(module, timeline, ranks=8, executions=30)
    profile = measured_profile(measure(trace, Dumps(modules=(module,))))
    step_us = np.median(execution_series(trace, "simulated").step_time_s[3:]) * 1e6
    assert predict(module, profile, "h100").step_us == pytest.approx(step_us, rel=0.005)
