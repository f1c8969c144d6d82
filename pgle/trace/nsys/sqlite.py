"""An Nsight Systems export in its SQLite form, read by several threads.

Large tables are read through ADBC (https://arrow.apache.org/adbc), which hands out columns and lets other threads run
meanwhile; each thread reads its own run of row ids, and the runs are put out in the order of the file. Through the
standard library the same columns take 2.5 times as long with one thread, and cannot be read by two.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np

from pgle.errors import UserError
from pgle.trace.nsys.tables import BATCH_ROWS, NULL, Columns

SQLITE_MAGIC = b"SQLite format 3\0"
REPORT_MAGIC = b"NVIDIA Tegra Profiler Report"
"""How a ``.nsys-rep`` begins."""

MIN_ROWS = 8192
"""Rows for which a thread of its own is worth while."""

MAX_THREADS = 4
"""More do not help: matching, which is one thread, then takes longer than reading."""


class SqliteTables:
    """An export of ``--type sqlite``, opened read-only.

    Raises:
        UserError: the file is missing, empty, truncated or no SQLite database.
    """

    format = "nsys-sqlite"

    def __init__(self, path: Path) -> None:
        self.path = path
        self._bytes = check_sqlite(path)
        self._uri = f"file:{quote(str(path.resolve()))}?mode=ro&immutable=1"
        with reading(path):
            self._connection = sqlite3.connect(self._uri, uri=True)
            self._connection.execute("PRAGMA trusted_schema = OFF")
            self._columns = self._read_columns()
        self._threads = min(MAX_THREADS, os.cpu_count() or 1)
        self._pool = ThreadPoolExecutor(self._threads, thread_name_prefix="nsys")
        self._local = threading.local()

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
        """See `Tables`: the span of row ids, which SQLite finds without a scan."""
        low, high = self._row_ids(table)
        return high - low

    def integers(
        self, table: str, columns: Sequence[str], *, keep: tuple[str, Sequence[int]] | None = None
    ) -> Iterator[Columns]:
        """See `Tables`."""
        low, high = self._row_ids(table)
        present = self.columns(table)
        chosen = ", ".join(f'ifnull("{name}", {NULL})' if name in present else str(NULL) for name in columns)
        query = f'SELECT {chosen} FROM "{table}" WHERE rowid > {{}} AND rowid <= {{}}'
        if keep is not None:
            query += f' AND "{keep[0]}" IN ({",".join(str(int(value)) for value in keep[1])})'
        size = min(BATCH_ROWS, max(MIN_ROWS, -(-(high - low) // self._threads)))
        if high - low > self._bytes:  # a row takes more than one byte: these are no plain row ids
            size = high - low
        queries = (query.format(at, min(at + size, high)) for at in range(low, high, max(size, 1)))
        with reading(self.path):
            for batches in self._in_order(queries):
                yield from batches

    def _in_order(self, queries: Iterator[str]) -> Iterator[list[Columns]]:
        """The results of queries that run side by side, a few ahead of the reader."""
        pending: deque[Future[list[Columns]]] = deque()
        try:
            for query in queries:
                pending.append(self._pool.submit(self._read, query))
                if len(pending) > self._threads:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        finally:
            for future in pending:
                future.cancel()

    def _read(self, query: str) -> list[Columns]:
        """The result of one query, read by one of the threads."""
        import nanoarrow
        from adbc_driver_manager import AdbcStatement

        with AdbcStatement(self._adbc()) as statement:
            statement.set_options(**{"adbc.sqlite.query.batch_rows": str(BATCH_ROWS)})
            statement.set_sql_query(query)
            stream, _ = statement.execute_query()
            return [_integers(array) for array in nanoarrow.c_array_stream(stream)]

    def _adbc(self) -> Any:
        """This thread's own connection."""
        if not hasattr(self._local, "connection"):
            import adbc_driver_sqlite
            from adbc_driver_manager import AdbcConnection

            self._local.connection = AdbcConnection(adbc_driver_sqlite.connect(self._uri))
        return self._local.connection

    def _row_ids(self, table: str) -> tuple[int, int]:
        """Row ids as a half-open interval (low, high]."""
        if table not in self._columns:
            return 0, 0
        with reading(self.path):
            ends = [
                self._connection.execute(f'SELECT {end}(rowid) FROM "{table}"').fetchone()[0] for end in ("min", "max")
            ]
        return (0, 0) if ends[0] is None else (int(ends[0]) - 1, int(ends[1]))

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
        self._pool.shutdown(cancel_futures=True)
        self._connection.close()


def _integers(array: Any) -> Columns:
    """The columns of an Arrow record batch without nulls, copied: nanoarrow's buffers do not keep their batch alive.

    Raises:
        TypeError: a column holds anything but integers.
    """
    view = array.view()
    if any(array.schema.child(at).format != "l" for at in range(view.n_children)):
        raise TypeError("a number is expected, and something else is there")
    return tuple(np.array(view.child(at).buffer(1)) for at in range(view.n_children))


class reading:  # noqa: N801 - reads as a word: `with reading(path):`
    """Turn what SQLite and numpy raise on a damaged file into a `UserError`."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, sqlite3.Error | TypeError | ValueError | OverflowError) or _is_adbc(error):
            detail = str(error).partition("\n")[0][:120]
            remedy = "export the report again with `nsys export --type sqlite --force-overwrite true`"
            raise UserError(f"damaged database ({detail})", where=self._path, remedy=remedy) from None


def _is_adbc(error: BaseException | None) -> bool:
    """True for the errors of ADBC and nanoarrow, without importing either."""
    return type(error).__module__.split(".")[0] in ("adbc_driver_manager", "nanoarrow")


def check_sqlite(path: Path) -> int:
    """The size in bytes of a whole SQLite file, judged by its header.

    Raises:
        UserError: `path` is none.
    """
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
    return size
