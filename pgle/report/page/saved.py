"""A page as JSON, ``pgle.report/2``: what `pgle report --json` prints and `rehearse` and `tune` leave; read again."""

from __future__ import annotations

import msgspec

from pgle.errors import UserError
from pgle.files import AnyPath, read_bytes
from pgle.report.page.value import Chart, Page, Part, Section, Timeline

SCHEMA = "pgle.report/2"
MAX_BYTES = 256 << 20
BASE64 = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/=")


class _Saved(msgspec.Struct, frozen=True):
    schema: str
    page: Page


def as_json(page: Page) -> str:
    """The page with its sections, and the timeline in the form that its script draws."""
    text = msgspec.json.encode(_Saved(SCHEMA, page))
    return msgspec.json.format(text, indent=2).decode() + "\n"


def read_page(path: AnyPath) -> Page:
    """A page that was written as JSON. Pictures in it are not trusted: their words take their place.

    Raises:
        UserError: it is none, or of another release.
    """
    remedy = "write it again: pgle report RUN -o report.json"
    content = read_bytes(path, max_bytes=MAX_BYTES)
    try:
        found = msgspec.json.decode(content, type=_Saved, strict=True)
    except (msgspec.MsgspecError, RecursionError):
        raise UserError("is not a report of this pgle", where=path, remedy=remedy) from None
    if found.schema != SCHEMA:
        raise UserError(f"has schema {found.schema}, not {SCHEMA}", where=path, remedy=remedy)
    sections = tuple(_trusted(section) for section in found.page.sections)
    if any(len(set(timeline.data.encode()) - BASE64) for timeline in _timelines(sections)):
        raise UserError("has a damaged timeline", where=path, remedy=remedy)
    return msgspec.structs.replace(found.page, sections=sections)


def _trusted(section: Section) -> Section:
    return msgspec.structs.replace(section, parts=tuple(map(_part, section.parts)))


def _part(part: Part) -> Part:
    if isinstance(part, Chart):
        return Chart("", part.alt)
    return Timeline(part.data, part.text) if isinstance(part, Timeline) else part


def _timelines(sections: tuple[Section, ...]) -> list[Timeline]:
    return [part for section in sections for part in section.parts if isinstance(part, Timeline)]
