"""Costs of a job of known costs, traced by ranks whose windows begin with different steps."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from nsys_export import write_nsys_sqlite

from pgle.costs.measure.alignment import MatchedBy, align_program
from pgle.costs.measure.measured import aggregate, find_programs
from pgle.costs.profile.lookup import name_instructions
from pgle.trace.nsys.read import read_nsys
from pgle.trace.table import Device, Recording, combine
from pgle.trace.xplane.read import read_xplane
from pgle.trace.xplane.writer import write_xplane
from pgle.xla.hlo.module import Computation, Instruction, Module, Shape

TRUE_US = {
    "gemm.1": 900,
    "all-gather-start.2": 300,
    "gemm.3": 1500,
    "reduce-scatter.4": 700,
    "all-reduce-start.5": 120,
}
"""In the order of a step; a collective's is its time on the last rank to arrive."""

RANKS = 4


def job(steps=12):
    """When each instruction of each step begins and ends on each rank, µs[steps, instructions,
    ranks].
    """
    random = np.random.default_rng(0)
    clock = np.zeros(RANKS)
    begin, end = [], []
    for _ in range(steps):
        clock = clock + 50
        for name, cost in TRUE_US.items():
            begin.append(clock)
            if name.startswith("gemm"):
                clock = clock + cost * random.uniform(1, 1.01, RANKS)
                end.append(clock)
                clock = clock + random.exponential(
                    400, RANKS
                )  # the host is late now and then
            else:
                clock = np.full(RANKS, clock.max() + cost)
                end.append(clock + random.uniform(0, 2, RANKS))
    return np.array(begin).reshape(steps, -1, RANKS), np.array(end).reshape(
        steps, -1, RANKS
    )


def window(make_trace, rank, first, last, *, clock_us=0):
    """What a rank records of the job from step `first` on, on a clock of its own."""
    begin, end = (np.rint(times[:, :, rank]).astype(int) for times in job())
    trace = make_trace(
        (
            0,
            step - first,
            name,
            10 * step + at,
            begin[step, at] + clock_us,
            end[step, at] - begin[step, at],
        )
        for step in range(first, last)
        for at, name in enumerate(TRUE_US)
    )
    return replace(trace, devices=(Device(f"node{rank}:1", 0, rank),))


def through_nsys(traces, folder: Path):
    for number, trace in enumerate(traces):
        write_nsys_sqlite(trace, folder / f"rank{number}.sqlite")
    return [read_nsys(folder / f"rank{number}.sqlite") for number in range(len(traces))]


def through_xplane(traces, folder: Path):
    paths = [folder / f"rank{number}.xplane.pb" for number in range(len(traces))]
    for path, trace in zip(paths, traces, strict=True):
        path.write_bytes(write_xplane(trace))
    return [read_xplane([path]) for path in paths]


def as_they_are(traces, folder: Path):
    return traces


def costs_of(traces, hlo=()):
    trace = combine(traces)
    (result,) = aggregate(trace, find_programs(trace, hlo))
    return {cost.name: cost for cost in result.costs}, result


FORMATS = pytest.mark.parametrize(
    "through", [through_nsys, through_xplane, as_they_are]
)


@FORMATS
@pytest.mark.parametrize(
    "firsts", [(0, 0, 0, 0), (0, 1, 0, 0), (3, 2, 1, 0), (0, 2, 2, 3)]
)
def test_costs_are_true_wherever_the_windows_begin(
    make_trace, tmp_path, through, firsts
):
    traces = [
        window(make_trace, rank, first, first + 7, clock_us=10_000_000 * rank)
        for rank, first in enumerate(firsts)
    ]
    costs, result = costs_of(through(traces, tmp_path))
    assert {name: cost.cost_us for name, cost in costs.items()} == pytest.approx(
        TRUE_US, rel=0.02
    )
    said = [
        line
        for line in result.warnings
        if "matched by when their collectives end" in line
    ]
    assert bool(said) == (max(firsts) > min(firsts))


@FORMATS
def test_windows_of_different_lengths_are_matched_at_the_right_end(
    make_trace, tmp_path, through
):
    traces = [
        window(make_trace, rank, first, 8, clock_us=-70 * rank)
        for rank, first in enumerate((0, 2, 3, 1))
    ]
    costs, result = costs_of(through(traces, tmp_path))
    assert {name: cost.cost_us for name, cost in costs.items()} == pytest.approx(
        TRUE_US, rel=0.02
    )
    (line,) = [line for line in result.warnings if "recorded" in line]
    assert (
        "5 to 8 executions, begin up to 3 apart, matched by when their collectives end"
        in line
    )


def alike(make_trace, rank, first, *, origin_ns):
    """Five steps of a job whose every step is the same, on a clock that begins 1 ms before the
    window.
    """
    step_us = sum(TRUE_US.values())
    rows, start = [], 1_000
    for execution in range(5):
        for at, (name, cost) in enumerate(TRUE_US.items()):
            rows.append((0, execution, name, 10 * execution + at, start, cost))
            start += cost
    process = f"node{rank}:1"
    began = Recording(origin_ns + 1000 * step_us * first)
    return replace(
        make_trace(rows),
        devices=(Device(process, 0, rank),),
        recordings={process: began},
    )


@pytest.mark.parametrize("through", [through_nsys, through_xplane])
def test_wall_clocks_tell_where_steps_are_all_alike(make_trace, tmp_path, through):
    skewed = [1_700_000_000_000_000_000 + ns for ns in (0, 300_000, -200_000, 100_000)]
    traces = [
        alike(make_trace, rank, first, origin_ns=skewed[rank])
        for rank, first in enumerate((0, 1, 0, 2))
    ]
    _, result = costs_of(through(traces, tmp_path))
    assert any(
        "begin up to 2 apart, matched by their wall clocks" in line
        for line in result.warnings
    )


def test_windows_without_a_common_step_are_said_to_include_waiting(make_trace):
    traces = [
        alike(make_trace, rank, first, origin_ns=1_700_000_000_000_000_000)
        for rank, first in enumerate((0, 9))
    ]
    _, result = costs_of(traces)
    assert any(
        "wall clocks show that node1:1 recorded other executions, so coll" in line
        for line in result.warnings
    )


def communicating(name, opcode, groups):
    return Instruction(
        name=name,
        opcode=opcode,
        shape=Shape("f32", (8,)),
        computation="main",
        replica_groups=groups,
    )


def in_rows_and_columns():
    """The step, with communication in the rows and columns of a mesh of 2 x 2."""
    rows, columns = ((0, 1), (2, 3)), ((0, 2), (1, 3))
    entry = (
        communicating("all-gather-start.2", "all-gather", rows),
        communicating("reduce-scatter.4", "reduce-scatter", columns),
        communicating("all-reduce-start.5", "all-reduce", rows),
    )
    return Module(
        "jit_step",
        1,
        "f" * 32,
        "main",
        {"main": Computation("main", entry, entry[-1].name)},
        True,
    )


def test_ranks_that_share_no_group_are_matched_over_others(make_trace):
    trace = combine(
        [
            window(make_trace, rank, first, first + 8)
            for rank, first in enumerate((0, 1, 2, 3))
        ]
    )
    (program,) = find_programs(trace, [in_rows_and_columns()])
    found = align_program(
        trace,
        program.index,
        name_instructions(trace, program.instructions, program.hlo),
    )
    assert (found.shift.tolist(), found.alignment.evidence) == (
        [0, 1, 2, 3],
        MatchedBy.ENDS,
    )


def test_one_common_execution_without_clocks_is_said_to_be_unclear(make_trace):
    traces = [
        window(make_trace, rank, 4 * (rank // 2), 4 * (rank // 2) + 5)
        for rank in range(RANKS)
    ]
    _, result = costs_of(traces)
    assert any("cannot tell which execution node" in line for line in result.warnings)


def test_windows_that_begin_together_are_left_alone(make_trace):
    traces = [
        window(make_trace, rank, 0, 7, clock_us=5_000 * rank) for rank in range(RANKS)
    ]
    _, result = costs_of(traces)
    assert not any("begin" in line for line in result.warnings)
