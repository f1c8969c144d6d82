"""XLA's NVTX ranges: their texts, how they nest on each thread, and which thunk is open when.

The texts are made by XLA's GPU annotation code (`xla/backends/gpu/runtime/annotation.cc`):
``XlaModule:#[prefix=P,]hlo_module=M[,program_id=N]#`` and
``Thunk:#[name=OPNAME,]hlo_op=OP[,unique_hlo_op_id=N]#``. OPNAME comes from the framework and may
contain ``,()=[]#`` and spaces. So pgle parses these texts from the right.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt

from pgle.errors import UserError
from pgle.trace.columns import LATEST, Codes, Flags, GrowingColumn, Ints, narrow
from pgle.trace.intervals import union
from pgle.trace.nsys.tables import NULL, PROCESS, Tables
from pgle.trace.table import LeftOutReason, ModuleKey


def by_value(values: Ints) -> Iterator[tuple[int, npt.NDArray[np.intp] | slice]]:
    """Yield each distinct value with the rows that hold it, in row order."""
    if not len(values):
        return
    if values[0] == values[-1] and (values == values[0]).all():
        yield int(values[0]), slice(None)
        return
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    edges = np.flatnonzero(np.diff(ordered)) + 1
    for rows in np.split(order, edges):
        yield int(values[rows[0]]), rows


class Lookup:
    """A map from integers to numbers.

    It is a table if the keys are dense, else it searches by bisection. The last of equal keys
    counts. Unknown keys give `missing`.

    Args:
        keys, values: int[n], the known integers and the number of each.
        missing: the number of all other integers.
    """

    def __init__(self, keys: Codes, values: Codes, missing: int) -> None:
        self._missing = np.int32(missing)
        self._low = int(keys.min()) if len(keys) else 0
        self._high = int(keys.max()) if len(keys) else -1
        span = self._high - self._low + 1
        self._dense = span <= 8 * len(keys) + 65536
        if self._dense:
            self._table: Codes = np.full(span, missing, np.int32)
            self._table[keys - self._low] = values
        else:
            order = np.argsort(keys, kind="stable")
            self._keys, self._table = keys[order], values[order]

    @classmethod
    def of(cls, numbers: Mapping[int, int]) -> Lookup:
        """Make a lookup from a dictionary. Unknown keys give -1."""
        keys = np.array(list(numbers), np.int64)
        values = np.array(list(numbers.values()), np.int32)
        return cls(keys, values, missing=-1)

    def __call__(self, keys: Ints) -> Codes:
        """The number of each key."""
        if not len(self._table):
            return np.full(len(keys), self._missing, np.int32)
        if self._dense:
            inside = (keys >= self._low) & (keys <= self._high)
            found = self._table[np.where(inside, keys, self._low) - self._low]
            return np.where(inside, found, self._missing)
        at = np.searchsorted(self._keys, keys, side="right") - 1
        return np.where(self._keys[at] == keys, self._table[at], self._missing)


class RangeKind(IntEnum):
    """What an XLA range names."""

    THUNK = 0
    MODULE = 1
    # GPU work inside such a range compiles or autotunes and belongs to no program.
    COMPILE = 2


# A lookup of an enum member takes as long as parsing a text, so it is done once.
THUNK, MODULE, COMPILE = RangeKind


PREFIXES = (
    "Thunk:",
    "XlaModule:",
    "XlaAutotuner",
    "XlaCompile",
    "XlaPass",
    "XlaEmit",
    "XlaOptimize",
    "XlaCreate",
)
"""The first words of XLA's range texts. All other ranges (from NCCL or the user) are ignored."""

MAX_TEXT = 1 << 20
"""XLA writes no longer text. The longest real texts hold a whole ``dot_general[...]`` and stay
under 64 KiB.
"""

_KERNEL_NUMBER = re.compile(r"(?:_\d+)+$")
_XLA_KERNEL = re.compile(r"^(?:\w*fusion|wrapped_\w+?)(?:_\d+)*$")


def range_kind(text: str) -> RangeKind | None:
    """Return the kind of a range from its text; None if XLA did not write it."""
    if text.startswith("Thunk:"):
        return THUNK
    if text.startswith("XlaModule:"):
        return MODULE
    return COMPILE if text.startswith(PREFIXES) else None


def thunk_instruction(text: str) -> str | None:
    """Return the HLO instruction that a thunk range names; None if it names none."""
    return _last_field(text, "hlo_op") or None


def module_key(text: str) -> ModuleKey | None:
    """Return the module that a module range names; None if the text is unreadable.

    Modules that the autotuner runs have no program id.
    """
    name = _last_field(text, "hlo_module")
    if not name:
        return None
    digits = _last_field(text, "program_id") or ""
    if digits.isascii() and digits.isdigit() and len(digits) < 20:
        return ModuleKey(name, int(digits))
    return ModuleKey(name)


def kernel_instruction(kernel: str) -> str | None:
    """Return the instruction after which XLA named a kernel: ``loop_add_fusion_3`` runs
    ``loop_add_fusion.3``.

    Kernels of libraries give None. XLA replaces ``.`` and ``-`` of the fusion's name by ``_``
    (`xla/service/llvm_ir/llvm_util.cc`, SanitizeFunctionName). Fusions are numbered with dots.
    """
    if not _XLA_KERNEL.match(kernel):
        return None
    return _KERNEL_NUMBER.sub(lambda found: found.group().replace("_", "."), kernel)


def _last_field(text: str, key: str) -> str | None:
    """Return the value of the last ``key=value`` in ``…#a=b,key=value,c=d#``.

    A field follows ``#`` or ``,``.
    """
    at = max(text.rfind(f"#{key}="), text.rfind(f",{key}="))
    if at < 0:
        return None
    value = text[at + len(key) + 2 :].partition("#")[0].partition(",")[0]
    return value.strip().lstrip("%")


Rows = npt.NDArray[np.intp]
Reasons = npt.NDArray[np.uint8]  # values of `LeftOutReason`
# NVTX_EVENTS.eventType of push/pop ranges, live and from NVTX text files (ENUM_NSYS_EVENT_TYPE)
PUSH_POP = (59, 70)
NO_RANGE = -2  # row of `Ranges.thunk` for calls outside of all ranges
NO_CALL = -1  # row of `Ranges.thunk` for launches without a recorded call
BLOCK = 1 << 18  # ranges that are nested in one step; it bounds the memory
MAX_DEPTH = 1000  # A file with deeper nesting is damaged: XLA nests about ten ranges.


@dataclass(frozen=True, eq=False)
class XlaLaunches:
    """What XLA launched: t thunk ranges inside m module ranges. Usable after `Ranges` is freed."""

    # int[t], index into `instructions`; -1 if the thunk names none
    instruction: Codes
    # int[t], the innermost module range around the thunk; -1 if absent
    module_range: Codes
    module: Codes  # int[m], index into `modules`; -1 for a module without program id
    module_start: Ints  # int64[m], ns
    modules: tuple[ModuleKey, ...]  # executables that have a program id
    instructions: tuple[str, ...]  # instruction names
    # by process (globalPid), int64[k, 2], when XLA compiled: disjoint intervals in order
    compiling: Mapping[int, Ints] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Ranges:
    """XLA's push/pop ranges, n rows ordered by (thread, start, longest first)."""

    threads: Ints  # globalTid of each thread, ascending
    offset: Ints  # int[threads + 1], the first range of each thread
    # start, end: int64[n], ns
    start: Ints
    end: Ints
    parent: Codes  # int32[n], the enclosing range; -1 at the top
    # int[n + 2], the number of the thunk that owns the launches made directly in each range; the
    # last two rows are `NO_RANGE` and `NO_CALL`
    thunk: Codes
    # uint8[n + 2], why a range has no owner; `thunk` holds only if this is `LeftOutReason.NONE`
    reason: Reasons
    launches: XlaLaunches  # the thunks and modules of these ranges

    def owners(self, tid: Ints, at: Ints) -> tuple[Codes, Reasons]:
        """Return the thunk open on each thread at each time, and the reason if there is none."""
        open_ = self.open_at(tid, at)
        return self.thunk[open_], self.reason[open_]

    def open_at(self, tid: Ints, at: Ints) -> Codes:
        """Return the innermost range open on each thread at each time, or the row of `NO_RANGE`."""
        no_range = len(self.start)
        open_ = np.full(len(tid), no_range, np.int32)
        for thread, chosen in by_value(tid):
            code = int(np.searchsorted(self.threads, thread))
            if code == len(self.threads) or self.threads[code] != thread:
                continue
            first = int(self.offset[code])
            last = int(self.offset[code + 1])
            times = at[chosen]
            begun = np.searchsorted(self.start[first:last], times, side="right")
            found = np.where(begun > 0, first + begun - 1, -1)
            outside = np.flatnonzero((found >= 0) & (self.end[found] < times))
            while len(outside):
                around = self.parent[found[outside]]
                found[outside] = around
                is_outside = (around >= 0) & (self.end[around] < times[outside])
                outside = outside[is_outside]
            open_[chosen] = np.where(found < 0, no_range, found)
        return open_


class _Labels:
    """The distinct range texts, numbered, with their meanings."""

    def __init__(self) -> None:
        self.kind: list[int] = []  # values of `RangeKind`
        # of a thunk, the number of its instruction; of a module, its number; -1 if it has none
        self.value: list[int] = []
        self.modules: dict[ModuleKey, int] = {}
        self.instructions: dict[str, int] = {}
        self._number: dict[str, int] = {}

    def number(self, text: str) -> int:
        """Return the number of a text; -1 if XLA did not write it."""
        if text not in self._number:
            self._number[text] = self._new(text)
        return self._number[text]

    def _new(self, text: str) -> int:
        """Add a text that was not seen before. Return its number."""
        kind = range_kind(text) if len(text) <= MAX_TEXT else None
        if kind is None:
            return -1
        value = -1
        if kind is THUNK:
            name = thunk_instruction(text)
            if name:
                value = self.instructions.setdefault(name, len(self.instructions))
        elif kind is MODULE:
            key = module_key(text)
            if key is not None and key.program_id is not None:
                value = self.modules.setdefault(key, len(self.modules))
        self.kind.append(int(kind))
        self.value.append(value)
        return len(self.kind) - 1


def read_ranges(tables: Tables, step: Callable[[int], None]) -> Ranges:
    """Read XLA's ranges.

    Raises:
        UserError: the export has no XLA ranges, or they nest too deeply.
    """
    labels = _Labels()
    threads: dict[int, int] = {}
    starts = GrowingColumn(np.int64)
    ends = GrowingColumn(np.int64)
    codes = GrowingColumn(np.int16)
    texts = GrowingColumn(np.int16)
    for start, end, tid, label in _labelled(tables, labels, step):
        end = np.where(end == NULL, LATEST, end)
        is_whole = (start != NULL) & (tid != NULL)
        # An empty range holds no call and would break the count of open ranges.
        chosen = np.flatnonzero((label >= 0) & (end > start) & is_whole)
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
    return _nested(
        tids,
        starts.join(),
        ends.join(),
        codes.join(),
        texts.join(),
        labels=labels,
        path=tables.path,
    )


def _labelled(
    tables: Tables, labels: _Labels, step: Callable[[int], None]
) -> Iterator[tuple[Ints, Ints, Ints, Codes]]:
    """Yield batches of (start, end, globalTid, label) of push/pop ranges."""
    numbers = {
        identity: labels.number(text) for identity, text in tables.texts(PREFIXES)
    }
    label_of = Lookup.of(numbers)
    wanted = ("start", "end", "globalTid", "textId")
    push_pop = ("eventType", PUSH_POP)
    is_any_unregistered = False
    for batch in tables.integers("NVTX_EVENTS", wanted, keep=push_pop):
        start, end, tid, text_id = batch
        step(len(start))
        is_any_unregistered |= bool((text_id == NULL).any())
        yield start, end, tid, label_of(text_id)
    if is_any_unregistered:
        rows = [*_unregistered(tables, labels)]
        if rows:
            start, end, tid, label = np.array(rows, np.int64).T
            yield start, end, tid, label.astype(np.int32)


def _unregistered(
    tables: Tables, labels: _Labels
) -> Iterator[tuple[int, int, int, int]]:
    """Yield (start, end, globalTid, label) of each push/pop range that stores its text in its own
    row.
    """
    columns = ("start", "end", "globalTid", "eventType", "textId", "text")
    rows = tables.rows("NVTX_EVENTS", columns, like=("text", PREFIXES))
    for start, end, thread, kind, registered, text in rows:
        if registered is not None or kind not in PUSH_POP:
            continue
        if not isinstance(start, int) or not isinstance(thread, int):
            continue
        if isinstance(text, str):
            until = end if isinstance(end, int) else NULL
            yield start, until, thread, labels.number(text)


def _nested(
    tids: Ints,
    start: Ints,
    end: Ints,
    code: Codes,
    label: Codes,
    *,
    labels: _Labels,
    path: Path,
) -> Ranges:
    """Order and nest the ranges, and find the thunk that owns the launches of each."""
    rank = np.empty(len(tids), np.int32)
    rank[np.argsort(tids)] = np.arange(len(tids), dtype=np.int32)
    threads = np.sort(tids)
    code = narrow(rank)[code]
    per_thread = np.bincount(code, minlength=len(tids))
    offset = np.append(0, np.cumsum(per_thread))
    order = _order(code, start, end)
    kinds = np.array(labels.kind, np.int8)
    compiles = np.flatnonzero((kinds[label] == RangeKind.COMPILE) & (end < LATEST))
    compiling_tid = threads[code[compiles]]
    compiling_at = _compiling(compiling_tid, start[compiles], end[compiles])
    del code
    if order is not None:
        start, end, label = start[order], end[order], label[order]
        del order
    kind = kinds[label]
    value = narrow(np.array(labels.value, np.int32))[label]
    del label
    is_thunk = kind == RangeKind.THUNK
    is_module = kind == RangeKind.MODULE
    # Only the autotuner runs modules without program id.
    compiling = (kind == RangeKind.COMPILE) | (is_module & (value < 0))
    parent = np.full(len(start), -1, np.int32)
    thunk = _counted(is_thunk)
    module = _counted(is_module)
    for first, last in pairwise(offset.tolist()):
        for inner, outer in _levels(start[first:last], end[first:last], path):
            inner = inner + first
            outer = outer + first
            parent[inner] = outer
            for column in (thunk, module):
                own = column[inner]
                column[inner] = np.where(own < 0, column[outer], own)
            compiling[inner] |= compiling[outer]
    launches = XlaLaunches(
        instruction=value[is_thunk],
        module_range=module[is_thunk],
        module=value[is_module],
        module_start=start[is_module],
        modules=tuple(labels.modules),
        instructions=tuple(labels.instructions),
        compiling=compiling_at,
    )
    del value, module, kind, is_thunk, is_module
    return Ranges(
        threads=threads,
        offset=offset,
        start=start,
        end=end,
        parent=parent,
        thunk=np.append(thunk, 2 * [np.int16(-1)]),
        reason=_reasons(launches, thunk, compiling),
        launches=launches,
    )


def _reasons(launches: XlaLaunches, thunk: Codes, compiling: Flags) -> Reasons:
    """Return uint8[n + 2]: why launches in a range have no owner, as `Ranges.reason`.

    Args:
        thunk: int[n], the innermost thunk of each range; -1 if it has none.
        compiling: bool[n], whether XLA compiles in the range.
    """
    reason = np.full(len(thunk) + 2, LeftOutReason.NONE, np.uint8)
    inside = reason[:-2]
    if len(launches.instruction):
        inside[launches.module_range[thunk] < 0] = LeftOutReason.NO_MODULE
        inside[launches.instruction[thunk] < 0] = LeftOutReason.NO_THUNK
    inside[thunk < 0] = LeftOutReason.NO_THUNK
    inside[compiling] = LeftOutReason.AUTOTUNER
    reason[NO_RANGE] = LeftOutReason.NO_RANGE
    reason[NO_CALL] = LeftOutReason.NO_API_ROW
    return reason


def _compiling(tid: Ints, start: Ints, end: Ints) -> dict[int, Ints]:
    """Return the times when XLA compiled, by process: the union over its threads."""
    processes = by_value(tid & PROCESS)
    return {process: union(start[rows], end[rows]).ns for process, rows in processes}


def _counted(chosen: Flags) -> Codes:
    """Return the running number of each chosen row; -1 for the others."""
    numbers = narrow(np.arange(np.count_nonzero(chosen), dtype=np.int32))
    counted = np.full(len(chosen), -1, numbers.dtype)
    counted[chosen] = numbers
    return counted


def _order(thread: Codes, start: Ints, end: Ints) -> Codes | None:
    """Return the rows ordered by (thread, start, longest first); None if they are in this order."""
    if _is_ordered(thread, start, end):
        return None
    # Usually each thread's rows are in order and only the threads are mixed. Two-byte thread
    # numbers are then sorted by counting.
    order = np.argsort(thread, kind="stable").astype(np.int32)
    if _is_ordered(thread, start, end, order):
        return order
    return np.lexsort((-end, start, thread)).astype(np.int32)


def _is_ordered(
    thread: Codes, start: Ints, end: Ints, order: Codes | None = None
) -> bool:
    """Whether `order` sorts the rows by (thread, start, longest first). Checked in parts, to save
    memory.
    """
    for at in range(0, len(start) - 1, BLOCK):
        part: slice | Codes = slice(at, at + BLOCK + 1)
        if order is not None:
            part = order[part]
        thread_step = np.diff(thread[part])
        start_step = np.diff(start[part])
        end_step = np.diff(end[part])
        good = (start_step > 0) | ((start_step == 0) & (end_step <= 0))
        good = (thread_step > 0) | ((thread_step == 0) & good)
        if not good.all():
            return False
    return True


def _levels(start: Ints, end: Ints, path: Path) -> Iterator[tuple[Rows, Rows]]:
    """Yield pairs of ranges and their enclosing ranges. An enclosing range is yielded as an inner
    range first.

    Push/pop ranges of a thread nest. Ordered by start, range i has depth i minus the number of
    ranges that ended before its start. Its enclosing range is the last earlier range with a depth
    that is one less.

    Args:
        start: starts of one thread's ranges, ascending, longest first.
        end: ends of these ranges, greater than `start`.
        path: the file, for the error.

    Raises:
        UserError: the ranges nest deeper than `MAX_DEPTH`.
    """
    depth = _depths(start, end, path)
    # cut at ranges at the top level, about every `BLOCK` ranges
    tops = np.flatnonzero(depth == 0)
    near = np.searchsorted(tops, np.arange(0, len(depth), BLOCK))
    cuts = tops[near[near < len(tops)]].tolist()
    for first, last in pairwise([*dict.fromkeys(cuts), len(depth)]):
        block = depth[first:last]
        above = np.flatnonzero(block == 0)
        for level in range(1, int(block.max(initial=0)) + 1):
            here = np.flatnonzero(block == level)
            around = above[np.searchsorted(above, here) - 1]
            yield here + first, around + first
            above = here


def _depths(start: Ints, end: Ints, path: Path) -> npt.NDArray[np.int16]:
    """Return int16[n]: how many ranges enclose each one, with the arguments of `_levels`."""
    ends = np.sort(end)
    depth = np.empty(len(start), np.int16)
    for first in range(0, len(start), BLOCK):
        part = slice(first, first + BLOCK)
        begins = start[part]
        ended = np.searchsorted(ends, begins, side="right")
        deep = np.arange(first, first + len(begins)) - ended
        deepest = int(deep.max(initial=0))
        if deepest > MAX_DEPTH:
            raise UserError(
                f"ranges nested {deepest:,} deep: damaged",
                where=path,
                remedy="record again",
            )
        depth[part] = deep
    return depth
