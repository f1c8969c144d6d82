"""A scheduled module as what the runtime does with it: launches, async pairs, loops, each with its cost; its bounds;
and the timeline, when each instruction runs.

Queues model XLA's streams. Asynchronous collectives share one (`kDefaultNumCommunicationStreams` is 2 only with
``--xla_gpu_experimental_enable_collective_multi_streaming``; openxla/xla `backends/gpu/runtime/execution_stream_id.h`);
sends and receives have their own, and so has each direction of copies between host and device. XLA runs asynchronous
compute on other streams too, but these share one GPU: here it takes its turn on the compute stream, since two kernels
at once get no more done than one after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum, IntEnum
from functools import cached_property

import numpy as np
import numpy.typing as npt

from pgle.costs.estimate.estimate import estimator, least_us
from pgle.costs.estimate.kernels import is_product
from pgle.costs.measure.contention import DEFAULT, LaunchGaps
from pgle.costs.profile.lookup import LookupTable
from pgle.costs.profile.value import Cost, Origin
from pgle.errors import UserError, many
from pgle.next import VERIFY
from pgle.trace.columns import distinct
from pgle.trace.intervals import Intervals, complement, covered, join, overlap, union
from pgle.xla.collectives import (
    FREE_TARGETS,
    collective_kind,
    is_done,
    is_host_copy,
    is_start,
    is_sync,
    result_shape,
    start_of,
)
from pgle.xla.hlo.module import HOST_MEMORY_SPACE, Instruction, Module, trip_count
from pgle.xla.targets import Hardware

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
    kind: str = ""  # the collective (``all-gather``), ``matmul``, or the opcode
    lhs_name: str = ""  # of a collective, its name when LHS ran; else `name`
    start: str = ""  # of a done, the name of the op it waits for
    bodies: tuple[str, ...] = ()  # of loops, calls and branches, the computations
    trips: int = 1  # of a loop; 1 if unknown
    is_counted: bool = True  # of a loop, whether `trips` is known
    least_us: float = 0.0  # what peaks and links of the GPU allow, per execution

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
    least_us: float = 0.0  # no schedule of these instructions can be shorter on the GPU

    @property
    def uncounted(self) -> tuple[str, ...]:
        """Loops of unknown length. One iteration of each is counted, so a step of the program is a lower bound."""
        return tuple(op.name for ops in self.computations.values() for op in ops if not op.is_counted)


def read_program(
    module: Module,
    costs: Mapping[str, Cost],
    hardware: Hardware,
    kernels: Mapping[str, float] = {},
) -> Program:
    """What the runtime does with a scheduled module.

    Args:
        costs: by the name that LHS looks up: a collective by its start.
        hardware: the GPU, for estimates of what has no cost, and for bounds.
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
    least_us = _Bounds(module, found, lambda op: op.least_us, 0.0, shares_links=True).of(module.entry)
    return replace(found, warnings=tuple(warnings), least_us=least_us)


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
        lhs_name, found = self._cost(instruction)
        if found is not None and found.is_valid:
            cost_us, origin = found.cost_us, found.origin
        else:
            cost_us, origin = self.estimate(instruction), Origin.ESTIMATED
        guessed = origin is Origin.ESTIMATED  # where hosts end was perhaps another for a measured one
        least = least_us(self.module, instruction, self.hardware, hosts=guessed)
        cost_us = max(cost_us, least) if guessed else cost_us
        return Op(instruction.name, action, stream, lane, cost_us, origin, kernels, kind, lhs_name, least_us=least)

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


def kind_of(module: Module, instruction: Instruction) -> str:
    """What to call an instruction in a picture: the collective, ``matmul``, or the opcode of what it runs."""
    kind = collective_kind(module, instruction)
    if kind is not None:
        return kind
    if is_product(module, instruction):
        return "matmul"
    return (module.wrapped(instruction) or instruction).opcode.removesuffix("-start")


def ceiling(
    module: Module,
    program: Program,
    launch: LaunchGaps = DEFAULT,
    breakdown: Breakdown | None = None,
    slower: float = 1.0,
) -> float:
    """A lower bound of the step of any schedule of a module, in microseconds; XLA need not be able to reach it.

    A loop's iterations follow each other, and the loop is compute to its surroundings.

    Args:
        breakdown: of a schedule of the module: hiding can save what it exposes, not the time in which nothing runs.
        slower: times as long as alone that kernels take at least while they hide a collective: of a hidden microsecond
            1 / `slower` is saved.
    """
    bound = _Bounds(module, program, lambda op: op.cost_us, launch.gap_us).of(program.entry)
    if breakdown is None:
        return bound
    return max(bound, breakdown.step_us - breakdown.exposed_communication_us / slower - breakdown.exposed_copy_us)


@dataclass
class _Bounds:
    """The bounds of a program's computations, each found once."""

    module: Module  # what the program was read from
    program: Program
    cost: Callable[[Op], float]  # microseconds of one execution of an op
    gap_us: float  # before each kernel
    shares_links: bool = False  # collectives and transfers between two devices have the same links
    known: dict[str, float] = field(default_factory=dict)
    queues: dict[str, Mapping[str, float]] = field(default_factory=dict)

    def of(self, name: str) -> float:
        """The bound of one computation with all that it calls."""
        if name in self.known:
            return self.known[name]
        ops = {op.name: op for op in self.program.computations.get(name, ())}
        inner = {op.name: self._inner_us(op) for op in ops.values() if op.bodies}
        compute = sum(inner.values())
        compute += sum(
            self.cost(op) + self.gap_us * op.kernels
            for op in ops.values()
            if op.stream is Stream.COMPUTE and op.action is HostAction.LAUNCH
        )
        queues = self._queued(name)
        copy = max((us for lane, us in queues.items() if lane.startswith("copy")), default=0.0)
        pairs = max(queues.get("send", 0.0), queues.get("recv", 0.0))
        collectives = queues.get(COLLECTIVES, 0.0)
        links = collectives + pairs if self.shares_links else max(collectives, pairs)
        chain = _longest_chain(self.module, name, ops, {**{op.name: self.cost(op) for op in ops.values()}, **inner})
        self.known[name] = max(compute - self.gap_us, links, copy, chain)
        return self.known[name]

    def _inner_us(self, op: Op) -> float:
        bodies = [self.of(body) for body in op.bodies]
        return max(bodies, default=0.0) if op.action is HostAction.BRANCH else sum(bodies) * op.trips

    def _queued(self, name: str) -> Mapping[str, float]:
        """Time of each queue except compute, loops included; branches do not count, since another may be taken."""
        if name in self.queues:
            return self.queues[name]
        found: dict[str, float] = {}
        for op in self.program.computations.get(name, ()):
            if op.stream is not Stream.COMPUTE:
                lane = COLLECTIVES if op.lane == "compute" else op.lane
                found[lane] = found.get(lane, 0.0) + self.cost(op)
            for body in op.bodies if op.action is not HostAction.BRANCH else ():
                for lane, us in self._queued(body).items():
                    found[lane] = found.get(lane, 0.0) + us * op.trips
        self.queues[name] = found
        return found


def _longest_chain(module: Module, name: str, ops: Mapping[str, Op], us: Mapping[str, float]) -> float:
    """Longest path through operands and control dependencies, without launch gaps; `us` by op."""
    computation = module.computations.get(name)
    finish: dict[str, float] = {}
    arrival: dict[str, float] = {}  # of what an async start began
    for item in computation.instructions if computation is not None else ():
        ready = max((finish.get(other, 0.0) for other in (*item.operands, *item.control_predecessors)), default=0.0)
        op = ops.get(item.name)
        if op is None:
            finish[item.name] = ready
        elif op.action is HostAction.START:
            finish[item.name], arrival[item.name] = ready, ready + us[op.name]
        elif op.action is HostAction.DONE:
            finish[item.name] = max(ready, arrival.get(op.start, 0.0))
        else:
            finish[item.name] = ready + us[op.name]
    return max([*finish.values(), *arrival.values()], default=0.0)
