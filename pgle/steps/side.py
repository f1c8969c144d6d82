"""One side of a comparison: its runs, and the figures that must not get worse while its steps get faster."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pgle.errors import UserError
from pgle.steps.series import Floats
from pgle.steps.steady import StepTimes

FEWEST_STEPS = 3
"""Of a single run: two give an interval that covers in 88 % of draws instead of 95 %, three in 97 % (measured)."""
OTHER_UNIT = 100.0  # runs whose step times differ by more than this factor are not of one unit, or not of one thing


@dataclass(frozen=True)
class Side:
    """One side of a comparison."""

    label: str  # what it is called
    runs: tuple[StepTimes, ...]  # its runs, steady steps

    @property
    def steps(self) -> int:
        """Steady steps of all runs."""
        return sum(len(run) for run in self.runs)

    @property
    def commit(self) -> str:
        """Of the program, as recorded with its runs; empty where unknown or where they differ."""
        known = {run.series.about.get("commit", "") for run in self.runs}
        return known.pop() if len(known) == 1 else ""

    @property
    def median_s(self) -> float:
        """Median step time in seconds; of several runs, the median of their medians."""
        return float(np.median([run.median_s for run in self.runs]))

    @property
    def log_medians(self) -> Floats:
        """float64[runs], logarithm of each run's median in seconds."""
        return np.log([run.median_s for run in self.runs])

    @property
    def spread(self) -> float:
        """Half the distance of the quartiles, relative to the median: of run medians, or of the steps of one run."""
        values = np.exp(self.log_medians) if len(self.runs) > 1 else self.runs[0].step_time_s
        low, middle, high = np.quantile(values, [0.25, 0.5, 0.75])
        return float((high - low) / 2 / middle)

    @property
    def stall_share(self) -> float:
        """Share of time in stalls, mean of the runs."""
        return float(np.mean([run.stall_share for run in self.runs]))

    @property
    def simulated(self) -> bool:
        """True where any run is of the simulated GPU."""
        return any(run.series.simulated for run in self.runs)


def check_runs(runs: Sequence[StepTimes]) -> None:
    """Refuse a run without steady steps, and runs whose step times are `OTHER_UNIT` apart.

    Raises:
        UserError: there is one, or two are.
    """
    for run in runs:
        if len(run) == 0:
            gone = ", ".join(f"{len(item.steps)} {item.rule}" for item in run.left_out)
            what = f"no steady step among {len(run.series)} ({gone or 'empty'})"
            outside = any(item.rule == "outside --steps" for item in run.left_out)
            first, last = (run.series.step.min(), run.series.step.max()) if len(run.series) else (0, 0)
            remedy = f"its steps are {first} to {last}" if outside else "record more steps, or pass --warmup 0"
            raise UserError(what, where=run.series.source, remedy=remedy)
    known = (run for run in runs if len(run) >= FEWEST_STEPS)  # else perhaps a compile
    ordered = sorted(known, key=lambda run: run.median_s)
    if ordered and ordered[-1].median_s > OTHER_UNIT * ordered[0].median_s:
        fast, slow = ordered[0], ordered[-1]
        what = (
            f"step times of {fast.series.source} and {slow.series.source} differ by a factor of "
            f"{slow.median_s / fast.median_s:.4g} ({fast.median_s:.4g} s and {slow.median_s:.4g} s): "
            "other units, or one loop does not wait for its steps"
        )
        raise UserError(what, remedy="name the unit: step_time_s, step_time_ms, or --pattern with a group ms")


@dataclass(frozen=True, slots=True)
class Guard:
    """One figure of both sides."""

    name: str  # ``loss`` or ``peak memory``
    unit: str  # ``""`` or ``bytes``
    base: float  # of BASE
    new: float  # of NEW; infinite where the loss is not a finite number
    basis: str  # what was compared

    @property
    def change(self) -> float:
        """Relative change; infinite where a side is no finite number, or where BASE is zero and NEW is not."""
        if not math.isfinite(self.new) or not math.isfinite(self.base):
            return math.inf
        if self.base == 0:
            return 0.0 if self.new == 0 else math.inf
        return (self.new - self.base) / abs(self.base)


def guards(base: Side, new: Side) -> tuple[Guard, ...]:
    """The guards for which both sides have data."""
    found = (guard(base.runs, new.runs) for guard in (_loss, _memory))
    return tuple(item for item in found if item is not None)


def _loss(base: Sequence[StepTimes], new: Sequence[StepTimes]) -> Guard | None:
    """Mean loss over the later half of the steps that all runs share; every recorded step counts, steady or not.

    A loss of NEW that is no finite number is reported wherever it is, shared or not.
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
