"""Integer columns out of the records of many rows at once.

Rows are grouped by their headers. In rows with equal headers each column has the same place and width,
so that a whole group is decoded by a few numpy calls.

Format: https://www.sqlite.org/fileformat2.html, section 2.1 (records).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pgle.trace.nsys.tables import NULL, Ints

Bytes = npt.NDArray[np.uint8]

MAX_HEADER = 4096  # bytes of a record's header that are looked at; 2,000 columns are SQLite's own limit

_WIDTH = (0, 1, 2, 3, 4, 6, 8, 8, 0, 0)
"""Bytes of a value by serial type; types 8 and 9 are the constants 0 and 1, 7 is a float."""


@dataclass(frozen=True, eq=False)
class Rows:
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
        if stride > MAX_HEADER:  # a long text between wanted columns
            return np.concatenate([elsewhere, rows])
        records = window(self.raw, stride)[self.record[rows] + begin]
        everything = len(rows) == self.out.shape[1]
        for column, place in zip(self.out, self.wanted, strict=True):
            kind = types[place]
            if kind > 9 or kind == 7:
                raise TypeError("a number is expected, and something else is there")
            width = _WIDTH[kind]
            values: Any = NULL if kind == 0 else kind - 8
            if width:
                stored = f">i{width}" if width in (1, 2, 4, 8) else ">i8"  # of 3 and 6 bytes: the first of eight
                values = np.ndarray(len(rows), stored, records, places[place] - begin, (stride,))
                if width in (3, 6):
                    values = values.astype(np.int64) >> 64 - 8 * width
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


def varints(raw: Bytes, at: Ints) -> tuple[Ints, Ints]:
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


def behind_varint(raw: Bytes, at: Ints) -> Ints:
    """The places behind the integers of base 128 at each place."""
    for _ in range(8):
        more = raw[at] >= 0x80
        if not more.any():
            break
        at = at + more
    return at + 1


def window(raw: Bytes, width: int) -> npt.NDArray[Any]:
    """At each place the `width` bytes from there on, as one item."""
    return np.ndarray(len(raw) - width + 1, f"V{width}", raw, strides=(1,))


def _words(raw: Bytes, at: Ints, width: int) -> npt.NDArray[np.uint64]:
    """uint64[n, m], the `width` bytes at each of n places, and zeros behind them."""
    count = -(-width // 8)
    words = window(raw, 8 * count)[at].view("<u8").reshape(-1, count)
    words[:, -1] &= np.uint64((1 << 8 * (width - 8 * (count - 1))) - 1)
    return words
