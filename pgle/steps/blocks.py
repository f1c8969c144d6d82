"""The median of a single run and how sure it is: blocks of steps as long as their autocorrelation asks."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from pgle.steps.series import Floats
from pgle.steps.side import FEWEST_STEPS
from pgle.trace.column import distinct

FEWEST_BLOCKS = 2  # blocks below which the steps of a run are too dependent to say anything
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
MOST_RESAMPLED = 4000  # longer runs are thinned to medians of so many groups of steps, which makes the error too large
SEED = 20240306


@dataclass(frozen=True, slots=True)
class RunMedian:
    """The median of a single run, its standard error, and its trend; all in logarithms of seconds."""

    median: float
    variance: float
    draws: Floats  # float64[RESAMPLES], medians of the bootstrap
    blocks: int  # how many
    trend: float  # change over the length of the run, of the fitted line
    trend_variance: float
    residual_variance: float  # of the mean, about the fitted line

    @property
    def freedom(self) -> int:
        """Degrees of freedom."""
        return self.blocks - 1


def run_median(values: Floats) -> RunMedian | None:
    """Of the logarithms of the step times of a run; None where they are too few, or too dependent."""
    if len(values) < FEWEST_STEPS:
        return None
    length = block_length(_detrended(values))
    medians = blocks(values, length) if len(values) >= length else values[:0]
    count = len(medians)
    if count < FEWEST_BLOCKS:
        return None
    draws = bootstrap_medians(values, length)
    place = np.arange(count) - (count - 1) / 2
    slope = float((place * medians).sum() / (place**2).sum())
    residual = float(((medians - medians.mean() - slope * place) ** 2).sum()) / max(count - 2, 1)
    return RunMedian(
        median=float(np.median(values)),
        # The bootstrap sees the spread about the sample, which is too small by (k - 1) / k for k independent pieces.
        variance=float(draws.var()) * count / (count - 1),
        draws=draws,
        blocks=count,
        trend=slope * count,
        trend_variance=residual / float((place**2).sum()) * count**2,
        residual_variance=residual / count,
    )


def _detrended(values: Floats) -> Floats:
    """Without the fitted line: drift has a test of its own, and would pass for autocorrelation."""
    place = np.arange(len(values)) - (len(values) - 1) / 2
    rest = values - place * float((place * values).sum()) / float((place**2).sum())
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
    from scipy.special import ndtri

    count = len(values)
    if count < 4 or np.ptp(values) == 0:
        return 1.0
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    scores = ndtri((np.cumsum(counts) - counts / 2) / count)[place]
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
    group = -(-len(values) // MOST_RESAMPLED)
    if group > 1:
        values, block = blocks(values, group), max(block // group, 1)
    count = len(values)
    begin = np.random.default_rng(seed).integers(0, count, (RESAMPLES, -(-count // block), 1))
    chosen = (begin + np.arange(block)).reshape(RESAMPLES, -1)[:, :count] % count
    draws: Floats = np.median(values[chosen], axis=1)
    return draws
