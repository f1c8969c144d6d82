"""The mathematics of a comparison: logarithms of times in, difference, interval and p-value out."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy import stats

from pgle.steps.autocorrelation import block_length, blocks
from pgle.steps.bootstrap import bootstrap_medians
from pgle.steps.series import Floats

POWER = 0.8
"""Probability with which the minimum detectable effect would be found."""
FEWEST_STEPS = 3
"""Of a single run: two give an interval that covers in 88 % of draws instead of 95 %, three in 97 % (measured)."""
FEWEST_BLOCKS = 2
"""Blocks below which the steps of a run are too dependent to say anything."""
DRIFT_LEVEL = 0.2
"""Significance at which the two runs are taken to drift apart. Missing a drift costs more than a wider interval."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A difference of logarithms of times, new - base.

    Attributes:
        difference: the estimate.
        half_width: of the two-sided interval at the confidence asked for.
        detectable: smallest true difference found with probability `POWER` at this noise.
        p: of the rank test, two-sided; None where there is none.
        least_p: the smallest p that this number of units can give; 1 without a test.
        test: name of the rank test.
        n: units of base and new.
        drift: difference of the trends of the two runs over their whole length where it is significant, else 0.
    """

    difference: float
    half_width: float
    detectable: float
    p: float | None
    least_p: float
    test: str
    n: tuple[int, int]
    drift: float = 0.0


@dataclass(frozen=True, slots=True)
class _Run:
    """What a single run tells of its median."""

    median: float
    variance: float
    blocks: Floats
    trend: float
    trend_variance: float
    residual_variance: float

    @property
    def freedom(self) -> int:
        return len(self.blocks) - 1


def of_single_runs(base: Floats, new: Floats, *, alpha: float, run_noise: float) -> Estimate | None:
    """One run per side: the ratio of medians.

    The standard error of each median is that of a circular block bootstrap, with the block length from the measured
    autocorrelation; the quantile is Student's t with as many degrees of freedom as the blocks give, since the plain
    percentile interval is too narrow for few blocks. `run_noise`, the standard deviation between launches that a
    single one cannot show, is added on both sides. Where the runs drift apart, the interval spans the ratio at the
    start and at the end.

    Args:
        base, new: logarithms of steady step times, in order.
        alpha: 1 - confidence.
        run_noise: standard deviation between runs, relative.

    Returns:
        None where the steps of a run are too dependent, or too few.
    """
    one, two = _run(base), _run(new)
    if one is None or two is None:
        return None
    between = 2 * run_noise**2
    variance = one.variance + two.variance + between
    freedom = _satterthwaite(variance, ((one.variance, one.freedom), (two.variance, two.freedom)))
    half = _quantile(1 - alpha / 2, freedom) * math.sqrt(variance)
    apart = 0.0
    trend_freedom = len(one.blocks) + len(two.blocks) - 4
    spread = one.trend_variance + two.trend_variance
    if min(len(one.blocks), len(two.blocks)) > 2 and spread > 0:
        trend = two.trend - one.trend
        if 2 * stats.t.sf(abs(trend) / math.sqrt(spread), trend_freedom) < DRIFT_LEVEL:
            apart = trend
            # The level at either end of a fitted line has twice the standard error of the mean.
            at_end = 2 * math.sqrt(one.residual_variance + two.residual_variance + between)
            half = max(half, abs(trend) / 2 + _quantile(1 - alpha / 2, trend_freedom) * at_end)
    p, least = rank_test(one.blocks, two.blocks)
    return Estimate(
        difference=two.median - one.median,
        half_width=half,
        detectable=half + _quantile(POWER, freedom) * math.sqrt(variance),
        p=p,
        least_p=least,
        test="Mann-Whitney",
        n=(len(one.blocks), len(two.blocks)),
        drift=apart,
    )


def of_runs(base: Floats, new: Floats, *, alpha: float) -> Estimate:
    """Several runs on at least one side: the difference of the means of their log medians, Welch's t interval.

    Where one side is a single run, the spread of the other side stands for it (a prediction interval).
    """
    n, m = len(base), len(new)
    if min(n, m) > 1:
        one, two = float(base.var(ddof=1)) / n, float(new.var(ddof=1)) / m
        variance = one + two
        freedom = _satterthwaite(variance, ((one, n - 1), (two, m - 1)))
    else:
        many = base if n > m else new
        variance = float(many.var(ddof=1)) * (1 / n + 1 / m)
        freedom = len(many) - 1
    p, least = rank_test(base, new)
    return _estimate(float(new.mean() - base.mean()), variance, freedom, alpha, p, least, "Mann-Whitney", (n, m))


def of_pairs(base: Floats, new: Floats, *, alpha: float) -> Estimate:
    """Runs in pairs (ABBA): the mean of the differences, Student's t interval, Wilcoxon's signed ranks."""
    difference = new - base
    count = len(difference)
    moved = np.count_nonzero(difference)
    p = float(stats.wilcoxon(difference).pvalue) if moved else 1.0
    variance = float(difference.var(ddof=1)) / count
    mean, least, n = float(difference.mean()), 2.0 ** (1 - count), (count, count)
    return _estimate(mean, variance, count - 1, alpha, p, least, "Wilcoxon signed-rank", n)


def rank_test(base: Floats, new: Floats) -> tuple[float, float]:
    """Two-sided p of the Mann-Whitney test (exact for small samples without ties), and the least it could be."""
    least = 2 / math.comb(len(base) + len(new), len(base))
    if np.ptp(np.concatenate([base, new])) == 0:
        return 1.0, min(least, 1.0)
    return float(stats.mannwhitneyu(base, new, alternative="two-sided").pvalue), min(least, 1.0)


def _run(values: Floats) -> _Run | None:
    if len(values) < FEWEST_STEPS:
        return None
    length = block_length(_detrended(values))
    medians = blocks(values, length) if len(values) >= length else values[:0]
    count = len(medians)
    if count < FEWEST_BLOCKS:
        return None
    # The bootstrap sees the spread about the sample, which is too small by (k - 1) / k for k independent pieces.
    variance = float(bootstrap_medians(values, length).var()) * count / (count - 1)
    place = np.arange(count) - (count - 1) / 2
    slope = float((place * medians).sum() / (place**2).sum())
    residual = float(((medians - medians.mean() - slope * place) ** 2).sum()) / max(count - 2, 1)
    return _Run(
        median=float(np.median(values)),
        variance=variance,
        blocks=medians,
        trend=slope * count,
        trend_variance=residual / float((place**2).sum()) * count**2,
        residual_variance=residual / count,
    )


def _detrended(values: Floats) -> Floats:
    """Without the fitted line: drift has a test of its own, and would pass for autocorrelation."""
    place = np.arange(len(values)) - (len(values) - 1) / 2
    below = float((place**2).sum())
    rest = values - place * float((place * values).sum()) / below if below else values
    levels = np.unique(values)
    if 1 < len(levels) <= len(values) / 2:
        # Printed with few digits: equal values stay equal, else the fitted line would order them in time.
        grain = max(float(np.diff(levels).min()), 1e-9)
        rest = np.round(rest / grain) * grain
    return rest


def _estimate(
    difference: float,
    variance: float,
    freedom: float,
    alpha: float,
    p: float,
    least: float,
    test: str,
    n: tuple[int, int],
) -> Estimate:
    error = math.sqrt(variance)
    half = _quantile(1 - alpha / 2, freedom) * error
    return Estimate(difference, half, half + _quantile(POWER, freedom) * error, p, least, test, n)


def _satterthwaite(total: float, parts: tuple[tuple[float, int], ...]) -> float:
    """Degrees of freedom of a sum of variances (Welch-Satterthwaite)."""
    below = sum(variance**2 / freedom for variance, freedom in parts if freedom > 0)
    return total**2 / below if below > 0 else math.inf


def _quantile(probability: float, freedom: float) -> float:
    return float(stats.norm.ppf(probability) if math.isinf(freedom) else stats.t.ppf(probability, freedom))
