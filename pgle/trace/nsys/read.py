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
the `LeftOutReason` of where it broke off. Schema reference: Nsight Systems User Guide, "SQLite Schema Reference".

Exports hold the whole environment of the recorded process, and so secrets: nothing of it but flags of XLA is kept.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from itertools import chain
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
from pgle.trace.nsys.ranges import XlaLaunches, read_ranges
from pgle.trace.nsys.tables import API, Tables
from pgle.trace.table import SIMULATED, Device, LeftOutReason, Recording, Source, Trace, Unresolved, narrow

NEEDED = {
    "StringIds": ("id", "value"),
    "NVTX_EVENTS": ("start", "end", "eventType", "globalTid", "textId"),
    API: ("start", "globalTid", "correlationId"),
    **dict.fromkeys(ACTIVITIES, ("start", "end", "deviceId", "streamId", "correlationId", "globalPid")),
}
"""Columns that are required if their table exists; a table may be absent."""

KNOWN_SCHEMA = 3
"""Major version of the export schema of nsys 2022.4 to 2026.4; another one changes the meaning of columns."""

IN_GRAPHS = {
    LeftOutReason.GRAPH_LAUNCH.word,
    LeftOutReason.GRAPH_NODE.word,
}  # why activities are left out that CUDA graphs hide


def read_nsys(path: AnyPath, *, progress: Callable[[int, int], None] | None = None) -> Trace:
    """Read an Nsight Systems export.

    Args:
        path: a ``.sqlite`` file.
        progress: called with rows done and rows in all.
    """
    if not isinstance(path, Path):
        raise UserError("an nsys export must be a local file", where=str(path), remedy="copy it here first")
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
        del ranges  # the times of ranges are not needed any more
        names = KernelNames(tables, launches)
        found = read_activities(tables, calls, graphs, names, step)
        del calls  # nor are they
        return replace(
            _trace(tables, launches, graphs, found), kernels=names.by_instruction(graphs.instructions) if names else {}
        )


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


def _trace(tables: Tables, launches: XlaLaunches, graphs: Graphs, found: Activities) -> Trace:
    """Put the columns in order and number executions and launches. The columns of `found` are used up, for memory."""
    hidden = graphs.hidden()
    unresolved = found.unresolved() if hidden is None else (*found.unresolved(), hidden)
    columns = found.columns
    if not len(columns["start"]):
        raise _nothing(tables, found, unresolved)
    used = list(found.devices)
    names = devices_of(tables, used)
    by_name = sorted(range(len(used)), key=lambda number: (names[number].process, names[number].ordinal))
    rank = np.empty(len(used), np.int32)
    rank[by_name] = np.arange(len(used), dtype=np.int32)
    device = narrow(rank)[columns["device"].join()]
    start = columns["start"].join()
    order = by_time(device, start)
    start, device = start[order], device[order]
    kept = ("duration", "kind", "stream", "thunk", *(("shared", "instruction") if graphs.present else ()))
    duration, kind, stream, thunk, *of_graphs = (columns[name].join()[order] for name in kept)
    shared, instruction = of_graphs or (None, launches.instruction[thunk])
    del order
    module_range = launches.module_range[thunk]
    exported = _exporter(tables)
    return Trace(
        start_ns=start, duration_ns=duration, kind=kind, device=device, stream=stream,
        module=launches.module[module_range], instruction=instruction,
        execution=number_executions(device, module_range, launches),
        instance=number_launches(thunk, shared, len(launches.instruction)),
        modules=launches.modules, instructions=graphs.instructions,
        devices=tuple(names[number] for number in by_name), unresolved=unresolved,
        sources=(Source(str(tables.path), "nsys-sqlite", exported.get("EXPORT_PRODUCT_VERSION", "")),),
        xla_flags=xla_flags(tables),
        warnings=_warnings(tables.path.name, exported, found, graphs, unresolved),
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


def _warnings(
    name: str, exported: Mapping[str, str], found: Activities, graphs: Graphs, unresolved: tuple[Unresolved, ...]
) -> tuple[str, ...]:
    # the writer of a simulated trace names the simulation as the product
    lines = [SIMULATED] if SIMULATED in exported.get("EXPORT_PRODUCT_NAME", "") else []
    lines += [
        f"{name}: {entry.count:,} activities of CUDA graphs hide their instructions; {RECORD_WITHOUT}"
        for entry in unresolved
        if entry.reason in IN_GRAPHS
    ]
    if graphs.named:
        lines.append(f"{name}: {graphs.named:,} activities of CUDA graphs were named after their kernels")
    lost = found.left_out.get(LeftOutReason.NO_API_ROW, [0, 0])[0]
    if lost * 2 > found.seen:
        lines.append(f"{name}: {lost:,} of {found.seen:,} GPU activities were launched before the capture began")
    schema = exported.get("EXPORT_SCHEMA_VERSION", "")
    major = schema.partition(".")[0]
    if major.isdigit() and int(major) != KNOWN_SCHEMA:
        lines.append(f"{name}: export schema {schema} is not {KNOWN_SCHEMA}.x; check the result")
    return tuple(lines)


PID_MASK = 0xFFFFFF
"""globalPid and globalTid hold the process id in bits 24 to 47 and the thread id below; the sign bit may be set."""

_JAX_DEVICE = re.compile(r"#global=(\d{1,9}),local=(\d{1,9}),process=(\d{1,9})\b")

_NAMESPACE = re.compile(r"pid:\[\d{1,20}\]")
"""What ``/proc/PID/ns/pid`` links to; exports of 2026 have it as NamespacePID or SystemUID."""

_VARIABLE = re.compile(r"""(?:^|[\s;,"'\0])XLA_FLAGS=([^\n\0]*)""")
_QUOTED = "|".join(rf"{quote}(?:[^{quote}=]|(?<=[a-z0-9])=)*{quote}" for quote in "\"'")
_FLAG = re.compile(rf"""(?<![^\s;,"'=])--xla\w*(?:=(?:{_QUOTED}|[^\s;,"'\0|&=]*(?:,[\w.:+-]+(?![\w.:+-]*=))*))?""")
"""A flag with its value. Values have no ``=``, and a comma belongs to one where no ``NAME=`` follows:
that is another variable."""


def process_id(global_id: int) -> int:
    """The operating system's process id in a globalPid or globalTid."""
    return (global_id >> 24) & PID_MASK


def devices_of(tables: Tables, used: Iterable[tuple[int, int]]) -> tuple[Device, ...]:
    """The devices of an export, in the order of `used`.

    Args:
        tables: the export.
        used: pairs of globalPid and device ordinal, as activities name them. With one GPU per process all are 0.
    """
    used = list(used)
    host = next(filter(None, _system(tables, "Hostname")), tables.path.stem)[:255]
    launchers = _launchers(tables)
    named = _named(tables)
    pids = {pid for pid, _ in used}
    names = {pid: f"{host}:{process_id(pid)}" for pid in pids}
    if len(set(names.values())) < len(pids):  # the same process id in several virtual machines or hosts
        names = {pid: f"{host}/{(pid >> 48) & 0xFFFF}:{process_id(pid)}" for pid in pids}
    found = []
    for pid, ordinal in used:
        mine = launchers.get(process_id(pid), {})
        number = mine.get(ordinal)
        if number is None:
            candidates = named.get(ordinal, set()) if len(used) > 1 else set().union(*named.values())
            number = next(iter(candidates)) if len(candidates) == 1 and len(pids) == 1 else None
        if number is None and len(mine) == 1 and sum(other == pid for other, _ in used) == 1:
            number = next(iter(mine.values()))
        found.append(Device(names[pid], ordinal, number))
    return tuple(found)


def _system(tables: Tables, *names: str) -> Iterator[str]:
    """What the export says of the machine under names that begin so; of its environment only flags are kept."""
    for _, value in tables.rows("TARGET_INFO_SYSTEM_ENV", ("name", "value"), like=("name", names)):
        if isinstance(value, str):
            yield value.strip()


def _launchers(tables: Tables) -> dict[int, dict[int, int]]:
    """Global device by process id and local device, from XLA's launcher threads (``XlaLauncher:#global=…#``)."""
    names = {
        identity: match
        for identity, text in tables.rows("StringIds", ("id", "value"), like=("value", ("XlaLauncher:",)))
        if isinstance(text, str) and (match := _JAX_DEVICE.search(text))
    }
    found: dict[int, dict[int, int]] = {}
    if names:
        for identity, tid in tables.rows("ThreadNames", ("nameId", "globalTid")):
            if isinstance(tid, int) and (match := names.get(identity)):
                found.setdefault(process_id(tid), {})[int(match[2])] = int(match[1])
    return found


def _named(tables: Tables) -> dict[int, set[int]]:
    """Global devices by ordinal, from the names XLA gives its devices (``Xla:#global=…#``)."""
    found: dict[int, set[int]] = {}
    for name, ordinal in tables.rows("TARGET_INFO_NVTX_CUDA_DEVICE", ("name", "deviceId")):
        if isinstance(name, str) and isinstance(ordinal, int) and (match := _JAX_DEVICE.search(name)):
            found.setdefault(ordinal, set()).add(int(match[1]))
    return found


def recordings(tables: Tables, used: Iterable[tuple[int, int]], devices: Sequence[Device]) -> dict[str, Recording]:
    """Facts about each process."""
    began = (value for (value,) in tables.rows("TARGET_INFO_SESSION_START_TIME", ("utcEpochNs",)))
    utc_ns = next((value for value in began if isinstance(value, int) and value > 0), None)  # all times count from it
    namespace = next(filter(_NAMESPACE.fullmatch, _system(tables, "NamespacePID", "SystemUID")), "")
    gpus = _gpus(tables)
    # exports of 2024 and later have it
    rows = tables.rows("TARGET_INFO_CUDA_DEVICE", ("pid", "cudaId", "gpuId"))
    by_ordinal = {(pid, ordinal): gpu for pid, ordinal, gpu in rows}
    of_process: dict[str, list[object]] = {}
    for (pid, ordinal), device in zip(used, devices, strict=True):
        of_process.setdefault(device.process, []).append(by_ordinal.get((process_id(pid), ordinal)))
    everything = frozenset().union(*gpus.values())
    return {
        name: Recording(
            utc_ns,
            frozenset().union(*(gpus[gpu] for gpu in chosen)) if all(gpu in gpus for gpu in chosen) else everything,
            namespace,
        )
        for name, chosen in of_process.items()
    }


def _gpus(tables: Tables) -> Mapping[object, frozenset[str]]:
    """The identity of each GPU that the recorder saw."""
    found: dict[object, frozenset[str]] = {}
    for kind, column in (("uuid", "uuid"), ("bus", "busLocation")):
        for gpu, value in tables.rows("TARGET_INFO_GPU", ("id", column)):
            if isinstance(value, str) and value.strip("0-:. "):
                found[gpu] = found.get(gpu, frozenset()) | {f"{kind}:{value.strip().lower()}"}
    return found


def _exporter(tables: Tables) -> dict[str, str]:
    """What the exporter says of itself."""
    for table in ("META_DATA_EXPORT", "EXPORT_META_DATA"):
        rows = tables.rows(table, ("name", "value"), like=("name", ("EXPORT_PRODUCT", "EXPORT_SCHEMA_VERSION")))
        found = {str(name): str(value) for name, value in rows}
        if found:
            return found
    return {}


def xla_flags(tables: Tables) -> str:
    """XLA_FLAGS of the recorded process: what begins with ``--xla`` in its value, and no word else."""
    captured = tables.rows("META_DATA_CAPTURE", ("value",), like=("value", ("XLA_FLAGS=",)))  # NAME="value"
    variables = map(_VARIABLE.search, _system(tables, "DeviceEnvironment"))
    texts = chain(
        (value for (value,) in captured if isinstance(value, str)), (found[1] for found in variables if found)
    )
    return " ".join(_FLAG.findall(next(texts, "")))
