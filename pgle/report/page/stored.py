"""A page as JSON, ``pgle.report/2``: what `pgle report --json` prints and `rehearse` and `tune` leave; read again."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec

from pgle.errors import UserError
from pgle.files import AnyPath, read_bytes
from pgle.report.page.value import Chart, Page, Part, Timeline

SCHEMA = "pgle.report/2"
MAX_BYTES = 256 << 20
_BASE64 = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/=")


def as_json(page: Page) -> str:
    """The page with its sections, each part with its ``kind``, and the timeline in the form that its script draws."""
    text = msgspec.json.encode({"schema": SCHEMA, "page": msgspec.to_builtins(page, enc_hook=_plain)})
    return msgspec.json.format(text, indent=2).decode() + "\n"


def read_page(path: AnyPath) -> Page:
    """A page that was written as JSON. Pictures in it are not trusted: their words take their place.

    Raises:
        UserError: it is not one, or of another release.
    """
    remedy = "write it again: pgle report RUN -o report.json"
    content = read_bytes(path, max_bytes=MAX_BYTES)
    try:
        found = msgspec.json.decode(content)
        if (schema := found["schema"]) == SCHEMA:
            page = msgspec.convert(found["page"], Page)
            sections = (replace(item, parts=tuple(map(_trusted, item.parts))) for item in page.sections)
            return replace(page, sections=tuple(sections))
    except (msgspec.MsgspecError, RecursionError, KeyError, TypeError, ValueError):
        raise UserError("is not a report of this pgle", where=path, remedy=remedy) from None
    raise UserError(f"has schema {schema}, not {SCHEMA}", where=path, remedy=remedy)


def _plain(value: Any) -> Any:
    """A numpy scalar as a number."""
    return value.item()


def _trusted(part: Part) -> Part:
    if isinstance(part, Timeline):
        if set(part.data.encode()) - _BASE64:
            raise ValueError("a damaged timeline")
        return Timeline(part.data, part.text)
    return Chart("", part.alt) if isinstance(part, Chart) else part
