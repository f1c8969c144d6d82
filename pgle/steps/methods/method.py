"""What a statistical method of a comparison is: which sides it fits, how it sums a side up, what it finds."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

from pgle.steps.methods.distributions import t_quantile
from pgle.steps.side import Side

POWER = 0.8  # probability with which the minimum detectable effect would be found


@dataclass(frozen=True, slots=True)
class LaunchSpread:
    """By how much launches of one program differ."""

    share: float  # standard deviation of step time between launches, relative
    freedom: float  # degrees of freedom of that figure; infinite where the user gave it
    source: str  # where it comes from, in words


@dataclass(frozen=True, slots=True)
class Assumptions:
    """The statistical assumptions, as a value."""

    confidence: float = 0.95  # of the interval, two-sided; 1 - confidence is the level of every test
    margin: float = 0.005  # differences below this share count as equality
    # what launches of one program differ by, used where each side has one run; None: not known
    launch_spread: LaunchSpread | None = None
    paired: bool = False  # run i of BASE belongs to run i of NEW

    @property
    def alpha(self) -> float:
        """The level of every test."""
        return 1 - self.confidence


@dataclass(frozen=True, slots=True)
class Summary:
    """One side in the table: its centre in seconds and half the distance of the quartiles, relative."""

    centre_s: float
    spread: float


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a method found: a difference of logarithms of step times, new - base."""

    difference: float  # the estimate
    # of the two-sided interval at the confidence asked for; infinite where nothing can be said
    half_width: float = math.inf
    detectable: float = math.inf  # smallest true difference found with probability `POWER` at this noise
    p: float | None = None  # of the rank test, two-sided; None where there is none
    least_p: float = 1.0  # the smallest p that this number of units can give; 1 without a test
    n: tuple[int, int] = (1, 1)  # units of base and new
    warnings: tuple[str, ...] = ()  # what the reader should know, one line each


class Method(ABC):
    """A statistical method. `pgle.steps.compare.METHODS` lists them; the first that fits is used."""

    unit: str  # what one observation is
    text: str  # how the interval is made
    test: str = "Mann-Whitney"  # name of the rank test
    more: str = ""  # the units of which more can be recorded to see less, such as ``runs per side``; empty: of no use

    @abstractmethod
    def fits(self, base: Side, new: Side, assumptions: Assumptions) -> bool:
        """Whether the method is made for such sides."""

    def summary(self, side: Side) -> Summary:
        """What the table shows of a side."""
        return Summary(side.median_s, side.spread)

    @abstractmethod
    def compare(self, base: Side, new: Side, assumptions: Assumptions) -> Estimate:
        """The difference of the sides, and what should be known about it."""


def t_estimate(
    difference: float, variance: float, freedom: float, alpha: float, rank: tuple[float, float], n: tuple[int, int]
) -> Estimate:
    """The estimate of a t interval; `rank` is p of the rank test and the least it could be."""
    error = math.sqrt(variance)
    half = t_quantile(1 - alpha / 2, freedom) * error
    return Estimate(difference, half, half + t_quantile(POWER, freedom) * error, *rank, n)


def satterthwaite(*parts: tuple[float, float]) -> float:
    """Degrees of freedom of a sum of variances (variance, degrees of freedom), after Welch and Satterthwaite."""
    below = sum(variance**2 / freedom for variance, freedom in parts if freedom > 0)
    return sum(variance for variance, _ in parts) ** 2 / below if below > 0 else math.inf


def rank_warning(estimate: Estimate, alpha: float, needed: str) -> tuple[str, ...]:
    """That there are too few units for the rank test, where so; `needed` says how many it needs."""
    if estimate.least_p <= alpha:
        return ()
    return (
        f"too few runs for the rank test ({estimate.n[0]} and {estimate.n[1]}; it needs {needed}): the verdict "
        "rests on the t interval, which takes run medians to be normally distributed",
    )
