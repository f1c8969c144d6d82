"""Why a step loses time: what a rule finds, in figures, evidence and what to do."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from typing import Protocol

ROWS = 5  # evidence rows of a finding

LEAST_SAVED = 0.01
"""Of the step. What could be saved by faster matrix products or collectives is a finding from here on."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """One row of a finding's evidence."""

    name: str  # an instruction, or what the row is of
    us: float  # microseconds in a step
    note: str = ""  # in words
    op_name: str = ""  # the framework's name; empty where unknown


@dataclass(frozen=True, slots=True)
class Found:
    """What a rule found in a step, whatever its limit is."""

    lost_us: float  # of a step, what it could save at most; 0 where it saves nothing but spoils the measurement
    number: str  # what was found, in words
    evidence: tuple[Evidence, ...]  # rows, the most important first
    remedy: str  # what to do next
    reached: float | None = None  # what the limit is held against; None: the share of the step that is lost


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that costs time."""

    id: str  # of a rule
    title: str  # what it is called
    share: float  # of the step, what it could save at most; 0 where it saves nothing but spoils the measurement
    number: str  # what was found, in words
    evidence: tuple[Evidence, ...]  # rows, the most important first
    remedy: str  # what to do next
    unclaimed: str = ""  # why no saving is claimed, where the recording itself makes what was found; else empty


class Named(Protocol):
    """An instruction, or a value in memory."""

    @property
    def name(self) -> str:
        """Of the instruction."""

    @property
    def op_name(self) -> str:
        """The framework's name; empty where unknown."""


def evidence_of(rows: Iterable[tuple[Named, float, str]]) -> tuple[Evidence, ...]:
    """The first of some instructions as evidence, each with its microseconds in a step and a note."""
    return tuple(Evidence(item.name, us, note, item.op_name) for item, us, note in islice(rows, ROWS))


def in_words(us: float) -> str:
    """A time in µs, ms or s."""
    if us < 1e3:
        return f"{us:.3g} µs"
    return f"{us / 1e3:.3g} ms" if us < 1e6 else f"{us / 1e6:.3g} s"


def in_percent(share: float, decimals: int = 1) -> str:
    """A share of 0 to 1 as ``28.0 %``."""
    return f"{share * 100:.{decimals}f} %"
