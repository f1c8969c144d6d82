"""The cost of one name out of several profiles: occurrence by occurrence, or a statistic over the inputs.

Percentiles interpolate linearly, as `numpy.percentile` does. jaxlib's ``aggregate_profiled_instructions`` takes the
element ``int(percentile / 100 * (n - 1))`` of the n sorted costs instead, and counts every input once.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from pgle.costs.profile.statistic import Statistic
from pgle.costs.profile.value import Cost


def least_over_ranks(tables: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Each occurrence of a collective with the least time over the ranks.

    Args:
        tables: by rank, as `Profile.occurrences`. A rank takes part in the replica groups that it has keys of; of a
            group, only occurrences that all its ranks saw count.

    Returns:
        In the same form; empty where a rank has none, or ranks of a group have none in common.
    """
    if not all(tables):
        return {}
    result: dict[str, float] = {}
    by_group: dict[str, list[Mapping[str, float]]] = {}
    for table in tables:
        for group in {_group(key) for key in table}:
            of_group = {key: value for key, value in table.items() if _group(key) == group}
            by_group.setdefault(group, []).append(of_group)
    for parts in by_group.values():
        common = set.intersection(*(set(part) for part in parts))
        if not common:
            return {}
        result |= {key: min(part[key] for part in parts) for key in common}
    return dict(sorted(result.items(), key=lambda item: tuple(map(int, item[0].split(".")))))


def _group(key: str) -> str:
    """The replica group of ``EXECUTION.OCCURRENCE[.GROUP]``."""
    return key.split(".")[2] if key.count(".") == 2 else "0"


def from_occurrences(base: Cost, table: Mapping[str, float], stat: Statistic) -> Cost:
    """The statistic over the occurrences of each group, then the slowest, as in `pgle.costs.measure.aggregate`."""
    groups: dict[str, list[float]] = {}
    for key, value in table.items():
        groups.setdefault(_group(key), []).append(value)
    values = max(groups.values(), key=lambda group: weighted(stat, group, [1] * len(group)))
    ones = [1] * len(values)
    low, middle, high = (weighted(Statistic("", q), values, ones) for q in (10, 50, 90))
    return replace(
        base,
        cost_us=weighted(stat, values, ones),
        samples=len(values),
        min_us=min(values),
        max_us=max(values),
        spread=(high - low) / middle if middle > 0 else 0.0,
    )


def from_inputs(base: Cost, costs: Sequence[Cost], stat: Statistic) -> Cost:
    """The statistic over inputs. The spread is the largest of theirs and of the one between them."""
    known = all(cost.samples > 0 for cost in costs)
    values = [cost.cost_us for cost in costs]
    merged = weighted(stat, values, [cost.samples if known else 1 for cost in costs])
    between = (max(values) - min(values)) / merged if merged > 0 else 0.0
    return replace(
        base,
        cost_us=merged,
        samples=sum(cost.samples for cost in costs),
        min_us=min(cost.min_us if cost.samples else cost.cost_us for cost in costs),
        max_us=max(cost.max_us if cost.samples else cost.cost_us for cost in costs),
        spread=max(between, *(cost.spread for cost in costs)),
    )


def weighted(stat: Statistic, values: Sequence[float], weights: Sequence[int]) -> float:
    """A statistic of values that each occur `weights` times; percentiles are linear between neighbours.

    Args:
        stat: which.
        values: at least one.
        weights: positive, one per value.
    """
    total = sum(weights)
    if stat.percentile is None:
        return math.fsum(value * weight for value, weight in zip(values, weights, strict=True)) / total
    position = (total - 1) * stat.percentile / 100
    ordered = sorted(zip(values, weights, strict=True))
    below, above = (_at(ordered, index) for index in (math.floor(position), math.ceil(position)))
    return below + (above - below) * (position - math.floor(position))


def _at(ordered: Iterable[tuple[float, int]], index: int) -> float:
    """The value at `index` of the sorted list in which each value is repeated by its weight."""
    for value, weight in ordered:
        index -= weight
        if index < 0:
            return value
    raise IndexError(index)
