"""A trace becomes a cost profile: per module, per instruction, robust to warm-up, stragglers and renames.

- A compute instruction costs the statistic of its occurrences over steady executions, devices and loop iterations.
- A collective's time on one device includes the wait for the last rank. Of each occurrence the minimum over the devices
  of a replica group is taken (the last rank to arrive waits for nobody), then the statistic over executions, then the
  largest over groups.
- A loop costs what `pgle.costs.measure.loop_costs` says.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from pgle.costs.fit.launch import Launch, measure_launch
from pgle.costs.measure.align import Alignment, align
from pgle.costs.measure.last_arrival import Reduced, after_last_arrival
from pgle.costs.measure.loop_costs import loop_costs
from pgle.costs.measure.naming import Filed, NamingPlan, plan_names
from pgle.costs.measure.options import AggregateOptions
from pgle.costs.measure.programs import Program
from pgle.costs.measure.samples import Samples, collect_samples
from pgle.costs.measure.statistic import percentile_of_sorted, sorted_groups
from pgle.costs.profile.value import Cost, CostKind, Ends, Origin
from pgle.trace.table import Trace
from pgle.trace.windows import Executions, find_executions
from pgle.xla.hlo.module import Module

BLOCK_SAMPLES = 1 << 20
"""Samples whose statistics are worked out at once."""

Floats = npt.NDArray[np.float64]
Codes = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Window:
    """Which executions of a module the costs stand on.

    Attributes:
        used: executions used, summed over devices.
        seen: executions in the trace, summed over devices.
        dropped: reason by execution number.
        step_us: median span of a used execution, first start to last end, in microseconds; NaN where none.
        devices: devices that ran it.
        fewest, most: executions in the trace on the device with fewest and with most.
    """

    used: int
    seen: int
    dropped: Mapping[int, str]
    step_us: float
    devices: int
    fewest: int = 0
    most: int = 0


@dataclass(frozen=True)
class ProgramCosts:
    """The costs of one program.

    Attributes:
        program: what they are of.
        costs: one per name, ordered by name.
        window: the executions they stand on.
        left_out: traced names that are no cost, by reason.
        occurrences: of each collective, what `Profile.occurrences` keeps.
        warnings: one line each.
        launch: gaps between kernels; None where too few were seen.
        ranks: how many meet in the largest collective; 0 where no HLO says it.
        rank_ids: JAX's global ids of the devices that ran it; empty where the trace does not say all of them.
        ends: what `Profile.ends` keeps.
    """

    program: Program
    costs: tuple[Cost, ...]
    window: Window
    left_out: Mapping[str, tuple[str, ...]]
    occurrences: Mapping[str, Mapping[str, float]]
    warnings: tuple[str, ...]
    launch: Launch | None = None
    ranks: int = 0
    rank_ids: tuple[int, ...] = ()
    ends: tuple[Ends, ...] = ()


def aggregate(
    trace: Trace,
    programs: Sequence[Program],
    options: AggregateOptions | None = None,
    lhs_modules: Mapping[str, Module] | None = None,
) -> tuple[ProgramCosts, ...]:
    """The costs of each program.

    Args:
        trace: all ranks in one table.
        programs: from `pgle.costs.measure.programs`.
        options: statistics.
        lhs_modules: modules as LHS saw them, by module name, from schedule dumps.
    """
    options = options or AggregateOptions()
    plans = [plan_names(trace, program, (lhs_modules or {}).get(program.key.name)) for program in programs]
    collective = np.zeros(len(trace.instructions), dtype=bool)
    for plan in plans:
        communicates = np.array([item.kind == CostKind.COLLECTIVE for item in plan.filed] or [False])
        filed = plan.naming.target >= 0
        collective[filed[: len(collective)]] |= communicates[plan.naming.target[filed]]
    alignments = []
    for program, plan in zip(programs, plans, strict=True):
        trace, alignment = align(trace, program, plan)
        alignments.append(alignment)
    executions = find_executions(trace, collective)
    return tuple(
        _program_costs(trace, program, plan, executions, alignment, collective, options)
        for program, plan, alignment in zip(programs, plans, alignments, strict=True)
    )


def _program_costs(
    trace: Trace,
    program: Program,
    plan: NamingPlan,
    executions: Executions,
    alignment: Alignment,
    collective: npt.NDArray[np.bool_],
    options: AggregateOptions,
) -> ProgramCosts:
    kept, window = _window(executions, program, options.keep_all)
    samples = collect_samples(trace, program.indices, dict.fromkeys(program.indices, plan.naming), kept)
    communicates = np.array([item.kind == CostKind.COLLECTIVE for item in plan.filed] or [False])
    of_collective = communicates[samples.name] if len(samples) else np.empty(0, bool)
    compute = _compute_costs(samples, ~of_collective, plan.filed, options)
    reduced = after_last_arrival(samples, of_collective, plan.filed, trace.devices)
    collectives = _collective_costs(reduced, plan.filed, options)
    whiles = loop_costs(trace, program, kept, options.stat)
    costs = tuple(sorted([*compute, *collectives, *whiles], key=lambda cost: cost.name))
    if trace.simulated:
        costs = tuple(replace(cost, origin=Origin.SIMULATED) for cost in costs)
    return ProgramCosts(
        program=program,
        costs=costs,
        window=window,
        left_out=plan.left_out,
        occurrences=_occurrence_table(reduced, plan.filed),
        warnings=_warnings(program, window, costs, plan, alignment),
        launch=measure_launch(trace, collective, kept),
        ranks=_ranks(plan),
        rank_ids=_rank_ids(trace, executions, program),
        ends=alignment.ends,
    )


def _ranks(plan: NamingPlan) -> int:
    collectives = (item for item in plan.filed if item.kind == CostKind.COLLECTIVE)
    return max((len(group) for item in collectives for group in item.groups), default=0)


def _rank_ids(trace: Trace, executions: Executions, program: Program) -> tuple[int, ...]:
    here = np.unique(executions.device[np.isin(executions.module, program.indices)]).tolist()
    ids = [trace.devices[device].global_id for device in here]
    return tuple(sorted(item for item in ids if item is not None)) if None not in ids else ()


def _window(
    executions: Executions, program: Program, keep_all: bool
) -> tuple[dict[int, npt.NDArray[np.bool_]], Window]:
    """Kept executions by module index, and what was dropped."""
    kept: dict[int, npt.NDArray[np.bool_]] = {}
    dropped: dict[int, str] = {}
    here = np.isin(executions.module, program.indices)
    keep = here & (executions.keep | keep_all)
    for index in program.indices:
        mask = np.zeros(int(executions.execution.max(initial=0)) + 1, dtype=bool)
        mask[executions.execution[keep & (executions.module == index)]] = True
        kept[index] = mask
        if not keep_all:
            dropped |= {number: why for (module, number), why in executions.reasons.items() if module == index}
    spans = executions.span_ns[keep]
    per_device = np.unique(executions.device[here], return_counts=True)[1]
    return kept, Window(
        used=int(keep.sum()),
        seen=int(here.sum()),
        dropped=dict(sorted(dropped.items())),
        step_us=float(np.median(spans)) / 1e3 if len(spans) else float("nan"),
        devices=len(per_device),
        fewest=min(per_device.tolist(), default=0),
        most=max(per_device.tolist(), default=0),
    )


def _summaries(values: Floats, groups: Codes, count: int) -> tuple[Floats, Floats, Floats, Codes]:
    """Minimum, maximum, (p90 - p10) / median and size of each group."""
    sizes = np.bincount(groups, minlength=count).astype(np.int64)
    ordered, first = sorted_groups(values, groups, sizes)
    low, p10, middle, p90, high = (percentile_of_sorted(ordered, first, sizes, q) for q in (0, 10, 50, 90, 100))
    spread = np.divide(p90 - p10, middle, out=np.zeros(count), where=middle > 0)
    return low, high, spread, sizes


def _compute_costs(
    samples: Samples, use: npt.NDArray[np.bool_], filed: Sequence[Filed], options: AggregateOptions
) -> list[Cost]:
    """The costs of compute instructions, some names at a time, so that memory does not grow with the trace."""
    sizes = np.bincount(samples.name[use], minlength=len(filed))
    edges = np.searchsorted(np.cumsum(sizes), np.arange(0, len(samples) + BLOCK_SAMPLES, BLOCK_SAMPLES), side="right")
    parts = []
    for low, high in pairwise(np.unique([0, *edges, len(filed)]).tolist()):
        here = np.flatnonzero(use & (samples.name >= low) & (samples.name < high))
        values, groups = samples.time_ns[here] / 1e3, samples.name[here].astype(np.int64) - low
        cost = options.stat.over_groups(values, groups, high - low)
        parts.append((cost, *_summaries(values, groups, high - low)))
    if not parts:
        return []
    cost, least, most, spread, counts = (np.concatenate(column) for column in zip(*parts, strict=True))
    return _costs(cost, least, most, spread, counts, filed)


def _costs(cost: Floats, low: Floats, high: Floats, spread: Floats, sizes: Codes, filed: Sequence[Filed]) -> list[Cost]:
    return [
        Cost(
            name=item.name,
            cost_us=float(cost[i]),
            kind=item.kind,
            opcode=item.opcode,
            shape=item.shape,
            samples=int(sizes[i]),
            min_us=float(low[i]),
            max_us=float(high[i]),
            spread=float(spread[i]),
            trace_name=item.trace_name,
        )
        for i, item in enumerate(filed)
        if sizes[i]
    ]


def _collective_costs(reduced: Reduced, filed: Sequence[Filed], options: AggregateOptions) -> list[Cost]:
    """The statistic over executions of each group, and of the groups the slowest."""
    groups_per_name = int(reduced.group.max(initial=0)) + 1
    key = reduced.name * groups_per_name + reduced.group
    count = len(filed) * groups_per_name
    cost = options.collective_stat.over_groups(reduced.time_us, key, count).reshape(len(filed), groups_per_name)
    slowest = np.nan_to_num(cost, nan=-1.0).argmax(axis=1) if len(filed) else np.empty(0, np.int64)
    use = reduced.group == slowest[reduced.name] if len(reduced.name) else np.empty(0, bool)
    summaries = _summaries(reduced.time_us[use], reduced.name[use], len(filed))
    return _costs(cost[np.arange(len(filed)), slowest], *summaries, filed)


def _occurrence_table(reduced: Reduced, filed: Sequence[Filed]) -> dict[str, dict[str, float]]:
    """What `Profile.occurrences` keeps: the minimum over the devices seen, by ``EXECUTION.OCCURRENCE[.GROUP]``."""
    table: dict[str, dict[str, float]] = {}
    columns = (reduced.name, reduced.group, reduced.execution, reduced.occurrence, reduced.time_us)
    for name, group, execution, occurrence, time in zip(*(column.tolist() for column in columns), strict=True):
        key = f"{execution}.{occurrence}" + (f".{group}" if group else "")
        table.setdefault(filed[name].name, {})[key] = round(time, 3)
    return table


def _collectives(count: int) -> str:
    return "1 collective varies" if count == 1 else f"{count} collectives vary"


def _warnings(
    program: Program, window: Window, costs: Sequence[Cost], plan: NamingPlan, alignment: Alignment
) -> tuple[str, ...]:
    lines = []
    label = program.key.name
    collectives = [item for item in plan.filed if item.kind == CostKind.COLLECTIVE]
    if window.seen and window.used == window.devices and not window.dropped:
        lines.append(f"{label}: one execution per device in the window, warm-up cannot be told; trace 5 or more steps")
    ranks = _ranks(plan)
    if collectives and window.devices < max(ranks, 2):
        lines.append(
            f"{label}: {window.devices} of {ranks or 'several'} ranks given, so a collective includes the wait for "
            "a rank that is not; give the traces of all ranks"
        )
    if collectives and (line := alignment.describe(window.fewest, window.most)):
        lines.append(f"{label}: {line}; trace the same steps on all")
    if collectives and program.hlo is None:
        lines.append(
            f"{label}: no HLO, so names of collectives may not be those that LHS looks up; pass --hlo DUMP_DIR"
        )
    if len(program.fingerprints) > 1:
        lines.append(
            f"{label}: {len(program.fingerprints)} fingerprints over the processes (autotuning differs); "
            "bare names serve all, fingerprint names would not"
        )
    noisy = [cost for cost in costs if cost.kind == CostKind.COLLECTIVE and cost.samples > 2 and cost.spread > 0.5]
    if noisy:
        worst = max(noisy, key=lambda cost: cost.cost_us * cost.spread)
        lines.append(
            f"{label}: {_collectives(len(noisy))} by more than 50 % between executions, most {worst.name} "
            f"({worst.min_us:.0f} to {worst.max_us:.0f} µs)"
        )
    missing = plan.left_out.get("not in the HLO module", ())
    if missing:
        lines.append(f"{label}: {len(missing)} traced names are not in its HLO module ({', '.join(missing[:3])})")
    return tuple(lines)
