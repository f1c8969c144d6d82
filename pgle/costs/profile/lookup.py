"""What XLA looks up: a row per instruction of a module that wants a cost, with the names it would be found by.

The one place that says which cost of a profile an instruction gets. Measuring files times by it, coverage looks for
gaps with it, the simulator takes costs through it.

XLA gives a gap, an instruction without a cost, a constant, which distorts the schedule. What fills gaps here: first the
median of measured instructions that are the same thing: opcode, shapes of result and operands, fusions, size of
the replica group. Else an estimate, times what measured instructions of the same kind cost relative to their
estimates. Filled-in costs are marked (`Cost.origin`), and the provenance says how much it is. A completed profile
gives every measured instruction the cost that it had before, read as XLA reads it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Container, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from math import prod
from statistics import median
from typing import cast

from pgle.costs.estimate.estimate import estimator
from pgle.costs.profile.value import Cost, CostKind, Origin, Profile, effective_costs, has_remat, strip_remat
from pgle.errors import some
from pgle.xla.collectives import collective_kind, group_size, is_done, is_host_copy, is_start, result_shape, start_of
from pgle.xla.hlo.module import Instruction, Module, Shape, trip_count, value_of_many
from pgle.xla.hlo.names import accepted_names, lhs_names, loops, owner, schedulable, unscheduled_conditions
from pgle.xla.targets import Hardware


@value_of_many
class LookupRow:
    """An instruction that wants a cost."""

    name: str  # when LHS ran
    accepted: tuple[str, ...]  # the names under which XLA finds a cost, in this order; empty where nobody can tell
    # the name to write a cost under. Of an asynchronous fusion the wrapped one: under the start's name XLA takes a cost
    # twice, as latency and as time on the compute stream.
    filed_as: str
    kind: CostKind  # what the scheduler does with it
    opcode: str  # of a collective the wrapped one (``all-gather``)
    shape: str  # of the result as profiles state it; of a collective, the shape of the wrapped operation
    other_shapes: tuple[str, ...]  # the other ways in which profiles state it
    executions: int  # per execution of the module; loops of unknown length count once
    is_counted: bool  # False where a loop around it is of unknown length
    # XLA does well without its cost: copies, whose names change after LHS, and conditions of loops that LHS does not
    # schedule
    is_optional: bool
    groups: tuple[tuple[int, ...], ...]  # replica groups of a collective; empty: all devices
    instruction: Instruction  # of the module that it was read from

    def find(self, costs: Mapping[str, Cost]) -> Cost | None:
        """The cost that XLA finds in what `effective_costs` gives; None where it finds none."""
        return next((costs[name] for name in self.accepted if name in costs), None)

    def cost(self, cost_us: float, origin: Origin) -> Cost:
        """A cost for it that nobody measured, as a profile files it."""
        return Cost(self.filed_as, cost_us, kind=self.kind, opcode=self.opcode, shape=self.shape, origin=origin)

    def differs(self, cost: Cost) -> bool:
        """Whether a cost is known to belong to another opcode or shape. XLA uses it all the same."""
        if cost.opcode not in ("", self.opcode, self.instruction.opcode):
            return True
        return bool(cost.shape) and cost.shape != self.shape and cost.shape not in self.other_shapes


@dataclass(frozen=True)
class LookupTable:
    """What XLA looks up for one module."""

    final: Module  # the final module; one as LHS saw it will do too
    # as LHS saw it, from a schedule dump of this or of another compilation of the program; None if absent
    lhs_module: Module | None = None

    @property
    def module(self) -> Module:
        """The module that `rows` are of: as LHS saw it where that is known."""
        return self.lhs_module or self.final

    @cached_property
    def rows(self) -> Mapping[str, LookupRow]:
        """The instructions that want a cost, by name when LHS ran."""
        if self.lhs_module is not None:
            return {row.name: row for row in _RowMaker(self.lhs_module).all()}
        found: dict[str, LookupRow] = {}
        for row in self._final_rows.all(self._renamed):
            if row.name == row.instruction.name or row.name not in found:  # else a copy made by rematerialization
                found[row.name] = replace(row, accepted=()) if _is_renamed(row) else row
        return found

    @property
    def ambiguous(self) -> tuple[str, ...]:
        """Plain collectives without scheduling name: what LHS called them is unknown."""
        return tuple(name for name, row in self.rows.items() if not row.accepted)

    @cached_property
    def run_time_names(self) -> Mapping[str, str]:
        """Run-time name → name when LHS ran, of collectives that have another name at run time."""
        return {run_time: name for run_time, name in self._renamed.items() if run_time != name}

    def costs(self, profile: Profile) -> dict[str, Cost]:
        """The cost that XLA finds for each row in a profile, by the row's name; rows without one are left out."""
        return self.find(effective_costs(profile, self.final.fingerprint))

    def find(self, costs: Mapping[str, Cost]) -> dict[str, Cost]:
        """As `costs`, of what `effective_costs` gives for this module."""
        return {name: cost for name, row in self.rows.items() if (cost := row.find(costs)) is not None}

    def row_of(self, run_time_name: str) -> LookupRow | None:
        """The row that a name in the final module belongs to; None if the module has no such name.

        Times inside a fusion or an asynchronous computation belong to the instruction that holds it, times of a done to
        its start. Branches and calls hold instructions that `rows` lacks.
        """
        owning = owner(self.final, run_time_name)
        if owning is None:
            return None
        item = self.final.instructions[owning]
        item = (start_of(self.final, item) or item) if is_done(item) else item
        name = self._renamed.get(run_time_name) or self._renamed.get(item.name) or strip_remat(item.name)
        return self._final_rows.row(item, name)

    @cached_property
    def consulted(self) -> frozenset[str]:
        """Every name that XLA looks up in scheduled computations, of any opcode but dones of collectives."""
        accepted = {name for row in self.rows.values() for name in row.accepted}
        names = {
            name
            for computation in self.module.scheduled
            for item in self.module.computations[computation].instructions
            if not (is_done(item) and collective_kind(self.module, item))
            for name in accepted_names(self.module, item)
        }
        return frozenset(accepted | (names if self.lhs_module is not None else names - self.run_time_names.keys()))

    @cached_property
    def _renamed(self) -> Mapping[str, str]:
        return {} if self.final is self.lhs_module else lhs_names(self.final, self.lhs_module)

    @cached_property
    def _final_rows(self) -> _RowMaker:
        return _RowMaker(self.final)


def _is_renamed(row: LookupRow) -> bool:
    """Whether LHS knew a plain collective by a name that the module does not tell."""
    plain = row.kind is CostKind.COLLECTIVE and row.opcode == row.instruction.opcode
    return plain and not row.instruction.scheduling_name and row.opcode not in ("send", "recv")


def cost_kind(module: Module, instruction: Instruction) -> CostKind:
    """What the scheduler does with the cost of an instruction."""
    if collective_kind(module, instruction) is not None:
        return CostKind.COLLECTIVE
    if instruction.opcode == "copy-start" or (
        instruction.opcode == "async-start" and is_host_copy(module, instruction)
    ):
        return CostKind.COPY
    return CostKind.COMPUTE


class _RowMaker:
    """Makes the rows of one module; what many instructions share is made once."""

    def __init__(self, module: Module) -> None:
        self.module = module
        self.conditions = unscheduled_conditions(module)
        self.trips: dict[str, tuple[int, bool]] = {}
        self.texts: dict[int, str] = {}

    def all(self, names: Mapping[str, str] | None = None) -> Iterator[LookupRow]:
        """The rows of all instructions that want a cost; `names` translates the names of a final module."""
        for item in schedulable(self.module):
            yield self.row(item, item.name if names is None else names.get(item.name) or strip_remat(item.name))

    def row(self, item: Instruction, name: str) -> LookupRow:
        """The row of an instruction that LHS knew by `name`."""
        inner = self.module.wrapped(item) or item
        collective = collective_kind(self.module, item)
        accepted = (name, *accepted_names(self.module, item)[1:])
        executions, is_counted = self._executions(item)
        result, wrapped = self._text(result_shape(self.module, item)), self._text(inner.shape)
        shape = result if collective else wrapped
        opcode = collective or inner.opcode
        return LookupRow(
            name=name,
            accepted=accepted,
            filed_as=name if collective else strip_remat(accepted[-1]),
            kind=cost_kind(self.module, item),
            opcode=opcode,
            shape=shape,
            other_shapes=tuple({result, wrapped, self._text(item.shape)} - {shape}),
            executions=executions,
            is_counted=is_counted,
            is_optional=opcode == "copy" or item.computation in self.conditions,
            groups=inner.replica_groups or item.replica_groups,
            instruction=item,
        )

    def _executions(self, item: Instruction) -> tuple[int, bool]:
        if item.computation not in self.trips:
            counts = [count for _, count in loops(self.module, item.name)]
            self.trips[item.computation] = prod(count or 1 for count in counts), None not in counts
        return self.trips[item.computation]

    def _text(self, shape: Shape) -> str:
        if id(shape) not in self.texts:  # readers make equal shapes once
            self.texts[id(shape)] = str(shape)
        return self.texts[id(shape)]


Estimate = Callable[[Instruction], float]
"""Microseconds per execution of an instruction, by its shapes."""

FILLED = (Origin.SAME_SHAPE, Origin.ESTIMATED)
"""Costs of these origins were filled in before: no other cost is derived from them."""

MIN_NEIGHBOURS = 3  # measured instructions of a kind that it takes to scale the estimates of that kind

CALIBRATED_ON = 300
"""Measured instructions of one kind that are estimated too, to scale the estimates; more change little."""


def fill(
    table: LookupTable, costs: Mapping[str, Cost], gaps: Collection[LookupRow], estimate: Estimate
) -> dict[str, Cost]:
    """A cost for each gap, by row name."""
    measured = [
        (row, cost.cost_us)
        for name, cost in costs.items()
        if gaps and cost.origin not in FILLED and cost.is_valid and not (row := table.rows[name]).differs(cost)
    ]
    same = _medians_of_same(table, measured, gaps)
    factor = _factors(measured, estimate)
    fills = {}
    for row in gaps:
        value = same.get(_signature(table, row)) if same else None
        if value is not None:
            fills[row.name] = row.cost(value, Origin.SAME_SHAPE)
        else:
            fills[row.name] = row.cost(estimate(row.instruction) * factor(row), Origin.ESTIMATED)
    return fills


def _medians_of_same(
    table: LookupTable, measured: Iterable[tuple[LookupRow, float]], gaps: Iterable[LookupRow]
) -> Mapping[Hashable, float]:
    """By signature, medians of measured instructions that are the same thing as some gap."""
    alike = {_outline(row) for row in gaps}  # signatures take a look into fusions: only where one may be wanted
    found: dict[Hashable, list[float]] = defaultdict(list)
    for row, cost_us in measured:
        if _outline(row) in alike:
            found[_signature(table, row)].append(cost_us)
    return {signature: median(values) for signature, values in found.items()}


def _signature(table: LookupTable, row: LookupRow) -> Hashable:
    """What two instructions share when one's measurement is good for the other."""
    group = group_size(table.module, row.instruction) if row.kind is CostKind.COLLECTIVE else 0
    return _outline(row), table.module.work(row.instruction), group


def _outline(row: LookupRow) -> Hashable:
    return row.opcode, row.shape


def _factors(measured: Iterable[tuple[LookupRow, float]], estimate: Estimate) -> Callable[[LookupRow], float]:
    """What an estimate is multiplied by: the median of measured / estimated, of the narrowest kind with enough of both.

    1 if no kind has enough.
    """
    known: dict[str, list[tuple[LookupRow, float]]] = defaultdict(list)
    for row, cost_us in measured:
        for kind in _kinds_of(row) if cost_us > 0 else ():
            known[kind].append((row, cost_us))

    @cache
    def of_kind(kind: str) -> float | None:
        sample = known[kind][:: max(len(known[kind]) // CALIBRATED_ON, 1)]
        ratios = [cost_us / guess for row, cost_us in sample if (guess := estimate(row.instruction)) > 0]
        return median(ratios) if len(ratios) >= MIN_NEIGHBOURS else None

    def factor(row: LookupRow) -> float:
        return next((found for kind in _kinds_of(row) if (found := of_kind(kind)) is not None), 1.0)

    return factor


def _kinds_of(row: LookupRow) -> tuple[str, str]:
    """The kind of an instruction, and the wider one to fall back to."""
    if row.kind is CostKind.COLLECTIVE:
        return row.opcode, "collective"
    return f"{row.opcode} {row.instruction.fusion_kind}{row.instruction.custom_call_target}".strip(), "compute"


_CONTROL = ("conditional", "call")


@dataclass(frozen=True)
class Completion:
    """A profile with its gaps filled for one module."""

    profile: Profile  # the given costs in their order, then the filled ones by name
    module: str  # name of the module
    target: str  # the hardware that was estimated for
    wanted: int  # instructions and loops of the module that take a cost
    measured: int  # of them, the ones that the given profile covers
    filled: tuple[Cost, ...]  # the new costs

    def count(self, origin: Origin) -> int:
        """How many of `filled` are of that origin."""
        return sum(cost.origin is origin for cost in self.filled)


def complete_profile(
    profile: Profile,
    module: Module,
    hardware: Hardware,
    *,
    lhs_module: Module | None = None,
    with_fingerprint: bool = False,
) -> Completion:
    """Give every schedulable instruction of a module a cost.

    Args:
        profile: any; what it has is kept as it is, but for costs that are negative or not finite: these are gaps.
        lhs_module: the module as LHS saw it, where `module` is the final one and a schedule dump exists.
        with_fingerprint: name the filled costs by the module's fingerprint; so they are anyway where the profile holds
            any such name.
    """
    valid = _without_invalid(profile)
    table = LookupTable(module, lhs_module)
    effective = effective_costs(valid, module.fingerprint)
    known = table.find(effective) | {name: effective[name] for name in table.ambiguous if name in effective}
    rows = [row for row in table.rows.values() if row.instruction.opcode not in _CONTROL]
    gaps = [row for row in rows if row.name not in known]
    fills = fill(table, known, gaps, estimator(table.module, hardware))
    entry = table.module.entry_computation.instructions
    loops = [item for item in entry if item.opcode == "while" and trip_count(item) is not None]
    costs_us = {table.rows[name].instruction.name: cost.cost_us for name, cost in (known | fills).items()}
    of_loops = [
        Cost(
            loop.name, _loop_us(table.module, loop, costs_us), kind=CostKind.LOOP, opcode="while",
            shape=str(loop.shape), origin=Origin.ESTIMATED,
        )
        for loop in loops
        if loop.name not in effective
    ]  # fmt: skip
    prefix = module.fingerprint if with_fingerprint or any(cost.fingerprint for cost in valid.costs) else ""
    new = _writable(valid, prefix, effective, [*fills.values(), *of_loops])
    notes = {
        "module": module.name,
        "fingerprint": module.fingerprint,
        "target": hardware.name,
        "filled": {origin.value: sum(cost.origin is origin for cost in new) for origin in FILLED},
    }
    earlier = cast(Sequence[object], profile.provenance.get("completed", ()))
    result = replace(valid, costs=valid.costs + new, provenance={**valid.provenance, "completed": [*earlier, notes]})
    wanted = len(rows) + len(loops)
    measured = wanted - len(gaps) - len(of_loops)
    return Completion(result, module.name, hardware.name, wanted, measured, new)


def estimate_profile(module: Module, hardware: Hardware) -> Profile:
    """A profile of estimates for every schedulable instruction of a module."""
    estimate = estimator(module, hardware)
    rows = LookupTable(module).rows.values()
    costs = tuple(row.cost(estimate(row.instruction), Origin.ESTIMATED) for row in rows)
    return Profile(costs, provenance={"estimated_for": hardware.name})


def _without_invalid(profile: Profile) -> Profile:
    """The profile without costs that are no time, with a warning that names them."""
    invalid = [f"{cost.full_name} ({cost.cost_us:g})" for cost in profile.costs if not cost.is_valid]
    if not invalid:
        return profile
    warning = f"{len(invalid)} costs are no times and count as gaps: {some(invalid, 4)}"
    valid = tuple(cost for cost in profile.costs if cost.is_valid)
    return replace(profile, costs=valid, warnings=(*profile.warnings, warning))


def _writable(profile: Profile, prefix: str, effective: Container[str], costs: Iterable[Cost]) -> tuple[Cost, ...]:
    """The costs under names that change none of the profile's costs for this or any other module, by name.

    The last of equal names wins, a bare name counts for every module, and a name that holds ``.remat`` makes XLA
    average equal names.
    """
    taken = set() if prefix else {cost.name for cost in profile.costs if cost.fingerprint}
    return tuple(
        cost._replace(fingerprint=prefix)
        for cost in sorted(costs, key=lambda cost: cost.name)
        if not has_remat(cost.name) and cost.name not in taken and cost.name not in effective
    )


def _loop_us(module: Module, loop: Instruction, costs_us: Mapping[str, float]) -> float:
    """A loop costs its trips times what runs on the compute stream in one iteration."""
    total = 0.0
    for name in loop.called:
        computation = module.computations.get(name)
        for item in computation.instructions if computation is not None else ():
            if item.opcode == "while":
                total += _loop_us(module, item, costs_us)
            elif not is_start(item):
                total += costs_us.get(item.name, 0.0)
    return total * (trip_count(loop) or 1)
