"""GPU activities, each with the thunk that launched it: kernel → API call → range, in whole columns."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from pgle.trace.column import Column, distinct, narrow
from pgle.trace.nsys.graphs import Graphs
from pgle.trace.nsys.ranges import NO_CALL, Launches, Ranges, Reasons
from pgle.trace.nsys.tables import API, PROCESS, Codes, Columns, Ints, Lookup, Tables, by_value
from pgle.trace.nsys.text import PREFIXES
from pgle.trace.table import LIBRARIES, Kind, Reason, Unresolved

ACTIVITIES = {
    "CUPTI_ACTIVITY_KIND_KERNEL": Kind.KERNEL,
    "CUPTI_ACTIVITY_KIND_MEMCPY": Kind.MEMCPY,
    "CUPTI_ACTIVITY_KIND_MEMSET": Kind.MEMSET,
}
"""The tables of GPU work; a copy or a memset belongs to its thunk like a kernel."""

MAX_DURATION_NS = 10**15  # eleven days: no GPU activity lasts longer
MAX_TIME_NS = 2**61  # 73 years from the start of the session


@dataclass(frozen=True, eq=False)
class Calls:
    """CUDA API calls, and the ranges that they began in."""

    range: Mapping[int, Lookup]  # by process (globalPid) from correlation id to the row of the range
    thunk: Codes  # `Ranges.thunk`
    reason: Reasons  # `Ranges.reason`

    def owners(self, pid: Ints, correlation: Ints) -> tuple[Codes, Reasons]:
        """The thunk whose API call has each correlation id, and the reason where there is none."""
        found = np.full(len(pid), len(self.thunk) + NO_CALL, np.int32)
        for process, rows in by_value(pid):
            if process in self.range:
                found[rows] = self.range[process](correlation[rows])
        return self.thunk[found], self.reason[found]


def read_calls(tables: Tables, ranges: Ranges, step: Callable[[int], None]) -> Calls:
    """Read the API calls, and find the thunk that was open on the thread of each."""
    found: dict[int, tuple[Column[np.int32], Column[np.int32]]] = {}
    for start, tid, correlation in tables.integers(API, ("start", "globalTid", "correlationId")):
        step(len(start))
        began_in = ranges.open_at(tid, start)
        for pid, rows in by_value(tid & PROCESS):
            ids, numbers = found.setdefault(pid, (Column(np.int32), Column(np.int32)))
            ids.append(correlation[rows])
            numbers.append(began_in[rows])
    unknown = len(ranges.thunk) + NO_CALL
    lookups = {}
    while found:
        pid, (ids, numbers) = found.popitem()
        lookups[pid] = Lookup(ids.join(), numbers.join(), unknown)
    return Calls(lookups, ranges.thunk, ranges.reason)


class KernelNames:
    """Which kernels of libraries ran for which instruction; false where the export names none."""

    def __init__(self, tables: Tables, launches: Launches) -> None:
        self._launches = launches
        self._seen: set[int] = set()
        found: dict[int, str] = {}
        if "shortName" in tables.columns("CUPTI_ACTIVITY_KIND_KERNEL"):
            rows = tables.rows("StringIds", ("id", "value"))
            found = {
                key: text
                for key, text in rows
                if isinstance(key, int) and isinstance(text, str)
                if not text.startswith(PREFIXES) and LIBRARIES.search(text)  # texts of ranges are long, and no names
            }
        self._names = tuple(found.values())
        self._codes = Lookup(np.array(list(found), np.int64), np.arange(len(found), dtype=np.int32), -1)

    def __bool__(self) -> bool:
        return bool(self._names)

    def add(
        self, name: Ints, thunk: Codes, instruction: npt.NDArray[np.integer] | None, good: npt.NDArray[np.bool_]
    ) -> None:
        """Remember a batch: ids of names, thunks, instructions where they are not the thunks', and which rows count."""
        code = self._codes(name)
        rows = np.flatnonzero((code >= 0) & good)
        if not len(rows):
            return
        of = self._launches
        known = of.instruction[thunk[rows]] if instruction is None else instruction[rows]
        module = of.module[of.module_range[thunk[rows]]].astype(np.int64)
        self._seen.update(distinct((module << 40 | known) * len(self._names) + code[rows]).tolist())

    def by_instruction(self, instructions: tuple[str, ...]) -> dict[tuple[str, str], frozenset[str]]:
        """The names by module and instruction."""
        found: dict[tuple[str, str], set[str]] = {}
        for key in sorted(self._seen):
            of, code = divmod(key, len(self._names))
            where = self._launches.modules[of >> 40].name, instructions[of & (1 << 40) - 1]
            found.setdefault(where, set()).add(self._names[code])
        return {where: frozenset(names) for where, names in found.items()}


@dataclass(eq=False)
class Activities:
    """GPU activities of instructions as columns, and what was left out."""

    # start, duration: ns
    start: Column[np.int64] = field(default_factory=lambda: Column(np.int64))
    duration: Column[np.int64] = field(default_factory=lambda: Column(np.int64))
    kind: Column[np.uint8] = field(default_factory=lambda: Column(np.uint8))  # `Kind`
    device: Column[np.int16] = field(default_factory=lambda: Column(np.int16))  # index into `devices`
    stream: Column[np.int16] = field(default_factory=lambda: Column(np.int16))  # as recorded
    thunk: Column[np.int32] = field(default_factory=lambda: Column(np.int32))  # the thunk that launched it
    # with graphs only: what the activities of one instruction share, besides the thunk
    shared: Column[np.int32] = field(default_factory=lambda: Column(np.int32))
    # with graphs only: index into the instructions; else it is the thunk's
    instruction: Column[np.int16] = field(default_factory=lambda: Column(np.int16))
    devices: dict[tuple[int, int], int] = field(default_factory=dict)  # pairs (globalPid, ordinal), numbered
    left_out: dict[Reason, list[int]] = field(default_factory=dict)  # [count, duration] by reason
    seen: int = 0  # activities read

    def add(self, calls: Calls, graphs: Graphs, kind: Kind, batch: Columns, named: KernelNames | None) -> None:
        """Match one batch and append the activities that belong to an instruction.

        Args:
            calls: the API calls.
            graphs: CUDA graphs.
            kind: of all of them.
            batch: start, end, correlation id, process, device, stream; with graphs node and kernel name; last the
                kernel's name where `named` is given.
            named: names of kernels to remember.
        """
        start, end, correlation, pid, ordinal, stream = batch[:6]
        self.seen += len(start)
        pid = pid & PROCESS
        thunk, reason = calls.owners(pid, correlation)
        duration = end - start
        bad = (duration < 0) | (duration > MAX_DURATION_NS) | (start > MAX_TIME_NS) | (start < -MAX_TIME_NS)
        reason[bad] = Reason.BAD_TIME
        columns: dict[str, npt.NDArray[np.integer]] = {"start": start, "duration": duration, "stream": stream}
        if graphs.present:
            instruction, shared, reason = graphs.resolve(thunk, reason, pid, correlation, *batch[6:8])
            columns |= {"instruction": instruction, "shared": shared}
        columns["thunk"] = thunk
        good = reason == Reason.NONE
        if named is not None:
            named.add(batch[-1], thunk, columns.get("instruction"), good)
        if not good.all():
            self._leave_out(reason[~good], duration[~good])
            columns = {name: column[good] for name, column in columns.items()}
            pid, ordinal = pid[good], ordinal[good]
        columns |= {"device": self._devices(pid, ordinal), "kind": np.full(len(pid), kind, np.uint8)}
        for name, column in columns.items():
            getattr(self, name).append(column)

    def _leave_out(self, reasons: Reasons, duration: Ints) -> None:
        for code, rows in by_value(reasons.astype(np.int64)):
            entry = self.left_out.setdefault(Reason(code), [0, 0])
            entry[0] += len(reasons[rows])
            entry[1] += int(duration[rows].sum()) if code != Reason.BAD_TIME else 0

    def _devices(self, pid: Ints, ordinal: Ints) -> Codes:
        """The number of each activity's device, new ones numbered as they come."""
        device = np.empty(len(pid), np.int32)
        for process, rows in by_value(pid):
            mine = np.empty(len(ordinal[rows]), np.int32)
            for number, some in by_value(ordinal[rows]):
                mine[some] = self.devices.setdefault((process, number), len(self.devices))
            device[rows] = mine
        return device

    def unresolved(self) -> tuple[Unresolved, ...]:
        """What was left out, in the order of the reasons."""
        return tuple(Unresolved(reason.word, *self.left_out[reason]) for reason in sorted(self.left_out))


def read_activities(
    tables: Tables, calls: Calls, graphs: Graphs, names: KernelNames, step: Callable[[int], None]
) -> Activities:
    """Read all GPU work, and find the thunk that launched each activity."""
    found = Activities()
    wanted = ["start", "end", "correlationId", "globalPid", "deviceId", "streamId"]
    if graphs.present:
        wanted += ["graphNodeId", "shortName"]
    for table, kind in ACTIVITIES.items():
        named = names if kind is Kind.KERNEL and names else None
        for batch in tables.integers(table, wanted if graphs.present or named is None else [*wanted, "shortName"]):
            step(len(batch[0]))
            found.add(calls, graphs, kind, batch, named)
    return found


def by_time(device: Codes, start: Ints) -> Codes | slice:
    """The rows by (device, start); ties keep their order."""
    if bool((start[1:] >= start[:-1]).all()):  # as nsys exports one process
        if not len(device) or device.min() == device.max():
            return slice(None)
        return np.argsort(device, kind="stable").astype(np.int32)  # for memory; two bytes are sorted by counting
    order = np.argsort(start, kind="stable").astype(np.int32)
    ordered: Codes = order[np.argsort(device[order], kind="stable")]
    return ordered


def number_executions(device: Codes, module_range: Codes, launches: Launches) -> Codes:
    """Running number of each row's module range within its module and device, by start."""
    count = len(launches.module_start)
    size = (int(device.max()) + 1) * count
    wide = np.int32 if size < 2**31 else np.int64
    pair = np.add(device.astype(wide) * count, module_range, dtype=wide)
    dense = size <= 4 * len(device) + 2**20
    if dense:
        seen = np.zeros(size, np.bool_)
        seen[pair] = True
        pairs = np.flatnonzero(seen)
    else:
        pairs = distinct(pair)
    of_device, of_range = np.divmod(pairs, count)
    of_module = launches.module[of_range].astype(np.int64)
    order = np.lexsort((of_range, launches.module_start[of_range], of_module, of_device))
    group = (of_device * len(launches.modules) + of_module)[order]
    first = np.concatenate([[True], group[1:] != group[:-1]])
    at = np.arange(len(order))
    number = np.empty(len(order), np.int32)
    number[order] = at - np.maximum.accumulate(np.where(first, at, 0))
    number = narrow(number)
    if not dense:
        found: Codes = number[np.searchsorted(pairs, pair)]
        return found
    table = np.zeros(size, number.dtype)
    table[pairs] = number
    result: Codes = table[pair]
    return result


def number_launches(thunk: Codes, shared: Codes | None, thunks: int) -> Codes:
    """Number what was launched together from 0, in the order of the thunks."""
    if shared is not None:
        keys = thunk.astype(np.int64) << 32 | shared.astype(np.int64)
        shares: Codes = np.unique(keys, return_inverse=True)[1].astype(np.int32).reshape(-1)
        return shares
    used = np.zeros(thunks, np.bool_)
    used[thunk] = True
    numbers: Codes = np.cumsum(used, dtype=np.int32) - np.int32(1)
    return numbers[thunk]
