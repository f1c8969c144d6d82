"""Two sides compared: are the steps of NEW faster than the steps of BASE, and how sure is that."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from pgle.errors import UserError
from pgle.steps.estimate import FEW_STEPS, Assumptions, Estimate, estimate
from pgle.steps.side import Guard, Side, check_runs, guards

DEFAULTS = Assumptions()
TAIL_ERRORS = 4.0  # standard errors from which means of steady steps tell another change than medians
GRAIN_SHOWN = 0.001  # of a step: step times that are written more coarsely get a warning
STALL_DIFFERENCE = 0.01  # a difference of the share of time lost in stalls that gets a warning


UNLIKE = {"hardware": "other GPUs", "module": "another program"}
"""What both sides of a comparison must have in common, by its name in `Series.about`."""


class Verdict(StrEnum):
    """The answer on NEW."""

    FASTER = "faster"
    SLOWER = "slower"
    SAME = "same"  # the interval is within the margin of equality
    UNDECIDED = "undecided"  # neither a difference nor equality is shown


@dataclass(frozen=True)
class Comparison:
    """The result."""

    verdict: Verdict  # the answer
    estimate: Estimate  # the design, and what was found
    assumptions: Assumptions  # as given
    base: Side  # the one side
    new: Side  # the other
    guards: tuple[Guard, ...]  # loss, memory
    warnings: tuple[str, ...]  # what the reader should know, one line each

    @property
    def unlike(self) -> tuple[str, ...]:
        """What the records show to be other than on the other side, so that a change is of more than one thing."""
        found = []
        for name, what in UNLIKE.items():
            one, two = ({run.series.about.get(name, "") for run in side.runs} for side in (self.base, self.new))
            if "" not in one | two and one != two:
                found.append(f"{what}: {', '.join(sorted(one))} and {', '.join(sorted(two))}")
        return tuple(found)

    @property
    def ratio(self) -> float:
        """Step time of NEW over step time of BASE."""
        return math.exp(self.estimate.difference)

    @property
    def ci(self) -> tuple[float, float]:
        """Confidence interval of the ratio; (0, inf) if nothing is known."""
        half = self.estimate.half_width
        return self.ratio * math.exp(-half), self.ratio * _exp(half)

    @property
    def minimum_detectable(self) -> float:
        """Smallest change that would be found with 80 % probability at this noise, relative."""
        return _exp(self.estimate.detectable) - 1

    @property
    def change(self) -> float:
        """Ratio - 1: positive is slower."""
        return self.ratio - 1

    @property
    def simulated(self) -> bool:
        """True where a side is simulated."""
        return self.base.simulated or self.new.simulated


def compare(base: Side, new: Side, assumptions: Assumptions = DEFAULTS) -> Comparison:
    """Compare two sides.

    Raises:
        UserError: a run has no steady steps, the sides are of different kinds, or pairs do not match.
    """
    check_runs((*base.runs, *new.runs))
    if len({run.series.format == "trace" for side in (base, new) for run in side.runs}) > 1:
        what = "a profiler trace (time on the device) cannot be compared with a log (time of the host's loop)"
        raise UserError(what, where=f"{base.label}, {new.label}", remedy="give both sides in the same form")
    found = _with_grain(_with_means(estimate(base, new, assumptions), base, new, assumptions), base, new)
    return Comparison(
        verdict=_verdict(found, assumptions),
        estimate=found,
        assumptions=assumptions,
        base=base,
        new=new,
        guards=guards(base, new),
        warnings=tuple(dict.fromkeys((*_about_sides(base, new, found), *found.warnings, *_about_runs(base, new)))),
    )


def _with_means(found: Estimate, base: Side, new: Side, assumptions: Assumptions) -> Estimate:
    """If means tell another change than medians, the interval spans both: a run takes as long as its mean step."""
    tails, errors = (
        [[getattr(run, name) for run in side.runs] for side in (base, new)] for name in ("tail", "mean_error")
    )
    apart = float(np.mean(tails[1]) - np.mean(tails[0]))
    error = math.hypot(*(float(np.linalg.norm(values)) / len(values) for values in errors))
    if abs(apart) <= max(assumptions.margin, TAIL_ERRORS * error):
        return found
    mean, median = (math.expm1(value) for value in (found.difference + apart, found.difference))
    note = (
        f"the mean of the steady steps changes by {mean * 100:+.1f} %, their median by {median * 100:+.1f} %; "
        "the interval spans both"
    )
    return found.widened(abs(apart), note)


def _with_grain(found: Estimate, base: Side, new: Side) -> Estimate:
    """Each median may be off by half of the last digit that was written."""
    grains = [max(run.grain for run in side.runs) for side in (base, new)]
    notes = [
        f"{side.label}: step times are rounded to {grain * 100:.1f} %, which the interval includes; write more digits"
        for side, grain in zip((base, new), grains, strict=True)
        if grain > GRAIN_SHOWN
    ]
    return found.widened(sum(grains) / 2, *notes)


def _verdict(found: Estimate, assumptions: Assumptions) -> Verdict:
    """The interval decides; the rank test must agree if it has enough units."""
    low, high = (found.difference + side * found.half_width for side in (-1, 1))
    if found.p is None or found.least_p > assumptions.alpha or found.p <= assumptions.alpha:
        if high < 0:
            return Verdict.FASTER
        if low > 0:
            return Verdict.SLOWER
    margin = math.log1p(assumptions.margin)
    return Verdict.SAME if -margin <= low and high <= margin else Verdict.UNDECIDED


def _about_sides(base: Side, new: Side, found: Estimate) -> Iterator[str]:
    if base.simulated or new.simulated:
        yield "simulated: step times come from the simulated GPU, no hardware was measured"
        if found.half_width == 0 and len(base.runs) + len(new.runs) > 2:
            yield "repeated simulations are identical: their spread shows no noise"
    if base.runs[0].series.format == "trace":
        yield "times come from profiler traces, which inflate them by some per cent"


def _about_runs(base: Side, new: Side) -> Iterator[str]:
    for side in (base, new):
        short = [run for run in side.runs if len(run) < FEW_STEPS]
        if short:
            steps = "1 steady step" if len(short[0]) == 1 else f"{len(short[0])} steady steps"
            where = f" in {short[0].series.source}" if len(side.runs) > 1 else ""
            yield f"{side.label}: only {steps}{where}; record more"
    if abs(new.stall_share - base.stall_share) > STALL_DIFFERENCE:
        yield (
            f"stalls take {base.stall_share * 100:.1f} % of base's time and {new.stall_share * 100:.1f} % of new's; "
            "medians ignore them (--keep-stalls)"
        )
    for side in (base, new):
        for run in side.runs:
            yield from run.warnings


def _exp(value: float) -> float:
    return math.exp(value) if value < 700 else math.inf
