"""What does not meet: instructions without a cost and what hangs on them, costs without an instruction."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from math import isfinite

from pgle.costs.lookup.fill import Estimate, fill
from pgle.costs.lookup.table import LookupTable, Row
from pgle.costs.profile.value import Cost, CostKind, Origin, Profile, strip_remat
from pgle.xla.checker import T_SHIRT_SIZES, assumed_us, fallback_of
from pgle.xla.hlo.module import Module
from pgle.xla.hlo.names import owner
from pgle.xla.kinds import stem


@dataclass(frozen=True, slots=True)
class Gap:
    """An instruction without a cost."""

    name: str  # when LHS ran
    kind: CostKind  # what the scheduler does with it
    opcode: str  # of a collective the wrapped one
    shape: str  # of the result
    # time per execution of the module that hangs on it: what it costs or what XLA takes it for, whichever is more
    weight_us: float
    cost_us: float  # what it probably costs, once; nobody measured it
    total_us: float  # the same per execution of the module
    basis: Origin | None  # the source of `cost_us`; None if there is none
    assumed_us: float  # what XLA takes it for: its T-shirt size, of a mismatch the cost of the other instruction
    is_mismatch: bool = False  # the profile has the name, for another instruction
    hint: str = ""  # where its cost may have gone, a clause; empty where nothing is known


@dataclass(frozen=True, slots=True)
class Mismatch:
    """A cost whose name belongs to an instruction of another opcode or shape in this module."""

    name: str
    cost_us: float
    profile_op: str
    module_op: str


def weigh(cost_us: float, row: Row) -> float:
    """Microseconds per execution of the module; 0 of what is negative or not finite."""
    return cost_us * row.executions if isfinite(cost_us) and cost_us > 0 else 0.0


def weigh_gaps(
    table: LookupTable, costs: Mapping[str, Cost], gaps: Mapping[str, Cost | None], estimate: Estimate
) -> tuple[Gap, ...]:
    """The gaps with what hangs on them, heaviest first.

    Args:
        costs: those that count, by row name.
        gaps: by row name: None, or the cost that XLA takes though it is another instruction's or no number.
        estimate: of instructions of ``table.module``.
    """
    rows = [table.rows[name] for name in gaps]
    fills = {item.row.name: item for item in fill(table, costs, rows, estimate)[0]}
    has_sizes = fallback_of(table.final) == T_SHIRT_SIZES
    found = []
    for row in rows:
        taken, filled = gaps[row.name], fills.get(row.name)
        cost_us = 0.0 if filled is None else filled.cost_us
        assumed = assumed_us(table.module, row.instruction) if taken is None else taken.cost_us
        weight = max(weigh(cost_us, row), weigh(assumed, row) if has_sizes or taken is not None else 0.0)
        found.append(
            Gap(
                name=row.name,
                kind=row.kind,
                opcode=row.opcode,
                shape=row.shape,
                weight_us=weight,
                cost_us=cost_us,
                total_us=weigh(cost_us, row),
                basis=None if filled is None else filled.origin,
                assumed_us=assumed,
                is_mismatch=taken is not None and taken.is_valid,
                hint="" if taken is None or taken.is_valid else f"its cost is {taken.cost_us:g}",
            )
        )
    return tuple(sorted(found, key=lambda gap: (-gap.weight_us, gap.name)))


@dataclass(frozen=True, slots=True)
class Unused:
    """A cost that no module takes, as the profile spells its name, and why."""

    name: str
    cost: Cost
    reason: str


MAX_ALIKE = 2000  # unused names of one shape or stem that a gap is compared with; each takes microseconds
_RENAMED = "a name of "


class NearNames:
    """Finds unused costs that may belong to a gap."""

    def __init__(self, unused: Sequence[Unused]) -> None:
        self.names = {item.name for item in unused}
        self.by_shape: dict[tuple[str, str], list[str]] = defaultdict(list)
        self.by_stem: dict[str, list[str]] = defaultdict(list)
        for item in unused:
            if item.reason.startswith(_RENAMED):
                continue  # it is known whose name it is
            if item.cost.shape:
                self.by_shape[item.cost.opcode, item.cost.shape].append(item.name)
            self.by_stem[stem(item.cost.name)].append(item.name)

    def hint(self, gap: Gap, run_time_names: Sequence[str]) -> Gap:
        """The gap with a hint: its run-time name, an unused cost of the same shape, or of a similar name."""
        if gap.hint:
            return gap
        run_time = next((name for name in run_time_names if name in self.names), None)
        if run_time is not None:
            return replace(gap, hint=f"in the profile as {run_time}")
        same = self.by_shape.get((gap.opcode, gap.shape))
        if same:
            return replace(gap, hint=f"same shape: {get_close_matches(gap.name, same[:MAX_ALIKE], 1, 0)[0]}")
        stems = {stem(gap.name), stem(gap.name).replace("-start", "")}
        alike = [name for one in sorted(stems) for name in self.by_stem.get(one, ())]
        close = get_close_matches(gap.name, alike[:MAX_ALIKE], 1, 0.6)
        return replace(gap, hint=f"near: {close[0]}") if close else gap


def find_unused(
    profile: Profile, tables: Sequence[LookupTable], effective: Iterable[Mapping[str, Cost]]
) -> tuple[Unused, ...]:
    """The costs that none of the modules takes, in file order, each name once.

    Args:
        effective: for each of them what `effective_costs` gives.
    """
    taken = {
        (cost.fingerprint, name)
        for table, costs in zip(tables, effective, strict=True)
        for name, cost in costs.items()
        if name in table.consulted
    }
    fingerprints = {table.final.fingerprint for table in tables if table.final.fingerprint}
    renamed = {run_time: name for table in tables for run_time, name in table.run_time_names.items()}
    unused = {}
    for cost in profile.costs:
        if (cost.fingerprint, cost.name) not in taken and (cost.fingerprint, strip_remat(cost.name)) not in taken:
            reason = _reason(cost, fingerprints, renamed, [table.final for table in tables])
            unused[cost.full_name] = Unused(cost.full_name, cost, reason)
    return tuple(unused.values())


def _reason(cost: Cost, fingerprints: set[str], renamed: Mapping[str, str], modules: Sequence[Module]) -> str:
    if cost.fingerprint and cost.fingerprint not in fingerprints:
        return "for another fingerprint"
    if re.search(r"-done(\.\d+)*$", cost.name):
        return "a done; XLA looks up its start"
    if cost.name in renamed:
        return f"{_RENAMED}{renamed[cost.name]} at run time"
    for module in modules:
        inside = owner(module, cost.name)
        if inside is not None and inside != cost.name:
            return f"inside {inside}"
        if inside is not None:
            return "not scheduled, or free"
    return "no instruction of that name"
