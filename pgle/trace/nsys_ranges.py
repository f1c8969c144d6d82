"""XLA's NVTX ranges as a forest per thread, and the thunk that owns a moment on a thread."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from pgle.errors import UserError
from pgle.trace.nsys_tables import NULL, Ints, Tables
from pgle.trace.nsys_text import MAX_TEXT, PREFIXES, RangeKind, module_key, range_kind, thunk_instruction
from pgle.trace.table import ModuleKey

Codes = npt.NDArray[np.int32]
Number = TypeVar("Number", bound=np.generic)

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

MAX_DEPTH = 1000
"""Deeper nesting is damage: XLA nests about ten ranges."""


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
        module_range: the nearest module range, counted over module ranges only; -1 none.
        module_start: ns, of each module range.
        module_of: index into `modules` of each module range; -1 without program id.
        instruction: index into `instructions` of a thunk range, -1 of others.
        modules: executables with program id.
        instructions: instruction names.
    """

    threads: Ints
    offset: Ints
    start: Ints
    end: Ints
    parent: Codes
    owner: Codes
    module_range: Codes
    module_start: Ints
    module_of: Codes
    instruction: Codes
    modules: tuple[ModuleKey, ...]
    instructions: tuple[str, ...]

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


def by_value(values: Ints) -> Iterator[tuple[int, npt.NDArray[np.intp] | slice]]:
    """Each distinct value with the rows that have it; rows keep their order."""
    if not len(values):
        return
    if values[0] == values[-1] and bool((values == values[0]).all()):
        yield int(values[0]), slice(None)
        return
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    edges = np.flatnonzero(np.diff(ordered)) + 1
    for rows in np.split(order, edges):
        yield int(values[rows[0]]), rows


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


class Lookup:
    """A function from integers to numbers, as a table where keys lie close together, else by bisection.

    Of equal keys the last counts. Unknown keys give `missing`.
    """

    def __init__(self, keys: npt.NDArray[np.integer], values: Codes, missing: int) -> None:
        self._missing = np.int32(missing)
        self._low = int(keys.min()) if len(keys) else 0
        self._high = int(keys.max()) if len(keys) else -1
        span = self._high - self._low + 1
        self._dense = span <= 8 * len(keys) + 65536
        if self._dense:
            self._table = np.full(span, missing, np.int32)
            self._table[keys - self._low] = values
        else:
            order = np.argsort(keys, kind="stable")
            self._keys, self._table = keys[order], values[order]

    def __call__(self, keys: Ints) -> Codes:
        """The number of each key."""
        if not len(self._table):
            return np.full(len(keys), self._missing, np.int32)
        if self._dense:
            inside = (keys >= self._low) & (keys <= self._high)
            found: Codes = self._table[np.where(inside, keys, self._low) - self._low]
            return np.where(inside, found, self._missing)
        at = np.searchsorted(self._keys, keys, side="right") - 1
        return np.where(self._keys[at] == keys, self._table[at], self._missing)


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
    starts: list[Ints] = []
    ends: list[Ints] = []
    codes: list[Codes] = []
    texts: list[Codes] = []
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
    if not any(map(len, starts)) or RangeKind.THUNK not in labels.kind:
        raise UserError(
            "no `Thunk:` ranges of XLA",
            where=tables.path,
            remedy="record a JAX program on a GPU with `nsys profile --trace=cuda,nvtx`",
        )
    tids = np.array(list(threads), np.int64)
    return _forest(tables, tids, joined(starts), joined(ends), joined(codes), joined(texts), labels)


def joined(parts: list[npt.NDArray[Number]]) -> npt.NDArray[Number]:
    """The parts as one array; the list is emptied, so that a column is held twice only while it is joined."""
    whole = np.concatenate(parts)
    parts.clear()
    return whole


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
    tids = np.sort(tids)
    counts = np.bincount(code, minlength=len(tids))
    offset = np.concatenate([[0], np.cumsum(counts)])
    if not _ordered(code, start, end):
        order = np.lexsort((-end, start, code))
        start, end, label = start[order], end[order], label[order]
        del order
    del code
    kind = np.array(labels.kind, np.int8)[label]
    value = np.array(labels.value, np.int32)[label]
    del label
    size = len(start)
    parent = np.full(size, -1, np.int32)
    thunk = np.where(kind == RangeKind.THUNK, np.arange(size, dtype=np.int32), np.int32(-1))
    is_module = kind == RangeKind.MODULE
    module = np.where(is_module, np.cumsum(is_module, dtype=np.int32) - 1, -1).astype(np.int32)
    # a module without program id is one that the autotuner runs
    compiling = (kind == RangeKind.COMPILE) | (is_module & (value < 0))
    for first, last in zip(offset[:-1].tolist(), offset[1:].tolist(), strict=True):
        for inner, outer in _levels(tables, start[first:last], end[first:last]):
            inner, outer = inner + first, outer + first
            parent[inner] = outer
            for column in (thunk, module):
                own = column[inner]
                column[inner] = np.where(own < 0, column[outer], own)
            compiling[inner] |= compiling[outer]
    module_of = value[is_module]
    owner = np.where(thunk < 0, np.int32(NO_THUNK), thunk)
    owner[(thunk >= 0) & (module[np.maximum(thunk, 0)] < 0)] = NO_MODULE
    owner[compiling] = AUTOTUNER
    named = np.where(kind == RangeKind.THUNK, value, np.int32(-1))
    owner[(owner >= 0) & (named[np.maximum(owner, 0)] < 0)] = NO_THUNK
    return Ranges(
        tids, offset, start, end, parent, owner, module, start[is_module], module_of, named,
        tuple(labels.modules), tuple(labels.instructions),
    )  # fmt: skip


def _ordered(code: Codes, start: Ints, end: Ints) -> bool:
    """True where rows are in the order (thread, start, longest first)."""
    for at in range(0, len(start) - 1, 1 << 20):  # in pieces, for memory
        part = slice(at, at + (1 << 20) + 1)
        thread, begin, stop = np.diff(code[part]), np.diff(start[part]), np.diff(end[part])
        good = (thread > 0) | ((thread == 0) & ((begin > 0) | ((begin == 0) & (stop <= 0))))
        if not good.all():
            return False
    return True


def _levels(tables: Tables, start: Ints, end: Ints) -> Iterator[tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]]:
    """Level by level from the top: the ranges of one depth, and the range around each.

    Push/pop ranges of a thread nest, so the depth of the i-th range is i less the ranges that ended by then, and its
    parent is the last one before it that is one less deep.
    """
    ended = np.searchsorted(np.sort(end), start, side="right")
    depth = np.arange(len(start)) - ended
    del ended
    deepest = int(depth.max(initial=0))
    if deepest > MAX_DEPTH:
        raise UserError(f"ranges nested {deepest:,} deep: damaged", where=tables.path, remedy="record again")
    depth = depth.astype(np.int16)
    above = np.flatnonzero(depth == 0)
    for level in range(1, deepest + 1):
        here = np.flatnonzero(depth == level)
        yield here, above[np.searchsorted(above, here) - 1]
        above = here
