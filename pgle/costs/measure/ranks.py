"""The devices of a trace as windows to align, and the trace with numbers that mean the same execution on all."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from pgle.costs.measure.naming import Filed, Naming, Program, group_of_device
from pgle.costs.profile.align import Alignment, Column, EndTable, Floats, Window, align, covering
from pgle.costs.profile.value import CostKind, Ends
from pgle.trace.table import Trace
from pgle.xla.collectives import ends_together

MAX_EXECUTIONS = 128  # executions of each rank that are looked at
MAX_NAMES = 16  # collectives that are looked at

Codes = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class AlignedProgram:
    """How the windows of the devices that ran one program lie on each other."""

    alignment: Alignment  # of those devices
    shift: Codes  # int64[devices of the trace], what to add to a device's execution numbers
    ends: tuple[Ends, ...] = ()  # relates these windows to windows of other conversions


def align_program(trace: Trace, program: Program, naming: Naming) -> AlignedProgram:
    """Where the window of each device begins, for one program."""
    shift = np.zeros(len(trace.devices), np.int64)
    compared = _compared(naming.filed)
    windows = _windows(trace, program, naming, compared) if compared else {}
    found = align(tuple(windows.values()))
    shift[list(windows)] = found.shift
    of_process: dict[str, list[EndTable]] = {}
    for window, by in zip(windows.values(), found.shift, strict=True):
        of_process.setdefault(window.label, []).append(replace(window.tables[0], first=by))
    ends = covering(_ends(program.key.name, tables) for tables in of_process.values())
    return AlignedProgram(found, shift, ends)


def renumbered(trace: Trace, programs: Sequence[Program], aligned: Sequence[AlignedProgram]) -> Trace:
    """The trace with execution numbers of each program that mean the same execution on every device."""
    move = np.zeros((len(trace.modules), len(trace.devices)), np.int32)
    for program, found in zip(programs, aligned, strict=True):
        move[program.index] = found.shift
    if not move.any():
        return trace
    by = move[trace.module, trace.device]
    by[trace.execution < 0] = 0
    return replace(trace, execution=trace.execution + by)


def _compared(filed: Sequence[Filed]) -> list[int]:
    """The collectives to look at: those that end together on all ranks, so if possible none from rank to rank."""
    every = [number for number, item in enumerate(filed) if item.kind == CostKind.COLLECTIVE]
    together = [number for number in every if ends_together(filed[number].opcode or filed[number].name)]
    # chosen by name alone: the same on every rank, though each is reduced on its own and one may lack a name
    return sorted(together or every, key=lambda number: zlib.crc32(filed[number].name.encode()))[:MAX_NAMES]


def _windows(trace: Trace, program: Program, naming: Naming, names: Sequence[int]) -> dict[int, Window]:
    """By device, when these collectives ended (in a loop, the last time), in ns since the first end in its process."""
    code = np.full(len(trace.instructions), -1, np.int64)
    for number, name in enumerate(names):
        code[np.flatnonzero(naming.target == name)] = number
    rows = np.flatnonzero((code >= 0)[trace.instruction])
    rows = rows[
        (trace.module[rows] == program.index) & (trace.execution[rows] >= 0) & (trace.execution[rows] < MAX_EXECUTIONS)
    ]
    device, execution = trace.device[rows].astype(np.int64), trace.execution[rows]
    end = trace.start_ns[rows] + trace.duration_ns[rows]
    shape = (len(trace.devices), int(execution.max(initial=-1)) + 1, len(names))
    never = np.iinfo(np.int64).min
    last = np.full(shape, never)
    place = np.ravel_multi_index((device, execution, code[trace.instruction[rows]]), shape)
    np.maximum.at(last.reshape(-1), place, end)
    first = np.full(len(trace.devices), np.iinfo(np.int64).max)
    np.minimum.at(first, device, end)
    seen = np.flatnonzero(np.bincount(device)).tolist()
    base: dict[str, int] = {}
    for at in seen:
        process = trace.devices[at].process
        base[process] = min(int(first[at]), base.get(process, int(first[at])))
    group = group_of_device(naming.filed, trace.devices)[np.array(names, np.int64)]
    windows = {}
    for at in seen:
        process = trace.devices[at].process
        ran = np.flatnonzero((last[at] != never).any(axis=0))
        # doubles hold whole ns for 100 days
        ns = np.where(last[at][:, ran] == never, np.nan, last[at][:, ran] - base[process])
        columns = tuple((naming.filed[names[number]].name, int(group[number, at])) for number in ran.tolist())
        utc_ns = trace.recordings[process].utc_ns if process in trace.recordings else None
        table = EndTable(columns, ns, utc_ns=None if utc_ns is None else utc_ns + base[process])
        # devices of one process have one clock, and devices of one recording
        windows[at] = Window(process, (table,), clock=process if utc_ns is None else utc_ns)
    return windows


def _ends(module: str, tables: Sequence[EndTable]) -> Ends:
    """The tables of one process as one: of each collective, the last end on any of its devices."""
    first = min(table.first for table in tables)
    last = max(table.first + len(table.ns) for table in tables)
    columns: dict[Column, Floats] = {}
    for table in tables:
        for number, key in enumerate(table.columns):
            column = columns.setdefault(key, np.full(last - first, np.nan))
            here = column[table.first - first :][: len(table.ns)]
            np.fmax(here, table.ns[:, number], out=here)
    rows = np.column_stack(list(columns.values()))
    rows = rows[: int(np.flatnonzero(np.isfinite(rows).any(axis=1)).max()) + 1]
    ns = tuple(tuple(None if np.isnan(value) else int(value) for value in row) for row in rows)
    return Ends(module, tuple(columns), ns, first, tables[0].utc_ns)


def rank_ids(trace: Trace, devices: Sequence[int]) -> tuple[int, ...]:
    """JAX's global ids of devices of a trace, each once and in order; empty where one is not known."""
    ids = {trace.devices[device].global_id for device in devices}
    return tuple(sorted(item for item in ids if item is not None)) if None not in ids else ()
