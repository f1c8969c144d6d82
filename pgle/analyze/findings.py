"""Findings of a measured step: a loss of time, its evidence, and a remedy."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice

from pgle.analyze.collectives import MeasuredCollective
from pgle.analyze.layers import MeasuredInstruction

ROWS = 5  # most evidence rows of a finding


@dataclass(frozen=True, slots=True)
class EvidenceRow:
    """One row of a finding's evidence."""

    name: str  # an instruction, or another name for the row
    us: float  # microseconds in a step
    note: str = ""  # a remark in words
    op_name: str = ""  # the framework's name; empty if unknown


@dataclass(frozen=True, slots=True)
class Observation:
    """What a rule sees in a step. The rule's limit decides whether it is a finding."""

    # microseconds of a step that could be saved at most; 0 if it only spoils the measurement
    lost_us: float
    number: str  # the observation in words, with its number
    evidence: tuple[EvidenceRow, ...]  # the most important first
    remedy: str  # what to do next
    # figure to compare with the limit; None to compare `lost_us` as a share of the step
    reached: float | None = None
    # why pgle claims no saving, if the recording itself causes it; else empty
    unclaimed: str = ""


@dataclass(frozen=True, slots=True)
class StepFinding:
    """An observation that reached the limit of its rule, such as a loss of time."""

    id: str  # of its rule
    title: str  # of its rule
    todo: str  # of its rule: the action, if it saves time
    share: float  # share of the step that it could save at most; 0 if unclaimed
    reached: float  # figure that was compared with the limit
    lost_us: float  # microseconds of a step that it could save at most, claimed or not
    number: str  # the finding in words, with its number
    evidence: tuple[EvidenceRow, ...]  # the most important first
    remedy: str  # what to do next
    unclaimed: str  # why pgle claims no saving; else empty


def evidence_of(
    rows: Iterable[tuple[MeasuredInstruction | MeasuredCollective, float, str]],
) -> tuple[EvidenceRow, ...]:
    """Turn the first `ROWS` rows into evidence.

    Args:
        rows: an instruction, its microseconds in a step, and a note.
    """
    return tuple(
        EvidenceRow(item.name, us, note, item.op_name)
        for item, us, note in islice(rows, ROWS)
    )


def total_us(items: Iterable[MeasuredInstruction]) -> float:
    """Microseconds of some instructions in a step, together."""
    return sum(item.us for item in items)
