"""A finding of a measured step: what costs time, with its evidence and what to do."""

from __future__ import annotations

from dataclasses import dataclass

ROWS = 5  # evidence rows of a finding


@dataclass(frozen=True, slots=True)
class EvidenceRow:
    """One row of a finding's evidence."""

    name: str  # an instruction, or what the row is of
    us: float  # microseconds in a step
    note: str = ""  # in words
    op_name: str = ""  # the framework's name; empty where unknown


@dataclass(frozen=True, slots=True)
class StepFinding:
    """Something that costs time."""

    # of a step, what it could save at most; 0 where it saves nothing but spoils the measurement
    lost_us: float
    number: str  # what was found, in words
    evidence: tuple[EvidenceRow, ...]  # rows, the most important first
    remedy: str  # what to do next
    reached: float | None = (
        None  # what the limit is held against; None: the share of the step that is lost
    )
    # why no saving is claimed, where the recording itself makes what was found; else empty
    unclaimed: str = ""
    # of its rule, as `todo`, and the share of the step that it could save at most
    id: str = ""
    title: str = ""
    share: float = 0.0
    todo: str = ""  # what to do about it, if it saves time
