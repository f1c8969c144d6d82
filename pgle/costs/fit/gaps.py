"""Names on both sides of a profile that do not meet: instructions without a cost, costs without an instruction."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches

from pgle.costs.fit.gap_weights import Basis
from pgle.costs.fit.wanted import WantedCosts
from pgle.costs.profile.effective import effective_costs
from pgle.costs.profile.value import Cost, CostKind, Profile
from pgle.xla.checker import accepted_names
from pgle.xla.collectives import collective_kind, is_done
from pgle.xla.hlo.module import Module
from pgle.xla.hlo.names import owner, scheduled_computations


@dataclass(frozen=True, slots=True)
class Gap:
    """An instruction without a cost.

    Attributes:
        name: when LHS ran.
        kind: what the scheduler does with it.
        opcode: of a collective the wrapped one.
        shape: of the result.
        weight_us: time per execution of the module that hangs on it.
        basis: what that figure stands on.
        assumed_us: what XLA's T-shirt sizes take it for.
        is_mismatch: the profile has the name, for another instruction.
        hint: where its cost may have gone, a clause; empty where nothing is known.
    """

    name: str
    kind: CostKind
    opcode: str
    shape: str
    weight_us: float
    basis: Basis
    assumed_us: float
    is_mismatch: bool = False
    hint: str = ""


@dataclass(frozen=True, slots=True)
class Unused:
    """A cost that no module takes, as the profile spells its name, and why."""

    name: str
    cost: Cost
    reason: str


MAX_ALIKE = 2000
"""Unused names of one shape or stem that a gap is compared with; each takes microseconds."""
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
            self.by_stem[_stem(item.name)].append(item.name)

    def hint(self, gap: Gap, run_time_names: Sequence[str]) -> Gap:
        """The gap with a hint: its run-time name, an unused cost of the same shape, or of a similar name."""
        run_time = next((name for name in run_time_names if name in self.names), None)
        if run_time is not None:
            return replace(gap, hint=f"in the profile as {run_time}")
        same = self.by_shape.get((gap.opcode, gap.shape))
        if same:
            return replace(gap, hint=f"same shape: {get_close_matches(gap.name, same[:MAX_ALIKE], 1, 0)[0]}")
        stems = {_stem(gap.name), _stem(gap.name).replace("-start", "")}
        alike = [name for stem in sorted(stems) for name in self.by_stem.get(stem, ())]
        close = get_close_matches(gap.name, alike[:MAX_ALIKE], 1, 0.6)
        return replace(gap, hint=f"near: {close[0]}") if close else gap


def _stem(name: str) -> str:
    return re.sub(r"(\.(\d+|clone|remat\d*))*$", "", name.rpartition("::")[2])


def find_unused(profile: Profile, modules: Sequence[tuple[Module, WantedCosts]]) -> tuple[Unused, ...]:
    """The costs that none of the modules takes, in file order, each name once."""
    taken: set[tuple[str, str]] = set()
    for module, wanted in modules:
        consulted = _consulted(wanted.module) | {name for item in wanted.items.values() for name in item.accepted}
        if not wanted.is_lhs:
            consulted -= wanted.run_time_names.keys() - _accepted(wanted)
        for name, cost in effective_costs(profile, module.fingerprint).items():
            if name in consulted:
                taken.add((cost.fingerprint, name))
    fingerprints = {module.fingerprint for module, _ in modules if module.fingerprint}
    renamed: dict[str, str] = {}
    for _, wanted in modules:
        renamed |= wanted.run_time_names
    unused = {}
    for cost in profile.costs:
        if (cost.fingerprint, re.sub(r"\.remat\d*$", "", cost.name)) in taken or (cost.fingerprint, cost.name) in taken:
            continue
        reason = _reason(cost, fingerprints, renamed, [module for module, _ in modules])
        unused[cost.full_name] = Unused(cost.full_name, cost, reason)
    return tuple(unused.values())


def _accepted(wanted: WantedCosts) -> set[str]:
    return {name for item in wanted.items.values() for name in item.accepted}


def _consulted(module: Module) -> set[str]:
    """Every name that XLA would look up in scheduled computations: of any opcode but dones of collectives."""
    return {
        name
        for computation in scheduled_computations(module)
        for item in module.computations[computation].instructions
        if not (is_done(item) and collective_kind(module, item) is not None)
        for name in accepted_names(module, item)
    }


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
