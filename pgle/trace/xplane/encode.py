"""Protocol buffer records encoded column by column: n messages of one layout at the speed of numpy.

Wire format: https://protobuf.dev/programming-guides/encoding/
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

_Mask: TypeAlias = npt.NDArray[np.bool_] | None
_Part: TypeAlias = tuple[bytes | npt.NDArray[np.uint64], npt.NDArray[np.int64], _Mask]


def varint(value: int) -> bytes:
    """One integer in base 128; negative ones as their 64-bit two's complement."""
    value &= (1 << 64) - 1
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def length_delimited(number: int, content: bytes) -> bytes:
    """A field of a message: bytes, a string or a nested message."""
    return varint(number << 3 | 2) + varint(len(content)) + content


def varint_sizes(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
    """int64[n], how many bytes each value takes."""
    sizes = np.ones(len(values), np.int64)
    largest = int(values.max(initial=0))
    for bits in range(7, 64, 7):
        if largest >> bits == 0:
            break
        sizes += values >= np.uint64(1 << bits)
    return sizes


class Records:
    """n messages of one layout, built field by field, then encoded together.

    Args:
        count: how many messages.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self._sizes = np.zeros(count, np.int64)
        self._parts: list[_Part] = []

    def constant(self, content: bytes, where: _Mask = None) -> None:
        """Add the same bytes to every message, or to those that `where` selects."""
        sizes = np.full(self.count, len(content)) if where is None else np.where(where, len(content), 0)
        self._append(content, sizes, where)

    def varint(self, tag: bytes, values: npt.NDArray[np.integer], where: _Mask = None) -> None:
        """A field `tag` with an integer of each message."""
        self.constant(tag, where)
        self._value(values.astype(np.int64).view(np.uint64), where)

    def message(self, tag: bytes, head: bytes, values: npt.NDArray[np.integer], where: _Mask = None) -> None:
        """A nested message `tag`: constant bytes `head` (under 110 of them), then an integer of each message."""
        unsigned = values.astype(np.int64).view(np.uint64)
        self.constant(tag, where)
        self._value((varint_sizes(unsigned) + len(head)).astype(np.uint64), where)
        self.constant(head, where)
        self._value(unsigned, where)

    def encode(self, tag: bytes) -> bytes:
        """The messages one after the other, each as a field `tag`."""
        body = self._sizes
        lengths = body.astype(np.uint64)
        ends = np.cumsum(len(tag) + varint_sizes(lengths) + body)
        out = np.empty(int(ends[-1]) if self.count else 0, np.uint8)
        position = ends - (len(tag) + varint_sizes(lengths) + body)
        head: list[_Part] = [(tag, np.full(self.count, len(tag)), None), (lengths, varint_sizes(lengths), None)]
        for content, sizes, where in head + self._parts:
            _scatter(out, position, content, sizes, where)
            position = position + sizes
        return out.tobytes()

    def _value(self, values: npt.NDArray[np.uint64], where: _Mask) -> None:
        sizes = varint_sizes(values)
        self._append(values, sizes if where is None else np.where(where, sizes, 0), where)

    def _append(self, content: bytes | npt.NDArray[np.uint64], sizes: npt.NDArray[np.int64], where: _Mask) -> None:
        self._parts.append((content, sizes, where))
        self._sizes = self._sizes + sizes


def _scatter(
    out: npt.NDArray[np.uint8],
    position: npt.NDArray[np.int64],
    content: bytes | npt.NDArray[np.uint64],
    sizes: npt.NDArray[np.int64],
    where: _Mask,
) -> None:
    """Write one part of every message at its position."""
    if where is not None:
        position, sizes = position[where], sizes[where]
        content = content if isinstance(content, bytes) else content[where]
    if isinstance(content, bytes):
        for k, byte in enumerate(content):
            out[position + k] = byte
        return
    for k in range(int(sizes.max(initial=0))):
        here = slice(None) if k == 0 else np.flatnonzero(sizes > k)
        more = np.where(sizes[here] > k + 1, np.uint64(0x80), np.uint64(0))
        out[position[here] + k] = (content[here] >> np.uint64(7 * k) & np.uint64(0x7F) | more).astype(np.uint8)
