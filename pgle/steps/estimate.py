"""Estimate the difference of two sides with its interval: one function for each design of the
experiment.

The unit is a run if a side has several runs, else a block of steps. All differences are of
logarithms of step times.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import groupby
from typing import Annotated

import numpy as np
from msgspec import Meta

from pgle.errors import UserError, in_percent
from pgle.next import HISTORY_ADD
from pgle.steps.dependence import block_length, blocks
from pgle.steps.series import (
    FEWEST_STEPS,
    LONGEST_S,
    SHORTEST_S,
    Floats,
    Series,
    Side,
    level_shift,
)
from pgle.trace.columns import distinct
from pgle.worth import LEAST_GAIN

FEWEST_BLOCKS = 2  # with fewer blocks, the steps of a run depend on each other too much
RESAMPLES = 500
# longer runs are reduced to at most so many medians of groups, so that the error is rather too
# large
MOST_RESAMPLED = 4000
SEED = 20240306


@dataclass(frozen=True, slots=True)
class RunMedian:
    """The median of a single run, its variance, and its trend, in logarithms of seconds."""

    median: float
    variance: float  # squared standard error of the median
    draws: Floats  # float64[RESAMPLES], medians of the bootstrap
    blocks: int  # number of blocks
    trend: float  # change of the fitted line over the length of the run
    trend_variance: float
    residual_variance: float  # variance of the mean about the fitted line


def run_median(values: Floats) -> RunMedian | None:
    """The median of a run from logarithms of its step times; None if they are too few or too
    dependent.
    """
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
    off_line = medians - medians.mean() - slope * place
    residual = float((off_line**2).sum()) / max(count - 2, 1)
    # The bootstrap sees the spread about the sample's own mean. For k independent blocks, that is
    # too small by (k - 1) / k.
    variance = float(draws.var()) * count / (count - 1)
    trend_variance = residual / float((place**2).sum()) * count**2
    return RunMedian(
        median=float(np.median(values)),
        variance=variance,
        draws=draws,
        blocks=count,
        trend=slope * count,
        trend_variance=trend_variance,
        residual_variance=residual / count,
    )


def _detrended(values: Floats) -> Floats:
    """Remove the fitted line. Drift has a test of its own, and would look like autocorrelation."""
    place = np.arange(len(values)) - (len(values) - 1) / 2
    rest = values - place * float((place * values).sum()) / float((place**2).sum())
    levels = distinct(values)
    if 1 < len(levels) <= len(values) / 2:
        # Values with few digits repeat. Round them, so that equal values stay equal and the fitted
        # line does not order them in time.
        grain = max(float(np.diff(levels).min()), 1e-9)
        rest = np.round(rest / grain) * grain
    return rest


def bootstrap_medians(values: Floats, block: int, *, seed: int = SEED) -> Floats:
    """float64[RESAMPLES], medians of series resampled in blocks of `block` steps.

    Circular block bootstrap: Politis and Romano, "A circular block-resampling procedure for
    stationary data", in Exploring the Limits of Bootstrap, 1992.
    """
    group = -(-len(values) // MOST_RESAMPLED)
    if group > 1:
        values = blocks(values, group)
        block = max(block // group, 1)
    count = len(values)
    begin = np.random.default_rng(seed).integers(
        0, count, (RESAMPLES, -(-count // block), 1)
    )
    chosen = (begin + np.arange(block)).reshape(RESAMPLES, -1)[:, :count] % count
    draws: Floats = np.median(values[chosen], axis=1)
    return draws


@dataclass(frozen=True, slots=True)
class LaunchSpread:
    """How much launches of one program differ."""

    share: float  # standard deviation of step time between launches, relative
    freedom: float  # degrees of freedom of `share`; infinite if the user gave it
    source: str  # where it comes from, in words

    def half_width(self, confidence: float) -> float:
        """Half-width of the interval for the difference of two launches, relative.

        Args:
            confidence: of the two-sided interval, such as 0.95.
        """
        return (
            t_quantile((1 + confidence) / 2, self.freedom) * math.sqrt(2) * self.share
        )


NO_SPREAD = LaunchSpread(0.0, math.inf, "")
"""For simulated runs, whose launches do not differ."""
SAME_PLACE = LaunchSpread(
    0.0021,
    5,
    "five public pairs of control runs, marin-community/marin#7012, #7912, #8277 and #8822",
)
"""For launches on the same hosts within hours: the pooled differences of those pairs."""
UNKNOWN_PLACE = LaunchSpread(
    0.0015, 1, "control runs of a 64-GPU job, marin-community/marin#7012"
)
"""For launches on unknown hosts. Those control runs differed by 0.03 points of 22.2 % model FLOPs
utilisation. It is the figure of one pair of another job, so it has one degree of freedom.
"""
ELSEWHERE = (
    "launches on other nodes or days differ by 1.6 to 3% in public "
    "(reframe-hpc/reframe#1345, iree-org/iree#24257)"
)
WITHIN_HOURS = 6.0
"""Two runs are "within hours" if their starts are at most so many hours apart. The sources give no
exact time, so pgle chose this bound.
"""
PLACE = {"hosts": "hosts", "gpus": "GPUs", "driver": "driver"}
"""Facts that identify the place of a run, by name in `Series.about`, and their words."""


def given_spread(share: float | None) -> LaunchSpread | None:
    """The spread that the user gives as a standard deviation between launches; None if not given.

    Args:
        share: relative, from 0 to below 1.

    Raises:
        UserError: `share` is outside this range.
    """
    if share is None:
        return None
    if not 0 <= share < 1:
        raise UserError(
            f"{share:g} is not a share",
            where="launch_spread",
            remedy="write 0.3 % as 0.003",
        )
    return LaunchSpread(share, math.inf, "as given")


def _doubts(base: Series, new: Series) -> Iterator[str]:
    """Reasons why two runs may differ in hosts, GPUs or versions, or are hours apart. Empty if the
    records prove that they do not.
    """
    versions = {
        name: name for name in (*base.about, *new.about) if name.startswith("jax")
    } or {"jax": "jax version"}
    for name, what in {**PLACE, **versions}.items():
        one = base.about.get(name)
        two = new.about.get(name)
        if one is None or two is None:
            silent = base if one is None else new
            yield f"{silent.source} records no {what}"
        elif one != two:
            yield f"the two runs had different {what}, and {ELSEWHERE}"
    started = [series.about.get("started", "") for series in (base, new)]
    try:
        hours = (
            abs(
                (
                    datetime.fromisoformat(started[1])
                    - datetime.fromisoformat(started[0])
                ).total_seconds()
            )
            / 3600
        )
    except (ValueError, TypeError):
        yield "the records hold no start time"
        return
    if hours > WITHIN_HOURS:
        yield f"the two runs started {hours:.0f} hours apart, and {ELSEWHERE}"


MOST = 10**12  # most runs or steps of an entry
NEAR = 0.2  # a trend may be of the same program if its step times differ by at most this share


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One run in a history, or several runs of one state of the program."""

    time: str  # ISO 8601
    name: str  # of the workload
    hardware: str  # of the run; entries of different hardware are never joined
    commit: str = ""  # of the program; empty if unknown
    median_s: Annotated[float, Meta(ge=SHORTEST_S, le=LONGEST_S)]  # median step time
    # half the distance of the quartiles, relative to the median
    spread: Annotated[float, Meta(ge=0, le=1e9)] = 0.0
    runs: Annotated[int, Meta(ge=1, le=MOST)] = 1  # number of runs
    steps: Annotated[int, Meta(ge=0, le=MOST)] = 0  # steady steps in all
    simulated: bool = False  # on the simulated GPU
    note: str = ""  # free text


@dataclass(frozen=True)
class Trend:
    """The entries of one name and hardware, in order of time."""

    name: str
    hardware: str
    entries: tuple[Entry, ...]

    @property
    def present(self) -> tuple[Entry, ...]:
        """The entries since the last clear change of level."""
        entries = self.entries
        while (
            shift := level_shift(np.log([entry.median_s for entry in entries]))
        ) is not None:
            entries = entries[shift[0] :]
        return entries

    @property
    def level_s(self) -> float:
        """The present level: the median of its step times."""
        return float(np.median([entry.median_s for entry in self.present]))

    @property
    def noise(self) -> float | None:
        """Standard deviation between launches at the present level, relative; None for a single
        entry.

        An entry of several runs has that weight. The figure may be too large: it includes changes
        by commits that are too small to be a change of level.
        """
        if len(self.present) < 2:
            return None
        logs = np.log([entry.median_s for entry in self.present])
        runs = np.array([entry.runs for entry in self.present], float)
        return math.sqrt(
            float((runs * (logs - np.average(logs, weights=runs)) ** 2).sum())
            / (len(logs) - 1)
        )


def make_trends(
    entries: Iterable[Entry],
) -> tuple[Trend, ...]:
    """Return a trend for each name and hardware, its entries in order of time.

    Entries of one time keep their order.
    """
    in_order = sorted(
        entries, key=lambda entry: (entry.name, entry.hardware, entry.time)
    )
    groups = groupby(in_order, key=lambda entry: (entry.name, entry.hardware))
    return tuple(Trend(*key, tuple(group)) for key, group in groups)


def measured_spread(
    trends: Iterable[Trend], median_s: float, *, simulated: bool, source: str
) -> LaunchSpread:
    """The spread of launches in the trend whose present level is nearest to `median_s` (seconds).

    Args:
        simulated: whether to look at simulated trends or at measured ones.
        source: the history's file, for words and errors.

    Raises:
        UserError: no trend is near enough, or the nearest one has too few entries.
    """
    known = [trend for trend in trends if trend.entries[-1].simulated == simulated]
    nearest = min(
        known, key=lambda trend: abs(math.log(median_s / trend.level_s)), default=None
    )
    if nearest is None or abs(math.log(median_s / nearest.level_s)) > math.log1p(NEAR):
        listed = (
            ", ".join(
                f"{trend.name} on {trend.hardware} ({trend.level_s:.4g} s)"
                for trend in known
            )
            or "none"
        )
        what = f"no trend has step times near {median_s:.4g} s (it has: {listed})"
        raise UserError(
            what, where=source, remedy=f"add runs of this program with {HISTORY_ADD}"
        )
    if nearest.noise is None:
        what = f"{nearest.name} has too few entries at one level to show how launches differ"
        raise UserError(what, where=source, remedy=f"add more runs with {HISTORY_ADD}")
    what = f"{len(nearest.present)} entries of {nearest.name} on {nearest.hardware} in {source}"
    return LaunchSpread(nearest.noise, len(nearest.present) - 1, what)


POWER = 0.8  # probability of finding the minimum detectable effect
FEW_STEPS = 10  # a comparison asks for more if a run has fewer steady steps
DRIFT_LEVEL = 0.2
"""Two runs drift apart if the test of their trends is significant at this level. It is high, since
a missed drift costs more than a wider interval.
"""
MOST_ROUNDS = 12  # most rounds of `--abba` that pgle proposes: 48 runs


@dataclass(frozen=True, slots=True)
class Assumptions:
    """The statistical assumptions of a comparison."""

    # of the two-sided interval; 1 - confidence is the level of every test
    confidence: float = 0.95
    margin: float = LEAST_GAIN  # smaller differences, as a share, count as equality
    # how much launches of one program differ, if each side has one run; None to find it from the
    # records
    launch_spread: LaunchSpread | None = None
    paired: bool = False  # whether run i of BASE belongs to run i of NEW

    @property
    def alpha(self) -> float:
        """The level of every test."""
        return 1 - self.confidence


@dataclass(frozen=True, slots=True)
class Design:
    """The design of an experiment, in words."""

    unit: str  # one observation
    text: str  # how the interval is computed
    test: str = ""  # name of the rank test on the units; empty if there is none


BLOCKS = Design(
    "one run per side, blocks of steps",
    "ratio of medians; Student t with the standard error of a block bootstrap",
)
RUNS = Design(
    "runs", "ratio of geometric means of run medians; Welch t", "Mann-Whitney"
)
ONE_AGAINST_RUNS = Design(
    "one run against several",
    "ratio to the geometric mean of run medians; prediction interval, Student t",
    "Mann-Whitney",
)
PAIRS = Design(
    "pairs of runs",
    "geometric mean of the ratios of paired run medians; Student t",
    "Wilcoxon signed-rank",
)


@dataclass(frozen=True, slots=True)
class Estimate:
    """The estimated difference of logarithms of step times, new − base."""

    design: Design
    difference: float  # the estimate
    # of the two-sided interval at the given confidence; infinite if nothing is known
    half_width: float = math.inf
    # smallest true difference that is found with probability `POWER` at this noise
    detectable: float = math.inf
    # of the two-sided rank test; None if the interval alone decides
    p: float | None = None
    # the smallest p that this number of units can give; 1 without a test
    least_p: float = 1.0
    n: tuple[int, int] = (1, 1)  # units of base and new
    # estimated variance of the difference of one run of each side
    pair_variance: float = math.inf
    # assumed spread of launches, if each side has one run
    spread: LaunchSpread | None = None
    # how much lower and higher the difference may be by the model of simulated runs; 0 if measured
    model: tuple[float, float] = (0.0, 0.0)
    warnings: tuple[str, ...] = ()  # one line each

    @property
    def ends(self) -> tuple[float, float]:
        """Lower and upper end of the interval of `difference`, in logarithms.

        Noise and the model's error are independent, so they add in quadrature.
        """
        below, above = self.model
        return (
            self.difference - math.hypot(self.half_width, below),
            self.difference + math.hypot(self.half_width, above),
        )

    def modelled(self, below: float, above: float, note: str) -> Estimate:
        """The estimate with the range of the simulating model in its interval.

        Args:
            below: how much lower the difference may be, a logarithm of 0 or more.
            above: how much higher.
            note: a warning that says so.
        """
        return replace(
            self,
            model=(below, above),
            detectable=self.detectable + max(below, above),
            warnings=(*self.warnings, note),
        )

    def widened(self, half: float, *notes: str) -> Estimate:
        """The estimate with an interval that is wider by `half` on each side (a logarithm)."""
        return replace(
            self,
            half_width=self.half_width + half,
            detectable=self.detectable + half,
            warnings=(*self.warnings, *notes),
        )

    def rounds_for(self, difference: float, alpha: float) -> int | None:
        """How many rounds of `--abba` (two pairs each) would find `difference` with probability
        `POWER` at this noise.

        None if more than `MOST_ROUNDS` are needed, or if the noise is unknown.
        """
        for rounds in range(1, MOST_ROUNDS + 1):
            freedom = 2 * rounds - 1
            error = math.sqrt(self.pair_variance / (2 * rounds))
            if (
                two_sided(alpha, freedom) + t_quantile(POWER, freedom)
            ) * error <= difference:
                return rounds
        return None


def estimate(base: Side, new: Side, assumptions: Assumptions) -> Estimate:
    """Estimate the difference of two sides, by the design that fits them.

    Raises:
        UserError: sides are paired, but have different numbers of runs, or fewer than 2.
    """
    if assumptions.paired:
        return _pairs(base, new, assumptions.alpha)
    if len(base.runs) == len(new.runs) == 1:
        return _single(base, new, assumptions)
    return _runs(base, new, assumptions.alpha)


def _pairs(base: Side, new: Side, alpha: float) -> Estimate:
    """The mean difference of paired log medians, with Student's t interval and Wilcoxon's signed
    ranks.
    """
    from scipy.stats import wilcoxon

    count = len(base.runs)
    if count != len(new.runs) or count < 2:
        what = (
            f"pairs need as many runs on each side, at least 2: there are {count} and "
            f"{len(new.runs)}"
        )
        raise UserError(
            what, where=f"{base.label}, {new.label}", remedy="leave out --paired"
        )
    differences = new.log_medians - base.log_medians
    p = float(wilcoxon(differences).pvalue) if differences.any() else 1.0
    variance = float(differences.var(ddof=1))
    found = Estimate(
        PAIRS,
        float(differences.mean()),
        n=(count, count),
        p=p,
        least_p=2.0 ** (1 - count),
    )
    return _of_runs(
        found,
        variance / count,
        count - 1,
        variance,
        alpha,
        needed=f"{math.ceil(1 + math.log2(1 / alpha))} pairs",
    )


def _runs(base: Side, new: Side, alpha: float) -> Estimate:
    """The difference of the means of log medians, with Welch's t interval. If a side has a single
    run, the interval is a prediction interval.
    """
    from scipy.stats import mannwhitneyu

    sides = base.log_medians, new.log_medians
    n = len(sides[0]), len(sides[1])
    if min(n) == 1:
        design = ONE_AGAINST_RUNS
        logs = max(sides, key=len)
        variance = float(logs.var(ddof=1)) * (1 + 1 / len(logs))
        freedom = float(len(logs) - 1)
        pair_variance = 2 * float(logs.var(ddof=1))
    else:
        design = RUNS
        spreads = [float(logs.var(ddof=1)) for logs in sides]
        parts = [
            (spread / count, count - 1)
            for spread, count in zip(spreads, n, strict=True)
        ]
        variance = parts[0][0] + parts[1][0]
        freedom = satterthwaite(*parts)
        pair_variance = sum(spreads)
    p = float(mannwhitneyu(*sides).pvalue) if np.ptp(np.concatenate(sides)) else 1.0
    fewest = 2
    while 2 / math.comb(2 * fewest, fewest) > alpha:
        fewest += 1
    found = Estimate(
        design,
        float(sides[1].mean() - sides[0].mean()),
        n=n,
        p=p,
        least_p=min(1.0, 2 / math.comb(sum(n), n[0])),
    )
    return _of_runs(
        found,
        variance,
        freedom,
        pair_variance,
        alpha,
        needed=f"{fewest} runs per side",
    )


def _of_runs(
    found: Estimate,
    variance: float,
    freedom: float,
    pair_variance: float,
    alpha: float,
    *,
    needed: str,
) -> Estimate:
    """Add the t interval of a difference, and a warning if there are too few runs for the rank
    test.
    """
    error = math.sqrt(variance)
    half = two_sided(alpha, freedom) * error
    few = (
        f"too few runs for the rank test ({found.n[0]} and {found.n[1]}; it needs {needed}): the "
        "verdict "
        "rests on the t interval, which takes run medians to be normally distributed"
    )
    return replace(
        found,
        half_width=half,
        detectable=half + t_quantile(POWER, freedom) * error,
        pair_variance=pair_variance,
        warnings=(few,) if found.least_p > alpha else (),
    )


TOO_DEPENDENT = (
    "the steps of a run depend on each other so much (autocorrelation) that too few independent "
    "blocks remain; "
    "record more steps, or several runs per side"
)


def _single(base: Side, new: Side, assumptions: Assumptions) -> Estimate:
    """The ratio of medians of two runs. It has no interval if steps are too dependent or too few.

    The standard error of each median comes from a circular block bootstrap, with blocks by the
    measured autocorrelation. The interval is the wider of two: Student's t with the degrees of
    freedom of the blocks, and the percentiles of the bootstrap. The latter alone is too narrow for
    few blocks.

    Steps of a single launch do not show how much launches differ. The user gives that spread, a
    history measures it, or the records decide. Its half-width is added in quadrature (wider than
    Cochran and Cox's weighted quantile). A rank test of steps would not see it, so there is none.
    If the runs drift apart, the interval spans the ratio at the start and at the end.
    """
    times = [np.log(side.runs[0].step_time_s) for side in (base, new)]
    found = [run_median(values) for values in times]
    one, two = found
    if one is None or two is None:
        difference = float(np.median(times[1]) - np.median(times[0]))
        few = min(map(len, times)) < FEW_STEPS  # `compare` warns of each short run
        return Estimate(BLOCKS, difference, warnings=() if few else (TOO_DEPENDENT,))
    spread, doubt = assumptions.launch_spread or NO_SPREAD, ""
    if assumptions.launch_spread is None and not (base.simulated or new.simulated):
        doubt = next(_doubts(base.runs[0].series, new.runs[0].series), "")
        spread = UNKNOWN_PLACE if doubt else SAME_PLACE
    alpha = assumptions.alpha
    launches = math.sqrt(2) * spread.share
    variance = one.variance + two.variance
    freedom = satterthwaite(*((run.variance, run.blocks - 1) for run in (one, two)))
    by_launches = spread.half_width(assumptions.confidence)
    # If steps have two typical times, the median jumps between them. Student's t misses that;
    # percentiles of the bootstrap show it. Draws with the same number come from the same random
    # numbers, so shift one side to unpair them.
    draws = np.roll(two.draws, 1) - one.draws
    apart = np.quantile(draws, [alpha / 2, 1 - alpha / 2]) - (two.median - one.median)
    by_steps = max(
        two_sided(alpha, freedom) * math.sqrt(variance),
        float(np.abs(apart).max()),
    )
    half = math.hypot(by_steps, by_launches)
    warnings = [_about_launches(spread, doubt, assumptions.confidence)]
    if (drift := _drift(one, two, alpha, by_launches)) is not None:
        half = max(half, drift)
        warnings.append(
            f"the runs drift apart by {in_percent(abs(math.expm1(two.trend - one.trend)))}; the "
            "interval spans the "
            "ratio at the start and at the end"
        )
    noise = math.hypot(
        t_quantile(POWER, freedom) * math.sqrt(variance),
        t_quantile(POWER, math.inf) * launches,
    )
    return Estimate(
        BLOCKS,
        two.median - one.median,
        half,
        half + noise,
        n=(one.blocks, two.blocks),
        pair_variance=variance + launches * launches,
        spread=None if spread is NO_SPREAD else spread,
        warnings=tuple(warnings),
    )


def _drift(
    one: RunMedian, two: RunMedian, alpha: float, by_launches: float
) -> float | None:
    """Half-width that spans the ratio at both ends of two runs that drift apart; None if they do
    not drift.
    """
    from scipy.special import stdtr

    trend, freedom = two.trend - one.trend, one.blocks + two.blocks - 4
    error = math.sqrt(one.trend_variance + two.trend_variance)
    if (
        min(one.blocks, two.blocks) <= 2
        or error == 0
        or 2 * stdtr(freedom, -abs(trend) / error) >= DRIFT_LEVEL
    ):
        return None
    # The level at either end of a fitted line has twice the standard error of the mean.
    at_end = 2 * math.sqrt(one.residual_variance + two.residual_variance)
    return abs(trend) / 2 + math.hypot(two_sided(alpha, freedom) * at_end, by_launches)


def _about_launches(spread: LaunchSpread, doubt: str, confidence: float) -> str:
    """Warn that the verdict depends on one launch of each side, with the assumed spread of
    launches.
    """
    if not spread.share:
        return (
            "one launch per side: the interval holds no difference between launches "
            "(placement, clocks)"
        )
    half = f"±{in_percent(spread.half_width(confidence), 2)}"
    known = f"{in_percent(spread.share, 2)} standard deviation"
    if spread is UNKNOWN_PLACE:
        return (
            f"one launch per side: the interval holds {half} between launches ({known} of a "
            "single pair of "
            f"{spread.source}), because {doubt}. Give several runs per side (--abba), --history "
            "FILE or "
            "--launch-spread"
        )
    if spread is SAME_PLACE:
        return (
            "one launch per side, on the same hosts, GPUs and versions, within hours: the "
            "interval holds "
            f"{half} between launches ({known} of {spread.source}). --abba measures yours"
        )
    return (
        f"one launch per side: the interval holds {half} between launches ({known}, "
        f"{spread.source})"
    )


def t_quantile(probability: float, freedom: float) -> float:
    """The quantile of Student's t. `freedom` may be fractional or infinite."""
    from scipy.special import (
        ndtri,
        stdtrit,
    )  # scipy.stats takes five times as long to import

    return float(
        ndtri(probability) if math.isinf(freedom) else stdtrit(freedom, probability)
    )


def two_sided(alpha: float, freedom: float) -> float:
    """The quantile of Student's t for a two-sided interval of level `alpha`."""
    return t_quantile(1 - alpha / 2, freedom)


def satterthwaite(*parts: tuple[float, float]) -> float:
    """Degrees of freedom of a sum of variances, by Welch and Satterthwaite.

    Args:
        parts: (variance, degrees of freedom) of each.
    """
    below = sum(variance**2 / freedom for variance, freedom in parts if freedom > 0)
    return (
        sum(variance for variance, _ in parts) ** 2 / below if below > 0 else math.inf
    )
