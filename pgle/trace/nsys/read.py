"""Nsight Systems exports → Trace.

How pgle follows one kernel through the tables of an export, from top to bottom:

    NVTX_EVENTS, on a thread of the CPU                          read_ranges
      XlaModule:#hlo_module=jit_step,program_id=7#               one execution of a module
        Thunk:#hlo_op=while.3#                                   a loop; it launches nothing itself
          Thunk:#hlo_op=fusion.5#                                one launch of an instruction
    CUPTI_ACTIVITY_KIND_RUNTIME, on the same thread              read_calls
            cuLaunchKernel, correlationId 4711                   begins while fusion.5 is open
    CUDA_GRAPH_NODE_EVENTS, if there are command buffers         read_graphs
            graphNodeId 12                                       was built while fusion.5 was open
    CUPTI_ACTIVITY_KIND_KERNEL, _MEMCPY, _MEMSET, on the GPU     read_activities
            start, end, correlationId 4711                       belongs to that run of fusion.5

GPU times play no part in this search: the GPU runs a kernel after its range has ended. If the chain
breaks, the activity is left out with the `LeftOutReason` of the broken link.

Exports hold the whole environment of the recorded process, and so secrets. pgle keeps only XLA's
flags.

Schema reference: Nsight Systems User Guide, "SQLite Schema Reference".
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import (
    Callable,
    Collection,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pgle.errors import UserError, many
from pgle.files import AnyPath
from pgle.trace.columns import (
    Codes,
    Flags,
    GrowingColumn,
    Ints,
    distinct,
    narrow,
    occurrences,
)
from pgle.trace.nsys.graphs import Graphs, read_graphs
from pgle.trace.nsys.ranges import (
    NO_CALL,
    PREFIXES,
    Lookup,
    Ranges,
    Reasons,
    XlaLaunches,
    by_value,
    read_ranges,
)
from pgle.trace.nsys.tables import API, NULL, PROCESS, Columns, Tables
from pgle.trace.records import LeftOut, believed, without_time
from pgle.trace.table import (
    IN_GRAPHS,
    LIBRARIES,
    NO_OTHER_WORK,
    SIMULATED,
    ActivityKind,
    Device,
    LeftOutReason,
    OtherWork,
    Recording,
    Source,
    Trace,
    Unresolved,
    joined,
    kernels_by_place,
)

ACTIVITIES = {
    "CUPTI_ACTIVITY_KIND_KERNEL": ActivityKind.KERNEL,
    "CUPTI_ACTIVITY_KIND_MEMCPY": ActivityKind.MEMCPY,
    "CUPTI_ACTIVITY_KIND_MEMSET": ActivityKind.MEMSET,
}
"""The tables of GPU work. Copies and memsets belong to a thunk as kernels do."""

NEEDED = {
    "StringIds": ("id", "value"),
    "NVTX_EVENTS": ("start", "end", "eventType", "globalTid", "textId"),
    API: ("start", "globalTid", "correlationId"),
    **dict.fromkeys(
        ACTIVITIES,
        ("start", "end", "deviceId", "streamId", "correlationId", "globalPid"),
    ),
}
"""Columns that pgle needs in a table, if the export has that table."""

KNOWN_SCHEMA = 3
"""Major version of the export schema that nsys 2022.4 to 2026.4 write. Another version may change
the meaning of columns.
"""

HIDDEN = {reason.word for reason in IN_GRAPHS}
RECORD_WITHOUT = (
    "record with XLA_FLAGS=--xla_gpu_enable_command_buffer= (or `nsys "
    "profile --cuda-graph-trace=node`)"
)


def read_nsys(
    path: AnyPath, *, progress: Callable[[int, int], None] | None = None
) -> Trace:
    """Read an Nsight Systems export.

    Args:
        path: a ``.sqlite`` file.
        progress: called with the number of rows done and the number of all rows.
    """
    if not isinstance(path, Path):
        raise UserError(
            "an nsys export must be a local file",
            where=str(path),
            remedy="copy it here first",
        )
    with closing(Tables(path)) as tables:
        _check(tables)
        total = sum(tables.count(table) for table in ("NVTX_EVENTS", API, *ACTIVITIES))
        done = 0

        def step(rows: int) -> None:
            nonlocal done
            done += rows
            if progress is not None:
                progress(min(done, total), total)

        ranges = read_ranges(tables, step)
        calls = read_calls(tables, ranges, step)
        graphs = read_graphs(tables, ranges)
        launches = ranges.launches
        del ranges  # frees the times of ranges
        names = KernelNames(tables, launches)
        found = read_activities(tables, calls, graphs, names, step)
        del calls  # frees the API calls
        return replace(
            _trace(tables, launches, graphs, found),
            kernels=names.by_instruction(graphs.instructions) if names else {},
        )


ROCPD = "rocpd_"
"""The first letters of tables and views that AMD's profiler writes (ROCm/rocprofiler-sdk, rocpd
schema).
"""


def _check(tables: Tables) -> None:
    """Raise `UserError` if the export lacks required tables or columns."""
    again = "record with `nsys profile --trace=cuda,nvtx`"
    if tables.has_any(ROCPD):
        raise UserError(
            "a rocpd database of rocprofv3, which names no instruction of XLA",
            where=tables.path,
            remedy="record with JAX's profiler (--capture jax), and give its .xplane.pb",
        )
    if not tables.columns("StringIds"):
        raise UserError(
            "not an Nsight Systems export (no StringIds)",
            where=tables.path,
            remedy="give an nsys export",
        )
    for table, columns in NEEDED.items():
        missing = sorted(set(columns) - tables.columns(table))
        if missing and tables.columns(table):
            columns_are = "column" if len(missing) == 1 else "columns"
            raise UserError(
                f"{table} lacks the {columns_are} {', '.join(missing)}",
                where=tables.path,
                remedy="export the whole report with a current `nsys export`",
            )
    if not tables.columns("NVTX_EVENTS"):
        raise UserError(
            "no NVTX ranges, so kernels have no names", where=tables.path, remedy=again
        )


def _trace(
    tables: Tables, launches: XlaLaunches, graphs: Graphs, found: Activities
) -> Trace:
    """Make the trace: order the columns and number executions and launches.

    This empties the columns of `found`, to save memory.
    """
    if not len(found.columns["start"]):
        raise _nothing(tables, found, graphs)
    used = list(found.devices)
    names = devices_of(tables, used)
    by_name = sorted(
        range(len(used)),
        key=lambda number: (names[number].process, names[number].ordinal),
    )
    rank = np.empty(len(used), np.int32)
    rank[by_name] = np.arange(len(used), dtype=np.int32)
    columns, in_graph = _in_order(found, graphs, launches, rank)
    numbers = dict(zip(used, rank.tolist(), strict=True))
    other = other_work(found, graphs, numbers)
    known = believed(columns, other, graphs.instructions, in_graph)
    kept: dict[str, Any] = {**known.columns}
    if not len(kept["start_ns"]):
        raise _nothing(tables, found, graphs)
    found.left_out.counts.update(known.left_out)
    processes = recordings(tables, used, names)
    run = kept.pop("run")
    thunk = kept.pop("thunk")
    shared = kept.pop("shared", None)
    kept["module"] = launches.module[run]
    kept["execution"] = number_executions(kept["device"], run, launches)
    kept["instance"] = number_launches(thunk, shared, len(launches.instruction))
    exported = exporter(tables)
    warnings = _warnings(tables, exported, found, graphs, known.remarks)
    version = exported.get("EXPORT_PRODUCT_VERSION", "")
    devices = tuple(names[number] for number in by_name)
    source = Source(str(tables.path), "nsys-sqlite", version)
    compiling = {
        names[number].process: launches.compiling[pid]
        for number, (pid, _) in enumerate(used)
        if pid in launches.compiling
    }
    return Trace(
        **kept,
        modules=launches.modules,
        instructions=graphs.instructions,
        devices=devices,
        unresolved=_unresolved(found, graphs),
        other=known.other,
        sources=(source,),
        xla_flags=xla_flags(tables),
        warnings=warnings,
        recordings=processes,
        compiling=compiling,
    )


def _in_order(
    found: Activities, graphs: Graphs, launches: XlaLaunches, rank: Codes
) -> tuple[dict[str, npt.NDArray[Any]], Flags | None]:
    """Return the columns of instructions' activities by (device, start), as `believed` takes them.

    The second value marks the nodes of graphs.
    """
    columns = found.columns
    device = narrow(rank)[columns["device"].join()]
    start = columns["start"].join()
    order = by_time(device, start)
    ordered = {"start_ns": start[order], "device": device[order]}
    del start, device  # to save memory
    ordered["duration_ns"] = columns["duration"].join()[order]
    for name in ("kind", "stream", "thunk"):
        ordered[name] = columns[name].join()[order]
    ordered["run"] = launches.module_range[ordered["thunk"]]
    if not graphs.present:
        ordered["instruction"] = launches.instruction[ordered["thunk"]]
        return ordered, None
    for name in ("shared", "instruction"):
        ordered[name] = columns[name].join()[order]
    return ordered, columns["in_graph"].join()[order]


def other_work(
    found: Activities, graphs: Graphs, numbers: Mapping[tuple[int, int], int]
) -> OtherWork:
    """Return the GPU work that belongs to no instruction, with whole CUDA graphs.

    Args:
        numbers: the number of each device, by process and ordinal. Work of other devices is
            dropped.
    """
    if graphs.traced:
        start, end, pid, ordinal, stream = graphs.traced
        kind = np.full(len(start), ActivityKind.KERNEL, np.uint8)
        reason = np.full(len(start), LeftOutReason.GRAPH_LAUNCH, np.uint8)
        timed = impossible_times(start, end) == 0
        duration = end - start
        columns = (start, duration, pid & PROCESS, ordinal, stream, kind, reason)
        found.add_others(timed, columns)
    if not found.others:
        return NO_OTHER_WORK
    parts = zip(*found.others, strict=True)
    start, duration, pid, ordinal, stream, kind, reason = map(np.concatenate, parts)
    device = np.full(len(start), -1, np.int32)
    for (process, number), code in numbers.items():
        device[(pid == process) & (ordinal == number)] = code
    work = OtherWork(
        start_ns=start,
        duration_ns=duration,
        device=device,
        stream=narrow(stream),
        kind=kind,
        reason=reason,
    )
    return joined([work.of_rows(np.flatnonzero(device >= 0))])


def _unresolved(found: Activities, graphs: Graphs) -> tuple[Unresolved, ...]:
    """Return the counts of what was left out, whole graphs last."""
    return (*found.left_out.unresolved(), *graphs.hidden)


def _nothing(tables: Tables, found: Activities, graphs: Graphs) -> UserError:
    """Return the error for an export in which no activity has an instruction."""
    unresolved = _unresolved(found, graphs)
    in_graphs = [entry.count for entry in unresolved if entry.reason in HIDDEN]
    if in_graphs:
        count = sum(in_graphs)
        return UserError(
            f"only CUDA graphs ({count:,}), which hide instructions",
            where=tables.path,
            remedy=RECORD_WITHOUT,
        )
    if not found.seen:
        remedy = (
            "record on a GPU with `nsys profile --trace=cuda,nvtx`, and "
            "nothing else that uses CUPTI"
        )
        return UserError("no GPU activity", where=tables.path, remedy=remedy)
    why = ", ".join(f"{entry.reason} {entry.count:,}" for entry in unresolved)
    remedy = "record several whole steps after compilation with `nsys profile --trace=cuda,nvtx`"
    return UserError(
        f"no GPU activity belongs to an XLA instruction ({why})",
        where=tables.path,
        remedy=remedy,
    )


def _warnings(
    tables: Tables,
    exported: Mapping[str, str],
    found: Activities,
    graphs: Graphs,
    remarks: Sequence[str],
) -> tuple[str, ...]:
    """Return what the user should know about an export, one line each."""
    name = tables.path.name
    # A simulated trace names the simulation as its product.
    lines = [SIMULATED] if SIMULATED in exported.get("EXPORT_PRODUCT_NAME", "") else []
    lines += [
        (
            f"{name}: {entry.count:,} activities of CUDA graphs hide their "
            f"instructions; {RECORD_WITHOUT}"
        )
        for entry in _unresolved(found, graphs)
        if entry.reason in HIDDEN
    ]
    wrong = (*found.left_out.remarks, *remarks, *dropped_records(tables))
    lines += [f"{name}: {line}" for line in wrong]
    if graphs.named:
        lines.append(
            f"{name}: {graphs.named:,} activities of CUDA graphs were named after their kernels"
        )
    lost = found.left_out.counts[LeftOutReason.NO_API_ROW]
    if lost * 2 > found.seen:
        lines.append(
            f"{name}: {lost:,} of {found.seen:,} GPU activities were launched "
            "before the capture began"
        )
    schema = exported.get("EXPORT_SCHEMA_VERSION", "")
    major = schema.partition(".")[0]
    if major.isdigit() and int(major) != KNOWN_SCHEMA:
        lines.append(
            f"{name}: export schema {schema} is not {KNOWN_SCHEMA}.x; check the result"
        )
    return tuple(lines)


MAX_DURATION_NS = 10**15  # eleven days; no GPU activity lasts longer
MAX_TIME_NS = 2**61  # 73 years from the start of the session


def impossible_times(start: Ints, end: Ints) -> Reasons:
    """Return uint8[n]: why the times of a record are impossible; 0 for possible times."""
    reason = without_time(start, end)
    far = (
        (start > MAX_TIME_NS) | (start < -MAX_TIME_NS) | (end - start > MAX_DURATION_NS)
    )
    reason[far] = LeftOutReason.BAD_TIME
    reason[(start == NULL) | (end == NULL)] = LeftOutReason.NO_TIME
    return reason


@dataclass(frozen=True, eq=False)
class Calls:
    """CUDA API calls, each with the range in which it began."""

    # lookup per process (globalPid) from correlation id to the row of the range
    range: Mapping[int, Lookup]
    thunk: Codes  # `Ranges.thunk`
    reason: Reasons  # `Ranges.reason`

    def owners(self, pid: Ints, correlation: Ints) -> tuple[Codes, Reasons]:
        """Return the thunk of the API call with each correlation id, and the reason if there is
        none.
        """
        found = np.full(len(pid), len(self.thunk) + NO_CALL, np.int32)
        for process, rows in by_value(pid):
            if process in self.range:
                found[rows] = self.range[process](correlation[rows])
        return self.thunk[found], self.reason[found]


def read_calls(tables: Tables, ranges: Ranges, step: Callable[[int], None]) -> Calls:
    """Read the API calls, and find the thunk that was open on each call's thread."""
    # by process: correlation ids, and the range in which each call began
    ids: defaultdict[int, GrowingColumn[np.int32]]
    ids = defaultdict(lambda: GrowingColumn(np.int32))
    began_in: defaultdict[int, GrowingColumn[np.int32]]
    began_in = defaultdict(lambda: GrowingColumn(np.int32))
    wanted = ("start", "globalTid", "correlationId")
    for start, tid, correlation in tables.integers(API, wanted):
        step(len(start))
        ranges_of_calls = ranges.open_at(tid, start)
        for pid, rows in by_value(tid & PROCESS):
            ids[pid].append(correlation[rows])
            began_in[pid].append(ranges_of_calls[rows])
    unknown = len(ranges.thunk) + NO_CALL
    lookups = {}
    while ids:
        pid, of_process = ids.popitem()  # freed process by process
        numbers = began_in.pop(pid).join()
        lookups[pid] = Lookup(of_process.join(), numbers, unknown)
    return Calls(lookups, ranges.thunk, ranges.reason)


class KernelNames:
    """Which library kernels ran for which instruction; false if the export names no such kernel."""

    def __init__(self, tables: Tables, launches: XlaLaunches) -> None:
        self._launches = launches
        self._seen: set[int] = set()
        found: dict[int, str] = {}
        if "shortName" in tables.columns("CUPTI_ACTIVITY_KIND_KERNEL"):
            found = {
                identity: text
                for identity, text in tables.texts()
                if not text.startswith(PREFIXES)
                # range texts are long and are no kernel names
                and LIBRARIES.search(text)
            }
        self._names = tuple(found.values())
        self._codes = Lookup.of({identity: code for code, identity in enumerate(found)})

    def __bool__(self) -> bool:
        return bool(self._names)

    def add(
        self, name: Ints, thunk: Codes, instruction: Codes | None, good: Flags
    ) -> None:
        """Remember a batch.

        Args:
            name: ids of kernel names.
            thunk: the thunk of each activity.
            instruction: the instruction of each activity; None if it is the thunk's.
            good: the rows that count.
        """
        code = self._codes(name)
        rows = np.flatnonzero((code >= 0) & good)
        if not len(rows):
            return
        launched_by = thunk[rows]
        of = self._launches
        if instruction is None:
            known = of.instruction[launched_by]
        else:
            known = instruction[rows]
        module = of.module[of.module_range[launched_by]].astype(np.int64)
        keys = (module << 40 | known) * len(self._names) + code[rows]
        self._seen.update(distinct(keys).tolist())

    def by_instruction(
        self, instructions: tuple[str, ...]
    ) -> dict[tuple[str, str], frozenset[str]]:
        """Return the kernel names by module name and instruction."""
        named = []
        for key in sorted(self._seen):
            of, code = divmod(key, len(self._names))
            module = self._launches.modules[of >> 40].name
            named.append((module, instructions[of & (1 << 40) - 1], self._names[code]))
        return kernels_by_place(named)


_COLUMNS: Mapping[str, type[np.generic]] = {
    "start": np.int64,  # ns
    "duration": np.int64,  # ns
    "kind": np.uint8,  # `ActivityKind`
    "device": np.int16,  # index into `Activities.devices`
    "stream": np.int16,  # as recorded
    "thunk": np.int32,  # the thunk that launched it
    # Only with graphs: a number that the activities of one instruction share besides the thunk; the
    # index of the instruction, if not the thunk's; whether the activity is a graph node.
    "shared": np.int32,
    "instruction": np.int16,
    "in_graph": np.bool_,
}
"""The columns of `Activities`, each with its narrowest type."""


@dataclass(eq=False)
class Activities:
    """GPU activities of instructions as columns, and what was left out."""

    columns: dict[str, GrowingColumn[Any]] = field(
        default_factory=lambda: {
            name: GrowingColumn(narrowest) for name, narrowest in _COLUMNS.items()
        }
    )
    # the number of each device, by (globalPid, ordinal)
    devices: dict[tuple[int, int], int] = field(default_factory=dict)
    # batches of activities without instruction that have a possible time: columns of `OtherWork`,
    # the device as (globalPid, ordinal)
    others: list[tuple[npt.NDArray[Any], ...]] = field(default_factory=list)
    left_out: LeftOut = field(default_factory=LeftOut)
    seen: int = 0  # activities read

    def add(
        self,
        calls: Calls,
        graphs: Graphs,
        kind: ActivityKind,
        batch: Columns,
        named: KernelNames | None,
    ) -> None:
        """Match one batch to thunks, and append the activities that belong to an instruction.

        Args:
            calls: the API calls.
            graphs: the CUDA graphs.
            kind: the kind of all activities in the batch.
            batch: columns start, end, correlation id, process, device, stream. With graphs also
                node and kernel name. The last column is the kernel name if `named` is given.
            named: collects the names of library kernels.
        """
        start, end, correlation, pid, ordinal, stream = batch[:6]
        self.seen += len(start)
        pid = pid & PROCESS
        thunk, reason = calls.owners(pid, correlation)
        duration = end - start
        wrong = impossible_times(start, end)
        reason[wrong > 0] = wrong[wrong > 0]
        columns: dict[str, Codes] = {
            "start": start,
            "duration": duration,
            "stream": stream,
            "thunk": thunk,
        }
        if graphs.present:
            node, kernel = batch[6:8]
            instruction, shared, reason = graphs.resolve(
                thunk, reason, pid, correlation, node=node, kernel=kernel
            )
            columns["instruction"] = instruction
            columns["shared"] = shared
            columns["in_graph"] = (node != NULL) & (node != 0)
        good = reason == LeftOutReason.NONE
        if named is not None:
            named.add(batch[-1], thunk, columns.get("instruction"), good)
        if not good.all():
            self.left_out.add(reason[~good], duration[~good])
            timed = ~good & (wrong == 0)
            kinds = np.full(len(pid), kind, np.uint8)
            others = (start, duration, pid, ordinal, stream, kinds, reason)
            self.add_others(timed, others)
            columns = {name: column[good] for name, column in columns.items()}
            pid = pid[good]
            ordinal = ordinal[good]
        columns["device"] = self._devices(pid, ordinal)
        columns["kind"] = np.full(len(pid), kind, np.uint8)
        for name, column in columns.items():
            self.columns[name].append(column)

    def add_others(self, rows: Flags, columns: Sequence[npt.NDArray[Any]]) -> None:
        """Keep the times of activities that belong to no instruction.

        Args:
            rows: the rows to keep.
            columns: start, duration, process, device ordinal, stream, kind, reason.
        """
        if rows.any():
            self.others.append(tuple(column[rows] for column in columns))

    def _devices(self, pid: Ints, ordinal: Ints) -> Codes:
        """Return the number of each activity's device; a new device gets the next number."""
        device = np.empty(len(pid), np.int32)
        for process, rows in by_value(pid):
            ordinals = ordinal[rows]
            mine = np.empty(len(ordinals), np.int32)
            for number, some in by_value(ordinals):
                place = (process, number)
                mine[some] = self.devices.setdefault(place, len(self.devices))
            device[rows] = mine
        return device


def read_activities(
    tables: Tables,
    calls: Calls,
    graphs: Graphs,
    names: KernelNames,
    step: Callable[[int], None],
) -> Activities:
    """Read all GPU work, and find the thunk that launched each activity."""
    found = Activities()
    wanted = ["start", "end", "correlationId", "globalPid", "deviceId", "streamId"]
    if graphs.present:
        wanted += ["graphNodeId", "shortName"]
    for table, kind in ACTIVITIES.items():
        named = names if kind is ActivityKind.KERNEL and names else None
        columns = wanted
        if named is not None and not graphs.present:
            columns = [*wanted, "shortName"]
        for batch in tables.integers(table, columns):
            step(len(batch[0]))
            found.add(calls, graphs, kind, batch, named)
    return found


def by_time(device: Codes, start: Ints) -> Codes | slice:
    """Return the order of the rows by (device, start); ties keep their order."""
    if (start[1:] >= start[:-1]).all():  # nsys exports one process like this
        if not len(device) or device.min() == device.max():
            return slice(None)
        # saves memory; two-byte numbers are sorted by counting
        return np.argsort(device, kind="stable").astype(np.int32)
    order = np.argsort(start, kind="stable").astype(np.int32)
    ordered: Codes = order[np.argsort(device[order], kind="stable")]
    return ordered


def number_executions(
    device: Codes, module_range: Codes, launches: XlaLaunches
) -> Codes:
    """Return the execution number of each row.

    The executions of a module on a device are its module ranges there, counted in the order of
    time.
    """
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
    number = narrow(_places_in_time(pairs, launches))
    if not dense:
        found: Codes = number[np.searchsorted(pairs, pair)]
        return found
    table = np.zeros(size, number.dtype)
    table[pairs] = number
    result: Codes = table[pair]
    return result


def _places_in_time(pairs: Ints, launches: XlaLaunches) -> npt.NDArray[np.int32]:
    """Return int32[n]: the place of each module range among those of its module and device.

    Args:
        pairs: int64[n], device and module range: device × number of ranges + range.
    """
    device, module_range = np.divmod(pairs, len(launches.module_start))
    module = launches.module[module_range].astype(np.int64)
    began = launches.module_start[module_range]
    in_time = np.lexsort((module_range, began))
    place = np.empty(len(in_time), np.int32)
    place[in_time] = occurrences(device[in_time], module[in_time])
    return place


def number_launches(thunk: Codes, shared: Codes | None, thunks: int) -> Codes:
    """Number the launches from 0 in the order of their thunks.

    Activities of one launch get one number.
    """
    if shared is not None:
        keys = thunk.astype(np.int64) << 32 | shared.astype(np.int64)
        shares: Codes = np.unique(keys, return_inverse=True)[1].astype(np.int32)
        return shares
    used = np.zeros(thunks, np.bool_)
    used[thunk] = True
    numbers: Codes = np.cumsum(used, dtype=np.int32) - np.int32(1)
    return numbers[thunk]


PID_MASK = 0xFFFFFF
"""globalPid and globalTid hold the process id in bits 24 to 47 and the thread id below; the sign
bit may be set.
"""

_JAX_DEVICE = re.compile(
    r"#global=(?P<global>\d{1,9}),local=(?P<local>\d{1,9}),process=\d{1,9}\b"
)

_NAMESPACE = re.compile(r"pid:\[\d{1,20}\]")
"""The link target of ``/proc/PID/ns/pid``. Exports of 2026 hold it as NamespacePID or SystemUID."""

_VARIABLE = re.compile(r"""(?:^|[\s;,"'\0])XLA_FLAGS=([^\n\0]*)""")
_QUOTED = "|".join(rf"{quote}(?:[^{quote}=]|(?<=[a-z0-9])=)*{quote}" for quote in "\"'")
_FLAG = re.compile(
    rf"""(?<![^\s;,"'=])--xla\w*(?:=(?:{_QUOTED}|[^\s;,"'\0|&=]*(?:,[\w.:+-]+(?![\w.:+-]*=))*))?"""
)
"""A flag with its value. A value has no ``=``. A comma ends the value only if ``NAME=`` follows,
which is another variable.
"""


def process_id(global_id: int) -> int:
    """Return the operating system's process id from a globalPid or globalTid."""
    return (global_id >> 24) & PID_MASK


def devices_of(tables: Tables, used: Iterable[tuple[int, int]]) -> tuple[Device, ...]:
    """Return the devices of an export, in the order of `used`.

    Args:
        tables: the export.
        used: (globalPid, device ordinal) pairs, as activities name them. With one GPU per process
            every ordinal is 0.
    """
    used = list(used)
    host = next(filter(None, _system(tables, "Hostname")), tables.path.stem)[:255]
    launchers = _launchers(tables)
    named = _named(tables)
    devices_by_pid = Counter(pid for pid, _ in used)
    names = _process_names(host, devices_by_pid)
    found = []
    for pid, ordinal in used:
        mine = launchers.get(process_id(pid), {})
        number = mine.get(ordinal)
        if number is None and len(devices_by_pid) == 1:
            candidates = named.get(ordinal, set())
            if len(used) == 1:
                candidates = set().union(*named.values())
            number = _only(candidates)
        if number is None and devices_by_pid[pid] == 1:
            number = _only(mine.values())
        found.append(Device(names[pid], ordinal, number))
    return tuple(found)


def _process_names(host: str, pids: Iterable[int]) -> dict[int, str]:
    """Return ``HOST:PID`` by globalPid.

    Several virtual machines or hosts can have the same process id. Then the number of each is part
    of all names.
    """
    names = {pid: f"{host}:{process_id(pid)}" for pid in pids}
    if len(set(names.values())) == len(names):
        return names
    return {pid: f"{host}/{(pid >> 48) & 0xFFFF}:{process_id(pid)}" for pid in names}


def _only(numbers: Collection[int]) -> int | None:
    """Return the number if there is exactly one; else None."""
    return next(iter(numbers)) if len(numbers) == 1 else None


def _system(tables: Tables, *names: str) -> Iterator[str]:
    """Yield the values of system properties whose names begin with one of `names`.

    Callers keep only flags of the recorded environment.
    """
    for _, value in tables.rows(
        "TARGET_INFO_SYSTEM_ENV", ("name", "value"), like=("name", names)
    ):
        if isinstance(value, str):
            yield value.strip()


_DROPPED = re.compile(
    r"CUPTI dropped (?P<records>\d+) records|incomplete CUPTI events dropped: (?P<events>\d+)"
)
"""Matches nsys's diagnostics about lost records (nsys 2022.4 and later)."""


def dropped_records(tables: Tables) -> list[str]:
    """Return the recorder's notes on lost GPU records, in words."""
    texts = (text for (text,) in tables.rows("DIAGNOSTIC_EVENT", ("text",)))
    found = (_DROPPED.search(text) for text in texts if isinstance(text, str))
    counts = [
        int(note["records"] or note["events"]) for note in found if note is not None
    ]
    lost = sum(counts)
    if not lost:
        return []
    line = f"nsys lost {many(lost, 'GPU record')}: idle time and counts of kernels can be wrong"
    return [f"{line}; record fewer steps, or flush more often (--cuda-flush-interval)"]


def _launchers(tables: Tables) -> dict[int, dict[int, int]]:
    """Return the global device by process id and local device.

    XLA names its launcher threads ``XlaLauncher:#global=…#``.
    """
    names: dict[object, re.Match[str]] = {}
    for identity, text in tables.texts(("XlaLauncher:",)):
        match = _JAX_DEVICE.search(text)
        if match is not None:
            names[identity] = match
    found: dict[int, dict[int, int]] = {}
    if not names:
        return found
    for name, tid in tables.rows("ThreadNames", ("nameId", "globalTid")):
        named = names.get(name)
        if named is not None and isinstance(tid, int):
            of_process = found.setdefault(process_id(tid), {})
            of_process[int(named["local"])] = int(named["global"])
    return found


def _named(tables: Tables) -> dict[int, set[int]]:
    """Return the global devices by ordinal, from XLA's device names (``Xla:#global=…#``)."""
    found: dict[int, set[int]] = {}
    rows = tables.rows("TARGET_INFO_NVTX_CUDA_DEVICE", ("name", "deviceId"))
    for name, ordinal in rows:
        if not isinstance(name, str) or not isinstance(ordinal, int):
            continue
        match = _JAX_DEVICE.search(name)
        if match is not None:
            found.setdefault(ordinal, set()).add(int(match["global"]))
    return found


def recordings(
    tables: Tables, used: Iterable[tuple[int, int]], devices: Sequence[Device]
) -> dict[str, Recording]:
    """Return facts about each process's recording."""
    utc_ns = _session_start(tables)
    identities = _system(tables, "NamespacePID", "SystemUID")
    namespace = next(filter(_NAMESPACE.fullmatch, identities), "")
    gpus = _gpus(tables)
    # exports of nsys 2024 and later
    rows = tables.rows("TARGET_INFO_CUDA_DEVICE", ("pid", "cudaId", "gpuId"))
    by_ordinal = {(pid, ordinal): gpu for pid, ordinal, gpu in rows}
    of_process: dict[str, list[object]] = {}
    for (pid, ordinal), device in zip(used, devices, strict=True):
        gpu = by_ordinal.get((process_id(pid), ordinal))
        of_process.setdefault(device.process, []).append(gpu)
    found = {}
    for name, chosen in of_process.items():
        is_known = all(gpu in gpus for gpu in chosen)
        ours = chosen if is_known else [*gpus]
        seen = frozenset().union(*(gpus[gpu] for gpu in ours))
        found[name] = Recording(utc_ns, seen, namespace)
    return found


def _session_start(tables: Tables) -> int | None:
    """Return the origin of all times, in ns since 1970; None if the export lacks it."""
    for (value,) in tables.rows("TARGET_INFO_SESSION_START_TIME", ("utcEpochNs",)):
        if isinstance(value, int) and value > 0:
            return value
    return None


def _gpus(tables: Tables) -> Mapping[object, frozenset[str]]:
    """Return the identities of each GPU that the recorder saw."""
    found: dict[object, frozenset[str]] = {}
    for kind, column in (("uuid", "uuid"), ("bus", "busLocation")):
        for gpu, value in tables.rows("TARGET_INFO_GPU", ("id", column)):
            if isinstance(value, str) and value.strip("0-:. "):
                found[gpu] = found.get(gpu, frozenset()) | {
                    f"{kind}:{value.strip().lower()}"
                }
    return found


def exporter(tables: Tables) -> dict[str, str]:
    """Return what the exporter says about itself."""
    wanted = ("name", ("EXPORT_PRODUCT", "EXPORT_SCHEMA_VERSION"))
    for table in ("META_DATA_EXPORT", "EXPORT_META_DATA"):
        rows = tables.rows(table, ("name", "value"), like=wanted)
        found = {str(name): str(value) for name, value in rows}
        if found:
            return found
    return {}


def xla_flags(tables: Tables) -> str:
    """Return XLA_FLAGS of the recorded process: only the words that begin with ``--xla``."""
    like = ("value", ("XLA_FLAGS=",))  # rows have the form NAME="value"
    for (value,) in tables.rows("META_DATA_CAPTURE", ("value",), like=like):
        if isinstance(value, str):
            return " ".join(_FLAG.findall(value))
    for environment in _system(tables, "DeviceEnvironment"):
        variable = _VARIABLE.search(environment)
        if variable is not None:
            return " ".join(_FLAG.findall(variable[1]))
    return ""
