"""What would make a size do better, with what it saves at most."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from pgle.scale.answer import Answer, Judged

LITTLE = 0.02  # of the step: less is not worth a line


class Kind(Enum):
    """What to do."""

    VARIANT = "variant"  # take another variant that was tried
    BATCH = "batch"  # give each GPU more work, or accumulate gradients
    VARY = "vary"  # try other meshes: none was
    TUNE = "tune"  # look for XLA flags
    FIT = "fit"  # look for a value that fits


@dataclass(frozen=True)
class Advice:
    """One thing to do at one size."""

    kind: Kind
    at: Judged
    saves: float | None = None  # of the step there, at most, for the same work; None: not known
    values: Mapping[str, str] = field(default_factory=dict)  # of the variant to take
    more_bytes: int | None = None  # device memory that it takes more; None: not known


def advice(found: Answer) -> tuple[Advice, ...]:
    """What to do where the program breaks, else at the largest size; what saves most first.

    Weights are gathered and gradients reduced once, whatever the batch: with twice the work in a step, half of their
    time remains for each part of it.
    """
    if not found.best:
        return ()
    at = found.breaks or found.best[-1]
    row, given = at.row, []
    others = [item for item in found.rows if item.row.devices == row.devices and item.efficiency]
    better = max((item for item in others if item.row.fits is not False), key=_efficiency, default=at)
    saves = 1 - _efficiency(at) / max(_efficiency(better), 1e-9)
    if better.row.variant != row.variant and saves > LITTLE:
        given.append(Advice(Kind.VARIANT, at, saves, better.row.shown))
    moved = sum(item.weights_us for item in row.by_collective) / row.step_us
    if moved / 2 > LITTLE:
        given.append(Advice(Kind.BATCH, at, moved / 2, more_bytes=row.temp_bytes))
    room = 1 - row.ceiling_us / row.step_us
    if room > LITTLE:
        given.append(Advice(Kind.TUNE, at, room))
    given.sort(key=lambda item: -(item.saves or 0.0))
    if found.breaks is not None and found.culprit is not None and found.culprit.hosts > 1 and len(others) == 1:
        given.insert(len(given) if found.culprit.moves_weights else 0, Advice(Kind.VARY, at))
    large = found.nearest
    return (*([Advice(Kind.FIT, large)] if large and not large.row.tried else []), *given)


def _efficiency(item: Judged) -> float:
    return item.efficiency or 0.0
