"""Execution numbers that mean the same execution on every rank, wherever each rank's window begins."""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from pgle.costs.measure.last_arrival import group_of_device
from pgle.costs.measure.match import Evidence, Floats, match
from pgle.costs.measure.naming import Filed, NamingPlan
from pgle.costs.measure.programs import Program
from pgle.costs.profile.value import CostKind, Ends
from pgle.trace.table import Device, Trace

MAX_EXECUTIONS = 128
"""Executions of each rank that are looked at."""

MAX_NAMES = 16
"""Collectives that are looked at."""

Codes = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


_MATCHED_BY = {
    Evidence.CLOCK: "matched by their clock",
    Evidence.ENDS: "matched by when their collectives end",
    Evidence.WALL_CLOCKS: "matched by their wall clocks",
}


@dataclass(frozen=True)
class Alignment:
    """How the windows of the devices that ran one program lie on each other.

    Attributes:
        shift: int64[devices of the trace], what was added to a device's execution numbers.
        evidence: the weakest that any device was placed by.
        apart: executions between the first and the last window's beginning.
        unclear: the process with the weakest, where that is none; else empty.
        whole: executions that every device recorded.
        ends: what places the windows among those of other conversions.
    """

    shift: Codes
    evidence: Evidence = Evidence.CLOCK
    apart: int = 0
    unclear: str = ""
    whole: int = 0
    ends: tuple[Ends, ...] = ()

    def describe(self, fewest: int, most: int) -> str:
        """That ranks did not record the same executions, or that nothing tells; empty where they did.

        Args:
            fewest, most: executions on the device with fewest and with most.
        """
        found = []
        if fewest < most:
            found.append(f"ranks recorded {fewest} to {most} executions")
        if self.apart:
            found.append(f"{'' if found else 'ranks '}begin up to {self.apart} apart")
        if self.evidence is Evidence.APART:
            found.append(f"by the wall clocks {self.unclear} recorded other executions, so collectives include waiting")
            return ", ".join(found)
        if self.unclear:
            found.append(f"nothing tells with which execution {self.unclear} began")
        if not found:
            return ""
        found.append(_MATCHED_BY.get(self.evidence, "taken to begin with the same one"))
        if not self.whole:
            found.append("none was recorded by all, so collectives include waiting")
        return ", ".join(found)


def align(trace: Trace, program: Program, plan: NamingPlan) -> tuple[Trace, Alignment]:
    """The trace with execution numbers of one program that mean the same execution on every device.

    Args:
        trace: all ranks in one table.
        program: of the trace.
        plan: its names.
    """
    shift = np.zeros(len(trace.devices), np.int64)
    compared = _compared(plan.filed)
    if not compared:
        return trace, Alignment(shift)
    table = _ends(trace, program, plan, compared)
    recorded: Flags = np.asarray(np.isfinite(table.ns).any(axis=2))
    seen = np.flatnonzero(recorded.any(axis=1))
    if len(seen) < 2:
        return trace, Alignment(shift, ends=_kept(trace, program, table, seen, shift))
    weakest, unclear = Evidence.CLOCK, ""
    for device, partner in _links(trace.devices, seen, table):
        shared = table.group[:, device] == table.group[:, partner]
        ahead_ns, same_clock = _clocks(trace, partner, device, table)
        by, evidence = match(table.ns[partner][:, shared], table.ns[device][:, shared], ahead_ns, same_clock)
        shift[device] = shift[partner] + by
        if evidence >= Evidence.NONE and evidence > weakest:
            unclear = trace.devices[device].process
        weakest = max(weakest, evidence)
    shift[seen] -= shift[seen].min()
    numbers = [np.flatnonzero(row) + by for row, by in zip(recorded[seen], shift[seen].tolist(), strict=True)]
    whole = int((np.bincount(np.concatenate(numbers)) == len(seen)).sum())
    ends = _kept(trace, program, table, seen, shift)
    found = Alignment(shift, weakest, int(shift[seen].max()), unclear, whole, ends)
    if not found.apart:
        return trace, found
    move = shift.astype(np.int32)[trace.device]
    move[~np.isin(trace.module, program.indices) | (trace.execution < 0)] = 0
    return replace(trace, execution=trace.execution + move), found


@dataclass(frozen=True)
class _Ends:
    """When collectives ended.

    Attributes:
        ns: float64[devices, executions, collectives], since `base_ns`; in a loop, the last time; NaN: did not run.
        base_ns: int64[devices], the same for all devices of one process.
        group: int64[collectives, devices], replica groups.
        names: of the collectives.
    """

    ns: Floats
    base_ns: Codes
    group: Codes
    names: tuple[str, ...]


def _ends(trace: Trace, program: Program, plan: NamingPlan, names: Sequence[int]) -> _Ends:
    code = np.full(len(trace.instructions), -1, np.int64)
    for number, name in enumerate(names):
        code[np.flatnonzero(plan.naming.target == name)] = number
    ours = np.zeros(len(trace.modules), np.bool_)
    ours[list(program.indices)] = True
    rows = np.flatnonzero((code >= 0)[trace.instruction])
    rows = rows[ours[trace.module[rows]] & (trace.execution[rows] >= 0) & (trace.execution[rows] < MAX_EXECUTIONS)]
    device, execution = trace.device[rows].astype(np.int64), trace.execution[rows]
    end = trace.start_ns[rows] + trace.duration_ns[rows]
    shape = (len(trace.devices), int(execution.max(initial=-1)) + 1, len(names))
    never = np.iinfo(np.int64).min
    last = np.full(shape, never)
    place = np.ravel_multi_index((device, execution, code[trace.instruction[rows]]), shape)
    np.maximum.at(last.reshape(-1), place, end)
    first = np.full(len(trace.devices), np.iinfo(np.int64).max)
    np.minimum.at(first, device, end)
    of_process: dict[str, int] = {}
    for item, least in zip(trace.devices, first.tolist(), strict=True):
        of_process[item.process] = min(of_process.get(item.process, least), least)
    base = np.array([of_process[item.process] for item in trace.devices], np.int64)
    # doubles hold whole ns for 100 days
    ns = np.where(last == never, np.nan, last - base[:, None, None])
    group = group_of_device(plan.filed, trace.devices)[np.array(names, np.int64)]
    return _Ends(ns, base, group, tuple(plan.filed[name].name for name in names))


def _compared(filed: Sequence[Filed]) -> list[int]:
    """The collectives to look at: those that end together on all ranks, so if possible none from rank to rank."""
    every = [number for number, item in enumerate(filed) if item.kind == CostKind.COLLECTIVE]
    together = [
        number for number in every if not re.search("permute|send|recv", filed[number].opcode or filed[number].name)
    ]
    # chosen by name alone: the same on every rank, though each is reduced on its own and one may lack a name
    return sorted(together or every, key=lambda number: zlib.crc32(filed[number].name.encode()))[:MAX_NAMES]


def _links(devices: Sequence[Device], seen: Codes, table: _Ends) -> Iterator[tuple[int, int]]:
    """Each device but the first with one that came before: of its process, else the one it communicates most with."""
    process = np.unique([devices[at].process for at in seen], return_inverse=True)[1]
    group = table.group[:, seen]
    some: Flags = np.asarray(np.isfinite(table.ns).any(axis=1))
    ran = some[seen].T

    def closeness(at: int) -> Codes:
        common: Codes = (ran & ran[:, [at]] & (group == group[:, [at]])).sum(axis=0)
        common += (process == process[at]) * (len(group) + 1)
        return common

    for one, other in nearest_first(len(seen), closeness):
        yield int(seen[one]), int(seen[other])


def nearest_first(count: int, closeness: Callable[[int], Codes]) -> Iterator[tuple[int, int]]:
    """Each item but the first with the one it is closest to among those that came before; the closest comes first.

    Args:
        count: items, numbered from 0.
        closeness: of an item, int64[count]: how close each is to it, 0 or more.
    """
    closest, partner = np.full(count, -1), np.zeros(count, np.int64)
    waiting = np.ones(count, np.bool_)
    placed = 0
    while True:
        waiting[placed] = False
        close = closeness(placed)
        nearer = close > closest
        closest[nearer], partner[nearer] = close[nearer], placed
        if not waiting.any():
            return
        placed = int(np.where(waiting, closest, -2).argmax())
        yield placed, int(partner[placed])


def _clocks(trace: Trace, one: int, other: int, table: _Ends) -> tuple[float | None, bool]:
    """What to add to times of device `one` in the table for those of the other, and whether the clock is the same."""
    base = int(table.base_ns[one]) - int(table.base_ns[other])
    processes = trace.devices[one].process, trace.devices[other].process
    if processes[0] == processes[1]:
        return float(base), True
    utc = [trace.recordings[name].utc_ns if name in trace.recordings else None for name in processes]
    if utc[0] is None or utc[1] is None:
        return None, False
    return float(utc[0] - utc[1] + base), utc[0] == utc[1]


def _kept(trace: Trace, program: Program, table: _Ends, seen: Codes, shift: Codes) -> tuple[Ends, ...]:
    """The table by process, with execution numbers as they are after the shift."""
    processes: dict[str, list[int]] = {}
    for device in seen.tolist():
        processes.setdefault(trace.devices[device].process, []).append(device)
    return covering(_of_process(trace, program, table, devices, shift) for devices in processes.values())


def _of_process(trace: Trace, program: Program, table: _Ends, devices: Sequence[int], shift: Codes) -> Ends:
    first = int(shift[list(devices)].min())
    last = int(shift[list(devices)].max()) + table.ns.shape[1]
    columns: dict[tuple[str, int], Floats] = {}
    for device in devices:
        begin = int(shift[device]) - first
        for number in np.flatnonzero(np.isfinite(table.ns[device]).any(axis=0)).tolist():
            key = table.names[number], int(table.group[number, device])
            column = columns.setdefault(key, np.full(last - first, np.nan))
            here = column[begin : begin + table.ns.shape[1]]
            np.fmax(here, table.ns[device][:, number], out=here)
    rows = np.column_stack(list(columns.values()))
    rows = rows[: int(np.flatnonzero(np.isfinite(rows).any(axis=1)).max()) + 1]
    recording = trace.recordings.get(trace.devices[devices[0]].process)
    utc_ns = None if recording is None or recording.utc_ns is None else recording.utc_ns
    return Ends(
        module=program.key.name,
        columns=tuple(columns),
        ns=tuple(tuple(None if np.isnan(value) else int(value) for value in row) for row in rows),
        first=first,
        utc_ns=None if utc_ns is None else utc_ns + int(table.base_ns[devices[0]]),
    )


def covering(every: Iterable[Ends]) -> tuple[Ends, ...]:
    """Those with a collective of a replica group that none before them has: another rank can be placed by these."""
    kept: list[Ends] = []
    columns: set[tuple[str, int]] = set()
    for ends in every:
        if not columns.issuperset(ends.columns):
            kept.append(ends)
            columns.update(ends.columns)
    return tuple(kept)
