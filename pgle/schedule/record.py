"""The trace that a profiler would record of a simulated step: several executions on several ranks.

With warm-up, kernel noise, ranks that arrive late at collectives, and pauses of the host between
steps. Nothing of it was measured: its users label it simulated. The same seed gives the same trace.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pgle.schedule.simulate import Stream, Timeline
from pgle.trace.table import SIMULATED, ActivityKind, Device, ModuleKey, Source, Trace
from pgle.xla.hlo.module import Module

Floats = npt.NDArray[np.float64]

STREAM_IDS: Mapping[Stream, int] = {
    Stream.COMPUTE: 13,
    Stream.COMMUNICATION: 22,
    Stream.COPY: 17,
}
"""CUDA stream numbers as a JAX process on one GPU shows them; only their being different
matters.
"""


@dataclass(frozen=True)
class Noise:
    """How executions differ. The defaults resemble the real 4 × A100 run in testdata/pax_fsdp4: per
    instruction, max over min of four executions has median 1.035 and 90th percentile 1.17; the
    first two executions are 17 and 12 % slower; ranks begin a step of 127 ms some hundred
    microseconds apart.
    """

    kernel: float = 0.012  # standard deviation of the logarithm of a kernel's time
    outliers: float = 0.01  # share of kernels that take up to twice their time
    # the most that they take longer; small kernels of the real run sometimes double, large ones do
    # not
    outlier_us: float = 20.0
    warm_up: tuple[float, ...] = (
        0.17,
        0.12,
    )  # extra share of compute time of the first executions
    # standard deviation of the time at which a rank begins a step, as a share of the step
    skew: float = 0.002
    # how long the other ranks wait for the last one in the first execution (it compiled last)
    first_wait_us: float = 2e6
    # host time between steps; no part of the step times, which a trace must not contradict
    pause_us: float = 5.0


def record(
    module: Module,
    timeline: Timeline,
    *,
    ranks: int,
    executions: int = 6,
    noise: Noise | None = None,
    seed: int = 0,
) -> Trace:
    """The trace of several executions on several ranks.

    Args:
        executions: per rank; the first ones are warm-up.

    Returns:
        A Trace with the final module's run-time names, as a profiler on the hardware would give it.
    """
    noise = noise or Noise()
    random = np.random.default_rng(seed)
    step = _Step.of(module, timeline)
    clock = np.zeros(ranks)
    parts: list[tuple[int, int, Floats, Floats]] = []
    for execution in range(executions):
        together = _draw(step, execution, noise, random)
        durations = [_draw(step, execution, noise, random) for _ in range(ranks)]
        durations = [np.where(step.collective, together, alone) for alone in durations]
        late = np.abs(random.normal(0.0, noise.skew * timeline.step_us, ranks))
        if execution == 0 and ranks > 1:
            late += noise.first_wait_us * np.arange(ranks) / (ranks - 1)
        begin = clock + late
        waits = _waits(step, begin, durations)
        for rank in range(ranks):
            start, duration = _place(step, begin[rank], durations[rank], waits[rank])
            clock[rank] = (
                float((start + duration).max(initial=begin[rank])) + noise.pause_us
            )
            parts.append((rank, execution, start, duration))
    return _trace(module, step, parts, ranks)


@dataclass(frozen=True)
class _Step:
    """One step, every launch a row: columns in issue order."""

    names: tuple[str, ...]
    instruction: npt.NDArray[np.int32]
    stream: npt.NDArray[np.uint8]
    collective: npt.NDArray[np.bool_]
    start_us: Floats
    duration_us: Floats

    @classmethod
    def of(cls, module: Module, timeline: Timeline) -> _Step:
        count = np.maximum(timeline.count, 1)
        row = np.repeat(np.arange(len(timeline)), count)
        within = np.arange(len(row)) - np.repeat(np.cumsum(count) - count, count)
        each = timeline.duration_us / count
        ran = (timeline.duration_us > 0)[row]
        communicates = (timeline.stream == Stream.COMMUNICATION) | timeline.sync
        names = tuple(_shown_name(module, name) for name in timeline.names)
        start = timeline.start_us[row] + within * each[row]
        instruction = timeline.instruction[row][ran]
        # XLA runs a synchronous collective on the stream of its kernels.
        streams = np.where(timeline.sync, np.uint8(Stream.COMPUTE), timeline.stream)
        stream = streams[row][ran]
        return cls(
            names=names,
            instruction=instruction,
            stream=stream,
            collective=communicates[row][ran],
            start_us=start[ran],
            duration_us=each[row][ran],
        )


def _shown_name(module: Module, name: str) -> str:
    """The name that a profiler shows: of an async start that of the instruction inside it."""
    item = module.instructions.get(name)
    inner = None if item is None else module.wrapped(item)
    return name if inner is None else inner.name


def _draw(
    step: _Step, execution: int, noise: Noise, random: np.random.Generator
) -> Floats:
    """The time of every launch of one execution on one rank, waiting left out."""
    factor = np.exp(random.normal(0.0, noise.kernel, len(step.duration_us)))
    slow = random.random(len(factor)) < noise.outliers
    if execution < len(noise.warm_up):
        factor *= np.where(step.collective, 1.0, 1.0 + noise.warm_up[execution])
    duration: Floats = step.duration_us * factor
    duration[slow] += np.minimum(noise.outlier_us, duration[slow]) * random.random(
        int(slow.sum())
    )
    return duration


def _waits(step: _Step, begin: Floats, durations: list[Floats]) -> list[Floats]:
    """For each rank, how long each collective waits for the last rank to arrive.

    A rank arrives early by what it gained since the ranks last met; meeting makes them even.
    """
    waits = [np.zeros(len(step.duration_us)) for _ in durations]
    met = begin.copy()
    gained = [
        np.cumsum(np.where(step.collective, 0.0, duration - step.duration_us))
        for duration in durations
    ]
    since = np.zeros(len(durations))
    for row in np.flatnonzero(step.collective):
        now = np.array([total[row] for total in gained])
        arrival = met + now - since
        last = arrival.max()
        for rank, wait in enumerate(waits):
            wait[row] = last - arrival[rank]
        met = np.full(len(durations), last)
        since = now
    return waits


def _place(
    step: _Step, begin: float, duration: Floats, waits: Floats
) -> tuple[Floats, Floats]:
    """Start and duration of every launch on one rank: later launches move by what earlier ones took
    longer.

    Each stream keeps its order; a wait holds up everything after it.
    """
    longer = duration + waits - step.duration_us
    serial = np.where(step.collective & (step.stream != Stream.COMPUTE), waits, longer)
    shift = np.cumsum(serial) - serial
    start = begin + step.start_us + shift
    total = duration + waits
    for stream in Stream:
        rows = np.flatnonzero(step.stream == stream)
        rows = rows[np.argsort(start[rows], kind="stable")]
        ends = np.cumsum(total[rows])
        earliest = np.maximum.accumulate(start[rows] - (ends - total[rows]))
        start[rows] = earliest + ends - total[rows]
    return start, total


def _trace(
    module: Module,
    step: _Step,
    parts: Sequence[tuple[int, int, Floats, Floats]],
    ranks: int,
) -> Trace:
    """A trace of parts: rank, execution, start and duration of every launch, microseconds."""
    numbers = np.array([part[:2] for part in parts], np.int32)
    times = np.array([part[2:] for part in parts])
    device, execution = np.repeat(numbers, len(step.stream), axis=0).T
    by_column_us = times.transpose(1, 0, 2).reshape(2, -1)
    start, duration = np.rint(by_column_us * 1e3).astype(np.int64)
    order = np.lexsort((start, device))
    stream = np.tile(step.stream, len(parts))
    stream_ids = np.array([STREAM_IDS[item] for item in Stream], np.int32)
    is_copy = stream == Stream.COPY
    kind = np.where(is_copy, ActivityKind.MEMCPY, ActivityKind.KERNEL).astype(np.uint8)
    program_id = 1 if module.program_id is None else module.program_id
    devices = tuple(Device("simulated:1", rank, rank) for rank in range(ranks))
    instruction = np.tile(step.instruction, len(parts))
    duration_ns = np.maximum(duration, 1)
    stream_id = stream_ids[stream]
    module_number = np.zeros(len(order), np.int32)
    sources = (Source("simulated", "simulated"),)
    instance = order.astype(np.int32)
    modules = (ModuleKey(module.name, program_id),)
    return Trace(
        start_ns=start[order],
        duration_ns=duration_ns[order],
        kind=kind[order],
        device=device[order],
        stream=stream_id[order],
        module=module_number,
        instruction=instruction[order],
        execution=execution[order],
        instance=instance,
        modules=modules,
        instructions=step.names,
        devices=devices,
        sources=sources,
        warnings=(SIMULATED,),
    )
