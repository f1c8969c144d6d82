"""An answer as values, before it is text, HTML, Markdown or JSON: how every command shows its
result.

A command makes a result, one function turns the result into a `Page`, and a renderer draws it. The
order is always the same: input, verdict, one table, at most three actions, next command.
``pgle.report/2`` is the JSON of a page. `pgle report --json` prints it, and `rehearse` and `tune`
write it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, Literal, TypeAlias

import msgspec

from pgle.errors import UserError
from pgle.files import AnyPath, read_bytes
from pgle.next import Way
from pgle.report.page.figures import Unit, column, saving
from pgle.report.text import json_lines

Tone: TypeAlias = Literal[
    "", "good", "bad", "warn", "soft", "exposed", "hidden", "head"
]
MOST_ACTIONS = 3


@dataclass(frozen=True, slots=True)
class Cell:
    """A text or figure with a tone."""

    value: str | float | None
    tone: Tone = ""


Value: TypeAlias = str | float | Cell | None
"""The value of a row in a column: a text, or a number in the column's unit. None: nothing to
show.
"""


@dataclass(frozen=True, slots=True)
class Column:
    """A column: its head, and the unit of its values, which decides how they are written.

    If a terminal is too narrow for all columns, the last ones are printed below their row.
    """

    head: str
    unit: Unit = Unit.TEXT

    @property
    def is_right(self) -> bool:
        """Whether it contains figures, which are aligned right."""
        return self.unit is not Unit.TEXT

    def worded(self, values: Sequence[str | float | None]) -> tuple[str, Sequence[str]]:
        """Return the head with the unit of the figures, and a text for each value. Words are
        unchanged.
        """
        if not self.is_right:
            return self.head, list(map(_text, values))
        unit, texts = column(self.unit, list(map(_number, values)))
        head = self.head or unit
        if unit and self.head:
            head = f"{self.head} ({unit})"
        for place, value in enumerate(values):
            if isinstance(value, str):
                texts[place] = value
        return head, texts


@dataclass(frozen=True, slots=True)
class Drawn:
    """A table as texts, for every renderer, without its empty columns."""

    heads: tuple[str, ...]  # with the unit of the figures: ``exposed (ms)``
    right: tuple[bool, ...]  # whether a column is aligned right
    rows: tuple[tuple[Cell, ...], ...]  # each cell as its text with its tone


class Table(msgspec.Struct, frozen=True, tag_field="kind", tag="table"):
    """Rows of values."""

    columns: tuple[Column, ...]
    rows: tuple[tuple[Value, ...], ...]
    # for each row, the instruction whose bar it links to, empty if none; an empty tuple if no row
    # does
    find: tuple[str, ...] = ()
    shown: int = 12  # rows that are not folded away
    more: int = 0  # rows that were left out

    def __post_init__(self) -> None:
        heads = len(self.columns)
        fit = all(len(row) == heads for row in self.rows)
        if not fit or not 0 <= self.shown < 1 << 31:
            what = "rows of other lengths than the heads, or no number of rows"
            raise ValueError(what)

    def drawn(self) -> Drawn:
        """Return the columns that are not empty, as texts."""
        heads: list[str] = []
        right: list[bool] = []
        columns: list[list[Cell]] = []
        for place, found in enumerate(self.columns):
            items = [as_cell(row[place]) for row in self.rows]
            values = [item.value for item in items]
            if self.rows and not any(value or value == 0 for value in values):
                continue
            head, texts = found.worded(values)
            heads.append(head)
            right.append(found.is_right)
            columns.append(list(map(Cell, texts, (item.tone for item in items))))
        return Drawn(tuple(heads), tuple(right), tuple(zip(*columns, strict=True)))


def as_cell(value: Value) -> Cell:
    """A value as a cell."""
    return value if isinstance(value, Cell) else Cell(value)


def _number(value: str | float | None) -> float | None:
    """A value if it is a number; else None."""
    return None if isinstance(value, str) else value


class Prose(msgspec.Struct, frozen=True, tag_field="kind", tag="prose"):
    """A paragraph. With `code` it is text to type, shown unchanged. With tone ``head`` it is a
    heading.
    """

    text: str
    code: bool = False
    tone: Tone = ""


class TimelineData(msgspec.Struct, frozen=True, tag_field="kind", tag="timeline"):
    """The moving timeline; a page has at most one."""

    data: str  # what its script draws, as `pgle.report.timeline` writes it
    #: the same as text, for a terminal, Markdown and readers without JavaScript
    text: str


class Chart(msgspec.Struct, frozen=True, tag_field="kind", tag="chart"):
    """Charts one above the other, with a text that says the same."""

    svg: str
    alt: str


Part: TypeAlias = Table | Prose | TimelineData | Chart


@dataclass(frozen=True, slots=True)
class Section:
    """Parts under a heading. A terminal prints them only with ``--all`` or ``--section KEY``; a
    page folds them.
    """

    key: str  # one word: ``collectives``
    heading: str
    parts: tuple[Part, ...]  # tables without rows and empty paragraphs are left out
    open: bool = False  # whether a page shows it unfolded

    def __post_init__(self) -> None:
        object.__setattr__(self, "parts", tuple(filter(_says_something, self.parts)))


@dataclass(frozen=True, slots=True)
class Saving:
    """A saving, as shares of the page's step."""

    #: None: nobody tried it; only the most that it can save is known
    expected: float | None
    least: float
    most: float

    def __str__(self) -> str:
        return saving(self.expected, self.least, self.most)


@dataclass(frozen=True, slots=True)
class Advice:
    """An action, and its saving."""

    title: str  # imperative: ``Turn on the latency-hiding scheduler``
    saves: Saving | None = None  # None: unknown
    why: str = ""  # one line
    command: str = ""  # a command, as from `to_type`, or a flag to copy
    code: str = ""  # code to paste into the program, one or several lines
    find: str = ""  # the instruction that the action is about
    # the part of the timeline that the action is about
    span_us: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar of a tile: a name, its figure in words, and shares of 1 by tone."""

    label: str
    text: str
    parts: tuple[
        tuple[Tone | Literal["compute", "copy", "other", "idle"], float], ...
    ] = ()


@dataclass(frozen=True, slots=True)
class Tile:
    """One of the large figures of a page: ``step  6.42 → 5.88 ms``."""

    label: str
    figure: str
    bars: tuple[Bar, ...] = ()
    note: str = ""


@dataclass(frozen=True, slots=True)
class Page:
    """The whole content of an answer. Empty parts are left out: words, sections, tables without
    rows.
    """

    title: str  # title of the window: ``pgle rehearse: jit_train_step``
    # program, GPUs and how many of them, date, versions, measured or simulated
    identity: tuple[str, ...]
    verdict: str  # the answer, at most twelve words
    tone: Tone = ""  # whether the verdict is good or bad
    table: Table | None = None  # the one table of the first screen
    notes: tuple[str | Cell, ...] = ()  # single lines below it
    actions: tuple[Advice, ...] = ()  # the largest saving first
    sections: tuple[Section, ...] = ()  # all other content
    # the next commands, or a closing sentence
    way: Way = field(default_factory=Way)
    warnings: tuple[str, ...] = ()  # one line each
    tiles: tuple[Tile, ...] = ()  # shown on HTML pages only: step, exposed, idle
    # origin of the figures: (name, value)
    about: tuple[tuple[str, str], ...] = ()
    # a line for a shell that is itself the answer; shown below the verdict
    paste: str = ""
    silent: tuple[str, ...] = ()  # keys of sections that are empty

    def __post_init__(self) -> None:
        silent = tuple(item.key for item in self.sections if not item.parts)
        has_rows = self.table is not None and self.table.rows
        sections = tuple(section for section in self.sections if section.parts)
        left = {
            "identity": tuple(filter(None, self.identity)),
            "table": self.table if has_rows else None,
            "notes": tuple(filter(None, self.notes)),
            "sections": sections,
            "silent": (*self.silent, *silent),
        }
        for name, value in left.items():
            object.__setattr__(self, name, value)

    @property
    def next(self) -> tuple[str, ...]:
        """Commands that can be pasted as they are; the first is the one to type now."""
        return self.way.next

    @property
    def done(self) -> str:
        """A closing sentence if no command follows: what was reached, or what only the user can
        do.
        """
        return self.way.done

    @property
    def parts(self) -> tuple[Part, ...]:
        """The parts of all sections."""
        return tuple(chain.from_iterable(section.parts for section in self.sections))

    @property
    def timeline(self) -> TimelineData | None:
        """The page's timeline, if any."""
        found = (part for part in self.parts if isinstance(part, TimelineData))
        return next(found, None)


def table(
    heads: Sequence[str | Column],
    rows: Iterable[Sequence[Value]],
    *,
    finds: bool | Sequence[str] = False,
    most: int = 0,
    shown: int = 12,
) -> Table:
    """Make a table.

    Args:
        heads: the columns; a text is the head of a column of words.
        rows: values under them.
        finds: the instruction whose bar each row links to; True: the row's first cell.
        most: most rows to keep; the table counts the others. 0: all.
        shown: rows that are not folded away.
    """
    every = tuple(map(tuple, rows))
    kept = every[:most] if most else every
    find = [str(row[0]) for row in kept] if finds is True else finds or ()
    return Table(
        columns=tuple(map(_as_column, heads)),
        rows=kept,
        find=tuple(find),
        shown=shown,
        more=len(every) - len(kept),
    )


def _as_column(head: str | Column) -> Column:
    return Column(head) if isinstance(head, str) else head


def _says_something(part: Part) -> bool:
    """Whether a part has anything to show."""
    if isinstance(part, Table):
        return bool(part.rows)
    return not isinstance(part, Prose) or bool(part.text)


def _text(value: str | float | None) -> str:
    """A value of a column of words."""
    if value is None:
        return ""
    return value if isinstance(value, str) else f"{value:g}"


SCHEMA = "pgle.report/2"
MAX_BYTES = 256 << 20
_BASE64 = frozenset(
    b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/="
)


def as_json(page: Page) -> str:
    """Return the page as JSON: each part with its ``kind``, the timeline in the form that its
    script draws.
    """
    found = {
        "schema": SCHEMA,
        "page": msgspec.to_builtins(page, enc_hook=_plain_number),
    }
    try:
        text = msgspec.json.encode(found)
    except UnicodeEncodeError:
        text = msgspec.json.encode(_encodable(found))
    return json_lines(msgspec.json.format(text, indent=2).decode())


def way_of(path: AnyPath | None) -> Way | None:
    """Read the next commands of a page at a path; None if there is no readable page."""
    if path is None:
        return None
    try:
        return read_page(path).way
    except UserError:
        return None


def read_page(path: AnyPath) -> Page:
    """Read a page that was written as JSON. Its pictures are not trusted, so their texts replace
    them.

    Raises:
        UserError: it is not such a page, or comes from another release.
    """
    remedy = "write it again: pgle report RUN -o report.json"
    content = read_bytes(path, max_bytes=MAX_BYTES)
    try:
        found = msgspec.json.decode(content)
        if (schema := found["schema"]) == SCHEMA:
            page = msgspec.convert(found["page"], Page)
            sections = (
                replace(item, parts=tuple(map(_trusted, item.parts)))
                for item in page.sections
            )
            return replace(page, sections=tuple(sections))
    except (msgspec.MsgspecError, RecursionError, KeyError, TypeError, ValueError):
        raise UserError(
            "is not a report of this pgle", where=path, remedy=remedy
        ) from None
    raise UserError(f"has schema {schema}, not {SCHEMA}", where=path, remedy=remedy)


def _encodable(value: Any) -> Any:
    """Escape names in a document that UTF-8 cannot encode: ``\\ud800``."""
    if isinstance(value, str):
        return value.encode(errors="backslashreplace").decode()
    if isinstance(value, dict):
        return {key: _encodable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_encodable(item) for item in value]
    return value


def _plain_number(value: Any) -> Any:
    """Convert a numpy scalar to a number."""
    return value.item()


def _trusted(part: Part) -> Part:
    """A part that was read from a file. A chart keeps only its text, since its drawing could
    hold a script.
    """
    if isinstance(part, TimelineData) and set(part.data.encode()) - _BASE64:
        raise ValueError("a damaged timeline")
    return Chart("", part.alt) if isinstance(part, Chart) else part
