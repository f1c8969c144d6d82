"""Launch gaps: the time between kernels in which a GPU does nothing, measured on a trace or from a public figure.

A kernel starts a little after the end of the one before it on the same stream; one that waited for another stream
starts a little later still. These gaps belong to no instruction, so no cost profile holds them, yet a step of some
thousand kernels spends some per cent of its time in them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from pgle.costs.profile.value import Origin, Profile, module_records
from pgle.trace.column import median
from pgle.trace.table import Trace

INTERRUPTION = 10.0  # gaps longer than this many medians are no launch gaps (the host was late, a transfer was awaited)
MIN_GAPS = 20  # fewer gaps than this say nothing
MAX_EXECUTIONS = 8  # more executions than this are not looked at: gaps do not change from step to step


@dataclass(frozen=True)
class Launch:
    """How long the device waits around a kernel."""

    gap_us: float = 1.0  # between the end of a kernel and the start of the next on the same stream
    switch_us: float = 5.0  # between an event on one stream and the start of a kernel on another that waited for it
    host_us: float = 3.8  # the host's time to issue one launch; a step of short kernels is bound by it
    # launches of one run of an instruction where that is not one
    kernels: Mapping[str, float] = field(default_factory=dict)
    origin: Origin = Origin.ESTIMATED  # measured on a trace, or `Origin.ESTIMATED`: the public figures below
    gaps: int = 0  # how many gaps were measured


DEFAULT = Launch()
"""XLA's own figures: 1 µs per kernel, 5 µs per NCCL kernel (`kKernelLaunchOverhead`, `kNcclKernelLaunchOverhead` in
openxla/xla `xla/service/gpu/model/gpu_performance_model_base.h`). Host: 3.8 µs per launch where launches follow each
other without waiting ("Getting Started with CUDA Graphs", NVIDIA technical blog, 2019)."""


def launch_of(profile: Profile, module: str = "") -> Launch | None:
    """The launch gaps that the provenance of a profile records for a module (by default its first); None without."""
    for item in module_records(profile.provenance):
        if item.get("launch") and module in ("", item.get("name")):
            try:
                return Launch(**{**item["launch"], "origin": Origin(item["launch"]["origin"])})
            except (KeyError, TypeError, ValueError):
                return None
    return None


def measure_launch(
    trace: Trace,
    module: int,
    kept: npt.NDArray[np.bool_],
    collective: npt.NDArray[np.bool_],
    iterations: npt.NDArray[np.int64],
) -> Launch | None:
    """Launch gaps of one program on its compute stream, from its first `MAX_EXECUTIONS` kept executions.

    Args:
        trace: n activities ordered by (device, start).
        module: index into `trace.modules`.
        kept: bool[executions], True for the executions to use.
        collective: bool[len(trace.instructions)], True for instructions that communicate.
        iterations: int64[len(trace.instructions)], how often each runs in an execution of the module; 0 where unknown.

    Returns:
        None where they have fewer than `MIN_GAPS` gaps.
    """
    parts = execution_rows(trace, module, kept, MAX_EXECUTIONS)
    found = [_gaps(trace, part, collective) for part in parts]
    gaps = np.concatenate([*(same for same, _ in found), np.empty(0)])
    if len(gaps) < MIN_GAPS:
        return None
    waits = np.concatenate([*(other for _, other in found), np.empty(0)])
    return Launch(
        # mean without interruptions: what a launch adds to the step on average
        gap_us=float(gaps[gaps <= INTERRUPTION * median(gaps)].mean()) / 1e3,
        switch_us=median(waits) / 1e3 if len(waits) else DEFAULT.switch_us,
        kernels=_kernels(trace, np.concatenate(parts), iterations),
        origin=Origin.MEASURED,
        gaps=len(gaps),
    )


def execution_rows(trace: Trace, module: int, kept: npt.NDArray[np.bool_], at_most: int) -> list[npt.NDArray[np.int64]]:
    """Row numbers of each of the first kept executions of a module on each device, `at_most` in all."""
    last = int(np.flatnonzero(kept)[:at_most].max(initial=-1))
    rows = np.flatnonzero((trace.module == module) & (trace.execution >= 0) & (trace.execution <= last))
    rows = rows[kept[trace.execution[rows]]]
    if len(rows) == 0:
        return []
    edges = np.flatnonzero((np.diff(trace.device[rows]) != 0) | (np.diff(trace.execution[rows]) != 0)) + 1
    return np.split(rows, edges)[:at_most]


def _gaps(
    trace: Trace, rows: npt.NDArray[np.int64], collective: npt.NDArray[np.bool_]
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Gaps between launches on the compute stream of one execution, and of collectives behind what they waited for.

    Gaps in which another stream was busy are left out of the first: there the stream waited for a collective.
    """
    stream = trace.stream[rows]
    compute = ~collective[trace.instruction[rows]]
    if not compute.any():
        return np.empty(0), np.empty(0)
    streams, activities = np.unique(stream[compute], return_counts=True)
    on_main = compute & (stream == streams[activities.argmax()])
    start = trace.start_ns[rows]
    end = start + trace.duration_ns[rows]
    s, e, launch = start[on_main], end[on_main], trace.instance[rows][on_main]
    gap = (s[1:] - e[:-1]).astype(np.float64)
    other_end = np.maximum.accumulate(end[~on_main]) if (~on_main).any() else np.empty(0, np.int64)
    other_start = start[~on_main]
    last = np.searchsorted(other_start, s[1:]) - 1
    busy = (last >= 0) & (other_end[np.maximum(last, 0)] > e[:-1]) if len(other_end) else np.zeros(len(gap), bool)
    new_launch = (launch[1:] != launch[:-1]) | (launch[1:] < 0)
    plain = gap[(gap >= 0) & ~busy & new_launch]
    before = np.searchsorted(e, other_start) - 1
    idle_before = np.append(True, other_start[1:] >= other_end[:-1]) if len(other_end) else np.empty(0, bool)
    waits = (other_start - e[np.maximum(before, 0)])[(before >= 0) & idle_before] if len(other_end) else np.empty(0)
    between = waits[waits <= INTERRUPTION * DEFAULT.switch_us * 1e3].astype(np.float64)
    return plain, between


def _kernels(trace: Trace, rows: npt.NDArray[np.int64], iterations: npt.NDArray[np.int64]) -> dict[str, float]:
    """Launches of each run of an instruction that has not one: distinct instances, mean over executions.

    In a loop an instruction runs once per iteration. If the count is unknown, launches and runs cannot be separated.
    """
    columns = (trace.device, trace.execution, trace.instruction, trace.instance)
    device, execution, instruction, instance = (column[rows] for column in columns)
    if len(rows) == 0 or (instance < 0).any():
        return {}
    order = np.lexsort((instance, instruction, execution, device))
    device, execution, instruction, instance = (c[order] for c in (device, execution, instruction, instance))
    new_run = np.append(True, (np.diff(device) != 0) | (np.diff(execution) != 0) | (np.diff(instruction) != 0))
    new_launch = new_run | np.append(True, np.diff(instance) != 0)
    count = np.bincount(instruction[new_launch], minlength=len(trace.instructions))
    times = np.bincount(instruction[new_run], minlength=len(trace.instructions))
    runs = times * iterations
    several = np.flatnonzero((runs > 0) & (count > runs))  # fewer: copies share a name
    return {trace.instructions[code]: float(count[code] / runs[code]) for code in several.tolist()}
