"""The columns of an Nsight Systems export in SQLite.

Tables are created lazily by nsys and columns come and go with the schema (2.7 in 2021 to 3.28 in
2026), so tables and columns are asked for by name, and an absent optional column reads as all
`NULL`.

A trace has millions of short rows. SQLite returns one value at a time, which takes four fifths of a
conversion. So pgle decodes integer columns from the pages of the file. Rows with equal headers have
each column at the same offset, so a few numpy calls decode a whole group. SQLite reads the blocks
that are stored in another way. Every position that is read is checked against the end of its page.

File format: https://www.sqlite.org/fileformat2.html, sections 1.6 (B-tree pages) and 2.1 (records).
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import quote

import numpy as np
import numpy.typing as npt

from pgle.errors import UserError
from pgle.files import read_head
from pgle.next import typed
from pgle.trace.columns import NO_ROWS, Ints
from pgle.trace.nsys import REPORT_MAGIC, SQLITE_MAGIC

Columns: TypeAlias = tuple[Ints, ...]

NULL = -(2**63 - 1)  # the value of a database NULL in an integer column
# runtime and driver API calls of CUDA (eventClass 1)
API = "CUPTI_ACTIVITY_KIND_RUNTIME"
PROCESS = ~np.int64(0xFFFFFF)  # mask that turns a globalTid into its globalPid

BATCH_ROWS = 1 << 17
"""Rows of one batch: enough to keep numpy busy, few enough for the processor's cache."""

Bytes: TypeAlias = npt.NDArray[np.uint8]

# bytes of a record's header that are decoded; SQLite allows 2,000 columns
MAX_HEADER = 4096
# pages decoded together; their working arrays fit into the processor's cache
BLOCK_BYTES = 1 << 19
# types of a table's pages; other types belong to an index or a WITHOUT ROWID table
INTERIOR = 5
LEAF = 13
MAX_DEPTH = 20  # A deeper tree is damaged: four levels hold more rows than a file can.
# longest text that is read; SQLite copies a text several times
MAX_VALUE_BYTES = 1 << 24

_WIDTH = (0, 1, 2, 3, 4, 6, 8, 8, 0, 0)
"""Bytes of a value by serial type; types 8 and 9 are the constants 0 and 1, 7 is a float."""


class Tables:
    """An export of ``--type sqlite`` as named tables with named columns, opened read-only."""

    def __init__(self, path: Path) -> None:
        self.path = path
        _check_sqlite(path)
        uri = f"file:{quote(os.fsencode(path.resolve()))}?mode=ro&immutable=1"
        with self._reading():
            self._connection = sqlite3.connect(uri, uri=True)
            self._connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_VALUE_BYTES)
            self._connection.execute("PRAGMA trusted_schema = OFF")
            self._read_schema()
        self._file = path.open("rb", buffering=0)
        head = self._file.read(100)
        self._page_bytes = _page_bytes(head)
        self._usable = self._page_bytes - head[20]
        self._count = path.stat().st_size // self._page_bytes

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """Turn errors of SQLite and numpy on a damaged file into a `UserError`."""
        try:
            yield
        except (sqlite3.Error, TypeError, ValueError, OverflowError) as error:
            detail = str(error).partition("\n")[0][:120]
            remedy = (
                "export the report again with `nsys export --type sqlite "
                "--force-overwrite true`"
            )
            raise UserError(
                f"damaged database ({detail})", where=self.path, remedy=remedy
            ) from None

    def _read_schema(self) -> None:
        """Read of each table: its columns by position, its root page, and whether rows hold all
        values.
        """
        query = """SELECT m.name, m.rootpage, c.name,
                   c.pk = 0 AND c.hidden = 0 AND c.dflt_value IS NULL
                   FROM sqlite_master m, pragma_table_xinfo(m.name) c WHERE m.type = 'table'"""
        views = self._connection.execute(
            "SELECT name FROM sqlite_master WHERE type = 'view'"
        )
        self._views = {name for (name,) in views}
        # position of each column, by table and name
        self._columns: dict[str, dict[str, int]] = {}
        # root page of each table; 0 if rows do not hold the values of all its columns
        self._root: dict[str, int] = {}
        for table, root, column, is_stored in self._connection.execute(query):
            found = self._columns.setdefault(table, {})
            found[column] = len(found)
            self._root.setdefault(table, int(root or 0))
            if not is_stored:
                self._root[table] = 0

    def columns(self, table: str) -> frozenset[str]:
        """Return the column names of a table; empty if the table does not exist.

        A view raises `UserError`, because its rows may never end.
        """
        if table in self._views:
            remedy = "export the report again with `nsys export --type sqlite`"
            raise UserError(
                f"{table} is a view, no table", where=self.path, remedy=remedy
            )
        return frozenset(self._columns.get(table, ()))

    def has_any(self, beginning: str) -> bool:
        """Whether any table or view has a name with this beginning."""
        names = (*self._columns, *self._views)
        return any(name.startswith(beginning) for name in names)

    def count(self, table: str) -> int:
        """Return about how many rows a table has, for progress only.

        The estimate is the span of row ids, which SQLite finds without a scan.
        """
        if not self._root.get(table):
            return 0
        lowest = f'SELECT min(rowid) FROM "{table}"'
        highest = f'SELECT max(rowid) FROM "{table}"'
        with self._reading():
            low = self._connection.execute(lowest).fetchone()[0]
            high = self._connection.execute(highest).fetchone()[0]
        return 0 if low is None else int(high) - int(low) + 1

    def integers(
        self,
        table: str,
        columns: Sequence[str],
        *,
        keep: tuple[str, Sequence[int]] | None = None,
    ) -> Iterator[Columns]:
        """Yield batches of integer columns.

        Args:
            table: name of the table.
            columns: names of the columns.
            keep: a column and the values whose rows are wanted.
        """
        known = self._columns.get(table, {})
        wanted = [*columns]
        if keep is not None:
            wanted.append(keep[0])
            if keep[0] not in known:
                return
        present = [name for name in dict.fromkeys(wanted) if name in known]
        if not present:
            return
        with self._reading():
            for batch in self._batches(table, present):
                found = dict(zip(present, batch, strict=True))
                if keep is not None:
                    found = _kept(found, *keep)
                rows = len(found[present[0]])
                if rows:
                    null = np.full(rows, NULL)
                    yield tuple(found.get(name, null) for name in columns)

    def whole(
        self,
        table: str,
        columns: Sequence[str],
        *,
        keep: tuple[str, Sequence[int]] | None = None,
    ) -> Columns:
        """Return all rows at once, else as `integers`; empty columns if the table does not
        exist.
        """
        none = (NO_ROWS,) * len(columns)
        return _joined([none, *self.integers(table, columns, keep=keep)])

    def _batches(self, table: str, columns: Sequence[str]) -> Iterator[Columns]:
        """Yield batches of existing columns, decoded from pages if the table is stored plainly."""
        root = self._root[table]
        leaves = self._leaves(root) if root else None
        if leaves is None:
            yield from self._asked(table, columns, "")
            return
        waiting: list[Columns] = []
        rows = 0
        step = max(BLOCK_BYTES // self._page_bytes, 1)
        for at in range(0, len(leaves), step):
            block = self._block(table, columns, leaves[at : at + step])
            waiting.append(block)
            rows += len(block[0])
            if rows >= BATCH_ROWS:
                yield _joined(waiting)
                waiting = []
                rows = 0
        if waiting:
            yield _joined(waiting)

    def _asked(
        self, table: str, columns: Sequence[str], where: str
    ) -> Iterator[Columns]:
        """Yield batches of columns that SQLite reads value by value."""
        chosen = ", ".join(f'ifnull("{name}", {NULL})' for name in columns)
        query = f'SELECT {chosen} FROM "{table}" {where}'
        with closing(self._connection.execute(query)) as cursor:
            while rows := cursor.fetchmany(BATCH_ROWS):
                values = np.array(rows)
                if values.dtype != np.int64:
                    raise TypeError("a number is expected, and something else is there")
                yield tuple(np.ascontiguousarray(values.T))

    def rows(
        self,
        table: str,
        columns: Sequence[str],
        *,
        like: tuple[str, Sequence[str]] | None = None,
    ) -> Iterator[tuple[object, ...]]:
        """Yield the rows of a small table.

        Args:
            table: name of the table.
            columns: names of the columns.
            like: a column and beginnings of text; only rows with one of these are wanted.
        """
        if not set(columns) <= self.columns(table):
            return
        chosen = ", ".join(f'"{name}"' for name in columns)
        query = f'SELECT {chosen} FROM "{table}"'
        values: list[str] = []
        if like is not None:
            column, beginnings = like
            values = [f"{beginning}*" for beginning in beginnings]
            query += " WHERE " + " OR ".join([f'"{column}" GLOB ?'] * len(values))
        with self._reading():
            cursor = self._connection.execute(query, values)
            with closing(cursor):
                yield from cursor

    def texts(self, beginnings: Sequence[str] = ("",)) -> Iterator[tuple[int, str]]:
        """Yield the numbered texts that other tables refer to, if they begin with one of
        `beginnings`.
        """
        like = ("value", beginnings)
        for identity, text in self.rows("StringIds", ("id", "value"), like=like):
            if isinstance(identity, int) and isinstance(text, str):
                yield identity, text

    def close(self) -> None:
        """Close the file."""
        self._file.close()
        self._connection.close()

    def _leaves(self, root: int) -> Ints | None:
        """Return the leaf pages of the table whose tree begins at page `root`, in row order.

        None if the tree has another form.
        """
        level = np.array([root], np.int64)
        for _ in range(MAX_DEPTH):
            kind = int(self._pages(level[:1])[0])
            if kind == LEAF:
                return level
            if kind != INTERIOR:
                return None
            level = np.concatenate([self._children(page) for page in level.tolist()])
            if len(level) > self._count:
                raise ValueError("a table has more pages than the file")
        raise ValueError("a table's tree has no leaves")

    def _children(self, page: int) -> Ints:
        """Return the pages that an interior page names, in row order."""
        raw = self._pages(np.array([page]))
        count = int.from_bytes(raw[3:5].tobytes())
        cells_end = 12 + 2 * count
        is_whole = raw[0] == INTERIOR and cells_end <= self._usable
        cells = raw[12:cells_end].view(">u2").astype(np.int64)
        if not is_whole or (cells > self._usable - 4).any():
            raise ValueError(f"page {page} is damaged")
        children = _window(raw, 4)[cells].view(">u4")
        last = raw[8:12].view(">u4")
        return np.append(children, last).astype(np.int64)

    def _pages(self, numbers: Ints) -> Bytes:
        """Return the bytes of some pages, one after the other, followed by zeros."""
        if (numbers < 1).any() or (numbers > self._count).any():
            raise ValueError("a page is outside the file")
        size = self._page_bytes
        end = len(numbers) * size
        raw = np.empty(end + 2 * MAX_HEADER, np.uint8)
        raw[end:] = 0
        # pages that follow each other in the file are read at once
        breaks = np.flatnonzero(np.diff(numbers) != 1) + 1
        for first, last in pairwise([0, *breaks.tolist(), len(numbers)]):
            part = raw[first * size : last * size].data
            position = (int(numbers[first]) - 1) * size
            count = os.preadv(self._file.fileno(), [part], position)
            if count != len(part):
                raise ValueError("the file ends within a page")
        return raw

    def _block(self, table: str, columns: Sequence[str], leaves: Ints) -> Columns:
        """Return the columns of the rows on some pages. SQLite reads rows with overflow pages."""
        raw = self._pages(leaves)
        cell, page_end = self._cells(raw, len(leaves))
        payload, row_id = _varints(raw, cell)
        record = _behind_varint(raw, row_id)
        local = self._local(payload)
        if (payload < 0).any() or (record + local > page_end).any():
            raise ValueError("a row reaches beyond its page")
        wanted = [self._columns[table][name] for name in columns]
        found = _decoded(raw, record, local, payload, wanted)
        if found is None:
            first, last = _varints(raw, row_id[[0, -1]])[0].tolist()
            where = f"WHERE rowid BETWEEN {first} AND {last}"
            parts = [*self._asked(table, columns, where)]
            if sum(len(part[0]) for part in parts) != len(cell):
                raise ValueError("rows are not in order")
            found = _joined(parts)
        return found

    def _local(self, payload: Ints) -> Ints:
        """Return how many bytes of each payload lie on the row's own page.

        A long payload continues on overflow pages: section 1.6, "the amount of payload that
        spills".
        """
        longest = self._usable - 35
        is_long = payload > longest
        if not is_long.any():
            return payload
        least = (self._usable - 12) * 32 // 255 - 23
        local = least + (payload - least) % (self._usable - 4)
        local[local > longest] = least
        return np.where(is_long, local, payload)

    def _cells(self, raw: Bytes, pages: int) -> tuple[Ints, Ints]:
        """Return the position of each row in the bytes of leaf pages, and the end of its page's
        content.
        """
        table = raw[: pages * self._page_bytes].reshape(pages, self._page_bytes)
        count = table[:, 3].astype(np.int64) << 8 | table[:, 4]
        most = int(count.max(initial=0))
        if (table[:, 0] != LEAF).any() or 8 + 2 * most > self._usable:
            raise ValueError("a page of rows is damaged")
        pointers = np.ascontiguousarray(table[:, 8 : 8 + 2 * most]).view(">u2")
        begin = np.arange(pages) * self._page_bytes
        used = np.arange(most) < count[:, None]
        cell = (begin[:, None] + pointers)[used]
        end = np.repeat(begin + self._usable, count)
        if (cell >= end).any():
            raise ValueError("a page of rows is damaged")
        return cell, end


def _check_sqlite(path: Path) -> None:
    """Raise `UserError` if the header shows that a file is not a complete SQLite database."""
    head = read_head(path, 100)
    size = path.stat().st_size
    again = "export the report again with `nsys export --type sqlite`"
    if not size:
        raise UserError("is empty", where=path, remedy=again)
    if head.startswith(REPORT_MAGIC):
        export = typed("nsys", "export", "--type", "sqlite", path)
        raise UserError(
            "is a report, not an export", where=path, remedy=f"export it: {export}"
        )
    if not head.startswith(SQLITE_MAGIC):
        raise UserError("not a SQLite database", where=path, remedy=again)
    # The header holds the page count at byte 28. It is valid if bytes 24 and 92 hold equal numbers
    # (https://www.sqlite.org/fileformat2.html).
    pages = int.from_bytes(head[28:32]) if head[24:28] == head[92:96] else 0
    log = path.with_name(path.name + "-wal")
    if log.exists() and log.stat().st_size:
        fold = typed("sqlite3", path, "PRAGMA wal_checkpoint(TRUNCATE)")
        remedy = f"export the report again, or fold that in: {fold}"
        raise UserError(f"part of it is still in {log.name}", where=path, remedy=remedy)
    whole = pages * _page_bytes(head)
    if len(head) < 100 or size < whole:
        what = f"truncated: {size:,} of {whole:,} bytes"
        raise UserError(what, where=path, remedy=again)


def _joined(batches: Sequence[Columns]) -> Columns:
    """Join at least one batch of columns."""
    return tuple(map(np.concatenate, zip(*batches, strict=True)))


def _kept(
    columns: dict[str, Ints], name: str, values: Sequence[int]
) -> dict[str, Ints]:
    """Return the rows whose column of this name has one of some values."""
    chosen = np.logical_or.reduce([columns[name] == value for value in values])
    if chosen.all():
        return columns
    return {each: column[chosen] for each, column in columns.items()}


def _page_bytes(head: bytes) -> int:
    """Return the page size in bytes, from the header; the stored value 1 means 65,536."""
    size = int.from_bytes(head[16:18])
    return 65536 if size == 1 else size


def _decoded(
    raw: Bytes, record: Ints, local: Ints, payload: Ints, wanted: Sequence[int]
) -> Columns | None:
    """Return some columns of rows whose records lie on their pages.

    None if a wanted value lies elsewhere.

    Args:
        raw: the bytes of the pages.
        record: int64[n], where each record begins.
        local, payload: int64[n], the record's bytes on this page, and all its bytes.
        wanted: the columns, by position in the table.
    """
    out = np.empty((len(wanted), len(record)), np.int64)
    waiting = [(np.arange(len(record)), max(wanted) + 2)]
    while waiting:
        rows, width = waiting.pop()
        for head, group in _by_head(raw, record, rows, width):
            layout = _layout(head, max(wanted) + 1)
            if layout is None:
                if width >= MAX_HEADER:
                    raise ValueError("a row has an endless header")
                waiting.append((group, 2 * width))
                continue
            if (payload[group] < layout.size).any():
                raise ValueError("a row is shorter than its header says")
            span = layout.size - layout.places[min(wanted)]
            # A long text between wanted columns is one such case.
            is_far = span + 8 > MAX_HEADER
            if is_far or (local[group] < layout.size).any():
                return None
            begins = record[group]
            _fill(out, group, raw, begins, layout=layout, wanted=wanted)
    return tuple(out)


def _by_head(
    raw: Bytes, record: Ints, rows: Ints, width: int
) -> Iterator[tuple[bytes, Ints]]:
    """Yield groups of rows whose records begin with the same `width` bytes, with these bytes."""
    words = _words(raw, record[rows], width)
    while len(rows):
        head = words[0].tobytes()[:width]
        same = np.logical_and.reduce([column == column[0] for column in words.T])
        if same.all():
            yield head, rows
            return
        yield head, rows[same]
        rows = rows[~same]
        words = words[~same]


def _fill(
    out: Ints,
    rows: Ints,
    raw: Bytes,
    record: Ints,
    *,
    layout: _Layout,
    wanted: Sequence[int],
) -> None:
    """Fill the columns for rows whose records have one layout."""
    places = layout.places
    begin = places[min(wanted)]
    stride = places[max(wanted)] - begin + 16
    records = _window(raw, stride)[record + begin]
    for column, place in zip(out, wanted, strict=True):
        kind = layout.types[place]
        if kind > 9 or kind == 7:
            raise TypeError("a number is expected, and something else is there")
        width = _WIDTH[kind]
        values: Any = NULL if kind == 0 else kind - 8
        if width:
            # a value of 3 or 6 bytes is read as eight bytes
            is_odd = width in (3, 6)
            stored = ">i8" if is_odd else f">i{width}"
            offset = places[place] - begin
            values = np.ndarray(len(rows), stored, records, offset, (stride,))
            if is_odd:
                values = values.astype(np.int64) >> 64 - 8 * width
        if len(rows) == len(column):
            column[:] = values
        else:
            column[rows] = values


@dataclass(frozen=True)
class _Layout:
    """Where the first columns of a record lie."""

    types: Sequence[int]  # serial type of each column
    places: Sequence[int]  # offset of each column in the record, in bytes
    size: int  # the end of the last of these columns, in bytes


def _layout(head: bytes, columns: int) -> _Layout | None:
    """Return the layout of a record's first columns.

    None if `head` ends before the last of these columns. Columns that the record lacks are NULL.
    """
    numbers = _varints_in(head)
    header, at = next(numbers, (0, MAX_HEADER))
    if at > len(head):
        return None
    types = []
    places = []
    size = header
    for _ in range(columns):
        kind = 0
        if at < header:
            kind, at = next(numbers, (0, MAX_HEADER))
            if at == MAX_HEADER:
                return None
            if header < at < MAX_HEADER:
                raise ValueError("a row's header is damaged")
        types.append(kind)
        places.append(size)
        size += _WIDTH[kind] if kind < 10 else (kind - 12) // 2
    return _Layout(types, places, size)


def _varints_in(head: bytes) -> Iterator[tuple[int, int]]:
    """Yield each complete base-128 integer in some bytes, with the position after it."""
    value = 0
    for at, byte in enumerate(head, 1):
        value = value << 7 | byte & 0x7F
        if byte < 0x80:
            yield value, at
            value = 0


def _varints(raw: Bytes, at: Ints) -> tuple[Ints, Ints]:
    """Return the base-128 integer at each position, and the position after it."""
    byte = raw[at]
    value = (byte & 0x7F).astype(np.int64)
    at = at + 1
    long = np.flatnonzero(byte & 0x80)
    for _ in range(8):
        if not len(long):
            break
        byte = raw[at[long]]
        value[long] = value[long] << 7 | byte & 0x7F
        at[long] += 1
        long = long[byte >= 0x80]
    return value, at


def _behind_varint(raw: Bytes, at: Ints) -> Ints:
    """Return the position after the base-128 integer at each position."""
    for _ in range(8):
        more = raw[at] >= 0x80
        if not more.any():
            break
        at = at + more
    return at + 1


def _window(raw: Bytes, width: int) -> npt.NDArray[Any]:
    """Return a view with the `width` bytes from each position as one item."""
    return np.ndarray(len(raw) - width + 1, f"V{width}", raw, strides=(1,))


def _words(raw: Bytes, at: Ints, width: int) -> npt.NDArray[np.uint64]:
    """Return uint64[n, m]: the `width` bytes at each of n positions, padded with zeros."""
    count = -(-width // 8)
    words = _window(raw, 8 * count)[at].view("<u8").reshape(-1, count)
    bits_of_last = 8 * (width - 8 * (count - 1))
    words[:, -1] &= np.uint64((1 << bits_of_last) - 1)
    return words
