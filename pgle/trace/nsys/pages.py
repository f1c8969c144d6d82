"""Integer columns of a SQLite table, decoded from its pages a block at a time.

A trace is millions of short rows, and SQLite hands out one value after the other: that is four fifths of the time of a
conversion. Here the rows of a block are grouped by their headers. In rows with equal headers each column lies at the
same place and has the same width, so that a whole group is decoded by a few numpy calls.

File format: https://www.sqlite.org/fileformat2.html, sections 1.6 (B-tree pages) and 2.1 (records). Every position
that is read from the file is checked against the end of its page.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pgle.trace.nsys.tables import NULL, Columns, Ints

Bytes = npt.NDArray[np.uint8]

BLOCK_BYTES = 1 << 19
"""Pages decoded at once: their working arrays stay in the processor's cache."""

INTERIOR, LEAF = 5, 13
"""Kinds of a table's pages; other kinds belong to an index or a table WITHOUT ROWID."""

MAX_DEPTH = 20
"""Deeper trees are damage; four levels hold more rows than a file can."""

MAX_HEADER = 4096
"""Bytes of a record's header that are looked at; 2,000 columns are SQLite's own limit."""

_WIDTH = (0, 1, 2, 3, 4, 6, 8, 8, 0, 0)
"""Bytes of a value by serial type; types 8 and 9 are the constants 0 and 1, 7 is a float."""


class NoPlainTable(Exception):  # noqa: N818 - no error of the user's: SQLite reads such a table
    """The table is not stored as rows with numbers of their own."""


@dataclass(frozen=True)
class Block:
    """Rows of some pages.

    Attributes:
        columns: int64[n] each, database NULLs as `NULL`.
        elsewhere: rows whose values lie on overflow pages, and the row ids by which SQLite finds them.
    """

    columns: Columns
    elsewhere: tuple[Ints, Ints]


class Pages:
    """A SQLite file as pages.

    Args:
        path: the file, whose header is in order.
    """

    def __init__(self, path: Path) -> None:
        self._file = path.open("rb", buffering=0)
        head = self._file.read(100)
        size = int.from_bytes(head[16:18])
        self._page_bytes = 65536 if size == 1 else size
        self._usable = self._page_bytes - head[20]
        self._count = path.stat().st_size // self._page_bytes

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def leaves(self, root: int) -> npt.NDArray[np.int64]:
        """The numbers of the pages that hold the rows of the table whose tree begins at page `root`, in row order.

        Raises:
            NoPlainTable: the tree is of another kind.
            ValueError: it is damaged.
        """
        level = np.array([root], np.int64)
        for _ in range(MAX_DEPTH):
            kind = int(self._read(level[:1])[0])
            if kind == LEAF:
                return level
            if kind != INTERIOR:
                raise NoPlainTable
            level = np.concatenate([self._children(level[at : at + 1]) for at in range(len(level))])
            if len(level) > self._count:
                raise ValueError("a table has more pages than the file")
        raise ValueError("a table's tree has no leaves")

    def _children(self, page: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        raw = self._read(page)
        count = int.from_bytes(raw[3:5].tobytes())
        if raw[0] != INTERIOR or 12 + 2 * count > self._usable:
            raise ValueError(f"page {int(page[0])} is damaged")
        cells = raw[12 : 12 + 2 * count].view(">u2").astype(np.int64)
        if (cells > self._usable - 4).any():
            raise ValueError(f"page {int(page[0])} is damaged")
        last = raw[8:12].view(">u4").astype(np.int64)
        return np.append(_window(raw, 4)[cells].view(">u4").astype(np.int64), last)

    def _read(self, numbers: npt.NDArray[np.int64]) -> Bytes:
        """The bytes of pages, one after the other, and zeros behind them."""
        if (numbers < 1).any() or (numbers > self._count).any():
            raise ValueError("a page lies outside the file")
        size = self._page_bytes
        raw = np.empty(len(numbers) * size + 2 * MAX_HEADER, np.uint8)
        raw[len(numbers) * size :] = 0
        edges = [0, *(np.flatnonzero(np.diff(numbers) != 1) + 1).tolist(), len(numbers)]
        for first, last in pairwise(edges):
            part = raw[first * size : last * size].data
            if os.preadv(self._file.fileno(), [part], (int(numbers[first]) - 1) * size) != len(part):
                raise ValueError("the file ends within a page")
        return raw

    def blocks(self, leaves: npt.NDArray[np.int64], wanted: Sequence[int]) -> Iterator[Block]:
        """The rows on `leaves`, block by block.

        Args:
            leaves: page numbers.
            wanted: positions of columns in the table.

        Raises:
            ValueError: a page is damaged.
            TypeError: a wanted column holds anything but integers.
        """
        step = max(BLOCK_BYTES // self._page_bytes, 1)
        for at in range(0, len(leaves), step):
            yield self._block(leaves[at : at + step], wanted)

    def _block(self, leaves: npt.NDArray[np.int64], wanted: Sequence[int]) -> Block:
        raw = self._read(leaves)
        cell, page_end = self._cells(raw, len(leaves))
        payload, row_id = _varints(raw, cell)
        record = _behind_varint(raw, row_id)
        # a long payload continues on other pages: section 1.6, "the amount of payload that spills"
        longest, least = self._usable - 35, (self._usable - 12) * 32 // 255 - 23
        local = payload
        if (spilt := payload > longest).any():
            spill = least + (payload - least) % (self._usable - 4)
            local = np.where(spilt, np.where(spill <= longest, spill, least), payload)
        if (payload < 0).any() or (record + local > page_end).any():
            raise ValueError("a row reaches beyond its page")
        out = np.empty((len(wanted), len(cell)), np.int64)
        rows = _Rows(raw, record, local, payload, out, wanted)
        elsewhere = rows.decode(np.arange(len(cell)), max(wanted) + 2)
        return Block(tuple(out), (elsewhere, _varints(raw, row_id[elsewhere])[0]))

    def _cells(self, raw: Bytes, pages: int) -> tuple[Ints, Ints]:
        """Where each row lies in the bytes of leaf pages, and where its page's content ends."""
        table = raw[: pages * self._page_bytes].reshape(pages, self._page_bytes)
        count = table[:, 3].astype(np.int64) << 8 | table[:, 4]
        most = int(count.max(initial=0))
        if (table[:, 0] != LEAF).any() or 8 + 2 * most > self._usable:
            raise ValueError("a page of rows is damaged")
        pointers = np.ascontiguousarray(table[:, 8 : 8 + 2 * most]).view(">u2").astype(np.int64)
        begin = np.arange(pages) * self._page_bytes
        used = np.arange(most) < count[:, None]
        cell, end = (pointers + begin[:, None])[used], np.repeat(begin + self._usable, count)
        if (cell >= end).any():
            raise ValueError("a page of rows is damaged")
        return cell, end


@dataclass(frozen=True)
class _Rows:
    """The records of one block: where each begins, its bytes on this page and in all, and the columns to fill."""

    raw: Bytes
    record: Ints
    local: Ints
    payload: Ints
    out: npt.NDArray[np.int64]
    wanted: Sequence[int]

    def decode(self, rows: Ints, width: int) -> Ints:
        """Fill the columns of `rows`, grouped by the first `width` bytes of their headers.

        Returns:
            The rows whose wanted values are not on this page.
        """
        words = _words(self.raw, self.record[rows], width)
        elsewhere = []
        while len(rows):
            same = np.logical_and.reduce([column == column[0] for column in words.T])
            head = words[0].tobytes()[:width]
            if bool(same.all()):
                group, rows = rows, rows[:0]
            else:
                group, rows, words = rows[same], rows[~same], words[~same]
            elsewhere.append(self._group(group, head))
        return np.concatenate(elsewhere) if elsewhere else np.empty(0, np.int64)

    def _group(self, rows: Ints, head: bytes) -> Ints:
        """Fill the columns of rows whose headers begin with `head`."""
        layout = _layout(head, max(self.wanted) + 1)
        if layout is None:
            if len(head) >= MAX_HEADER:
                raise ValueError("a row has an endless header")
            return self.decode(rows, 2 * len(head))
        types, places, size = layout
        if (self.payload[rows] < size).any():
            raise ValueError("a row is shorter than its header says")
        inside = self.local[rows] >= size
        elsewhere = rows[~inside]
        if len(elsewhere):
            rows = rows[inside]
        begin = places[min(self.wanted)]
        stride = size - begin + 8
        if not len(rows):
            return elsewhere
        if stride > MAX_HEADER:  # a long text stands between wanted columns
            return np.concatenate([elsewhere, rows])
        records = _window(self.raw, stride)[self.record[rows] + begin]
        everything = len(rows) == self.out.shape[1]
        for column, place in zip(self.out, self.wanted, strict=True):
            kind = types[place]
            if kind > 9 or kind == 7:
                raise TypeError("a number is expected, and something else is there")
            width = _WIDTH[kind]
            values: Any = NULL if kind == 0 else kind - 8
            if width:
                values = np.ndarray(len(rows), ">i8", records, places[place] - begin, (stride,)).astype(np.int64)
                values >>= 64 - 8 * width
            column[slice(None) if everything else rows] = values
        return elsewhere


def _layout(head: bytes, columns: int) -> tuple[list[int], list[int], int] | None:
    """Serial types of the first columns, their places in the record, and the bytes up to the last one's end.

    None where `head` is cut off before the last of them. Columns that the record lacks are NULL.
    """
    numbers = iter(_varints_in(head))
    header, at = next(numbers, (0, MAX_HEADER))
    if at > len(head):
        return None
    types, places, size = [], [], header
    for _ in range(columns):
        kind = 0
        if at < header:
            kind, at = next(numbers, (0, MAX_HEADER))
            if at > header and at < MAX_HEADER:
                raise ValueError("a row's header is damaged")
            if at == MAX_HEADER:
                return None
        types.append(kind)
        places.append(size)
        size += _WIDTH[kind] if kind < 10 else (kind - 12) // 2
    return types, places, size


def _varints_in(head: bytes) -> Iterator[tuple[int, int]]:
    """The whole integers of base 128 in some bytes, each with the place behind it."""
    value = 0
    for at, byte in enumerate(head, 1):
        value = value << 7 | byte & 0x7F
        if byte < 0x80:
            yield value, at
            value = 0


def _varints(raw: Bytes, at: Ints) -> tuple[Ints, Ints]:
    """The integers of base 128 at each place, and the places behind them."""
    byte = raw[at]
    value, at = (byte & 0x7F).astype(np.int64), at + 1
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
    """The places behind the integers of base 128 at each place."""
    for _ in range(8):
        more = raw[at] >= 0x80
        if not more.any():
            break
        at = at + more
    return at + 1


def _window(raw: Bytes, width: int) -> npt.NDArray[Any]:
    """At each place the `width` bytes from there on, as one item."""
    return np.ndarray(len(raw) - width + 1, f"V{width}", raw, strides=(1,))


def _words(raw: Bytes, at: Ints, width: int) -> npt.NDArray[np.uint64]:
    """uint64[n, m], the `width` bytes at each of n places, and zeros behind them."""
    count = -(-width // 8)
    words = _window(raw, 8 * count)[at].view("<u8").reshape(-1, count)
    words[:, -1] &= np.uint64((1 << 8 * (width - 8 * (count - 1))) - 1)
    return words
