"""One run per side: the unit is a block of steps, as long as their autocorrelation asks."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pgle.steps.methods.distributions import mann_whitney, normal_scores, t_quantile, t_tail
from pgle.steps.methods.method import POWER, Assumptions, Estimate, LaunchSpread, Method, satterthwaite
from pgle.steps.series import Floats
from pgle.steps.side import FEWEST_STEPS, Side
from pgle.trace.column import distinct

Ints = npt.NDArray[np.int64]

UNKNOWN_LAUNCHES = LaunchSpread(0.0015, 1, "control runs of another job, a 64-GPU one (marin-community/marin#7012)")
"""Taken where nothing is known of this program's launches: those control runs differed by 0.03 points of 22.2 % model
FLOPs utilisation. It is another job's figure, so it is trusted no more than one pair of launches would be: with one
degree of freedom."""
FEWEST_BLOCKS = 2  # blocks below which the steps of a run are too dependent to say anything
FEW_STEPS = 10  # steady steps of a run below which a comparison asks for more
DRIFT_LEVEL = 0.2
"""Significance at which the two runs are taken to drift apart. Missing a drift costs more than a wider interval."""
WINDOW = 5.0
"""Autocorrelations are summed up to this many times the time found so far (Sokal, "Monte Carlo methods in statistical
mechanics", 1996, section 3)."""
BLOCK = 5.0
"""Length of a block in autocorrelation times: blocks are then nearly independent (benchmarks/compare_power.py)."""
MOST_BLOCKS = 10
"""A block is at least the steps divided by this. More blocks would narrow the interval by 7 % at most (t quantile 2.10
against 1.96), but see less of slow noise (Ibragimov and Müller, "t-statistic based correlation and heterogeneity robust
inference", Journal of Business & Economic Statistics 28, 2010)."""
RESAMPLES = 500
SEED = 20240306


@dataclass(frozen=True, slots=True)
class _Run:
    """The median of a single run, its standard error, and its trend."""

    median: float
    variance: float
    draws: Floats
    blocks: Floats
    trend: float
    trend_variance: float
    residual_variance: float

    @property
    def freedom(self) -> int:
        return len(self.blocks) - 1


class Blocks(Method):
    """The ratio of medians of two runs.

    The standard error of each median is that of a circular block bootstrap, with the block length from the measured
    autocorrelation; the quantile is Student's t with as many degrees of freedom as the blocks give, since the plain
    percentile interval is too narrow for few blocks; the wider of the two is taken. What
    launches differ by is in no step of a single one: it is assumed, and its half-width is added in quadrature (wider
    than Cochran and Cox's weighted quantile). Where the runs drift apart, the interval spans the ratio at the start and
    at the end.
    """

    unit = "one run per side, blocks of steps"
    text = "ratio of medians; Student t with the standard error of a circular block bootstrap"

    def fits(self, base: Side, new: Side, assumptions: Assumptions) -> bool:
        """One run on each side."""
        return len(base.runs) == len(new.runs) == 1

    def compare(self, base: Side, new: Side, assumptions: Assumptions) -> Estimate:
        """The ratio of medians; without an interval where the steps are too dependent, or too few."""
        times = [np.log(side.runs[0].step_time_s) for side in (base, new)]
        found = [_run(values) for values in times]
        if found[0] is None or found[1] is None:
            return Estimate(float(np.median(times[1]) - np.median(times[0])), warnings=_too_dependent(times))
        known, simulated = assumptions.launch_spread, base.simulated or new.simulated
        spread = known or (LaunchSpread(0.0, math.inf, "") if simulated else UNKNOWN_LAUNCHES)
        return _estimate(found[0], found[1], assumptions.alpha, spread)


def _estimate(one: _Run, two: _Run, alpha: float, spread: LaunchSpread) -> Estimate:
    variance = one.variance + two.variance
    freedom = satterthwaite((one.variance, one.freedom), (two.variance, two.freedom))
    launches = math.sqrt(2) * spread.share
    beside = t_quantile(1 - alpha / 2, spread.freedom) * launches
    # The medians of steps that come in two kinds jump: no t interval, but the percentiles of the bootstrap see that.
    # Draws of one number are resampled alike, so they are not paired.
    apart = np.quantile(np.roll(two.draws, 1) - one.draws, [alpha / 2, 1 - alpha / 2]) - (two.median - one.median)
    steps = max(t_quantile(1 - alpha / 2, freedom) * math.sqrt(variance), float(np.abs(apart).max()))
    half = math.hypot(steps, beside)
    warnings = []
    trend, trend_freedom = two.trend - one.trend, len(one.blocks) + len(two.blocks) - 4
    trend_error = math.sqrt(one.trend_variance + two.trend_variance)
    enough = min(len(one.blocks), len(two.blocks)) > 2 and trend_error > 0
    if enough and 2 * t_tail(abs(trend) / trend_error, trend_freedom) < DRIFT_LEVEL:
        # The level at either end of a fitted line has twice the standard error of the mean.
        at_end = 2 * math.sqrt(one.residual_variance + two.residual_variance)
        half = max(half, abs(trend) / 2 + math.hypot(t_quantile(1 - alpha / 2, trend_freedom) * at_end, beside))
        warnings.append(
            f"the runs drift apart by {abs(math.expm1(trend)):.1%} over their length: the interval spans the ratio "
            "at the start and at the end"
        )
    p, least = mann_whitney(one.blocks, two.blocks)
    difference = two.median - one.median
    by_noise = math.hypot(t_quantile(POWER, freedom) * math.sqrt(variance), t_quantile(POWER, math.inf) * launches)
    return Estimate(
        difference,
        half,
        half + by_noise,
        p,
        least,
        (len(one.blocks), len(two.blocks)),
        (*_about_launches(spread, p <= alpha and abs(difference) <= half), *warnings),
    )


def _about_launches(spread: LaunchSpread, steps_differ: bool) -> list[str]:
    """That the verdict rests on one launch of each side, and on which spread."""
    measure = "several runs per side (--abba), --history FILE or --launch-spread tell more"
    if spread is UNKNOWN_LAUNCHES:
        first = (
            f"one launch of each side, and how launches differ is not known: {spread.share:.2%} with one degree of "
            f"freedom is assumed, from {spread.source}; {measure}"
        )
    elif spread.share:
        first = f"one launch of each side; launches are taken to differ by {spread.share:.2%} ({spread.source})"
    else:
        first = "one launch of each side: differences between launches (placement, clocks) are not in the interval"
    differ = "the steps do differ, but by no more than two launches of one program may; repeat the runs"
    return [first, differ] if steps_differ and spread.share else [first]


def _too_dependent(times: list[Floats]) -> tuple[str, ...]:
    if min(map(len, times)) < FEW_STEPS:
        return ()  # said of each short run
    return (
        "the steps of a run follow each other so closely (autocorrelation) that too few independent blocks remain; "
        "record more steps, or several runs per side",
    )


def _run(values: Floats) -> _Run | None:
    if len(values) < FEWEST_STEPS:
        return None
    length = block_length(_detrended(values))
    medians = blocks(values, length) if len(values) >= length else values[:0]
    count = len(medians)
    if count < FEWEST_BLOCKS:
        return None
    # The bootstrap sees the spread about the sample, which is too small by (k - 1) / k for k independent pieces.
    draws = bootstrap_medians(values, length)
    variance = float(draws.var()) * count / (count - 1)
    place = np.arange(count) - (count - 1) / 2
    slope = float((place * medians).sum() / (place**2).sum())
    residual = float(((medians - medians.mean() - slope * place) ** 2).sum()) / max(count - 2, 1)
    return _Run(
        median=float(np.median(values)),
        variance=variance,
        draws=draws,
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
    levels = distinct(values)
    if 1 < len(levels) <= len(values) / 2:
        # Printed with few digits: equal values stay equal, else the fitted line would order them in time.
        grain = max(float(np.diff(levels).min()), 1e-9)
        rest = np.round(rest / grain) * grain
    return rest


def autocorrelation_time(values: Floats) -> float:
    """Integrated autocorrelation time in steps, at least 1: n steps tell as much as n / time independent ones.

    Taken on normal scores of the ranks, so that spikes do not hide the rest. The larger of the windowed sum and of
    what the lag-1 autocorrelation means for a first-order process, corrected for its bias in short series (Kendall,
    "Note on bias in the estimation of autocorrelation", Biometrika 41, 1954).
    """
    count = len(values)
    if count < 4 or np.ptp(values) == 0:
        return 1.0
    scores = normal_scores(values)
    scores -= scores.mean()
    power = np.abs(np.fft.rfft(scores, 2 * count)) ** 2
    correlation = np.fft.irfft(power)[:count]
    correlation /= correlation[0]
    sums = 1 + 2 * np.cumsum(correlation[1:])
    enough = np.flatnonzero(np.arange(1, count) >= WINDOW * sums)
    windowed = float(sums[enough[0]]) if len(enough) else float(count)
    lag1 = min(float(correlation[1]) + (1 + 3 * float(correlation[1])) / count, 0.98)
    return max(1.0, windowed, (1 + lag1) / (1 - lag1))


def block_length(values: Floats) -> int:
    """Steps per block: `BLOCK` autocorrelation times beyond the first, at least n / `MOST_BLOCKS`, and 1."""
    needed = math.ceil(BLOCK * (autocorrelation_time(values) - 1)) + 1
    return max(needed, len(values) // MOST_BLOCKS, 1)


def blocks(values: Floats, length: int) -> Floats:
    """Medians of consecutive blocks of `length`; the incomplete block is left out at the start."""
    count = len(values) // length
    return np.median(values[len(values) - count * length :].reshape(count, length), axis=1)


def bootstrap_medians(values: Floats, block: int, *, seed: int = SEED) -> Floats:
    """float64[RESAMPLES], medians of series resampled in blocks of `block` steps.

    Circular block bootstrap: Politis and Romano, "A circular block-resampling procedure for stationary data", in
    Exploring the Limits of Bootstrap, 1992.
    """
    count = len(values)
    per_series = -(-count // block)
    begin = np.random.default_rng(seed).integers(0, count, (RESAMPLES, per_series))
    lengths = np.append(np.full(per_series - 1, block), count - (per_series - 1) * block)
    order = np.argsort(values)
    ranks = np.empty(count, np.int64)
    ranks[order] = np.arange(count)
    circle = np.tile(ranks, 2)  # blocks go on at the start
    middle = (_select(circle, begin, begin + lengths, place) for place in ((count - 1) // 2, count // 2))
    lower, upper = (values[order[rank]] for rank in middle)
    return (lower + upper) / 2


def _select(ranks: Ints, begin: Ints, end: Ints, place: int) -> Ints:
    """int64[r], the rank at `place` (from 0) in the order of those that each row of ranges [begin, end) holds.

    By a wavelet matrix (Claude, Navarro and Ordóñez, "The wavelet matrix: an efficient wavelet tree for large
    alphabets", Information Systems 47, 2015): a few steps for each range, however long it is.
    """
    found = np.zeros(len(begin), np.int64)
    left = np.full(len(begin), place)
    for bit in reversed(range(int(ranks.max()).bit_length())):
        is_one = ranks >> bit & 1
        ones = np.append(0, np.cumsum(is_one))
        ones_begin, ones_end = ones[begin], ones[end]
        zeros = (end - begin - ones_end + ones_begin).sum(axis=1)
        up = left >= zeros
        found += up << bit
        left -= np.where(up, zeros, 0)
        first_one = len(ranks) - ones[-1]
        begin = np.where(up[:, None], first_one + ones_begin, begin - ones_begin)
        end = np.where(up[:, None], first_one + ones_end, end - ones_end)
        ranks = ranks[np.argsort(is_one, kind="stable")]
    return found
