"""Columns out of an Nsight Systems export, whichever form it has: what every form offers, and the SQLite form.

Tables are created lazily by nsys and columns come and go with the schema (2.7 in 2021 to 3.28 in 2026), so tables and
columns are asked for by name, and an absent optional column reads as all `NULL`.
"""

from __future__ import annotations

import itertools
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Protocol, TypeAlias
from urllib.parse import quote

import numpy as np
import numpy.typing as npt

from pgle.errors import UserError

Ints: TypeAlias = npt.NDArray[np.int64]
Columns: TypeAlias = tuple[Ints, ...]

NULL = -(2**63 - 1)
"""What a database NULL becomes in an integer column."""

BATCH_ROWS = 1 << 17
"""Rows read at once: large enough to keep numpy busy, small enough to stay in the processor's cache."""

SQLITE_MAGIC = b"SQLite format 3\0"
REPORT_MAGIC = b"NVIDIA Tegra Profiler Report"
"""How a ``.nsys-rep`` begins."""


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


class SqliteTables:
    """An export of ``--type sqlite``, opened read-only.

    Raises:
        UserError: the file is missing, empty, truncated or no SQLite database.
    """

    format = "nsys-sqlite"

    def __init__(self, path: Path) -> None:
        self.path = path
        check_sqlite(path)
        uri = f"file:{quote(str(path.resolve()))}?mode=ro&immutable=1"
        with reading(path):
            self._connection = sqlite3.connect(uri, uri=True)
            self._connection.execute("PRAGMA trusted_schema = OFF")
            self._columns = self._read_columns()

    def _read_columns(self) -> dict[str, frozenset[str]]:
        query = "SELECT m.name, c.name FROM sqlite_master m, pragma_table_info(m.name) c WHERE m.type = 'table'"
        found: dict[str, set[str]] = {}
        for table, column in self._connection.execute(query):
            found.setdefault(table, set()).add(column)
        return {table: frozenset(columns) for table, columns in found.items()}

    def columns(self, table: str) -> frozenset[str]:
        """See `Tables`."""
        return self._columns.get(table, frozenset())

    def count(self, table: str) -> int:
        """See `Tables`: the largest row id, which SQLite finds without a scan."""
        if table not in self._columns:
            return 0
        with reading(self.path):
            return int(self._connection.execute(f'SELECT max(rowid) FROM "{table}"').fetchone()[0] or 0)

    def integers(
        self, table: str, columns: Sequence[str], *, keep: tuple[str, Sequence[int]] | None = None
    ) -> Iterator[Columns]:
        """See `Tables`."""
        if table not in self._columns:
            return
        present = self._columns[table]
        chosen = ", ".join(f'ifnull("{name}", {NULL})' if name in present else str(NULL) for name in columns)
        query = f'SELECT {chosen} FROM "{table}"'
        if keep is not None:
            query += f' WHERE "{keep[0]}" IN ({",".join(str(int(value)) for value in keep[1])})'
        width = len(columns)
        with reading(self.path), closing(self._connection.execute(query)) as cursor:
            cells = itertools.chain.from_iterable(cursor)
            while len(batch := np.fromiter(itertools.islice(cells, width * BATCH_ROWS), np.int64)):
                yield tuple(np.ascontiguousarray(column) for column in batch.reshape(-1, width).T)

    def rows(
        self, table: str, columns: Sequence[str], *, like: tuple[str, Sequence[str]] | None = None
    ) -> Iterator[tuple[object, ...]]:
        """See `Tables`."""
        if not set(columns) <= self.columns(table):
            return
        query = f"""SELECT {", ".join(f'"{name}"' for name in columns)} FROM "{table}\""""
        values: list[str] = []
        if like is not None:
            query += " WHERE " + " OR ".join(f'"{like[0]}" GLOB ?' for _ in like[1])
            values = [f"{beginning}*" for beginning in like[1]]
        with reading(self.path), closing(self._connection.execute(query, values)) as cursor:
            yield from cursor

    def close(self) -> None:
        """See `Tables`."""
        self._connection.close()


class reading:  # noqa: N801 - reads as a word: `with reading(path):`
    """Turn what SQLite and numpy raise on a damaged file into a `UserError`."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, sqlite3.Error | TypeError | ValueError | OverflowError | UnicodeError):
            detail = str(error).partition("\n")[0][:120]
            remedy = "export the report again with `nsys export --type sqlite --force-overwrite true`"
            raise UserError(f"damaged database ({detail})", where=self._path, remedy=remedy) from None


def check_sqlite(path: Path) -> None:
    """Raise `UserError` unless `path` is a whole SQLite file, judged by its header and size."""
    try:
        with path.open("rb") as file:
            head = file.read(100)
        size = path.stat().st_size
    except FileNotFoundError:
        raise UserError("no such file", where=path, remedy="check the path") from None
    except OSError as error:
        raise UserError(f"cannot be read ({error.strerror or error})", where=path) from None
    again = "export the report again with `nsys export --type sqlite`"
    if not size:
        raise UserError("is empty", where=path, remedy=again)
    if head.startswith(REPORT_MAGIC):
        raise UserError("is a report, not an export", where=path, remedy=f"`nsys export --type sqlite {path.name}`")
    if not head.startswith(SQLITE_MAGIC):
        raise UserError("not a SQLite database", where=path, remedy=again)
    # https://www.sqlite.org/fileformat2.html: page size at 16 (1 means 65536), pages at 28, valid where 24 equals 92
    page_bytes = int.from_bytes(head[16:18]) if head[16:18] != b"\0\1" else 65536
    pages = int.from_bytes(head[28:32]) if head[24:28] == head[92:96] else 0
    if len(head) < 100 or size < pages * page_bytes:
        raise UserError(f"truncated: {size:,} of {pages * page_bytes:,} bytes", where=path, remedy=again)
