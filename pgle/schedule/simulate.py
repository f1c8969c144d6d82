"""A scheduled module on a model of the device: what the runtime does with each instruction, its cost, when it runs.

Queues model XLA's streams. Asynchronous collectives share one (`kDefaultNumCommunicationStreams` is 2 only with
``--xla_gpu_experimental_enable_collective_multi_streaming``; openxla/xla `backends/gpu/runtime/execution_stream_id.h`);
sends and receives have their own, and so has each direction of copies between host and device. XLA runs asynchronous
compute on other streams too, but these share one GPU: here it takes its turn on the compute stream, since two kernels
at once get no more done than one after the other.

The host issues launches in schedule order, `LaunchGaps.host_us` apart. The compute stream runs them in order with a gap
before each. An async start puts its work on another queue, where it begins when that queue is free and the compute
stream has reached the start; its done holds the compute stream until it has ended. Collectives that XLA left
synchronous run on the compute stream itself, after those under way. The host waits for the device where it needs a
value from it: which branch to take, whether a loop of unknown length continues (openxla/xla
`xla/backends/gpu/runtime/while_thunk.cc`; loops of known length run without).

A loop runs iteration by iteration until its state repeats; from then on one iteration is counted for the rest, so time
and memory are linear in the module, whatever the trip counts.

Kernels take what they take alone, times the factors of contention while an asynchronous collective runs. No step is
shorter than the GPU's peaks and links allow (`Program.least_us`).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum

import numpy as np

from pgle.costs.estimate.estimate import estimator, least_us
from pgle.costs.measure.contention import DEFAULT, NONE, Factors, LaunchGaps
from pgle.costs.profile.lookup import LookupTable
from pgle.costs.profile.value import Cost, Origin
from pgle.errors import UserError, many
from pgle.next import VERIFY
from pgle.schedule.timeline import ORIGINS, Loop, Stream, Timeline
from pgle.xla.collectives import (
    FREE_TARGETS,
    collective_kind,
    is_done,
    is_host_copy,
    is_start,
    is_sync,
    kind_of,
    result_shape,
    start_of,
)
from pgle.xla.hlo.module import HOST_MEMORY_SPACE, Instruction, Module, trip_count
from pgle.xla.targets import Hardware

FREE = frozenset(
    ("parameter", "constant", "get-tuple-element", "tuple", "bitcast", "after-all", "add-dependency", "opt-barrier",
     "optimization-barrier", "domain", "get-dimension-size", "async-update")
)  # fmt: skip
"""Opcodes that launch nothing on XLA:GPU."""

MOST_EXECUTED = 300_000  # instructions in one step, loops counted once
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
    """One instruction that does something."""

    name: str  # of the instruction
    action: HostAction  # what the host does
    stream: Stream = Stream.COMPUTE  # where its time is spent
    lane: str = "compute"  # queue of the stream; activities of one queue run in order
    cost_us: float = 0.0  # per execution
    origin: Origin = Origin.MEASURED  # where the cost comes from
    kernels: float = 1.0  # launches
    cost: Cost | None = None  # the profile's cost of it; None where it has none that counts
    kind: str = ""  # the collective (``all-gather``), ``matmul``, or the opcode
    lhs_name: str = ""  # of a collective, its name when LHS ran; else `name`
    start: str = ""  # of a done, the name of the op it waits for
    bodies: tuple[str, ...] = ()  # of loops, calls and branches, the computations
    trips: int = 1  # of a loop; 1 if unknown
    is_counted: bool = True  # of a loop, whether `trips` is known
    least_us: float = 0.0  # of an estimate, what the GPU's peaks and links allow

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
    least_us: float = 0.0  # no schedule of these instructions can be shorter on the GPU; 0 where nobody asked

    @property
    def ops(self) -> Iterator[Op]:
        """Every op, computation by computation."""
        for ops in self.computations.values():
            yield from ops

    @property
    def uncounted(self) -> tuple[str, ...]:
        """Loops of unknown length. One iteration of each is counted, so a step of the program is a lower bound."""
        return tuple(op.name for op in self.ops if not op.is_counted)

    def at(self, costs: Mapping[str, float]) -> Program:
        """The program with other costs, microseconds by op."""
        computations = {
            name: tuple(replace(op, cost_us=costs.get(op.name, op.cost_us)) for op in ops)
            for name, ops in self.computations.items()
        }
        return replace(self, computations=computations)


def read_program(
    module: Module,
    costs: Mapping[str, Cost],
    hardware: Hardware,
    kernels: Mapping[str, float] = {},
) -> Program:
    """What the runtime does with a scheduled module.

    Args:
        costs: by the name that LHS looks up: a collective by its start.
        hardware: the GPU, for estimates of what has no cost.
        kernels: launches of one run of an instruction, if not one.

    Raises:
        UserError: its calls run a few instructions millions of times.
    """
    reader = _ProgramReader(module, costs, hardware, kernels, LookupTable(module), estimator(module, hardware))
    reader.read(module.entry)
    reader.check_size(module.entry)
    found = Program(module.entry, reader.computations, ())
    warnings = []
    if found.uncounted:
        first, *more = found.uncounted
        loops = f"{first} and {many(len(more), 'more loop')}" if more else first
        warnings.append(
            f"the step is a lower bound: XLA does not know how often {loops} runs, and one iteration is counted; "
            "give the loop a constant length (jax.lax.scan, or fori_loop with constant bounds)"
        )
    if reader.others:
        warnings.append(
            f"left out of the profile's costs, since that name is another opcode or shape here: {len(reader.others)} "
            f"(first {reader.others[0]}); is it of this program? '{VERIFY}' shows what matches"
        )
    return replace(found, warnings=tuple(warnings))


@dataclass
class _ProgramReader:
    """Walks from the entry into bodies, branches and calls."""

    module: Module
    costs: Mapping[str, Cost]
    hardware: Hardware
    kernels: Mapping[str, float]
    table: LookupTable
    estimate: Callable[[Instruction], float]
    computations: dict[str, tuple[Op, ...]] = field(default_factory=dict)
    others: list[str] = field(default_factory=list)

    def read(self, name: str) -> None:
        """Fill `computations` for one computation and all it calls."""
        todo = [name]
        while todo:
            name = todo.pop()
            if name in self.computations or name not in self.module.computations:
                continue
            found = map(self._op, self.module.computations[name].instructions)
            ops = self.computations[name] = tuple(op for op in found if op is not None)
            todo.extend(body for op in ops for body in op.bodies)

    def check_size(self, entry: str) -> None:
        """Refuse calls of calls that run a few instructions millions of times; XLA flattens calls before it schedules.

        Raises:
            UserError: more than `MOST_EXECUTED` are run, most of them again and again.
        """
        executed: dict[str, int] = {}

        def count(name: str) -> int:
            if name not in executed:
                executed[name] = 0  # a computation that calls itself counts once
                ops = self.computations.get(name, ())
                executed[name] = len(ops) + sum(count(body) for op in ops for body in op.bodies)
            return executed[name]

        distinct = sum(map(len, self.computations.values()))
        if count(entry) > max(MOST_EXECUTED, 4 * distinct):
            what = f"its calls run {distinct:,} instructions {executed[entry]:,} times in one step"
            remedy = "give the module as XLA scheduled it (*after_optimizations*), where calls are flat"
            raise UserError(what, where=self.module.source, remedy=remedy)

    def _op(self, instruction: Instruction) -> Op | None:
        opcode = instruction.opcode
        if opcode in FREE or instruction.custom_call_target in FREE_TARGETS:
            return None
        if opcode == "while":
            return self._loop(instruction)
        if opcode in ("conditional", "call"):
            action = HostAction.BRANCH if opcode == "conditional" else HostAction.CALL
            return Op(instruction.name, action, bodies=instruction.called)
        if is_done(instruction):
            return self._done(instruction)
        kind = collective_kind(self.module, instruction)
        if kind and is_sync(self.module, instruction):
            return self._priced(instruction, HostAction.LAUNCH, Stream.COMMUNICATION, "compute")
        if kind:
            lane = kind if kind in ("send", "recv") else COLLECTIVES
            return self._priced(instruction, HostAction.START, Stream.COMMUNICATION, lane)
        if is_start(instruction) and is_copy(self.module, instruction):
            to_host = result_shape(self.module, instruction).memory_space == HOST_MEMORY_SPACE
            lane = "copy to host" if to_host or opcode == "send" else "copy to device"
            return self._priced(instruction, HostAction.START, Stream.COPY, lane)
        return self._priced(instruction, HostAction.LAUNCH, Stream.COMPUTE, "compute")

    def _done(self, instruction: Instruction) -> Op | None:
        """A wait, unless the start ran on the compute stream itself."""
        start = start_of(self.module, instruction)
        if start is None:
            return None
        if is_sync(self.module, start) if collective_kind(self.module, start) else not is_copy(self.module, start):
            return None
        return Op(instruction.name, HostAction.DONE, start=start.name)

    def _loop(self, instruction: Instruction) -> Op:
        trips = trip_count(instruction)
        # `called` holds condition and body; the condition of a counted loop runs on the host.
        bodies = tuple(name for name in instruction.called if not self._is_condition(name))[-1:]
        if trips is None:
            return Op(instruction.name, HostAction.LOOP, bodies=bodies, is_counted=False)
        return Op(instruction.name, HostAction.LOOP, bodies=bodies, trips=trips)

    def _is_condition(self, name: str) -> bool:
        computation = self.module.computations.get(name)
        if computation is None:
            return True
        root = next((item for item in computation.instructions if item.name == computation.root), None)
        return root is not None and root.shape.dtype == "pred" and not root.shape.dimensions

    def _priced(self, instruction: Instruction, action: HostAction, stream: Stream, lane: str) -> Op:
        kernels, kind = self.kernels.get(instruction.name, 1.0), kind_of(self.module, instruction)
        lhs_name, cost = self._cost(instruction)
        cost = cost if cost is not None and cost.is_valid else None
        cost_us, origin = (
            (self.estimate(instruction), Origin.ESTIMATED) if cost is None else (cost.cost_us, cost.origin)
        )
        least = least_us(self.module, instruction, self.hardware) if origin is Origin.ESTIMATED else 0.0
        cost_us = max(cost_us, least)
        return Op(
            instruction.name, action, stream, lane, cost_us, origin, kernels, cost, kind, lhs_name, least_us=least
        )

    def _cost(self, instruction: Instruction) -> tuple[str, Cost | None]:
        """The name when LHS ran, and the cost that XLA finds; else the one under the run-time name."""
        row = self.table.row_of(instruction.name)
        if row is None:
            return instruction.name, self.costs.get(instruction.name)
        found = row.find(self.costs) or self.costs.get(instruction.name)
        if found is not None and row.differs(found):
            self.others.append(instruction.name)
            return row.name, None
        return row.name, found


def is_copy(module: Module, start: Instruction) -> bool:
    """Whether an asynchronous start, of no collective, only moves bytes: another engine than the cores does it."""
    return start.opcode == "copy-start" or start.is_host_transfer or is_host_copy(module, start)


MAX_ITERATIONS = 64  # iterations simulated one by one at most, while a loop does not come to a steady state
MAX_ROWS = 1_000_000  # rows that unfolding loops may make; beyond it loops stay folded

NO_OTHERS: Mapping[str, float] = {}

_STEADY_US = 1e-6
ROUNDING = 1e-9  # of sums of floats
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
    is_possible = timeline.step_us >= program.least_us * (1 - ROUNDING)
    return replace(
        timeline,
        step_us=timeline.step_us if is_possible else program.least_us,
        warnings=program.warnings,
        lower_bound=bool(program.uncounted),
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
