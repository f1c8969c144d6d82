"""Kernels beside collectives on two real jobs: predicted from other executions on other ranks than
they are judged on.

Each kernel that ran beside a collective is given what the same work took alone; it must then be
predicted slower by what the trace of the others shows.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from statistics import median

import numpy as np
import pytest
from simulated import simulate

from pgle.costs.measure.contention import (
    ASSUMED,
    DEFAULT,
    NONE,
    Contention,
    Factors,
    Slowdown,
)
from pgle.costs.measure.measured import (
    AggregateOptions,
    ProgramCosts,
    aggregate,
    find_programs,
)
from pgle.costs.profile.value import Cost, Profile
from pgle.schedule.predict import predict
from pgle.trace.nsys.read import read_nsys
from pgle.trace.table import Trace, combine
from pgle.xla.hlo.dumps import read_module
from pgle.xla.hlo.module import Module

ROOT = Path(__file__).parents[2]
PAX = ROOT / "testdata" / "pax_fsdp4"
MAXTEXT = ROOT.parent / "shared" / "data" / "maxtext_fsdp4_h100"
DEVICES = {"pax": (0, 1), "maxtext": (0, 1, 2, 3)}
EXECUTIONS = {"pax": (2, 3, 4), "maxtext": (2, 3, 4)}
GPUS = {"pax": "a100-40gb", "maxtext": "h100"}
OF_JOBS = {
    "pax": Factors(1.85, 1.35),
    "maxtext": Factors(2.08, 1.34),
}  # `benchmarks/contention.py`
MOSTLY_ALONE = 0.05
COLUMNS = [
    "start_ns",
    "duration_ns",
    "kind",
    "device",
    "stream",
    "module",
    "instruction",
    "execution",
    "instance",
]


@cache
def job(name: str) -> tuple[Trace, Module]:
    if name == "pax":
        trace = combine(
            [read_nsys(PAX / f"{rank}.sqlite") for rank in ("proc0", "proc3")]
        )
        return trace, read_module(
            next((PAX / "proc0/dump").glob("module_0040*after_optimizations*"))
        )
    if not MAXTEXT.exists():
        pytest.skip("the recording is not here")
    return read_nsys(MAXTEXT / "rebuilt.sqlite"), read_module(
        next((MAXTEXT / "dump").glob("*train_step*after_opt*"))
    )


@cache
def costs_of(
    name: str, devices: tuple[int, ...], executions: tuple[int, ...]
) -> ProgramCosts:
    trace, module = job(name)
    rows = np.isin(trace.execution, executions) & np.isin(trace.device, devices)
    trace = replace(
        trace, **{column: getattr(trace, column)[rows] for column in COLUMNS}
    )
    program = next(
        item for item in find_programs(trace, [module]) if item.hlo is not None
    )
    return aggregate(trace, [program], AggregateOptions(keep_all=True))[0]


def costs_alone(seen: ProgramCosts, module: Module) -> dict[str, float]:
    """What kernels that ran beside collectives take by the same work that ran alone."""
    assert seen.contention is not None
    beside, alone = seen.contention.beside, defaultdict(list)
    work = {
        cost.name: module.work(module.instructions[cost.name])
        for cost in seen.costs
        if cost.name in module.instructions
    }
    for cost in seen.costs:
        if cost.name in work and cost.name not in beside:
            alone[work[cost.name]].append(cost.cost_us)
    enough = [
        name
        for name, share in beside.items()
        if share >= 0.9 and name in work and len(alone[work[name]]) >= 3
    ]
    return {name: median(alone[work[name]]) for name in enough}


def predicted_us(
    seen: ProgramCosts, module: Module, alone: Mapping[str, float], slower: Factors
) -> float:
    """An execution of each of `alone` in the simulated step, together."""
    table = {
        cost.name: cost._replace(cost_us=alone.get(cost.name, cost.cost_us))
        for cost in seen.costs
    }
    found = simulate(module, table, launch=seen.launch or DEFAULT, slower=slower)
    time, count = (
        np.bincount(found.instruction, weights=column, minlength=len(found.names))
        for column in (found.duration_us, found.count)
    )
    return sum(
        float(time[code] / count[code])
        for code, name in enumerate(found.names)
        if name in alone
    )


@pytest.mark.parametrize(
    ("name", "seen", "unseen", "slower"),
    [
        ("pax", (0,), (1,), 1.7),
        ("pax", (1,), (0,), 1.7),
        ("maxtext", (0, 1), (2, 3), 1.93),
        ("maxtext", (2, 3), (0, 1), 1.94),
    ],
)
def test_kernels_beside_collectives_are_predicted_slower_by_what_other_ranks_and_executions_show(
    name: str, seen: tuple[int, ...], unseen: tuple[int, ...], slower: float
) -> None:
    module, costs = job(name)[1], costs_of(name, seen, (2,))
    assert costs.contention is not None
    alone = costs_alone(costs, module)
    measured = sum(
        cost.cost_us
        for cost in costs_of(name, unseen, (3, 4)).costs
        if cost.name in alone
    )
    assert measured / predicted_us(costs, module, alone, NONE) == pytest.approx(
        slower, rel=0.02
    )
    assert measured / predicted_us(
        costs, module, alone, costs.contention.likely
    ) == pytest.approx(1, rel=0.04)


def step_error(name: str, slower: Factors) -> float:
    """Of the step predicted from kernels alone: each that ran during a collective takes what the
    same work took alone.

    Factors are those of `slower`, and the error is a share of the measured step of the same
    executions.
    """
    module, measured = job(name)[1], costs_of(name, DEVICES[name], EXECUTIONS[name])
    beside, alone = measured.contention.beside or {}, defaultdict(list)
    work = {
        c.name: module.work(module.instructions[c.name])
        for c in measured.costs
        if c.name in module.instructions
    }
    for cost in measured.costs:
        if cost.name in work and cost.name not in beside:
            alone[work[cost.name]].append(cost)

    def without_contention(cost: Cost) -> Cost:
        twins = (
            alone[work[cost.name]]
            if beside.get(cost.name, 0.0) >= MOSTLY_ALONE and cost.name in work
            else []
        )
        if not twins:
            return cost
        slowest = median(twin.slowest_us or twin.cost_us for twin in twins)
        return cost._replace(
            cost_us=median(twin.cost_us for twin in twins), slowest_us=slowest
        )

    product, other = (Slowdown(factor, factor, factor, samples=9) for factor in slower)
    profile = Profile(tuple(map(without_contention, measured.costs)))
    assert measured.launch is not None
    # The measured step is that of the typical rank, which waits less than the first one.
    launch = replace(measured.launch, begin_us=0.0)
    found = predict(
        module,
        profile,
        GPUS[name],
        launch=launch,
        contention=Contention(product, other, {}),
    )
    return found.step_us / measured.window.span_us - 1


@pytest.mark.parametrize(("name", "other"), [("pax", "maxtext"), ("maxtext", "pax")])
def test_the_contention_of_one_job_predicts_the_step_of_the_other(
    name: str, other: str
) -> None:
    """Neither of the two figures was made with the job that it is judged on."""
    without = step_error(name, NONE)
    assert without < -0.009
    assert abs(step_error(name, OF_JOBS[other])) < 0.6 * abs(without)
    assert abs(step_error(name, ASSUMED.likely)) < 0.6 * abs(without)
