"""Columns out of an Nsight Systems export, whichever form it has.

Tables are created lazily by nsys and columns come and go with the schema (2.7 in 2021 to 3.28 in 2026), so tables and
columns are asked for by name, and an absent optional column reads as all `NULL`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

Ints: TypeAlias = npt.NDArray[np.int64]
Columns: TypeAlias = tuple[Ints, ...]

NULL = -(2**63 - 1)
"""What a database NULL becomes in an integer column."""

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
