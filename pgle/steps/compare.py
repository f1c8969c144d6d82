"""Two sides compared: are the steps of NEW faster than those of BASE, and how sure is that."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from pgle.errors import UserError
from pgle.steps import footnotes
from pgle.steps.guards import Guard, guards
from pgle.steps.interval import FEWEST_STEPS, Estimate, of_pairs, of_runs, of_single_runs
from pgle.steps.series import Floats
from pgle.steps.steady import StepTimes

RUN_NOISE = 0.0015
"""Standard deviation of step time between launches of one program that is assumed where each side has one run: the
control runs of a 64-GPU job differed by 0.03 points of 22.2 % model FLOPs utilisation (marin-community/marin#7012)."""


OTHER_UNIT = 100.0
"""Runs whose step times differ by more than this factor are not of one unit, or not of one thing."""


class Verdict(StrEnum):
    """What can be said of NEW."""

    FASTER = "faster"
    SLOWER = "slower"
    SAME = "same"
    """The interval lies within the margin of equality."""
    UNDECIDED = "undecided"
    """Neither a difference nor equality is shown."""


class Design(StrEnum):
    """What one observation is."""

    BLOCKS = "one run per side, blocks of steps"
    RUNS = "runs"
    PAIRS = "pairs of runs"
    ONE_AGAINST_RUNS = "one run against several"


@dataclass(frozen=True, slots=True)
class Assumptions:
    """The statistical assumptions, as a value.

    Attributes:
        confidence: of the interval, two-sided; 1 - confidence is the level of every test.
        margin: differences below this share count as equality.
        run_noise: standard deviation between launches, where each side has one run; None: `RUN_NOISE`, and none for
            simulated runs.
        paired: run i of BASE belongs to run i of NEW.
    """

    confidence: float = 0.95
    margin: float = 0.005
    run_noise: float | None = None
    paired: bool = False


@dataclass(frozen=True)
class Side:
    """One side of a comparison.

    Attributes:
        label: what it is called.
        runs: its runs, steady steps.
    """

    label: str
    runs: tuple[StepTimes, ...]

    @property
    def steps(self) -> int:
        """Steady steps of all runs."""
        return sum(len(run) for run in self.runs)

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


@dataclass(frozen=True)
class Comparison:
    """The result.

    Attributes:
        verdict: what can be said.
        ratio: step time of NEW over that of BASE.
        ci: confidence interval of the ratio; (0, inf) where nothing can be said.
        p: of the rank test; None where there is none.
        n: units on each side.
        minimum_detectable: smallest change that would be found with 80 % probability at this noise, relative.
        design: what a unit is.
        test: name of the rank test.
        method: how the interval was made.
        assumptions: as given; `run_noise` filled in.
        base: the one side.
        new: the other.
        guards: loss, memory, compile time.
        footnotes: what the reader should know.
    """

    verdict: Verdict
    ratio: float
    ci: tuple[float, float]
    p: float | None
    n: tuple[int, int]
    minimum_detectable: float
    design: Design
    test: str
    method: str
    assumptions: Assumptions
    base: Side
    new: Side
    guards: tuple[Guard, ...]
    footnotes: tuple[str, ...]

    @property
    def change(self) -> float:
        """Ratio - 1: positive is slower."""
        return self.ratio - 1

    @property
    def simulated(self) -> bool:
        """True where a side is simulated."""
        return self.base.simulated or self.new.simulated


METHODS = {
    Design.BLOCKS: "ratio of medians; Student t with the standard error of a circular block bootstrap",
    Design.RUNS: "ratio of geometric means of run medians; Welch t",
    Design.PAIRS: "geometric mean of the ratios of paired run medians; Student t",
    Design.ONE_AGAINST_RUNS: "ratio to the geometric mean of run medians; prediction interval, Student t",
}


def compare(base: Side, new: Side, assumptions: Assumptions = Assumptions()) -> Comparison:
    """Compare two sides.

    Raises:
        UserError: a run has no steady steps, the sides are of different kinds, or pairs do not match.
    """
    _check(base, new, assumptions)
    simulated = base.simulated or new.simulated
    noise = assumptions.run_noise if assumptions.run_noise is not None else (0.0 if simulated else RUN_NOISE)
    assumptions = Assumptions(assumptions.confidence, assumptions.margin, noise, assumptions.paired)
    alpha = 1 - assumptions.confidence
    design = _design(base, new, assumptions.paired)
    estimate: Estimate | None
    if design is Design.PAIRS:
        estimate = of_pairs(base.log_medians, new.log_medians, alpha=alpha)
    elif design is Design.BLOCKS:
        times = np.log(base.runs[0].step_time_s), np.log(new.runs[0].step_time_s)
        estimate = of_single_runs(*times, alpha=alpha, run_noise=noise)
    else:
        estimate = of_runs(base.log_medians, new.log_medians, alpha=alpha)
    if estimate is None:
        ratio, ci, p, detectable, n, test = new.median_s / base.median_s, (0.0, math.inf), None, math.inf, (1, 1), ""
    else:
        ratio = math.exp(estimate.difference)
        ci = (ratio * math.exp(-estimate.half_width), ratio * math.exp(min(estimate.half_width, 700)))
        p, n, test = estimate.p, estimate.n, estimate.test
        detectable = math.expm1(min(estimate.detectable, 700))
    checked = guards(base.runs, new.runs)
    return Comparison(
        verdict=_verdict(estimate, ci, alpha, assumptions.margin),
        ratio=ratio,
        ci=ci,
        p=p,
        n=n,
        minimum_detectable=detectable,
        design=design,
        test=test,
        method=METHODS[design],
        assumptions=assumptions,
        base=base,
        new=new,
        guards=checked,
        footnotes=tuple(dict.fromkeys(footnotes.notes(base, new, estimate, design, noise, alpha))),
    )


def _verdict(estimate: Estimate | None, ci: tuple[float, float], alpha: float, margin: float) -> Verdict:
    """The interval decides; the rank test must agree wherever it could."""
    if estimate is None:
        return Verdict.UNDECIDED
    agrees = estimate.p is None or estimate.least_p > alpha or estimate.p <= alpha
    if agrees and ci[1] < 1:
        return Verdict.FASTER
    if agrees and ci[0] > 1:
        return Verdict.SLOWER
    if ci[0] >= 1 - margin and ci[1] <= 1 + margin:
        return Verdict.SAME
    return Verdict.UNDECIDED


def _design(base: Side, new: Side, paired: bool) -> Design:
    counts = sorted((len(base.runs), len(new.runs)))
    if paired:
        return Design.PAIRS
    if counts == [1, 1]:
        return Design.BLOCKS
    return Design.ONE_AGAINST_RUNS if counts[0] == 1 else Design.RUNS


def _check(base: Side, new: Side, assumptions: Assumptions) -> None:
    check_runs((*base.runs, *new.runs))
    kinds = {run.series.format == "trace" for side in (base, new) for run in side.runs}
    if len(kinds) > 1:
        what = "a profiler trace (time on the device) cannot be compared with a log (time of the host's loop)"
        raise UserError(what, where=f"{base.label}, {new.label}", remedy="give both sides in the same form")
    if assumptions.paired:
        _check_pairs(base, new)


def _check_pairs(base: Side, new: Side) -> None:
    counts: Sequence[int] = (len(base.runs), len(new.runs))
    if counts[0] != counts[1] or counts[0] < 2:
        what = f"pairs need as many runs on each side, at least 2: there are {counts[0]} and {counts[1]}"
        raise UserError(what, where=f"{base.label}, {new.label}", remedy="leave out --paired")


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
