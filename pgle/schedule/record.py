"""The trace that a profiler would record of a simulated step: several executions on several ranks.

It has warm-up, kernel noise, ranks that arrive late at collectives, and pauses of the host between
steps. Nothing in it is measured, and the trace says so in a warning. The same seed gives the same
trace.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pgle.schedule.order import Order, Peers
from pgle.schedule.simulate import Stream, Timeline
from pgle.trace.columns import Flags, Floats, Ints, run_lengths
from pgle.trace.table import SIMULATED, ActivityKind, Device, ModuleKey, Source, Trace
from pgle.xla.collectives import collective_kind
from pgle.xla.hlo.module import Module

STREAM_IDS: Mapping[Stream, int] = {
    Stream.COMPUTE: 13,
    Stream.COMMUNICATION: 22,
    Stream.COPY: 17,
}
"""CUDA stream numbers that a JAX process on one GPU shows. Only their being different matters."""


@dataclass(frozen=True)
class Noise:
    """How executions differ. The defaults resemble the real 4 × A100 run in testdata/pax_fsdp4.

    In that run, the longest of four executions of an instruction takes 1.035 times the shortest
    (median; 90th percentile 1.17). The first two executions are 17 and 12 % slower. Ranks begin a
    step of 127 ms some hundred microseconds apart.
    """

    kernel: float = 0.012  # standard deviation of the logarithm of a kernel's time
    outliers: float = 0.01  # share of kernels that take up to twice their time
    # the most that an outlier takes longer; small kernels of the real run sometimes double, large
    # ones do not
    outlier_us: float = 20.0
    # extra share of compute time of the first executions
    warm_up: tuple[float, ...] = (0.17, 0.12)
    # standard deviation of the time at which a rank begins a step, as a share of the step
    skew: float = 0.002
    # how much later the last rank begins the first execution than the first one, since it compiled
    # last
    first_wait_us: float = 2e6
    # time of the host between steps; step times leave it out, and a trace must agree with them
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
    """Draw the trace of several executions on several ranks.

    Every rank goes through the waits of the simulated step with times of its own. A collective
    waits until the last rank of its group has arrived. From then on it takes as long on all.

    Args:
        module: the scheduled module.
        timeline: its step, simulated with `expand_loops`.
        ranks: number of ranks, one device each.
        executions: per rank; the first ones are warm-up (`Noise.warm_up`).
        noise: `Noise()` if None.
        seed: the same seed gives the same trace.

    Returns:
        A Trace with the final module's run-time names, as a profiler on the hardware would give it.

    Raises:
        ValueError: the timeline folds its loops.
    """
    if timeline.order is None:
        raise ValueError("a timeline that folds loops cannot be recorded")
    noise = noise or Noise()
    random = np.random.default_rng(seed)
    step = _Step.of(module, timeline, ranks)
    durations, late = [], []
    for execution in range(executions):
        together = _draw(step, execution, noise, random)
        alone = [_draw(step, execution, noise, random) for _ in range(ranks)]
        by_rank = [np.where(step.collective, together, item) for item in alone]
        durations.append(np.stack(by_rank, axis=1))
        late.append(np.abs(random.normal(0.0, noise.skew * timeline.step_us, ranks)))
    if ranks > 1:
        late[0] += noise.first_wait_us * np.arange(ranks) / (ranks - 1)
    duration = np.stack(durations, axis=1)
    begin = np.array(late)
    start, end = _run(timeline.order, step, duration, begin)
    # A rank that ends an execution early begins the next one early.
    early = _ends(end, begin)
    early -= early.max(axis=1, keepdims=True)
    begin[1:] += early[:-1]
    begin -= begin.min(axis=1, keepdims=True)
    start, end = _run(timeline.order, step, duration, begin)
    clock = np.cumsum(_ends(end, begin).max(axis=1) + noise.pause_us)
    start[:, 1:] += clock[:-1, None]
    end[:, 1:] += clock[:-1, None]
    return _trace(module, step, start, end)


def repeated(module: Module, timeline: Timeline, *, executions: int = 2) -> Trace:
    """The trace of equal executions on one rank, each exactly as in the timeline.

    Args:
        timeline: simulated with `expand_loops`.
    """
    step = _Step.of(module, timeline, 1)
    counts = np.maximum(timeline.count, 1)
    before = np.cumsum(step.duration_us) - step.duration_us
    within = before - np.repeat(before[step.first], counts)
    start = np.repeat(timeline.start_us, counts) + within
    begin = np.arange(executions) * timeline.step_us
    starts = (start[:, None] + begin)[:, :, None]
    return _trace(module, step, starts, starts + step.duration_us[:, None, None])


@dataclass(frozen=True)
class _Step:
    """One step in columns: a row for each launch, in issue order."""

    names: tuple[str, ...]
    instruction: npt.NDArray[np.int32]
    stream: npt.NDArray[np.uint8]
    collective: Flags
    duration_us: Floats
    # first, peers: for each activity of the timeline, its first launch and the ranks that it meets
    first: Ints
    peers: tuple[Peers, ...]

    @classmethod
    def of(cls, module: Module, timeline: Timeline, ranks: int) -> _Step:
        """Take the step of a timeline apart into its launches."""
        count = np.maximum(timeline.count, 1)
        row = np.repeat(np.arange(len(timeline)), count)
        communicates = (timeline.stream == Stream.COMMUNICATION) | timeline.sync
        names = tuple(_shown_name(module, name) for name in timeline.names)
        # XLA runs a synchronous collective on the stream of its kernels.
        peers = [_peers(module, name, ranks) for name in timeline.names]
        streams = np.where(timeline.sync, np.uint8(Stream.COMPUTE), timeline.stream)
        return cls(
            names=names,
            instruction=timeline.instruction[row],
            stream=streams[row],
            collective=communicates[row],
            duration_us=(timeline.duration_us / count)[row],
            first=np.cumsum(count) - count,
            peers=tuple(peers[code] for code in timeline.instruction.tolist()),
        )


def _peers(module: Module, name: str, ranks: int) -> Peers:
    """The ranks that meet in a collective: in its replica groups, or in the pairs of a permute."""
    item = module.instructions.get(name)
    if item is None or not collective_kind(module, item):
        return None
    inner = module.operation(item)
    groups = inner.replica_groups or item.replica_groups
    met = [{rank} for rank in range(ranks)]
    for group in groups or inner.source_target_pairs or [range(ranks)]:
        members = [rank for rank in group if rank < ranks]
        for rank in members:
            met[rank].update(members)
    most = max(map(len, met))
    padded = [sorted(own) + [rank] * (most - len(own)) for rank, own in enumerate(met)]
    return np.array(padded, np.int64)


def _run(
    order: Order, step: _Step, duration_us: Floats, begin_us: Floats
) -> tuple[Floats, Floats]:
    """Starts and ends of launches, float64[launches, executions, ranks] each."""
    if len(step.first) == len(step.collective):
        return order.starts_us(duration_us, begin_us, step.peers)
    # If loops stay folded, one activity is many launches, one after the other.
    whole = np.add.reduceat(duration_us, step.first, axis=0)
    start, _ = order.starts_us(whole, begin_us, step.peers)
    counts = run_lengths(step.first, len(duration_us))
    before = np.cumsum(duration_us, axis=0) - duration_us
    within = before - np.repeat(before[step.first], counts, axis=0)
    each = np.repeat(start, counts, axis=0) + within
    return each, each + duration_us


def _ends(end_us: Floats, begin_us: Floats) -> Floats:
    """When each execution has ended on each rank, float64[executions, ranks]."""
    last: Floats = end_us.max(axis=0, initial=-np.inf)
    return np.maximum(last, begin_us)


def _shown_name(module: Module, name: str) -> str:
    """The name that a profiler shows. An async start has the name of the instruction inside it."""
    item = module.instructions.get(name)
    inner = None if item is None else module.wrapped(item)
    return name if inner is None else inner.name


def _draw(
    step: _Step, execution: int, noise: Noise, random: np.random.Generator
) -> Floats:
    """Draw the time of every launch of one execution on one rank, in microseconds, without waits.

    Returns:
        float64[launches].
    """
    factor = np.exp(random.normal(0.0, noise.kernel, len(step.duration_us)))
    slow = random.random(len(factor)) < noise.outliers
    if execution < len(noise.warm_up):
        factor *= np.where(step.collective, 1.0, 1.0 + noise.warm_up[execution])
    duration: Floats = step.duration_us * factor
    duration[slow] += np.minimum(noise.outlier_us, duration[slow]) * random.random(
        int(slow.sum())
    )
    return duration


def _trace(module: Module, step: _Step, start_us: Floats, end_us: Floats) -> Trace:
    """Make a trace of the launches that take any time.

    Args:
        start_us: float64[launches, executions, ranks].
        end_us: the same shape.
    """
    ran = np.flatnonzero(step.duration_us > 0)
    _, executions, ranks = start_us.shape
    launches = len(ran)
    # by rank, then execution, then issue
    by_rank = (2, 1, 0)
    start = _whole_ns(start_us[ran].transpose(by_rank))
    duration = _whole_ns((end_us - start_us)[ran].transpose(by_rank))
    device = np.repeat(np.arange(ranks, dtype=np.int32), executions * launches)
    number = np.repeat(np.arange(executions, dtype=np.int32), launches)
    execution = np.tile(number, ranks)
    order = np.lexsort((start, device))
    times = executions * ranks
    stream = np.tile(step.stream[ran], times)
    stream_ids = np.array([STREAM_IDS[item] for item in Stream], np.int32)
    is_copy = stream == Stream.COPY
    kind = np.where(is_copy, ActivityKind.MEMCPY, ActivityKind.KERNEL).astype(np.uint8)
    program_id = 1 if module.program_id is None else module.program_id
    devices = tuple(Device("simulated:1", rank, rank) for rank in range(ranks))
    instruction = np.tile(step.instruction[ran], times)
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


def _whole_ns(time_us: Floats) -> Ints:
    """Round to int64 nanoseconds, in one dimension."""
    return np.rint(time_us.reshape(-1) * 1e3).astype(np.int64)
