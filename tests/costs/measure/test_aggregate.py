"""Costs from hand-made traces with known answers."""

import dataclasses

import pytest

from pgle.costs.measure.measured import AggregateOptions, aggregate, find_programs
from pgle.costs.measure.samples import parse_statistic
from pgle.xla.hlo.module import Computation, Instruction, Module, Shape

F32 = Shape("f32", (8,))


def instruction(name, opcode="fusion", *, computation="main", **fields):
    return Instruction(
        name=name, opcode=opcode, shape=F32, computation=computation, **fields
    )


def module(*entry, others=()):
    computations = {"main": Computation("main", entry, entry[-1].name)}
    computations |= {computation.name: computation for computation in others}
    return Module("jit_step", 1, "f" * 32, "main", computations, is_scheduled=True)


def costs_of(trace, hlo=None, **options):
    programs = find_programs(trace, [] if hlo is None else [hlo])
    (result,) = aggregate(trace, programs, AggregateOptions(**options))
    return {cost.name: cost for cost in result.costs}, result


def step(number, *spans, device=0):
    """One execution: (name, duration) pairs run one after the other."""
    start, rows = 10_000 * number, []
    for launch, (name, duration) in enumerate(spans):
        rows.append((device, number, name, 100 * number + launch, start, duration))
        start += duration
    return rows


def test_the_cost_is_the_median_over_executions(make_trace):
    rows = [
        row
        for number, time in enumerate([10, 10, 13])
        for row in step(number, ("fusion.1", time))
    ]
    costs, _ = costs_of(make_trace(rows), keep_all=True)
    cost = costs["fusion.1"]
    assert (cost.cost_us, cost.samples, cost.min_us, cost.max_us) == (10, 3, 10, 13)


def test_other_statistics_can_be_chosen(make_trace):
    rows = [
        row
        for number, time in enumerate([10, 10, 13])
        for row in step(number, ("fusion.1", time))
    ]
    costs, _ = costs_of(make_trace(rows), stat=parse_statistic("max"), keep_all=True)
    assert costs["fusion.1"].cost_us == 13


def test_a_collective_costs_what_the_last_rank_to_arrive_measured(make_trace):
    early = [
        row
        for number in range(3)
        for row in step(number, ("all-gather-start", 5000), device=0)
    ]
    late = [
        row
        for number in range(3)
        for row in step(number, ("all-gather-start", 1000), device=1)
    ]
    costs, _ = costs_of(make_trace(early + late))
    assert costs["all-gather-start"].cost_us == 1000


def test_the_last_rank_is_found_for_each_execution_on_its_own(make_trace):
    times = [(5000, 1000), (1100, 9000), (1200, 1250)]
    rows = [
        row
        for number, pair in enumerate(times)
        for device, time in enumerate(pair)
        for row in step(number, ("all-reduce-start", time), device=device)
    ]
    costs, _ = costs_of(make_trace(rows))
    cost = costs["all-reduce-start"]
    assert (cost.cost_us, cost.min_us, cost.max_us) == (1100, 1000, 1200)


def test_of_several_replica_groups_the_slowest_counts(make_trace):
    hlo = module(
        instruction("all-gather", "all-gather", replica_groups=((0, 1), (2, 3)))
    )
    times = {0: 100, 1: 900, 2: 400, 3: 300}
    rows = [
        row
        for d, time in times.items()
        for n in range(3)
        for row in step(n, ("all-gather", time), device=d)
    ]
    costs, _ = costs_of(make_trace(rows), hlo)
    assert costs["all-gather"].cost_us == 300


def test_one_rank_alone_is_warned_about(make_trace):
    _, result = costs_of(
        make_trace([row for n in range(3) for row in step(n, ("all-gather-start", 5))])
    )
    assert any("1 of several ranks given" in line for line in result.warnings)


def test_missing_ranks_are_counted_against_the_replica_groups(make_trace):
    hlo = module(
        instruction("all-gather", "all-gather", replica_groups=((0, 1, 2, 3),))
    )
    rows = [
        row
        for d in range(2)
        for n in range(3)
        for row in step(n, ("all-gather", 5), device=d)
    ]
    _, result = costs_of(make_trace(rows), hlo)
    assert any("2 of 4 ranks given" in line for line in result.warnings)


def test_loop_bodies_cost_per_iteration(make_trace):
    body = Computation(
        "body", (instruction("body_fusion", computation="body"),), "body_fusion"
    )
    loop = instruction(
        "while.1",
        "while",
        called=("body",),
        backend_config='{"known_trip_count":{"n":"3"}}',
    )
    rows = [row for n in range(3) for row in step(n, *[("body_fusion", 40)] * 3)]
    costs, _ = costs_of(make_trace(rows), module(loop, others=[body]))
    assert costs["body_fusion"].cost_us == 40
    assert costs["body_fusion"].samples == 9


def test_a_loop_costs_its_span_on_the_device_that_waits_least(make_trace):
    body = Computation(
        "body", (instruction("body_fusion", computation="body"),), "body_fusion"
    )
    loop = instruction(
        "while.1",
        "while",
        called=("body",),
        backend_config='{"known_trip_count":{"n":"3"}}',
    )
    times = {0: [40, 40, 40], 1: [40, 90, 40]}
    rows = [
        row
        for device, spans in times.items()
        for number in range(3)
        for row in step(
            number, *[("body_fusion", time) for time in spans], device=device
        )
    ]
    costs, _ = costs_of(make_trace(rows), module(loop, others=[body]))
    assert (costs["while.1"].cost_us, costs["while.1"].kind) == (120, "loop")


def test_the_inner_kernel_of_a_fusion_is_the_fusions_time(make_trace):
    inner = Computation(
        "fused",
        (instruction("reduce.7", "reduce", computation="fused"),),
        "reduce.7",
        is_fusion=True,
    )
    fusion = instruction("input_reduce_fusion", called=("fused",))
    rows = [
        row
        for n in range(3)
        for row in step(n, ("reduce.7", 2), ("input_reduce_fusion", 50))
    ]
    costs, _ = costs_of(make_trace(rows), module(fusion, others=[inner]))
    assert {name: cost.cost_us for name, cost in costs.items()} == {
        "input_reduce_fusion": 52
    }


def test_a_renamed_collective_is_filed_under_its_name_at_scheduling(make_trace):
    hlo = module(
        instruction("all-gather.25", "all-gather", scheduling_name="all-gather-start.3")
    )
    costs, _ = costs_of(
        make_trace([row for n in range(3) for row in step(n, ("all-gather.25", 70))]),
        hlo,
    )
    assert costs["all-gather-start.3"].trace_name == "all-gather.25"


def test_scheduling_names_of_compute_are_not_believed(make_trace):
    hlo = module(
        instruction("loop_convert_fusion", scheduling_name="get-tuple-element.18")
    )
    costs, _ = costs_of(
        make_trace(
            [row for n in range(3) for row in step(n, ("loop_convert_fusion", 7))]
        ),
        hlo,
    )
    assert set(costs) == {"loop_convert_fusion"}


def test_shape_and_opcode_are_kept_with_the_cost(make_trace):
    hlo = module(instruction("fusion.1"))
    costs, _ = costs_of(
        make_trace([row for n in range(3) for row in step(n, ("fusion.1", 7))]), hlo
    )
    assert (costs["fusion.1"].opcode, costs["fusion.1"].shape) == ("fusion", "f32[8]")


def test_names_that_the_module_does_not_have_are_no_costs(make_trace):
    rows = [row for n in range(3) for row in step(n, ("fusion.1", 7), ("stranger", 9))]
    costs, result = costs_of(make_trace(rows), module(instruction("fusion.1")))
    assert set(costs) == {"fusion.1"}
    assert result.left_out == {"not in the HLO module": ("stranger",)}


@pytest.mark.parametrize("name", ["fusion.1.remat", "fusion.1.remat2"])
def test_rematerialised_copies_count_as_their_original(make_trace, name):
    rows = [
        row
        for n in range(3)
        for row in step(n, ("fusion.1", 10), ("other", 1), (name, 10))
    ]
    costs, _ = costs_of(make_trace(rows))
    assert costs["fusion.1"].cost_us == 10
    assert set(costs) == {"fusion.1", "other"}


def test_equal_names_in_other_modules_do_not_mix(make_trace):
    mine = make_trace([row for n in range(3) for row in step(n, ("fusion", 900))])
    other = make_trace(
        [row for n in range(3) for row in step(n, ("fusion", 10))], module="jit_init"
    )
    from pgle.trace.table import combine

    trace = combine([mine, dataclasses.replace(other, devices=mine.devices)])
    programs = find_programs(trace, [])
    costs = {
        result.program.key.name: result.costs[0].cost_us
        for result in aggregate(trace, programs)
    }
    assert costs == {"jit_step": 900, "jit_init": 10}


def test_an_occurrence_that_not_all_ranks_recorded_is_no_sample(make_trace):
    early = [
        row
        for number in range(4)
        for row in step(number, ("all-gather-start", 5000), device=0)
    ]
    late = [
        row
        for number in range(3)
        for row in step(number, ("all-gather-start", 1000), device=1)
    ]
    costs, result = costs_of(make_trace(early + late))
    assert (costs["all-gather-start"].max_us, costs["all-gather-start"].samples) == (
        1000,
        3,
    )
    assert any("3 to 4 executions" in line for line in result.warnings)


def test_devices_of_one_process_are_matched_by_their_clock(make_trace):
    first = [
        row
        for number in range(4)
        for row in step(number, ("all-gather-start", 5000 - 1000 * number), device=0)
    ]
    second = [
        row
        for number in range(1, 5)
        for row in step(number, ("all-gather-start", 3000), device=1)
    ]
    trace = make_trace(first + second)
    execution = trace.execution - (
        trace.device == 1
    )  # numbered from the window's beginning, as readers do
    _, result = costs_of(dataclasses.replace(trace, execution=execution), keep_all=True)
    (cost,) = result.costs
    assert (cost.cost_us, cost.min_us, cost.samples) == (3000, 2000, 3)
    assert any(
        "begin up to 1 apart, matched by their clock" in line
        for line in result.warnings
    )


def test_devices_of_a_lone_process_are_told_by_their_ordinals(make_trace):
    groups = ((0, 1), (2, 3))
    hlo = module(
        instruction("all-gather-start", "all-gather-start", replica_groups=groups)
    )
    rows = [
        row
        for number in range(3)
        for device, time in enumerate([5000, 1000, 9000, 3000])
        for row in step(number, ("all-gather-start", time), device=device)
    ]
    trace = make_trace(rows)
    nameless = [
        dataclasses.replace(device, process="host", global_id=None)
        for device in trace.devices
    ]
    nameless = [
        dataclasses.replace(device, ordinal=number)
        for number, device in enumerate(nameless)
    ]
    costs, _ = costs_of(dataclasses.replace(trace, devices=tuple(nameless)), hlo)
    assert costs["all-gather-start"].cost_us == 3000


def test_a_rematerialised_copy_that_runs_too_does_not_add_to_the_cost(make_trace):
    hlo = module(
        instruction("gemm.1"), instruction("add.2"), instruction("gemm.1.remat")
    )
    rows = [
        row
        for number in range(3)
        for row in step(number, ("gemm.1", 10), ("add.2", 3), ("gemm.1.remat", 12))
    ]
    costs, _ = costs_of(make_trace(rows), hlo)
    assert (costs["gemm.1"].cost_us, costs["gemm.1"].samples) == (11, 6)
