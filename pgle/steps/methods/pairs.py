"""Runs in pairs, as `pgle compare --abba` makes them: what both runs of a pair have in common cancels."""

from __future__ import annotations

import math
from dataclasses import replace

from pgle.errors import UserError
from pgle.steps.methods.distributions import signed_rank
from pgle.steps.methods.method import Assumptions, Estimate, Method, rank_warning, t_estimate
from pgle.steps.side import Side


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
