"""A page as JSON, ``pgle.report/1``: what `pgle report --json` prints and `rehearse` and `tune` leave; read again."""

from __future__ import annotations

import json as plain_json
import re
from collections.abc import Mapping
from typing import Any, get_args

from pgle.errors import UserError
from pgle.files import AnyPath, read_bytes
from pgle.report import json
from pgle.report.page.parts import Cell, Chart, Moving, Page, Part, Prose, Section, Table, Tone

SCHEMA = "pgle.report/1"
MAX_BYTES = 256 << 20
_BASE64 = re.compile(r"[A-Za-z0-9+/]*={0,2}")


def as_json(page: Page) -> str:
    """The page: verdict, sections of parts by kind, and the timeline in the form that its script draws."""
    return json.text(SCHEMA, document(page))


def document(page: Page) -> dict[str, Any]:
    """A page as JSON types."""
    return {
        **json.picked(page, "title verdict tone lead about warnings"),
        "next": [_part(part) for part in page.next],
        "sections": [
            {"heading": section.heading, "parts": [_part(part) for part in section.parts]} for section in page.sections
        ],
    }


def _part(part: Part) -> dict[str, Any]:
    if isinstance(part, Table):
        rows = [[[cell.text, cell.tone] if cell.tone else cell.text for cell in row] for row in part.cells]
        return {"kind": "table", "rows": rows, "right": sorted(part.right), **json.picked(part, "columns find shown")}
    if isinstance(part, Prose):
        return {"kind": "prose", **json.plain(part)}
    if isinstance(part, Chart):
        return {"kind": "chart", "alt": part.alt}
    return {"kind": "timeline", "data": part.data, "text": part.text}


def read_page(path: AnyPath) -> Page:
    """A page that was written as JSON; of its charts what they show in words.

    Raises:
        UserError: it is none.
    """
    try:
        found = plain_json.loads(read_bytes(path, max_bytes=MAX_BYTES))
        if found["schema"] != SCHEMA:
            other = f"is of schema {found['schema']}, not {SCHEMA}"
            raise UserError(other, where=path, remedy="use the pgle that wrote it")
        return Page(
            title=_text(found["title"]),
            verdict=_text(found["verdict"]),
            tone=_tone(found["tone"]),
            lead=tuple(map(_text, found["lead"])),
            sections=tuple(
                Section(_text(item["heading"]), tuple(map(_read_part, item["parts"]))) for item in found["sections"]
            ),
            next=tuple(part for part in map(_read_part, found["next"]) if isinstance(part, Prose)),
            about=tuple((_text(name), _text(value)) for name, value in found["about"]),
            warnings=tuple(map(_text, found["warnings"])),
        )
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError, OverflowError):
        remedy = "write it again: pgle report RUN -o report.json"
        raise UserError("is not a report of pgle", where=path, remedy=remedy) from None


def _read_part(item: Mapping[str, Any]) -> Part:
    kind = item["kind"]
    if kind == "table":
        columns = tuple(map(_text, item["columns"]))
        rows = tuple(tuple(map(_cell, row)) for row in item["rows"])
        find = tuple(map(_text, item["find"]))
        if any(len(row) != len(columns) for row in rows) or (find and len(find) != len(rows)):
            raise ValueError("rows of other lengths")
        right = frozenset(map(int, item["right"])) & frozenset(range(len(columns)))
        return Table(columns, rows, right, find, min(int(item["shown"]), len(rows)))
    if kind == "prose":
        return Prose(_text(item["text"]), bool(item["code"]), _tone(item["tone"]))
    if kind == "chart":
        return Prose(_text(item["alt"]))
    if kind == "timeline" and _BASE64.fullmatch(_text(item["data"])):
        return Moving(item["data"], _text(item["text"]))
    raise ValueError(kind)


def _cell(value: Any) -> Cell:
    return Cell(_text(value)) if isinstance(value, str) else Cell(_text(value[0]), _tone(value[1]))


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(value)
    return value


def _tone(value: Any) -> Tone:
    found: list[Tone] = [tone for tone in get_args(Tone) if tone == value]
    if not found:
        raise ValueError(value)
    return found[0]
