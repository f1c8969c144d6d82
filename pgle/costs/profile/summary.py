"""A profile at a glance: totals by kind and origin, the costliest instructions, oddities."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from heapq import nsmallest

from pgle.costs.profile.effective import Finding, effective_entries, profile_findings
from pgle.costs.profile.value import Cost, CostKind, Origin, Profile, most_skewed

SORTS: Mapping[str, Callable[[Cost], tuple[float | str, ...]]] = {
    "cost": lambda cost: (-_known(cost), cost.full_name),
    "name": lambda cost: (cost.full_name,),
    "spread": lambda cost: (-cost.spread, -_known(cost), cost.full_name),
    "samples": lambda cost: (cost.samples, -_known(cost), cost.full_name),
}
"""Orders of the table: costliest, by name, most dispersed, least sampled first."""


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
    # each usable cost once, in the order asked for, of the kind asked for, as many as asked for
    costs: tuple[Cost, ...]
    listed: int  # how many there are of the kind asked for
    kinds: tuple[KindTotal, ...]  # totals, costliest first, loops last; of all kinds, whatever was asked for
    total_us: float  # sum over all but loops, whose bodies count already
    names: int  # usable costs, of all kinds
    origins: Mapping[Origin, int]  # instructions by origin
    modules: tuple[str, ...]  # fingerprints that names are prefixed with
    provenance: Mapping[str, object]  # of the sidecar
    findings: tuple[Finding, ...]  # what XLA takes otherwise than it reads
    warnings: tuple[str, ...]  # one line each
    described: bool  # False where no sidecar says kinds, samples and origins
    # how much longer compute takes on the slowest rank, each instruction executed once; None where unknown
    skew_us: float | None = None
    skewed: tuple[Cost, ...] = ()  # the instructions with most of that, of all kinds


def summarise(profile: Profile, *, kinds: Sequence[CostKind] = (), sort: str = "cost", top: int = 0) -> Summary:
    """Summarise a profile.

    Args:
        kinds: list only instructions of these kinds; empty: of all.
        sort: a key of `SORTS`.
        top: list only so many; 0: all.
    """
    usable = effective_entries(profile)
    by_kind: dict[CostKind, list[Cost]] = {}
    for cost in usable:
        by_kind.setdefault(cost.likely_kind, []).append(cost)
    totals = {kind: math.fsum(map(_known, of_kind)) for kind, of_kind in by_kind.items()}
    total = math.fsum(_known(cost) for kind, of_kind in by_kind.items() if kind != CostKind.LOOP for cost in of_kind)
    known = [cost for cost in usable if cost.slowest_us is not None]
    chosen = [kind for kind in by_kind if not kinds or kind in kinds]
    listed = [cost for kind in chosen for cost in by_kind[kind]]
    return Summary(
        entries=len(profile.costs),
        costs=tuple(nsmallest(top or len(listed), listed, key=SORTS[sort])),
        listed=len(listed),
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
