"""A page as values, before it is HTML, Markdown or text: a verdict, sections of parts, and where it all comes from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Literal, TypeAlias

from pgle.report.page.charts import Panel as ChartPanel
from pgle.report.timeline.encode import encode
from pgle.report.timeline.scene import Panel, text_timeline

Tone: TypeAlias = Literal["", "good", "bad", "soft", "head"]


@dataclass(frozen=True, slots=True)
class Cell:
    """A text with a tone."""

    text: str
    tone: Tone = ""


@dataclass(frozen=True)
class Table:
    """Rows of texts."""

    columns: tuple[str, ...]  # their heads
    rows: tuple[tuple[str | Cell, ...], ...]  # cells; a plain text has no tone
    right: frozenset[int] = frozenset()  # which columns are numbers
    find: tuple[str, ...] = ()  # of each row the instruction whose bar it leads to, empty where none; or nothing at all
    shown: int = 12  # rows that are not folded away

    @property
    def cells(self) -> list[list[Cell]]:
        """All rows, every cell with its tone."""
        return [[cell if isinstance(cell, Cell) else Cell(cell) for cell in row] for row in self.rows]


@dataclass(frozen=True, slots=True)
class Prose:
    """A paragraph; `code`: something to be typed, as it is; of tone ``head`` a heading of what follows."""

    text: str
    code: bool = False
    tone: Tone = ""


def next_steps(text: str) -> tuple[Prose, ...]:
    """What to do next: sentences, and the indented lines below each as commands."""
    groups = groupby(filter(str.strip, text.splitlines()), key=lambda line: line.startswith(" "))
    return tuple(
        Prose("\n".join(map(str.strip, lines)), code=True) if is_code else Prose(" ".join(lines))
        for is_code, lines in groups
    )


@dataclass(frozen=True)
class Moving:
    """The timeline; a page has one at most."""

    data: str  # what its script draws, as `pgle.report.timeline.encode` writes it
    text: str  # the same for a terminal
    panels: tuple[Panel, ...] = ()  # what it was made of; empty where it was read from a file
    first_us: float = 0.0  # the part of time that is seen first; 0: all

    @classmethod
    def of(cls, panels: Sequence[Panel], first_us: float = 0.0) -> Moving:
        """A timeline of panels."""
        return cls(encode(panels, first_us), text_timeline(panels, until_us=first_us), tuple(panels), first_us)


@dataclass(frozen=True)
class Chart:
    """Charts one above the other, with what they show in words."""

    panels: tuple[ChartPanel, ...]
    alt: str


Part: TypeAlias = Table | Prose | Moving | Chart


@dataclass(frozen=True)
class Section:
    """Parts under a heading."""

    heading: str
    parts: tuple[Part, ...]


@dataclass(frozen=True)
class Page:
    """Everything that a page says."""

    title: str  # of the window
    verdict: str  # one sentence, the answer
    tone: Tone = ""  # whether that is good
    lead: tuple[str, ...] = ()  # sentences below it
    sections: tuple[Section, ...] = ()  # in order
    next: tuple[Prose, ...] = ()  # what to do, and what it would bring
    about: tuple[tuple[str, str], ...] = ()  # where the figures come from, (name, value)
    warnings: tuple[str, ...] = field(default=())  # one line each

    @property
    def timeline(self) -> Moving | None:
        """Its timeline."""
        parts = [part for section in self.sections for part in section.parts]
        return next((part for part in parts if isinstance(part, Moving)), None)
