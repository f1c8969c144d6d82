"""How much the steps of a run depend on each other, and blocks of steps that are nearly
independent.
"""

from __future__ import annotations

import math

import numpy as np

from pgle.trace.columns import Floats

WINDOW = 5.0
"""The sum of autocorrelations ends at this multiple of the time found so far (Sokal, "Monte Carlo
methods in statistical mechanics", 1996, section 3).
"""
BLOCK = 5.0
"""Length of a block in autocorrelation times. Blocks of this length are nearly independent
(benchmarks/compare_power.py).
"""
MOST_BLOCKS = 10
"""A run has at most so many blocks. More would narrow the interval by at most 7 % (t quantile 2.10
against 1.96), but contain less of slow noise (Ibragimov and Müller, "t-statistic based correlation
and heterogeneity robust inference", Journal of Business & Economic Statistics 28, 2010).
"""


def autocorrelation_time(values: Floats) -> float:
    """Integrated autocorrelation time in steps, at least 1.

    With a time of t, n steps tell as much as n / t independent steps. The time is computed from
    normal scores of the ranks, so that spikes do not hide the rest. It is the larger of two
    estimates: the windowed sum, and the time of a first-order process with the measured lag-1
    autocorrelation. The latter is corrected for its bias in short series (Kendall, "Note on bias in
    the estimation of autocorrelation", Biometrika 41, 1954).

    Args:
        values: float64[n], step times or their logarithms, in order.
    """
    from scipy.special import ndtri

    count = len(values)
    if count < 4 or np.ptp(values) == 0:
        return 1.0
    scores = ndtri(mean_ranks(values) / count)
    scores -= scores.mean()
    power = np.abs(np.fft.rfft(scores, 2 * count)) ** 2
    correlation = np.fft.irfft(power)[:count]
    correlation /= correlation[0]
    sums = 1 + 2 * np.cumsum(correlation[1:])
    enough = np.flatnonzero(np.arange(1, count) >= WINDOW * sums)
    windowed = float(sums[enough[0]]) if len(enough) else float(count)
    measured = float(correlation[1])
    bias = -(1 + 3 * measured) / count
    lag1 = min(measured - bias, 0.98)
    return max(1.0, windowed, (1 + lag1) / (1 - lag1))


def mean_ranks(values: Floats) -> Floats:
    """float64[n], the rank of each value, from 0.5. Equal values have their mean rank."""
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    ranks: Floats = np.cumsum(counts) - counts / 2
    return ranks[place]


def independent_length(values: Floats) -> int:
    """Steps of a block that hardly depends on its neighbours: 1 + `BLOCK` × (autocorrelation time
    − 1).
    """
    return math.ceil(BLOCK * (autocorrelation_time(values) - 1)) + 1


def block_length(values: Floats) -> int:
    """Steps per block: `independent_length`, and at least n / `MOST_BLOCKS`."""
    needed = independent_length(values)
    return max(needed, len(values) // MOST_BLOCKS, 1)


def blocks(values: Floats, length: int) -> Floats:
    """Medians of consecutive blocks of `length` values. Left-over values at the start are skipped.

    Returns:
        float64[n // length].
    """
    count = len(values) // length
    return np.median(
        values[len(values) - count * length :].reshape(count, length), axis=1
    )
