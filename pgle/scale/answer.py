"""What the rows say together: ranges that widen with size, efficiency, where a program stops to scale, and why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import hypot, inf

from pgle.costs.estimate.estimate import size_spread
from pgle.scale.row import Exposed, ScaleRow
from pgle.schedule.predict import ESTIMATE_RANGE

BREAKS = 0.9
"""Efficiency from which on a program counts as scaling; a convention: nine tenths of the GPUs' work for the money."""

Range = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Anchor:
    """A measured step at one size and what was predicted for it, microseconds: it moves the steps of all sizes."""

    devices: int
    measured_us: float
    predicted_us: float

    @property
    def factor(self) -> float:
        """What predicted steps are multiplied by: costs are taken to be off by the same share at every size."""
        return self.measured_us / self.predicted_us

    def ends_us(self, step_us: float) -> tuple[float, float]:
        """The step multiplied and the step with the difference added instead, the smaller first. One measured size
        cannot tell the two apart; they are equal there."""
        added = max(step_us + self.measured_us - self.predicted_us, 0.0)
        low, high = sorted((step_us * self.factor, added))
        return low, high


@dataclass(frozen=True)
class Judged:
    """A row against the first."""

    row: ScaleRow
    step_us: float = 0.0  # moved by the anchor, if there is one
    interval_us: Range = (0.0, 0.0)
    efficiency: float | None = None  # work per second and GPU against the first row's; None where there is no step
    efficiency_range: Range = (0.0, 0.0)
    flat: float | None = None  # step against the first row's
    scaling: float | None = None  # efficiency against the first row of its own variant


@dataclass(frozen=True)
class ScaleAnswer:
    """All rows, judged."""

    rows: tuple[Judged, ...]
    first: Judged | None  # the smallest size, which others are compared with; None where no row has a step
    best: tuple[Judged, ...]  # the rows of the variant that is fastest at the largest size
    breaks: Judged | None  # of `best`, the first whose `scaling` is below `BREAKS`
    culprit: Exposed | None  # the collectives exposed more there than in the first of `best`
    culprit_share: float  # of the step that it is exposed for there
    anchor: Anchor | None

    @property
    def scales_to(self) -> int | None:
        """The largest size of `best` before it breaks."""
        until = inf if self.breaks is None else self.breaks.row.devices
        return max((item.row.devices for item in self.best if item.row.devices < until), default=None)

    @property
    def nearest(self) -> Judged | None:
        """Of the rows that do not fit, the one that lacks least memory."""
        large = (item for item in self.rows if item.row.fits is False)
        return min(large, key=lambda item: (item.row.memory_bytes or 0) - (item.row.limit_bytes or 0), default=None)

    @property
    def grows(self) -> str:
        """The part of the step that grew most, for the same work, from the first row of `best` to where it breaks."""
        more_us = {} if self.breaks is None else more_than(self.best[0].row, self.breaks.row)
        return max(more_us, key=more_us.__getitem__, default="")

    @property
    def good(self) -> bool:
        """Whether there is a step that fits."""
        return any(not item.row.failure and item.row.fits is not False for item in self.rows)


def answer(rows: Sequence[ScaleRow], measured: Mapping[int, float] | None = None) -> ScaleAnswer:
    """Judge all rows.

    Args:
        rows: of any order; those of smaller sizes come first in the answer.
        measured: microseconds of a measured step by size, one at most; the first variant's.
    """
    rows = sorted(rows, key=lambda row: row.devices)
    there = [row for row in rows if not row.failure and row.step_us > 0]
    if not there:
        return ScaleAnswer(tuple(map(Judged, rows)), None, (), None, None, 0.0, None)
    anchors = (
        Anchor(row.devices, us, row.step_us)
        for row in there
        for at, us in (measured or {}).items()
        if at == row.devices
    )
    anchor = next(anchors, None)
    own = {row.variant: row for row in reversed(there)}
    judged = tuple(_judged(row, there[0], own.get(row.variant, row), anchor) for row in rows)
    first = next(item for item in judged if item.row is there[0])
    best = _best(judged)
    breaks = next((item for item in best if item.scaling is not None and item.scaling < BREAKS), None)
    culprit, share = (None, 0.0) if breaks is None else _culprit(breaks.row, best[0].row)
    return ScaleAnswer(judged, first, best, breaks, culprit, share, anchor)


def _judged(row: ScaleRow, first: ScaleRow, own: ScaleRow, anchor: Anchor | None) -> Judged:
    if row.failure or not row.step_us:
        return Judged(row)
    # Of the estimates, compute is off by about the same share at both sizes; communication is not.
    modelled = [abs(factor - 1) * row.exposed_us / row.step_us for factor in ESTIMATE_RANGE]
    faster, slower = size_spread(first.devices, row.devices)
    efficiency = _rate(row) / _rate(first)
    down, up = hypot(modelled[1], slower - 1), hypot(modelled[0], 1 - faster)
    if row is first:
        down = up = 0.0
    return Judged(
        row,
        step_us=row.step_us * (1.0 if anchor is None else anchor.factor),
        interval_us=_interval(row, first, anchor),
        efficiency=efficiency,
        efficiency_range=(efficiency / (1 + down), efficiency / max(1 - up, 0.1)),
        flat=row.step_us / first.step_us,
        scaling=_rate(row) / _rate(own),
    )


def _interval(row: ScaleRow, first: ScaleRow, anchor: Anchor | None) -> Range:
    """The range of a step: what the prediction does not know of itself, and what no compiler knows of another size.

    With an anchor the prediction's own doubt is gone, but for communication that the anchor's size does not have.
    """
    known_at = first.devices if anchor is None else anchor.devices
    low, high = size_spread(known_at, row.devices)
    if anchor is None:
        step, ends = row.step_us, (row.least_us, inf if row.most_us is None else row.most_us)
    else:
        step, ends = row.step_us * anchor.factor, anchor.ends_us(row.step_us)
    return (
        max(step - hypot(step - ends[0], step * (1 - low)), 0.0),
        step + hypot(ends[1] - step, step * (high - 1)),
    )


def more_than(first: ScaleRow, row: ScaleRow) -> dict[str, float]:
    """By part of the step, the microseconds that it takes more than at another size for the same work."""
    work = (row.operations or 1.0) / (first.operations or 1.0)
    parts = {
        "compute": "compute_us",
        "exposed communication": "exposed_us",
        "copies": "copy_us",
        "idle time": "idle_us",
    }
    return {words: getattr(row, name) - work * getattr(first, name) for words, name in parts.items()}


def _rate(row: ScaleRow) -> float:
    """Work per time of one GPU."""
    return (row.operations or 1.0) / row.step_us


def _best(judged: Sequence[Judged]) -> tuple[Judged, ...]:
    """The rows of the variant that does most work per second at the largest size; one that does not fit comes last."""
    there = [item for item in judged if item.efficiency is not None]
    last = max(there, key=lambda item: (item.row.fits is not False, item.row.devices, item.efficiency or 0.0))
    return tuple(item for item in there if item.row.variant == last.row.variant)


def _culprit(row: ScaleRow, first: ScaleRow) -> tuple[Exposed | None, float]:
    """What grew most from the first row, as a share of the step."""
    before: dict[str, float] = {}
    for item in first.by_collective:
        before[item.kind] = before.get(item.kind, 0.0) + item.exposed_us / first.step_us
    if not row.by_collective:
        return None, 0.0
    worst = max(row.by_collective, key=lambda item: item.exposed_us / row.step_us - before.get(item.kind, 0.0))
    return (worst, worst.exposed_us / row.step_us) if worst.exposed_us > 0 else (None, 0.0)
