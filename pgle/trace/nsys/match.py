"""GPU activities, each with the thunk range that launched it: kernel → API call → range, all in whole columns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from pgle.trace.column import Column
from pgle.trace.nsys.graphs import Graphs, read_graphs
from pgle.trace.nsys.lookup import Codes, Lookup, by_value
from pgle.trace.nsys.ranges import BAD_TIME, GRAPH_NODE, NO_API_ROW, Launches, Ranges, read_ranges
from pgle.trace.nsys.tables import Columns, Ints, Tables
from pgle.trace.table import Kind

ACTIVITIES = {
    "CUPTI_ACTIVITY_KIND_KERNEL": Kind.KERNEL,
    "CUPTI_ACTIVITY_KIND_MEMCPY": Kind.MEMCPY,
    "CUPTI_ACTIVITY_KIND_MEMSET": Kind.MEMSET,
}
"""The tables of GPU work; a copy or a memset belongs to its thunk like a kernel."""

API = "CUPTI_ACTIVITY_KIND_RUNTIME"
"""CUDA API calls, those of the driver too (eventClass 1)."""

PROCESS = ~np.int64(0xFFFFFF)
"""globalPid is globalTid without its thread id."""

MAX_DURATION_NS = 10**15
"""Eleven days: no GPU activity lasts longer."""

MAX_TIME_NS = 2**61
"""73 years from the start of the session."""


@dataclass
class Activities:
    """Resolved activities as columns, and what was left out.

    Attributes:
        start: ns.
        duration: ns.
        kind: `Kind`.
        device: index into `devices`.
        stream: as recorded.
        owner: thunk range whose API call launched it.
        node: graphs only: what the activity shares with others of one graph node's thunk; else equal to `owner`.
        instruction: graphs only: index into the instructions; else that of `owner`.
        devices: pairs (globalPid, ordinal), numbered.
        left_out: [count, duration] by reason.
        seen: activities read.
    """

    start: Column[np.int64] = field(default_factory=lambda: Column(np.int64))
    duration: Column[np.int64] = field(default_factory=lambda: Column(np.int64))
    kind: Column[np.uint8] = field(default_factory=lambda: Column(np.uint8))
    device: Column[np.int32] = field(default_factory=lambda: Column(np.int32))
    stream: Column[np.int32] = field(default_factory=lambda: Column(np.int32))
    owner: Column[np.int32] = field(default_factory=lambda: Column(np.int32))
    node: Column[np.int32] = field(default_factory=lambda: Column(np.int32))
    instruction: Column[np.int32] = field(default_factory=lambda: Column(np.int32))
    devices: dict[tuple[int, int], int] = field(default_factory=dict)
    left_out: dict[int, list[int]] = field(default_factory=dict)
    seen: int = 0

    def leave_out(self, reason: Codes, duration: Ints) -> None:
        """Count activities without a thunk."""
        for code, rows in by_value(reason.astype(np.int64)):
            entry = self.left_out.setdefault(code, [0, 0])
            entry[0] += len(reason[rows])
            entry[1] += int(duration[rows].sum()) if code != BAD_TIME else 0


def read_calls(tables: Tables, ranges: Ranges, step: Callable[[int], None]) -> dict[int, Lookup]:
    """For each process (globalPid) from correlation id to the thunk range of the API call, or a reason."""
    keys: dict[int, Column[np.int64]] = {}
    owners: dict[int, Column[np.int32]] = {}
    for start, tid, correlation in tables.integers(API, ("start", "globalTid", "correlationId")):
        step(len(start))
        owner = ranges.owners(tid, start)
        for pid, rows in by_value(tid & PROCESS):
            keys.setdefault(pid, Column(np.int64)).append(correlation[rows])
            owners.setdefault(pid, Column(np.int32)).append(owner[rows])
    return {pid: Lookup(keys[pid].join(), owners[pid].join(), NO_API_ROW) for pid in keys}


def read_activities(tables: Tables, step: Callable[[int], None]) -> tuple[Launches, Activities, Graphs]:
    """Read ranges, API calls and all GPU work, and match them.

    Args:
        tables: the export.
        step: called with the number of rows read.

    Raises:
        UserError: see `read_ranges`.
    """
    ranges = read_ranges(tables, step)
    calls = read_calls(tables, ranges, step)
    graphs = read_graphs(tables, ranges)
    launches = ranges.launches
    del ranges  # the times of ranges are not needed any more
    result = Activities()
    wanted = ["start", "end", "correlationId", "globalPid", "deviceId", "streamId"]
    if graphs.present:
        wanted += ["graphNodeId", "shortName"]
    for table, kind in ACTIVITIES.items():
        for batch in tables.integers(table, wanted):
            step(len(batch[0]))
            _add(result, calls, graphs, kind, batch)
    return launches, result, graphs


def _add(result: Activities, calls: dict[int, Lookup], graphs: Graphs, kind: Kind, batch: Columns) -> None:
    """Match one batch and append it to the columns."""
    start, end, correlation, pid, ordinal, stream = batch[:6]
    result.seen += len(start)
    pid = pid & PROCESS
    owner = np.full(len(start), NO_API_ROW, np.int32)
    for process, rows in by_value(pid):
        if process in calls:
            owner[rows] = calls[process](correlation[rows])
    duration = end - start
    bad = (duration < 0) | (duration > MAX_DURATION_NS) | (start > MAX_TIME_NS) | (start < -MAX_TIME_NS)
    owner[bad] = BAD_TIME
    node = instruction = None
    if graphs.present:
        node, instruction = graphs.split(owner, pid, correlation, batch[6], batch[7])
        owner = np.where(instruction == GRAPH_NODE, np.int32(GRAPH_NODE), owner)
    good = owner >= 0
    if not good.all():
        result.leave_out(owner[~good], duration[~good])
        start, duration, pid, ordinal, stream = (column[good] for column in (start, duration, pid, ordinal, stream))
        owner = owner[good]
        if node is not None and instruction is not None:
            node, instruction = node[good], instruction[good]
    if node is not None and instruction is not None:
        result.node.append(node)
        result.instruction.append(instruction)
    device = np.empty(len(start), np.int32)
    for process, rows in by_value(pid):
        mine = np.empty(len(ordinal[rows]), np.int32)
        for number, some in by_value(ordinal[rows]):
            mine[some] = result.devices.setdefault((process, number), len(result.devices))
        device[rows] = mine
    result.start.append(start)
    result.duration.append(duration)
    result.kind.append(np.full(len(start), kind, np.uint8))
    result.device.append(device)
    result.stream.append(stream)
    result.owner.append(owner)
