"""The events of xplane lines as columns: times, and the few stats that tell what launched each GPU activity."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from pgle.trace.table import Device, Kind, ModuleKey, distinct
from pgle.trace.xplane.executions import Scopes
from pgle.trace.xplane.planes import Plane
from pgle.trace.xplane.wire import BYTES, VARINT, Block, Cursors, DamagedError, Ints, repeated

BLOCK_EVENTS = 1 << 15  # events decoded at a time: their working arrays stay in the processor's cache
MAX_ID = 1 << 24  # bound on metadata ids, which index tables here; writers number them from 1

MAX_TIME_NS = 1 << 62
"""Bound on the time that a line counts from; with it no sum of times overflows. 146 years: times count from 1970."""

ABSENT, INTEGER, REFERENCE, TEXT, OTHER = 0, 1, 2, 3, 4
_FORM = np.full((9, 8), OTHER, np.uint8)
"""What a field of an XStat holds, by number (those beyond 7 in one) and wire type."""
_FORM[3:5, VARINT], _FORM[5, BYTES], _FORM[7, VARINT] = INTEGER, TEXT, REFERENCE

_METADATA_ID, _OFFSET, _DURATION, _STATS = 1, 2, 3, 4


@dataclass(frozen=True)
class Stat:
    """One stat of n events: `form` says of each what `value` is: absent, an integer, the id of a stat metadata whose
    name is the value, where a string starts in the data (with `end`), or anything else."""

    form: npt.NDArray[np.uint8]
    value: Ints
    end: Ints


@dataclass(frozen=True)
class Events:
    """Events of one line, n rows in file order."""

    metadata: Ints  # int64[n], ids of event metadata
    offset_ps: Ints  # int64[n], since the timestamp of the line
    duration_ps: Ints  # int64[n]
    stats: Mapping[str, Stat]  # by name of the stat; all those asked for

    def __len__(self) -> int:
        return len(self.metadata)

    def times_ns(self, origin_ns: int) -> tuple[Ints, Ints]:
        """int64[n] starts and durations, where `origin_ns` is the timestamp of the line.

        Raises:
            DamagedError: an event has a negative duration, or a time that 64 bits cannot hold.
        """
        if len(self) and int(self.duration_ps.min()) < 0:
            raise DamagedError("an event of negative duration")
        if not -MAX_TIME_NS < origin_ns < MAX_TIME_NS:
            raise DamagedError("a line with an impossible time")
        return origin_ns + self.offset_ps // 1000, self.duration_ps // 1000


def read_events(
    data: bytes, starts: Ints, ends: Ints, wanted: Sequence[str], ids: Mapping[str, int]
) -> Iterator[Events]:
    """Decode XEvents in blocks.

    Args:
        data: the file.
        starts, ends: int64[n], where the events lie in it, in order.
        wanted: names of stats.
        ids: stat metadata ids by name.

    Raises:
        DamagedError: an event is not well-formed.
    """
    slots = np.full(max([ids.get(name, 0) for name in wanted], default=0) + 2, -1, np.int64)
    for slot, name in enumerate(wanted):
        if name in ids:
            slots[ids[name]] = slot
    for first in range(0, len(starts), BLOCK_EVENTS):
        start, end = starts[first : first + BLOCK_EVENTS], ends[first : first + BLOCK_EVENTS]
        yield _decode(data, start, end, wanted, slots)


def _decode(data: bytes, start: Ints, end: Ints, wanted: Sequence[str], slots: Ints) -> Events:
    base = int(start[0])
    block = Block(memoryview(data)[base : int(end[-1])])
    count = len(start)
    numbers = np.zeros((4, count), np.int64)
    form = np.zeros((len(wanted), count), np.uint8)
    value = np.zeros((len(wanted), count), np.int64)
    stop = np.zeros((len(wanted), count), np.int64)
    cursors = Cursors(block, start - base, end - base)
    while cursors.step():
        number, which, values, ends = cursors.number, cursors.which, cursors.value, cursors.end
        is_stat = number == _STATS
        if not is_stat.all():
            for field in (_METADATA_ID, _OFFSET, _DURATION):
                here = (number == field) & (cursors.kind == VARINT)
                numbers[field, which[here]] = values[here]
            if not is_stat.any():
                continue
            which, values, ends = which[is_stat], values[is_stat], ends[is_stat]
        if (cursors.kind[is_stat] != BYTES).any():
            raise DamagedError("a stat that is no message")
        slot, which, forms, values, ends = _stats(block, which, values, ends, slots)
        form[slot, which], value[slot, which], stop[slot, which] = forms, values, ends
    value[form == TEXT] += base
    stop += base
    stats = {name: Stat(form[i], value[i], stop[i]) for i, name in enumerate(wanted)}
    return Events(numbers[_METADATA_ID], numbers[_OFFSET], numbers[_DURATION], stats)


def _stats(
    block: Block, which: Ints, start: Ints, end: Ints, slots: Ints
) -> tuple[Ints, Ints, npt.NDArray[np.uint8], Ints, Ints]:
    """The wanted ones of one XStat per event: slots, events, forms, values, ends of values."""
    cursors = Cursors(block, start, end)
    if not cursors.step():
        none = np.empty(0, np.int64)
        return none, none, np.empty(0, np.uint8), none, none
    if len(cursors.which) != len(start) or not (cursors.number == _METADATA_ID).all():
        return _stats_in_any_order(block, which, start, end, slots)
    slot = slots[np.minimum(cursors.value, len(slots) - 1).clip(0)]
    keep = np.flatnonzero(slot >= 0)
    slot, which = slot[keep], which[keep]
    cursors = Cursors(block, cursors.end[keep], end[keep])
    forms, values, ends = np.zeros(len(keep), np.uint8), np.zeros(len(keep), np.int64), np.zeros(len(keep), np.int64)
    while cursors.step():
        forms[cursors.which] = _FORM[np.minimum(cursors.number, 8), cursors.kind]
        values[cursors.which], ends[cursors.which] = cursors.value, cursors.end
    return slot, which, forms, values, ends


def _stats_in_any_order(
    block: Block, which: Ints, start: Ints, end: Ints, slots: Ints
) -> tuple[Ints, Ints, npt.NDArray[np.uint8], Ints, Ints]:
    """The result of `_stats`, for writers that do not begin with the metadata id."""
    count = len(start)
    identity = np.zeros(count, np.int64)
    forms, values, ends = np.zeros(count, np.uint8), np.zeros(count, np.int64), np.zeros(count, np.int64)
    cursors = Cursors(block, start, end)
    while cursors.step():
        is_id = cursors.number == _METADATA_ID
        identity[cursors.which[is_id]] = cursors.value[is_id]
        rest = cursors.which[~is_id]
        forms[rest] = _FORM[np.minimum(cursors.number[~is_id], 8), cursors.kind[~is_id]]
        values[rest], ends[rest] = cursors.value[~is_id], cursors.end[~is_id]
    slot = slots[np.minimum(identity, len(slots) - 1).clip(0)]
    keep = slot >= 0
    return slot[keep], which[keep], forms[keep], values[keep], ends[keep]


def read_pairs(data: bytes, start: int, end: int, number: int) -> tuple[Ints, Ints]:
    """The stats of a plane as (metadata id, integer value), int64[n] each: how scope ranges are stored.

    Raises:
        DamagedError: a stat is not well-formed.
    """
    starts, ends, _ = repeated(data, start, end, number)
    keys, values = np.zeros(len(starts), np.int64), np.zeros(len(starts), np.int64)
    for first in range(0, len(starts), BLOCK_EVENTS):
        begin, stop = starts[first : first + BLOCK_EVENTS], ends[first : first + BLOCK_EVENTS]
        base = int(begin[0])
        cursors = Cursors(Block(memoryview(data)[base : int(stop[-1])]), begin - base, stop - base)
        while cursors.step():
            is_id = cursors.number == _METADATA_ID
            keys[first + cursors.which[is_id]] = cursors.value[is_id]
            is_value = (cursors.number == 3) | (cursors.number == 4)
            values[first + cursors.which[is_value]] = cursors.value[is_value]
    return keys, values


WANTED = (
    "hlo_op",
    "hlo_module",
    "program_id",
    "correlation_id",
    "scope_range_id",
    "memcpy_details",
    "memset_details",
    "cuda_graph_exec_id",
    "memalloc_details",
    "memfree_details",
    "memory_residency_details",
    "run_id",
    "device_ordinal",
)
"""Stats that are read, under the names of `xla/tsl/profiler/utils/xplane_schema.cc`."""

_NOT_ACTIVITIES = ("memalloc_details", "memfree_details", "memory_residency_details")
_COLUMNS = (
    "start_ns",
    "duration_ns",
    "correlation",
    "scope",
    "top",
    "module",
    "instruction",
    "kernel",
    "device",
    "stream",
    "kind",
)
_TYPES = dict.fromkeys(_COLUMNS[:5], np.int64) | dict.fromkeys(_COLUMNS[5:10], np.int32) | {"kind": np.uint8}


_Key = TypeVar("_Key")


@dataclass
class Codes(Generic[_Key]):
    """Keys by running number, in order of appearance."""

    of: dict[_Key, int] = field(default_factory=dict)

    def code(self, key: _Key) -> int:
        """The number of `key`, a new one where it is new."""
        return self.of.setdefault(key, len(self.of))


@dataclass
class Strings:
    """String stats of one plane as codes: references are looked up once each."""

    plane: Plane
    codes: Codes[str]
    table: npt.NDArray[np.int32] = field(init=False)

    def __post_init__(self) -> None:
        largest = max(self.plane.rest.stat_metadata, default=0)
        if not 0 <= largest < MAX_ID:
            raise DamagedError(f"plane {self.plane.name!r} has stat metadata number {largest:,}")
        self.table = np.full(largest + 2, -2, np.int32)

    def codes_of(self, stat: Stat, data: bytes) -> npt.NDArray[np.int32]:
        """int32[n], -1 where the event has no such string."""
        out = np.full(len(stat.form), -1, np.int32)
        is_reference = stat.form == REFERENCE
        everywhere = bool(is_reference.all())
        references = np.minimum(stat.value if everywhere else stat.value[is_reference], len(self.table) - 1).clip(0)
        found: npt.NDArray[np.int32] = self.table[references]
        if (found == -2).any():
            for reference in distinct(references[found == -2]).tolist():
                name = self.plane.rest.stat_metadata[reference].name if reference < len(self.table) - 1 else ""
                self.table[reference] = self.codes.code(name) if name else -1
            found = self.table[references]
        if everywhere:
            return found
        out[is_reference] = found
        for i in np.flatnonzero(stat.form == TEXT).tolist():
            text = data[int(stat.value[i]) : int(stat.end[i])].decode(errors="replace")
            out[i] = self.codes.code(text) if text else -1
        return out


@dataclass
class Gathered:
    """Columns of all activities read so far, and what was left out."""

    # columns by name, in blocks
    parts: dict[str, list[npt.NDArray[Any]]] = field(default_factory=lambda: {name: [] for name in _COLUMNS})
    # instructions, modules, devices: codes; a module's key is (name, program id)
    instructions: Codes[str] = field(default_factory=Codes)
    names: Codes[str] = field(default_factory=Codes)
    modules: Codes[tuple[int, int | None]] = field(default_factory=Codes)
    devices: Codes[Device] = field(default_factory=Codes)
    left_out: dict[str, tuple[int, int]] = field(default_factory=dict)  # (count, nanoseconds) by reason
    # (module, instruction, name) of libraries' kernels, the first two as codes
    kernels: set[tuple[int, int, str]] = field(default_factory=set)

    def column(self, name: str) -> npt.NDArray[Any]:
        """One column over all rows; its blocks are given up."""
        blocks = self.parts.pop(name)
        return np.concatenate(blocks) if blocks else np.empty(0, _TYPES[name])

    def leave_out(self, reason: str, durations_ns: Ints) -> None:
        """Count activities that belong to no instruction."""
        if len(durations_ns):
            count, total = self.left_out.get(reason, (0, 0))
            self.left_out[reason] = (count + len(durations_ns), total + int(durations_ns.sum()))

    def add_gpu(self, events: Events, data: bytes, strings: tuple[Strings, Strings], where: Place) -> None:
        """Take one block of a stream's events."""
        activity = np.ones(len(events), bool)
        for name in _NOT_ACTIVITIES:
            activity &= events.stats[name].form == ABSENT
        start, duration = events.times_ns(where.origin_ns)
        instruction = strings[0].codes_of(events.stats["hlo_op"], data)
        module = strings[1].codes_of(events.stats["hlo_module"], data)
        graph = activity & (events.stats["cuda_graph_exec_id"].form != ABSENT)
        self.leave_out("graph-launch", duration[graph])
        activity &= ~graph
        self.leave_out("no-thunk", duration[activity & (instruction < 0) & (module >= 0)])
        self.leave_out("no-range", duration[activity & (instruction < 0) & (module < 0)])
        self.leave_out("no-module", duration[activity & (instruction >= 0) & (module < 0)])
        kind = np.zeros(len(events), np.uint8)
        kind[events.stats["memcpy_details"].form != ABSENT] = Kind.MEMCPY
        kind[events.stats["memset_details"].form != ABSENT] = Kind.MEMSET
        keep = activity & (instruction >= 0) & (module >= 0)
        scope = integers(events.stats["scope_range_id"], 0)
        if not keep.any():
            return
        codes = self.module_codes(module, events.stats["program_id"])
        for identity, name in where.libraries.items():
            rows = np.flatnonzero(keep & (events.metadata == identity))
            pairs = distinct(codes[rows] << 32 | instruction[rows]).tolist()
            self.kernels.update((pair >> 32, pair & 0xFFFFFFFF, name) for pair in pairs)
        self.append(
            keep,
            start_ns=start,
            duration_ns=duration,
            correlation=integers(events.stats["correlation_id"], 0),
            scope=scope,
            top=where.scopes.outermost(scope),
            module=codes,
            instruction=instruction,
            kernel=events.metadata,
            device=np.full(len(events), self.devices.code(where.device)),
            stream=np.full(len(events), where.stream),
            kind=kind,
        )

    def module_codes(self, name: npt.NDArray[np.int32], program: Stat) -> Ints:
        """Codes of (module name, program id); -1 where there is no name."""
        number, given = integers(program, 0), program.form == INTEGER
        new = np.ones(len(name), bool)
        new[1:] = (np.diff(name) != 0) | (np.diff(number) != 0) | (np.diff(given) != 0)
        heads = np.flatnonzero(new)
        triples = zip(name[heads].tolist(), number[heads].tolist(), given[heads].tolist(), strict=True)
        codes = [-1 if code < 0 else self.modules.code((code, key if known else None)) for code, key, known in triples]
        return np.repeat(np.array(codes, np.int64), np.diff(np.append(heads, len(name))))

    def append(self, keep: npt.NDArray[np.bool_], **columns: npt.NDArray[Any]) -> None:
        """Add the rows in `keep`."""
        everything = bool(keep.all())
        for name, values in columns.items():
            self.parts[name].append((values if everything else values[keep]).astype(_TYPES[name]))

    def kernel_names(self) -> dict[tuple[str, str], frozenset[str]]:
        """Names of libraries' kernels by module and instruction."""
        modules, instructions = self.module_keys(), tuple(self.instructions.of)
        found: dict[tuple[str, str], set[str]] = {}
        for module, instruction, name in self.kernels:
            found.setdefault((modules[module].name, instructions[instruction]), set()).add(name)
        return {where: frozenset(names) for where, names in sorted(found.items())}

    def module_keys(self) -> tuple[ModuleKey, ...]:
        """The executables, by code."""
        names = list(self.names.of)
        return tuple(ModuleKey(names[code], program) for code, program in self.modules.of)


def integers(stat: Stat, absent: int) -> Ints:
    """int64[n], the integer values of a stat."""
    is_integer = stat.form == INTEGER
    return stat.value if is_integer.all() else np.where(is_integer, stat.value, absent)


@dataclass(frozen=True)
class Place:
    """Where the events of one line belong."""

    device: Device
    stream: int
    origin_ns: int
    scopes: Scopes
    libraries: Mapping[int, str] = field(default_factory=dict)  # names of libraries' kernels, by metadata id
