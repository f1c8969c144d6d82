"""What whole loops cost: LHS looks a ``while`` up by its own name, so that communication can hide behind all of it.

The time of a loop is the span from its first to its last activity in one execution of the module, the least over
devices (ranks wait for each other inside loops that communicate), then the statistic over executions. Loops inside
loops are left out: their spans cannot be told apart, and XLA takes a loop without a cost for cheap.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from pgle.costs.measure.programs import Program
from pgle.costs.profile.value import Cost, CostKind
from pgle.costs.statistic import Statistic
from pgle.trace.column import distinct
from pgle.trace.table import Trace
from pgle.xla.hlo.module import Module
from pgle.xla.hlo.names import loops, owner


def loop_costs(
    trace: Trace, program: Program, kept: Mapping[int, npt.NDArray[np.bool_]], statistic: Statistic
) -> list[Cost]:
    """The costs of the loops of the entry computation.

    Args:
        program: with HLO; without, there are no loops to know of.
        kept: bool[executions] by module index, True for the executions to use.
    """
    if program.hlo is None:
        return []
    codes_of = _codes_by_loop(trace, program, program.hlo)
    costs = []
    for name, codes in sorted(codes_of.items()):
        spans = _spans_us(trace, program, codes, kept)
        if len(spans) == 0:
            continue
        value = float(statistic.over_groups(spans, np.zeros(len(spans), np.int64), 1)[0])
        low, p10, middle, p90, high = np.percentile(spans, [0, 10, 50, 90, 100]).tolist()
        shape, spread = str(program.hlo.instructions[name].shape), (p90 - p10) / middle if middle else 0.0
        loop = Cost(name, value, kind=CostKind.LOOP, opcode="while", shape=shape)
        costs.append(loop._replace(samples=len(spans), min_us=low, max_us=high, spread=spread))
    return costs


def _codes_by_loop(trace: Trace, program: Program, module: Module) -> dict[str, list[int]]:
    """Codes of the instruction names that run inside each outermost loop."""
    found: dict[str, list[int]] = {}
    for code in distinct(trace.instruction[np.isin(trace.module, program.indices)]).tolist():
        owning = owner(module, trace.instructions[code])
        around = () if owning is None else loops(module, owning)
        if around and module.instructions[around[0][0]].computation == module.entry:
            found.setdefault(around[0][0], []).append(code)
    return found


def _spans_us(
    trace: Trace, program: Program, codes: list[int], kept: Mapping[int, npt.NDArray[np.bool_]]
) -> npt.NDArray[np.float64]:
    """One span per kept execution, the least over devices, in microseconds."""
    rows = np.flatnonzero(np.isin(trace.module, program.indices) & np.isin(trace.instruction, codes))
    rows = rows[trace.execution[rows] >= 0]
    use = np.zeros(len(rows), dtype=bool)
    for index in program.indices:
        of_module = trace.module[rows] == index
        use[of_module] = kept[index][trace.execution[rows[of_module]]]
    rows = rows[use]
    if len(rows) == 0:
        return np.empty(0)
    devices, executions = len(trace.devices), int(trace.execution[rows].max()) + 1
    key = trace.device[rows].astype(np.int64) * executions + trace.execution[rows]
    first = np.full(devices * executions, np.iinfo(np.int64).max)
    last = np.full(devices * executions, np.iinfo(np.int64).min)
    np.minimum.at(first, key, trace.start_ns[rows])
    np.maximum.at(last, key, trace.end_ns[rows])
    seen = last > np.iinfo(np.int64).min
    spans = np.full(devices * executions, np.inf)
    spans[seen] = last[seen] - first[seen]
    least: npt.NDArray[np.float64] = spans.reshape(devices, executions).min(axis=0)
    return least[np.isfinite(least)] / 1e3
