"""Samples: how long each instruction of one module ran, per device, execution and occurrence.

GPU activities become launches (the union of the busy intervals of one launch on one device, so that idle gaps between
its kernels are not cost), launches become occurrences (several launches of one instruction run, or one iteration of a
loop), and occurrences are what statistics stand on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from pgle.trace.column import Column
from pgle.trace.table import Trace

CHUNK_ROWS = 1 << 18
"""GPU activities reduced at a time: bounds the working memory, whatever the length of the trace."""


@dataclass(frozen=True)
class Naming:
    """How the instruction names of a trace map to the names that costs are filed under.

    Attributes:
        target: int32[len(trace.instructions)], index into `names`; -1: not a cost of this module.
        names: names to file costs under.
        iterations: int32[len(names)], occurrences per execution of the module (trip counts of enclosing loops);
            0 where unknown: launches with nothing in between are then one occurrence.
    """

    target: npt.NDArray[np.int32]
    names: tuple[str, ...]
    iterations: npt.NDArray[np.int32]


@dataclass(frozen=True)
class Samples:
    """Occurrences of the instructions of one module, n rows ordered by (device, execution, name, occurrence).

    Attributes:
        name: int32[n], index into `names`.
        device: int32[n], index into the trace's devices.
        execution: int32[n].
        occurrence: int32[n], running number within the execution on that device.
        time_ns: float64[n], busy GPU time.
        names: names to file costs under.
    """

    name: npt.NDArray[np.int32]
    device: npt.NDArray[np.int32]
    execution: npt.NDArray[np.int32]
    occurrence: npt.NDArray[np.int32]
    time_ns: npt.NDArray[np.float64]
    names: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.name)


def collect_samples(
    trace: Trace, modules: Sequence[int], naming: Mapping[int, Naming], kept: Mapping[int, npt.NDArray[np.bool_]]
) -> Samples:
    """The occurrences of one program in a trace.

    Args:
        trace: n activities, ordered by (device, start).
        modules: indices into `trace.modules` that are this program.
        naming: how names map, by module index; all with the same `names`.
        kept: bool[executions] by module index, True for the executions to use.
    """
    names = naming[modules[0]].names
    iterations = naming[modules[0]].iterations
    name, device, execution, occurrence = (Column(np.int32) for _ in range(4))
    time_ns = Column(np.float64)
    for module in modules:
        for rows in _chunks(trace, module):
            part = _reduce(trace, rows, naming[module], kept[module], names, iterations)
            name.append(part.name)
            device.append(part.device)
            execution.append(part.execution)
            occurrence.append(part.occurrence)
            time_ns.append(part.time_ns)
    return Samples(name.join(), device.join(), execution.join(), occurrence.join(), time_ns.join(), names)


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
    if len(np.unique(device.astype(np.int64) << 32 | execution.astype(np.int64) & 0xFFFFFFFF)) < len(changes):
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


def _reduce(
    trace: Trace,
    rows: npt.NDArray[np.int32],
    naming: Naming,
    kept: npt.NDArray[np.bool_],
    names: tuple[str, ...],
    iterations: npt.NDArray[np.int32],
) -> Samples:
    """Activities of whole executions → occurrences."""
    target = naming.target[trace.instruction[rows]]
    execution = trace.execution[rows]
    use = (target >= 0) & (execution >= 0)
    use[use] = kept[execution[use]]
    rows, target = rows[use], target[use]
    launches = _launches(trace, rows, target)
    return _occurrences(launches, names, iterations)


def _launches(trace: Trace, rows: npt.NDArray[np.int32], target: npt.NDArray[np.int32]) -> Samples:
    """Activities → launches with the union of their busy intervals; `occurrence` holds the launch order."""
    device, execution = trace.device[rows], trace.execution[rows]
    instance = trace.instance[rows].astype(np.int64)
    alone = instance < 0
    instance[alone] = np.iinfo(np.int32).max + 1 + np.flatnonzero(alone)
    start = trace.start_ns[rows]
    end = start + trace.duration_ns[rows]
    order = np.lexsort((start, instance, execution, device))
    first = heads(device[order], execution[order], instance[order])
    launch = order[first]
    busy = _union_ns(start[order], end[order], first)
    by_start = np.lexsort((start[launch], execution[launch], device[launch]))
    launch, busy = launch[by_start], busy[by_start]
    position = np.arange(len(launch), dtype=np.int32)
    return Samples(target[launch], device[launch], execution[launch], position, busy.astype(np.float64), ())


def heads(*columns: npt.NDArray[np.int32] | npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Where a new combination of values begins in equally long columns."""
    new = np.ones(len(columns[0]), dtype=bool)
    new[1:] = np.logical_or.reduce([np.diff(column) != 0 for column in columns])
    return np.flatnonzero(new).astype(np.int64)


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


def _occurrences(launches: Samples, names: tuple[str, ...], iterations: npt.NDArray[np.int32]) -> Samples:
    """Launches, in launch order → occurrences: sums over the launches of one run of an instruction."""
    if len(launches) == 0:
        return replace(launches, names=names)
    order = np.lexsort((launches.occurrence, launches.name, launches.execution, launches.device))
    name, device, execution = launches.name[order], launches.device[order], launches.execution[order]
    first = heads(name, execution, device)
    sizes = np.diff(np.append(first, len(order)))
    rank = np.arange(len(order)) - np.repeat(first, sizes)
    runs = iterations[name[first]].astype(np.int64)
    per_run = np.where((runs > 0) & (sizes % np.maximum(runs, 1) == 0), sizes // np.maximum(runs, 1), 1)
    by_rank = rank // np.repeat(np.maximum(per_run, 1), sizes)
    # Without HLO: launches of one name with nothing in between are one run (a copy fusion of eight outputs).
    broken = np.ones(len(order), dtype=bool)
    broken[1:] = np.diff(launches.occurrence[order]) != 1
    broken[first] = True
    groups = np.cumsum(broken)
    by_neighbour = groups - np.repeat(groups[first], sizes)
    occurrence = np.where(np.repeat(runs > 0, sizes), by_rank, by_neighbour)
    head = heads(name, execution, device, occurrence)
    return Samples(
        name=name[head],
        device=device[head],
        execution=execution[head],
        occurrence=occurrence[head].astype(np.int32),
        time_ns=np.add.reduceat(launches.time_ns[order], head),
        names=names,
    )
