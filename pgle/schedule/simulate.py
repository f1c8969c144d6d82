"""Run a scheduled module on a model of the device: when does each instruction run, and what would a profiler record?

The host issues launches in schedule order, `LaunchGaps.host_us` apart. The compute stream runs them in order with a gap
before each. An async start puts its work on another queue, where it begins when that queue is free and the compute
stream has reached the start; its done holds the compute stream until it has ended. Collectives that XLA left
synchronous run on the compute stream itself, after those under way. The host waits for the device where it needs a
value from it: which branch to take, whether a loop of unknown length continues (openxla/xla
`xla/backends/gpu/runtime/while_thunk.cc`; loops of known length run without).

A loop runs iteration by iteration until its state repeats; from then on one iteration is counted for the rest, so time
and memory are linear in the module, whatever the trip counts.

Kernels take what they take alone, times the factors of contention while an asynchronous collective runs. At the end the
step is compared with what the GPU's peaks and links allow (`Program.least_us`), and is never below it.

`record` makes of it the trace of several executions on several ranks: with warm-up, kernel noise, ranks that arrive
late at collectives, and pauses of the host between steps. Nothing of it was measured: its users label it simulated. The
same seed gives the same trace.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from pgle.costs.measure.contention import DEFAULT, NONE, Factors, LaunchGaps
from pgle.schedule.program import COLLECTIVES, ORIGINS, HostAction, Loop, Op, Program, Stream, Timeline
from pgle.trace.table import SIMULATED, ActivityKind, Device, ModuleKey, Source, Trace
from pgle.xla.hlo.module import Module

MAX_ITERATIONS = 64  # iterations simulated one by one at most, while a loop does not come to a steady state
MAX_ROWS = 1_000_000  # rows that unfolding loops may make; beyond it loops stay folded

NO_OTHERS: Mapping[str, float] = {}

_STEADY_US = 1e-6
_ROUNDING = 1e-9  # of sums of floats
_NEVER = (float("-inf"), -1)


def run_program(
    program: Program,
    launch: LaunchGaps = DEFAULT,
    slower: Factors = NONE,
    *,
    name: str = "",
    expand_loops: bool = False,
    costs: Mapping[str, float] = NO_OTHERS,
) -> Timeline:
    """One step of a program.

    Args:
        expand_loops: draw every iteration, as long as that makes no more than `MAX_ROWS` rows.
        costs: microseconds by op that are taken instead of its own.
    """
    device = _Device(program, launch, slower, expand_loops, costs)
    device.run(program.entry)
    timeline = device.rows.timeline(device.loops, name)
    warnings, step_us = program.warnings, timeline.step_us
    if step_us < program.least_us * (1 - _ROUNDING):
        step_us = program.least_us
        warnings = (*warnings, too_short(timeline.step_us, program))
    return replace(timeline, step_us=step_us, warnings=warnings, lower_bound=bool(program.uncounted))


def too_short(step_us: float, program: Program) -> str:
    """What to say of costs that the GPU cannot reach, with the instruction that falls shortest of its bound."""
    worst = max((op for ops in program.computations.values() for op in ops), key=lambda op: op.least_us - op.cost_us)
    first = f" ({worst.name} has {worst.cost_us:,.0f} and needs {worst.least_us:,.0f})"
    first = first if worst.least_us > worst.cost_us else ""
    return (
        f"the costs make a step of {step_us:,.0f} µs, but the GPU needs at least {program.least_us:,.0f}{first}: "
        "pgle predicts that. Check that the costs are of this program and of the GPU of --target"
    )


@dataclass(slots=True)
class _Columns:
    """The columns of a `Timeline` so far, times in microseconds from some start, and its tables of names."""

    code: list[int] = field(default_factory=list)
    start: list[float] = field(default_factory=list)
    duration: list[float] = field(default_factory=list)
    count: list[int] = field(default_factory=list)
    ops: dict[str, tuple[int, Op]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.start)

    def add(self, op: Op, start: float, duration: float) -> int:
        """One execution of an op; the number of its row."""
        code, _ = self.ops.setdefault(op.name, (len(self.ops), op))
        self.code.append(code)
        self.start.append(start)
        self.duration.append(duration)
        self.count.append(1)
        return len(self.start) - 1

    def stretch(self, first: int, clock: float, times: int) -> None:
        """Let the rows from `first` on, an iteration that began at `clock`, stand for so many."""
        for row in range(first, len(self)):
            self.start[row] = clock + (self.start[row] - clock) * times
            self.duration[row] *= times
            self.count[row] *= times

    def unfold(self, first: int, period: float, times: int) -> None:
        """Append `times` - 1 copies of the rows from `first` on, `period` apart."""
        more = len(self) - first
        self.start += [
            self.start[row] + again * period for again in range(1, times) for row in range(first, first + more)
        ]
        for column in (self.code, self.duration, self.count):
            column += column[first:] * (times - 1)

    def timeline(self, loops: Sequence[Loop], module: str) -> Timeline:
        """What has run, with the first activity at time 0."""
        ops = [op for _, op in self.ops.values()]
        code = np.array(self.code, dtype=np.int32)
        start = np.array(self.start, dtype=np.float64)
        first = float(start.min()) if len(start) else 0.0
        duration = np.array(self.duration, dtype=np.float64)
        return Timeline(
            names=tuple(self.ops),
            instruction=code,
            stream=np.array([op.stream for op in ops], dtype=np.uint8)[code],
            sync=np.array([op.is_sync for op in ops], dtype=bool)[code],
            start_us=start - first,
            duration_us=duration,
            count=np.array(self.count, dtype=np.int64),
            origin=np.array([ORIGINS.index(op.origin) for op in ops], dtype=np.uint8)[code],
            step_us=float((start + duration).max()) - first if len(start) else 0.0,
            module=module,
            kinds=tuple(op.kind for op in ops),
            lhs_names=tuple(op.lhs_name for op in ops),
            loops=tuple(loop.moved(0.0, 1, -first) for loop in loops),
        )


class _Device:
    """The state of host and streams. Times in microseconds from the start."""

    def __init__(
        self, program: Program, launch: LaunchGaps, slower: Factors, expand: bool, costs: Mapping[str, float]
    ) -> None:
        self.program = program
        self.costs = costs
        self.launch = launch
        self.slower = slower
        self.expand = expand
        self.rows = _Columns()
        self.loops: list[Loop] = []
        self.depth = 0
        self.host = 0.0
        self.free = 0.0  # end of the last activity of the compute stream, or of what it waited for
        self.ready = 0.0  # when the next kernel can start there
        self.lanes: dict[str, tuple[float, int]] = {}  # end and row of the last activity of each other queue
        self.lanes_of: dict[str, set[str]] = {}
        self.ends: dict[str, tuple[float, int]] = {}  # and of each async op that nothing has waited for yet
        self.begins: dict[str, float] = {}  # when the communicating ones begin

    def run(self, computation: str) -> None:
        for op in self.program.computations.get(computation, ()):
            if op.action is HostAction.LAUNCH:
                self._launch(op)
            elif op.action is HostAction.START:
                self._start(op)
            elif op.action is HostAction.DONE:
                self._done(op)
            elif op.action is HostAction.LOOP:
                self._loop(op)
            elif op.action is HostAction.CALL:
                for body in op.bodies:
                    self.run(body)
            else:
                self._branch(op)

    def _launch(self, op: Op) -> None:
        self.host += self.launch.host_us * op.kernels
        start = max(self.ready + self.launch.gap_us * (op.kernels - 1), self.host - self.launch.host_us)
        cost_us, sync = self.costs.get(op.name, op.cost_us), op.is_sync
        if sync:  # it shares the links with asynchronous ones, so it runs after them
            start = max(start, self.lanes.get(COLLECTIVES, _NEVER)[0] + self.launch.gap_us)
        self.free = start + cost_us if sync else self._end(op, start, cost_us)
        row = self.rows.add(op, start, self.free - start)
        if sync:
            self.lanes[COLLECTIVES] = (self.free, row)
        self.ready = self.free + self.launch.gap_us

    def _start(self, op: Op) -> None:
        self.host += self.launch.host_us
        cost_us = self.costs.get(op.name, op.cost_us)
        reached, queued = self.free + self.launch.switch_us, self.lanes.get(op.lane, _NEVER)[0] + self.launch.gap_us
        start = max(reached, queued, self.host - self.launch.host_us)
        row = self.rows.add(op, start, cost_us)
        self.lanes[op.lane] = self.ends[op.name] = (start + cost_us, row)
        if op.stream is Stream.COMMUNICATION:
            self.begins[op.name] = start

    def _end(self, op: Op, start: float, left: float) -> float:
        """When a kernel ends that gets less done while collectives run; later ones wait for the kernel to end."""
        factor, clock = self.slower.of(product=op.kind == "matmul"), start
        if factor == 1.0:
            return clock + left
        for begin, end in sorted((begin, self.ends[name][0]) for name, begin in self.begins.items()):
            if end <= clock:
                continue
            if clock + left <= begin:
                break
            left, clock = left - max(begin - clock, 0.0), max(begin, clock)
            if left * factor <= end - clock:
                return clock + left * factor
            left, clock = left - (end - clock) / factor, end
        return clock + left

    def _done(self, op: Op) -> None:
        end, _ = self.ends.pop(op.start, (self.free, -1))
        self.begins.pop(op.start, None)
        self.ready = max(self.ready, end + self.launch.switch_us)
        self.free = max(self.free, end)

    def _wait_for_device(self) -> None:
        """The host copies a value from the device and waits for it, so it loses its lead."""
        self.host = max(self.host, self.free) + self.launch.host_us

    def _branch(self, op: Op) -> None:
        """The longest branch: which one is taken is not known before."""
        self._wait_for_device()
        best: tuple[float, str] | None = None
        for body in op.bodies:
            trial = _Device(self.program, self.launch, self.slower, False, self.costs)
            trial.run(body)
            length = max([trial.free, *(end for end, _ in trial.lanes.values())])
            if best is None or length > best[0]:
                best = (length, body)
        if best is not None:
            self.run(best[1])

    def _loop(self, op: Op) -> None:
        if op.trips <= 0 or not op.bodies:
            return
        body, number = op.bodies[0], len(self.loops)
        begin = self.free
        self.loops.append(Loop(op.name, op.trips, begin, begin, self.depth))
        self.depth += 1
        done, before, folded, folded_from, folded_to = 0, None, 0, begin, begin
        while done < op.trips:
            clock, host, rows, loops = self.free, self.host, len(self.rows), len(self.loops)
            if not op.is_counted:
                self._wait_for_device()
            self.run(body)
            done += 1
            state, period = self._state(body), self.free - clock
            steady = before is not None and _close(state, before, period)
            before = (*state, period)
            if done < op.trips and (steady or done >= MAX_ITERATIONS):
                limits = (self._until_host_late(self.host - host, period), self._until_others_change(rows, clock))
                times = min(op.trips - done, *limits) + 1
                self._repeat(rows, loops, clock, host, times)
                if times > folded and not self.expand:
                    folded, folded_from, folded_to = times, clock, self.free
                done += times - 1
        self.depth -= 1
        self.loops[number] = replace(
            self.loops[number], end_us=self.free, folded_start_us=folded_from, folded_end_us=folded_to, folded=folded
        )

    def _until_host_late(self, host_us: float, period: float) -> int:
        """Further iterations before a host that is slower than the device has lost its lead."""
        if host_us <= period + _STEADY_US:
            return sys.maxsize
        return max(int((self.free - self.host) / (host_us - period)), 0)

    def _until_others_change(self, rows: int, clock: float) -> int:
        """Iterations like the one since `clock` before something begins or ends that was issued before row `rows`."""
        period, outside = self.free - clock, [(end, row) for end, row in self.ends.values() if row < rows]
        times = [time for end, row in outside for time in (self.rows.start[row], end) if time > clock]
        return max(int((min(times) - self.free) / period), 0) if times and period > 0 else sys.maxsize

    def _state(self, body: str) -> tuple[float, ...]:
        """How far the host and the queues that the body uses are ahead of the compute stream."""
        lanes = self._lanes(body)
        ahead = [max(self.lanes[lane][0] - self.free, 0.0) for lane in sorted(lanes & self.lanes.keys())]
        return (max(self.host - self.free, 0.0), self.ready - self.free, *ahead)

    def _repeat(self, rows: int, loops: int, clock: float, host: float, times: int) -> None:
        """Let the iteration that made all from row `rows` on stand for `times` of them."""
        period = self.free - clock
        more = len(self.rows) - rows
        moved = 0
        if self.expand and len(self.rows) + more * (times - 1) <= MAX_ROWS:
            self.rows.unfold(rows, period, times)
            moved = more * (times - 1)
        else:
            self.rows.stretch(rows, clock, times)
            self.loops[loops:] = [loop.moved(clock, times) for loop in self.loops[loops:]]
        extra = period * (times - 1)
        self.host += (self.host - host) * (times - 1)
        self.free += extra
        self.ready += extra
        for table in (self.lanes, self.ends):
            for key, (end, row) in table.items():
                if row >= rows:
                    table[key] = (end + extra, row + moved)
                    if table is self.ends and key in self.begins:
                        self.begins[key] += extra

    def _lanes(self, body: str) -> set[str]:
        """Queues other than the compute stream that a computation and its callees put work on."""
        if body not in self.lanes_of:
            ops = self.program.computations.get(body, ())
            queued = [op for op in ops if op.action is HostAction.START or op.stream is Stream.COMMUNICATION]
            own = {COLLECTIVES if op.lane == "compute" else op.lane for op in queued}
            self.lanes_of[body] = own.union(*(self._lanes(called) for op in ops for called in op.bodies))
        return self.lanes_of[body]


def _close(state: tuple[float, ...], before: tuple[float, ...], period: float) -> bool:
    """Has the iteration ended as the one before did, in the same time?"""
    if len(state) + 1 != len(before):
        return False
    return all(abs(a - b) <= _STEADY_US for a, b in zip((*state, period), before, strict=True))


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
