"""What matrix products take over their sizes: XLA's measured table, carried beyond it and put in order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from math import exp, log2
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from pgle.costs.estimate.tables import rows
from pgle.xla.targets import KERNEL_US, MEMORY_EFFICIENCY, TABLE, Hardware

_Array: TypeAlias = npt.NDArray[np.float64]

GRID_K = (256, 512, 1024, 2048, 4096)
GRID_B = (1, 2, 4)
MATMULS_OF = {"h100-sxm": "h100-sxm", "b200": "b200", "gb200": "b200", "gb300": "b200"}
"""By `Hardware.measured_as`: the GPU with the nearest table of matrix products."""

TILE = 128
"""Rows and columns of the output tile that one streaming multiprocessor computes (NVIDIA, "Matrix Multiplication
Background User's Guide": tile and wave quantization)."""

SPLIT_K = 1024  # depth at which a matmul with few tiles is split over more multiprocessors


def product_us(batch: int, sides: Sequence[int], family: str, item_bytes: float, hardware: Hardware) -> float:
    """Microseconds of matrix products on one GPU.

    Args:
        batch: products.
        sides: m, n and k of each.
        family: `dtype_family` of the operands.
        item_bytes: of an element.
        hardware: the GPU.
    """
    x = [_place(batch, _BATCHES), *(_place(side, _SIDES) for side in sides)]
    return _between(_surface(family, item_bytes, hardware), x)


@cache
def measured_products(gpu: str, dtype: str) -> npt.NDArray[np.float64]:
    """Microseconds of matrix products, over `GRID_B` and three times `GRID_K` (m, n, k); nan where none was kept.

    Args:
        gpu: of `MATMULS_OF`.
        dtype: ``bf16``, ``f32`` (on TF32 tensor cores) or ``f8``.
    """
    grid = np.full((len(GRID_B), *[len(GRID_K)] * 3), np.nan)
    for name, of, *dimensions, tflops in rows("matmuls.tsv"):
        if (name, of) == (gpu, dtype):
            b, m, n, k = map(int, dimensions)
            place = GRID_B.index(b), GRID_K.index(m), GRID_K.index(n), GRID_K.index(k)
            grid[place] = 2.0 * b * m * n * k / (float(tflops) * 1e6)
    return grid


_TABLE_BYTES = {"bf16": 2.0, "f8": 1.0, "f32": 4.0}  # of an element
_BATCHES, _SIDES = 13, 21  # powers of two at which products are worked out: up to 4,096 products, sides up to 2^20


def _place(value: int, points: int) -> tuple[int, float]:
    """The power of two below a value, and how far it is to the next; beyond the last by more than one."""
    place = log2(max(value, 1))
    index = min(int(place), points - 2)
    return index, place - index


def _between(surface: npt.NDArray[np.float64], x: Sequence[tuple[int, float]]) -> float:
    """A value between the 16 points around it, on logarithmic scales; beyond the last as between the last two."""
    corner = surface[tuple(slice(index, index + 2) for index, _ in x)]
    for _, part in x:
        corner = corner[0] * (1 - part) + corner[1] * part
    return exp(float(corner))


@lru_cache(maxsize=64)
def _surface(family: str, item_bytes: float, hardware: Hardware) -> npt.NDArray[np.float64]:
    """Logarithms of microseconds over logarithms of batch, m, n and k.

    The table's own GPU takes the measured time. Another GPU, size or type takes the time of the nearest product of the
    table, times how much longer its roofline is. What falls with a larger product is levelled:
    half way, on a logarithmic scale, between the most of all that are smaller and the least of all that are larger.
    """
    base = TABLE[MATMULS_OF[hardware.measured_as]]
    table = {"f16": "bf16", "f8": "f8", "tf32": "f32"}.get(family, "bf16")
    sides = 2.0 ** np.arange(_SIDES)
    b, m, n, k = np.meshgrid(2.0 ** np.arange(_BATCHES), sides, sides, sides, indexing="ij", sparse=True)
    batch = np.minimum(np.arange(_BATCHES), len(GRID_B) - 1)
    side = np.clip(np.arange(_SIDES) - int(log2(GRID_K[0])), 0, len(GRID_K) - 1)
    of_table = _Roofline(base.peak_tflops(table), _TABLE_BYTES[table], base)
    near = [np.minimum(b, GRID_B[-1]), *(np.clip(each, GRID_K[0], GRID_K[-1]) for each in (m, n, k))]
    own = _Roofline(hardware.peak_of(family), item_bytes, hardware)
    roofline, nearest = own.us(b, m, n, k), of_table.us(*near)
    measured = measured_products(base.name, table)[np.ix_(batch, side, side, side)]
    times = np.log(np.where(np.isnan(measured), nearest, measured) * roofline / nearest)
    most, least = times, times[::-1, ::-1, ::-1, ::-1]
    for axis in range(times.ndim):
        most, least = np.maximum.accumulate(most, axis), np.minimum.accumulate(least, axis)
    middle = (most + least[::-1, ::-1, ::-1, ::-1]) / 2
    return np.maximum(middle, np.log(own.least_us(b, m, n, k)))


@dataclass(frozen=True, slots=True)
class _Roofline:
    """The larger of memory time and arithmetic of matrix products of one type."""

    peak_tflops: float
    item_bytes: float
    hardware: Hardware

    def us(self, b: _Array, m: _Array, n: _Array, k: _Array) -> _Array:
        """With the multiprocessors that too few tiles leave idle; few deep tiles are split over more.

        A last wave of tiles that leaves some idle does not count: libraries choose other tiles then.
        """
        cores, tiles = self.hardware.cores, b * np.ceil(m / TILE) * np.ceil(n / TILE)
        depth = np.maximum(np.minimum(k, SPLIT_K), tiles * k / cores)
        operations = 2.0 * np.minimum(m, TILE) * np.minimum(n, TILE) * depth
        arithmetic = operations * cores / (self.peak_tflops * self.hardware.matmul_efficiency * 1e6)
        return KERNEL_US + np.maximum(arithmetic, self._memory_us(b, m, n, k) / MEMORY_EFFICIENCY)

    def least_us(self, b: _Array, m: _Array, n: _Array, k: _Array) -> _Array:
        """At the peaks of the data sheet."""
        return np.maximum(2.0 * b * m * n * k / (self.peak_tflops * 1e6), self._memory_us(b, m, n, k))

    def _memory_us(self, b: _Array, m: _Array, n: _Array, k: _Array) -> _Array:
        return b * (m * k + k * n + m * n) * self.item_bytes / (self.hardware.memory_gb_s * 1e3)
