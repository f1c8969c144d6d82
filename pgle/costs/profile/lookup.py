"""Which cost XLA looks up for each instruction: a row per instruction that needs a cost, with the
names that XLA tries.

The rows tell which cost of a profile XLA finds, and what XLA assumes without one. They also tell
under which name to file the time of a traced instruction. Coverage and the simulator look costs up
here, and refuse costs that belong to another opcode or shape.

XLA looks a cost up by the name that the instruction had when LHS ran. Compute instructions keep
that name. Collectives may lose it: newer XLA renames synchronous ones, and a generic
``async-start`` runs under the name of the operation that it wraps. The ``reduce.N`` kernel of a
fusion and a ``.remat`` copy count as time of the instruction that they belong to.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from pgle.costs.profile.value import (
    Cost,
    CostKind,
    Origin,
    Profile,
    effective_costs,
    likely_kind,
    strip_remat,
)
from pgle.trace.columns import Flags, Ints
from pgle.xla.async_opcodes import is_done, is_start
from pgle.xla.async_pairs import result_shape, start_of
from pgle.xla.collectives import collective_kind
from pgle.xla.hlo.module import Instruction, Module, Shape, value_of_many
from pgle.xla.host_copies import is_host_copy
from pgle.xla.lhs_names import lhs_names
from pgle.xla.owners import loops, owner
from pgle.xla.vendors import is_modelled

if TYPE_CHECKING:
    from pgle.trace.table import Device, Trace


@value_of_many
class LookupRow:
    """An instruction that needs a cost."""

    name: str  # the name when LHS ran
    # the names that XLA looks up, in this order; empty if they are unknown
    accepted: tuple[str, ...]
    # the name to write a cost under. For an asynchronous fusion it is the wrapped one: XLA counts a
    # cost under the start's name twice, as latency and as time on the compute stream.
    filed_as: str
    kind: CostKind  # what the scheduler does with it
    opcode: str  # for a collective, the wrapped opcode (``all-gather``)
    # result shape as profiles state it; for a collective, the shape of the wrapped operation
    shape: str
    other_shapes: tuple[str, ...]  # other shapes that profiles may state for it
    executions: int  # per execution of the module; loops of unknown length count once
    is_counted: bool  # False if the length of a loop around it is unknown
    # True if XLA does not need its cost: copies, whose names change after LHS, and loop conditions
    # that LHS does not schedule
    is_optional: bool
    # replica groups of a collective; empty means all devices
    groups: tuple[tuple[int, ...], ...]
    instruction: Instruction  # the instruction in the module that it was read from

    def find(self, costs: Mapping[str, Cost]) -> Cost | None:
        """Return the cost that XLA finds in the result of `effective_costs`; None if it finds
        none.
        """
        return next((costs[name] for name in self.accepted if name in costs), None)

    def cost(self, cost_us: float, origin: Origin) -> Cost:
        """Return a cost for this instruction, in the form that a profile stores. It has no
        samples.
        """
        return Cost(
            self.filed_as,
            cost_us,
            kind=self.kind,
            opcode=self.opcode,
            shape=self.shape,
            origin=origin,
        )

    def differs(self, cost: Cost) -> bool:
        """Whether a cost states another opcode or shape than the instruction has. XLA uses such a
        cost nevertheless.
        """
        if cost.opcode not in ("", self.opcode, self.instruction.opcode):
            return True
        return (
            bool(cost.shape)
            and cost.shape != self.shape
            and cost.shape not in self.other_shapes
        )


@dataclass(frozen=True)
class LookupTable:
    """The costs that XLA looks up for one module."""

    final: Module  # the final module; the module as LHS saw it also works
    # the module as LHS saw it, from a schedule dump of this or another compilation of the program;
    # None if there is no dump
    lhs_module: Module | None = None

    @property
    def module(self) -> Module:
        """The module of `rows`: the one that LHS saw, or `final` if that is unknown."""
        return self.lhs_module or self.final

    @cached_property
    def rows(self) -> Mapping[str, LookupRow]:
        """The instructions that need a cost, by name when LHS ran."""
        if self.lhs_module is not None:
            return {row.name: row for row in _RowMaker(self.lhs_module).all()}
        found: dict[str, LookupRow] = {}
        for row in self._final_rows.all(self._renamed):
            if row.name == row.instruction.name or row.name not in found:
                # any other row is a copy made by rematerialisation
                found[row.name] = replace(row, accepted=()) if _is_renamed(row) else row
        return found

    @property
    def ambiguous(self) -> tuple[str, ...]:
        """Plain collectives without a scheduling name. Their names when LHS ran are unknown."""
        return tuple(name for name, row in self.rows.items() if not row.accepted)

    @cached_property
    def run_time_names(self) -> Mapping[str, str]:
        """Run-time name → name when LHS ran, for collectives whose two names differ."""
        return {
            run_time: name
            for run_time, name in self._renamed.items()
            if run_time != name
        }

    def costs(self, profile: Profile) -> dict[str, Cost]:
        """Return the cost that XLA finds in a profile for each row, by row name. Rows without a
        cost are left out.
        """
        return self.find(effective_costs(profile, self.final.fingerprint))

    def find(self, costs: Mapping[str, Cost]) -> dict[str, Cost]:
        """Do the same as `costs`, from the result of `effective_costs` for this module."""
        return {
            name: cost
            for name, row in self.rows.items()
            if (cost := row.find(costs)) is not None
        }

    def lacking(self, found: Mapping[str, Cost]) -> dict[str, Cost | None]:
        """Return the rows without a cost of their own, by name: None, or the wrong cost that XLA
        takes.

        Optional rows appear only if they have a wrong cost.

        Args:
            found: the result of `find`.
        """
        own = {
            name
            for name, cost in found.items()
            if cost.is_valid and not self.rows[name].differs(cost)
        }
        lost = {name: found.get(name) for name in self.rows if name not in own}
        return {
            name: cost
            for name, cost in lost.items()
            if cost is not None or not self.rows[name].is_optional
        }

    def row_of(self, run_time_name: str) -> LookupRow | None:
        """Return the row that the time of a run-time name belongs to; None if the final module
        lacks the name.

        Times inside a fusion or an asynchronous computation belong to the instruction that holds
        it. Times of a done belong to its start. Branches and calls hold instructions that `rows`
        lacks.
        """
        owning = owner(self.final, run_time_name)
        if owning is None:
            return None
        item = self.final.instructions[owning]
        item = (start_of(self.final, item) or item) if is_done(item) else item
        name = (
            self._renamed.get(run_time_name)
            or self._renamed.get(item.name)
            or strip_remat(item.name)
        )
        return self._final_rows.row(item, name)

    @cached_property
    def consulted(self) -> frozenset[str]:
        """Every name that XLA looks up in scheduled computations.

        XLA looks up instructions of every opcode, except the dones of collectives.
        """
        names: set[str] = set()
        for item in _scheduled_instructions(self.module):
            is_collective_done = is_done(item) and collective_kind(self.module, item)
            if not is_collective_done:
                names.update(accepted_names(self.module, item))
        if self.lhs_module is None:
            names -= self.run_time_names.keys()
        for row in self.rows.values():
            names.update(row.accepted)
        return frozenset(names)

    @cached_property
    def _renamed(self) -> Mapping[str, str]:
        return (
            {}
            if self.final is self.lhs_module
            else lhs_names(self.final, self.lhs_module)
        )

    @cached_property
    def _final_rows(self) -> _RowMaker:
        return _RowMaker(self.final)


def _scheduled_instructions(module: Module) -> Iterator[Instruction]:
    """Yield the instructions of all scheduled computations, in order."""
    for name in module.scheduled:
        yield from module.computations[name].instructions


def _is_renamed(row: LookupRow) -> bool:
    """Whether the module does not tell the name that a plain collective had when LHS ran."""
    plain = row.kind is CostKind.COLLECTIVE and row.opcode == row.instruction.opcode
    return (
        plain
        and not row.instruction.scheduling_name
        and row.opcode not in ("send", "recv")
    )


def cost_kind(module: Module, instruction: Instruction) -> CostKind:
    """Return what the scheduler does with the cost of an instruction."""
    if collective_kind(module, instruction) is not None:
        return CostKind.COLLECTIVE
    if instruction.opcode == "copy-start" or (
        instruction.opcode == "async-start" and is_host_copy(module, instruction)
    ):
        return CostKind.COPY
    return CostKind.COMPUTE


NO_OPS = frozenset(
    (
        "get-tuple-element",
        "bitcast",
        "constant",
        "parameter",
        "tuple",
        "partition-id",
        "replica-id",
        "optimization-barrier",
        "opt-barrier",
    )
)
"""Opcodes that the PGLE accuracy checker never reports as missing
(`gpu_latency_hiding_scheduler.cc`).
"""


def schedulable(module: Module) -> tuple[Instruction, ...]:
    """Return the instructions that need a cost.

    They are all instructions of scheduled computations, except no-ops, loops, command buffers and
    dones. XLA's accuracy checker reports the same ones as missing, with two exceptions. It never
    reports copies, and it reports dones of asynchronous fusions, which cost nothing. Instructions
    in `unscheduled_conditions` may have a cost but do not need one.
    """
    scheduled = set(module.scheduled)

    def wants_cost(item: Instruction) -> bool:
        if item.opcode == "while" or item.opcode in NO_OPS:
            return False
        if item.opcode.endswith(("-done", "-update")):
            return False
        is_command_buffer = item.opcode == "call" and scheduled.issuperset(item.called)
        return not is_command_buffer

    return tuple(filter(wants_cost, _scheduled_instructions(module)))


def unscheduled_conditions(module: Module) -> frozenset[str]:
    """Return the loop conditions that LHS does not schedule because they hold nothing asynchronous.

    XLA's accuracy checker looks up the costs of their instructions, but no schedule depends on
    them. A loop of known length does not even run its condition. If a condition holds a collective,
    LHS schedules it like a body.
    """
    found: set[str] = set()
    for item in module.walk():
        if item.opcode == "while":
            found.update(item.called[1:2])  # the body comes first, then the condition

    def is_synchronous(condition: str) -> bool:
        return not any(
            is_start(item) or collective_kind(module, item) is not None
            for item in module.computations[condition].instructions
        )

    return frozenset(filter(is_synchronous, found.intersection(module.scheduled)))


def accepted_names(lhs_module: Module, instruction: Instruction) -> tuple[str, ...]:
    """Return the names that XLA looks up for an instruction, in this order: its own, then the name
    of the operation that an async-start wraps.
    """
    wrapped = (
        lhs_module.wrapped(instruction) if instruction.opcode == "async-start" else None
    )
    return (instruction.name,) if wrapped is None else (instruction.name, wrapped.name)


class _RowMaker:
    """Makes the rows of one module. Values that many instructions share are computed once."""

    def __init__(self, module: Module) -> None:
        self.module = module
        self.conditions = unscheduled_conditions(module)
        self.trips: dict[str, tuple[int, bool]] = {}
        self.texts: dict[int, str] = {}

    def all(self, names: Mapping[str, str] | None = None) -> Iterator[LookupRow]:
        """Yield the rows of all instructions that need a cost.

        Args:
            names: name in a final module → name when LHS ran; None if the module is as LHS saw it.
        """
        for item in schedulable(self.module):
            yield self.row(
                item,
                item.name
                if names is None
                else names.get(item.name) or strip_remat(item.name),
            )

    def row(self, item: Instruction, name: str) -> LookupRow:
        """Return the row of an instruction whose name was `name` when LHS ran."""
        inner = self.module.operation(item)
        collective = collective_kind(self.module, item)
        accepted = (name, *accepted_names(self.module, item)[1:])
        executions, is_counted = self._executions(item)
        result = self._text(result_shape(self.module, item))
        wrapped = self._text(inner.shape)
        shape = result if collective else wrapped
        other_shapes = {result, wrapped, self._text(item.shape)} - {shape}
        opcode = collective or inner.opcode
        is_optional = opcode == "copy" or item.computation in self.conditions
        filed_as = name if collective else strip_remat(accepted[-1])
        kind = cost_kind(self.module, item)
        groups = inner.replica_groups or item.replica_groups
        return LookupRow(
            name=name,
            accepted=accepted,
            filed_as=filed_as,
            kind=kind,
            opcode=opcode,
            shape=shape,
            other_shapes=tuple(other_shapes),
            executions=executions,
            is_counted=is_counted,
            is_optional=is_optional,
            groups=groups,
            instruction=item,
        )

    def _executions(self, item: Instruction) -> tuple[int, bool]:
        if item.computation not in self.trips:
            counts = [count for _, count in loops(self.module, item.name)]
            self.trips[item.computation] = (
                prod(count or 1 for count in counts),
                None not in counts,
            )
        return self.trips[item.computation]

    def _text(self, shape: Shape) -> str:
        if id(shape) not in self.texts:  # readers make one object of equal shapes
            self.texts[id(shape)] = str(shape)
        return self.texts[id(shape)]


@dataclass
class _FiledName:
    """A name to file costs under, with the traced names that belong to it."""

    cost: Cost  # the cost's known fields, before it is measured
    row: LookupRow | None  # None without HLO
    # executions per execution of the module, by instruction; 0 if unknown
    executions: dict[str, int] = field(default_factory=dict)

    def count(self, row: LookupRow | None) -> None:
        """Record how often the instruction of one traced name runs."""
        if row is None:
            self.executions[""] = 0
        elif row.is_counted:
            self.executions[row.instruction.name] = row.executions
        else:
            self.executions[row.instruction.name] = 0

    @property
    def owner(self) -> str:
        """The name of the instruction in the final module; empty without HLO."""
        return "" if self.row is None else self.row.instruction.name

    @property
    def groups(self) -> tuple[tuple[int, ...], ...]:
        """The replica groups of a collective; empty means all devices."""
        return () if self.row is None else self.row.groups

    @property
    def occurrences(self) -> int:
        """Executions of all rematerialised copies per execution of the module; 0 if one is
        unknown.
        """
        counts = self.executions.values()
        return sum(counts) if all(counts) else 0


LOW_US, MEDIUM_US, HIGH_US = 1.0, 1000.0, 5000.0
"""XLA's T-shirt sizes (``kLowCost``, ``kMediumCost``, ``kHighCost``). Under a profile XLA reads
them as microseconds.

Source: openxla/xla `xla/service/profile_guided_latency_estimator.cc` and
`gpu_latency_hiding_scheduler.cc`. The tests compare them with jaxlib 0.10.2 and 0.12.0.1.
"""

# what XLA assumes for the costs that a profile lacks
T_SHIRT_SIZES, LIGHT_SPEED = (
    "T-shirt sizes",
    "speed-of-light model",
)


def default_us(module: Module, instruction: Instruction) -> float:
    """Return the time in µs that XLA's T-shirt sizes give an instruction without a cost."""
    opcode = instruction.opcode
    if opcode in ("send", "recv"):
        return 10 * HIGH_US if opcode == "send" else MEDIUM_US
    if is_start(instruction) or collective_kind(module, instruction) is not None:
        # a collective that is synchronous now was a start when LHS ran
        return HIGH_US
    if opcode == "fusion":
        return {"kLoop": MEDIUM_US, "kOutput": HIGH_US}.get(
            instruction.fusion_kind, LOW_US
        )
    return {"custom-call": MEDIUM_US, "convolution": HIGH_US}.get(opcode, LOW_US)


def fallback_of(module: Module) -> str:
    """Return what XLA assumes for the gaps of a module.

    It asks its speed-of-light model for GPUs from Hopper on (jaxlib 0.10.2 and newer), else it
    takes constants.
    """
    return LIGHT_SPEED if is_modelled(module.architecture) else T_SHIRT_SIZES


# looked up once: an enum member takes as long to look up as all other work on a name
_LOOP = CostKind.LOOP
_NEVER_A_COST = {
    "while",
    "conditional",
    "call",
    "get-tuple-element",
    "tuple",
    "bitcast",
    "parameter",
    "constant",
}


FiledLoop = tuple[Cost, list[int]]
"""A loop of the entry computation, and the instructions that run in it, as indices into
`Trace.instructions`. Its cost covers all its iterations.
"""


@dataclass(frozen=True, eq=False)
class Naming:
    """Maps the instruction names of a trace to the names under which one program's costs are
    filed.
    """

    # int32[len(trace.instructions)], index into `filed`; -1 if the name is not a cost of this
    # program
    target: npt.NDArray[np.int32]
    # the costs to measure, each with its name and the other fields that are known before
    filed: tuple[Cost, ...]
    # for each of `filed`, the instruction of the final module that the time belongs to; empty
    # without HLO
    owners: tuple[str, ...]
    # for each of `filed`, occurrences per execution of the module, summed over rematerialised
    # copies; 0 if unknown
    occurrences: tuple[int, ...]
    # for each of `filed`, the replica groups of a collective; empty means all devices
    groups: tuple[tuple[tuple[int, ...], ...], ...]
    # traced names that get no cost, by reason
    left_out: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    loops: tuple[FiledLoop, ...] = ()  # outermost loops, by name; empty without HLO

    @cached_property
    def communicates(self) -> Flags:
        """bool[max(names, 1)]: True for names of collectives."""
        return np.array(
            [item.kind == CostKind.COLLECTIVE for item in self.filed] or [False]
        )

    @cached_property
    def iterations(self) -> npt.NDArray[np.int32]:
        """int32[max(names, 1)]: `occurrences`; 0 if unknown. Launches with nothing in between then
        count as one.
        """
        return np.array(self.occurrences or [0], dtype=np.int32)

    @property
    def collective_instructions(self) -> Flags:
        """bool[len(trace.instructions)]: True for traced names of the program's collectives."""
        return (self.target >= 0) & self.communicates[self.target]

    @property
    def instruction_iterations(self) -> Ints:
        """int64[len(trace.instructions)]: how often each runs per execution of its module; 0 if
        unknown.
        """
        return np.where(self.target >= 0, self.iterations[self.target], 0).astype(
            np.int64
        )


def name_instructions(
    trace: Trace,
    codes: Sequence[int],
    hlo: Module | None,
    lhs_module: Module | None = None,
) -> Naming:
    """Decide where the time of each instruction name of a program goes.

    Args:
        codes: the instructions that the program ran, as indices into `Trace.instructions`,
            ascending.
        hlo: the program's final module. Without it, each name is filed unchanged and its kind is
            guessed.
        lhs_module: the module as LHS saw it, if there is a schedule dump.
    """
    names: dict[str, _FiledName] = {}
    numbers: dict[str, int] = {}
    left_out: dict[str, list[str]] = {}
    target = np.full(len(trace.instructions), -1, dtype=np.int32)
    table = None if hlo is None else LookupTable(hlo, lhs_module)
    for code in codes:
        traced = trace.instructions[code]
        found = _file_by_guess(traced) if table is None else _file(table, traced)
        if isinstance(found, str):
            left_out.setdefault(found, []).append(traced)
            continue
        cost, row = found
        name = names.setdefault(cost.name, _FiledName(cost, row))
        if name.cost.trace_name and not cost.trace_name:
            name.cost = cost
            name.row = row
        name.count(row)
        target[code] = numbers.setdefault(cost.name, len(numbers))
    filed = names.values()
    reasons = {reason: tuple(traced) for reason, traced in left_out.items()}
    loops = () if hlo is None else _loops(trace, codes, hlo)
    return Naming(
        target=target,
        filed=tuple(name.cost for name in filed),
        owners=tuple(name.owner for name in filed),
        occurrences=tuple(name.occurrences for name in filed),
        groups=tuple(name.groups for name in filed),
        left_out=reasons,
        loops=loops,
    )


def _loops(trace: Trace, codes: Sequence[int], module: Module) -> tuple[FiledLoop, ...]:
    """Return the outermost loops, each with the instructions that run inside it."""
    found: dict[str, list[int]] = {}
    for code in codes:
        owning = owner(module, trace.instructions[code])
        around = () if owning is None else loops(module, owning)
        if around and module.instructions[around[0][0]].computation == module.entry:
            found.setdefault(around[0][0], []).append(code)
    return tuple(
        (
            Cost(
                name,
                0.0,
                kind=_LOOP,
                opcode="while",
                shape=str(module.instructions[name].shape),
            ),
            found[name],
        )
        for name in sorted(found)
    )


def _file_by_guess(name: str) -> tuple[Cost, None] | str:
    if name.startswith("command_buffer"):
        return "command buffer"
    kind = likely_kind(name)
    if kind is _LOOP:
        return "control flow"
    bare = strip_remat(name)
    return Cost(bare, 0.0, kind=kind, trace_name="" if bare == name else name), None


def _file(table: LookupTable, name: str) -> tuple[Cost, LookupRow] | str:
    """Return the cost to which the time of a traced name goes, with its row; or the reason why
    there is none.
    """
    if name.startswith("command_buffer"):
        return "command buffer"
    row = table.row_of(name)
    if row is None:
        return "not in the HLO module"
    if row.instruction.opcode in _NEVER_A_COST:
        return "control flow"
    cost = row.cost(0.0, Origin.MEASURED)
    return (cost if cost.name == name else cost._replace(trace_name=name)), row


def group_of_device(naming: Naming, devices: Sequence[Device]) -> Ints:
    """Return int64[names, devices]: the replica group of each device, for each collective; 0 if
    unknown.
    """
    table = np.zeros((max(len(naming.filed), 1), max(len(devices), 1)), dtype=np.int64)
    ids = global_ids(naming, devices)
    for row, groups in enumerate(naming.groups if ids else ()):
        group_of_id: dict[int, int] = {}
        for index, group in enumerate(groups):
            group_of_id.update(dict.fromkeys(group, index))
        table[row] = [group_of_id.get(number, 0) for number in ids]
    return table


def global_ids(naming: Naming, devices: Sequence[Device]) -> list[int]:
    """Return JAX's global ids of the devices; empty if one is unknown."""
    known = [device.global_id for device in devices if device.global_id is not None]
    if len(known) == len(devices):
        return known
    is_lone_process = len({device.process for device in devices}) == 1
    if known or not is_lone_process:
        return []
    # JAX numbers the devices of a lone process as CUDA does
    ordinals = [device.ordinal for device in devices]
    members: set[int] = set()
    for groups in naming.groups:
        members.update(*groups)
    return ordinals if members == set(ordinals) else []
