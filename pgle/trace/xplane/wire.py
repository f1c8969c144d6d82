"""Protocol buffer messages decoded side by side: one field of thousands of messages per step, in numpy.

Millions of events with a dozen stats each are too many for objects, and numpy has no varints. So a cursor stands in
every message of a block, and all cursors advance by one field at a time. Every position read from the input is checked
against the end of its message; a wrong one raises `DamagedError`.

Wire format: https://protobuf.dev/programming-guides/encoding/
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Ints: TypeAlias = npt.NDArray[np.int64]
Field: TypeAlias = tuple[int, int, int, int, int]
_Words: TypeAlias = npt.NDArray[np.uint64]

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
_PADDING = 32
_HIGH_BITS = np.uint64(0x8080808080808080)
_FIRST_HIGH_BIT, _FIRST_BITS = np.uint64(0x80), np.uint64(0x7F)


class DamagedError(ValueError):
    """The bytes are not a well-formed message."""


def fields(data: bytes, start: int, end: int) -> Iterator[Field]:
    """The fields of one message: (number, wire type, value, end, begin).

    `value` is the integer of a varint field, else the value's position in `data`; `end` is where the field ends,
    `begin` where its tag begins.

    Raises:
        DamagedError: a field does not fit into the message.
    """
    position = start
    while position < end:
        begin = position
        tag, position = _varint(data, position, end)
        kind = tag & 7
        if kind == BYTES:
            size, value = _varint(data, position, end)
            position = value + size
        elif kind == VARINT:
            value, position = _varint(data, position, end)
        elif kind in (FIXED64, FIXED32):
            value = position
            position += 8 if kind == FIXED64 else 4
        else:
            raise DamagedError(f"no field can be read at byte {begin:,}")
        if position > end:
            raise DamagedError(f"a field ends at byte {position:,}, its message at {end:,}")
        yield tag >> 3, kind, value, position, begin


def signed(value: int) -> int:
    """An int64 as a varint holds it."""
    value &= (1 << 64) - 1
    return value - (1 << 64) if value >> 63 else value


def _varint(data: bytes, position: int, end: int) -> tuple[int, int]:
    value = shift = 0
    while position < end and shift < 70:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
    raise DamagedError(f"an integer at byte {position:,} has no end")


def repeated(data: bytes, start: int, end: int, number: int) -> tuple[Ints, Ints, list[Field]]:
    """Where the messages of repeated field `number` (under 16) lie in a message.

    Returns:
        int64[n] starts, int64[n] ends, and the other fields as `fields` gives them.
    """
    tag = number << 3 | BYTES
    heads: list[int] = []
    long: list[tuple[int, int]] = []
    others: list[Field] = []
    add = heads.append
    position = start
    safe = end - 3
    while position < end:
        # This runs once per event: lengths of one or two bytes are only skipped, and read in numpy below.
        if position < safe and data[position] == tag:
            size = data[position + 1]
            if size < 0x80:
                add(position)
                position += 2 + size
                continue
            more = data[position + 2]
            if more < 0x80:
                add(position)
                position += size + (more << 7) - 0x7D
                continue
        field = next(fields(data, position, end))
        position = field[3]
        if field[0] == number and field[1] == BYTES:
            long.append((field[2], position))
        else:
            others.append(field)
    if position > end:
        raise DamagedError(f"a message ends at byte {position:,}, its parent at {end:,}")
    head = np.array(heads, np.int64)
    raw = np.frombuffer(data, np.uint8)
    low, high = raw[head + 1].astype(np.int64), raw[head + 2].astype(np.int64)
    two = low >= 0x80
    starts = head + 2 + two
    ends = starts + np.where(two, low - 0x80 + (high << 7), low)
    if long:
        starts = np.sort(np.append(starts, [item[0] for item in long]))
        ends = np.sort(np.append(ends, [item[1] for item in long]))
    return starts, ends, others


class Block:
    """A stretch of bytes in which many positions are read at once.

    Args:
        data: the bytes.
    """

    def __init__(self, data: bytes | memoryview) -> None:
        size = (len(data) + _PADDING) // 8 * 8
        padded = np.zeros(size, np.uint8)
        padded[: len(data)] = np.frombuffer(data, np.uint8)
        self._words = padded.view("<u8")
        self._last = len(self._words) - 2

    def words(self, position: Ints) -> _Words:
        """uint64[n], the eight bytes at each position, little endian; zeros far behind the end."""
        index = np.minimum(position >> 3, self._last)
        shift = ((position & 7) << 3).view(np.uint64)
        low = self._words[index] >> shift
        high = (self._words[index + 1] << np.uint64(1)) << (np.uint64(63) - shift)
        words: _Words = low | high
        return words

    def varints(self, position: Ints) -> tuple[Ints, Ints]:
        """Integers of base 128 at each position: int64[n] values (64-bit two's complement) and int64[n] byte counts."""
        words = self.words(position)
        if not (words & _FIRST_HIGH_BIT).any():
            return (words & _FIRST_BITS).view(np.int64), np.ones(len(position), np.int64)
        value, count = _first_varint(words)
        long = np.flatnonzero(count == 0)
        if len(long):
            rest = self.words(position[long] + 8)
            two = (rest & _FIRST_HIGH_BIT) != 0
            value[long] = _compact(words[long]) | (rest & _FIRST_BITS) << np.uint64(56)
            value[long] |= np.where(two, (rest >> np.uint64(8) & np.uint64(1)) << np.uint64(63), np.uint64(0))
            count[long] = np.where(two, 10, 9)
        return value.view(np.int64), count

    def tagged(self, position: Ints) -> tuple[Ints, Ints, Ints, Ints]:
        """A tag at each position and the integer behind it: int64[n] tags, integers, where these start and end."""
        words = self.words(position)
        if (words & _FIRST_HIGH_BIT).any():
            tag, size = self.varints(position)
            value, count = self.varints(position + size)
            return tag, value, position + size, position + size + count
        tag = (words & _FIRST_BITS).view(np.int64)
        start = position + 1
        rest = words >> np.uint64(8)  # seven bytes and a zero: what does not end in the seven has a count of 8
        if not (rest & _FIRST_HIGH_BIT).any():
            return tag, (rest & _FIRST_BITS).view(np.int64), start, start + 1
        unsigned, count = _first_varint(rest)
        value = unsigned.view(np.int64)
        long = np.flatnonzero(count == 8)
        if len(long):
            value[long], count[long] = self.varints(start[long])
        return tag, value, start, start + count


def _first_varint(words: _Words) -> tuple[_Words, Ints]:
    """The integer that each word begins with, and its byte count: 0 where it does not end within the word."""
    stops = ~words & _HIGH_BITS
    stop = stops & (~stops + np.uint64(1))
    # stop is 0x80 << 8k; the product moves byte k of the constant to the top: the count k + 1
    count = ((stop >> np.uint64(7)) * np.uint64(0x0102030405060708)) >> np.uint64(56)
    return _compact(words & (stop | (stop - np.uint64(1)))), count.view(np.int64)


def _compact(words: _Words) -> _Words:
    """The low seven bits of each byte, pushed together."""
    words = words & np.uint64(0x7F7F7F7F7F7F7F7F)
    words = (words & np.uint64(0x007F007F007F007F)) | ((words & np.uint64(0x7F007F007F007F00)) >> np.uint64(1))
    words = (words & np.uint64(0x00003FFF00003FFF)) | ((words & np.uint64(0x3FFF00003FFF0000)) >> np.uint64(2))
    return (words & np.uint64(0x000000000FFFFFFF)) | ((words & np.uint64(0x0FFFFFFF00000000)) >> np.uint64(4))


class Cursors:
    """A cursor in each of n messages; `step` moves all that are not at their end over one field.

    Attributes:
        which: int64[m], the messages whose field was just read.
        number: int64[m], field numbers.
        kind: int64[m], wire types.
        value: int64[m], the integer of a varint field; of bytes where they start; else 0.
        end: int64[m], where the field ends.
    """

    def __init__(self, block: Block, start: Ints, end: Ints) -> None:
        self._block = block
        self._position = start
        self._limit = end
        self._which = np.arange(len(start))

    def step(self) -> bool:
        """Read the next field of every message that has one; False when all are at their end."""
        more = self._position < self._limit
        if not more.all():
            self._position, self._limit, self._which = (c[more] for c in (self._position, self._limit, self._which))
        if len(self._position) == 0:
            return False
        tag, value, start, end = self._block.tagged(self._position)
        if (tag < 8).any():
            raise DamagedError("a field without a number")
        kind = tag & 7
        if not (kind == VARINT).all():
            is_bytes, is_fixed = kind == BYTES, (kind == FIXED64) | (kind == FIXED32)
            if not (is_bytes | is_fixed | (kind == VARINT)).all() or (value[is_bytes] < 0).any():
                raise DamagedError("a field of an unknown wire type")
            if is_bytes.all():
                value, end = end, end + value
            else:
                value, end = np.where(is_bytes, end, value), np.where(is_bytes, end + value, end)
                value = np.where(is_fixed, start, value)
                end = np.where(is_fixed, start + np.where(kind == FIXED64, 8, 4), end)
        if (end > self._limit).any() or (end < start).any():
            raise DamagedError("a field ends behind its message")
        self.which, self.number, self.kind, self.value, self.end = self._which, tag >> 3, kind, value, end
        self._position = end
        return True
