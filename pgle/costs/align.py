"""Execution numbers that mean the same execution on every rank, wherever each rank's window begins."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from pgle.costs.last_arrival import group_of_device
from pgle.costs.match import Evidence, Floats, match
from pgle.costs.naming import Filed, NamingPlan
from pgle.costs.profile import CostKind
from pgle.costs.programs import Program
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
    """

    shift: Codes
    evidence: Evidence = Evidence.CLOCK
    apart: int = 0
    unclear: str = ""
    whole: int = 0

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
    unshifted = Alignment(np.zeros(len(trace.devices), np.int64))
    if len(trace.devices) < 2:
        return trace, unshifted
    table = _ends(trace, program, plan)
    recorded: Flags = np.asarray(np.isfinite(table.ns).any(axis=2))
    seen = np.flatnonzero(recorded.any(axis=1))
    if len(seen) < 2:
        return trace, unshifted
    shift, weakest, unclear = unshifted.shift, Evidence.CLOCK, ""
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
    found = Alignment(shift, weakest, int(shift[seen].max()), unclear, whole)
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
    """

    ns: Floats
    base_ns: Codes
    group: Codes


def _ends(trace: Trace, program: Program, plan: NamingPlan) -> _Ends:
    names = _compared(plan.filed)
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
    return _Ends(ns, base, group_of_device(plan.filed, trace.devices)[np.array(names, np.int64)])


def _compared(filed: Sequence[Filed]) -> list[int]:
    """The collectives to look at: those that end together on all ranks, so if possible none from rank to rank."""
    every = [number for number, item in enumerate(filed) if item.kind == CostKind.COLLECTIVE]
    together = [
        number for number in every if not re.search("permute|send|recv", filed[number].opcode or filed[number].name)
    ]
    chosen = together or every
    return [chosen[at] for at in np.unique(np.linspace(0, len(chosen) - 1, min(len(chosen), MAX_NAMES)).astype(int))]


def _links(devices: Sequence[Device], seen: Codes, table: _Ends) -> Iterator[tuple[int, int]]:
    """Each device but the first with one that came before: of its process, else the one it communicates most with."""
    process = np.unique([devices[at].process for at in seen], return_inverse=True)[1]
    group = table.group[:, seen]
    some: Flags = np.asarray(np.isfinite(table.ns).any(axis=1))
    ran = some[seen].T
    closest, partner = np.full(len(seen), -1), np.zeros(len(seen), np.int64)
    waiting = np.ones(len(seen), np.bool_)
    placed = 0
    while True:
        waiting[placed] = False
        common = (ran & ran[:, [placed]] & (group == group[:, [placed]])).sum(axis=0)
        common = common + (process == process[placed]) * (len(group) + 1)
        nearer = common > closest
        closest[nearer], partner[nearer] = common[nearer], placed
        if not waiting.any():
            return
        placed = int(np.where(waiting, closest, -2).argmax())
        yield int(seen[placed]), int(seen[partner[placed]])


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
