"""GPU activities gathered from the lines of xplane files, as growing columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from pgle.trace.column import distinct
from pgle.trace.table import Device, Kind, ModuleKey
from pgle.trace.xplane.events import ABSENT, INTEGER, MAX_ID, REFERENCE, TEXT, Events, Stat
from pgle.trace.xplane.executions import Scopes
from pgle.trace.xplane.planes import Plane
from pgle.trace.xplane.wire import DamagedError, Ints

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
        instruction, module, program = where.defaults.fill(events, instruction, module)
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
        codes = self.module_codes(module, program)
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

    def module_codes(self, name: npt.NDArray[np.int32], program: tuple[Ints, npt.NDArray[np.bool_]]) -> Ints:
        """Codes of (module name, program id); -1 where there is no name."""
        number, given = program
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

    def device_values(self) -> tuple[Device, ...]:
        """The devices, by code."""
        return tuple(self.devices.of)


def integers(stat: Stat, absent: int) -> Ints:
    """int64[n], the integer values of a stat."""
    is_integer = stat.form == INTEGER
    return stat.value if is_integer.all() else np.where(is_integer, stat.value, absent)


@dataclass(frozen=True)
class Defaults:
    """Stats that stand on event metadata, for events that do not have them: codes by metadata id."""

    instruction: dict[int, int]
    module: dict[int, int]
    program: dict[int, int]

    def fill(
        self, events: Events, instruction: npt.NDArray[np.int32], module: npt.NDArray[np.int32]
    ) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32], tuple[Ints, npt.NDArray[np.bool_]]]:
        """Instruction and module name codes, and (program ids, bool[n] given)."""
        stat = events.stats["program_id"]
        number, given = integers(stat, 0), stat.form == INTEGER
        if self.instruction or self.module or self.program:
            number, given = number.copy(), given.copy()
            for identity in distinct(events.metadata).tolist():
                here = events.metadata == identity
                instruction[here & (instruction < 0)] = self.instruction.get(identity, -1)
                module[here & (module < 0)] = self.module.get(identity, -1)
                if identity in self.program:
                    missing = here & ~given
                    number[missing], given[missing] = self.program[identity], True
        return instruction, module, (number, given)


@dataclass(frozen=True)
class Place:
    """Where the events of one line belong."""

    device: Device
    stream: int
    origin_ns: int
    defaults: Defaults
    scopes: Scopes
    libraries: Mapping[int, str] = field(default_factory=dict)  # names of libraries' kernels, by metadata id


def metadata_defaults(plane: Plane, instructions: Codes[str], names: Codes[str]) -> Defaults:
    """The stats ``hlo_op``, ``hlo_module`` and ``program_id`` of a plane's event metadata."""
    found: Sequence[dict[int, int]] = ({}, {}, {})
    tables = (instructions, names, None)
    ids = [plane.stat_ids.get(name) for name in WANTED[:3]]
    for identity, item in plane.rest.event_metadata.items():
        for stat in item.stats:
            if stat.metadata_id not in ids:
                continue
            which = ids.index(stat.metadata_id)
            table = tables[which]
            if table is None:
                found[which][identity] = int(stat.int64_value or stat.uint64_value)
                continue
            text = stat.str_value or (plane.rest.stat_metadata[stat.ref_value].name if stat.ref_value else "")
            if text:
                found[which][identity] = table.code(text)
    return Defaults(*found)
