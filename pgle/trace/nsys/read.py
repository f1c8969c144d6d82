"""Nsight Systems exports → Trace.

A GPU activity belongs to the innermost ``Thunk:`` range that was open, on the thread and at the moment of the API call
with the activity's correlation id; its module is the nearest ``XlaModule:`` range around that thunk. Times on the GPU
play no part: they never fall inside the range. Schema reference: Nsight Systems User Guide, "SQLite Schema Reference".
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt

from pgle.errors import UserError
from pgle.files import AnyPath
from pgle.trace.nsys.devices import devices
from pgle.trace.nsys.graphs import RECORD_WITHOUT, Graphs
from pgle.trace.nsys.lookup import Codes
from pgle.trace.nsys.match import ACTIVITIES, API, Activities, read_activities
from pgle.trace.nsys.ranges import NO_API_ROW, REASONS, Launches
from pgle.trace.nsys.recording import recordings
from pgle.trace.nsys.sqlite import SqliteTables
from pgle.trace.nsys.tables import Tables
from pgle.trace.table import SIMULATED, Source, Trace, Unresolved

NEEDED = {
    "StringIds": ("id", "value"),
    "NVTX_EVENTS": ("start", "end", "eventType", "globalTid", "textId"),
    API: ("start", "globalTid", "correlationId"),
    **dict.fromkeys(ACTIVITIES, ("start", "end", "deviceId", "streamId", "correlationId", "globalPid")),
}
"""Columns without which nothing can be told; a table may be absent."""

KNOWN_SCHEMA = 3
"""Major version of the export schema of nsys 2022.4 to 2026.4; another one changes the meaning of columns."""

_XLA_FLAGS = re.compile(r"""(?:^|[\s;,"'])XLA_FLAGS=(?:"([^"]*)"|'([^']*)'|([^\n;]*))""")


def read_nsys(path: AnyPath, *, progress: Callable[[int, int], None] | None = None) -> Trace:
    """Read an Nsight Systems export.

    Args:
        path: a ``.sqlite`` file, or a directory of ``--type parquetdir`` or ``arrowdir``.
        progress: called with rows done and rows in all.

    Raises:
        UserError: it is missing, damaged, of another kind, or holds no GPU work of an XLA program.
    """
    tables = open_tables(path)
    try:
        _check(tables)
        total = sum(tables.count(table) for table in ("NVTX_EVENTS", API, *ACTIVITIES))
        done = 0

        def step(rows: int) -> None:
            nonlocal done
            done += rows
            if progress is not None:
                progress(min(done, total), total)

        return _trace(tables, *read_activities(tables, step))
    finally:
        tables.close()


def open_tables(path: AnyPath) -> Tables:
    """Open an export of whichever form."""
    if not isinstance(path, Path):
        raise UserError("an nsys export must be a local file", where=str(path), remedy="copy it here first")
    if path.is_dir():
        from pgle.trace.nsys.arrow import ArrowTables

        return ArrowTables(path)
    return SqliteTables(path)


def _check(tables: Tables) -> None:
    """Raise `UserError` where tables or columns are missing that nothing can do without."""
    again = "record with `nsys profile --trace=cuda,nvtx`"
    if not tables.columns("StringIds"):
        raise UserError("not an Nsight Systems export (no StringIds)", where=tables.path, remedy="give an nsys export")
    for table, columns in NEEDED.items():
        missing = sorted(set(columns) - tables.columns(table))
        if missing and tables.columns(table):
            what = f"{table} lacks the column{'s' * (len(missing) > 1)} {', '.join(missing)}"
            raise UserError(what, where=tables.path, remedy="export the whole report with a current `nsys export`")
    if not tables.columns("NVTX_EVENTS"):
        raise UserError("no NVTX ranges, so kernels have no names", where=tables.path, remedy=again)


def _trace(tables: Tables, launches: Launches, found: Activities, graphs: Graphs) -> Trace:
    """Put the columns in order and number executions and launches. The columns of `found` are used up, for memory."""
    unresolved = _unresolved(found, graphs)
    if not len(found.start):
        raise _nothing(tables, found, unresolved)
    used = list(found.devices)
    names = devices(tables, used)
    by_name = sorted(range(len(used)), key=lambda number: (names[number].process, names[number].ordinal))
    rank = np.empty(len(used), np.int32)
    rank[by_name] = np.arange(len(used), dtype=np.int32)
    device = rank[found.device.join()]
    start = found.start.join()
    order = _order(device, start)
    start, device = start[order], device[order]
    duration = found.duration.join()[order]
    kind = found.kind.join()[order]
    stream = found.stream.join()[order]
    owner = found.owner.join()[order]
    if graphs.present:
        instruction = found.instruction.join()[order]
        instance = _numbered(owner.astype(np.int64) << 32 | found.node.join()[order].astype(np.int64))
    del order
    module_range = launches.module_range[owner]
    module = launches.module_of[module_range]
    execution = _executions(device, module_range, launches)
    del module_range
    if not graphs.present:
        instruction = launches.instruction[owner]
        instance = _compact(owner, len(launches.instruction))
    return Trace(
        start_ns=start, duration_ns=duration, kind=kind, device=device, stream=stream, module=module,
        instruction=instruction, execution=execution, instance=instance, modules=launches.modules,
        instructions=graphs.instructions, devices=tuple(names[number] for number in by_name), unresolved=unresolved,
        sources=(_source(tables),), xla_flags=_xla_flags(tables),
        warnings=(*_simulated(tables), *_warnings(tables, found, graphs, unresolved)),
        recordings=recordings(tables, used, names),
    )  # fmt: skip


def _order(device: Codes, start: npt.NDArray[np.int64]) -> npt.NDArray[np.intp] | slice:
    """The rows by (device, start); ties keep their order."""
    if len(start) < 2 or (device.min() == device.max() and bool((start[1:] >= start[:-1]).all())):
        return slice(None)
    order = np.argsort(start, kind="stable")
    by_device = device[order]
    narrow = by_device.astype(np.int16) if device.max() < 2**15 else by_device  # two bytes are sorted by counting
    ordered: npt.NDArray[np.intp] = order[np.argsort(narrow, kind="stable")]
    return ordered


def _executions(device: Codes, module_range: Codes, launches: Launches) -> Codes:
    """Running number of each row's module range among those of the same module on the same device, by start."""
    count = len(launches.module_start)
    pair = device.astype(np.int64) * count + module_range
    size = (int(device.max()) + 1) * count
    dense = size <= 4 * len(device) + 2**20
    if dense:
        seen = np.zeros(size, np.bool_)
        seen[pair] = True
        pairs = np.flatnonzero(seen)
    else:
        pairs = np.unique(pair)
    of_device, of_range = np.divmod(pairs, count)
    of_module = launches.module_of[of_range].astype(np.int64)
    order = np.lexsort((of_range, launches.module_start[of_range], of_module, of_device))
    group = (of_device * len(launches.modules) + of_module)[order]
    first = np.concatenate([[True], group[1:] != group[:-1]])
    at = np.arange(len(order))
    number = np.empty(len(order), np.int32)
    number[order] = at - np.maximum.accumulate(np.where(first, at, 0))
    if not dense:
        return number[np.searchsorted(pairs, pair)]
    table = np.zeros(size, np.int32)
    table[pairs] = number
    result: Codes = table[pair]
    return result


def _compact(owner: Codes, size: int) -> Codes:
    """Number the ranges that occur from 0, in the order of the ranges."""
    used = np.zeros(size, np.bool_)
    used[owner] = True
    return (np.cumsum(used, dtype=np.int32) - np.int32(1))[owner]


def _numbered(keys: npt.NDArray[np.int64]) -> Codes:
    return np.unique(keys, return_inverse=True)[1].astype(np.int32).reshape(-1)


def _unresolved(found: Activities, graphs: Graphs) -> tuple[Unresolved, ...]:
    rows = [Unresolved(REASONS[code], *found.left_out[code]) for code in sorted(found.left_out, reverse=True)]
    hidden = graphs.hidden()
    return (*rows, hidden) if hidden is not None else tuple(rows)


def _nothing(tables: Tables, found: Activities, unresolved: tuple[Unresolved, ...]) -> UserError:
    """The error for an export from which no activity could be resolved."""
    reasons = {entry.reason: entry for entry in unresolved}
    if {"graph-launch", "graph-node"} & set(reasons):
        count = sum(reasons[name].count for name in ("graph-launch", "graph-node") if name in reasons)
        return UserError(
            f"only CUDA graphs ({count:,}), which hide instructions", where=tables.path, remedy=RECORD_WITHOUT
        )
    if not found.seen:
        remedy = "record on a GPU with `nsys profile --trace=cuda,nvtx`, and nothing else that uses CUPTI"
        return UserError("no GPU activity", where=tables.path, remedy=remedy)
    why = ", ".join(f"{entry.reason} {entry.count:,}" for entry in unresolved)
    remedy = "record several whole steps after compilation with `nsys profile --trace=cuda,nvtx`"
    return UserError(f"no GPU activity belongs to an XLA instruction ({why})", where=tables.path, remedy=remedy)


def _warnings(tables: Tables, found: Activities, graphs: Graphs, unresolved: tuple[Unresolved, ...]) -> tuple[str, ...]:
    name = tables.path.name
    lines = [
        f"{name}: {entry.count:,} activities of CUDA graphs hide their instructions; {RECORD_WITHOUT}"
        for entry in unresolved
        if entry.reason in ("graph-launch", "graph-node")
    ]
    if graphs.named:
        lines.append(f"{name}: {graphs.named:,} activities of CUDA graphs were named after their kernels")
    lost = found.left_out.get(NO_API_ROW, [0, 0])[0]
    if lost * 2 > found.seen:
        lines.append(f"{name}: {lost:,} of {found.seen:,} GPU activities were launched before the capture began")
    schema = _meta(tables).get("EXPORT_SCHEMA_VERSION", "")
    major = schema.partition(".")[0]
    if major.isdigit() and int(major) != KNOWN_SCHEMA:
        lines.append(f"{name}: export schema {schema} is not {KNOWN_SCHEMA}.x; check the result")
    return tuple(lines)


def _meta(tables: Tables) -> dict[str, str]:
    """What the exporter says of itself."""
    for table in ("META_DATA_EXPORT", "EXPORT_META_DATA"):
        rows = tables.rows(table, ("name", "value"), like=("name", ("EXPORT_PRODUCT", "EXPORT_SCHEMA_VERSION")))
        found = {str(name): str(value) for name, value in rows}
        if found:
            return found
    return {}


def _source(tables: Tables) -> Source:
    return Source(str(tables.path), tables.format, _meta(tables).get("EXPORT_PRODUCT_VERSION", ""))


def _simulated(tables: Tables) -> tuple[str, ...]:
    """The warning of a simulated trace: its writer names the simulation as the product."""
    return (SIMULATED,) if SIMULATED in _meta(tables).get("EXPORT_PRODUCT_NAME", "") else ()


def _xla_flags(tables: Tables) -> str:
    """XLA_FLAGS of the recorded process. Nothing else of the environment leaves this function."""
    for (value,) in tables.rows("META_DATA_CAPTURE", ("value",), like=("value", ("XLA_FLAGS=",))):
        if isinstance(value, str):  # NAME="value"
            return value.removeprefix("XLA_FLAGS=").removeprefix('"').removesuffix('"').strip()
    blobs = tables.rows("TARGET_INFO_SYSTEM_ENV", ("name", "value"), like=("name", ("DeviceEnvironment",)))
    for _, value in blobs:
        if isinstance(value, str) and (match := _XLA_FLAGS.search(value)):
            return next(group for group in match.groups() if group is not None).strip()
    return ""
