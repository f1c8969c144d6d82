"""A page as JSON, ``pgle.report/2``: what `pgle report --json` prints and `rehearse` and `tune` leave; read again."""

from __future__ import annotations

from typing import Any, TypeVar, get_type_hints

import msgspec

from pgle.errors import UserError
from pgle.files import AnyPath, read_bytes
from pgle.report.page.value import Chart, Page, Part, Prose, Section, Table, Timeline

SCHEMA = "pgle.report/2"
MAX_BYTES = 256 << 20
KINDS: dict[str, type[Part]] = {"table": Table, "prose": Prose, "timeline": Timeline, "chart": Chart}
_T = TypeVar("_T")
_BASE64 = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/=")


def as_json(page: Page) -> str:
    """The page with its sections, each part with its ``kind``, and the timeline in the form that its script draws."""
    found = msgspec.to_builtins(page, enc_hook=_plain)
    for section, of in zip(found["sections"], page.sections, strict=True):
        section["parts"] = [
            {"kind": _kind(part), **fields} for part, fields in zip(of.parts, section["parts"], strict=True)
        ]
    text = msgspec.json.encode({"schema": SCHEMA, "page": found})
    return msgspec.json.format(text, indent=2).decode() + "\n"


def read_page(path: AnyPath) -> Page:
    """A page that was written as JSON. Pictures in it are not trusted: their words take their place.

    Raises:
        UserError: it is none, or of another release.
    """
    remedy = "write it again: pgle report RUN -o report.json"
    content = read_bytes(path, max_bytes=MAX_BYTES)
    try:
        found = msgspec.json.decode(content)
        schema = found["schema"]
        if schema == SCHEMA:
            sections = tuple(map(_section, found["page"]["sections"]))
            page = _made(Page, found["page"], sections=sections)
    except (msgspec.MsgspecError, RecursionError, KeyError, TypeError, ValueError):
        raise UserError("is not a report of this pgle", where=path, remedy=remedy) from None
    if schema != SCHEMA:
        raise UserError(f"has schema {schema}, not {SCHEMA}", where=path, remedy=remedy)
    return page


def _plain(value: Any) -> Any:
    """A numpy scalar as a number."""
    return value.item()


def _kind(part: Part) -> str:
    return next(kind for kind, of in KINDS.items() if isinstance(part, of))


def _section(item: dict[str, Any]) -> Section:
    parts = tuple(map(_part, item["parts"]))
    return _made(Section, item, parts=parts)


def _made(of: type[_T], item: dict[str, Any], **made: Any) -> _T:
    """A value of its fields, each checked; msgspec knows no union of two dataclasses, so those come `made`."""
    hints = get_type_hints(of)
    return of(**made, **{name: msgspec.convert(value, hints[name]) for name, value in item.items() if name not in made})


def _part(item: dict[str, Any]) -> Part:
    fields = {name: value for name, value in item.items() if name != "kind"}
    part = msgspec.convert(fields, KINDS[item["kind"]])
    if isinstance(part, Table) and any(len(row) != len(part.columns) for row in part.rows):
        raise ValueError("rows of other lengths")
    if isinstance(part, Table) and not 0 <= part.shown < 1 << 31:
        raise ValueError("no number of rows")
    if isinstance(part, Timeline):
        if set(part.data.encode()) - _BASE64:
            raise ValueError("a damaged timeline")
        return Timeline(part.data, part.text)
    return Chart("", part.alt) if isinstance(part, Chart) else part
