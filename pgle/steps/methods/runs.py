"""Several runs on a side: the run, by its median, or the pair of runs is the unit."""

from __future__ import annotations

import math
from dataclasses import replace

from pgle.errors import UserError
from pgle.steps.methods.distributions import mann_whitney, signed_rank
from pgle.steps.methods.method import Assumptions, Estimate, Method, rank_warning, satterthwaite, t_estimate
from pgle.steps.side import Side


class Runs(Method):
    """Several runs on each side: the difference of the means of their log medians, Welch's t interval."""

    unit = "runs"
    text = "ratio of geometric means of run medians; Welch t"
    more = "runs per side"

    def fits(self, base: Side, new: Side, assumptions: Assumptions) -> bool:
        """Two runs or more on each side."""
        return min(len(base.runs), len(new.runs)) > 1

    def compare(self, base: Side, new: Side, assumptions: Assumptions) -> Estimate:
        """Welch's t interval, Mann-Whitney on the run medians."""
        one, two = base.log_medians, new.log_medians
        variance, freedom = self._variance(base, new)
        found = t_estimate(
            float(two.mean() - one.mean()),
            variance,
            freedom,
            assumptions.alpha,
            mann_whitney(one, two),
            (len(one), len(two)),
        )
        fewest = 2
        while 2 / math.comb(2 * fewest, fewest) > assumptions.alpha:
            fewest += 1
        return replace(found, warnings=rank_warning(found, assumptions.alpha, f"{fewest} runs per side"))

    def _variance(self, base: Side, new: Side) -> tuple[float, float]:
        parts = [(float(logs.var(ddof=1)) / len(logs), len(logs) - 1) for logs in (base.log_medians, new.log_medians)]
        return parts[0][0] + parts[1][0], satterthwaite(*parts)


class OneAgainstRuns(Runs):
    """A single run on one side: the spread of the other side stands for it (a prediction interval)."""

    unit = "one run against several"
    text = "ratio to the geometric mean of run medians; prediction interval, Student t"

    def fits(self, base: Side, new: Side, assumptions: Assumptions) -> bool:
        """One run on one side, several on the other."""
        return min(len(base.runs), len(new.runs)) == 1 < max(len(base.runs), len(new.runs))

    def _variance(self, base: Side, new: Side) -> tuple[float, float]:
        logs = max(base.log_medians, new.log_medians, key=len)
        return float(logs.var(ddof=1)) * (1 + 1 / len(logs)), len(logs) - 1


class Pairs(Method):
    """The mean of the differences of log medians, Student's t interval, Wilcoxon's signed ranks."""

    unit = "pairs of runs"
    text = "geometric mean of the ratios of paired run medians; Student t"
    test = "Wilcoxon signed-rank"
    more = "pairs of runs"

    def fits(self, base: Side, new: Side, assumptions: Assumptions) -> bool:
        """Where pairs were asked for, or made."""
        return assumptions.paired

    def compare(self, base: Side, new: Side, assumptions: Assumptions) -> Estimate:
        """Student's t interval of the mean difference.

        Raises:
            UserError: the sides have other numbers of runs, or fewer than two.
        """
        count = len(base.runs)
        if count != len(new.runs) or count < 2:
            what = f"pairs need as many runs on each side, at least 2: there are {count} and {len(new.runs)}"
            raise UserError(what, where=f"{base.label}, {new.label}", remedy="leave out --paired")
        difference = new.log_medians - base.log_medians
        found = t_estimate(
            float(difference.mean()),
            float(difference.var(ddof=1)) / count,
            count - 1,
            assumptions.alpha,
            signed_rank(difference),
            (count, count),
        )
        needed = f"{math.ceil(1 + math.log2(1 / assumptions.alpha))} pairs"
        return replace(found, warnings=rank_warning(found, assumptions.alpha, needed))
