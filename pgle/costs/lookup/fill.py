"""Costs for the rows of a lookup table that a profile has none for.

First choice is the median of measured instructions that are the same thing: opcode, shapes of result and operands, what
is fused, size of the replica group. Else an estimate, times what measured instructions of the same kind cost relative
to their estimates.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from statistics import median

from pgle.costs.lookup.table import LookupTable, Row
from pgle.costs.profile.value import Cost, CostKind, Origin
from pgle.xla.collectives import group_size
from pgle.xla.hlo.module import Instruction

Estimate = Callable[[Instruction], float | None]
"""Microseconds per execution of an instruction that has no measured cost; None where nothing can be said."""

FILLED = (Origin.SAME_SHAPE, Origin.ESTIMATED)
"""Costs of these origins were filled in before: no other cost is derived from them."""

MIN_NEIGHBOURS = 3  # measured instructions of a kind that it takes to scale the estimates of that kind

CALIBRATED_ON = 300
"""Measured instructions of one kind that are estimated too, to scale the estimates; more change little."""


@dataclass(frozen=True, slots=True)
class Fill:
    """A cost for a row that has none, and its source."""

    row: Row
    cost_us: float
    origin: Origin


@dataclass(frozen=True, slots=True)
class Scale:
    """What estimates of one kind of instruction are multiplied by."""

    kind: str  # ``all-gather``, ``fusion kLoop`` …; ``compute`` and ``collective`` where the kind itself has too few
    factor: float  # median of measured / estimated; 1 where nothing was measured
    neighbours: int  # measured instructions that it was derived from


def fill(
    table: LookupTable, costs: Mapping[str, Cost], gaps: Iterable[Row], estimate: Estimate
) -> tuple[list[Fill], tuple[Scale, ...]]:
    """A cost for each gap that anything can be said of, and what estimates were multiplied by.

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
    fills = []
    for row in gaps:
        value = same.get(signature(table, row)) if same else None
        if value is not None:
            fills.append(Fill(row, value, Origin.SAME_SHAPE))
        elif (guess := estimate(row.instruction)) is not None:
            fills.append(Fill(row, guess * scales.of(row).factor, Origin.ESTIMATED))
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
