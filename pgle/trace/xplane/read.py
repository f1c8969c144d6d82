"""JAX profiler traces (``*.xplane.pb``) as a Trace, of GPUs or, as a stand-in, of the CPU backend.

For GPUs this file reads the planes ``/device:GPU:N`` that XLA's CUDA and ROCm profilers write. A
plane has a line per stream and a stat ``hlo_op`` per kernel. The profiler stores the innermost of
nested annotations. `executions.py` finds executions and launches.

If a trace has no GPU activity, this file reads the events of the CPU backend. XLA:CPU records every
thunk on ``/host:CPU``, on the line of the thread that ran it, with ``hlo_op``, ``hlo_module``,
``program_id``, ``device_ordinal`` and ``run_id`` (seen in jaxlib 0.10.2 and 0.12.0.1). A run id is
one execution of a module on all its devices. A thunk that encloses others on its thread (``while``,
``call``) is left out, because the inner thunks account for its time.

`jax.experimental.profiler.get_profiled_instructions_proto` gives other means from the same file,
for these reasons:

- It averages *kernels*, not launches: an instruction of two kernels of 10 and 20 µs costs 15 there
  (jaxlib < 0.12.0).
- Since 0.12.0 it takes first start … last end of the kernels of one ``scope_range_id``, with idle
  gaps. It merges equal ids, or equal starts, of different devices into one span.
- It files costs under the bare instruction name: equally named instructions of several modules
  become one mean.
- It ignores the events of the CPU backend.
- It counts lines such as ``XLA Modules`` or ``XLA Ops``, which repeat the events of the streams.
- pgle rounds times to nanoseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import compress
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from pgle.errors import UserError, many
from pgle.files import AnyPath, read_bytes, read_head
from pgle.next import PROFILE
from pgle.trace.columns import NO_ROWS, Flags, Ints, distinct, heads, run_lengths
from pgle.trace.records import (
    WITHOUT_TIME,
    Believed,
    LeftOut,
    believed,
    without_time,
)
from pgle.trace.table import (
    LIBRARIES,
    ROW_COLUMNS,
    ActivityKind,
    Device,
    LeftOutReason,
    ModuleKey,
    OtherWork,
    Recording,
    Source,
    Trace,
    joined,
    kernels_by_place,
)
from pgle.trace.xplane.compiling import compile_times
from pgle.trace.xplane.executions import LaunchRows, Scopes, number_launches
from pgle.trace.xplane.lines import Line
from pgle.trace.xplane.planes import (
    ABSENT,
    HOST_PLANE,
    INTEGER,
    METADATA_PLANE,
    SCOPE_PLANE,
    DamagedError,
    Events,
    NotXplaneError,
    Plane,
    Space,
    Stat,
    Strings,
    embedded_hlo,
    may_begin,
    profile_start_ns,
    read_events,
    read_pairs,
    read_space,
)

_NOT_ACTIVITIES = ("memalloc_details", "memfree_details", "memory_residency_details")
WANTED = (
    "hlo_op",
    "hlo_module",
    "program_id",
    "correlation_id",
    "scope_range_id",
    "memcpy_details",
    "memset_details",
    "cuda_graph_exec_id",
    "run_id",
    "device_ordinal",
    *_NOT_ACTIVITIES,
)
"""The stats that are read, named as in `xla/tsl/profiler/utils/xplane_schema.cc`."""

_TYPES: dict[str, type[np.generic]] = {
    **dict.fromkeys(
        ("start_ns", "duration_ns", "correlation", "scope", "top"), np.int64
    ),
    **dict.fromkeys(("module", "instruction", "kernel", "device", "stream"), np.int32),
    "kind": np.uint8,
}
"""The columns of all activities, as in `LaunchRows` and `Trace`."""


@dataclass
class GatheredEvents:
    """Columns of all activities read so far, and counts of what was left out."""

    # Columns by name, in blocks. A `GrowingColumn` would copy a value that a whole block shares,
    # and take up to 2 MiB more per column.
    parts: dict[str, list[npt.NDArray[Any]]] = field(
        default_factory=lambda: {name: [] for name in _TYPES}
    )
    # instructions, modules, devices: code by value; the key of a module is (name, program id)
    instructions: dict[str, int] = field(default_factory=dict)
    names: dict[str, int] = field(default_factory=dict)
    modules: dict[tuple[int, int | None], int] = field(default_factory=dict)
    devices: dict[Device, int] = field(default_factory=dict)
    left_out: LeftOut = field(default_factory=LeftOut)
    # batches of activities without instruction, each with its device
    others: list[tuple[Device, dict[str, npt.NDArray[Any]]]] = field(
        default_factory=list
    )
    # (module code, instruction code, kernel name) of library kernels
    kernels: set[tuple[int, int, str]] = field(default_factory=set)

    def column(self, name: str) -> npt.NDArray[Any]:
        """Return one column over all rows, and free its blocks."""
        blocks = self.parts.pop(name)
        return np.concatenate(blocks) if blocks else np.empty(0, _TYPES[name])

    def add_others(
        self,
        device: Device,
        stream: int,
        found: Mapping[str, npt.NDArray[Any]],
        reason: npt.NDArray[np.uint8],
    ) -> None:
        """Count the activities without instruction, and keep those that have a time.

        Args:
            found: the columns of all activities of one batch.
            reason: uint8[n], why an activity belongs to no instruction, as `LeftOutReason`.
        """
        others = reason > 0
        self.left_out.add(reason[others], found["duration_ns"][others])
        timed = others & ~np.isin(reason, WITHOUT_TIME)
        names = ("start_ns", "duration_ns", "kind")
        columns = {name: found[name][timed] for name in names}
        columns["reason"] = reason[timed]
        columns["stream"] = np.full(len(columns["kind"]), stream, np.int32)
        self.others.append((device, columns))

    def add_kernels(
        self, libraries: Mapping[int, str], found: Mapping[str, npt.NDArray[Any]]
    ) -> None:
        """Remember which library kernels ran for which instruction.

        Args:
            libraries: the names of these kernels, by id.
            found: the columns of one batch.
        """
        for identity, name in libraries.items():
            rows = np.flatnonzero(found["kernel"] == identity)
            pairs = found["module"][rows] << 32 | found["instruction"][rows]
            for pair in distinct(pairs).tolist():
                self.kernels.add((pair >> 32, pair & 0xFFFFFFFF, name))

    def other_work(self, numbers: Mapping[Device, int]) -> OtherWork:
        """Return the activities without instruction on the devices in `numbers`."""
        parts = []
        for device, columns in self.others:
            if device in numbers:
                of_device = np.full(len(columns["start_ns"]), numbers[device], np.int32)
                parts.append(OtherWork(**columns, device=of_device))
        return joined(parts)

    def module_codes(self, name: npt.NDArray[np.int32], program: Stat) -> Ints:
        """Return codes of (module name, program id); -1 if there is no name."""
        number, given = program.integers, program.form == INTEGER
        first = heads(name, number, given)
        triples = zip(
            name[first].tolist(),
            number[first].tolist(),
            given[first].tolist(),
            strict=True,
        )
        codes = []
        for code, program_id, is_known in triples:
            key = (code, program_id if is_known else None)
            known = -1 if code < 0 else self.modules.setdefault(key, len(self.modules))
            codes.append(known)
        return np.repeat(np.array(codes, np.int64), run_lengths(first, len(name)))

    def append(self, **columns: npt.ArrayLike) -> None:
        """Add rows. A column may be a single value for all rows."""
        rows = np.shape(columns["start_ns"])
        for name, values in columns.items():
            # a copy, because a slice would keep the whole block in memory
            of_type = np.array(values, _TYPES[name])
            self.parts[name].append(np.broadcast_to(of_type, rows))

    def kernel_names(self) -> dict[tuple[str, str], frozenset[str]]:
        """Return the names of library kernels by module and instruction."""
        modules = self.module_keys()
        instructions = tuple(self.instructions)
        named = (
            (modules[module].name, instructions[instruction], name)
            for module, instruction, name in self.kernels
        )
        return kernels_by_place(sorted(named))

    def module_keys(self) -> tuple[ModuleKey, ...]:
        """Return the executables, by code."""
        names = list(self.names)
        return tuple(ModuleKey(names[code], program) for code, program in self.modules)


_POSITIVE = (1 << 62) - 1


def _add_gpu_plane(
    plane: Plane, data: bytes, device: Device, scopes: Scopes, gathered: GatheredEvents
) -> None:
    """Add the activities of a GPU's streams."""
    strings = (Strings(plane, gathered.instructions), Strings(plane, gathered.names))
    libraries = {
        identity: item.name
        for identity, item in plane.rest.event_metadata.items()
        if LIBRARIES.search(item.name)
    }
    for span in plane.lines:
        line = Line(data, *span)
        if not line.name.startswith("Stream #"):
            continue  # other lines repeat or summarise these events
        stream = line.identity & 0x7FFFFFFF
        for events in read_events(data, line.starts, line.ends, WANTED, plane.stat_ids):
            found, reason = _activities(
                events, data, strings, gathered, line.timestamp_ns
            )
            others = reason > 0
            if others.any():
                gathered.add_others(device, stream, found, reason)
                found = {name: column[~others] for name, column in found.items()}
            if not len(found["start_ns"]):
                continue
            gathered.add_kernels(libraries, found)
            gathered.append(
                **found,
                top=scopes.outermost(found["scope"]),
                device=gathered.devices.setdefault(device, len(gathered.devices)),
                stream=stream,
            )


def _activities(
    events: Events,
    data: bytes,
    strings: tuple[Strings, Strings],
    gathered: GatheredEvents,
    origin_ns: int,
) -> tuple[dict[str, npt.NDArray[Any]], npt.NDArray[np.uint8]]:
    """Return the columns of one stream's activities.

    The second value says why an activity belongs to no instruction, as `LeftOutReason`.
    """
    stats = events.stats
    is_activity = np.ones(len(events), bool)
    for name in _NOT_ACTIVITIES:
        is_activity &= stats[name].form == ABSENT
    start, duration = events.times_ns(origin_ns)
    instruction = strings[0].codes_of(stats["hlo_op"], data)
    module = strings[1].codes_of(stats["hlo_module"], data)
    lacks_instruction = instruction < 0
    lacks_module = module < 0
    reason = np.zeros(len(events), np.uint8)
    reason[lacks_module] = LeftOutReason.NO_MODULE
    reason[lacks_instruction] = LeftOutReason.NO_THUNK
    reason[lacks_instruction & lacks_module] = LeftOutReason.NO_RANGE
    reason[stats["cuda_graph_exec_id"].form != ABSENT] = LeftOutReason.GRAPH_LAUNCH
    wrong = without_time(start, start + duration)
    reason[wrong > 0] = wrong[wrong > 0]
    kind = np.zeros(len(events), np.uint8)
    kind[stats["memcpy_details"].form != ABSENT] = ActivityKind.MEMCPY
    kind[stats["memset_details"].form != ABSENT] = ActivityKind.MEMSET
    named = np.where(reason == LeftOutReason.NONE, module, -1).astype(np.int32)
    columns: dict[str, npt.NDArray[Any]] = {
        "start_ns": start,
        "duration_ns": duration,
        "correlation": stats["correlation_id"].integers,
        "scope": stats["scope_range_id"].integers,
        "module": gathered.module_codes(named, stats["program_id"]),
        "instruction": instruction,
        "kernel": events.metadata,
        "kind": kind,
    }
    if is_activity.all():
        return columns, reason
    columns = {name: column[is_activity] for name, column in columns.items()}
    return columns, reason[is_activity]


def _add_host_plane(
    plane: Plane, data: bytes, process: str, gathered: GatheredEvents
) -> None:
    """Add the thunks of ``/host:CPU``. The number of the line serves as stream."""
    if "hlo_op" not in plane.stat_ids:
        return
    strings = (Strings(plane, gathered.instructions), Strings(plane, gathered.names))
    for stream, span in enumerate(plane.lines):
        line = Line(data, *span)
        blocks = read_events(data, line.starts, line.ends, WANTED, plane.stat_ids)
        parts = [
            _thunks(events, data, strings, gathered, line.timestamp_ns)
            for events in blocks
        ]
        if not parts:
            continue
        thunks = {}
        for name in parts[0]:
            thunks[name] = np.concatenate([part[name] for part in parts])
        keep = ~enclosing(thunks.pop("start_ps"), thunks.pop("end_ps"))
        thunks = {name: column[keep] for name, column in thunks.items()}
        ordinals = distinct(thunks["device"])
        numbers = []
        for ordinal in ordinals.tolist():
            device = Device(process, ordinal)
            numbers.append(gathered.devices.setdefault(device, len(gathered.devices)))
        codes = np.array(numbers, np.int32)
        thunks["device"] = codes[np.searchsorted(ordinals, thunks["device"])]
        gathered.append(
            **thunks, correlation=0, scope=0, stream=stream, kind=ActivityKind.HOST
        )


def _thunks(
    events: Events,
    data: bytes,
    strings: tuple[Strings, Strings],
    gathered: GatheredEvents,
    origin_ns: int,
) -> dict[str, npt.NDArray[Any]]:
    """Return the columns of one thread's thunks, without thunks that enclose others.

    Nesting is decided in picoseconds. ``device`` is an ordinal.
    """
    instruction = strings[0].codes_of(events.stats["hlo_op"], data)
    name = strings[1].codes_of(events.stats["hlo_module"], data)
    run = events.stats["run_id"]
    keep = (instruction >= 0) & (name >= 0) & (run.form == INTEGER)
    if len(events) and int(events.duration_ps.min()) < 0:
        raise DamagedError("an event of negative duration")
    start_ns, duration_ns = events.times_ns(origin_ns)
    module = gathered.module_codes(
        np.where(keep, name, -1).astype(np.int32), events.stats["program_id"]
    )
    columns = {
        "start_ns": start_ns,
        "duration_ns": duration_ns,
        "start_ps": events.offset_ps,
        "end_ps": events.offset_ps + events.duration_ps,
        "instruction": instruction,
        "module": module,
        "kernel": events.metadata,
        "device": events.stats["device_ordinal"].integers,
        "top": (run.value & _POSITIVE) + 1,
    }
    return {name: column[keep] for name, column in columns.items()}


def enclosing(start: Ints, end: Ints) -> Flags:
    """Return bool[n]: whether an interval contains another one.

    Intervals of one thread are nested or disjoint.
    """
    order = np.lexsort((-end, start))
    start, end = start[order], end[order]
    holds = np.zeros(len(start), bool)
    # In this order, the first interval inside another comes right after it.
    holds[order[:-1]] = (start[1:] < end[:-1]) & (end[1:] <= end[:-1])
    return holds


_PLANE_STATS = 6  # field of an XPlane
_Value = TypeVar("_Value")
_SUFFIXES = (".xplane.pb", ".xplane.pb.gz", ".xplane.pb.xz")
_MAX_MESSAGES = 20


def find_xplanes(logdir: AnyPath) -> list[AnyPath]:
    """Return the xplane files of the JAX profiler's newest run, one per host, ordered by name.

    Args:
        logdir: the directory given to `jax.profiler.start_trace`, a directory of runs, one run, or
            a file.
    """
    if not logdir.exists():
        raise UserError(
            "no such file or directory", where=logdir, remedy="check the path"
        )
    if not logdir.is_dir():
        return [logdir]
    if runs := find_runs(logdir):
        return runs[0]
    remedy = (
        "give the directory that jax.profiler.start_trace wrote to, or "
        f"record one with `{PROFILE}`"
    )
    raise UserError("holds no .xplane.pb file", where=logdir, remedy=remedy)


def find_runs(logdir: AnyPath) -> list[list[AnyPath]]:
    """Return the xplane files of each run in a directory, newest run first.

    Names of runs are dates.
    """
    if here := _xplanes_in(logdir):
        return [here]
    for parent in (logdir / "plugins" / "profile", logdir / "profile", logdir):
        if not parent.is_dir():
            continue
        runs = [run for run in parent.iterdir() if run.is_dir()]
        runs.sort(key=lambda path: path.name, reverse=True)
        found = [files for files in map(_xplanes_in, runs) if files]
        if found:
            return found
    return []


def _xplanes_in(directory: AnyPath) -> list[AnyPath]:
    """Return the xplane files of one directory, ordered by name."""
    files = [path for path in directory.iterdir() if path.name.endswith(_SUFFIXES)]
    return sorted(files, key=lambda path: path.name)


def read_xplane(
    paths: Sequence[AnyPath], *, progress: Callable[[int, int], None] | None = None
) -> Trace:
    """Read the xplane files of one run: one file per host.

    Args:
        paths: the files; ``.gz`` and ``.xz`` are decompressed.
        progress: called with (done, total), in thousandths of a file.
    """
    gathered = GatheredEvents()
    hlo: dict[ModuleKey, bytes] = {}
    messages: list[str] = []
    seen_planes: dict[str, bool] = {}  # whether a plane is a GPU's, by name
    labels: set[str] = set()
    recordings: dict[str, Recording] = {}
    compiling: dict[str, Ints] = {}
    for number, path in enumerate(paths):
        if not (head := read_head(path, 16)):
            raise UserError(
                "is empty", where=path, remedy="record it again, or name another file"
            )
        try:
            if not may_begin(head):
                raise NotXplaneError
            data = read_bytes(path)
            space = read_space(data)
            for plane in space.planes:
                if plane.name == METADATA_PLANE:
                    hlo |= embedded_hlo(plane)
            process = _process(space, path, labels)
            recordings[process] = _recording(space, data)
            if len(times := compile_times(space, data)):
                compiling[process] = times
            for share in _add_space(space, data, process, gathered):
                if progress is not None:
                    progress(number * 1000 + int(share * 1000), len(paths) * 1000)
        except NotXplaneError:
            remedy = "name an .xplane.pb file that the JAX profiler wrote, or its log directory"
            raise UserError("is not an xplane", where=path, remedy=remedy) from None
        except DamagedError as error:
            raise UserError(
                f"is cut short or damaged: {error}", where=path, remedy="copy it again"
            ) from None
        messages.extend(f"{path.name}: {message}" for message in space.messages)
        seen_planes |= {plane.name: plane.gpu is not None for plane in space.planes}
        # freed before the columns are joined: the file takes more memory
        del data, space
    if not any(len(part) for part in gathered.parts["start_ns"]):
        raise _nothing_found(paths, gathered, seen_planes)
    table = _table(gathered, hlo, paths, _shorten(messages), recordings)
    return replace(table, compiling=compiling)


def _recording(space: Space, data: bytes) -> Recording:
    """Return when the recording began, and its GPUs."""
    began = profile_start_ns(space, data)
    for plane in space.planes:
        if plane.gpu is not None:
            major = plane.stat_value("compute_cap_major")
            minor = plane.stat_value("compute_cap_minor")
            capability = None if major is None else (major, minor or 0)
            vendor = plane.stat_word("device_vendor")
            return Recording(began, vendor=vendor, capability=capability)
    return Recording(began)


def _process(space: Space, path: AnyPath, labels: set[str]) -> str:
    """Return ``HOST:PID``, or the known part of it, unique for each file."""
    pids = (
        plane.stat_value("process_id")
        for plane in space.planes
        if plane.name in (METADATA_PLANE, HOST_PLANE)
    )
    pid = next((pid for pid in pids if pid is not None), None)
    host = space.hostname or path.name.split(".xplane.pb")[0]
    label = host if pid is None else f"{host}:{pid}"
    if label in labels:
        label = f"{label} ({path.name})"
    labels.add(label)
    return label


def _add_space(
    space: Space, data: bytes, process: str, gathered: GatheredEvents
) -> Iterator[float]:
    """Add the GPU planes of one file, or its host plane if no stream has an event.

    Yields:
        The share of the file that is done.
    """
    before = len(gathered.parts["start_ns"])
    child = parent = NO_ROWS
    for plane in space.planes:
        if plane.name == SCOPE_PLANE:
            child, parent = read_pairs(data, *plane.span, _PLANE_STATS)
    scopes = Scopes(child, parent)
    for plane in space.planes:
        if plane.gpu is not None:
            _add_gpu_plane(plane, data, Device(process, plane.gpu), scopes, gathered)
            yield plane.span[1] / len(data)
    if len(gathered.parts["start_ns"]) == before:
        for plane in space.planes:
            if plane.name == HOST_PLANE:
                _add_host_plane(plane, data, process, gathered)
    yield 1.0


def _nothing_found(
    paths: Sequence[AnyPath], gathered: GatheredEvents, planes: Mapping[str, bool]
) -> UserError:
    """Return the error for files in which no activity has an instruction."""
    where = ", ".join(str(path) for path in paths[:3])
    remedy = (
        "record the steps while the JAX profiler runs on a GPU, with "
        "--xla_gpu_enable_command_buffer= in XLA_FLAGS"
    )
    counts = gathered.left_out.counts
    if counts:
        count = counts.total()
        reasons = ", ".join(
            f"{counts[reason]:,} {reason.meaning or reason.word}"
            for reason in sorted(counts)
        )
        what = f"none of its {count:,} GPU activities is tied to an HLO instruction ({reasons})"
        return UserError(what, where=where, remedy=remedy)
    if any(planes.values()):
        return UserError("its GPU planes hold no events", where=where, remedy=remedy)
    listed = ", ".join(name for name in planes if name) or "none"
    return UserError(
        f"holds no GPU activity (planes: {listed})", where=where, remedy=remedy
    )


def _shorten(messages: Sequence[str]) -> tuple[str, ...]:
    """Return the profiler's complaints (mostly dropped events), one line of limited length each."""
    lines = [" ".join(message.split())[:300] for message in messages[:_MAX_MESSAGES]]
    if len(messages) > _MAX_MESSAGES:
        lines.append(
            f"… and {len(messages) - _MAX_MESSAGES} more messages of the profiler"
        )
    return tuple(lines)


def _hlo_of(key: ModuleKey, hlo: dict[ModuleKey, bytes]) -> bytes | None:
    """Return the proto of an executable.

    If the trace has no program id, the name decides if only one module has it.
    """
    if key.program_id is not None:
        return hlo.get(key)
    named = [proto for other, proto in hlo.items() if other.name == key.name]
    return named[0] if len(named) == 1 else None


def _used(
    codes: npt.NDArray[np.int32], values: tuple[_Value, ...]
) -> tuple[npt.NDArray[np.int32], tuple[_Value, ...]]:
    """Drop the values that no row uses, and renumber the codes."""
    used = np.bincount(codes, minlength=len(values)) > 0
    number = (np.cumsum(used) - 1).astype(np.int32)
    kept = tuple(compress(values, used.tolist()))
    return number[codes], kept


def _table(
    gathered: GatheredEvents,
    hlo: dict[ModuleKey, bytes],
    paths: Sequence[AnyPath],
    warnings: tuple[str, ...],
    recordings: Mapping[str, Recording],
) -> Trace:
    """Make a Trace from the columns, ordered by (device, start)."""
    found = tuple(gathered.devices)
    devices = tuple(sorted(found))
    place = np.array([devices.index(item) for item in found], np.int32)
    device = place[gathered.column("device")]
    start = gathered.column("start_ns")
    order = np.lexsort((start, device))
    columns = {"start_ns": start[order], "device": device[order]}
    for name in _TYPES:
        if name not in (*columns, "device"):
            columns[name] = gathered.column(name)[order]
    columns["run"] = columns.pop("top") - 1
    names = tuple(gathered.instructions)
    other = gathered.other_work({item: number for number, item in enumerate(devices)})
    on_host = bool((columns["kind"] == ActivityKind.HOST).all())
    known = Believed(columns, other) if on_host else believed(columns, other, names)
    kept: dict[str, Any] = {**known.columns}
    gathered.left_out.counts.update(known.left_out)
    wrong = [*gathered.left_out.remarks, *known.remarks]
    if graphs := gathered.left_out.counts[LeftOutReason.GRAPH_LAUNCH]:
        what = f"{many(graphs, 'CUDA graph')} hide their instructions"
        wrong.append(f"{what}; record with XLA_FLAGS=--xla_gpu_enable_command_buffer=")
    label = paths[0].name if len(paths) == 1 else paths[0].parent.name
    warnings = (*warnings, *(f"{label}: {line}" for line in wrong))
    kept["module"], modules = _used(kept["module"], gathered.module_keys())
    kept["instruction"], instructions = _used(kept["instruction"], names)
    kept["top"] = kept["run"] + 1
    rows = LaunchRows(**{item.name: kept[item.name] for item in fields(LaunchRows)})
    by_code = {}
    for code, key in enumerate(modules):
        proto = _hlo_of(key, hlo)
        if proto is not None:
            by_code[code] = proto
    kept["execution"], kept["instance"] = number_launches(rows, instructions, by_code)
    unresolved = sorted(gathered.left_out.unresolved(), key=lambda item: item.reason)
    sources = [Source(str(path), "xplane") for path in paths]
    return Trace(
        **{name: kept[name] for name in ROW_COLUMNS},
        modules=modules,
        instructions=instructions,
        devices=devices,
        unresolved=tuple(unresolved),
        other=known.other,
        hlo=hlo,
        sources=tuple(sources),
        warnings=warnings,
        recordings=recordings,
        kernels=gathered.kernel_names(),
    )
