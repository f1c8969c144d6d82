"""A scheduled module as what the runtime does with it: launches, async pairs, loops, each with its cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from pgle.costs.estimate.products import is_product
from pgle.costs.fit.fill import Estimate
from pgle.costs.fit.lookup import LookupTable
from pgle.costs.profile.value import Cost, Origin
from pgle.schedule.timeline import Stream
from pgle.xla.collectives import collective_kind, is_done, is_host_copy, is_start, is_sync, start_of
from pgle.xla.hlo.module import Instruction, Module, trip_count
from pgle.xla.hlo.names import FREE_TARGETS

FREE = frozenset(
    ("parameter", "constant", "get-tuple-element", "tuple", "bitcast", "after-all", "add-dependency", "opt-barrier",
     "optimization-barrier", "domain", "get-dimension-size", "async-update")
)  # fmt: skip
"""Opcodes that launch nothing on XLA:GPU."""

COLLECTIVES = "collectives"  # the queue of asynchronous collectives


class Action(Enum):
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
    action: Action  # what the host does
    stream: Stream = Stream.COMPUTE  # where its time is spent
    lane: str = "compute"  # queue of the stream; activities of one queue run in order
    cost_us: float = 0.0  # per execution
    origin: Origin = Origin.MEASURED  # where the cost comes from
    kernels: float = 1.0  # launches
    kind: str = ""  # the collective (``all-gather``), ``matmul``, or the opcode
    lhs_name: str = ""  # of a collective, its name when LHS ran; else `name`
    start: str = ""  # of a done, the name of the op it waits for
    bodies: tuple[str, ...] = ()  # of loops, calls and branches, the computations
    trips: int = 1  # of a loop

    @property
    def is_sync(self) -> bool:
        """Whether it is a collective that XLA left synchronous."""
        return self.stream is Stream.COMMUNICATION and self.action is Action.LAUNCH


@dataclass(frozen=True)
class Program:
    """The ops of every computation that runs on its own, in schedule order."""

    entry: str  # name of the entry computation
    computations: Mapping[str, tuple[Op, ...]]  # ops by computation name
    missing: tuple[str, ...]  # instructions without a cost
    warnings: tuple[str, ...]  # one line each


def read_program(
    module: Module,
    costs: Mapping[str, Cost],
    estimate: Estimate | None = None,
    kernels: Mapping[str, float] | None = None,
) -> Program:
    """What the runtime does with a scheduled module.

    Args:
        module: scheduled: final, or as LHS saw it.
        costs: by the name that LHS looks up: a collective by its start.
        estimate: for what has none; without, such instructions count as nothing and are listed.
        kernels: launches of one run of an instruction where that is not one, by its name.
    """
    reader = _Reader(module, costs, estimate, kernels or {})
    reader.read(module.entry)
    warnings = []
    if reader.uncounted:
        first, *more = reader.uncounted
        loops = f"{first} and {len(more)} more loop{'s' * (len(more) > 1)}" if more else first
        warnings.append(f"{loops}: trip count unknown, one iteration is assumed")
    if reader.others:
        warnings.append(
            f"left out of the profile's costs, since that name is another opcode or shape here: {len(reader.others)} "
            f"(first {reader.others[0]}); is it of this program? 'pgle verify' shows what matches"
        )
    return Program(module.entry, reader.computations, tuple(reader.missing), tuple(warnings))


class _Reader:
    """Walks from the entry into bodies, branches and calls."""

    def __init__(
        self, module: Module, costs: Mapping[str, Cost], estimate: Estimate | None, kernels: Mapping[str, float]
    ) -> None:
        self.module = module
        self.costs = costs
        self.estimate = estimate
        self.kernels = kernels
        self.table = LookupTable(module)
        self.computations: dict[str, tuple[Op, ...]] = {}
        self.missing: list[str] = []
        self.others: list[str] = []
        self.uncounted: list[str] = []

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

    def _op(self, instruction: Instruction) -> Op | None:
        opcode = instruction.opcode
        if opcode in FREE or instruction.custom_call_target in FREE_TARGETS:
            return None
        if opcode == "while":
            return self._loop(instruction)
        if opcode in ("conditional", "call"):
            return Op(
                instruction.name, Action.BRANCH if opcode == "conditional" else Action.CALL, bodies=instruction.called
            )
        if is_done(instruction):
            return self._done(instruction)
        kind = collective_kind(self.module, instruction)
        if kind and is_sync(self.module, instruction):
            return self._priced(instruction, Action.LAUNCH, Stream.COMMUNICATION, "compute")
        if kind:
            lane = kind if kind in ("send", "recv") else COLLECTIVES
            return self._priced(instruction, Action.START, Stream.COMMUNICATION, lane)
        if is_start(instruction):
            copies = opcode == "copy-start" or instruction.is_host_transfer or is_host_copy(self.module, instruction)
            stream = Stream.COPY if copies else Stream.COMPUTE
            return self._priced(instruction, Action.START, stream, "copy" if copies else "async compute")
        return self._priced(instruction, Action.LAUNCH, Stream.COMPUTE, "compute")

    def _done(self, instruction: Instruction) -> Op | None:
        """A wait, unless the start ran on the compute stream itself."""
        start = start_of(self.module, instruction)
        if start is None or (collective_kind(self.module, start) and is_sync(self.module, start)):
            return None
        return Op(instruction.name, Action.DONE, start=start.name)

    def _loop(self, instruction: Instruction) -> Op:
        trips = trip_count(instruction)
        if trips is None:
            self.uncounted.append(instruction.name)
        # `called` holds condition and body; the condition of a counted loop runs on the host.
        bodies = tuple(name for name in instruction.called if not self._is_condition(name))
        return Op(instruction.name, Action.LOOP, bodies=bodies[-1:], trips=1 if trips is None else trips)

    def _is_condition(self, name: str) -> bool:
        computation = self.module.computations.get(name)
        if computation is None:
            return True
        root = next((item for item in computation.instructions if item.name == computation.root), None)
        return root is not None and root.shape.dtype == "pred" and not root.shape.dimensions

    def _priced(self, instruction: Instruction, action: Action, stream: Stream, lane: str) -> Op:
        kernels, kind = self.kernels.get(instruction.name, 1.0), kind_of(self.module, instruction)
        lhs_name, found = self._cost(instruction)
        if found is not None and found.is_sound:
            cost_us, origin = found.cost_us, found.origin
        else:
            guess = self.estimate(instruction) if self.estimate is not None else None
            if guess is None:
                self.missing.append(instruction.name)
            cost_us, origin = guess or 0.0, Origin.ESTIMATED
        return Op(instruction.name, action, stream, lane, cost_us, origin, kernels, kind, lhs_name)

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


def kind_of(module: Module, instruction: Instruction) -> str:
    """What to call an instruction in a picture: the collective, ``matmul``, or the opcode of what it runs."""
    kind = collective_kind(module, instruction)
    if kind is not None:
        return kind
    if is_product(module, instruction):
        return "matmul"
    return (module.wrapped(instruction) or instruction).opcode.removesuffix("-start")
