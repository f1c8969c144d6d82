"""XLA's own measurements of collectives and matrix products, read between their points.

The tables are those of `pgle/xla/data/perf_tables`; their README says where they come from. Times are read between
neighbouring points on logarithmic scales. What lies outside, and GPUs and fabrics without a table, is scaled by the
figures of the hardware.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import resources
from itertools import accumulate, product
from math import exp, log, prod

Curve = tuple[Sequence[float], Sequence[float]]  # logarithms of bytes, ascending, and of microseconds, never falling

GRID_K = (256, 512, 1024, 2048, 4096)
GRID_B = (1, 2, 4)
_STAND_IN = {"gb200": "b200", "gb300": "b200"}


def collective_us(gpu: str, kind: str, group: int, size_bytes: float) -> float | None:
    """What a collective takes inside one NVLink domain.

    Args:
        gpu: of `Hardware.measured_as`.
        kind: ``all-gather``, ``permute-ring`` …, as the table has them.
        group: devices; between those of the table read on a logarithmic scale, beyond them the nearest.
        size_bytes: as nccl-tests count them.

    Returns:
        Microseconds; below the smallest size of the table those of the smallest, above the largest in proportion to
        the bytes. None where there is no such table.
    """
    curves = _curves().get((gpu, kind))
    if curves is None:
        return None
    groups = sorted(curves)
    times = [_read(curves[known], size_bytes) for known in groups]
    return exp(_between(log(max(group, 1)), [log(known) for known in groups], times))


def groups_measured(gpu: str, kind: str) -> Sequence[int]:
    """The group sizes of a table, ascending."""
    return sorted(_curves().get((gpu, kind), ()))


def _read(curve: Curve, size_bytes: float) -> float:
    """The logarithm of the microseconds at that size."""
    sizes, times = curve
    x = log(max(size_bytes, 1.0))
    return _between(x, sizes, times) + max(x - sizes[-1], 0.0)


@cache
def _curves() -> Mapping[tuple[str, str], Mapping[int, Curve]]:
    points: dict[tuple[str, str], dict[int, list[tuple[float, float]]]] = defaultdict(lambda: defaultdict(list))
    for gpu, kind, group, size, us in rows("collectives.tsv"):
        points[gpu, kind][int(group)].append((log(float(size)), log(float(us))))
    return {key: {group: curve(rows) for group, rows in groups.items()} for key, groups in points.items()}


def curve(points: Sequence[tuple[float, float]]) -> Curve:
    """Points as a curve that never falls: each takes the least time of all that move as many bytes or more.

    More bytes take no less time, and what disturbs a measurement, a cold start above all, only adds to it: the tables
    have 123 µs for an all-reduce of a kilobyte between two H100s, 15 µs for one of 64.
    """
    sizes, times = zip(*sorted(points), strict=True)
    return sizes, tuple(accumulate(reversed(times), min))[::-1]


def matmul_us(gpu: str, dtype: str, b: float, m: float, n: float, k: float) -> float | None:
    """What `b` products of m × k and k × n take, inside the grid of the table.

    Args:
        gpu: of `Hardware.measured_as`.
        dtype: ``bf16``, ``f32`` (on TF32 tensor cores) or ``f8``.
        b, m, n, k: each within 1 … 4 and 256 … 4096.

    Returns:
        Microseconds, read between the corners of the cell on logarithmic scales; None where there is no such table.
    """
    grid = _grids().get((_STAND_IN.get(gpu, gpu), dtype))
    if grid is None:
        return None
    axes = [_position(GRID_B, b), *(_position(GRID_K, value) for value in (m, n, k))]
    corners = product(*([(index, 1 - part), (index + 1, part)] for index, part in axes))
    total, weight = 0.0, 0.0
    for corner in corners:
        share = prod(part for _, part in corner)
        value = grid.get(tuple(index for index, _ in corner))
        if share > 0 and value is not None:
            total, weight = total + share * value, weight + share
    return exp(total / weight) if weight else None


def _position(grid: Sequence[int], value: float) -> tuple[int, float]:
    """The cell of a grid that holds a value, and how far inside it, from 0 to 1."""
    x = _between(log(value), [log(point) for point in grid], range(len(grid)))
    index = min(int(x), len(grid) - 2)
    return index, x - index


def _between(x: float, places: Sequence[float], values: Sequence[float]) -> float:
    """The value at `x` between two neighbours; outside, that of the nearest."""
    index = bisect_right(places, x)
    if index in (0, len(places)):
        return values[max(index - 1, 0)]
    part = (x - places[index - 1]) / (places[index] - places[index - 1])
    return values[index - 1] * (1 - part) + values[index] * part


Grid = Mapping[tuple[int, ...], float]  # logarithms of microseconds by position in `GRID_B` and three times `GRID_K`


@cache
def _grids() -> Mapping[tuple[str, str], Grid]:
    grids: dict[tuple[str, str], dict[tuple[int, ...], float]] = defaultdict(dict)
    for gpu, dtype, *dimensions, tflops in rows("matmuls.tsv"):
        b, m, n, k = map(int, dimensions)
        place = (GRID_B.index(b), GRID_K.index(m), GRID_K.index(n), GRID_K.index(k))
        grids[gpu, dtype][place] = log(2.0 * b * m * n * k / (float(tflops) * 1e6))
    return grids


def rows(name: str) -> list[list[str]]:
    """The rows of a shipped table, ``collectives.tsv`` or ``matmuls.tsv``, as text."""
    text = resources.files("pgle.xla").joinpath(f"data/perf_tables/{name}").read_text(encoding="utf-8")
    return [line.split("\t") for line in text.splitlines()[1:]]
