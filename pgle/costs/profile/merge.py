"""Profiles of ranks, or of runs, become one: the cost of each name, and the records of modules in their sidecars.

A cost is merged occurrence by occurrence, or as a statistic over the inputs.

Percentiles interpolate linearly, as `numpy.percentile` does. jaxlib's ``aggregate_profiled_instructions`` takes the
element ``int(percentile / 100 * (n - 1))`` of the n sorted costs instead, and counts every input once.

Of ranks: a collective's time on one rank includes waiting for the last rank. Where the sidecars carry occurrences, each
occurrence takes the least time over the ranks, then the statistic goes over executions, as if all traces had been
converted together; `align_profiles` says which execution of one rank is which of another.
Everything else takes a statistic over the inputs, each weighted by its number of samples.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import chain, pairwise
from typing import Any

import numpy as np

from pgle import __version__
from pgle.costs.profile.align import align_profiles, renumbered
from pgle.costs.profile.cost_table import Codes, CostTable, Description, Flags, Source, collect
from pgle.costs.profile.files import ProfileFile
from pgle.costs.profile.value import Cost, CostKind, Origin, Profile, join_name, module_records
from pgle.costs.statistic import Statistic, changes, heads, parse_statistic
from pgle.errors import UserError
from pgle.next import SHOW
from pgle.trace.table import distinct

BLOCK_ROWS = 1 << 18  # costs whose statistics are worked out at once


def least_over_ranks(table: CostTable, chosen: Flags) -> dict[int, dict[str, float]]:
    """By name, each occurrence of a collective with the least time over the ranks, as `Profile.occurrences`.

    A rank takes part in the replica groups that it has occurrences of; of a group, only occurrences that all its ranks
    saw count. A name is left out where a rank has none of its occurrences, or ranks of a group none in common.

    Args:
        table: n costs of ranks, with execution numbers that mean the same in all.
        chosen: bool[n], those that count.
    """
    times = table.occurrences
    use = np.flatnonzero(chosen[times.row])
    row, name = times.row[use], table.name[times.row[use]]
    columns = (times.occurrence[use], times.execution[use], times.group[use], name)
    order = np.lexsort((times.time_us[use], *columns))
    use, row, name = use[order], row[order], name[order]
    occurrence, execution, group, _ = (column[order] for column in columns)
    if not len(use):
        return {}
    new = changes(name, group, execution, occurrence)
    first = np.flatnonzero(new)  # the least time of each comes first
    ranks = np.diff(np.append(first, len(use)))
    of_group = np.cumsum(changes(name, group)[first]) - 1
    pairs = distinct(of_group[np.cumsum(new) - 1] * len(chosen) + row)
    in_group = np.bincount(pairs // len(chosen))
    whole = ranks == in_group[of_group]
    none_whole = np.bincount(of_group, weights=whole) == 0
    with_some = np.bincount(table.name[distinct(row)], minlength=len(table.names))
    lacking = with_some < np.bincount(table.name[chosen], minlength=len(table.names))
    lacking[name[first[none_whole[of_group]]]] = True
    found: dict[int, dict[str, float]] = {}
    kept = first[whole & ~lacking[name[first]]]
    kept = kept[np.lexsort((group[kept], occurrence[kept], execution[kept], name[kept]))]
    parts = (name[kept], execution[kept], occurrence[kept], group[kept], times.time_us[use[kept]])
    for number, begun, again, of, time_us in zip(*(part.tolist() for part in parts), strict=True):
        found.setdefault(number, {})[f"{begun}.{again}" + (f".{of}" if of else "")] = time_us
    return found


def from_occurrences(base: Cost, table: Mapping[str, float], stat: Statistic) -> Cost:
    """The statistic over the occurrences of each group, then the slowest, as in `pgle.costs.measure.samples`."""
    groups: dict[str, list[float]] = {}
    for key, value in table.items():
        groups.setdefault(key.split(".")[2] if key.count(".") == 2 else "0", []).append(value)
    values, cost_us = max(((found, _of(stat, found)) for found in groups.values()), key=lambda pair: pair[1])
    low, middle, high = (_of(parse_statistic(name), values) for name in ("p10", "median", "p90"))
    return base._replace(
        cost_us=cost_us,
        samples=len(values),
        min_us=min(values),
        max_us=max(values),
        spread=(high - low) / middle if middle > 0 else 0.0,
    )


def _of(stat: Statistic, values: Sequence[float]) -> float:
    return float(stat.over_groups(np.array(values), np.zeros(len(values), np.int64), 1)[0])


def from_inputs(table: CostTable, rows: Codes, stat: Statistic) -> Iterator[tuple[int, Cost]]:
    """Each name's cost as the statistic over inputs. Its spread is the largest within an input or between inputs.

    Args:
        table: costs.
        rows: of it, ordered by name; the first row of a name describes it.
        stat: which.
    """
    edges = heads(table.name[rows])
    blocks = np.unique([*edges[np.searchsorted(edges, range(0, len(rows), BLOCK_ROWS), side="right") - 1], len(rows)])
    for low, high in pairwise(blocks.tolist()):
        yield from _block_from_inputs(table, rows[low:high], stat)


def _block_from_inputs(table: CostTable, rows: Codes, stat: Statistic) -> Iterator[tuple[int, Cost]]:
    """Some names at a time, so that memory does not grow with them."""
    name, cost_us, samples = table.name[rows], table.cost_us[rows], table.samples[rows]
    first = heads(name)
    group = np.repeat(np.arange(len(first)), np.diff(np.append(first, len(rows))))
    known = np.minimum.reduceat(samples, first) > 0
    weights = np.where(known[group], samples, 1)
    low = np.where(samples > 0, table.min_us[rows], cost_us)
    high = np.where(samples > 0, table.max_us[rows], cost_us)
    columns = (
        np.add.reduceat(samples, first), np.minimum.reduceat(low, first), np.maximum.reduceat(high, first),
        np.maximum.reduceat(table.spread[rows], first), np.minimum.reduceat(cost_us, first),
        np.maximum.reduceat(cost_us, first),
    )  # fmt: skip
    merged = stat.over_groups(cost_us, group, len(first), weights)
    listed = (column.tolist() for column in (first, merged, *columns))
    for at, value, count, least, most, spread, cheapest, dearest in zip(*listed, strict=True):
        yield (
            int(name[at]),
            table.cost(int(rows[at]))._replace(
                cost_us=value,
                samples=count,
                min_us=least,
                max_us=most,
                spread=max((dearest - cheapest) / value if value > 0 else 0.0, spread),
                slowest_us=None,
            ),
        )


_COUNTS = {"executions_used": 0, "executions_seen": 0, "devices": 0}
"""Fields of a module's record that add up over inputs."""
IDS_SHOWN = 8


def united_modules(provenances: Iterable[Mapping[str, Any]]) -> tuple[dict[str, Any], ...]:
    """The first record of each module, with fingerprints and ranks united and executions added up."""
    modules: dict[str, dict[str, Any]] = {}
    unknown = set()
    for record in chain.from_iterable(map(module_records, provenances)):
        if "fingerprints" not in record:
            continue
        name = str(record.get("name"))
        known = modules.setdefault(name, {**record, "fingerprints": [], "rank_ids": []} | _COUNTS)
        known["fingerprints"] += [one for one in record["fingerprints"] if one not in known["fingerprints"]]
        for count in _COUNTS:
            known[count] += _number(record, count)
        known["ranks"] = max(_number(known, "ranks"), _number(record, "ranks"))
        ids = record.get("rank_ids", ())
        known["rank_ids"] = sorted({*known["rank_ids"], *ids})
        if not ids:
            unknown.add(name)
        known.pop("executions_dropped", None)
    for name in unknown:
        modules[name]["rank_ids"] = []
    return tuple(modules.values())


def missing_ranks(provenances: Sequence[Mapping[str, Any]]) -> list[str]:
    """A line per module that some of its ranks recorded: what a collective costs then includes waiting for the others.

    A rank is one of JAX's global device ids where all inputs have them, else each device counts as one.
    """
    lines = []
    for record in united_modules(provenances):
        ids = record["rank_ids"]
        present = len(ids) or record["devices"]
        needed = record["ranks"] or (2 if _number(record, "collectives") else 0)
        if not 0 < present < needed:
            continue
        which = f" ({', '.join(map(str, ids[:IDS_SHOWN]))}{', …' if len(ids) > IDS_SHOWN else ''})" if ids else ""
        lines.append(
            f"{record['name']}: {present} of {record['ranks'] or 'several'} ranks given{which}: "
            "collective costs include the wait for the others; merge the profiles of all ranks"
        )
    return lines


def _number(record: Mapping[str, Any], name: str) -> int:
    return record.get(name) or 0


_TRUST = (
    (Origin.MEASURED, Origin.UNKNOWN),
    (Origin.SIMULATED,),
    (Origin.SAME_SHAPE,),
    (Origin.ESTIMATED,),
)
"""Where inputs have a cost from different origins, the first of these counts alone."""


class Of(StrEnum):
    """What the inputs are profiles of."""

    RANKS = "ranks"  # ranks of one run: execution n is the same on all
    RUNS = "runs"  # independent measurements of one program


@dataclass(frozen=True)
class MergeOptions:
    """How several costs of one name become one."""

    of: Of = Of.RANKS  # ranks or runs
    stat: Statistic = field(default_factory=lambda: parse_statistic("median"))  # over inputs, for compute
    # for collectives: over executions where occurrences are known, else over inputs. None: the median over executions;
    # over inputs the minimum of ranks and `stat` of runs.
    collective_stat: Statistic | None = None


@dataclass(frozen=True, slots=True)
class Conflict:
    """A name that is not the same instruction in all inputs."""

    name: str  # as the inputs spell it
    seen: Mapping[str, str]  # what it is, by input: ``all-gather bf16[4096]``
    kept: bool  # True where each was kept for its own module, by fingerprint


@dataclass(frozen=True)
class Merged:
    """What merging gave."""

    profile: Profile  # one cost per name, ordered by fingerprint and name; the bare names first
    inputs: tuple[str, ...]  # their labels
    exact: int  # collectives merged occurrence by occurrence
    inexact: int  # collectives merged by a statistic over inputs, from two or more of them
    partial: tuple[str, ...]  # names that not all inputs have
    conflicts: tuple[Conflict, ...]  # names left out, or kept per module
    warnings: tuple[str, ...]  # one line each; the profile has them too


def merge_profiles(inputs: Iterable[tuple[str, Profile | ProfileFile]], options: MergeOptions | None = None) -> Merged:
    """One profile of several.

    Args:
        inputs: label (a file name) and profile. Of duplicate names each counts as XLA would take it. They are looked at
            one after the other, so that a thousand files need not be in memory together.

    Raises:
        UserError: no name is left.
    """
    return merge_collected(*collect(inputs), options or MergeOptions())


def merge_collected(table: CostTable, sources: Sequence[Source], options: MergeOptions) -> Merged:
    """`merge_profiles` of inputs that were collected."""
    ranks = align_profiles(sources) if options.of == Of.RANKS else None
    table = table if ranks is None else renumbered(table, ranks.shifts)
    table, conflicts = _settle_conflicts(table, sources)
    if not (table.name >= 0).any():
        raise UserError("no cost is left of the inputs", remedy=f"see what they hold with `{SHOW}`")
    chosen = _most_trusted(table)
    collectives = _collectives(table)
    costs, occurrences = _merged(table, chosen, collectives, options)
    seen = np.bincount(table.name[table.name >= 0], minlength=len(table.names))
    order = sorted(np.flatnonzero(seen).tolist(), key=table.names.__getitem__)
    partial = tuple(join_name(*table.names[number]) for number in order if seen[number] < len(sources))
    shared = [number for number in collectives if seen[number] > 1]
    exact = sum(number in occurrences for number in shared)
    inexact = len(shared) - exact
    warnings = [f"{source.label}: {line}" for source in sources for line in source.warnings if not source.described]
    warnings += (f"{source.label}: {line}" for source in sources for line in source.refused)
    warnings += _warnings(options, conflicts, partial, inexact, len(order), len(sources))
    warnings += _lonely(sources, options)
    warnings += ranks.warnings if ranks is not None else ()
    profile = Profile(
        costs=tuple(costs[number] for number in order),
        provenance=_provenance(sources, options, exact),
        warnings=tuple(dict.fromkeys(warnings)),
        occurrences={costs[number].full_name: occurrences[number] for number in order if number in occurrences},
        ends=ranks.ends if ranks is not None else {},
    )
    labels = tuple(source.label for source in sources)
    return Merged(profile, labels, exact, inexact, partial, conflicts, profile.warnings)


def _settle_conflicts(table: CostTable, sources: Sequence[Source]) -> tuple[CostTable, tuple[Conflict, ...]]:
    """Take names that are several instructions out of the table; back in under fingerprints where these are known."""
    opcodes: dict[int, set[str]] = {}
    shapes: dict[int, set[str]] = {}
    for number, found in table.described:
        opcodes.setdefault(number, set()).update({found.opcode} - {""})
        shapes.setdefault(number, set()).update({found.shape} - {""})
    several = [number for number in opcodes if len(opcodes[number]) > 1 or len(shapes[number]) > 1]
    names, name = {key: number for number, key in enumerate(table.names)}, table.name.copy()
    conflicts = []
    for number in sorted(several, key=table.names.__getitem__):
        fingerprint, bare = table.names[number]
        rows = np.flatnonzero(table.name == number)
        owners = [sources[source].only_fingerprint for source in table.source[rows].tolist()]
        kept = not fingerprint and "" not in owners and len(set(owners)) > 1
        name[rows] = [names.setdefault((owner, bare), len(names)) if kept else -1 for owner in owners]
        what = {}
        for row, source in zip(rows.tolist(), table.source[rows].tolist(), strict=True):
            found = table.descriptions[table.description[row]]
            what[sources[source].label] = f"{found.opcode} {found.shape}".strip()
        conflicts.append(Conflict(join_name(fingerprint, bare), what, kept))
    return replace(table, names=tuple(names), name=name) if conflicts else table, tuple(conflicts)


def _most_trusted(table: CostTable) -> Flags:
    """bool[n]: of each name, the costs of the most trusted origin that any input has."""
    trust = {origin: place for place, origins in enumerate(_TRUST) for origin in origins}
    of_row = np.array([trust[found.origin] for found in table.descriptions], np.int8)[table.description]
    best = np.full(len(table.names) + 1, len(_TRUST), np.int8)  # the last for those left out
    np.minimum.at(best, table.name, of_row)
    chosen: Flags = (table.name >= 0) & (of_row == best[table.name])
    return chosen


def _collectives(table: CostTable) -> set[int]:
    """Names that are a collective in any input."""
    return {
        number
        for number, found in table.described
        if (found.kind or Cost(table.names[number][1], 0.0).likely_kind) == CostKind.COLLECTIVE
    }


def _merged(
    table: CostTable, chosen: Flags, collectives: Collection[int], options: MergeOptions
) -> tuple[dict[int, Cost], dict[int, dict[str, float]]]:
    """By name, one cost; for collectives also the occurrences that it was derived from."""
    rows = np.flatnonzero(chosen)
    rows = rows[np.argsort(table.name[rows], kind="stable")]
    tables = least_over_ranks(table, chosen) if options.of == Of.RANKS else {}
    tables = {number: found for number, found in tables.items() if number in collectives}
    over_executions = options.collective_stat or parse_statistic("median")
    over_inputs = options.collective_stat or (parse_statistic("min") if options.of == Of.RANKS else options.stat)
    name, first, counts = np.unique(table.name[rows], return_index=True, return_counts=True)
    single = np.repeat(counts == 1, counts)
    of_collective = np.isin(table.name[rows], [*collectives])
    costs = {
        **{number: table.cost(row) for number, row in zip(name.tolist(), rows[first].tolist(), strict=True)},
        **dict(from_inputs(table, rows[~single & ~of_collective], options.stat)),
        **dict(from_inputs(table, rows[~single & of_collective & ~np.isin(table.name[rows], [*tables])], over_inputs)),
    }
    texts: dict[int, list[Description]] = {}
    for number, found in table.described if chosen.all() else table.descriptions_of(rows):
        texts.setdefault(number, []).append(found)
    for number in name[counts > 1].tolist():
        cost = costs[number]
        if number in tables:
            cost = from_occurrences(cost._replace(slowest_us=None), tables[number], over_executions)
        costs[number] = _described(cost, texts[number])
    for number, slowest_us in _slowest_us(table, rows, options.of).items():
        costs[number] = costs[number]._replace(slowest_us=slowest_us)
    return costs, tables


def _described(cost: Cost, texts: Sequence[Description]) -> Cost:
    """The cost with what its inputs together say of it."""
    traced = {found.trace_name for found in texts}
    unknown = any(found.origin == Origin.UNKNOWN for found in texts)
    return cost._replace(
        kind=next((found.kind for found in texts if found.kind), CostKind.UNKNOWN),
        opcode=next((found.opcode for found in texts if found.opcode), ""),
        shape=next((found.shape for found in texts if found.shape), ""),
        origin=Origin.UNKNOWN if unknown else texts[0].origin,
        trace_name=texts[0].trace_name if len(traced) == 1 else "",
    )


def _slowest_us(table: CostTable, rows: Codes, of: Of) -> dict[int, float]:
    """By name, the time on the slowest rank: of ranks what the input with the slowest says, of runs the mean.

    Inputs say nothing of each other's ranks in the same execution, so of ranks the figure is a lower bound. It is taken
    from one input as a whole, since the maximum of each instruction for itself adds up to more than any rank took.
    """
    rows = rows[np.isfinite(table.slowest_us[rows])]
    if not len(rows):
        return {}
    if of == Of.RANKS:
        sums = np.bincount(table.source[rows], weights=table.slowest_us[rows])
        rows = rows[table.source[rows] == sums.argmax()]
    name = table.name[rows]
    counts = np.bincount(name)
    sums = np.bincount(name, weights=table.slowest_us[rows])
    return {number: float(sums[number] / counts[number]) for number in np.flatnonzero(counts).tolist()}


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


def _lonely(sources: Sequence[Source], options: MergeOptions) -> list[str]:
    """The ranks that the inputs lack: all together, or each run on its own."""
    if options.of == Of.RANKS:
        return missing_ranks([source.provenance for source in sources])
    return [f"{source.label}: {line}" for source in sources for line in missing_ranks([source.provenance])]


def _provenance(sources: Sequence[Source], options: MergeOptions, exact: int) -> dict[str, object]:
    return {
        "tool": f"pgle {__version__}",
        "merged_of": options.of.value,
        "stat": options.stat.name,
        "collective_stat": options.collective_stat.name if options.collective_stat else "",
        "collectives_by_occurrence": exact,
        "modules": list(united_modules([source.provenance for source in sources])),
        "inputs": [
            {
                "name": source.label,
                "names": source.entries,
                "warnings": list(source.warnings),
                "provenance": dict(source.provenance),
            }
            for source in sources
        ],
    }
