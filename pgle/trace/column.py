"""Columns: those that grow, for tables whose length is not known beforehand, and their distinct values."""

from __future__ import annotations

from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt

Number = TypeVar("Number", bound=np.generic)

BLOCK_BYTES = 32 << 20  # from this size on, glibc always maps memory of its own (M_MMAP_THRESHOLD in `mallopt(3)`)

MANY = 1 << 17
"""A column of so many values is likely to become long. Short ones stay small: new memory is zeroed 2 MiB at a time."""


class Column(Generic[Number]):
    """A column that grows by whole batches and is joined once.

    Batches are copied into blocks so large that the C library gives their memory back as soon as they are freed; kept
    as they come, they would leave holes that add up to a third of the memory of a long trace.

    Args:
        dtype: of its values.
        most: how many there are at most, where that is known: then it is one block, never copied. What of it is not
            filled takes no memory.
    """

    def __init__(self, dtype: type[Number], most: int = 0) -> None:
        self._dtype = dtype
        self._full: list[npt.NDArray[Number]] = []
        self._block = np.empty(most, dtype)
        self._used = 0

    def __len__(self) -> int:
        return sum(map(len, self._full)) + self._used

    def append(self, values: npt.NDArray[np.generic]) -> None:
        """Add values, as this column's type."""
        while len(values):
            if self._used == len(self._block):
                size = max(len(values), BLOCK_BYTES // self._block.itemsize if len(self) >= MANY else 2 * self._used)
                if self._used:
                    self._full.append(self._block)
                self._block, self._used = np.empty(size, self._dtype), 0
            count = min(len(values), len(self._block) - self._used)
            self._block[self._used : self._used + count] = values[:count]
            self._used += count
            values = values[count:]

    def join(self) -> npt.NDArray[Number]:
        """The whole column; it is empty afterwards, and each block is given back as soon as it is copied."""
        parts = [*self._full, self._block[: self._used]]
        self._full, self._block, self._used = [], np.empty(0, self._dtype), 0
        if len(parts) == 1:
            return parts[0]
        joined, end = np.empty(sum(map(len, parts)), self._dtype), 0
        while parts:
            part = parts.pop(0)
            joined[end : end + len(part)] = part
            end += len(part)
        return joined


def distinct(values: npt.NDArray[Number]) -> npt.NDArray[Number]:
    """The distinct values, ascending.

    As `np.unique`, which (like `np.median`) imports `numpy.ma` to ask whether these are masked: a tenth of what a small
    conversion takes to start.
    """
    ordered = np.sort(values)
    new = np.ones(len(ordered), np.bool_)
    new[1:] = ordered[1:] != ordered[:-1]
    return ordered[new]


def median(values: npt.NDArray[np.number]) -> float:
    """The median of at least one value."""
    ordered = np.sort(values)
    return float((ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2)
