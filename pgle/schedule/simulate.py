"""Simulate a program on a model of the device: when each instruction of a step runs, and where the
time goes.

The host issues launches in schedule order, `LaunchGaps.host_us` apart. The compute stream runs them
in order with a gap before each. An async start puts its work on another queue. The work begins when
that queue is free and the compute stream has reached the start. The done holds the compute stream
until the work has ended. Collectives that XLA left synchronous run on the compute stream itself,
after asynchronous ones that still run.

The host waits for the device if it needs a value from it: which branch to take, or whether a loop
of unknown length continues (openxla/xla `xla/backends/gpu/runtime/while_thunk.cc`). A loop of known
length needs no such wait.

A loop runs iteration by iteration until its state repeats. From then on one iteration represents
the rest, so time and memory are linear in the module, whatever the trip counts.

A kernel takes its time alone, multiplied by a contention factor while an asynchronous collective
runs. The simulated rank is the one that begins first. A collective begins when the last rank has
arrived. A wait for a collective ends the difference between both ranks. No step is shorter than the
GPU's peaks and links allow (`Program.least_us`).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, IntEnum
from functools import cached_property

import numpy as np
import numpy.typing as npt

from pgle.costs.measure.contention import DEFAULT, NONE, Factors, LaunchGaps
from pgle.costs.profile.value import Cost, Origin, costs_are
from pgle.schedule.order import Order, Wait, Waits, mover
from pgle.trace.columns import distinct
from pgle.trace.intervals import Intervals, complement, covered, join, overlap, union

ORIGINS: tuple[Origin, ...] = tuple(Origin)  # `Timeline.origin` is an index into it


class Stream(IntEnum):
    """Where an activity runs."""

    COMPUTE = 0
    COMMUNICATION = 1
    COPY = 2


@dataclass(frozen=True, slots=True)
class Loop:
    """One loop of a timeline."""

    name: str  # name of the ``while``
    trips: int  # how often the body runs
    # start_us, end_us: from the first iteration to the last
    start_us: float
    end_us: float
    depth: int = 0  # 0 for the outermost
    # folded_start_us, folded_end_us: the part where one drawn iteration represents many
    folded_start_us: float = 0.0
    folded_end_us: float = 0.0
    folded: int = 0  # how many iterations it represents; 0 if every one is drawn

    def moved(self, clock: float, times: int, shift: float = 0.0) -> Loop:
        """The loop with its times stretched `times` times from `clock` on, then shifted (µs)."""
        all_times = (
            self.start_us,
            self.end_us,
            self.folded_start_us,
            self.folded_end_us,
        )
        start, end, first, last = (
            clock + (time - clock) * times + shift for time in all_times
        )
        return replace(
            self, start_us=start, end_us=end, folded_start_us=first, folded_end_us=last
        )


@dataclass(frozen=True, slots=True)
class Breakdown:
    """Where the time of one step goes. The first four fields add up to `step_us`."""

    compute_us: float  # something computes
    exposed_communication_us: float  # collectives run and nothing computes
    exposed_copy_us: float  # only copies run
    idle_us: float  # nothing runs: launch gaps and waits
    step_us: float  # the whole step
    communication_us: float  # collectives run, hidden or not
    copy_us: float  # copies run, hidden or not

    @property
    def overlap(self) -> float:
        """Share of the communication time during which something computes; 1 without
        communication.
        """
        if self.communication_us <= 0:
            return 1.0
        return 1.0 - self.exposed_communication_us / self.communication_us


@dataclass(frozen=True, slots=True)
class StepBreakdown(Breakdown):
    """Where the time of a measured step goes. It splits the idle time of a prediction into idle
    time and other work.
    """

    other_us: float  # only work runs that belongs to no instruction


@dataclass(frozen=True, slots=True)
class Exposure:
    """One collective or copy, summed over the step."""

    name: str  # the instruction
    kind: str  # ``all-gather`` …, ``copy``
    filed_as: str  # its name when LHS ran; a profile holds its cost under this name
    duration_us: float  # all its executions together
    exposed_us: float  # the part of `duration_us` during which nothing computes
    count: int  # executions
    sync: bool  # it runs on the compute stream, nothing can hide it
    origin: Origin  # where its cost comes from


@dataclass(frozen=True)
class Timeline:
    """One step of one module: n activities in issue order.

    A loop in its steady state is *folded*: one iteration represents many. Its activities are
    stretched over the time of all these iterations. So `start_us` and `duration_us` are true on the
    clock of the step, and every sum is exact.
    """

    names: tuple[str, ...]  # instruction names
    instruction: npt.NDArray[np.int32]  # int32[n], index into `names`
    stream: npt.NDArray[np.uint8]  # uint8[n], values of `Stream`
    sync: npt.NDArray[np.bool_]  # bool[n], a collective on the compute stream
    start_us: npt.NDArray[np.float64]  # float64[n], from the start of the step
    duration_us: npt.NDArray[np.float64]  # float64[n], of all `count` executions
    count: npt.NDArray[np.int64]  # int64[n], executions that the row represents
    origin: npt.NDArray[np.uint8]  # uint8[n], index into `ORIGINS`
    # length of the step, from the start of the first activity to the end of the last
    step_us: float
    # kind of each of `names`: ``all-gather``, ``matmul``, else the opcode
    kinds: tuple[str, ...]
    # name of each of `names` when LHS ran; schedules are compared by these names
    lhs_names: tuple[str, ...]
    module: str = ""  # name of the module
    loops: tuple[Loop, ...] = ()  # the loops, in order of their start
    warnings: tuple[str, ...] = ()  # what the user should know, one line each
    # whether `step_us` is only a lower bound; `Program.lower_bound_why` says why
    lower_bound: bool = False
    order: Order | None = None  # what activities wait for; None if loops are folded

    def __len__(self) -> int:
        return len(self.instruction)

    @property
    def end_us(self) -> npt.NDArray[np.float64]:
        """float64[n], start + duration."""
        return self.start_us + self.duration_us

    def busy(self, stream: Stream) -> Intervals:
        """The times in which anything runs on one kind of stream."""
        rows = self.stream == stream
        return union(self.start_us[rows], self.end_us[rows])

    @cached_property
    def executions(self) -> npt.NDArray[np.float64]:
        """float64[len(names)], how often each of `names` runs in a step."""
        counts = np.bincount(
            self.instruction, weights=self.count, minlength=len(self.names)
        )
        return np.asarray(counts, np.float64)

    @cached_property
    def breakdown(self) -> Breakdown:
        """Where the time of the step goes."""
        compute, communication, copy = (self.busy(stream) for stream in Stream)
        return breakdown(compute, communication, copy, self.step_us)

    @cached_property
    def exposures(self) -> tuple[Exposure, ...]:
        """All collectives and copies, the most exposed first."""
        rows = np.flatnonzero(self.stream != Stream.COMPUTE)
        start_us = self.start_us[rows]
        duration_us = self.duration_us[rows]
        end_us = start_us + duration_us
        hidden_us = covered(self.busy(Stream.COMPUTE), start_us, end_us)
        found = []
        for code in distinct(self.instruction[rows]).tolist():
            of_name = np.flatnonzero(self.instruction[rows] == code)
            total_us = float(duration_us[of_name].sum())
            exposed_us = total_us - float(hidden_us[of_name].sum())
            if exposed_us <= 1e-9 * self.step_us:  # sums of floats are not exact
                exposed_us = 0.0
            first = int(rows[of_name[0]])
            count = int(self.count[rows[of_name]].sum())
            origin = ORIGINS[int(self.origin[first])]
            exposure = Exposure(
                name=self.names[code],
                kind=self.kinds[code],
                filed_as=self.lhs_names[code],
                duration_us=total_us,
                exposed_us=exposed_us,
                count=count,
                sync=bool(self.sync[first]),
                origin=origin,
            )
            found.append(exposure)
        found.sort(key=lambda item: (-item.exposed_us, -item.duration_us, item.name))
        return tuple(found)

    @property
    def estimated_share(self) -> float:
        """Share of the activity time whose cost was not measured. Costs of a profile without
        sidecar count as measured.
        """
        return self.share_of("simulated", "estimated")

    def share_of(self, *words: str) -> float:
        """Share of the activity time whose cost has one of these origins (`Origin.word`)."""
        total = float(self.duration_us.sum())
        if total <= 0:
            return 0.0
        wanted = [code for code, origin in enumerate(ORIGINS) if origin.word in words]
        return float(self.duration_us[np.isin(self.origin, wanted)].sum()) / total

    @property
    def costs_are(self) -> str:
        """The origins of its costs, in words; ``measured`` if it has no activities."""
        words = dict.fromkeys(origin.word for origin in ORIGINS)
        found = costs_are(word for word in words if self.share_of(word) > 1e-9)
        return found or "measured"


def breakdown(
    compute: Intervals, communication: Intervals, copy: Intervals, step_us: float
) -> Breakdown:
    """Where the time of the window [0, `step_us`) goes.

    Compute, exposed communication, exposed copies and idle time add up to the step, as in TraceLens
    (`gpu_event_analyser.py`).
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


COLLECTIVES = "collectives"  # the queue of asynchronous collectives


class HostAction(Enum):
    """What the host does when it reaches an instruction."""

    LAUNCH = "launch"
    START = "start"
    DONE = "done"
    LOOP = "loop"
    CALL = "call"
    BRANCH = "branch"


@dataclass(frozen=True, slots=True)
class Op:
    """One instruction that takes time or makes others run."""

    name: str  # of the instruction
    action: HostAction  # what the host does
    stream: Stream = Stream.COMPUTE  # where it spends its time
    lane: str = "compute"  # queue of the stream; activities of one queue run in order
    cost_us: float = 0.0  # per execution
    origin: Origin = Origin.MEASURED  # where the cost comes from
    kernels: float = 1.0  # launches per execution
    # its cost in the profile; None if the profile has none that counts
    cost: Cost | None = None
    kind: str = ""  # the collective (``all-gather``), ``matmul``, or the opcode
    lhs_name: str = ""  # its name when LHS ran; `name` if LHS did not rename it
    start: str = ""  # for a done, the name of the op that it waits for
    bodies: tuple[str, ...] = ()  # computations that a loop, call or branch runs
    trips: int = 1  # iterations of a loop; 1 if unknown
    is_counted: bool = True  # whether `trips` is known
    least_us: float = 0.0  # lower bound of an estimate, by the GPU's peaks and links
    # why `cost_us` is only a lower bound; empty if it is an estimate or measured
    bound_why: str = ""

    @property
    def is_sync(self) -> bool:
        """Whether it is a collective that XLA left synchronous."""
        return self.stream is Stream.COMMUNICATION and self.action is HostAction.LAUNCH


@dataclass(frozen=True)
class Program:
    """The ops of every computation that runs on its own, in schedule order."""

    entry: str  # name of the entry computation
    computations: Mapping[str, tuple[Op, ...]]  # ops by computation name
    warnings: tuple[str, ...]  # one line each
    # no schedule of these instructions can be shorter on the GPU; 0 if not computed
    least_us: float = 0.0
    # why its step is a lower bound, if neither loops nor ops are the reason; else empty
    bound_why: str = ""

    @property
    def ops(self) -> Iterator[Op]:
        """Every op, computation by computation."""
        for ops in self.computations.values():
            yield from ops

    @property
    def uncounted(self) -> tuple[str, ...]:
        """Names of the loops of unknown length. Each counts with one iteration, so the step is a
        lower bound.
        """
        return tuple(op.name for op in self.ops if not op.is_counted)

    @property
    def lower_bound_why(self) -> str:
        """Why the program's step is a lower bound; empty if it is not."""
        if self.uncounted:
            return "a loop has an unknown length"
        of_ops = (op.bound_why for op in self.ops if op.bound_why)
        return next(of_ops, self.bound_why)

    def at(self, costs: Mapping[str, float]) -> Program:
        """The program with other costs, in microseconds by name of the op."""
        computations = {
            name: tuple(
                replace(op, cost_us=costs.get(op.name, op.cost_us)) for op in ops
            )
            for name, ops in self.computations.items()
        }
        return replace(self, computations=computations)


# at most so many iterations are simulated one by one if a loop reaches no steady state
MAX_ITERATIONS = 64
MAX_ROWS = 1_000_000  # if unfolding would make more rows, loops stay folded

NO_OTHERS: Mapping[str, float] = {}

_STEADY_US = 1e-6
ROUNDING = 1e-9  # relative error of sums of floats
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
    """Simulate one step of a program.

    Args:
        launch: how fast the host launches, and the gaps between activities.
        slower: contention factors of kernels while an asynchronous collective runs.
        name: name of the module, for the timeline.
        expand_loops: draw every iteration, unless that makes more than `MAX_ROWS` rows.
        costs: microseconds by name of the op; they replace the op's own cost.
    """
    device = _Device(program, launch, slower, expand_loops, costs)
    device.run(program.entry)
    timeline = device.rows.timeline(device.loops, name, device.first)
    order = device.waits.order() if expand_loops else None
    is_possible = timeline.step_us >= program.least_us * (1 - ROUNDING)
    return replace(
        timeline,
        order=order,
        step_us=timeline.step_us if is_possible else program.least_us,
        warnings=program.warnings,
        lower_bound=bool(program.lower_bound_why),
    )


@dataclass(slots=True)
class _Columns:
    """The columns of a `Timeline` so far, and its ops. Times are microseconds from any start."""

    code: list[int] = field(default_factory=list)
    start: list[float] = field(default_factory=list)
    duration: list[float] = field(default_factory=list)
    count: list[int] = field(default_factory=list)
    ops: dict[str, tuple[int, Op]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.start)

    def add(self, op: Op, start: float, duration: float) -> int:
        """Add one execution of an op, in microseconds. Return the number of its row."""
        code, _ = self.ops.setdefault(op.name, (len(self.ops), op))
        self.code.append(code)
        self.start.append(start)
        self.duration.append(duration)
        self.count.append(1)
        return len(self.start) - 1

    def stretch(self, first: int, clock: float, times: int) -> None:
        """Stretch the rows from `first` on, one iteration that began at `clock`, to `times` such
        iterations.
        """
        for row in range(first, len(self)):
            self.start[row] = clock + (self.start[row] - clock) * times
            self.duration[row] *= times
            self.count[row] *= times

    def unfold(self, first: int, period: float, times: int) -> None:
        """Append `times` - 1 copies of the rows from `first` on, each `period` µs later."""
        once = self.start[first:]
        for again in range(1, times):
            self.start += [start + again * period for start in once]
        for column in (self.code, self.duration, self.count):
            column += column[first:] * (times - 1)

    def timeline(self, loops: Sequence[Loop], module: str, first: float) -> Timeline:
        """The timeline of all rows, with `first` as time 0."""
        ops = [op for _, op in self.ops.values()]
        code = np.array(self.code, dtype=np.int32)
        start = np.array(self.start, dtype=np.float64)
        duration = np.array(self.duration, dtype=np.float64)
        last = float((start + duration).max()) if len(start) else first
        stream_of = np.array([op.stream for op in ops], dtype=np.uint8)
        sync_of = np.array([op.is_sync for op in ops], dtype=bool)
        origin_of = np.array([ORIGINS.index(op.origin) for op in ops], dtype=np.uint8)
        count = np.array(self.count, dtype=np.int64)
        moved = tuple(loop.moved(0.0, 1, -first) for loop in loops)
        kinds = tuple(op.kind for op in ops)
        lhs_names = tuple(op.lhs_name for op in ops)
        return Timeline(
            names=tuple(self.ops),
            instruction=code,
            stream=stream_of[code],
            sync=sync_of[code],
            start_us=start - first,
            duration_us=duration,
            count=count,
            origin=origin_of[code],
            step_us=last - first,
            module=module,
            kinds=kinds,
            lhs_names=lhs_names,
            loops=moved,
        )


@dataclass(frozen=True, slots=True)
class _Begun:
    """The state of host and streams when an iteration of a loop begins."""

    clock: float  # `_Device.free`
    host: float
    issued: float
    # rows, loops, stops: how many there were before it
    rows: int
    loops: int
    stops: int


class _Device:
    """The state of host and streams. Times are microseconds from the start."""

    def __init__(
        self,
        program: Program,
        launch: LaunchGaps,
        slower: Factors,
        expand: bool,
        costs: Mapping[str, float],
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
        self.issued = 0.0  # the host's own time, without waits for the device
        self.first = 0.0  # when the first activity begins
        self.behind = launch.begin_us  # how much later the last rank reaches this point
        self.waits = Waits()
        # what the next kernel waits for, and how long after its end the kernel can start
        self.held: tuple[Wait, ...] = ()
        # end of the last activity on the compute stream, or of what this stream waited for
        self.free = 0.0
        self.ready = 0.0  # when the next kernel can start on the compute stream
        # end and row of the last activity on each other queue
        self.lanes: dict[str, tuple[float, int]] = {}
        self.lanes_of: dict[str, set[str]] = {}
        # end and row of each async op that nothing has waited for yet
        self.ends: dict[str, tuple[float, int]] = {}
        self.begins: dict[str, float] = {}  # when the collectives among them begin

    def run(self, computation: str) -> None:
        """Let the host go through the ops of a computation."""
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
        """Launch kernels or a synchronous collective on the compute stream."""
        self._issue(op.kernels)
        between = self.launch.gap_us * (op.kernels - 1)
        start = max(self.ready + between, self.host - self.launch.host_us)
        cost_us = self.costs.get(op.name, op.cost_us)
        sync = op.is_sync
        queued = start
        if sync:  # it shares links with asynchronous collectives, so it runs after them
            queued = self.lanes.get(COLLECTIVES, _NEVER)[0] + self.launch.gap_us
        self._begin(max(start, queued))
        if sync:
            start = max(start + self.behind, queued)
            self.behind = 0.0
        self.free = start + cost_us if sync else self._end(op, start, cost_us)
        held = tuple((before, lag + between) for before, lag in self.held)
        self._keep_waits(held, COLLECTIVES if sync else "", between)
        row = self.rows.add(op, start, self.free - start)
        if sync:
            self.lanes[COLLECTIVES] = (self.free, row)
        self.ready = self.free + self.launch.gap_us
        self.held = ((row, self.launch.gap_us),)

    def _begin(self, start: float) -> None:
        """Note that an activity begins, or that a collective begins to wait for the last rank."""
        self.first = min(self.first, start) if len(self.rows) else start

    def _issue(self, kernels: float) -> None:
        """Let the host launch `kernels` kernels."""
        self.host += self.launch.host_us * kernels
        self.issued += self.launch.host_us * kernels

    def _keep_waits(self, held: tuple[Wait, ...], lane: str, least_us: float) -> None:
        """Keep what the next activity waits for, if every iteration of a loop is drawn.

        Args:
            held: what the compute stream waits for.
            lane: the activity's queue; empty for kernels.
            least_us: when the activity can start if it waits for nothing.
        """
        if not self.expand:
            return
        if lane in self.lanes:
            _, last = self.lanes[lane]
            held = (*held, (last, self.launch.gap_us))
        issued_us = self.issued - self.launch.host_us
        self.waits.add(held, issued_us if held else max(issued_us, least_us))

    def _start(self, op: Op) -> None:
        """Start an asynchronous collective or copy on its queue."""
        self._issue(1)
        cost_us = self.costs.get(op.name, op.cost_us)
        reached = self.free + self.launch.switch_us
        queued = self.lanes.get(op.lane, _NEVER)[0] + self.launch.gap_us
        start = max(reached, self.host - self.launch.host_us)
        self._begin(max(start, queued))
        is_collective = op.stream is Stream.COMMUNICATION
        if is_collective:
            # It holds multiprocessors while it waits for the last rank.
            self.begins[op.name] = max(start, queued)
            start += self.behind
        start = max(start, queued)
        held = tuple((before, self.launch.switch_us) for before, _ in self.held)
        self._keep_waits(held, op.lane, self.launch.switch_us)
        row = self.rows.add(op, start, cost_us)
        self.lanes[op.lane] = self.ends[op.name] = (start + cost_us, row)

    def _end(self, op: Op, start: float, left: float) -> float:
        """When a kernel ends that runs slower while collectives run. Collectives that are not
        issued yet wait for the kernel.

        Args:
            start: when it starts.
            left: what it takes alone, in microseconds.
        """
        factor = self.slower.of(product=op.kind == "matmul")
        clock = start
        if factor == 1.0:
            return clock + left
        collectives = sorted(
            (begin, self.ends[name][0]) for name, begin in self.begins.items()
        )
        for begin, end in collectives:
            if end <= clock:
                continue
            if clock + left <= begin:
                break
            left -= max(begin - clock, 0.0)
            clock = max(begin, clock)
            if left * factor <= end - clock:
                return clock + left * factor
            left -= (end - clock) / factor
            clock = end
        return clock + left

    def _done(self, op: Op) -> None:
        """Let the compute stream wait for an asynchronous op."""
        end, row = self.ends.pop(op.start, (self.free, -1))
        if row >= 0:
            self.held = (*self.held, (row, self.launch.switch_us))
        last = self.ready + self.behind
        self.ready = max(self.ready, end + self.launch.switch_us)
        if self.begins.pop(op.start, None) is not None:
            self.behind = max(last - self.ready, 0.0)
        self.free = max(self.free, end)

    def _wait_for_device(self) -> None:
        """Let the host copy a value from the device and wait for it, so it loses its lead."""
        if self.host < self.free:
            self.host = self.free
            waited = tuple(before for before, _ in self.held)
            self.waits.stops.append((waited, self.issued))
        self._issue(1)

    def _branch(self, op: Op) -> None:
        """Run the longest branch, since nobody knows beforehand which one the program takes."""
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
        """Run a loop. Iterations that change nothing any more are repeated without running them."""
        if op.trips <= 0 or not op.bodies:
            return
        body = op.bodies[0]
        number = len(self.loops)
        begin = self.free
        self.loops.append(Loop(op.name, op.trips, begin, begin, self.depth))
        self.depth += 1
        before: tuple[float, ...] | None = None
        done = 0
        folded = 0
        folded_from = folded_to = begin
        while done < op.trips:
            begun = _Begun(
                clock=self.free,
                host=self.host,
                issued=self.issued,
                rows=len(self.rows),
                loops=len(self.loops),
                stops=len(self.waits.stops),
            )
            if not op.is_counted:
                self._wait_for_device()
            self.run(body)
            done += 1
            state = self._state(body)
            period = self.free - begun.clock
            steady = before is not None and _close(state, before, period)
            before = (*state, period)
            if done < op.trips and (steady or done >= MAX_ITERATIONS):
                limits = (
                    self._until_host_late(self.host - begun.host, period),
                    self._until_others_change(begun.rows, begun.clock),
                )
                times = min(op.trips - done, *limits) + 1
                self._repeat(begun, times)
                if times > folded and not self.expand:
                    folded, folded_from, folded_to = times, begun.clock, self.free
                done += times - 1
        self.depth -= 1
        self.loops[number] = replace(
            self.loops[number],
            end_us=self.free,
            folded_start_us=folded_from,
            folded_end_us=folded_to,
            folded=folded,
        )

    def _until_host_late(self, host_us: float, period: float) -> int:
        """How many more iterations run before a host that is slower than the device loses its
        lead.
        """
        if host_us <= period + _STEADY_US:
            return sys.maxsize
        return max(int((self.free - self.host) / (host_us - period)), 0)

    def _until_others_change(self, rows: int, clock: float) -> int:
        """How many more iterations are like the one that began at `clock`, at most.

        An async op that was issued before row `rows` may begin or end, and changes them.
        """
        period = self.free - clock
        outside = [(end, row) for end, row in self.ends.values() if row < rows]
        times = [self.rows.start[row] for _, row in outside]
        times += [end for end, _ in outside]
        later = [time for time in times if time > clock]
        if not later or period <= 0:
            return sys.maxsize
        return max(int((min(later) - self.free) / period), 0)

    def _state(self, body: str) -> tuple[float, ...]:
        """How far the host and the queues that the body uses are ahead of the compute stream."""
        lanes = self._lanes(body)
        ahead = [
            max(self.lanes[lane][0] - self.free, 0.0)
            for lane in sorted(lanes & self.lanes.keys())
        ]
        host = max(self.host - self.free, 0.0)
        return (host, self.ready - self.free, self.behind, *ahead)

    def _repeat(self, begun: _Begun, times: int) -> None:
        """Make the iteration that began at `begun` represent `times` iterations."""
        period = self.free - begun.clock
        issued = self.issued - begun.issued
        rows = begun.rows
        more = len(self.rows) - rows
        moved = 0
        if self.expand and len(self.rows) + more * (times - 1) <= MAX_ROWS:
            self.rows.unfold(rows, period, times)
            self.waits.unfold(rows, begun.stops, issued, times)
            moved = more * (times - 1)
        else:
            self.rows.stretch(rows, begun.clock, times)
            if self.expand:
                self.waits.stretch(rows, begun.issued, times)
            self.loops[begun.loops :] = [
                loop.moved(begun.clock, times) for loop in self.loops[begun.loops :]
            ]
        extra = period * (times - 1)
        self.host += (self.host - begun.host) * (times - 1)
        self.issued += issued * (times - 1)
        self.free += extra
        self.ready += extra
        later = mover(rows, moved, reach=0)
        self.held = tuple((later(row), lag) for row, lag in self.held)
        for table in (self.lanes, self.ends):
            for key, (end, row) in table.items():
                if row >= rows:
                    table[key] = (end + extra, row + moved)
                    if table is self.ends and key in self.begins:
                        self.begins[key] += extra

    def _lanes(self, body: str) -> set[str]:
        """The queues, except compute, on which a computation and its callees put work."""
        if body not in self.lanes_of:
            ops = self.program.computations.get(body, ())
            queued = [
                op
                for op in ops
                if op.action is HostAction.START or op.stream is Stream.COMMUNICATION
            ]
            found = {op.lane for op in queued}
            if "compute" in found:  # a synchronous collective, which uses the links
                found.remove("compute")
                found.add(COLLECTIVES)
            for op in ops:
                found.update(*map(self._lanes, op.bodies))
            self.lanes_of[body] = found
        return self.lanes_of[body]


def _close(state: tuple[float, ...], before: tuple[float, ...], period: float) -> bool:
    """Whether an iteration ended in the same state as the one before, in the same time.

    Args:
        before: the earlier state, with its period appended.
    """
    if len(state) + 1 != len(before):
        return False
    return all(
        abs(a - b) <= _STEADY_US for a, b in zip((*state, period), before, strict=True)
    )
