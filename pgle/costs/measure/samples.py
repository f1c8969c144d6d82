"""Samples: how long each instruction ran, per device, execution and occurrence. Reduce the samples
to one cost.

1. GPU activities become launches. A launch takes the union of its busy intervals on one device, so
   idle gaps between its kernels do not count.
2. Launches become occurrences: the launches of one run of an instruction, or of one loop iteration.
3. A statistic over occurrences is the cost: ``median``, ``mean``, ``min``, ``max`` or ``pNN``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from pgle.costs.profile.lookup import FiledLoop, Naming, group_of_device
from pgle.costs.profile.value import Cost
from pgle.errors import UserError
from pgle.trace.columns import (
    BLOCK_ROWS,
    EARLIEST,
    LATEST,
    NO_ROWS,
    Codes,
    Flags,
    Floats,
    GrowingColumn,
    Ints,
    changes,
    heads,
    run_lengths,
)
from pgle.trace.table import Device, Trace


@dataclass(frozen=True, eq=False)
class Samples:
    """Occurrences of the instructions of one module: n rows ordered by (device, execution, name,
    occurrence).
    """

    # int[n] each, in as few bytes as they need
    name: Codes  # index into `Naming.filed`
    device: Codes  # index into the trace's devices
    execution: Codes
    occurrence: Codes  # running number within the execution on that device
    # number of collectives that ended before it begins, in the same execution on the same device;
    # for a collective, up to and including its own end
    ended: Codes
    # 1 for a collective if nothing computes on its device just before its end, so compute waited
    # for it; else 0
    waited: Codes
    time_ns: Codes  # busy GPU time, in ns

    def __len__(self) -> int:
        return len(self.name)


def collect_samples(trace: Trace, module: int, naming: Naming, kept: Flags) -> Samples:
    """Return the occurrences of one program in a trace.

    Args:
        module: index into `Trace.modules`.
        kept: bool[executions], True for the executions to use.
    """
    most = int(np.count_nonzero(trace.module == module))
    columns: dict[str, GrowingColumn[Any]] = {
        item.name: GrowingColumn(np.int16, most) for item in fields(Samples)
    }
    for rows in _chunks(trace, module):
        launches = _launches(trace, *_used(trace, rows, naming, kept), naming)
        part = _occurrences(launches, naming)
        for name, column in columns.items():
            column.append(getattr(part, name))
    return Samples(**{name: column.join() for name, column in columns.items()})


def _chunks(trace: Trace, module: int) -> Iterator[npt.NDArray[np.int32]]:
    """Yield row numbers of one module in batches of whole executions on one device."""
    of_module = np.flatnonzero(trace.module == module).astype(np.int32)
    if len(of_module) <= BLOCK_ROWS:
        if len(of_module):
            yield of_module
        return
    begins = _changes(trace, of_module)
    # Usually executions follow each other, device by device. Then each is one run of rows.
    device, execution = (
        trace.device[of_module[begins]],
        trace.execution[of_module[begins]],
    )
    runs = np.sort(
        device.astype(np.int64) << 32 | execution.astype(np.int64) & 0xFFFFFFFF
    )
    if (runs[1:] == runs[:-1]).any():
        of_module = of_module[
            np.lexsort((trace.execution[of_module], trace.device[of_module]))
        ]
        begins = _changes(trace, of_module)
    start = 0
    for edge in [*begins[1:].tolist(), len(of_module)]:
        if edge - start >= BLOCK_ROWS or edge == len(of_module):
            yield of_module[start:edge]
            start = edge


def _changes(trace: Trace, rows: npt.NDArray[np.int32]) -> Ints:
    """Return the positions in `rows` at which another execution or device begins, including 0.

    The rows are searched in blocks, to save memory.
    """
    found = [np.zeros(1, np.int64)]
    for first in range(0, len(rows) - 1, BLOCK_ROWS):
        piece = rows[first : first + BLOCK_ROWS + 1]
        new = heads(trace.device[piece], trace.execution[piece])
        found.append(new[1:] + first)
    return np.concatenate(found)


def _used(
    trace: Trace, rows: npt.NDArray[np.int32], naming: Naming, kept: Flags
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    """Return the rows of kept executions that count as a cost, and the name that each is filed
    under.
    """
    target = naming.target[trace.instruction[rows]]
    execution = trace.execution[rows]
    use = (target >= 0) & (execution >= 0)
    use[use] = kept[execution[use]]
    return rows[use], target[use]


def _launches(
    trace: Trace,
    rows: npt.NDArray[np.int32],
    target: npt.NDArray[np.int32],
    naming: Naming,
) -> Samples:
    """Join activities to launches. The time of a launch is the union of its busy intervals.

    Returns:
        Rows ordered by (device, execution, start). `occurrence` is the position in this order.
    """
    device, execution = trace.device[rows], trace.execution[rows]
    place = _places(device, execution)
    instance = trace.instance[rows].astype(np.int64)
    alone = instance < 0
    instance[alone] = np.iinfo(np.int32).max + 1 + np.flatnonzero(alone)
    start = trace.start_ns[rows]
    end = start + trace.duration_ns[rows]
    order = np.lexsort((instance, place))  # rows of one launch stay ordered by start
    first = heads(place[order], instance[order])
    launch = order[first]
    busy = _union_ns(start[order], end[order], first)
    last = np.maximum.reduceat(end[order], first) if len(first) else first
    by_start = np.lexsort((start[launch], place[launch]))
    launch, busy, last = launch[by_start], busy[by_start], last[by_start]
    name, device, execution = target[launch], device[launch], execution[launch]
    communicates = np.asarray(naming.communicates[name], np.bool_)
    ended, waited = _ends(place[launch], start[launch], last, communicates)
    return Samples(
        name=name,
        device=device,
        execution=execution,
        occurrence=np.arange(len(launch), dtype=np.int32),
        ended=ended,
        waited=waited,
        time_ns=busy,
    )


WAITED_NS = 1_000
"""If nothing computes for this long before the end of a collective, compute waited for it.

Kernels of one stream follow each other within a microsecond or two.
"""


def _ends(
    place: Ints, start: Ints, end: Ints, communicates: Flags
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int8]]:
    """Count the collectives that ended before each launch begins, and find those that compute
    waited for.

    Args:
        place: int64[n], execution and device of each launch; launches are ordered by (place,
            start).

    Returns:
        int32[n], for a collective up to its own end; then int8[n], 1 for a collective if nothing
        computes just before its end.
    """
    ended = np.zeros(len(place), np.int32)
    waited = np.zeros(len(place), np.int8)
    edges = np.append(heads(place), len(place)).tolist()
    for low, high in pairwise(edges):
        here = communicates[low:high]
        begins, ends = start[low:high], end[low:high]
        of_collectives = np.sort(ends[here])
        ended[low:high] = np.searchsorted(
            of_collectives, np.where(here, ends, begins), "right"
        )
        compute_begins = begins[~here]
        reach = np.maximum.accumulate(ends[~here])
        if len(reach) == 0:
            continue
        before = np.searchsorted(compute_begins, ends[here]) - 1
        is_idle = reach[np.maximum(before, 0)] < ends[here] - WAITED_NS
        waited[low:high][here] = (before < 0) | is_idle
    return ended, waited


def _places(device: Codes, execution: Codes) -> Ints:
    """Number each execution on each device from 0, ordered by (device, execution)."""
    return device.astype(np.int64) * (int(execution.max(initial=0)) + 1) + execution


def _union_ns(start: Ints, end: Ints, first: Ints) -> Ints:
    """Return int64[groups]: the length in ns of the union of each group's intervals.

    Groups are contiguous, and intervals of a group are ordered by start.

    Args:
        first: the position of the first interval of each group.
    """
    if len(start) == 0:
        return NO_ROWS
    sizes = run_lengths(first, len(start))
    busy = end - start
    if (sizes == 1).all():
        return busy[first]
    # Shift each group behind the previous one, so that one running maximum serves all groups.
    # Groups of one interval need no shift.
    many = np.repeat(sizes > 1, sizes)
    group = np.repeat(np.arange(len(first)), sizes)[many]
    group = np.cumsum(changes(group)) - 1
    origin = np.repeat(start[first], sizes)[many]
    relative_start, relative_end = start[many] - origin, end[many] - origin
    reach = int(relative_end.max()) + 1
    if reach * (int(group[-1]) + 1) < LATEST:
        shift = group * reach
        running = np.maximum.accumulate(relative_end + shift) - shift
        before = np.zeros_like(running)
        before[1:] = np.where(np.diff(group) == 0, running[:-1], 0)
    else:  # intervals of days, whose shifts would overflow, are joined one by one
        before = np.zeros_like(relative_end)
        for i in range(1, len(before)):
            if group[i] == group[i - 1]:
                before[i] = max(before[i - 1], relative_end[i - 1])
    busy[many] = np.maximum(relative_end - np.maximum(relative_start, before), 0)
    return np.add.reduceat(busy, first)


def _occurrences(launches: Samples, naming: Naming) -> Samples:
    """Sum the launches of each run of an instruction. The launches are in launch order."""
    if len(launches) == 0:
        return launches
    place = _places(launches.device, launches.execution)
    order = np.lexsort((launches.name, place))
    name, place = launches.name[order], place[order]
    first = heads(name, place)
    sizes = run_lengths(first, len(order))
    runs = naming.iterations[name[first]].astype(np.int64)
    occurrence = np.empty(len(order), np.int64)
    counted = np.repeat(runs > 0, sizes)
    if counted.any():
        rank = np.arange(len(order)) - np.repeat(first, sizes)
        per_run = np.where(
            (runs > 0) & (sizes % np.maximum(runs, 1) == 0),
            sizes // np.maximum(runs, 1),
            1,
        )
        occurrence[:] = rank // np.repeat(np.maximum(per_run, 1), sizes)
    if not counted.all():
        # Without HLO, launches of one name with nothing in between count as one run, such as a copy
        # fusion of eight outputs.
        broken = np.ones(len(order), dtype=bool)
        broken[1:] = np.diff(launches.occurrence[order]) != 1
        broken[first] = True
        groups = np.cumsum(broken)
        np.copyto(occurrence, groups - np.repeat(groups[first], sizes), where=~counted)
    head = heads(name, place, occurrence)
    first_launch = order[head]
    ended = launches.ended[order]
    at_begin = ended[head]
    at_end = np.maximum.reduceat(ended, head)
    waited = np.maximum.reduceat(launches.waited[order], head)
    time_ns = np.add.reduceat(launches.time_ns[order], head)
    name = name[head]
    return Samples(
        name=name,
        device=launches.device[first_launch],
        execution=launches.execution[first_launch],
        occurrence=occurrence[head].astype(np.int32),
        ended=np.where(naming.communicates[name], at_end, at_begin),
        waited=waited,
        time_ns=time_ns,
    )


_PERCENTILE = re.compile(r"p(\d{1,2}(?:\.\d+)?|100)")


@dataclass(frozen=True, slots=True)
class Statistic:
    """A statistic that reduces a group of samples to one value."""

    name: str  # the name that the user gave
    percentile: float | None  # 0 to 100 with linear interpolation; None for the mean

    def over_groups(self, values: Floats, groups: Codes, count: int) -> Floats:
        """Return float64[count]: the statistic of each group 0 … count-1; NaN for a group without
        values.
        """
        sizes = np.bincount(groups, minlength=count)
        if self.percentile is None:
            sums = np.bincount(groups, weights=values, minlength=count)
            means: Floats = np.full(count, np.nan)
            return np.divide(sums, sizes, out=means, where=sizes > 0)
        order = by_group(values, groups, count)
        return percentile_of_sorted(values[order], sizes, self.percentile)


def by_group(values: Floats, groups: Codes, count: int) -> Ints:
    """Return the order of values by (group, value), for groups 0 … count-1."""
    by_value = np.argsort(values)  # several times faster than a key of `lexsort`
    groups = groups[by_value]
    # numpy sorts two-byte integers by counting
    narrow = groups.astype(np.int16) if count < 2**15 else groups
    return by_value[np.argsort(narrow, kind="stable")]


def percentile_of_sorted(ordered: Floats, sizes: Ints, percentile: float) -> Floats:
    """Return the percentile of each group, interpolated as by `numpy.percentile`; NaN for an empty
    group.

    Args:
        ordered: the values, ordered by (group, value).
        sizes: the number of values in each group.
        percentile: 0 to 100.
    """
    result = np.full(len(sizes), np.nan)
    filled = sizes > 0
    start = (np.cumsum(sizes) - sizes)[filled]
    position = (sizes[filled] - 1) * (percentile / 100)
    low = np.floor(position).astype(np.int64)
    high = np.ceil(position).astype(np.int64)
    below = ordered[start + low]
    above = ordered[start + high]
    result[filled] = below + (above - below) * (position - low)
    return result


def parse_statistic(text: str) -> Statistic:
    """Return the statistic with this name.

    Raises:
        UserError: the name is not one of ``median``, ``mean``, ``min``, ``max``, ``p0`` … ``p100``.
    """
    named = {"median": 50.0, "mean": None, "min": 0.0, "max": 100.0}
    if text in named:
        return Statistic(text, named[text])
    match = _PERCENTILE.fullmatch(text)
    if match is None:
        raise UserError(
            f"unknown statistic {text!r}",
            remedy="use median, mean, min, max or pNN such as p90",
        )
    return Statistic(text, float(match[1]))


BLOCK_SAMPLES = 1 << 20  # about how many samples are reduced at once


def compute_costs(
    samples: Samples,
    use: Flags,
    skew_us: Floats,
    filed: Sequence[Cost],
    stat: Statistic,
) -> list[Cost]:
    """Return the costs of compute instructions. Names are reduced in batches, which limits the
    memory.

    Args:
        use: bool[n], True for samples of compute.
        skew_us: float64[len(filed)], from `rank_skew_us`.
        filed: the names, as in `Naming.filed`.
    """
    sizes = np.zeros(len(filed), np.int64)
    for rows in sample_chunks(samples, use):
        sizes += np.bincount(samples.name[rows], minlength=len(filed))
    edges = np.searchsorted(
        np.cumsum(sizes),
        np.arange(0, len(samples) + BLOCK_SAMPLES, BLOCK_SAMPLES),
        side="right",
    )
    parts = []
    for low, high in pairwise(sorted({0, *edges.tolist(), len(filed)})):
        here = np.flatnonzero(use & (samples.name >= low) & (samples.name < high))
        values = samples.time_ns[here] / 1e3
        groups = samples.name[here].astype(np.int64) - low
        parts.append(_summaries(values, groups, high - low, stat))
    if not parts:
        return []
    cost, least, most, spread, counts = (
        np.concatenate(column) for column in zip(*parts, strict=True)
    )
    return _costs(
        cost=cost,
        low=least,
        high=most,
        spread=spread,
        sizes=counts,
        slowest=np.maximum(cost + skew_us, 0.0),
        filed=filed,
    )


def _after_last_arrival(
    samples: Samples, use: Flags, naming: Naming, devices: Sequence[Device]
) -> tuple[Ints, Ints, Floats]:
    """Return name, group and time in µs of each collective: the minimum over the devices of its
    group.

    There is one row per execution and occurrence. A collective's time on one device includes the
    wait for the last rank, and the last rank waits for nobody. A row that fewer devices recorded
    than other rows of the same collective is left out. The missing device may be the last rank.
    """
    name = samples.name[use].astype(np.int64)
    device = samples.device[use]
    group = group_of_device(naming, devices)[name, device] if len(name) else NO_ROWS
    execution = samples.execution[use].astype(np.int64)
    occurrence = samples.occurrence[use].astype(np.int64)
    order = np.lexsort((occurrence, execution, group, name))
    name = name[order]
    group = group[order]
    execution = execution[order]
    occurrence = occurrence[order]
    first = heads(name, group, execution, occurrence)
    time = samples.time_ns[use][order] / 1e3
    if len(first) == 0:
        return name, group, time
    shortest = np.minimum.reduceat(time, first)
    seen = run_lengths(first, len(order))
    key = name[first] * (int(group.max()) + 1) + group[first]
    most = np.zeros(int(key.max()) + 1, np.int64)
    np.maximum.at(most, key, seen)
    whole = seen == most[key]
    return name[first[whole]], group[first[whole]], shortest[whole]


def collective_costs(
    samples: Samples,
    use: Flags,
    naming: Naming,
    devices: Sequence[Device],
    stat: Statistic,
) -> list[Cost]:
    """Return the costs of collectives, without the wait for the last rank.

    The cost is the statistic over executions of each replica group; the slowest group counts.
    """
    filed = naming.filed
    name, group, time_us = _after_last_arrival(samples, use, naming, devices)
    groups_per_name = int(group.max(initial=0)) + 1
    count = len(filed) * groups_per_name
    cost = stat.over_groups(time_us, name * groups_per_name + group, count).reshape(
        len(filed), groups_per_name
    )
    slowest = np.nan_to_num(cost, nan=-1.0).argmax(axis=1) if len(filed) else NO_ROWS
    use = group == slowest[name] if len(name) else np.empty(0, bool)
    summaries = _summaries(time_us[use], name[use], len(filed), stat)[1:]
    return _costs(
        cost[np.arange(len(filed)), slowest],
        *summaries,
        np.full(len(filed), np.nan),
        filed,
    )


def _summaries(
    values: Floats, groups: Ints, count: int, stat: Statistic
) -> tuple[Floats, Floats, Floats, Floats, Ints]:
    """Return the statistic, minimum, maximum, (p90 - p10) / median and size of each group."""
    sizes = np.bincount(groups, minlength=count).astype(np.int64)
    ordered = values[by_group(values, groups, count)]
    low, p10, middle, p90, high = (
        percentile_of_sorted(ordered, sizes, q) for q in (0, 10, 50, 90, 100)
    )
    spread = np.divide(p90 - p10, middle, out=np.zeros(count), where=middle > 0)
    if stat.percentile is None:
        cost = stat.over_groups(values, groups, count)
    else:
        cost = percentile_of_sorted(ordered, sizes, stat.percentile)
    return cost, low, high, spread, sizes


def _costs(
    cost: Floats,
    low: Floats,
    high: Floats,
    spread: Floats,
    sizes: Ints,
    slowest: Floats,
    filed: Sequence[Cost],
) -> list[Cost]:
    # lists, because reading arrays item by item is slow
    columns = (column.tolist() for column in (cost, low, high, spread, sizes, slowest))
    found = []
    for item, cost_us, min_us, max_us, by_median, samples, slowest_us in zip(
        filed, *columns, strict=True
    ):
        if not samples:
            continue
        cost_of_item = item._replace(
            cost_us=cost_us,
            samples=samples,
            min_us=min_us,
            max_us=max_us,
            spread=by_median,
            slowest_us=None if math.isnan(slowest_us) else slowest_us,
        )
        found.append(cost_of_item)
    return found


def sample_chunks(
    samples: Samples, use: Flags, complete: Flags | None = None
) -> Iterator[Ints]:
    """Yield the rows to use in batches.

    Args:
        complete: bool[executions], True for executions to use; None uses all.
    """
    for first in range(0, len(samples), BLOCK_ROWS):
        rows = np.flatnonzero(use[first : first + BLOCK_ROWS]) + first
        if complete is not None:
            rows = rows[complete[samples.execution[rows]]]
        if len(rows):
            yield rows


def loop_costs(
    trace: Trace, module: int, loops: Sequence[FiledLoop], kept: Flags, stat: Statistic
) -> list[Cost]:
    """Return the costs of the loops of the entry computation.

    LHS looks a ``while`` up by its own name, so communication can hide behind the whole loop. In
    one execution of the module, the loop's time is the span from its first to its last activity.
    The smallest span over devices counts, because ranks wait for each other inside loops that
    communicate. The cost is the statistic over executions. Loops inside loops are left out: their
    spans cannot be separated, and XLA assumes that a loop without a cost is cheap.
    """
    if not loops:
        return []
    spans = [_spans_us(trace, module, instructions, kept) for _, instructions in loops]
    group = np.repeat(np.arange(len(spans)), [len(of_loop) for of_loop in spans])
    unknown = np.full(len(spans), np.nan)
    return _costs(
        *_summaries(np.concatenate(spans), group, len(spans), stat),
        unknown,
        [filed for filed, _ in loops],
    )


def _spans_us(
    trace: Trace, module: int, instructions: Sequence[int], kept: Flags
) -> Floats:
    """Return one span in µs per kept execution: the smallest over devices."""
    rows = np.flatnonzero(
        (trace.module == module) & np.isin(trace.instruction, instructions)
    )
    rows = rows[trace.execution[rows] >= 0]
    rows = rows[kept[trace.execution[rows]]]
    if len(rows) == 0:
        return np.empty(0)
    devices = len(trace.devices)
    executions = int(trace.execution[rows].max()) + 1
    key = trace.device[rows].astype(np.int64) * executions + trace.execution[rows]
    first = np.full(devices * executions, LATEST)
    last = np.full(devices * executions, EARLIEST)
    np.minimum.at(first, key, trace.start_ns[rows])
    np.maximum.at(last, key, trace.start_ns[rows] + trace.duration_ns[rows])
    seen = last > EARLIEST
    spans = np.full(devices * executions, np.inf)
    spans[seen] = last[seen] - first[seen]
    least: Floats = spans.reshape(devices, executions).min(axis=0)
    return least[np.isfinite(least)] / 1e3
