"""A summary of a trace for people: devices, modules, executions, instructions and what was left
out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from pgle.trace.columns import distinct, median, totals
from pgle.trace.steady import ModuleExecutions, find_executions
from pgle.trace.table import (
    MEANINGS,
    ActivityKind,
    Device,
    ModuleKey,
    Trace,
    count_kinds,
)
from pgle.xla.guessed_kinds import guess_kind


@dataclass(frozen=True)
class DeviceSummary:
    """One device: its streams, activities, GPU time and recorded time."""

    device: Device
    streams: int
    activities: int
    busy_us: float
    span_us: float


@dataclass(frozen=True)
class ExecutionSummary:
    """One execution of a module."""

    number: int  # counted from 0 in the window
    devices: int  # devices that ran the execution
    activities: int  # on all devices
    span_us: float  # first start to last end, median over devices
    left_out: str  # why its costs do not count; empty if they do


@dataclass(frozen=True)
class ModuleSummary:
    """One executable."""

    module: ModuleKey  # name and program id
    instructions: int  # instructions that ran
    gpu_time_us: float  # summed over devices
    share: float  # share of the trace's GPU time
    # median span of a steady execution on a device; NaN if there is none
    step_us: float
    executions: tuple[ExecutionSummary, ...]  # by number

    @property
    def steady(self) -> int:
        """Number of executions whose costs count."""
        return sum(not execution.left_out for execution in self.executions)


@dataclass(frozen=True)
class InstructionSummary:
    """One instruction of one module; its kind is guessed from its name."""

    name: str
    module: ModuleKey
    kind: str
    launches: int
    activities: int
    gpu_time_us: float
    share: float


@dataclass(frozen=True, eq=False)
class TraceSummary:
    """The summary of a trace."""

    trace: Trace
    kinds: Mapping[ActivityKind, int]  # activities by kind
    span_us: float  # first start to last end, on the device with the longest span
    gpu_time_us: float  # summed over all activities
    devices: tuple[DeviceSummary, ...]
    # the main module, which has the most time, is first
    modules: tuple[ModuleSummary, ...]
    instructions: tuple[InstructionSummary, ...]  # costliest first

    @property
    def meanings(self) -> dict[str, str]:
        """Why activities belong to no instruction, in plain words by reason."""
        return {
            item.reason: MEANINGS.get(item.reason, "") for item in self.trace.unresolved
        }


def summarise_trace(trace: Trace) -> TraceSummary:
    """Summarise a trace. Executions are marked as `costs.measure` marks them without HLO."""
    devices = tuple(_device(trace, number) for number in range(len(trace.devices)))
    instructions = _instructions(trace)
    return TraceSummary(
        trace,
        kinds=count_kinds(trace.kind),
        span_us=max((item.span_us for item in devices), default=0.0),
        gpu_time_us=float(trace.duration_ns.sum()) / 1e3,
        devices=devices,
        modules=_modules(trace, instructions),
        instructions=instructions,
    )


def _device(trace: Trace, number: int) -> DeviceSummary:
    """Summarise one device."""
    rows = trace.device == number
    start, duration = trace.start_ns[rows], trace.duration_ns[rows]
    span = int((start + duration).max() - start.min()) if len(start) else 0
    return DeviceSummary(
        trace.devices[number],
        len(distinct(trace.stream[rows])),
        len(start),
        float(duration.sum()) / 1e3,
        span / 1e3,
    )


def _modules(
    trace: Trace, instructions: Sequence[InstructionSummary]
) -> tuple[ModuleSummary, ...]:
    """Summarise the modules that ran, the one with most time first."""
    found = find_executions(trace)
    time = totals(trace.module, trace.duration_ns, len(trace.modules))
    total = max(float(time.sum()), 1.0)
    counts = Counter(item.module for item in instructions)
    summaries = []
    for at, key in enumerate(trace.modules):
        if counts[key]:
            spans = found.span_ns[(found.module == at) & found.keep]
            step_us = median(spans) / 1e3 if len(spans) else float("nan")
            sums = time[at] / 1e3, time[at] / total
            summaries.append(
                ModuleSummary(key, counts[key], *sums, step_us, _executions(found, at))
            )
    return tuple(
        sorted(summaries, key=lambda item: (-item.gpu_time_us, item.module.name))
    )


def _executions(found: ModuleExecutions, module: int) -> tuple[ExecutionSummary, ...]:
    """Summarise the executions of one module, by number."""
    mine = np.flatnonzero(found.module == module)
    executions = []
    for number in distinct(found.execution[mine]).tolist():
        here = mine[found.execution[mine] == number]
        reason = (
            ""
            if bool(found.keep[here].all())
            else found.reasons.get((module, number), "")
        )
        span = median(found.span_ns[here]) / 1e3
        executions.append(
            ExecutionSummary(
                number, len(here), int(found.rows[here].sum()), span, reason
            )
        )
    return tuple(executions)


def _instructions(trace: Trace) -> tuple[InstructionSummary, ...]:
    """Summarise the instructions of each module, the costliest first."""
    width = max(len(trace.instructions), 1)
    pairs, inverse = np.unique(
        trace.module.astype(np.int64) * width + trace.instruction, return_inverse=True
    )
    time = np.bincount(inverse, weights=trace.duration_ns, minlength=len(pairs))
    activities = np.bincount(inverse, minlength=len(pairs))
    _, first = np.unique(trace.instance, return_index=True)
    launches = np.bincount(
        inverse[first[trace.instance[first] >= 0]], minlength=len(pairs)
    )
    launches += np.bincount(inverse[trace.instance < 0], minlength=len(pairs))
    total = max(float(time.sum()), 1.0)
    summaries = []
    for at, pair in enumerate(pairs.tolist()):
        name = trace.instructions[pair % width]
        summary = InstructionSummary(
            name=name,
            module=trace.modules[pair // width],
            kind=guess_kind(name),
            launches=int(launches[at]),
            activities=int(activities[at]),
            gpu_time_us=time[at] / 1e3,
            share=time[at] / total,
        )
        summaries.append(summary)
    summaries.sort(key=lambda item: (-item.gpu_time_us, item.name, item.module.name))
    return tuple(summaries)
