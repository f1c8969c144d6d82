"""XLA's NVTX ranges as a forest per thread, and the thunk that owns a moment on a thread."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from pgle.errors import UserError
from pgle.trace.column import Column
from pgle.trace.nsys.forest import levels, nesting_order
from pgle.trace.nsys.lookup import Codes, Lookup, by_value
from pgle.trace.nsys.tables import NULL, Ints, Tables
from pgle.trace.nsys.text import MAX_TEXT, PREFIXES, RangeKind, module_key, range_kind, thunk_instruction
from pgle.trace.table import ModuleKey

NO_API_ROW, NO_RANGE, NO_THUNK, AUTOTUNER, NO_MODULE, GRAPH_NODE, BAD_TIME = range(-1, -8, -1)
"""Why an activity has no thunk; stands in the place of a range's number."""

REASONS = {
    NO_API_ROW: "no-api-row",
    NO_RANGE: "no-range",
    NO_THUNK: "no-thunk",
    AUTOTUNER: "autotuner",
    NO_MODULE: "no-module",
    GRAPH_NODE: "graph-node",
    BAD_TIME: "bad-time",
}

PUSH_POP = (59, 70)
"""NVTX_EVENTS.eventType of push/pop ranges, live and from NVTX text files (ENUM_NSYS_EVENT_TYPE)."""


@dataclass(frozen=True)
class Launches:
    """What each range stands for; the n-th entry is that of the n-th of `Ranges`.

    Attributes:
        module_range: the nearest module range, counted over module ranges only; -1 none.
        module_start: ns, of each module range.
        module_of: index into `modules` of each module range; -1 without program id.
        instruction: index into `instructions` of a thunk range, -1 of others.
        modules: executables with program id.
        instructions: instruction names.
    """

    module_range: Codes
    module_start: Ints
    module_of: Codes
    instruction: Codes
    modules: tuple[ModuleKey, ...]
    instructions: tuple[str, ...]


@dataclass(frozen=True)
class Ranges:
    """XLA's push/pop ranges, ordered by (thread, start, longest first).

    Attributes:
        threads: globalTid of each thread, ascending.
        offset: where each thread's ranges begin; one longer than `threads`.
        start: ns.
        end: ns.
        parent: the enclosing range, -1 at the top.
        owner: the thunk range that owns GPU work launched directly in this range, or a reason (negative).
        launches: what the ranges stand for; it outlives the rest.
    """

    threads: Ints
    offset: Ints
    start: Ints
    end: Ints
    parent: Codes
    owner: Codes
    launches: Launches

    def owners(self, tid: Ints, at: Ints) -> Codes:
        """The thunk range open on each thread at each moment: its number, or a reason (negative)."""
        result = np.full(len(tid), NO_RANGE, np.int32)
        for thread, chosen in by_value(tid):
            code = int(np.searchsorted(self.threads, thread))
            if code == len(self.threads) or self.threads[code] != thread:
                continue
            first, last = int(self.offset[code]), int(self.offset[code + 1])
            times = at[chosen]
            found = np.searchsorted(self.start[first:last], times, side="right") + (first - 1)
            found[found < first] = -1
            outside = np.flatnonzero((found >= 0) & (self.end[found] < times))
            while len(outside):
                found[outside] = self.parent[found[outside]]
                still = found[outside]
                outside = outside[(still >= 0) & (self.end[still] < times[outside])]
            result[chosen] = np.where(found >= 0, self.owner[found], NO_RANGE)
        return result


class _Labels:
    """Distinct range texts, numbered, with what they mean."""

    def __init__(self) -> None:
        self.kind: list[int] = []
        self.value: list[int] = []
        self.modules: dict[ModuleKey, int] = {}
        self.instructions: dict[str, int] = {}
        self._number: dict[str, int] = {}

    def number(self, text: str) -> int:
        """The label of a text; -1 where it is not XLA's."""
        known = self._number.get(text)
        if known is not None:
            return known
        kind = range_kind(text) if len(text) <= MAX_TEXT else None
        number = -1
        if kind is not None:
            number = len(self.kind)
            self.kind.append(int(kind))
            self.value.append(self._meaning(kind, text))
        self._number[text] = number
        return number

    def _meaning(self, kind: RangeKind, text: str) -> int:
        if kind is RangeKind.THUNK and (name := thunk_instruction(text)):
            return self.instructions.setdefault(name, len(self.instructions))
        if kind is RangeKind.MODULE and (key := module_key(text)) and key.program_id is not None:
            return self.modules.setdefault(key, len(self.modules))
        return -1


def read_ranges(tables: Tables, step: Callable[[int], None]) -> Ranges:
    """Read XLA's ranges.

    Args:
        tables: the export.
        step: called with the number of rows read.

    Raises:
        UserError: there are none, or they are nested absurdly.
    """
    labels = _Labels()
    threads: dict[int, int] = {}
    starts, ends = Column(np.int64), Column(np.int64)
    codes, texts = Column(np.int32), Column(np.int32)
    for start, end, tid, label in _labelled(tables, labels, step):
        end = np.where(end == NULL, np.iinfo(np.int64).max, end)
        # an empty range holds no call, and would break the count of open ranges
        chosen = np.flatnonzero((label >= 0) & (end > start) & (start != NULL) & (tid != NULL))
        code = np.empty(len(start), np.int32)
        for thread, rows in by_value(tid):
            code[rows] = threads.setdefault(thread, len(threads))
        starts.append(start[chosen])
        ends.append(end[chosen])
        codes.append(code[chosen])
        texts.append(label[chosen])
    if not len(starts) or RangeKind.THUNK not in labels.kind:
        raise UserError(
            "no `Thunk:` ranges of XLA",
            where=tables.path,
            remedy="record a JAX program on a GPU with `nsys profile --trace=cuda,nvtx`",
        )
    tids = np.array(list(threads), np.int64)
    return _forest(tables, tids, starts.join(), ends.join(), codes.join(), texts.join(), labels)


def _labelled(tables: Tables, labels: _Labels, step: Callable[[int], None]) -> Iterator[tuple[Ints, Ints, Ints, Codes]]:
    """Batches of (start, end, globalTid, label) of push/pop ranges."""
    ids, numbers = [], []
    for identity, text in tables.rows("StringIds", ("id", "value"), like=("value", PREFIXES)):
        if isinstance(identity, int) and isinstance(text, str):
            ids.append(identity)
            numbers.append(labels.number(text))
    label_of = Lookup(np.array(ids, np.int64), np.array(numbers, np.int32), -1)
    wanted = ("start", "end", "globalTid", "textId")
    unregistered = False
    for start, end, tid, text_id in tables.integers("NVTX_EVENTS", wanted, keep=("eventType", PUSH_POP)):
        step(len(start))
        unregistered |= bool((text_id == NULL).any())
        yield start, end, tid, label_of(text_id)
    columns = ("start", "end", "globalTid", "eventType", "textId", "text")
    if not unregistered or not set(columns) <= tables.columns("NVTX_EVENTS"):
        return
    # the text of an unregistered string stands in the row itself
    batch: list[tuple[int, int, int, int]] = []
    for begin, stop, thread, kind, registered, text in tables.rows("NVTX_EVENTS", columns, like=("text", PREFIXES)):
        if (
            registered is None
            and kind in PUSH_POP
            and isinstance(begin, int)
            and isinstance(thread, int)
            and isinstance(text, str)
        ):
            batch.append((begin, stop if isinstance(stop, int) else NULL, thread, labels.number(text)))
    if batch:
        start, end, tid, label = np.array(batch, np.int64).T
        yield start, end, tid, label.astype(np.int32)


def _forest(tables: Tables, tids: Ints, start: Ints, end: Ints, code: Codes, label: Codes, labels: _Labels) -> Ranges:
    """Order the ranges, nest them, and say for each which thunk and which module it belongs to."""
    rank = np.empty(len(tids), np.int32)
    rank[np.argsort(tids)] = np.arange(len(tids), dtype=np.int32)
    code = rank[code]
    offset = np.concatenate([[0], np.cumsum(np.bincount(code, minlength=len(tids)))])
    order = nesting_order(code, start, end)
    del code
    if order is not None:
        start, end, label = start[order], end[order], label[order]
        del order
    kind = np.array(labels.kind, np.int8)[label]
    value = np.array(labels.value, np.int32)[label]
    del label
    is_thunk, is_module = kind == RangeKind.THUNK, kind == RangeKind.MODULE
    # a module without program id is one that the autotuner runs
    compiling = (kind == RangeKind.COMPILE) | (is_module & (value < 0))
    parent = np.full(len(start), -1, np.int32)
    thunk = np.where(is_thunk, np.arange(len(start), dtype=np.int32), np.int32(-1))
    module = np.where(is_module, np.cumsum(is_module, dtype=np.int32) - np.int32(1), np.int32(-1))
    for first, last in pairwise(offset.tolist()):
        for inner, outer in levels(start[first:last], end[first:last], tables.path):
            inner, outer = inner + first, outer + first
            parent[inner] = outer
            for column in (thunk, module):
                own = column[inner]
                column[inner] = np.where(own < 0, column[outer], own)
            compiling[inner] |= compiling[outer]
    launches = Launches(
        module, start[is_module], value[is_module], np.where(is_thunk, value, np.int32(-1)),
        tuple(labels.modules), tuple(labels.instructions),
    )  # fmt: skip
    own = np.maximum(thunk, 0)
    owner = np.where(module[own] < 0, np.int32(NO_MODULE), thunk)
    owner[(thunk < 0) | (launches.instruction[own] < 0)] = NO_THUNK
    owner[compiling] = AUTOTUNER
    return Ranges(np.sort(tids), offset, start, end, parent, owner, launches)
