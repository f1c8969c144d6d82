"""Profiles of ranks, or of runs, become one.

Of ranks: a collective's time on one rank includes waiting for the last rank. Where the sidecars carry occurrences, each
occurrence takes the least time over the ranks, then the statistic goes over executions, as if all traces had been
converted together; `pgle.costs.profile.ranks` says which execution of one rank is which of another.
Everything else takes a statistic over the inputs, each counted once per sample it stands on.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from pgle import __version__
from pgle.costs.profile.effective import effective_entries
from pgle.costs.profile.merged_cost import from_inputs, from_occurrences, least_over_ranks
from pgle.costs.profile.merged_modules import missing_ranks, united_modules
from pgle.costs.profile.ranks import align_profiles, renumbered
from pgle.costs.profile.statistic import Statistic, parse_statistic
from pgle.costs.profile.value import Cost, CostKind, Origin, Profile
from pgle.errors import UserError

_TRUST = (
    (Origin.MEASURED, Origin.UNKNOWN),
    (Origin.SIMULATED,),
    (Origin.SAME_SHAPE,),
    (Origin.ESTIMATED,),
)
"""Where inputs have a cost from different origins, the first of these counts alone."""


class Of(StrEnum):
    """What the inputs are profiles of."""

    RANKS = "ranks"
    """Of one run: execution n is the same on all."""
    RUNS = "runs"
    """Independent measurements of one program."""


@dataclass(frozen=True)
class MergeOptions:
    """How several costs of one name become one.

    Attributes:
        of: ranks or runs.
        stat: over inputs, for compute.
        collective_stat: for collectives: over executions where occurrences are known, else over inputs. None: the
            median over executions; over inputs the minimum of ranks and `stat` of runs.
    """

    of: Of = Of.RANKS
    stat: Statistic = field(default_factory=lambda: parse_statistic("median"))
    collective_stat: Statistic | None = None


@dataclass(frozen=True, slots=True)
class Conflict:
    """A name that is not the same instruction in all inputs.

    Attributes:
        name: as the inputs spell it.
        seen: what it is, by input: ``all-gather bf16[4096]``.
        kept: True where each was kept for its own module, by fingerprint.
    """

    name: str
    seen: Mapping[str, str]
    kept: bool


@dataclass(frozen=True)
class Merged:
    """What merging gave.

    Attributes:
        profile: one cost per name, ordered by fingerprint and name; the bare names first.
        inputs: their labels.
        exact: collectives merged occurrence by occurrence.
        inexact: collectives merged by a statistic over inputs, from two or more of them.
        partial: names that not all inputs have.
        conflicts: names left out, or kept per module.
        warnings: one line each; the profile has them too.
    """

    profile: Profile
    inputs: tuple[str, ...]
    exact: int
    inexact: int
    partial: tuple[str, ...]
    conflicts: tuple[Conflict, ...]
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Seen:
    """A cost of one input, and its occurrences there."""

    label: str
    cost: Cost
    occurrences: Mapping[str, float]


def merge_profiles(inputs: Sequence[tuple[str, Profile]], options: MergeOptions | None = None) -> Merged:
    """One profile of several.

    Args:
        inputs: label (a file name) and profile. Of duplicate names each counts as XLA would take it.
        options: what they are of, and the statistics.

    Raises:
        UserError: no name is left.
    """
    options = options or MergeOptions()
    labels = tuple(label for label, _ in inputs)
    ranks = align_profiles(inputs) if options.of == Of.RANKS else None
    if ranks is not None:
        inputs = [(label, renumbered(profile, by)) for (label, profile), by in zip(inputs, ranks.shifts, strict=True)]
    warnings = [f"{label}: {line}" for label, profile in inputs for line in profile.warnings if not _described(profile)]
    by_name: dict[tuple[str, str], list[_Seen]] = {}
    for label, profile in inputs:
        usable, refused = _usable(profile)
        warnings += [f"{label}: {line}" for line in refused]
        for cost in usable:
            seen = _Seen(label, cost, profile.occurrences.get(cost.full_name, {}))
            by_name.setdefault((cost.fingerprint, cost.name), []).append(seen)
    conflicts = _settle_conflicts(by_name, {label: _only_fingerprint(profile) for label, profile in inputs})
    if not by_name:
        raise UserError("no cost is left of the inputs", remedy="see what they hold with `pgle show`")
    merged = {key: _merge(seen, options) for key, seen in sorted(by_name.items())}
    partial = tuple(seen[0].cost.full_name for _, seen in sorted(by_name.items()) if len(seen) < len(inputs))
    shared = [key for key, seen in by_name.items() if _is_collective(seen) and len(seen) > 1]
    exact = sum(merged[key][1] is not None for key in shared)
    inexact = len(shared) - exact
    warnings += _warnings(options, conflicts, partial, inexact, len(by_name), len(inputs))
    warnings += _lonely(inputs, options)
    warnings += ranks.warnings if ranks is not None else ()
    profile = Profile(
        costs=tuple(cost for cost, _ in merged.values()),
        provenance=_provenance(inputs, options, exact),
        warnings=tuple(dict.fromkeys(warnings)),
        occurrences={cost.full_name: table for cost, table in merged.values() if table},
        ends=ranks.ends if ranks is not None else {},
    )
    return Merged(profile, labels, exact, inexact, partial, conflicts, profile.warnings)


def _described(profile: Profile) -> bool:
    """Whether a sidecar came along. Its warnings are about an input alone; they go into the provenance."""
    return all(cost.origin != Origin.UNKNOWN for cost in profile.costs)


def _usable(profile: Profile) -> tuple[list[Cost], list[str]]:
    """The costs that XLA would take and that mean something, and a line about those that do not."""
    entries = effective_entries(profile)
    usable = [cost for cost in entries if math.isfinite(cost.cost_us) and cost.cost_us >= 0]
    bad = [cost for cost in entries if not (math.isfinite(cost.cost_us) and cost.cost_us >= 0)]
    lines = []
    if bad:
        lines.append(f"{len(bad)} costs left out, negative or not finite ({bad[0].full_name}: {bad[0].cost_us})")
    unused = len(profile.costs) - len(entries)
    if unused:
        lines.append(
            f"{unused} of {len(profile.costs)} costs do not count, as in XLA (repeated or odd names); see `pgle show`"
        )
    return usable, lines


def _settle_conflicts(
    by_name: dict[tuple[str, str], list[_Seen]], fingerprints: Mapping[str, str]
) -> tuple[Conflict, ...]:
    """Take names that are several instructions out of the table; back in under fingerprints where these are known."""
    conflicts = []
    for (fingerprint, name), seen in sorted(by_name.items()):
        opcodes = {item.cost.opcode for item in seen if item.cost.opcode}
        shapes = {item.cost.shape for item in seen if item.cost.shape}
        if len(opcodes) < 2 and len(shapes) < 2:
            continue
        del by_name[fingerprint, name]
        owners = {fingerprints[item.label] for item in seen}
        kept = not fingerprint and "" not in owners and len(owners) > 1
        what = {item.label: f"{item.cost.opcode} {item.cost.shape}".strip() for item in seen}
        conflicts.append(Conflict(seen[0].cost.full_name, what, kept))
        for item in seen if kept else ():
            owner = fingerprints[item.label]
            prefixed = replace(item, cost=replace(item.cost, fingerprint=owner))
            by_name.setdefault((owner, name), []).append(prefixed)
    return tuple(conflicts)


def _only_fingerprint(profile: Profile) -> str:
    """The fingerprint of the one module that a profile's sidecar names; empty where there is not exactly one."""
    modules = profile.provenance.get("modules")
    if not isinstance(modules, list) or len(modules) != 1 or not isinstance(modules[0], dict):
        return ""
    found = modules[0].get("fingerprints")
    return str(found[0]) if isinstance(found, list) and len(found) == 1 else ""


def _is_collective(seen: Sequence[_Seen]) -> bool:
    return any(item.cost.likely_kind == CostKind.COLLECTIVE for item in seen)


def _merge(seen: Sequence[_Seen], options: MergeOptions) -> tuple[Cost, Mapping[str, float] | None]:
    """One cost of several, and its occurrences where it stands on them."""
    chosen = next(found for trusted in _TRUST if (found := [item for item in seen if item.cost.origin in trusted]))
    if len(chosen) == 1:
        return chosen[0].cost, (chosen[0].occurrences if options.of == Of.RANKS else {}) or None
    costs = [item.cost for item in chosen]
    base = replace(
        costs[0],
        kind=next((cost.kind for cost in costs if cost.kind), CostKind.UNKNOWN),
        opcode=next((cost.opcode for cost in costs if cost.opcode), ""),
        shape=next((cost.shape for cost in costs if cost.shape), ""),
        origin=Origin.UNKNOWN if any(cost.origin == Origin.UNKNOWN for cost in costs) else costs[0].origin,
        trace_name=costs[0].trace_name if len({cost.trace_name for cost in costs}) == 1 else "",
    )
    collective = _is_collective(seen)
    if collective and options.of == Of.RANKS:
        table = least_over_ranks([item.occurrences for item in chosen])
        if table:
            return from_occurrences(base, table, options.collective_stat or parse_statistic("median")), table
    fallback = parse_statistic("min") if options.of == Of.RANKS else options.stat
    stat = (options.collective_stat or fallback) if collective else options.stat
    return from_inputs(base, costs, stat), None


def _warnings(
    options: MergeOptions, conflicts: Sequence[Conflict], partial: Sequence[str], inexact: int, names: int, inputs: int
) -> list[str]:
    lines = []
    dropped = [conflict for conflict in conflicts if not conflict.kept]
    if dropped:
        lines.append(f"{len(dropped)} names left out: another opcode or shape in each input, first {dropped[0].name}")
    if kept := len(conflicts) - len(dropped):
        lines.append(f"{kept} names kept per module as FINGERPRINT::NAME: another opcode or shape in each input")
    if len(partial) > names / 2:
        lines.append(f"{len(partial)} of {names} names are not in all inputs; are they of one program?")
    if options.of == Of.RANKS and inexact and inputs > 1:
        stat = options.collective_stat.name if options.collective_stat else "min"
        lines.append(
            f"{inexact} collectives merged by the {stat} of the inputs, which still includes waiting for other ranks; "
            "convert all traces together for the exact cost"
        )
    return lines


def _lonely(inputs: Sequence[tuple[str, Profile]], options: MergeOptions) -> list[str]:
    """The ranks that the inputs lack: all together, or each run on its own."""
    if options.of == Of.RANKS:
        return missing_ranks([profile.provenance for _, profile in inputs])
    return [f"{label}: {line}" for label, profile in inputs for line in missing_ranks([profile.provenance])]


def _provenance(inputs: Sequence[tuple[str, Profile]], options: MergeOptions, exact: int) -> dict[str, object]:
    return {
        "tool": f"pgle {__version__}",
        "merged_of": options.of.value,
        "stat": options.stat.name,
        "collective_stat": options.collective_stat.name if options.collective_stat else "",
        "collectives_by_occurrence": exact,
        "modules": list(united_modules([profile.provenance for _, profile in inputs])),
        "inputs": [
            {
                "name": label,
                "names": len(profile),
                "warnings": list(profile.warnings),
                "provenance": dict(profile.provenance),
            }
            for label, profile in inputs
        ],
    }
