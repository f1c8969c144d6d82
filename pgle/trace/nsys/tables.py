"""Columns out of an Nsight Systems export, as SQLite or as one parquet or arrow file per table.

Tables are created lazily by nsys and columns come and go with the schema (2.7 in 2021 to 3.28 in 2026), so tables and
columns are asked for by name, and an absent optional column reads as all `NULL`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from pgle.errors import UserError

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


SUFFIXES = (".parquet", ".arrow")


class ArrowTables:
    """A directory of Parquet or Arrow files.

    Raises:
        UserError: it holds no such files, one is damaged, or pyarrow is not installed.
    """

    def __init__(self, path: Path) -> None:
        try:
            import pyarrow
        except ImportError:
            remedy = "`pip install pyarrow`, or export with `nsys export --type sqlite`"
            raise UserError("reading Parquet or Arrow files needs pyarrow", where=path, remedy=remedy) from None
        self.path = path
        self._errors = (pyarrow.ArrowException, OSError, ValueError, TypeError, OverflowError)
        self._files = {file.stem: file for file in sorted(path.iterdir()) if file.suffix in SUFFIXES}
        if not self._files:
            remedy = "give what `nsys export --type parquetdir` wrote"
            raise UserError("no .parquet or .arrow files in this directory", where=path, remedy=remedy)
        self.format = (
            "nsys-parquet" if any(file.suffix == ".parquet" for file in self._files.values()) else "nsys-arrow"
        )
        self._open: dict[str, Any] = {}

    def _dataset(self, table: str) -> Any:
        """The table as a pyarrow dataset, or None."""
        if table not in self._files:
            return None
        if table not in self._open:
            import pyarrow.dataset

            file = self._files[table]
            kind = "parquet" if file.suffix == ".parquet" else "ipc"
            try:
                self._open[table] = pyarrow.dataset.dataset(file, format=kind)
            except self._errors as error:
                raise self._damaged(table, error) from None
        return self._open[table]

    def _damaged(self, table: str, error: BaseException) -> UserError:
        detail = str(error).partition("\n")[0][:120]
        return UserError(f"damaged file ({detail})", where=self._files[table], remedy="export the report again")

    def columns(self, table: str) -> frozenset[str]:
        """See `Tables`."""
        dataset = self._dataset(table)
        return frozenset() if dataset is None else frozenset(dataset.schema.names)

    def count(self, table: str) -> int:
        """See `Tables`."""
        dataset = self._dataset(table)
        return 0 if dataset is None else int(dataset.count_rows())

    def integers(
        self, table: str, columns: Sequence[str], *, keep: tuple[str, Sequence[int]] | None = None
    ) -> Iterator[Columns]:
        """See `Tables`."""
        dataset = self._dataset(table)
        if dataset is None:
            return
        import pyarrow.dataset

        chosen = None if keep is None else pyarrow.dataset.field(keep[0]).isin(list(keep[1]))
        present = [name for name in columns if name in self.columns(table)]
        try:
            scan = dataset.scanner(columns=present, filter=chosen, batch_size=BATCH_ROWS, use_threads=False)
            for batch in scan.to_batches():
                if batch.num_rows:
                    found = {name: _integers(batch.column(name)) for name in present}
                    yield tuple(found.get(name, np.full(batch.num_rows, NULL, np.int64)) for name in columns)
        except self._errors as error:
            raise self._damaged(table, error) from None

    def rows(
        self, table: str, columns: Sequence[str], *, like: tuple[str, Sequence[str]] | None = None
    ) -> Iterator[tuple[object, ...]]:
        """See `Tables`."""
        if not set(columns) <= self.columns(table):
            return
        try:
            for batch in self._dataset(table).scanner(columns=list(columns), use_threads=False).to_batches():
                where = None if like is None else columns.index(like[0])
                beginnings = () if like is None else tuple(like[1])
                for row in zip(*(_values(batch.column(name)) for name in columns), strict=True):
                    text = "" if where is None else row[where]
                    if where is None or (isinstance(text, str) and text.startswith(beginnings)):
                        yield row
        except self._errors as error:
            raise self._damaged(table, error) from None

    def close(self) -> None:
        """See `Tables`."""
        self._open.clear()


def _values(column: Any) -> list[object]:
    """An Arrow column as Python values, large unsigned numbers as signed, like SQLite's."""
    import pyarrow as pa

    values: list[object] = column.to_pylist()
    if pa.types.is_uint64(column.type):
        return [value - 2**64 if isinstance(value, int) and value >= 2**63 else value for value in values]
    return values


def _integers(column: Any) -> Ints:
    """An Arrow column as int64, nulls as `NULL`."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_uint64(column.type):  # as signed, like SQLite's
        column = pc.fill_null(column, 2**63 + 1)
        unsigned: Ints = column.to_numpy(zero_copy_only=False).view(np.int64)
        return unsigned
    result: Ints = pc.fill_null(pc.cast(column, pa.int64()), NULL).to_numpy(zero_copy_only=False)
    return result
