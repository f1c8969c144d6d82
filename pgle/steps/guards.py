"""What must not get worse while steps get faster: loss, peak memory, compile time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pgle.steps.series import Floats
from pgle.steps.steady import StepTimes


@dataclass(frozen=True, slots=True)
class Guard:
    """One figure of both sides.

    Attributes:
        name: ``loss``, ``peak memory`` or ``compile time``.
        unit: ``""``, ``bytes`` or ``s``.
        base: of BASE.
        new: of NEW; infinite where the loss is not a finite number.
        basis: what was compared.
    """

    name: str
    unit: str
    base: float
    new: float
    basis: str

    @property
    def change(self) -> float:
        """Relative change; infinite where a side is no finite number, or where BASE is zero and NEW is not."""
        if not math.isfinite(self.new) or not math.isfinite(self.base):
            return math.inf
        if self.base == 0:
            return 0.0 if self.new == 0 else math.inf
        return (self.new - self.base) / abs(self.base)


def guards(base: Sequence[StepTimes], new: Sequence[StepTimes]) -> tuple[Guard, ...]:
    """The guards for which both sides have data."""
    found = (_loss(base, new), _memory(base, new), _compile_time(base, new))
    return tuple(item for item in found if item is not None)


def _loss(base: Sequence[StepTimes], new: Sequence[StepTimes]) -> Guard | None:
    """Mean loss over the later half of the steps that all runs share; every recorded step counts, steady or not.

    A loss of NEW that is no finite number is told wherever it is, shared or not.
    """
    one, two = _losses(base), _losses(new)
    common = sorted(set(one) & set(two))
    later = common[len(common) // 2 :]
    means = [float(np.mean([side[step] for step in later])) if later else math.nan for side in (one, two)]
    broken = [_first_infinite(side) for side in (base, new)]
    if broken[1] is not None:
        as_base = "" if broken[0] is None else f" (of BASE, in step {broken[0]})"
        return Guard("loss", "", means[0], math.inf, f"not a finite number in step {broken[1]}{as_base}")
    if not common:
        return None
    return Guard("loss", "", means[0], means[1], f"mean of steps {later[0]} to {later[-1]}")


def _first_infinite(runs: Sequence[StepTimes]) -> int | None:
    found = [run.series.step[np.isinf(run.series.loss)] for run in runs]
    return min((int(steps.min()) for steps in found if len(steps)), default=None)


def _losses(runs: Sequence[StepTimes]) -> dict[int, float]:
    """Mean loss of the runs by step, for steps that every run has."""
    by_run = []
    for run in runs:
        known = ~np.isnan(run.series.loss)
        by_run.append(dict(zip(run.series.step[known].tolist(), run.series.loss[known].tolist(), strict=True)))
    shared = set.intersection(*(set(item) for item in by_run)) if by_run else set()
    return {step: float(np.mean([item[step] for item in by_run])) for step in shared}


def _memory(base: Sequence[StepTimes], new: Sequence[StepTimes]) -> Guard | None:
    one, two = (_largest([run.series.peak_memory_bytes for run in side]) for side in (base, new))
    return None if one is None or two is None else Guard("peak memory", "bytes", one, two, "largest of all steps")


def _largest(columns: Sequence[Floats]) -> float | None:
    values = np.concatenate(columns)
    known = values[~np.isnan(values)]
    return float(known.max()) if len(known) else None


def _compile_time(base: Sequence[StepTimes], new: Sequence[StepTimes]) -> Guard | None:
    one, two = (
        [run.series.compile_time_s for run in side if run.series.compile_time_s is not None] for side in (base, new)
    )
    if not one or not two:
        return None
    return Guard("compile time", "s", float(np.median(one)), float(np.median(two)), "median of the runs")
