"""Measured costs for a module that other flags made. Names differ then, so instructions are matched by content.

After a change of flags nearly all kernels keep opcode and shapes, but combined collectives are new. An instruction with
the same signature keeps its measured cost. A new one gets an estimate, scaled by measured over estimated of its kind.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from statistics import median

from pgle.costs.lookup.complete import Estimate, fill, kinds_of, signature
from pgle.costs.lookup.table import LookupTable
from pgle.costs.profile.value import Cost, CostKind, Origin, Profile


@dataclass(frozen=True)
class KnownCosts:
    """What instructions of a program take."""

    by_signature: Mapping[Hashable, Cost]  # the median cost of the instructions with one `signature`
    factors: Mapping[str, float]  # by kind of instruction, the median of measured over estimated


def known_costs(table: LookupTable, profile: Profile, estimate: Estimate) -> KnownCosts:
    """The costs that a profile has of a module's instructions.

    Args:
        table: of the module that was measured.
        profile: its costs.
        estimate: of its instructions.
    """
    alike: dict[Hashable, list[Cost]] = defaultdict(list)
    ratios: dict[str, list[float]] = defaultdict(list)
    for name, cost in table.costs(profile).items():
        row = table.rows[name]
        if not cost.is_valid or row.differs(cost):
            continue
        alike[signature(table, row)].append(cost)
        guess = estimate(row.instruction)
        if guess and cost.cost_us:
            for kind in kinds_of(row):
                ratios[kind].append(cost.cost_us / guess)
    medians = {
        key: costs[0]._replace(cost_us=median(cost.cost_us for cost in costs), slowest_us=_slowest(costs))
        for key, costs in alike.items()
    }
    return KnownCosts(medians, {kind: median(values) for kind, values in ratios.items()})


def _slowest(costs: list[Cost]) -> float | None:
    values = [cost.slowest_us for cost in costs if cost.slowest_us is not None]
    return median(values) if values else None


def costs_for(known: KnownCosts, table: LookupTable, estimate: Estimate) -> tuple[Profile, int]:
    """A profile for another compilation of the program, and how many of its collectives are new.

    The costs of new instructions are estimates, and marked so.

    Args:
        known: of the program.
        table: of the module as LHS saw it, under other flags.
        estimate: of its instructions.
    """
    found: dict[str, Cost] = {}
    gaps = []
    for name, row in table.rows.items():
        cost = known.by_signature.get(signature(table, row))
        if cost is None:
            gaps.append(row)
        else:
            found[name] = cost._replace(name=row.filed_as, fingerprint="", trace_name="")
    factor = {row.instruction.name: _factor(known, kinds_of(row)) for row in gaps}
    fills, _ = fill(table, {}, gaps, lambda item: _times(estimate(item), factor.get(item.name, 1.0)))
    for item in fills:
        row = item.row
        found[row.name] = Cost(
            row.filed_as, item.cost_us, kind=row.kind, opcode=row.opcode, shape=row.shape, origin=Origin.ESTIMATED
        )
    return Profile(tuple(found.values())), sum(row.kind is CostKind.COLLECTIVE for row in gaps)


def _factor(known: KnownCosts, kinds: tuple[str, ...]) -> float:
    return next((known.factors[kind] for kind in kinds if kind in known.factors), 1.0)


def _times(guess: float | None, factor: float) -> float | None:
    return None if guess is None else guess * factor
