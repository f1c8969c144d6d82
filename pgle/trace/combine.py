"""Several traces of one job as one table: ranks, hosts, report files."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace
from pathlib import PurePath
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from pgle.errors import many, some
from pgle.trace.table import Kind, Trace, Unresolved

ROW_COLUMNS = ("start_ns", "duration_ns", "kind", "device", "stream", "module", "instruction", "execution", "instance")

T = TypeVar("T", bound=Hashable)
Column = npt.NDArray[np.int32]


def without_repeats(trace: Trace) -> Trace:
    """The trace with each GPU activity once, and a warning where some were recorded again.

    A stream runs one activity at a time, so rows of one stream, start, duration and instruction are one activity.
    """
    same = (np.diff(trace.start_ns) == 0) & (np.diff(trace.device) == 0) & (np.diff(trace.duration_ns) == 0)
    if not same.any():
        return trace
    near = np.flatnonzero(np.append(same, False) | np.insert(same, 0, False))
    near = near[trace.kind[near] != Kind.HOST]
    columns = (trace.instruction, trace.module, trace.stream, trace.duration_ns, trace.start_ns, trace.device)
    order = near[np.lexsort(tuple(column[near] for column in columns))]
    again = np.ones(len(order), np.bool_)
    again[:1] = False
    for column in columns:
        again[1:] &= np.diff(column[order]) == 0
    if not again.any():
        return trace
    keep = np.ones(len(trace), np.bool_)
    keep[order[again]] = False
    twice = f"{many(int(again.sum()), 'event')} of the GPU recorded twice; each counts once"
    return replace(
        trace,
        **{name: getattr(trace, name)[keep] for name in ROW_COLUMNS},
        warnings=(*trace.warnings, f"{twice}. Record again if the profiler was started twice"),
    )


def combine(traces: Sequence[Trace]) -> Trace:
    """One trace with the rows of all; equal executables and instruction names become one.

    Args:
        traces: at least one. Devices of different processes stay apart. What several traces recorded on the same device
            are windows of one process, in the order of time: executions are numbered on.

    Returns:
        A trace ordered by (device, start). Launch numbers stay distinct between inputs.
    """
    if len(traces) == 1:
        return traces[0]
    from pgle.trace.identity import distinguish_processes  # one trace does without

    traces, same_names = distinguish_processes(traces)
    modules, module_maps = _unite([trace.modules for trace in traces])
    instructions, instruction_maps = _unite([trace.instructions for trace in traces])
    devices, device_maps = _unite([trace.devices for trace in traces])
    launches = np.cumsum([0, *(int(trace.instance.max(initial=-1)) + 1 for trace in traces)])
    device = np.concatenate([table[trace.device] for trace, table in zip(traces, device_maps, strict=True)])
    start = np.concatenate([trace.start_ns for trace in traces])
    order = np.lexsort((start, device))
    module = np.concatenate([table[t.module] for t, table in zip(traces, module_maps, strict=True)])
    execution = np.concatenate([trace.execution for trace in traces]).astype(np.int32)  # in all windows there are more
    _number_on(execution, device, module, traces)
    return Trace(
        start_ns=start[order],
        duration_ns=np.concatenate([trace.duration_ns for trace in traces])[order],
        kind=np.concatenate([trace.kind for trace in traces])[order],
        device=device[order],
        stream=np.concatenate([trace.stream for trace in traces])[order],
        module=module[order],
        instruction=np.concatenate([table[t.instruction] for t, table in zip(traces, instruction_maps, strict=True)])[
            order
        ],
        execution=execution[order],
        instance=np.concatenate(
            [np.where(t.instance < 0, -1, t.instance + base) for t, base in zip(traces, launches[:-1], strict=True)]
        ).astype(np.int32)[order],
        modules=modules,
        instructions=instructions,
        devices=devices,
        unresolved=_sum_unresolved(traces),
        hlo={key: data for trace in traces for key, data in trace.hlo.items()},
        sources=tuple(source for trace in traces for source in trace.sources),
        xla_flags=next((trace.xla_flags for trace in traces if trace.xla_flags), ""),
        warnings=(*_said_once(traces), *same_names),
        # of several windows of one process, all are on the clock of the first
        recordings={name: known for trace in reversed(traces) for name, known in trace.recordings.items()},
        compiling=_all_compiling(traces),
        kernels=_all_kernels(traces),
    )


def _said_once(traces: Sequence[Trace]) -> list[str]:
    """The warnings of all traces; one that several files have, as ``FILE and 7 more: …``."""
    files = {f"{PurePath(source.path).name}: " for trace in traces for source in trace.sources}
    said: dict[str, dict[str, None]] = {}
    for line in (line for trace in traces for line in trace.warnings):
        file = next((file for file in files if line.startswith(file)), "")
        said.setdefault(line[len(file) :], {}).update({file.removesuffix(": "): None} if file else {})
    return [f"{some(names, 1)}: {text}" if names else text for text, names in said.items()]


def _all_compiling(traces: Sequence[Trace]) -> dict[str, npt.NDArray[np.int64]]:
    """By process; windows of one process follow each other."""
    found: dict[str, list[npt.NDArray[np.int64]]] = {}
    for trace in traces:
        for process, times in trace.compiling.items():
            found.setdefault(process, []).append(times)
    return {process: np.concatenate(parts) for process, parts in found.items()}


def _all_kernels(traces: Sequence[Trace]) -> dict[tuple[str, str], frozenset[str]]:
    found: dict[tuple[str, str], frozenset[str]] = {}
    for trace in traces:
        for of, names in trace.kernels.items():
            found[of] = found.get(of, frozenset()) | names
    return found


def _number_on(execution: Column, device: Column, module: Column, traces: Sequence[Trace]) -> None:
    """Let executions of a module on a device that an earlier window has too follow that window's.

    Args:
        execution: numbers of all traces, one trace after the other; changed in place.
        device, module: of the same rows.
        traces: the windows.
    """
    modules = int(module.max(initial=0)) + 1
    following = np.zeros((int(device.max(initial=0)) + 1) * modules, np.int32)
    ends = np.cumsum([len(trace) for trace in traces]).tolist()
    for number in sorted(range(len(traces)), key=lambda at: int(traces[at].start_ns.min(initial=2**63 - 1))):
        first, last = ends[number] - len(traces[number]), ends[number]
        rows = np.arange(first, last)[execution[first:last] >= 0]
        key = device[rows].astype(np.int64) * modules + module[rows]
        execution[rows] += following[key]
        np.maximum.at(following, key, execution[rows] + 1)


def _unite(tables: Sequence[tuple[T, ...]]) -> tuple[tuple[T, ...], list[Column]]:
    """The distinct values of all tables, and per table the new code of each old one."""
    codes: dict[T, int] = {}
    maps = [
        np.array([codes.setdefault(value, len(codes)) for value in table] or [0], dtype=np.int32) for table in tables
    ]
    return tuple(codes), maps


def _sum_unresolved(traces: Sequence[Trace]) -> tuple[Unresolved, ...]:
    totals: dict[str, tuple[int, int]] = {}
    for item in (item for trace in traces for item in trace.unresolved):
        count, time = totals.get(item.reason, (0, 0))
        totals[item.reason] = (count + item.count, time + item.duration_ns)
    return tuple(Unresolved(reason, count, time) for reason, (count, time) in sorted(totals.items()))
