"""When each instruction of a step runs, where its time goes, and the trace that a profiler would record of it.

`record` makes the trace of several executions on several ranks: with warm-up, kernel noise, ranks that arrive late at
collectives, and pauses of the host between steps. Nothing of it was measured: its users label it simulated. The same
seed gives the same trace.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import cached_property

import numpy as np
import numpy.typing as npt

from pgle.costs.profile.value import Origin
from pgle.trace.columns import distinct
from pgle.trace.intervals import Intervals, complement, covered, join, overlap, union
from pgle.trace.table import SIMULATED, ActivityKind, Device, ModuleKey, Source, Trace
from pgle.xla.hlo.module import Module

ORIGINS: tuple[Origin, ...] = tuple(Origin)  # `Timeline.origin` indexes this


class Stream(IntEnum):
    """Where an activity runs."""

    COMPUTE = 0
    COMMUNICATION = 1
    COPY = 2


@dataclass(frozen=True, slots=True)
class Loop:
    """One loop of a timeline."""

    name: str  # of the ``while``
    trips: int  # how often the body runs
    # start_us, end_us: of all its iterations
    start_us: float
    end_us: float
    depth: int = 0  # 0 for the outermost
    # folded_start_us, folded_end_us: the part that is drawn once for many iterations
    folded_start_us: float = 0.0
    folded_end_us: float = 0.0
    folded: int = 0  # how many iterations it represents; 0 if every one is drawn

    def moved(self, clock: float, times: int, shift: float = 0.0) -> Loop:
        """The loop with its times stretched away from `clock`, then shifted."""
        all_times = (self.start_us, self.end_us, self.folded_start_us, self.folded_end_us)
        start, end, first, last = (clock + (time - clock) * times + shift for time in all_times)
        return replace(self, start_us=start, end_us=end, folded_start_us=first, folded_end_us=last)


@dataclass(frozen=True, slots=True)
class Breakdown:
    """Where the time of one step goes; the first four add up to `step_us`."""

    compute_us: float  # something computes
    exposed_communication_us: float  # collectives run and nothing computes
    exposed_copy_us: float  # only copies run
    idle_us: float  # nothing runs: launch gaps and waits
    step_us: float  # all of it
    communication_us: float  # collectives run, hidden or not
    copy_us: float  # copies run, hidden or not

    @property
    def overlap(self) -> float:
        """Share of the communication time during which something computes; 1 where there is none."""
        if self.communication_us <= 0:
            return 1.0
        return 1.0 - self.exposed_communication_us / self.communication_us


@dataclass(frozen=True, slots=True)
class Exposure:
    """One collective or copy over the step."""

    name: str  # the instruction
    kind: str  # ``all-gather`` …, ``copy``
    filed_as: str  # its name when LHS ran, which its cost has in a profile
    duration_us: float  # all its executions together
    exposed_us: float  # the part of it during which nothing computes
    count: int  # executions
    sync: bool  # it runs on the compute stream, nothing can hide it
    origin: Origin  # where its cost comes from


@dataclass(frozen=True)
class Timeline:
    """One step of one module, n activities in the order in which they were issued.

    A loop in its steady state is *folded*: one iteration represents many, its activities stretched over the time that
    all of them take, so that `start_us` and `duration_us` are true on the clock of the step and every sum is exact.
    """

    names: tuple[str, ...]  # instruction names
    instruction: npt.NDArray[np.int32]  # int32[n], index into `names`
    stream: npt.NDArray[np.uint8]  # uint8[n], values of `Stream`
    sync: npt.NDArray[np.bool_]  # bool[n], a collective on the compute stream
    start_us: npt.NDArray[np.float64]  # float64[n], from the start of the step
    duration_us: npt.NDArray[np.float64]  # float64[n], of all `count` executions
    count: npt.NDArray[np.int64]  # int64[n], executions that the row represents
    origin: npt.NDArray[np.uint8]  # uint8[n], index into `ORIGINS`
    step_us: float  # length of the step, from the start of the first activity to the end of the last
    kinds: tuple[str, ...]  # what each of `names` is: ``all-gather``, ``matmul``, else its opcode
    lhs_names: tuple[str, ...]  # what each of `names` was called when LHS ran, by which schedules are compared
    module: str = ""  # name of the module
    loops: tuple[Loop, ...] = ()  # the loops, in order of their start
    warnings: tuple[str, ...] = ()  # what the user should know, one line each
    lower_bound: bool = False  # one iteration is counted of a loop of unknown length: the step takes at least `step_us`

    def __len__(self) -> int:
        return len(self.instruction)

    @property
    def end_us(self) -> npt.NDArray[np.float64]:
        """float64[n], start + duration."""
        return self.start_us + self.duration_us

    def busy(self, stream: Stream) -> Intervals:
        """When anything of one kind runs."""
        rows = self.stream == stream
        return union(self.start_us[rows], self.end_us[rows])

    @cached_property
    def breakdown(self) -> Breakdown:
        """Where the time of the step goes."""
        compute, communication, copy = (self.busy(stream) for stream in Stream)
        return breakdown(compute, communication, copy, self.step_us)

    @cached_property
    def exposures(self) -> tuple[Exposure, ...]:
        """Collectives and copies, the most exposed first."""
        rows = np.flatnonzero(self.stream != Stream.COMPUTE)
        start, duration = self.start_us[rows], self.duration_us[rows]
        hidden = covered(self.busy(Stream.COMPUTE), start, start + duration)
        found = []
        for code in distinct(self.instruction[rows]).tolist():
            of_name = np.flatnonzero(self.instruction[rows] == code)
            total, first = float(duration[of_name].sum()), int(rows[of_name[0]])
            exposed = total - float(hidden[of_name].sum())
            exposed = exposed if exposed > 1e-9 * self.step_us else 0.0  # sums of floats are not exact
            count = int(self.count[rows[of_name]].sum())
            origin = ORIGINS[int(self.origin[first])]
            names = self.names[code], self.kinds[code], self.lhs_names[code]
            found.append(Exposure(*names, total, exposed, count, bool(self.sync[first]), origin))
        return tuple(sorted(found, key=lambda item: (-item.exposed_us, -item.duration_us, item.name)))

    @property
    def estimated_share(self) -> float:
        """Share of the activity time whose cost was not measured; a profile without sidecar is taken at its word."""
        total = float(self.duration_us.sum())
        if total <= 0:
            return 0.0
        given = [ORIGINS.index(origin) for origin in (Origin.MEASURED, Origin.UNKNOWN)]
        return float(self.duration_us[~np.isin(self.origin, given)].sum()) / total


def breakdown(compute: Intervals, communication: Intervals, copy: Intervals, step_us: float) -> Breakdown:
    """Where the time of the window [0, step) goes.

    |compute| + exposed communication + exposed copy + idle = step, as in TraceLens (`gpu_event_analyser.py`).
    """
    busy = join(compute, communication)
    everything = join(busy, copy)
    return Breakdown(
        compute_us=compute.length,
        exposed_communication_us=communication.length - overlap(communication, compute),
        exposed_copy_us=copy.length - overlap(copy, busy),
        idle_us=complement(everything, 0.0, step_us).length,
        step_us=step_us,
        communication_us=communication.length,
        copy_us=copy.length,
    )


Floats = npt.NDArray[np.float64]

STREAM_IDS: Mapping[Stream, int] = {Stream.COMPUTE: 13, Stream.COMMUNICATION: 22, Stream.COPY: 17}
"""CUDA stream numbers as a JAX process on one GPU shows them; only their being different matters."""


@dataclass(frozen=True)
class Noise:
    """How executions differ. The defaults resemble the real 4 × A100 run in testdata/pax_fsdp4: per instruction, max
    over min of four executions has median 1.035 and 90th percentile 1.17; the first two executions are 17 and 12 %
    slower; ranks begin a step of 127 ms some hundred microseconds apart.
    """

    kernel: float = 0.012  # standard deviation of the logarithm of a kernel's time
    outliers: float = 0.01  # share of kernels that take up to twice their time
    # the most that they take longer; small kernels of the real run sometimes double, large ones do not
    outlier_us: float = 20.0
    warm_up: tuple[float, ...] = (0.17, 0.12)  # extra share of compute time of the first executions
    skew: float = 0.002  # standard deviation of the time at which a rank begins a step, as a share of the step
    # how long the other ranks wait for the last one in the first execution (it compiled last)
    first_wait_us: float = 2e6
    pause_us: float = 5.0  # host time between steps; no part of the step times, which a trace must not contradict


def record(
    module: Module, timeline: Timeline, *, ranks: int, executions: int = 6, noise: Noise | None = None, seed: int = 0
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
        durations = [_draw(step, execution, noise, random) for _ in range(ranks)]
        late = np.abs(random.normal(0.0, noise.skew * timeline.step_us, ranks))
        if execution == 0 and ranks > 1:
            late += noise.first_wait_us * np.arange(ranks) / (ranks - 1)
        begin = clock + late
        waits = _waits(step, begin, durations)
        for rank in range(ranks):
            start, duration = _place(step, begin[rank], durations[rank], waits[rank])
            clock[rank] = float((start + duration).max(initial=begin[rank])) + noise.pause_us
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
        items = ((name, module.instructions.get(name)) for name in timeline.names)
        wrapped = ((name, None if item is None else module.wrapped(item)) for name, item in items)
        names = tuple(name if inner is None else inner.name for name, inner in wrapped)  # as a profiler shows them
        start = timeline.start_us[row] + within * each[row]
        instruction, stream = timeline.instruction[row][ran], timeline.stream[row][ran]
        return cls(names, instruction, stream, communicates[row][ran], start[ran], each[row][ran])


def _draw(step: _Step, execution: int, noise: Noise, random: np.random.Generator) -> Floats:
    """The time of every launch of one execution on one rank, waiting left out."""
    factor = np.exp(random.normal(0.0, noise.kernel, len(step.duration_us)))
    slow = random.random(len(factor)) < noise.outliers
    if execution < len(noise.warm_up):
        factor *= np.where(step.collective, 1.0, 1.0 + noise.warm_up[execution])
    duration: Floats = step.duration_us * factor
    duration[slow] += np.minimum(noise.outlier_us, duration[slow]) * random.random(int(slow.sum()))
    return duration


def _waits(step: _Step, begin: Floats, durations: list[Floats]) -> list[Floats]:
    """For each rank, how long each collective waits for the last rank to arrive.

    A rank arrives early by what it gained since the ranks last met; meeting makes them even.
    """
    waits = [np.zeros(len(step.duration_us)) for _ in durations]
    met = begin.copy()
    gained = [np.cumsum(np.where(step.collective, 0.0, duration - step.duration_us)) for duration in durations]
    since = np.zeros(len(durations))
    for row in np.flatnonzero(step.collective):
        now = np.array([total[row] for total in gained])
        arrival = met + now - since
        last = arrival.max()
        for rank, wait in enumerate(waits):
            wait[row] = last - arrival[rank]
        met, since = np.full(len(durations), last), now
    return waits


def _place(step: _Step, begin: float, duration: Floats, waits: Floats) -> tuple[Floats, Floats]:
    """Start and duration of every launch on one rank: later launches move by what earlier ones took longer.

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


def _trace(module: Module, step: _Step, parts: Sequence[tuple[int, int, Floats, Floats]], ranks: int) -> Trace:
    """Of parts (rank, execution, start and duration of every launch)."""
    numbers, times = np.array([part[:2] for part in parts], np.int32), np.array([part[2:] for part in parts])
    device, execution = np.repeat(numbers, len(step.stream), axis=0).T
    start, duration = np.rint(times.transpose(1, 0, 2).reshape(2, -1) * 1e3).astype(np.int64)
    order = np.lexsort((start, device))
    stream = np.tile(step.stream, len(parts))
    stream_ids = np.array([STREAM_IDS[item] for item in Stream], np.int32)
    return Trace(
        start_ns=start[order],
        duration_ns=np.maximum(duration, 1)[order],
        kind=np.where(stream == Stream.COPY, ActivityKind.MEMCPY, ActivityKind.KERNEL).astype(np.uint8)[order],
        device=device[order],
        stream=stream_ids[stream][order],
        module=np.zeros(len(order), np.int32),
        instruction=np.tile(step.instruction, len(parts))[order],
        execution=execution[order],
        instance=order.astype(np.int32),
        modules=(ModuleKey(module.name, 1 if module.program_id is None else module.program_id),),
        instructions=step.names,
        devices=tuple(Device("simulated:1", rank, rank) for rank in range(ranks)),
        sources=(Source("simulated", "simulated"),),
        warnings=(SIMULATED,),
    )
