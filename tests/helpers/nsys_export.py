"""Trace → Nsight Systems' SQLite export, so that generated traces take the path of real ones.

The tables are those of schema 3.7.2, nsys 2023.4, read off its exports (User Guide, "SQLite Schema
Reference"). GPU times are those of the trace. CPU times are made up: one thread per device launches
its activities in order, one every `LAUNCH_NS`, all before they start on the GPU. Ranges, API calls
and activities refer to each other as in nsys.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from pgle.trace.table import SIMULATED, ActivityKind, Device, ModuleKey, Trace

SCHEMA_VERSION = "3.7.2"

_ACTIVITY = (
    "start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL, contextId INTEGER NOT NULL, "
    "greenContextId INTEGER, streamId INTEGER NOT NULL, correlationId INTEGER, globalPid INTEGER"
)
_GRAPH = (
    "start INTEGER NOT NULL, end INTEGER NOT NULL, eventClass INTEGER NOT NULL, globalTid INTEGER, "
    "nameId INTEGER NOT NULL, graphNodeId INTEGER, originalGraphNodeId INTEGER"
)
_NAME_VALUE = "name TEXT NOT NULL, value TEXT"

TABLES: Mapping[str, str] = {
    "StringIds": "id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL",
    "ThreadNames": "nameId INTEGER NOT NULL, priority INTEGER, globalTid INTEGER",
    "TARGET_INFO_SYSTEM_ENV": "globalVid INTEGER, devStateName TEXT NOT NULL, name TEXT NOT NULL, "
    "nameEnum INTEGER NOT NULL, value TEXT NOT NULL",
    "TARGET_INFO_NVTX_CUDA_DEVICE": "name TEXT NOT NULL, hwId INTEGER NOT NULL, vmId INTEGER NOT NULL, "
    "deviceId INTEGER NOT NULL",
    "TARGET_INFO_SESSION_START_TIME": "utcEpochNs INTEGER, utcTime TEXT, localTime TEXT",
    "META_DATA_CAPTURE": _NAME_VALUE,
    "META_DATA_EXPORT": _NAME_VALUE,
    "NVTX_EVENTS": "start INTEGER NOT NULL, end INTEGER, eventType INTEGER NOT NULL, rangeId INTEGER, "
    "category INTEGER, color INTEGER, text TEXT, globalTid INTEGER, endGlobalTid INTEGER, textId INTEGER, "
    "domainId INTEGER, uint64Value INTEGER, int64Value INTEGER, doubleValue REAL, uint32Value INTEGER, "
    "int32Value INTEGER, floatValue REAL, jsonTextId INTEGER, jsonText TEXT",
    "CUPTI_ACTIVITY_KIND_RUNTIME": "start INTEGER NOT NULL, end INTEGER NOT NULL, eventClass INTEGER NOT NULL, "
    "globalTid INTEGER, correlationId INTEGER, nameId INTEGER NOT NULL, returnValue INTEGER NOT NULL, "
    "callchainId INTEGER",
    "CUPTI_ACTIVITY_KIND_KERNEL": f"{_ACTIVITY}, demangledName INTEGER NOT NULL, shortName INTEGER NOT NULL, "
    "mangledName INTEGER, launchType INTEGER, cacheConfig INTEGER, registersPerThread INTEGER NOT NULL, "
    "gridX INTEGER NOT NULL, gridY INTEGER NOT NULL, gridZ INTEGER NOT NULL, blockX INTEGER NOT NULL, "
    "blockY INTEGER NOT NULL, blockZ INTEGER NOT NULL, staticSharedMemory INTEGER NOT NULL, "
    "dynamicSharedMemory INTEGER NOT NULL, localMemoryPerThread INTEGER NOT NULL, "
    "localMemoryTotal INTEGER NOT NULL, gridId INTEGER NOT NULL, sharedMemoryExecuted INTEGER, "
    "graphNodeId INTEGER, sharedMemoryLimitConfig INTEGER",
    "CUPTI_ACTIVITY_KIND_MEMCPY": f"{_ACTIVITY}, bytes INTEGER NOT NULL, copyKind INTEGER NOT NULL, "
    "deprecatedSrcId INTEGER, srcKind INTEGER, dstKind INTEGER, srcDeviceId INTEGER, srcContextId INTEGER, "
    "dstDeviceId INTEGER, dstContextId INTEGER, migrationCause INTEGER, graphNodeId INTEGER, virtualAddress INTEGER",
    "CUPTI_ACTIVITY_KIND_MEMSET": f"{_ACTIVITY}, value INTEGER NOT NULL, bytes INTEGER NOT NULL, "
    "graphNodeId INTEGER, memKind INTEGER",
    "CUDA_GRAPH_EVENTS": _GRAPH,
}
"""Columns by table, as SQL."""


def create(table: str) -> str:
    """The SQL that makes a table."""
    return f"CREATE TABLE {table} ({TABLES[table]})"


LAUNCH_NS = 1000
"""CPU time per launch."""

CHUNK = 1 << 16
"""Rows handed to SQLite at once."""

VIRTUAL_MACHINE = 1 << 48
"""The upper 16 bits of globalPid and globalTid, as nsys fills them on a single machine."""

TSL_DOMAIN = 1
LAUNCH_NAMES = {
    ActivityKind.KERNEL: "cuLaunchKernel",
    ActivityKind.MEMCPY: "cuMemcpyDtoDAsync_v2",
    ActivityKind.MEMSET: "cuMemsetD32Async",
}

_INSERTS = {
    ActivityKind.KERNEL: (
        "CUPTI_ACTIVITY_KIND_KERNEL",
        "start, end, deviceId, streamId, correlationId, globalPid, shortName, demangledName, contextId, "
        "registersPerThread, gridX, gridY, gridZ, blockX, blockY, blockZ, staticSharedMemory, dynamicSharedMemory, "
        "localMemoryPerThread, localMemoryTotal, gridId",
        "c1, c2, c3, c4, c5, c6, c7, c7, 1, 32, 1, 1, 1, 128, 1, 1, 0, 0, 0, 0, c5",
    ),
    ActivityKind.MEMCPY: (
        "CUPTI_ACTIVITY_KIND_MEMCPY",
        "start, end, deviceId, streamId, correlationId, globalPid, contextId, bytes, copyKind",
        "c1, c2, c3, c4, c5, c6, 1, 0, 8",
    ),
    ActivityKind.MEMSET: (
        "CUPTI_ACTIVITY_KIND_MEMSET",
        "start, end, deviceId, streamId, correlationId, globalPid, contextId, value, bytes",
        "c1, c2, c3, c4, c5, c6, 1, 0, 0",
    ),
}

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class _Threads:
    """The launching thread and the process of each device."""

    host: str
    pid: Ints
    tid: Ints


def write_nsys_sqlite(trace: Trace, path: Path, *, product: str = "") -> None:
    """Write a trace as nsys's SQLite export; what stands at `path` is replaced.

    Reading it back gives the trace, with executions and launches numbered anew and without what was
    not resolved.

    Args:
        trace: GPU activities of one machine.
        path: the file.
        product: what the export's meta data name as its maker; by default pgle, and whether the
        trace is simulated.

    Raises:
        ValueError: the trace holds host work or processes of several machines.
    """
    if bool((trace.kind == ActivityKind.HOST).any()):
        raise ValueError("an nsys export holds GPU activities only")
    threads = _threads(trace.devices)
    path.unlink(missing_ok=True)
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        database.execute("PRAGMA journal_mode = OFF")
        database.execute("PRAGMA synchronous = OFF")
        database.execute("BEGIN")
        _write(
            database,
            trace,
            threads,
            product or (SIMULATED if trace.simulated else "pgle"),
        )
        database.execute("COMMIT")


def _write(
    database: sqlite3.Connection, trace: Trace, threads: _Threads, product: str
) -> None:
    strings = _Strings()
    # as nsys does, only tables that have rows are made
    _write_meta(database, trace, threads, product, strings)
    order, execution, launch = _launch_order(trace)
    process_of = np.unique(threads.pid, return_inverse=True)[1].reshape(-1)[
        trace.device[order]
    ]
    correlation = np.empty(len(order), np.int64)
    for process in np.unique(process_of).tolist():
        mine = process_of == process
        correlation[mine] = np.arange(1, int(mine.sum()) + 1)
    cpu = _cpu_times(trace, order)
    _write_ranges(database, trace, threads, strings, order, execution, launch, cpu)
    names = np.array(
        [strings.number(LAUNCH_NAMES[kind]) for kind in LAUNCH_NAMES], np.int64
    )
    row = "start, end, eventClass, globalTid, correlationId, nameId, returnValue"
    calls = (
        cpu,
        threads.tid[trace.device[order]],
        correlation,
        names[trace.kind[order]],
    )
    placed = f"c1 + {LAUNCH_NS // 5}, c1 + {LAUNCH_NS // 2}, 1, c2, c3, c4, 0"
    _insert(database, "CUPTI_ACTIVITY_KIND_RUNTIME", row, placed, calls)
    kernels = np.array(
        [strings.number(re.sub(r"[.-]", "_", name)) for name in trace.instructions],
        np.int64,
    )
    # in the order of GPU starts, like nsys
    by_row = np.empty(len(order), np.int64)
    by_row[order] = correlation
    for kind, (table, row, placed) in _INSERTS.items():
        rows = np.flatnonzero(trace.kind == kind)
        rows = rows[np.argsort(trace.start_ns[rows], kind="stable")]
        device = trace.device[rows]
        ordinals = np.array([item.ordinal for item in trace.devices], np.int64)[device]
        columns: list[npt.NDArray[np.integer]] = [
            trace.start_ns[rows],
            trace.end_ns[rows],
            ordinals,
        ]
        columns += [trace.stream[rows], by_row[rows], threads.pid[device]]
        if kind is ActivityKind.KERNEL:
            columns.append(kernels[trace.instruction[rows]])
        _insert(database, table, row, placed, columns)
    database.execute(create("StringIds"))
    database.executemany("INSERT INTO StringIds VALUES (?, ?)", strings.rows())


class _Strings:
    """StringIds."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def number(self, text: str) -> int:
        return self._numbers.setdefault(text, len(self._numbers) + 1)

    def rows(self) -> Iterator[tuple[int, str]]:
        return ((number, text) for text, number in self._numbers.items())


def _threads(devices: Sequence[Device]) -> _Threads:
    """Process and thread ids; processes are called ``HOST:PID``, else they are numbered."""
    parts = {
        name: re.fullmatch(r"(.*):(\d{1,7})", name)
        for name in dict.fromkeys(item.process for item in devices)
    }
    hosts = {match[1] if match else "" for match in parts.values()}
    if len(hosts) > 1:
        raise ValueError(
            f"an nsys export is of one machine, not of {', '.join(sorted(hosts))}"
        )
    pids = {
        name: VIRTUAL_MACHINE | (int(match[2]) if match else number) << 24
        for number, (name, match) in enumerate(parts.items(), start=1)
    }
    pid = np.array([pids[item.process] for item in devices], np.int64)
    tid = pid | np.array([item.ordinal + 1 for item in devices], np.int64)
    return _Threads(hosts.pop() if hosts else "", pid, tid)


def _launch_order(trace: Trace) -> tuple[npt.NDArray[np.intp], Ints, Ints]:
    """Rows in the order of launching, and for each, in that order, its module execution and its
    launch, numbered.
    """
    size = len(trace)
    wide = (
        trace.device.astype(np.int64) * max(len(trace.modules), 1) + trace.module
    ) << 31
    execution = _by_first(wide | np.maximum(trace.execution, 0))
    # a row of an unknown launch is its own
    own = np.where(
        trace.instance < 0, np.arange(size) + (1 << 31), trace.instance.astype(np.int64)
    )
    launch = _by_first((trace.device.astype(np.int64) << 40) | own)
    order = np.lexsort((np.arange(size), launch, execution, trace.device))
    # launches of one number in two executions, or of two instructions, are two
    columns = (
        execution[order],
        launch[order],
        trace.instruction[order].astype(np.int64),
    )
    changes = np.any([np.diff(column, prepend=-1) != 0 for column in columns], axis=0)
    return order, execution[order], np.cumsum(changes) - 1


def _by_first(keys: Ints) -> Ints:
    """Equal keys numbered in the order in which they first occur."""
    _, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
    rank = np.empty(len(first), np.int64)
    rank[np.argsort(first)] = np.arange(len(first))
    return rank[inverse.reshape(-1)]


def _cpu_times(trace: Trace, order: npt.NDArray[np.intp]) -> Ints:
    """When each launch begins on the CPU: evenly, and before the GPU starts it."""
    cpu = np.empty(len(order), np.int64)
    device = trace.device[order]
    for number in range(len(trace.devices)):
        mine = np.flatnonzero(device == number)
        steps = np.arange(len(mine)) * LAUNCH_NS
        if len(mine):
            cpu[mine] = (
                steps + int((trace.start_ns[order[mine]] - steps).min()) - 5 * LAUNCH_NS
            )
    return cpu


def _write_ranges(
    database: sqlite3.Connection, trace: Trace, threads: _Threads, strings: _Strings,
    order: npt.NDArray[np.intp], execution: Ints, launch: Ints, cpu: Ints,
) -> None:  # fmt: skip
    """Module and thunk ranges, ordered by start."""
    modules = np.array(
        [strings.number(_module_text(key)) for key in trace.modules], np.int64
    )
    thunks = np.array(
        [strings.number(f"Thunk:#hlo_op={name}#") for name in trace.instructions],
        np.int64,
    )
    tid = threads.tid[trace.device[order]]
    parts = []
    for group, text, before, after in (
        (execution, modules[trace.module[order]], 0, LAUNCH_NS - 100),
        (launch, thunks[trace.instruction[order]], LAUNCH_NS // 10, LAUNCH_NS - 200),
    ):
        edges = (
            np.flatnonzero(np.diff(group, prepend=-1))
            if len(group)
            else np.zeros(0, np.int64)
        )
        last = np.append(edges[1:], len(group)) - 1
        parts.append((cpu[edges] + before, cpu[last] + after, tid[edges], text[edges]))
    columns = [np.concatenate(column) for column in zip(*parts, strict=True)]
    by_start = np.argsort(columns[0], kind="stable")
    row = "start, end, eventType, globalTid, textId, domainId"
    database.execute(create("NVTX_EVENTS"))
    for pid in np.unique(threads.pid).tolist():
        values = (-LAUNCH_NS, 75, "TSL", pid, TSL_DOMAIN)
        database.execute(
            "INSERT INTO NVTX_EVENTS (start, eventType, text, globalTid, domainId) VALUES (?,?,?,?,?)",
            values,
        )
    _insert(
        database,
        "NVTX_EVENTS",
        row,
        f"c1, c2, 59, c3, c4, {TSL_DOMAIN}",
        [item[by_start] for item in columns],
    )


def _module_text(key: ModuleKey) -> str:
    program = "" if key.program_id is None else f",program_id={key.program_id}"
    return f"XlaModule:#hlo_module={key.name}{program}#"


def _write_meta(
    database: sqlite3.Connection,
    trace: Trace,
    threads: _Threads,
    product: str,
    strings: _Strings,
) -> None:
    """Versions, the host, XLA's names of devices and threads, XLA_FLAGS."""
    export = {"EXPORT_PRODUCT_NAME": product, "EXPORT_SCHEMA_VERSION": SCHEMA_VERSION}
    export |= dict(
        zip(
            (f"EXPORT_SCHEMA_VERSION_{part}" for part in ("MAJOR", "MINOR", "MICRO")),
            SCHEMA_VERSION.split("."),
            strict=True,
        )
    )
    _rows(database, "META_DATA_EXPORT", list(export.items()))
    if trace.xla_flags:
        variable = ("PROCESS_0:ENVIRONMENT_VARIABLE", f'XLA_FLAGS="{trace.xla_flags}"')
        _rows(database, "META_DATA_CAPTURE", [variable])
    if threads.host:
        _rows(
            database,
            "TARGET_INFO_SYSTEM_ENV",
            [(VIRTUAL_MACHINE, "Local (CLI)", "Hostname", 0, threads.host)],
        )
    clocks = {
        known.utc_ns for known in trace.recordings.values() if known.utc_ns is not None
    }
    if len(clocks) == 1:  # all times of an export count from the start of one session
        _rows(database, "TARGET_INFO_SESSION_START_TIME", [(clocks.pop(), None, None)])
    names = []
    launchers = []
    for number, device in enumerate(trace.devices):
        if device.global_id is not None:
            text = (
                f"#global={device.global_id},local={device.ordinal},process=0,slice=0#"
            )
            names.append(
                (f"Xla:{text}", device.ordinal, VIRTUAL_MACHINE, device.ordinal)
            )
            launchers.append(
                (strings.number(f"XlaLauncher:{text}"), 0, int(threads.tid[number]))
            )
    _rows(database, "TARGET_INFO_NVTX_CUDA_DEVICE", names)
    _rows(database, "ThreadNames", launchers)


def _rows(
    database: sqlite3.Connection, table: str, rows: Sequence[tuple[object, ...]]
) -> None:
    if rows:
        database.execute(create(table))
        database.executemany(
            f"INSERT INTO {table} VALUES ({', '.join('?' * len(rows[0]))})", rows
        )


def _insert(
    database: sqlite3.Connection,
    table: str,
    row: str,
    placed: str,
    columns: Sequence[npt.NDArray[np.integer]],
) -> None:
    """Insert whole columns, called c1, c2 … in `placed`, a chunk at a time; the table is made where
    there are rows.
    """
    if not len(columns[0]):
        return
    if not database.execute(
        "SELECT 1 FROM sqlite_master WHERE name = ?", (table,)
    ).fetchone():
        database.execute(create(table))
    named = ", ".join(f"? AS c{number}" for number in range(1, len(columns) + 1))
    query = f"INSERT INTO {table} ({row}) SELECT {placed} FROM (SELECT {named})"
    for at in range(0, len(columns[0]), CHUNK):
        database.executemany(
            query,
            zip(*(column[at : at + CHUNK].tolist() for column in columns), strict=True),
        )
