"""Serialized HLO modules cut on the wire: the worker's Python need not have protobuf, and nothing unknown is lost."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TypeAlias

Tree: TypeAlias = "Mapping[int, Tree | None]"
"""What to cut: field numbers; None: the field goes, a mapping: go on inside of it."""


def hlo_module_bytes(data: bytes) -> bytes | None:
    """The HloModuleProto (field 1) of a serialized HloProto; `data` itself where that is the module; else None."""
    inner = _leading(data)
    if inner is None:
        return None
    # In an HloModuleProto field 1 is the module's name, which is short text; in an HloProto it is the module.
    return inner if _leading(inner) is not None else data


def without_fields(message: bytes, cut: Tree) -> bytes:
    """A serialized message without some of its fields.

    Raises:
        ValueError: `message` is no serialized message.
    """
    parts = []
    for number, start, value, end in _fields(message):
        if number not in cut:
            parts.append(message[start:end])
            continue
        inside = cut[number]
        if inside is not None:
            parts.append(submessage(number, without_fields(message[value:end], inside)))
    return b"".join(parts)


def fields(message: bytes) -> Iterator[tuple[int, bytes | int]]:
    """Number and content of each field: bytes, or the number of a varint.

    Raises:
        ValueError: `message` is no serialized message.
    """
    for number, start, value, end in _fields(message):
        yield number, _read(message, value)[0] if message[start] & 7 == 0 else message[value:end]


def submessage(number: int, content: bytes) -> bytes:
    """A field that holds a message."""
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def number_field(number: int, value: int) -> bytes:
    """A field that holds a whole number."""
    return _varint(number << 3) + _varint(value)


def _leading(data: bytes) -> bytes | None:
    """The length-delimited field 1 that `data` begins with; None where it does not."""
    try:
        number, start, value, end = next(_fields(data), (0, 0, 0, 0))
    except ValueError:
        return None
    return data[value:end] if number == 1 and data[start] & 7 == 2 else None


def _fields(message: bytes) -> Iterator[tuple[int, int, int, int]]:
    """Number, start, start of the content and end of each field."""
    at = 0
    while at < len(message):
        start = at
        tag, at = _read(message, at)
        kind = tag & 7
        if kind == 0:
            value = at
            _, at = _read(message, at)
        elif kind in (1, 5):
            value, at = at, at + (8 if kind == 1 else 4)
        elif kind == 2:
            length, value = _read(message, at)
            at = value + length
        else:
            raise ValueError("not a serialized message")
        if at > len(message):
            raise ValueError("not a serialized message")
        yield tag >> 3, start, value, at


def _read(data: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while at < len(data) and shift < 70:
        byte = data[at]
        number |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return number, at
    raise ValueError("not a serialized message")


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)
