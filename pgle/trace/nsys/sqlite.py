"""An Nsight Systems export in its SQLite form: large tables are decoded from pages, small ones asked of SQLite."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

import numpy as np

from pgle.errors import UserError
from pgle.files import read_head
from pgle.next import typed
from pgle.trace.nsys import REPORT_MAGIC, SQLITE_MAGIC
from pgle.trace.nsys.pages import NoPlainTable, Pages
from pgle.trace.nsys.tables import BATCH_ROWS, NULL, Columns

MAX_VALUE_BYTES = 1 << 24  # no text of an export is nearly as long; SQLite copies one several times over


class SqliteTables:
    """An export of ``--type sqlite``, opened read-only.

    Raises:
        UserError: the file is missing, empty, truncated or no SQLite database.
    """

    format = "nsys-sqlite"

    def __init__(self, path: Path) -> None:
        self.path = path
        check_sqlite(path)
        uri = f"file:{quote(os.fsencode(path.resolve()))}?mode=ro&immutable=1"
        with reading(path):
            self._connection = sqlite3.connect(uri, uri=True)
            self._connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_VALUE_BYTES)
            self._connection.execute("PRAGMA trusted_schema = OFF")
            self._read_schema()
            self._pages = Pages(path)

    def _read_schema(self) -> None:
        """The columns of each table by their place, where its tree of pages begins, and whether it holds all values."""
        query = """SELECT m.name, m.rootpage, c.name, c.pk = 0 AND c.hidden = 0 AND c.dflt_value IS NULL
                   FROM sqlite_master m, pragma_table_xinfo(m.name) c WHERE m.type = 'table'"""
        views = self._connection.execute("SELECT name FROM sqlite_master WHERE type = 'view'")
        self._views = {name for (name,) in views}
        self._columns: dict[str, dict[str, int]] = {}
        self._root: dict[str, int] = {}
        for table, root, column, is_stored in self._connection.execute(query):
            found = self._columns.setdefault(table, {})
            found[column] = len(found)
            self._root[table] = int(root) if is_stored and self._root.get(table, 1) else 0

    def columns(self, table: str) -> frozenset[str]:
        """See `Tables`.

        Raises:
            UserError: it is a view; a view may never end.
        """
        if table in self._views:
            remedy = "export the report again with `nsys export --type sqlite`"
            raise UserError(f"{table} is a view, no table", where=self.path, remedy=remedy)
        return frozenset(self._columns.get(table, ()))

    def count(self, table: str) -> int:
        """See `Tables`: the span of row ids, which SQLite finds without a scan; 0 where rows have none."""
        if not self._root.get(table):
            return 0
        with reading(self.path):
            ends = [self._connection.execute(f'SELECT {end}(rowid) FROM "{table}"') for end in ("min", "max")]
            low, high = (row.fetchone()[0] for row in ends)
        return 0 if low is None else int(high) - int(low) + 1

    def integers(
        self, table: str, columns: Sequence[str], *, keep: tuple[str, Sequence[int]] | None = None
    ) -> Iterator[Columns]:
        """See `Tables`."""
        known = self._columns.get(table, {})
        present = [name for name in dict.fromkeys([*columns, *(keep[:1] if keep else ())]) if name in known]
        if not present or (keep is not None and keep[0] not in known):
            return
        with reading(self.path):
            for batch in self._batches(table, present):
                found = dict(zip(present, batch, strict=True))
                if keep is not None:
                    chosen = np.logical_or.reduce([found[keep[0]] == value for value in keep[1]])
                    if not chosen.all():
                        found = {name: column[chosen] for name, column in found.items()}
                rows = len(found[present[0]])
                if rows:
                    yield tuple(found[name] if name in found else np.full(rows, NULL) for name in columns)

    def _batches(self, table: str, columns: Sequence[str]) -> Iterator[Columns]:
        """Batches of columns that the table has, from its pages where it is stored plainly."""
        try:
            if not self._root[table]:
                raise NoPlainTable
            leaves = self._pages.leaves(self._root[table])
        except NoPlainTable:
            yield from self._asked(table, columns, "")
            return
        places = [self._columns[table][name] for name in columns]
        waiting: list[Columns] = []
        for block in self._pages.blocks(leaves, places):
            for row, row_id in zip(*(found.tolist() for found in block.elsewhere), strict=True):
                for values in self._asked(table, columns, f"WHERE rowid = {row_id}"):
                    for column, value in zip(block.columns, values, strict=True):
                        column[row] = value[0]
            waiting.append(block.columns)
            if sum(len(part[0]) for part in waiting) >= BATCH_ROWS:
                yield tuple(map(np.concatenate, zip(*waiting, strict=True)))
                waiting = []
        if waiting:
            yield tuple(map(np.concatenate, zip(*waiting, strict=True)))

    def _asked(self, table: str, columns: Sequence[str], where: str) -> Iterator[Columns]:
        """Batches of columns as SQLite gives them, a value at a time."""
        chosen = ", ".join(f'ifnull("{name}", {NULL})' for name in columns)
        with closing(self._connection.execute(f'SELECT {chosen} FROM "{table}" {where}')) as cursor:
            while rows := cursor.fetchmany(BATCH_ROWS):
                values = np.array(rows)
                if values.dtype != np.int64:
                    raise TypeError("a number is expected, and something else is there")
                yield tuple(np.ascontiguousarray(values.T))

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
        self._pages.close()
        self._connection.close()


class reading:  # noqa: N801 - reads as a word: `with reading(path):`
    """Turn what SQLite and numpy raise on a damaged file into a `UserError`."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, sqlite3.Error | TypeError | ValueError | OverflowError):
            detail = str(error).partition("\n")[0][:120]
            remedy = "export the report again with `nsys export --type sqlite --force-overwrite true`"
            raise UserError(f"damaged database ({detail})", where=self._path, remedy=remedy) from None


def check_sqlite(path: Path) -> None:
    """Look at a SQLite file's header.

    Raises:
        UserError: `path` is no SQLite file, or not the whole of one.
    """
    head, size = read_head(path, 100), path.stat().st_size
    again = "export the report again with `nsys export --type sqlite`"
    if not size:
        raise UserError("is empty", where=path, remedy=again)
    if head.startswith(REPORT_MAGIC):
        raise UserError(
            "is a report, not an export",
            where=path,
            remedy=f"export it: {typed('nsys', 'export', '--type', 'sqlite', path)}",
        )
    if not head.startswith(SQLITE_MAGIC):
        raise UserError("not a SQLite database", where=path, remedy=again)
    # https://www.sqlite.org/fileformat2.html: page size at 16 (1 means 65536), pages at 28, valid where 24 equals 92
    page_bytes = int.from_bytes(head[16:18]) if head[16:18] != b"\0\1" else 65536
    pages = int.from_bytes(head[28:32]) if head[24:28] == head[92:96] else 0
    log = path.with_name(path.name + "-wal")
    if log.exists() and log.stat().st_size:
        fold = typed("sqlite3", path, "PRAGMA wal_checkpoint(TRUNCATE)")
        remedy = f"export the report again, or fold that in: {fold}"
        raise UserError(f"part of it is still in {log.name}", where=path, remedy=remedy)
    if len(head) < 100 or size < pages * page_bytes:
        raise UserError(f"truncated: {size:,} of {pages * page_bytes:,} bytes", where=path, remedy=again)
