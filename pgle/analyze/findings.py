"""A finding of a measured step: what costs time, with its evidence and what to do."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice

from pgle.analyze.collectives import MeasuredCollective
from pgle.analyze.layers import MeasuredInstruction

ROWS = 5  # evidence rows of a finding


@dataclass(frozen=True, slots=True)
class EvidenceRow:
    """One row of a finding's evidence."""

    name: str  # an instruction, or what the row is of
    us: float  # microseconds in a step
    note: str = ""  # in words
    op_name: str = ""  # the framework's name; empty where unknown


@dataclass(frozen=True, slots=True)
class Observation:
    """What a rule sees in a step, before its limit decides whether that is a finding."""

    # microseconds of a step, what it could save at most; 0 if it only spoils the measurement
    lost_us: float
    number: str  # what was seen, in words
    evidence: tuple[EvidenceRow, ...]  # rows, the most important first
    remedy: str  # what to do next
    # the limit is compared with it; None: with the share of the step that is lost
    reached: float | None = None
    # why no saving is claimed, if the recording itself makes what was seen; else empty
    unclaimed: str = ""


@dataclass(frozen=True, slots=True)
class StepFinding:
    """Something that costs time: an observation that reached the limit of its rule."""

    id: str  # of its rule
    title: str  # of its rule
    todo: str  # of its rule: what to do about it, if it saves time
    share: float  # of the step, what it could save at most; 0 if no saving is claimed
    reached: float  # what was compared with the limit of the rule
    lost_us: float  # of a step, what it could save at most, claimed or not
    number: str  # what was found, in words
    evidence: tuple[EvidenceRow, ...]  # rows, the most important first
    remedy: str  # what to do next
    unclaimed: str  # why no saving is claimed; else empty


def evidence_of(
    rows: Iterable[tuple[MeasuredInstruction | MeasuredCollective, float, str]],
) -> tuple[EvidenceRow, ...]:
    """The first of some instructions as evidence, each with its microseconds in a step and a
    note.
    """
    return tuple(
        EvidenceRow(item.name, us, note, item.op_name)
        for item, us, note in islice(rows, ROWS)
    )


def total_us(items: Iterable[MeasuredInstruction]) -> float:
    """Time of some instructions in a step, in microseconds."""
    return sum(item.us for item in items)
