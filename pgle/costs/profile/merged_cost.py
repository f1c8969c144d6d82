"""What several profiles say, as one: the cost of each name, and the records of modules in their sidecars.

A cost is merged occurrence by occurrence, or as a statistic over the inputs.

Percentiles interpolate linearly, as `numpy.percentile` does. jaxlib's ``aggregate_profiled_instructions`` takes the
element ``int(percentile / 100 * (n - 1))`` of the n sorted costs instead, and counts every input once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, pairwise
from typing import Any

import numpy as np

from pgle.costs.profile.cost_table import Codes, CostTable, Flags
from pgle.costs.profile.value import Cost, module_records
from pgle.costs.statistic import Statistic, changes, heads, parse_statistic
from pgle.trace.column import distinct

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
    """The statistic over the occurrences of each group, then the slowest, as in `pgle.costs.measure.reduce`."""
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
