"""Structured damage to inputs: each function takes content and a source of chance, and gives
content back.
"""

from __future__ import annotations

import json
import random
import re
import sqlite3
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

NUMBERS = ("0", "-1", "-0.0", "nan", "inf", "-inf", "1e308", "1e999", "-1e-320", "18446744073709551615", "1e18",
           "9223372036854775808", "-9223372036854775809", "0x10", "1_000", "1,5", "٣", "9" * 5000)  # fmt: skip
NAMES = ("", " ", "::", "a::b::c", ".remat", "x.remat2.clone", "-start", "all-reduce-done.1", "\x1b[31mred\x1b[2J",
         "\x9b2J", "\u202egnp", "a\rb", "a\nb", "\x00", "\x07", "\ufeff", "%s{}", "../../x", "'\"", "<b>&", "é" * 300,
         "x" * 70_000, "fusion.1", "\u2028", "{{7*7}}", "[red]")  # fmt: skip
BYTES = (
    b"\xff\xfe",
    b"\x00" * 9,
    b"\xff" * 10,
    b"\x80" * 11,
    b"\n",
    b"\x1b]0;x\x07",
    b"\xed\xa0\x80",
    b"{" * 3000,
)
VALUES: tuple[Any, ...] = (
    *(
        None,
        True,
        5,
        -1,
        0,
        2**64,
        -(2**63),
        1e308,
        -1e308,
        1e-320,
        float("nan"),
        float("inf"),
    ),
    *(
        "",
        "\x1b[31m",
        "\u202e",
        "\ud800",
        "nan",
        "1e999",
        [],
        {},
        [[]],
        {"": None},
        [1, "x", None],
        "x" * 70_000,
    ),
)
_NUMBER = re.compile(rb"(?<![\w.])-?\d+(?:\.\d+)?(?:e[+-]?\d+)?(?![\w.])")
_NAME = re.compile(rb"[A-Za-z_][\w.:-]{2,}")


def damage_bytes(data: bytes, draw: random.Random) -> bytes:
    """Flip, cut, repeat, insert."""
    at, end = sorted((draw.randrange(len(data) + 1), draw.randrange(len(data) + 1)))
    kind = draw.randrange(6)
    if kind == 0 and data:
        at = draw.randrange(len(data))
        return data[:at] + bytes([data[at] ^ (1 << draw.randrange(8))]) + data[at + 1 :]
    if kind == 1:
        return data[:at]
    if kind == 2:
        return data[:at] + data[end:]
    if kind == 3:
        return data[:end] + data[at:end][:5000] + data[end:]
    if kind == 4:
        return data[:at] + draw.choice(BYTES) + data[at:]
    return data[:at] + draw.randbytes(min(end - at, 64)) + data[end:]


def damage_text(data: bytes, draw: random.Random) -> bytes:
    """Another number or name, lines lost, repeated or exchanged; sometimes mere bytes."""
    kind = draw.randrange(7)
    if kind < 4:
        pattern, choices = (_NUMBER, NUMBERS) if kind < 2 else (_NAME, NAMES)
        if found := list(pattern.finditer(data)):
            match = draw.choice(found)
            return (
                data[: match.start()]
                + draw.choice(choices).encode()
                + data[match.end() :]
            )
    lines = data.splitlines(keepends=True)
    if kind < 6 and lines:
        first, second = draw.randrange(len(lines)), draw.randrange(len(lines))
        if draw.random() < 0.5:
            lines[first], lines[second] = lines[second], lines[first]
        else:
            lines[first : first + draw.randrange(3)] = [lines[second]] * draw.randrange(
                3
            )
        return b"".join(lines)
    return damage_bytes(data, draw)


def damage_json(data: bytes, draw: random.Random) -> bytes:
    """One node of a JSON document replaced, lost or nested without end; sometimes its text
    damaged.
    """
    if draw.random() < 0.2:
        return damage_text(data, draw)
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):  # damaged before
        return damage_text(data, draw)
    places: list[tuple[Any, Any]] = []

    def walk(node: Any) -> None:
        for key, item in list(
            node.items() if isinstance(node, dict) else enumerate(node)
        ):
            places.append((node, key))
            if isinstance(item, dict | list):
                walk(item)

    if isinstance(document, dict | list):
        walk(document)
    if not places or draw.random() < 0.05:
        return draw.choice(
            [b"[" * 100_000, b"null", b"{}", b"[]", b'"x"', b'{"a":' * 50_000]
        )
    node, key = draw.choice(places)
    if draw.random() < 0.2:
        del node[key]
    else:
        node[key] = draw.choice(VALUES)
    return json.dumps(document).encode()


def damage_json_lines(data: bytes, draw: random.Random) -> bytes:
    """One line of JSON damaged."""
    lines = data.splitlines()
    at = draw.randrange(len(lines))
    return (
        b"\n".join([*lines[:at], damage_json(lines[at], draw), *lines[at + 1 :]])
        + b"\n"
    )


def damage_sqlite(path: Path, draw: random.Random) -> None:
    """A cell, a row, a column or a table of a database damaged; sometimes its pages."""
    if draw.random() < 0.3:
        path.write_bytes(damage_bytes(path.read_bytes(), draw))
        return
    # a constraint, or damaged, so much that the message is no text
    with (
        suppress(sqlite3.Error, UnicodeDecodeError),
        closing(sqlite3.connect(path)) as database,
        database,
    ):
        tables = [
            name
            for (name,) in database.execute(
                "SELECT name FROM sqlite_master WHERE type = 'table'"
            )
        ]
        table = draw.choice(tables or ["t"])
        columns = [row[1] for row in database.execute(f'PRAGMA table_info("{table}")')]
        column, kind = draw.choice(columns or ["c"]), draw.randrange(8)
        if kind == 0:
            database.execute(f'DROP TABLE "{table}"')
        elif kind == 1:
            database.execute(f'ALTER TABLE "{table}" DROP COLUMN "{column}"')
        elif kind == 2:
            database.execute(
                f'DELETE FROM "{table}" WHERE rowid % ? = 0', (draw.randrange(1, 4),)
            )
        elif kind == 3:
            database.execute(f'INSERT INTO "{table}" SELECT * FROM "{table}"')
        else:
            value = draw.choice(
                (*VALUES[2:12], *NAMES[:20], *range(-2, 3), b"\xff\xfe", None)
            )
            value = (
                float(value)
                if isinstance(value, int) and abs(value) >= 2**63
                else value
            )
            every = draw.choice((1, 2, 10, 1000))
            database.execute(
                f'UPDATE "{table}" SET "{column}" = ? WHERE rowid % ? = 0',
                (value, every),
            )


def damage_proto(data: bytes, draw: random.Random, depth: int = 0) -> bytes:
    """One field of a protocol buffer, at any depth, changed, lost or repeated; sometimes its bytes
    damaged.
    """
    fields = _fields(data) if depth or draw.random() < 0.8 else None
    if not fields:
        return damage_bytes(data, draw)
    start, body, end, wire = draw.choice(fields)
    if wire == 2 and draw.random() < 0.9:
        inner = data[body:end]
        changed = (
            damage_proto(inner, draw, depth + 1)
            if draw.random() < 0.8
            else draw.choice(NAMES).encode()
        )
        tag = data[start : _varint(data, start)[1]]
        return data[:start] + tag + _encoded(len(changed)) + changed + data[end:]
    kind = draw.randrange(3)
    if kind == 0:
        return data[:start] + data[end:]
    if kind == 1:
        return data[:end] + data[start:end] * draw.randrange(1, 4) + data[end:]
    if wire == 0:
        value = draw.choice(
            (0, 1, 2, 255, 2**31, 2**32, 2**53, 2**63 - 1, 2**63, 2**64 - 1)
        )
        return data[:body] + _encoded(value) + data[end:]
    return data[:body] + draw.randbytes(end - body) + data[end:]


def _fields(data: bytes) -> list[tuple[int, int, int, int]]:
    """(start, start of the value, end, wire type) of each field; empty where `data` is no
    message.
    """
    found, at = [], 0
    try:
        while at < len(data):
            tag, body = _varint(data, at)
            wire = tag & 7
            if wire == 0:
                end = _varint(data, body)[1]
            elif wire == 2:
                size, body = _varint(data, body)
                end = body + size
            elif wire in (1, 5):
                end = body + (8 if wire == 1 else 4)
            else:
                return []
            if end > len(data) or not tag >> 3:
                return []
            found.append((at, body, end, wire))
            at = end
    except IndexError:
        return []
    return found


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7


def _encoded(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


Damage = Callable[[bytes, random.Random], bytes]
