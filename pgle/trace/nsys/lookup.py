"""Whole-column helpers: tables from integers to numbers, rows by value."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from pgle.trace.nsys.tables import Ints

Codes: TypeAlias = npt.NDArray[np.int32]


def by_value(values: Ints) -> Iterator[tuple[int, npt.NDArray[np.intp] | slice]]:
    """Each distinct value with the rows that have it; rows keep their order."""
    if not len(values):
        return
    if values[0] == values[-1] and bool((values == values[0]).all()):
        yield int(values[0]), slice(None)
        return
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    edges = np.flatnonzero(np.diff(ordered)) + 1
    for rows in np.split(order, edges):
        yield int(values[rows[0]]), rows


class Lookup:
    """A function from integers to numbers, as a table where keys lie close together, else by bisection.

    Of equal keys the last counts. Unknown keys give `missing`.
    """

    def __init__(self, keys: npt.NDArray[np.integer], values: Codes, missing: int) -> None:
        self._missing = np.int32(missing)
        self._low = int(keys.min()) if len(keys) else 0
        self._high = int(keys.max()) if len(keys) else -1
        span = self._high - self._low + 1
        self._dense = span <= 8 * len(keys) + 65536
        if self._dense:
            self._table = np.full(span, missing, np.int32)
            self._table[keys - self._low] = values
        else:
            order = np.argsort(keys, kind="stable")
            self._keys, self._table = keys[order], values[order]

    def __call__(self, keys: Ints) -> Codes:
        """The number of each key."""
        if not len(self._table):
            return np.full(len(keys), self._missing, np.int32)
        if self._dense:
            inside = (keys >= self._low) & (keys <= self._high)
            found: Codes = self._table[np.where(inside, keys, self._low) - self._low]
            return np.where(inside, found, self._missing)
        at = np.searchsorted(self._keys, keys, side="right") - 1
        return np.where(self._keys[at] == keys, self._table[at], self._missing)
