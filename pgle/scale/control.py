"""The answer of `scale` by two compilations, which use different kernels for matrix products.

`pgle.schedule.control` explains why there are two.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

from pgle.scale.answer import Judged, Range, ScaleAnswer, ScaleRow, answer
from pgle.schedule.control import ROUNDED
from pgle.worth import is_worth


@dataclass(frozen=True)
class ScaleControl:
    """The answer by the second compilation, and how it differs from the first."""

    # the answer with the other kernels; a row without a second compilation stays as it is
    other: ScaleAnswer
    breaks: bool  # whether the best variant scales to another size
    is_other_best: bool  # whether another variant is best at the largest size
    fits: tuple[ScaleRow, ...]  # rows that fit by only one compilation
    # pairs of variants of one size whose order differs between compilations
    swapped: tuple[tuple[ScaleRow, ScaleRow], ...]

    @property
    def depends(self) -> bool:
        """Whether the verdict depends on the kernels."""
        return self.breaks or self.is_other_best


def answer_of_both(
    rows: Sequence[ScaleRow], measured: Mapping[int, float] | None = None
) -> tuple[ScaleAnswer, ScaleControl | None]:
    """The first compilation's answer, with ranges that hold both, and the control.

    The control is None if no row has a second compilation that makes another program. `answer`
    takes the same arguments.
    """
    first = answer(rows, measured)
    if not any(row.control is not None and row.control.row is not None for row in rows):
        return first, None
    other = answer([_other(row) for row in rows], measured)
    return _joined(first, other), _control(first, other)


def _other(row: ScaleRow) -> ScaleRow:
    """The row of the second compilation; the row itself if it has none."""
    found = None if row.control is None else row.control.row
    if found is None:
        return row
    return replace(found, values=row.values, shown=row.shown, fitted=row.fitted)


def _control(first: ScaleAnswer, other: ScaleAnswer) -> ScaleControl:
    is_other_best = _is_other_best(first, other)
    breaks = not is_other_best and first.scales_to != other.scales_to
    pairs = list(zip(first.rows, other.rows, strict=True))
    fits = tuple(one.row for one, two in pairs if one.row.fits != two.row.fits)
    turned = (two for two in combinations(pairs, 2) if _turns(*two))
    return ScaleControl(
        other=other,
        breaks=breaks,
        is_other_best=is_other_best,
        fits=fits,
        swapped=tuple((one[0].row, two[0].row) for one, two in turned),
    )


def _is_other_best(first: ScaleAnswer, other: ScaleAnswer) -> bool:
    """Whether the compilations have different best variants, and the difference is more than
    rounding.
    """
    if not first.best or not other.best:
        return False
    here = first.best[-1].row
    there = other.best[-1].row
    if here.variant == there.variant:
        return False
    pairs = list(zip(first.rows, other.rows, strict=True))
    one = next(pair for pair in pairs if pair[0].row is here)
    two = next(pair for pair in pairs if pair[1].row is there)
    return here.devices != there.devices or _turns(one, two)


def _turns(one: tuple[Judged, Judged], two: tuple[Judged, Judged]) -> bool:
    """Whether the order of two variants of one size differs between the compilations, by more than
    rounding.
    """
    if one[0].row.devices != two[0].row.devices:
        return False
    first = _lead(one[0], two[0])
    other = _lead(one[1], two[1])
    least, most = sorted((abs(first), abs(other)))
    return first * other < 0 and least >= ROUNDED and is_worth(most)


def _lead(one: Judged, two: Judged) -> float:
    """How much more work per second `one` does than `two`, as a share; 0 without a step."""
    if not one.efficiency or not two.efficiency:
        return 0.0
    return one.efficiency / two.efficiency - 1


def _joined(first: ScaleAnswer, other: ScaleAnswer) -> ScaleAnswer:
    """The first answer, with ranges that also hold the other compilation's ranges."""
    both: dict[int, Judged] = {}
    for one, two in zip(first.rows, other.rows, strict=True):
        if one.efficiency is not None and two.efficiency is not None:
            both[id(one)] = replace(
                one,
                interval_us=_hull(one.interval_us, two.interval_us),
                efficiency_range=_hull(one.efficiency_range, two.efficiency_range),
            )

    def of(item: Judged) -> Judged:
        return both.get(id(item), item)

    return replace(
        first,
        rows=tuple(map(of, first.rows)),
        first=None if first.first is None else of(first.first),
        best=tuple(map(of, first.best)),
        breaks=None if first.breaks is None else of(first.breaks),
    )


def _hull(one: Range, two: Range) -> Range:
    return min(one[0], two[0]), max(one[1], two[1])
