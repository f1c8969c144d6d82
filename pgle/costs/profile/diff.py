"""What a profile holds at a glance, and what changed between two: by how much, and whether the samples can tell."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from heapq import nsmallest

from pgle.costs.profile.value import (
    MAX_COST_US,
    Cost,
    CostKind,
    Finding,
    Origin,
    Profile,
    effective_entries,
    most_skewed,
    profile_findings,
)
from pgle.next import SHOW


@dataclass(frozen=True, slots=True)
class KindTotal:
    """The costs of one kind, each instruction executed once."""

    kind: CostKind  # which
    count: int  # instructions
    guessed: int  # of them, how many are of this kind by name only
    total_us: float  # their sum
    share: float  # of the sum over all kinds but loops; 0 for loops


@dataclass(frozen=True)
class Summary:
    """What a profile holds, as XLA would take it."""

    entries: int  # lines of the profile file
    costs: tuple[Cost, ...]  # each usable cost once, the costliest first, as many as asked for
    kinds: tuple[KindTotal, ...]  # totals, costliest first, loops last
    total_us: float  # sum over all but loops, whose bodies count already
    names: int  # usable costs
    origins: Mapping[Origin, int]  # instructions by origin
    modules: tuple[str, ...]  # fingerprints that names are prefixed with
    provenance: Mapping[str, object]  # of the sidecar
    findings: tuple[Finding, ...]  # what XLA takes otherwise than it reads
    warnings: tuple[str, ...]  # one line each
    described: bool  # False where no sidecar says kinds, samples and origins
    # how much longer compute takes on the slowest rank, each instruction executed once; None where unknown
    skew_us: float | None = None
    skewed: tuple[Cost, ...] = ()  # the instructions with most of that, of all kinds


def summarise(profile: Profile, *, top: int = 0) -> Summary:
    """Summarise a profile.

    Args:
        top: list only so many, the costliest; 0: all.
    """
    usable = effective_entries(profile)
    by_kind: dict[CostKind, list[Cost]] = {}
    for cost in usable:
        by_kind.setdefault(cost.likely_kind, []).append(cost)
    totals = {kind: math.fsum(map(_known, of_kind)) for kind, of_kind in by_kind.items()}
    total = math.fsum(_known(cost) for kind, of_kind in by_kind.items() if kind != CostKind.LOOP for cost in of_kind)
    known = [cost for cost in usable if cost.slowest_us is not None]
    return Summary(
        entries=len(profile.costs),
        costs=tuple(nsmallest(top or len(usable), usable, key=lambda cost: (-_known(cost), cost.full_name))),
        kinds=tuple(
            KindTotal(
                kind,
                len(of_kind),
                sum(not cost.kind for cost in of_kind),
                totals[kind],
                totals[kind] / total if total > 0 and kind != CostKind.LOOP else 0.0,
            )
            for kind, of_kind in sorted(by_kind.items(), key=lambda item: (item[0] == CostKind.LOOP, -totals[item[0]]))
        ),
        total_us=total,
        names=len(usable),
        origins=Counter(cost.origin for cost in usable),
        modules=tuple(sorted({cost.fingerprint for cost in usable} - {""})),
        provenance=profile.provenance,
        findings=profile_findings(profile),
        warnings=profile.warnings,
        described=any(cost.kind or cost.origin != Origin.UNKNOWN for cost in usable),
        skew_us=math.fsum(cost.skew_us or 0.0 for cost in known) if known else None,
        skewed=most_skewed(known),
    )


def _known(cost: Cost) -> float:
    """Costs that mean nothing count 0; the findings name them."""
    return cost.cost_us if cost.is_valid else 0.0


class Change(StrEnum):
    """What happened to a name."""

    ADDED = "added"
    REMOVED = "removed"
    REPLACED = "replaced"  # same name, another opcode or shape: another instruction
    CHANGED = "changed"
    NOISE = "noise"  # another cost, within the dispersion of the samples
    SAME = "same"


@dataclass(frozen=True, slots=True)
class Difference:
    """One name in two profiles."""

    name: str  # as the newer profile spells it, else the older
    change: Change  # what happened
    kind: CostKind  # compute, collective, copy or loop; of the newer profile where it has the name
    kind_is_guess: bool  # True where no sidecar says the kind
    old_us: float | None  # cost in the older profile; None where absent
    new_us: float | None  # cost in the newer profile; None where absent
    # how far two medians may be apart within the samples' dispersion; None where that is unknown
    noise_us: float | None = None
    was: str = ""  # opcode and shape in the older profile, where replaced
    now: str = ""  # opcode and shape in the newer profile, where known

    @property
    def delta_us(self) -> float:
        """New minus old; an absent cost counts 0."""
        return (self.new_us or 0.0) - (self.old_us or 0.0)

    @property
    def ratio(self) -> float | None:
        """New over old; None where either is absent or the old is 0."""
        return self.new_us / self.old_us if self.old_us and self.new_us is not None else None


@dataclass(frozen=True, slots=True)
class Total:
    """The sum of one kind, each instruction executed once."""

    kind: CostKind
    old_us: float
    new_us: float
    old_count: int
    new_count: int


@dataclass(frozen=True)
class ProfileDiff:
    """Two profiles compared."""

    differences: tuple[Difference, ...]  # every name, the largest absolute change first
    totals: tuple[Total, ...]  # by kind, where either has any; loops, whose bodies count already, last
    moved: float  # sum of absolute changes over the older profile's total, loops left out: how much of the time moved
    warnings: tuple[str, ...]  # one line each

    def count(self, change: Change) -> int:
        """How many names changed in that way."""
        return sum(item.change == change for item in self.differences)


def diff_profiles(old: Profile, new: Profile) -> ProfileDiff:
    """What changed from `old` to `new`, as far as XLA can see it: duplicates merged, useless entries left out."""
    old_costs, new_costs, warnings = _aligned(effective_entries(old), effective_entries(new))
    keys = dict.fromkeys([*new_costs, *old_costs])
    found = [_difference(old_costs.get(key), new_costs.get(key)) for key in keys]
    # NaN, which can hide anything, first
    found.sort(key=lambda item: (-math.inf if math.isnan(item.delta_us) else -abs(item.delta_us), item.name))
    compared = [
        item for item in found if item.kind != CostKind.LOOP and _is_time(item.old_us) and _is_time(item.new_us)
    ]
    odd = sum(not _is_time(cost.cost_us) for side in (old_costs, new_costs) for cost in side.values())
    if odd:
        warnings = [*warnings, f"{odd} costs are not finite or over 30 years, and not in the totals; see `{SHOW}`"]
    before = math.fsum(item.old_us or 0.0 for item in compared)
    moved = math.fsum(abs(item.delta_us) for item in compared) / before if before > 0 else math.nan
    return ProfileDiff(tuple(found), _totals(found), moved, tuple(warnings))


def _aligned(
    old: Sequence[Cost], new: Sequence[Cost]
) -> tuple[Mapping[tuple[str, str], Cost], Mapping[tuple[str, str], Cost], list[str]]:
    """Costs by (fingerprint, name); by name alone where one has bare names and the other one module's."""
    old_modules, new_modules = ({cost.fingerprint for cost in side} for side in (old, new))
    if old_modules != new_modules and len(old_modules) == len(new_modules) == 1:
        line = "the profiles are for different modules (bare or other fingerprint); compared by name alone"
        return {("", cost.name): cost for cost in old}, {("", cost.name): cost for cost in new}, [line]
    lines = []
    if old_modules != new_modules:
        lines.append("the profiles are not for the same modules; names are compared per fingerprint")
    by_key = [{(cost.fingerprint, cost.name): cost for cost in side} for side in (old, new)]
    return by_key[0], by_key[1], lines


def _difference(old: Cost | None, new: Cost | None) -> Difference:
    known = new or old
    assert known is not None
    noise = _noise_us(old, new)
    return Difference(
        name=known.full_name,
        change=_change(old, new, noise),
        kind=known.likely_kind,
        kind_is_guess=not known.kind,
        old_us=old.cost_us if old else None,
        new_us=new.cost_us if new else None,
        noise_us=noise,
        was=_what(old) if old and new and _replaced(old, new) else "",
        now=_what(new) if new else "",
    )


def _change(old: Cost | None, new: Cost | None, noise_us: float | None) -> Change:
    if old is None:
        return Change.ADDED
    if new is None:
        return Change.REMOVED
    if _replaced(old, new):
        return Change.REPLACED
    if old.cost_us == new.cost_us or (math.isnan(old.cost_us) and math.isnan(new.cost_us)):
        return Change.SAME
    return Change.NOISE if noise_us is not None and abs(new.cost_us - old.cost_us) <= noise_us else Change.CHANGED


def _replaced(old: Cost, new: Cost) -> bool:
    return any(a and b and a != b for a, b in ((old.opcode, new.opcode), (old.shape, new.shape)))


def _noise_us(old: Cost | None, new: Cost | None) -> float | None:
    """Half the two ranges from p10 to p90 added up; None if a cost has fewer than two samples."""
    if old is None or new is None or min(old.samples, new.samples) < 2:
        return None
    return (old.spread * old.cost_us + new.spread * new.cost_us) / 2


def _what(cost: Cost) -> str:
    return f"{cost.opcode} {cost.shape}".strip()


def _totals(found: Sequence[Difference]) -> tuple[Total, ...]:
    totals = []
    for kind in (CostKind.COMPUTE, CostKind.COLLECTIVE, CostKind.COPY, CostKind.LOOP):
        old = [item.old_us for item in found if item.kind == kind and item.old_us is not None]
        new = [item.new_us for item in found if item.kind == kind and item.new_us is not None]
        if old or new:
            totals.append(Total(kind, _finite_sum(old), _finite_sum(new), len(old), len(new)))
    return tuple(totals)


def _finite_sum(values: Iterable[float]) -> float:
    return math.fsum(value for value in values if _is_time(value))


def _is_time(cost_us: float | None) -> bool:
    """Whether a cost, where there is one, can stand in a sum."""
    return cost_us is None or abs(cost_us) <= MAX_COST_US
