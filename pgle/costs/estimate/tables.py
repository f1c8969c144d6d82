"""Measured tables of collectives and matrix products: XLA's own, read between their points.

The tables are in `pgle/xla/data/perf_tables`; their README names the sources. Times are read between
neighbouring points on logarithmic scales. Points outside, and GPUs and fabrics without a table, are scaled by the
figures of the hardware.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import cache, lru_cache
from importlib import resources
from itertools import accumulate
from math import exp, inf, log

Curve = tuple[Sequence[float], Sequence[float]]  # logarithms of bytes, ascending, and of microseconds, never falling


def collective_us(gpu: str, kind: str, group: int, size_bytes: float, slower: float = 1.0) -> float:
    """What a collective takes inside one NVLink domain.

    Args:
        gpu: of `Hardware.measured_as`.
        kind: ``all-gather``, ``permute-ring`` …, as the table has them.
        group: devices; between the table's counts on a logarithmic scale, beyond them the nearest.
        size_bytes: as nccl-tests count them.
        slower: how much longer the bytes take than in the table, without the latency.

    Returns:
        Microseconds; below the smallest size of the table the smallest size's time, above the largest in proportion to
        the bytes.

    Raises:
        KeyError: there is no such table (`groups_measured`).
    """
    curves, x = _curves(gpu, kind, slower), log(max(size_bytes, 1.0))
    times = [_at(each, x) for each in curves.values()]
    return exp(_between(log(max(group, 1)), [log(known) for known in curves], times))


def groups_measured(gpu: str, kind: str) -> Sequence[int]:
    """The group sizes of a table, ascending."""
    return sorted(_points().get((gpu, kind), ()))


def sizes_measured(gpu: str, kind: str) -> Sequence[float]:
    """The bytes of a table, ascending, of all its groups."""
    return sorted({exp(size) for points in _points()[gpu, kind].values() for size, _ in points})


def read(curve: Curve, size_bytes: float) -> float:
    """Microseconds of a curve at that size; above its largest in proportion to the bytes."""
    return exp(_at(curve, log(max(size_bytes, 1.0))))


def _at(curve: Curve, x: float) -> float:
    sizes, times = curve
    return _between(x, sizes, times) + max(x - sizes[-1], 0.0)


@cache
def _points() -> Mapping[tuple[str, str], Mapping[int, list[tuple[float, float]]]]:
    points: dict[tuple[str, str], dict[int, list[tuple[float, float]]]] = defaultdict(lambda: defaultdict(list))
    for gpu, kind, group, size, us in rows("collectives.tsv"):
        points[gpu, kind][int(group)].append((log(float(size)), log(float(us))))
    return points


@lru_cache(maxsize=256)
def _curves(gpu: str, kind: str, slower: float) -> Mapping[int, Curve]:
    """Curves by group, ascending, of which a larger group never takes less; all have the sizes of all."""
    groups = _points()[gpu, kind]
    sizes = sorted({size for points in groups.values() for size, _ in points})
    found: dict[int, Curve] = {}
    beyond = [inf] * len(sizes)
    for group in sorted(groups, reverse=True):
        own = _slowed(curve(groups[group]), slower)
        beyond = [min(_at(own, size), more) for size, more in zip(sizes, beyond, strict=True)]
        found[group] = sizes, beyond
    return dict(sorted(found.items()))


def _slowed(curve: Curve, slower: float) -> Curve:
    """A curve whose times above its least are so much longer."""
    sizes, times = curve
    least = exp(times[0])
    return sizes, [log(least + (exp(time) - least) * slower) for time in times]


def curve(points: Sequence[tuple[float, float]]) -> Curve:
    """Points as a curve that never falls: each takes the least time of all that move as many bytes or more.

    More bytes take no less time, and what disturbs a measurement only adds to it. The tables of H100 and B200 have
    123 µs for an all-reduce of a kilobyte between two GPUs, 15 µs for one of 64; up to 1 MiB this curve is a fifth
    below their median. XLA's later and quieter tables (GB200) and real jobs agree with the curve, not with the median
    (docs/evidence/estimates.md).
    """
    sizes, times = zip(*sorted(points), strict=True)
    return sizes, tuple(accumulate(reversed(times), min))[::-1]


def _between(x: float, places: Sequence[float], values: Sequence[float]) -> float:
    """The value at `x` between two neighbours; outside, the value of the nearest."""
    index = bisect_right(places, x)
    if index in (0, len(places)):
        return values[max(index - 1, 0)]
    part = (x - places[index - 1]) / (places[index] - places[index - 1])
    return values[index - 1] * (1 - part) + values[index] * part


def rows(name: str) -> list[list[str]]:
    """The rows of a shipped table, ``collectives.tsv`` or ``matmuls.tsv``, as text."""
    text = resources.files("pgle.xla").joinpath(f"data/perf_tables/{name}").read_text(encoding="utf-8")
    return [line.split("\t") for line in text.splitlines()[1:]]
