"""Find the instruction for which each node of a CUDA graph was built.

In node mode an activity of a graph has `graphNodeId` and the correlation id of the *launch*. The
creation of the node was recorded on the thread that built the graph, inside the thunk's range.
Instantiated or updated graphs are clones; `originalGraphNodeId` leads from a clone's node to its
original. If the capture misses the creation, a kernel that XLA generated still carries the name of
its fusion. In graph mode nsys records no activities at all.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from pgle.trace.columns import NO_ROWS, Codes, Flags, Ints
from pgle.trace.nsys.ranges import (
    Lookup,
    Ranges,
    Reasons,
    XlaLaunches,
    by_value,
    kernel_instruction,
)
from pgle.trace.nsys.tables import API, NULL, PROCESS, Columns, Tables
from pgle.trace.table import LeftOutReason, Unresolved

MAX_CLONES = 64  # a longer chain of clones is a cycle

NODE_TABLES = ("CUDA_GRAPH_NODE_EVENTS", "CUDA_GRAPH_EVENTS")
"""Tables with the creations of nodes. The second table held them until nsys 2024.2; since then it
holds whole graphs.
"""

TRACED = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"  # one row per graph launch in graph mode


@dataclass(eq=False)
class Graphs:
    """The graphs of an export."""

    present: bool  # whether any CUDA graph was launched
    launches: XlaLaunches  # the thunks and modules of XLA's ranges
    # instruction names of the ranges, then those that only kernel names gave
    instructions: tuple[str, ...]
    traced: Columns = ()  # start, end, process, device and stream of whole-graph activities
    named: int = 0  # activities whose instruction comes from the kernel name
    _launches: dict[int, Lookup] = field(default_factory=dict)
    _shown: Flags = field(default_factory=lambda: np.zeros(0, np.bool_))
    _builders: dict[int, Lookup] = field(default_factory=dict)
    _kernels: Lookup = field(default_factory=lambda: Lookup.of({}))

    def resolve(
        self,
        thunk: Codes,
        reason: Reasons,
        pid: Ints,
        correlation: Ints,
        node: Ints,
        kernel: Ints,
    ) -> tuple[Codes, Codes, Reasons]:
        """Find the instruction for which each graph node was built.

        Args:
            thunk: int32[n], the thunk that launched each activity.
            reason: uint8[n], why an activity has no thunk.
            pid, correlation, node, kernel: int64[n], columns of the activities.

        Returns:
            Three columns: the instruction; a number that the activities of one launch of it share;
                and the reason, `LeftOutReason.GRAPH_NODE` if the instruction is unknown. Outside of
                graphs, instruction and number are the thunk's.
        """
        launch = _found(self._launches, pid, correlation)
        builder = _found(self._builders, pid, node)
        self._shown[launch[launch >= 0]] = True
        known = reason == LeftOutReason.NONE
        instruction = np.where(known, self._instruction_of(thunk), np.int32(-1))
        in_graph = known & ((launch >= 0) | ((node != NULL) & (node != 0)))
        built = np.where(builder >= 0, self._instruction_of(builder), np.int32(-1))
        # A node built inside the launching thunk's range gives no new instruction.
        rebuilt = in_graph & (built >= 0) & (built != instruction)
        by_kernel = self._kernels(kernel)
        named = in_graph & ~rebuilt & (by_kernel >= 0)
        self.named += int(named.sum())
        shared = np.where(
            rebuilt,
            builder,
            np.where(named, len(self.launches.instruction) + by_kernel, thunk),
        )
        instruction = np.where(rebuilt, built, np.where(named, by_kernel, instruction))
        lost = in_graph & ~rebuilt & ~named
        return (
            instruction,
            shared.astype(np.int32),
            np.where(lost, np.uint8(LeftOutReason.GRAPH_NODE), reason),
        )

    def _instruction_of(self, thunk: Codes) -> Codes:
        """Return the instruction of each thunk. The value means nothing for a row without thunk."""
        return np.append(self.launches.instruction, np.int32(-1))[thunk]

    @property
    def hidden(self) -> tuple[Unresolved, ...]:
        """Graph launches without any recorded activity; empty if there are none."""
        silent = int((~self._shown).sum())
        start, end = self.traced[:2] if self.traced else (NO_ROWS, NO_ROWS)
        count = max(len(start), silent)
        if not count:
            return ()
        duration = int((end - start)[end > start].sum())
        return (Unresolved(LeftOutReason.GRAPH_LAUNCH.word, count, duration),)


def _found(lookups: Mapping[int, Lookup], pid: Ints, keys: Ints) -> Codes:
    """Return int32[n]: the lookup result for each key in its process; -1 if absent."""
    found = np.full(len(pid), -1, np.int32)
    for process, rows in by_value(pid):
        if process in lookups:
            found[rows] = lookups[process](keys[rows])
    return found


def read_graphs(tables: Tables, ranges: Ranges) -> Graphs:
    """Read the records of CUDA graphs: launches, node creations and whole-graph activities."""
    names = [
        identity for identity, _ in tables.texts(("cuGraphLaunch", "cudaGraphLaunch"))
    ]
    traced = tables.whole(TRACED, ("start", "end", "globalPid", "deviceId", "streamId"))
    traced = tuple(column[traced[0] != NULL] for column in traced)
    if not (
        names
        or len(traced[0])
        or any("graphNodeId" in tables.columns(table) for table in NODE_TABLES)
    ):
        return Graphs(False, ranges.launches, ranges.launches.instructions)
    instructions = {
        name: number for number, name in enumerate(ranges.launches.instructions)
    }
    named = ((identity, kernel_instruction(text)) for identity, text in tables.texts())
    by_name = Lookup.of(
        {
            key: instructions.setdefault(name, len(instructions))
            for key, name in named
            if name
        }
    )
    launches, count = _launches(tables, names)
    shown = np.zeros(count, np.bool_)
    builders = _builders(tables, ranges)
    return Graphs(
        present=True,
        launches=ranges.launches,
        instructions=tuple(instructions),
        traced=traced,
        _launches=launches,
        _shown=shown,
        _builders=builders,
        _kernels=by_name,
    )


def _launches(tables: Tables, names: list[int]) -> tuple[dict[int, Lookup], int]:
    """Return a lookup per process from correlation id to launch number, and the number of
    launches.
    """
    if not names:
        return {}, 0
    tid, correlation = tables.whole(
        API, ("globalTid", "correlationId"), keep=("nameId", names)
    )
    numbers = np.arange(len(tid), dtype=np.int32)
    return {
        pid: Lookup(correlation[rows], numbers[rows], -1)
        for pid, rows in by_value(tid & PROCESS)
    }, len(tid)


def _builders(tables: Tables, ranges: Ranges) -> dict[int, Lookup]:
    """Return a lookup per process from node id to the thunk in which the node was built."""
    for table in NODE_TABLES:
        if "graphNodeId" in tables.columns(table):
            wanted = ("start", "globalTid", "graphNodeId", "originalGraphNodeId")
            start, tid, node, original = tables.whole(table, wanted)
            if len(start):
                processes = by_value(tid & PROCESS)
                return {
                    pid: _originals(ranges, start[at], tid[at], node[at], original[at])
                    for pid, at in processes
                }
    return {}


def _originals(
    ranges: Ranges, start: Ints, tid: Ints, node: Ints, original: Ints
) -> Lookup:
    """Return a lookup from node id to thunk, following clones to their originals; -1 if unknown."""
    row_of = Lookup(node, np.arange(len(node), dtype=np.int32), -1)
    at = np.arange(len(node))
    clone = np.zeros(len(node), np.bool_)
    for _ in range(MAX_CLONES):
        source = original[at]
        before = row_of(source)
        clone = (source != NULL) & (source != 0) & (before >= 0) & (before != at)
        if not clone.any():
            break
        at = np.where(clone, before, at)
    thunk, reason = ranges.owners(tid[at], start[at])
    return Lookup(
        node, np.where(clone | (reason != LeftOutReason.NONE), np.int32(-1), thunk), -1
    )
