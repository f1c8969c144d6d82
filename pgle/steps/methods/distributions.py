"""Student's t, Mann-Whitney and Wilcoxon without `scipy.stats`, which takes longer to import than all else."""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np

from pgle.steps.series import Floats

EXACT_UP_TO = 8  # units of the smaller side up to which Mann-Whitney is counted out, as scipy does
_NORMAL = NormalDist()
_TINY = 1e-300


def normal_scores(values: Floats) -> Floats:
    """float64[n], normal quantiles of the ranks; equal values share their mean rank."""
    levels, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    middle = np.cumsum(counts) - counts / 2
    return np.array([_NORMAL.inv_cdf(rank / len(values)) for rank in middle.tolist()])[place] if len(levels) else values


def t_tail(t: float, freedom: float) -> float:
    """Probability that Student's t with `freedom` (any positive number, or infinite) exceeds `t` (0 or more).

    The regularised incomplete beta function by its continued fraction (Abramowitz and Stegun 26.5.8, 26.7.1).
    """
    if math.isinf(freedom):
        return math.erfc(t / math.sqrt(2)) / 2
    a, log_x = freedom / 2, -math.log1p(t * t / freedom)
    x, rest = math.exp(log_x), -math.expm1(log_x)
    front = math.exp(a * log_x) * math.sqrt(rest / math.pi) * _gamma_ratio(a)
    if x < (a + 1) / (a + 2.5):
        return front * _beta_fraction(x, a, 0.5) / a / 2
    return 0.5 - front * _beta_fraction(rest, 0.5, a)


def t_quantile(probability: float, freedom: float) -> float:
    """The quantile of Student's t for a probability from 0.5 to 1: Newton's method on the logarithm of the tail."""
    start = _NORMAL.inv_cdf(probability)
    if math.isinf(freedom) or start <= 0:
        return start
    wanted, t = 1 - probability, start
    constant = _gamma_ratio(freedom / 2) / math.sqrt(freedom * math.pi)
    for _ in range(100):
        tail = t_tail(t, freedom)
        density = constant * math.exp(-(freedom + 1) / 2 * math.log1p(t * t / freedom))
        step = tail * math.log(tail / wanted) / (density * t)
        t *= math.exp(step)
        if abs(step) < 1e-15:
            break
    return t


def mann_whitney(base: Floats, new: Floats) -> tuple[float, float]:
    """Two-sided p of the Mann-Whitney test, and the least that so many values can give.

    Exact where a side has at most `EXACT_UP_TO` values and none are equal; else normal, with corrections for
    continuity and ties (Hollander and Wolfe, "Nonparametric statistical methods", section 4.1).
    """
    n, m = len(base), len(new)
    least = min(1.0, 2 / math.comb(n + m, n))
    _, place, counts = np.unique(np.concatenate([base, new]), return_inverse=True, return_counts=True)
    if len(counts) == 1:
        return 1.0, least
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[place]
    u = float(ranks[:n].sum()) - n * (n + 1) / 2
    u = max(u, n * m - u)
    if min(n, m) <= EXACT_UP_TO and len(counts) == n + m:
        ways = _orderings(n, m)
        return min(1.0, 2 * sum(ways[int(u) :]) / math.comb(n + m, n)), least
    ties = float((counts.astype(float) ** 3 - counts).sum())
    deviation = math.sqrt(n * m / 12 * (n + m + 1 - ties / ((n + m) * (n + m - 1))))
    return min(1.0, 2 * t_tail(max(0.0, u - n * m / 2 - 0.5) / deviation, math.inf)), least


def signed_rank(differences: Floats) -> tuple[float, float]:
    """Two-sided p of Wilcoxon's signed-rank test, counted out, ties too; zeros are left out. And the least possible."""
    least = min(1.0, 2.0 ** (1 - len(differences)))
    moved = differences[differences != 0]
    if len(moved) == 0:
        return 1.0, least
    _, place, counts = np.unique(np.abs(moved), return_inverse=True, return_counts=True)
    doubled = (2 * np.cumsum(counts) - counts + 1)[place]  # twice the mean rank
    chance = np.zeros(int(doubled.sum()) + 1)
    chance[0] = 1.0
    for rank in doubled.tolist():
        chance[rank:] = (chance[rank:] + chance[:-rank]) / 2
        chance[:rank] /= 2
    positive = int(doubled[moved > 0].sum())
    return min(1.0, 2 * float(chance[max(positive, len(chance) - 1 - positive) :].sum())), least


def _orderings(n: int, m: int) -> list[int]:
    """In how many orders of n and m values the statistic U is 0, 1 … n·m: the coefficients of a Gaussian binomial."""
    ways = [1] + [0] * (n * m)
    for i in range(1, n + 1):
        for u in range(n * m, m + i - 1, -1):
            ways[u] -= ways[u - m - i]
        for u in range(i, n * m + 1):
            ways[u] += ways[u - i]
    return ways


def _gamma_ratio(a: float) -> float:
    """Γ(a + 1/2) / Γ(a)."""
    if a < 150:
        return math.gamma(a + 0.5) / math.gamma(a)
    return math.sqrt(a) * math.exp(-1 / (8 * a) + 1 / (192 * a**3) - 1 / (640 * a**5))  # Stirling's series


def _beta_fraction(x: float, a: float, b: float) -> float:
    """The continued fraction of the incomplete beta function, by Lentz's method."""
    c, d = 1.0, 1 / _off_zero(1 - (a + b) * x / (a + 1))
    value = d
    for k in range(1, 10_000):
        even = k * (b - k) * x / ((a + 2 * k - 1) * (a + 2 * k))
        odd = -(a + k) * (a + b + k) * x / ((a + 2 * k) * (a + 2 * k + 1))
        for part in (even, odd):
            d, c = 1 / _off_zero(1 + part * d), _off_zero(1 + part / c)
            value *= d * c
        if abs(d * c - 1) < 1e-16:
            break
    return value


def _off_zero(value: float) -> float:
    return value if abs(value) > _TINY else _TINY
