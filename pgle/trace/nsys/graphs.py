"""CUDA graphs (XLA command buffers): what node tracing lets us recover, and what graph tracing hides.

In node mode an activity of a graph has `graphNodeId` and the correlation id of the *launch*. Its node's creation was
recorded on the thread that built the graph, while the thunk's range was open there; graphs that were instantiated or
updated are clones whose nodes lead to the original by `originalGraphNodeId`. Where the creation is not in the capture,
kernels that XLA generated still carry the name of their fusion. In graph mode there are no activities at all.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from pgle.trace.nsys.lookup import Codes, Lookup, by_value
from pgle.trace.nsys.ranges import GRAPH_NODE, Launches, Ranges
from pgle.trace.nsys.tables import NULL, Ints, Tables
from pgle.trace.nsys.text import kernel_instruction
from pgle.trace.table import Unresolved

MAX_CLONES = 64
"""Clones of clones are followed this far; more is a cycle."""

NODE_TABLES = ("CUDA_GRAPH_NODE_EVENTS", "CUDA_GRAPH_EVENTS")
"""Where nodes' creations are; the second holds them until 2024.2 and whole graphs from then on."""

TRACED = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
"""One row per graph launch in graph mode."""

RECORD_WITHOUT = "record with XLA_FLAGS=--xla_gpu_enable_command_buffer= (or `nsys profile --cuda-graph-trace=node`)"


@dataclass
class Graphs:
    """The graphs of an export.

    Attributes:
        present: False where nothing was ever launched as a graph.
        launches: what the ranges stand for.
        instructions: instruction names, longer than the ranges' where kernels had to name them.
        traced: (count, duration in ns) of whole-graph activities.
        named: activities that were named after their kernel.
    """

    present: bool
    launches: Launches
    instructions: tuple[str, ...]
    traced: tuple[int, int] = (0, 0)
    named: int = 0
    _launches: dict[int, Lookup] = field(default_factory=dict)
    _shown: npt.NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, np.bool_))
    _makers: dict[int, Lookup] = field(default_factory=dict)
    _kernels: Lookup | None = None

    def split(self, owner: Codes, pid: Ints, correlation: Ints, node: Ints, kernel: Ints) -> tuple[Codes, Codes]:
        """Give each node of a graph its own instruction.

        Returns:
            What activities of one thunk share, and the instruction: `GRAPH_NODE` where it cannot be known. Activities
            outside graphs keep the thunk range that launched them.
        """
        launch = np.full(len(owner), -1, np.int32)
        maker = np.full(len(owner), GRAPH_NODE, np.int32)
        for process, rows in by_value(pid):
            if process in self._launches:
                launch[rows] = self._launches[process](correlation[rows])
            if process in self._makers:
                maker[rows] = self._makers[process](node[rows])
        self._shown[launch[launch >= 0]] = True
        shared = owner.copy()
        instruction = np.where(owner >= 0, self.launches.instruction[np.maximum(owner, 0)], np.int32(-1)).astype(
            np.int32
        )
        in_graph = (owner >= 0) & ((launch >= 0) | ((node != NULL) & (node != 0)))
        made = np.where(maker >= 0, self.launches.instruction[np.maximum(maker, 0)], np.int32(-1))
        # a node made while only the launching thunk was open tells nothing new
        known = in_graph & (made >= 0) & (made != instruction)
        by_kernel = np.full(len(owner), -1, np.int32) if self._kernels is None else self._kernels(kernel)
        guessed = in_graph & ~known & (by_kernel >= 0)
        self.named += int(guessed.sum())
        shared = np.where(known, maker, np.where(guessed, len(self.launches.instruction) + by_kernel, shared)).astype(
            np.int32
        )
        instruction = np.where(known, made, np.where(guessed, by_kernel, instruction)).astype(np.int32)
        instruction[in_graph & ~known & ~guessed] = GRAPH_NODE
        return shared, instruction

    def hidden(self) -> Unresolved | None:
        """Graph launches that show no activity."""
        silent = int((~self._shown).sum())
        count, duration = self.traced
        return Unresolved("graph-launch", max(count, silent), duration) if count or silent else None


def read_graphs(tables: Tables, ranges: Ranges) -> Graphs:
    """What is recorded of graphs: launches, creations of nodes, whole-graph activities."""
    rows = tables.rows("StringIds", ("id", "value"), like=("value", ("cuGraphLaunch", "cudaGraphLaunch")))
    names = [identity for identity, _ in rows if isinstance(identity, int)]
    traced = _traced(tables)
    if not (names or traced[0] or any("graphNodeId" in tables.columns(table) for table in NODE_TABLES)):
        return Graphs(False, ranges.launches, ranges.launches.instructions)
    instructions = {name: number for number, name in enumerate(ranges.launches.instructions)}
    kernels = {}
    for identity, text in tables.rows("StringIds", ("id", "value")):
        if isinstance(identity, int) and isinstance(text, str) and (name := kernel_instruction(text)):
            kernels[identity] = instructions.setdefault(name, len(instructions))
    by_name = Lookup(np.array(list(kernels), np.int64), np.array(list(kernels.values()), np.int32), -1)
    launches, count = _launches(tables, names)
    shown = np.zeros(count, np.bool_)
    makers = _makers(tables, ranges)
    return Graphs(True, ranges.launches, tuple(instructions), traced, 0, launches, shown, makers, by_name)


def _traced(tables: Tables) -> tuple[int, int]:
    count = duration = 0
    for start, end in tables.integers(TRACED, ("start", "end")):
        good = (end > start) & (start != NULL)
        count += len(start)
        duration += int((end - start)[good].sum())
    return count, duration


def _launches(tables: Tables, names: list[int]) -> tuple[dict[int, Lookup], int]:
    """For each process from correlation id to the running number of the graph launch; and their count."""
    if not names:
        return {}, 0
    wanted = ("globalTid", "correlationId")
    batches = list(tables.integers("CUPTI_ACTIVITY_KIND_RUNTIME", wanted, keep=("nameId", names)))
    if not batches:
        return {}, 0
    tid, correlation = (np.concatenate(column) for column in zip(*batches, strict=True))
    numbers = np.arange(len(tid), dtype=np.int32)
    found = {pid: Lookup(correlation[rows], numbers[rows], -1) for pid, rows in by_value(tid & ~np.int64(0xFFFFFF))}
    return found, len(tid)


def _makers(tables: Tables, ranges: Ranges) -> dict[int, Lookup]:
    """For each process from node id to the thunk range in which the node was made."""
    for table in NODE_TABLES:
        if "graphNodeId" not in tables.columns(table):
            continue
        wanted = ("start", "globalTid", "graphNodeId", "originalGraphNodeId")
        batches = list(tables.integers(table, wanted))
        if not batches:
            continue
        start, tid, node, original = (np.concatenate(column) for column in zip(*batches, strict=True))
        processes = by_value(tid & ~np.int64(0xFFFFFF))
        return {pid: _originals(ranges, start[at], tid[at], node[at], original[at]) for pid, at in processes}
    return {}


def _originals(ranges: Ranges, start: Ints, tid: Ints, node: Ints, original: Ints) -> Lookup:
    """From node id to thunk range, clones traced back to the node they were made from."""
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
    owner = ranges.owners(tid[at], start[at])
    owner[clone] = GRAPH_NODE
    return Lookup(node, owner, GRAPH_NODE)
