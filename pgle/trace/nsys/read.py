"""Nsight Systems exports → Trace.

What an export holds of one kernel, and how it is followed from top to bottom:

    NVTX_EVENTS, on a thread of the CPU                                                          read_ranges
      XlaModule:#hlo_module=jit_step,program_id=7#           one execution of a module
        Thunk:#hlo_op=while.3#                               a loop; it launches nothing itself
          Thunk:#hlo_op=fusion.5#                            the innermost thunk: one launch of an instruction
    CUPTI_ACTIVITY_KIND_RUNTIME, on the same thread                                              read_calls
            cuLaunchKernel, correlationId 4711               begins while fusion.5 is open
    CUDA_GRAPH_NODE_EVENTS, where there are command buffers                                      read_graphs
            graphNodeId 12                                   was built while fusion.5 was open
    CUPTI_ACTIVITY_KIND_KERNEL, _MEMCPY, _MEMSET, on the GPU, later                              read_activities
            start, end, correlationId 4711                   is of fusion.5, in that execution of jit_step

Times on the GPU play no part: they never fall inside the range. What cannot be followed to the top is left out with
the `Reason` of where it broke off. Schema reference: Nsight Systems User Guide, "SQLite Schema Reference".
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np

from pgle.errors import UserError
from pgle.files import AnyPath
from pgle.trace.nsys.activities import (
    ACTIVITIES,
    RECORD_WITHOUT,
    Activities,
    Graphs,
    KernelNames,
    by_time,
    number_executions,
    number_launches,
    read_activities,
    read_calls,
    read_graphs,
)
from pgle.trace.nsys.ranges import Launches, read_ranges
from pgle.trace.nsys.recording import devices_of, exporter, recordings, simulated, source, xla_flags
from pgle.trace.nsys.tables import API, SqliteTables, Tables
from pgle.trace.table import Reason, Trace, Unresolved, narrow

NEEDED = {
    "StringIds": ("id", "value"),
    "NVTX_EVENTS": ("start", "end", "eventType", "globalTid", "textId"),
    API: ("start", "globalTid", "correlationId"),
    **dict.fromkeys(ACTIVITIES, ("start", "end", "deviceId", "streamId", "correlationId", "globalPid")),
}
"""Columns that are required if their table exists; a table may be absent."""

KNOWN_SCHEMA = 3
"""Major version of the export schema of nsys 2022.4 to 2026.4; another one changes the meaning of columns."""

IN_GRAPHS = {Reason.GRAPH_LAUNCH.word, Reason.GRAPH_NODE.word}  # why activities are left out that CUDA graphs hide


def read_nsys(path: AnyPath, *, progress: Callable[[int, int], None] | None = None) -> Trace:
    """Read an Nsight Systems export.

    Args:
        path: a ``.sqlite`` file, or a directory of ``--type parquetdir`` or ``arrowdir``.
        progress: called with rows done and rows in all.

    Raises:
        UserError: it is missing, damaged, of another kind, or holds no GPU work of an XLA program.
    """
    with closing(open_tables(path)) as tables:
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
        del ranges  # the times of ranges are not needed any more
        names = KernelNames(tables, launches)
        found = read_activities(tables, calls, graphs, names, step)
        del calls  # nor are they
        return replace(
            _trace(tables, launches, graphs, found), kernels=names.by_instruction(graphs.instructions) if names else {}
        )


def open_tables(path: AnyPath) -> Tables:
    """Open an export of whichever form."""
    if not isinstance(path, Path):
        raise UserError("an nsys export must be a local file", where=str(path), remedy="copy it here first")
    if path.is_dir():
        from pgle.trace.nsys.tables import ArrowTables

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


def _trace(tables: Tables, launches: Launches, graphs: Graphs, found: Activities) -> Trace:
    """Put the columns in order and number executions and launches. The columns of `found` are used up, for memory."""
    hidden = graphs.hidden()
    unresolved = found.unresolved() if hidden is None else (*found.unresolved(), hidden)
    if not len(found.start):
        raise _nothing(tables, found, unresolved)
    used = list(found.devices)
    names = devices_of(tables, used)
    by_name = sorted(range(len(used)), key=lambda number: (names[number].process, names[number].ordinal))
    rank = np.empty(len(used), np.int32)
    rank[by_name] = np.arange(len(used), dtype=np.int32)
    device = narrow(rank)[found.device.join()]
    start = found.start.join()
    order = by_time(device, start)
    start, device = start[order], device[order]
    duration = found.duration.join()[order]
    kind = found.kind.join()[order]
    stream = found.stream.join()[order]
    thunk = found.thunk.join()[order]
    shared = found.shared.join()[order] if graphs.present else None
    instruction = found.instruction.join()[order] if graphs.present else launches.instruction[thunk]
    del order
    module_range = launches.module_range[thunk]
    return Trace(
        start_ns=start, duration_ns=duration, kind=kind, device=device, stream=stream,
        module=launches.module[module_range], instruction=instruction,
        execution=number_executions(device, module_range, launches),
        instance=number_launches(thunk, shared, len(launches.instruction)),
        modules=launches.modules, instructions=graphs.instructions,
        devices=tuple(names[number] for number in by_name), unresolved=unresolved,
        sources=(source(tables),), xla_flags=xla_flags(tables),
        warnings=(*simulated(tables), *_warnings(tables, found, graphs, unresolved)),
        recordings=recordings(tables, used, names),
        compiling={names[number].process: launches.compiling[pid] for number, (pid, _) in enumerate(used)
                   if pid in launches.compiling},
    )  # fmt: skip


def _nothing(tables: Tables, found: Activities, unresolved: tuple[Unresolved, ...]) -> UserError:
    """The error for an export from which no activity could be resolved."""
    reasons = {entry.reason: entry for entry in unresolved}
    if IN_GRAPHS & set(reasons):
        count = sum(entry.count for name, entry in reasons.items() if name in IN_GRAPHS)
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
        if entry.reason in IN_GRAPHS
    ]
    if graphs.named:
        lines.append(f"{name}: {graphs.named:,} activities of CUDA graphs were named after their kernels")
    lost = found.left_out.get(Reason.NO_API_ROW, [0, 0])[0]
    if lost * 2 > found.seen:
        lines.append(f"{name}: {lost:,} of {found.seen:,} GPU activities were launched before the capture began")
    schema = exporter(tables).get("EXPORT_SCHEMA_VERSION", "")
    major = schema.partition(".")[0]
    if major.isdigit() and int(major) != KNOWN_SCHEMA:
        lines.append(f"{name}: export schema {schema} is not {KNOWN_SCHEMA}.x; check the result")
    return tuple(lines)
