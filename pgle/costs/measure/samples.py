"""Samples: how long each instruction of one module ran, per device, execution and occurrence.

GPU activities become launches (the union of the busy intervals of one launch on one device, so that idle gaps between
its kernels are not cost), launches become occurrences (several launches of one instruction run, or one iteration of a
loop), and occurrences are what statistics stand on.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pgle.costs.measure.naming import Naming
from pgle.costs.statistic import heads
from pgle.trace.column import Column
from pgle.trace.table import Trace

Codes = npt.NDArray[np.integer[Any]]

CHUNK_ROWS = 1 << 18  # GPU activities reduced at a time: bounds the working memory, whatever the length of the trace


@dataclass(frozen=True, eq=False)
class Samples:
    """Occurrences of the instructions of one module, n rows ordered by (device, execution, name, occurrence)."""

    # int[n] each, in as many bytes as they need
    name: Codes  # index into `Naming.filed`
    device: Codes  # index into the trace's devices
    execution: Codes
    occurrence: Codes  # running number within the execution on that device
    segment: Codes  # collectives begun before it, in its execution on that device
    time_ns: Codes  # busy GPU time

    def __len__(self) -> int:
        return len(self.name)

    @property
    def columns(self) -> tuple[npt.NDArray[Any], ...]:
        """In the order of the attributes."""
        return self.name, self.device, self.execution, self.occurrence, self.segment, self.time_ns


def collect_samples(trace: Trace, module: int, naming: Naming, kept: npt.NDArray[np.bool_]) -> Samples:
    """The occurrences of one program in a trace.

    Args:
        trace: n activities, ordered by (device, start).
        module: index into `trace.modules`.
        naming: how names map.
        kept: bool[executions], True for the executions to use.
    """
    most = int(np.count_nonzero(trace.module == module))
    columns: tuple[Column[Any], ...] = tuple(Column(dtype, most) for dtype in (*5 * (np.int16,), np.int32))
    for rows in _chunks(trace, module):
        part = _occurrences(_launches(trace, *_used(trace, rows, naming, kept), naming), naming)
        for column, values in zip(columns, part.columns, strict=True):
            column.append(values)
    return Samples(*(column.join() for column in columns))


def _chunks(trace: Trace, module: int) -> Iterator[npt.NDArray[np.int32]]:
    """Row numbers of one module in batches of whole executions on one device."""
    of_module = np.flatnonzero(trace.module == module).astype(np.int32)
    if len(of_module) <= CHUNK_ROWS:
        if len(of_module):
            yield of_module
        return
    changes = _changes(trace, of_module)
    # mostly one execution follows the other, device by device; then each is one run of rows
    device, execution = trace.device[of_module[changes]], trace.execution[of_module[changes]]
    runs = np.sort(device.astype(np.int64) << 32 | execution.astype(np.int64) & 0xFFFFFFFF)
    if (runs[1:] == runs[:-1]).any():
        of_module = of_module[np.lexsort((trace.execution[of_module], trace.device[of_module]))]
        changes = _changes(trace, of_module)
    start = 0
    for edge in [*changes[1:].tolist(), len(of_module)]:
        if edge - start >= CHUNK_ROWS or edge == len(of_module):
            yield of_module[start:edge]
            start = edge


def _changes(trace: Trace, rows: npt.NDArray[np.int32]) -> npt.NDArray[np.int64]:
    """Where another execution or device begins among rows; found piece by piece, for memory."""
    found = [np.zeros(1, np.int64)]
    for first in range(0, len(rows) - 1, CHUNK_ROWS):
        piece = rows[first : first + CHUNK_ROWS + 1]
        new = (np.diff(trace.device[piece]) != 0) | (np.diff(trace.execution[piece]) != 0)
        found.append(np.flatnonzero(new) + first + 1)
    return np.concatenate(found)


def _used(
    trace: Trace, rows: npt.NDArray[np.int32], naming: Naming, kept: npt.NDArray[np.bool_]
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    """The rows that are a cost, of kept executions, and the name that each is filed under."""
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
    """Activities → launches with the union of their busy intervals; `occurrence` holds the launch order."""
    device, execution = trace.device[rows], trace.execution[rows]
    place = _places(device, execution)
    instance = trace.instance[rows].astype(np.int64)
    alone = instance < 0
    instance[alone] = np.iinfo(np.int32).max + 1 + np.flatnonzero(alone)
    start = trace.start_ns[rows]
    end = start + trace.duration_ns[rows]
    order = np.lexsort((instance, place))  # each launch by start, as the trace is ordered
    first = heads(place[order], instance[order])
    launch = order[first]
    busy = _union_ns(start[order], end[order], first)
    by_start = np.lexsort((start[launch], place[launch]))
    launch, busy = launch[by_start], busy[by_start]
    name, device, execution = target[launch], device[launch], execution[launch]
    begun = naming.communicates[name].astype(np.int32)
    before = np.cumsum(begun, dtype=np.int32) - begun
    first = heads(place[launch])
    before -= np.repeat(before[first], np.diff(np.append(first, len(launch))))
    position = np.arange(len(launch), dtype=np.int32)
    return Samples(name, device, execution, position, before, busy)


def _places(device: Codes, execution: Codes) -> npt.NDArray[np.int64]:
    """A number for each execution (from 0 on) on each device, in the order of both."""
    return device.astype(np.int64) * (int(execution.max(initial=0)) + 1) + execution


def _union_ns(
    start: npt.NDArray[np.int64], end: npt.NDArray[np.int64], first: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """Length of the union of the intervals of each group; groups are contiguous, intervals ordered by start.

    Args:
        start, end: int64[n].
        first: int64[m], where each group begins.
    """
    if len(start) == 0:
        return np.empty(0, np.int64)
    sizes = np.diff(np.append(first, len(start)))
    busy = end - start
    if (sizes == 1).all():
        return busy[first]
    # Shift each group behind the one before, so that one running maximum serves all groups. Groups of one need none.
    many = np.repeat(sizes > 1, sizes)
    group = np.repeat(np.arange(len(first)), sizes)[many]
    group = np.cumsum(np.diff(group, prepend=group[:1]) != 0)
    origin = np.repeat(start[first], sizes)[many]
    relative_start, relative_end = start[many] - origin, end[many] - origin
    reach = int(relative_end.max()) + 1
    if reach * (int(group[-1]) + 1) < np.iinfo(np.int64).max:
        shift = group * reach
        running = np.maximum.accumulate(relative_end + shift) - shift
        before = np.zeros_like(running)
        before[1:] = np.where(np.diff(group) == 0, running[:-1], 0)
    else:  # intervals of days: exact, one by one
        before = np.zeros_like(relative_end)
        for i in range(1, len(before)):
            if group[i] == group[i - 1]:
                before[i] = max(before[i - 1], relative_end[i - 1])
    busy[many] = np.maximum(relative_end - np.maximum(relative_start, before), 0)
    return np.add.reduceat(busy, first)


def _occurrences(launches: Samples, naming: Naming) -> Samples:
    """Launches, in launch order → occurrences: sums over the launches of one run of an instruction."""
    if len(launches) == 0:
        return launches
    place = _places(launches.device, launches.execution)
    order = np.lexsort((launches.name, place))
    name, place = launches.name[order], place[order]
    first = heads(name, place)
    sizes = np.diff(np.append(first, len(order)))
    runs = naming.iterations[name[first]].astype(np.int64)
    occurrence = np.empty(len(order), np.int64)
    counted = np.repeat(runs > 0, sizes)
    if counted.any():
        rank = np.arange(len(order)) - np.repeat(first, sizes)
        per_run = np.where((runs > 0) & (sizes % np.maximum(runs, 1) == 0), sizes // np.maximum(runs, 1), 1)
        occurrence[:] = rank // np.repeat(np.maximum(per_run, 1), sizes)
    if not counted.all():
        # Without HLO: launches of one name with nothing in between are one run (a copy fusion of eight outputs).
        broken = np.ones(len(order), dtype=bool)
        broken[1:] = np.diff(launches.occurrence[order]) != 1
        broken[first] = True
        groups = np.cumsum(broken)
        np.copyto(occurrence, groups - np.repeat(groups[first], sizes), where=~counted)
    head = heads(name, place, occurrence)
    return Samples(
        name=name[head],
        device=launches.device[order[head]],
        execution=launches.execution[order[head]],
        occurrence=occurrence[head].astype(np.int32),
        segment=launches.segment[order[head]],
        time_ns=np.add.reduceat(launches.time_ns[order], head),
    )
