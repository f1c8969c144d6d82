"""Fill the gaps of a profile: XLA gives an instruction without a cost a constant, which distorts the schedule.

First choice is the median of measured instructions that are the same thing: opcode, shapes of result and operands, what
is fused, size of the replica group. Else an estimate, times what measured instructions of the same kind cost relative
to their estimates.

Filled-in costs are marked (`Cost.origin`), and the provenance says how much it is. A completed profile gives every
measured instruction the cost that it had before, read as XLA reads it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Container, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import cast

from pgle.costs.estimate.estimate import estimator
from pgle.costs.lookup.table import LookupTable, Row
from pgle.costs.profile.effective import effective_costs
from pgle.costs.profile.value import Cost, CostKind, Origin, Profile, has_remat
from pgle.errors import some
from pgle.xla.collectives import group_size, is_start
from pgle.xla.hlo.module import Instruction, Module, trip_count
from pgle.xla.targets import Hardware

Estimate = Callable[[Instruction], float | None]
"""Microseconds per execution of an instruction that has no measured cost; None if nothing is known."""

FILLED = (Origin.SAME_SHAPE, Origin.ESTIMATED)
"""Costs of these origins were filled in before: no other cost is derived from them."""

MIN_NEIGHBOURS = 3  # measured instructions of a kind that it takes to scale the estimates of that kind

CALIBRATED_ON = 300
"""Measured instructions of one kind that are estimated too, to scale the estimates; more change little."""


@dataclass(frozen=True, slots=True)
class Scale:
    """What estimates of one kind of instruction are multiplied by."""

    kind: str  # ``all-gather``, ``fusion kLoop`` …; ``compute`` and ``collective`` where the kind itself has too few
    factor: float  # median of measured / estimated; 1 where nothing was measured
    neighbours: int  # measured instructions that it was derived from


def fill(
    table: LookupTable, costs: Mapping[str, Cost], gaps: Iterable[Row], estimate: Estimate
) -> tuple[dict[str, Cost], tuple[Scale, ...]]:
    """A cost for each gap that anything is known of, by row name, and what estimates were multiplied by.

    Args:
        costs: by row name, as `LookupTable.costs` gives them.
        gaps: rows of `table` without a cost.
        estimate: of instructions of ``table.module``.
    """
    gaps = list(gaps)
    measured = [
        (row, cost.cost_us)
        for name, cost in costs.items()
        if gaps and cost.origin not in FILLED and cost.is_valid and not (row := table.rows[name]).differs(cost)
    ]
    same = _medians_of_same(table, measured, gaps)
    scales = _Scales(measured, estimate)
    fills = {}
    for row in gaps:
        value = same.get(signature(table, row)) if same else None
        if value is not None:
            fills[row.name] = row.cost(value, Origin.SAME_SHAPE)
        elif (guess := estimate(row.instruction)) is not None:
            fills[row.name] = row.cost(guess * scales.of(row).factor, Origin.ESTIMATED)
    return fills, tuple(scales.used)


def _medians_of_same(
    table: LookupTable, measured: Iterable[tuple[Row, float]], gaps: Iterable[Row]
) -> Mapping[Hashable, float]:
    """By signature, medians of measured instructions that are the same thing as some gap."""
    alike = {_outline(row) for row in gaps}  # signatures take a look into fusions: only where one may be wanted
    found: dict[Hashable, list[float]] = defaultdict(list)
    for row, cost_us in measured:
        if _outline(row) in alike:
            found[signature(table, row)].append(cost_us)
    return {signature: median(values) for signature, values in found.items()}


def signature(table: LookupTable, row: Row) -> Hashable:
    """What two instructions share when one's measurement is good for the other, in this module or in another."""
    group = group_size(table.module, row.instruction) if row.kind is CostKind.COLLECTIVE else 0
    return _outline(row), table.module.work(row.instruction), group


def _outline(row: Row) -> Hashable:
    return row.opcode, row.shape


class _Scales:
    """What estimates are multiplied by, worked out for the kinds that are asked for."""

    def __init__(self, measured: Iterable[tuple[Row, float]], estimate: Estimate) -> None:
        self.estimate = estimate
        self.measured: dict[str, list[tuple[Row, float]]] = defaultdict(list)
        for row, cost_us in measured:
            for kind in kinds_of(row) if cost_us > 0 else ():
                self.measured[kind].append((row, cost_us))
        self.known: dict[str, Scale] = {}
        self.used: dict[Scale, None] = {}

    def of(self, row: Row) -> Scale:
        """The narrowest scale with enough neighbours; it is noted as used."""
        kinds = kinds_of(row)
        enough = (scale for kind in kinds if (scale := self._scale(kind)).neighbours >= MIN_NEIGHBOURS)
        chosen = next(enough, Scale(kinds[0], 1.0, 0))
        self.used[chosen] = None
        return chosen

    def _scale(self, kind: str) -> Scale:
        if kind not in self.known:
            measured = self.measured.get(kind, [])
            sample = measured[:: max(len(measured) // CALIBRATED_ON, 1)]
            ratios = [
                cost_us / guess for row, cost_us in sample if (guess := self.estimate(row.instruction) or 0.0) > 0
            ]
            self.known[kind] = Scale(kind, median(ratios) if ratios else 1.0, len(ratios))
        return self.known[kind]


def kinds_of(row: Row) -> tuple[str, str]:
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
    scales: tuple[Scale, ...]  # what estimates were multiplied by, of each kind that needed one

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
        module: the module to complete it for, final or as LHS saw it.
        hardware: the GPU for estimates.
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
    fills, scales = fill(table, known, gaps, estimator(table.module, hardware))
    entry = table.module.entry_computation.instructions
    loops = [item for item in entry if item.opcode == "while" and trip_count(item) is not None]
    costs_us = {table.rows[name].instruction.name: cost.cost_us for name, cost in (known | fills).items()}
    of_loops = [_loop_cost(table.module, loop, costs_us) for loop in loops if loop.name not in effective]
    prefix = module.fingerprint if with_fingerprint or any(cost.fingerprint for cost in valid.costs) else ""
    new = _writable(valid, prefix, effective, [*fills.values(), *of_loops])
    notes = {
        "module": module.name,
        "fingerprint": module.fingerprint,
        "target": hardware.name,
        "filled": {origin.value: sum(cost.origin is origin for cost in new) for origin in FILLED},
        "scales": {scale.kind: round(scale.factor, 4) for scale in scales},
    }
    earlier = cast(Sequence[object], profile.provenance.get("completed", ()))
    result = replace(valid, costs=valid.costs + new, provenance={**valid.provenance, "completed": [*earlier, notes]})
    wanted = len(rows) + len(loops)
    measured = wanted - len(gaps) - len(of_loops)
    return Completion(result, module.name, hardware.name, wanted, measured, new, scales)


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


def _loop_cost(module: Module, loop: Instruction, costs_us: Mapping[str, float]) -> Cost:
    """What LHS looks up under a loop's own name."""
    value = _loop_us(module, loop, costs_us)
    return Cost(loop.name, value, kind=CostKind.LOOP, opcode="while", shape=str(loop.shape), origin=Origin.ESTIMATED)


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
