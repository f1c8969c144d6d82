"""Shifted windows cut out of the real run: they must cost what the same executions cost in windows
that agree.
"""

from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from pgle.costs.measure.measured import (
    AggregateOptions,
    ProgramCosts,
    aggregate,
    find_programs,
)
from pgle.costs.profile.value import CostKind
from pgle.trace.nsys.read import read_nsys
from pgle.trace.table import Trace, combine
from pgle.xla.hlo.dumps import read_module
from pgle.xla.hlo.module import Module

DATA = Path(__file__).parents[2] / "testdata" / "pax_fsdp4"
STEP = 40


@cache
def trace_of(rank: str) -> Trace:
    return read_nsys(DATA / f"{rank}.sqlite")


@cache
def step_module() -> Module:
    return read_module(
        next((DATA / "proc0/dump").glob("module_0040*after_optimizations*"))
    )


def window(rank: str, first: int, last: int) -> Trace:
    """The step's executions `first` to `last` - 1 on a rank, numbered from 0 as a reader would."""
    trace = trace_of(rank)
    module = next(
        number for number, key in enumerate(trace.modules) if key.program_id == STEP
    )
    rows = (
        (trace.module == module) & (trace.execution >= first) & (trace.execution < last)
    )
    names = (
        "start_ns duration_ns kind device stream module instruction execution instance"
    )
    cut = replace(trace, **{name: getattr(trace, name)[rows] for name in names.split()})
    return replace(cut, execution=cut.execution - np.int32(first))


@cache
def costs_of(
    one: tuple[int, int], other: tuple[int, int], *, keep_all: bool = False
) -> ProgramCosts:
    return reduced([window("proc0", *one), window("proc3", *other)], keep_all=keep_all)


def reduced(traces: list[Trace], *, keep_all: bool) -> ProgramCosts:
    trace = combine(traces)
    program = next(
        item for item in find_programs(trace, [step_module()]) if item.hlo is not None
    )
    return aggregate(trace, [program], AggregateOptions(keep_all=keep_all))[0]


def by_name(result: ProgramCosts, kind: CostKind) -> dict[str, float]:
    return {cost.name: cost.cost_us for cost in result.costs if cost.kind == kind}


SHIFTED = [
    ((1, 5), (0, 4)),
    ((0, 4), (1, 5)),
    ((2, 5), (1, 4)),
    ((1, 5), (0, 5)),
    ((2, 5), (0, 5)),
    ((0, 2), (0, 5)),
]


@pytest.mark.parametrize(("one", "other"), SHIFTED)
def test_collectives_cost_what_they_cost_in_the_common_executions(one, other):
    common = (max(one[0], other[0]), min(one[1], other[1]))
    found, expected = (
        costs_of(one, other, keep_all=True),
        costs_of(common, common, keep_all=True),
    )
    assert by_name(found, CostKind.COLLECTIVE) == by_name(expected, CostKind.COLLECTIVE)


@pytest.mark.parametrize(("one", "other"), SHIFTED[:5])
@pytest.mark.parametrize(
    ("kind", "within"), [(CostKind.COLLECTIVE, 0.03), (CostKind.COMPUTE, 0.001)]
)
def test_in_sum_costs_stay_what_they_are_in_the_whole_windows(one, other, kind, within):
    found, whole = (
        by_name(costs_of(one, other), kind),
        by_name(costs_of((0, 5), (0, 5)), kind),
    )
    assert sum(found.values()) == pytest.approx(sum(whole.values()), rel=within)


@pytest.mark.parametrize(("one", "other"), [((0, 2), (3, 5)), ((0, 3), (2, 5))])
def test_too_little_in_common_is_said(one, other):
    lines = costs_of(one, other).warnings
    assert any(
        "cannot tell which execution proc3:215670 started with" in line
        for line in lines
    )


def test_whole_windows_begin_with_the_same_execution():
    assert not any("begin" in line for line in costs_of((0, 5), (0, 5)).warnings)
