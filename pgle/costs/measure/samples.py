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
    runs = of_module[begins]
    device = trace.device[runs].astype(np.int64)
    execution = trace.execution[runs].astype(np.int64)
    keys = np.sort(device << 32 | execution & 0xFFFFFFFF)
    if (keys[1:] == keys[:-1]).any():
        order = np.lexsort((trace.execution[of_module], trace.device[of_module]))
        of_module = of_module[order]
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
    device = trace.device[rows]
    execution = trace.execution[rows]
    place = _places(device, execution)
    instance = trace.instance[rows].astype(np.int64)
    # an activity of an unknown launch is a launch of its own
    alone = np.flatnonzero(instance < 0)
    instance[alone] = np.iinfo(np.int32).max + 1 + alone
    start = trace.start_ns[rows]
    end = start + trace.duration_ns[rows]
    order = np.lexsort((instance, place))  # rows of one launch stay ordered by start
    first = heads(place[order], instance[order])
    launch = order[first]  # the first row of each launch
    busy_ns = _union_ns(start[order], end[order], first)
    last = np.maximum.reduceat(end[order], first) if len(first) else first
    by_start = np.lexsort((start[launch], place[launch]))
    launch = launch[by_start]
    name = target[launch]
    communicates = np.asarray(naming.communicates[name], np.bool_)
    ended, waited = _ends(place[launch], start[launch], last[by_start], communicates)
    return Samples(
        name=name,
        device=device[launch],
        execution=execution[launch],
        occurrence=np.arange(len(launch), dtype=np.int32),
        ended=ended,
        waited=waited,
        time_ns=busy_ns[by_start],
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
        begins = start[low:high]
        ends = end[low:high]
        collective_ends = ends[here]
        counted_at = np.where(here, ends, begins)
        ended[low:high] = np.searchsorted(np.sort(collective_ends), counted_at, "right")
        compute_begins = begins[~here]
        if len(compute_begins) == 0:
            continue
        # the latest end of the compute that began before each collective's end
        begun = np.searchsorted(compute_begins, collective_ends)
        reach = np.maximum.accumulate(ends[~here])
        compute_end = reach[np.maximum(begun - 1, 0)]
        is_idle = compute_end < collective_ends - WAITED_NS
        waited[low:high][here] = (begun == 0) | is_idle
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
    # Groups of one interval need no union.
    many = np.repeat(sizes > 1, sizes)
    group = np.repeat(np.arange(len(first)), sizes)[many]
    group = np.cumsum(changes(group)) - 1
    origin = np.repeat(start[first], sizes)[many]
    relative_start = start[many] - origin
    relative_end = end[many] - origin
    before = _reach_before(relative_end, group)
    busy[many] = np.maximum(relative_end - np.maximum(relative_start, before), 0)
    return np.add.reduceat(busy, first)


def _reach_before(end: Ints, group: Ints) -> Ints:
    """Return int64[n]: the latest end of the earlier intervals of the same group; 0 if there are
    none.

    Args:
        end: int64[n], the end of each interval, not negative.
        group: int64[n], the number of each interval's group, from 0 and ascending.
    """
    before = np.zeros_like(end)
    reach = int(end.max()) + 1
    if reach * (int(group[-1]) + 1) < LATEST:
        # Shift each group behind the previous one, so that one running maximum serves all groups.
        shift = group * reach
        running = np.maximum.accumulate(end + shift) - shift
        before[1:] = np.where(np.diff(group) == 0, running[:-1], 0)
        return before
    # intervals of days, whose shifts would overflow, are joined one by one
    for i in range(1, len(before)):
        if group[i] == group[i - 1]:
            before[i] = max(before[i - 1], end[i - 1])
    return before


def _occurrences(launches: Samples, naming: Naming) -> Samples:
    """Sum the launches of each run of an instruction. The launches are in launch order."""
    if len(launches) == 0:
        return launches
    place = _places(launches.device, launches.execution)
    order = np.lexsort((launches.name, place))
    name = launches.name[order]
    place = place[order]
    first = heads(name, place)
    runs = naming.iterations[name[first]].astype(np.int64)
    occurrence = _numbered(launches.occurrence[order], first, runs)
    head = heads(name, place, occurrence)
    first_launch = order[head]
    name = name[head]
    ended = launches.ended[order]
    at_begin = ended[head]
    at_end = np.maximum.reduceat(ended, head)
    waited = np.maximum.reduceat(launches.waited[order], head)
    time_ns = np.add.reduceat(launches.time_ns[order], head)
    return Samples(
        name=name,
        device=launches.device[first_launch],
        execution=launches.execution[first_launch],
        occurrence=occurrence[head].astype(np.int32),
        ended=np.where(naming.communicates[name], at_end, at_begin),
        waited=waited,
        time_ns=time_ns,
    )


def _numbered(launched: Codes, first: Ints, runs: Ints) -> Ints:
    """Return int64[n]: the occurrence to which each launch of a name in an execution belongs.

    Args:
        launched: int[n], the place of each launch in launch order. Launches of one name in one
            execution follow each other.
        first: int64[k], the first launch of each of these groups.
        runs: int64[k], how often an execution runs the instruction; 0 or less if unknown.
    """
    sizes = run_lengths(first, len(launched))
    is_known = runs > 0
    occurrence = np.empty(len(launched), np.int64)
    if is_known.any():
        each = np.maximum(runs, 1)
        per_run = np.where(is_known & (sizes % each == 0), sizes // each, 1)
        rank = np.arange(len(launched)) - np.repeat(first, sizes)
        occurrence[:] = rank // np.repeat(per_run, sizes)
    if not is_known.all():
        # Without HLO, launches of one name with nothing in between count as one run, such as a copy
        # fusion of eight outputs.
        begins = np.ones(len(launched), np.bool_)
        begins[1:] = np.diff(launched) != 1
        begins[first] = True
        groups = np.cumsum(begins)
        number: Ints = groups - np.repeat(groups[first], sizes)
        np.copyto(occurrence, number, where=np.repeat(~is_known, sizes))
    return occurrence


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
    # each batch ends with the name at which the next million samples are reached
    limits = np.arange(0, len(samples) + BLOCK_SAMPLES, BLOCK_SAMPLES)
    edges = np.searchsorted(np.cumsum(sizes), limits, side="right")
    costs = []
    for low, high in pairwise(sorted({0, *edges.tolist(), len(filed)})):
        here = np.flatnonzero(use & (samples.name >= low) & (samples.name < high))
        values_us = samples.time_ns[here] / 1e3
        names = samples.name[here].astype(np.int64) - low
        found = _summaries(values_us, names, high - low, stat)
        slowest_us = np.maximum(found.cost + skew_us[low:high], 0.0)
        costs += _costs(found, slowest_us, filed[low:high])
    return costs


def _after_last_arrival(
    samples: Samples, use: Flags, naming: Naming, devices: Sequence[Device]
) -> tuple[Ints, Ints, Floats]:
    """Return name, group and time in µs of each collective: the minimum over the devices of its
    group.

    There is one row per execution and occurrence. A collective's time on one device includes the
    wait for the last rank, and the last rank waits for nobody. A row that fewer devices recorded
    than other rows of the same collective is left out. The missing device may be the last rank.
    """
    rows = np.flatnonzero(use)
    if len(rows) == 0:
        return NO_ROWS, NO_ROWS, np.empty(0)
    name = samples.name[rows].astype(np.int64)
    group = group_of_device(naming, devices)[name, samples.device[rows]]
    order = np.lexsort((samples.occurrence[rows], samples.execution[rows], group, name))
    rows = rows[order]
    name = name[order]
    group = group[order]
    first = heads(name, group, samples.execution[rows], samples.occurrence[rows])
    shortest = np.minimum.reduceat(samples.time_ns[rows] / 1e3, first)
    seen = run_lengths(first, len(rows))  # devices that recorded it
    name = name[first]
    group = group[first]
    key = name * (int(group.max()) + 1) + group
    most = np.zeros(int(key.max()) + 1, np.int64)
    np.maximum.at(most, key, seen)
    whole = seen == most[key]
    return name[whole], group[whole], shortest[whole]


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
    if not len(name):
        return []
    groups_per_name = int(group.max()) + 1
    count = len(filed) * groups_per_name
    cost = stat.over_groups(time_us, name * groups_per_name + group, count)
    cost = cost.reshape(len(filed), groups_per_name)
    slowest = np.nan_to_num(cost, nan=-1.0).argmax(axis=1)
    of_slowest = group == slowest[name]
    found = _summaries(time_us[of_slowest], name[of_slowest], len(filed), stat)
    return _costs(found, np.full(len(filed), np.nan), filed)


@dataclass(frozen=True, eq=False)
class _Summaries:
    """What some groups of samples come to, in µs; NaN for a group without samples."""

    cost: Floats  # the statistic
    low: Floats
    high: Floats
    spread: Floats  # (p90 - p10) / median; 0 if the median is 0
    sizes: Ints  # samples of each group


def _summaries(
    values_us: Floats, groups: Ints, count: int, stat: Statistic
) -> _Summaries:
    """Summarise the values of each group 0 … count-1."""
    sizes = np.bincount(groups, minlength=count).astype(np.int64)
    ordered = values_us[by_group(values_us, groups, count)]
    low, p10, middle, p90, high = (
        percentile_of_sorted(ordered, sizes, q) for q in (0, 10, 50, 90, 100)
    )
    spread = np.divide(p90 - p10, middle, out=np.zeros(count), where=middle > 0)
    if stat.percentile is None:
        cost = stat.over_groups(values_us, groups, count)
    else:
        cost = percentile_of_sorted(ordered, sizes, stat.percentile)
    return _Summaries(cost, low, high, spread, sizes)


def _costs(
    summaries: _Summaries, slowest_us: Floats, filed: Sequence[Cost]
) -> list[Cost]:
    """Return the costs of the names that have samples.

    Args:
        slowest_us: float64[len(filed)], the cost on the slowest rank; NaN if unknown.
    """
    found = []
    sizes = summaries.sizes.tolist()
    for at, (item, samples) in enumerate(zip(filed, sizes, strict=True)):
        if not samples:
            continue
        slowest = float(slowest_us[at])
        cost = item._replace(
            cost_us=float(summaries.cost[at]),
            samples=samples,
            min_us=float(summaries.low[at]),
            max_us=float(summaries.high[at]),
            spread=float(summaries.spread[at]),
            slowest_us=None if math.isnan(slowest) else slowest,
        )
        found.append(cost)
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
    found = _summaries(np.concatenate(spans), group, len(spans), stat)
    filed = [cost for cost, _ in loops]
    return _costs(found, np.full(len(spans), np.nan), filed)


def _spans_us(
    trace: Trace, module: int, instructions: Sequence[int], kept: Flags
) -> Floats:
    """Return one span in µs per kept execution: the smallest over devices."""
    is_here = (trace.module == module) & np.isin(trace.instruction, instructions)
    rows = np.flatnonzero(is_here & (trace.execution >= 0))
    rows = rows[kept[trace.execution[rows]]]
    if len(rows) == 0:
        return np.empty(0)
    execution = trace.execution[rows]
    place = (trace.device[rows], execution)
    start = trace.start_ns[rows]
    shape = (len(trace.devices), int(execution.max()) + 1)
    first = np.full(shape, LATEST)
    last = np.full(shape, EARLIEST)
    np.minimum.at(first, place, start)
    np.maximum.at(last, place, start + trace.duration_ns[rows])
    seen = last > EARLIEST
    spans = np.full(shape, np.inf)
    spans[seen] = last[seen] - first[seen]
    least: Floats = spans.min(axis=0)
    return least[np.isfinite(least)] / 1e3
