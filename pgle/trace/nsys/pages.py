"""Integer columns of a SQLite table, decoded from its pages a block at a time.

A trace is millions of short rows, and SQLite hands out one value after the other: that is four fifths of the time of a
conversion. This file finds the pages and the position of each row; `pgle.trace.nsys.records` decodes the rows.

File format: https://www.sqlite.org/fileformat2.html, section 1.6 (B-tree pages). Every position that is read from the
file is checked against the end of its page.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt

from pgle.trace.nsys.records import MAX_HEADER, Bytes, Rows, behind_varint, varints, window
from pgle.trace.nsys.tables import Columns, Ints

BLOCK_BYTES = 1 << 19  # pages decoded at once: their working arrays stay in the processor's cache
INTERIOR, LEAF = 5, 13  # kinds of a table's pages; other kinds belong to an index or a table WITHOUT ROWID
MAX_DEPTH = 20  # deeper trees are damage; four levels hold more rows than a file can


class NoPlainTable(Exception):  # noqa: N818 - no error of the user's: SQLite reads such a table
    """The table is not stored as rows with numbers of their own."""


@dataclass(frozen=True, eq=False)
class Block:
    """Rows of some pages."""

    columns: Columns  # int64[n] each, database NULLs as `NULL`
    elsewhere: tuple[Ints, Ints]  # rows whose values lie on overflow pages, and the row ids by which SQLite finds them


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
        return np.append(window(raw, 4)[cells].view(">u4").astype(np.int64), last)

    def _read(self, numbers: npt.NDArray[np.int64]) -> Bytes:
        """The bytes of pages, one after the other, and zeros behind them."""
        if (numbers < 1).any() or (numbers > self._count).any():
            raise ValueError("a page is outside the file")
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
        payload, row_id = varints(raw, cell)
        record = behind_varint(raw, row_id)
        # a long payload continues on other pages: section 1.6, "the amount of payload that spills"
        longest, least = self._usable - 35, (self._usable - 12) * 32 // 255 - 23
        local = payload
        if (spilt := payload > longest).any():
            spill = least + (payload - least) % (self._usable - 4)
            local = np.where(spilt, np.where(spill <= longest, spill, least), payload)
        if (payload < 0).any() or (record + local > page_end).any():
            raise ValueError("a row reaches beyond its page")
        out = np.empty((len(wanted), len(cell)), np.int64)
        rows = Rows(raw, record, local, payload, out, wanted)
        elsewhere = rows.decode(np.arange(len(cell)), max(wanted) + 2)
        return Block(tuple(out), (elsewhere, varints(raw, row_id[elsewhere])[0]))

    def _cells(self, raw: Bytes, pages: int) -> tuple[Ints, Ints]:
        """Position of each row in the bytes of leaf pages, and where its page's content ends."""
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
