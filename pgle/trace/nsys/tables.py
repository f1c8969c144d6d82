"""Columns out of an Nsight Systems export, whichever form it has, and how one column is looked up in another.

Tables are created lazily by nsys and columns come and go with the schema (2.7 in 2021 to 3.28 in 2026), so tables and
columns are asked for by name, and an absent optional column reads as all `NULL`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

Ints: TypeAlias = npt.NDArray[np.int64]
Codes: TypeAlias = npt.NDArray[np.integer[Any]]  # in as many bytes as they need
Columns: TypeAlias = tuple[Ints, ...]

NULL = -(2**63 - 1)  # what a database NULL becomes in an integer column
API = "CUPTI_ACTIVITY_KIND_RUNTIME"  # CUDA API calls, also of the driver (eventClass 1)
PROCESS = ~np.int64(0xFFFFFF)  # globalPid is globalTid without its thread id

BATCH_ROWS = 1 << 17
"""Rows read at once: large enough to keep numpy busy, small enough to stay in the processor's cache."""


class Tables(Protocol):
    """An export as named tables with named columns."""

    path: Path
    format: str

    def columns(self, table: str) -> frozenset[str]:
        """Its column names; empty where there is no such table."""

    def count(self, table: str) -> int:
        """About how many rows it has; for progress only, never to be allocated."""

    def integers(
        self, table: str, columns: Sequence[str], *, keep: tuple[str, Sequence[int]] | None = None
    ) -> Iterator[Columns]:
        """Batches of columns; `keep` names a column and the values whose rows are wanted."""

    def rows(
        self, table: str, columns: Sequence[str], *, like: tuple[str, Sequence[str]] | None = None
    ) -> Iterator[tuple[object, ...]]:
        """The rows of a small table; `like` names a column and the beginnings of text whose rows are wanted."""

    def close(self) -> None:
        """Release the file."""


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
            self._table: Codes = np.full(span, missing, np.int32)
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
            found = self._table[np.where(inside, keys, self._low) - self._low]
            return np.where(inside, found, self._missing)
        at = np.searchsorted(self._keys, keys, side="right") - 1
        return np.where(self._keys[at] == keys, self._table[at], self._missing)
