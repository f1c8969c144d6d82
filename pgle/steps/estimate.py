"""How far two sides are apart, and how sure that is: one function for each design of the
experiment.

The unit is the run where a side has several, else a block of steps. Differences are of logarithms
of step times.
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

FEWEST_BLOCKS = (
    2  # blocks below which the steps of a run are too dependent to say anything
)
RESAMPLES = 500
# longer runs are thinned to medians of so many groups of steps, which makes the error too large
MOST_RESAMPLED = 4000
SEED = 20240306


@dataclass(frozen=True, slots=True)
class RunMedian:
    """The median of a single run, its standard error, and its trend; all in logarithms of
    seconds.
    """

    median: float
    variance: float
    draws: Floats  # float64[RESAMPLES], medians of the bootstrap
    blocks: int  # how many
    trend: float  # change over the length of the run, of the fitted line
    trend_variance: float
    residual_variance: float  # of the mean, about the fitted line


def run_median(values: Floats) -> RunMedian | None:
    """Of the logarithms of the step times of a run; None where they are too few, or too
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
    # The bootstrap sees the spread about the sample, which is too small by (k - 1) / k for k
    # independent pieces.
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
    """Without the fitted line: drift has a test of its own, and would pass for autocorrelation."""
    place = np.arange(len(values)) - (len(values) - 1) / 2
    rest = values - place * float((place * values).sum()) / float((place**2).sum())
    levels = distinct(values)
    if 1 < len(levels) <= len(values) / 2:
        # Printed with few digits: equal values stay equal, else the fitted line would order them in
        # time.
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
    """By how much launches of one program differ."""

    share: float  # standard deviation of step time between launches, relative
    freedom: float  # degrees of freedom of that figure; infinite where the user gave it
    source: str  # where it comes from, in words

    def half_width(self, confidence: float) -> float:
        """How far one launch of each side may be apart at this confidence: relative, on each
        side.
        """
        return (
            t_quantile((1 + confidence) / 2, self.freedom) * math.sqrt(2) * self.share
        )


NO_SPREAD = LaunchSpread(0.0, math.inf, "")
"""Of simulated runs."""
SAME_PLACE = LaunchSpread(
    0.0021,
    5,
    "five public pairs of control runs, marin-community/marin#7012, #7912, #8277 and #8822",
)
"""Of launches on the same hosts within hours: the pooled differences of those pairs."""
UNKNOWN_PLACE = LaunchSpread(
    0.0015, 1, "control runs of a 64-GPU job, marin-community/marin#7012"
)
"""Where the place is not known: those controls differed by 0.03 points of 22.2 % model FLOPs
utilisation. It is another job's figure, so it counts as one pair of launches: with one degree of
freedom.
"""
ELSEWHERE = (
    "launches on other nodes or days differ by 1.6 to 3% in public "
    "(reframe-hpc/reframe#1345, iree-org/iree#24257)"
)
WITHIN_HOURS = 6.0
"""Between the starts of two runs "within hours". The sources give no exact time: this bound is our
reading of them.
"""
PLACE = {"hosts": "hosts", "gpus": "GPUs", "driver": "driver"}
"""What a recording knows of the place, by its name in `Series.about`."""


def given_spread(share: float | None) -> LaunchSpread | None:
    """The standard deviation between launches that a user gives, as a share; None: none is
    given.
    """
    if share is None:
        return None
    if not 0 <= share < 1:
        raise UserError(
            f"{share:g} is no share",
            where="launch_spread",
            remedy="write 0.3 % as 0.003",
        )
    return LaunchSpread(share, math.inf, "as given")


def _doubts(base: Series, new: Series) -> Iterator[str]:
    """Why the records do not prove that two runs had the same hosts, GPUs and versions, within
    hours.
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


MOST = 10**12  # runs or steps of an entry
NEAR = 0.2  # step times of a trend within this share of a run's may belong to the same program


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One run, or several of one state, as kept."""

    time: str  # ISO 8601
    name: str  # of the workload
    hardware: str  # what it ran on; series of different hardware are never joined
    commit: str = ""  # of the program; empty if unknown
    median_s: Annotated[float, Meta(ge=SHORTEST_S, le=LONGEST_S)]  # median step time
    # half the distance of the quartiles, relative
    spread: Annotated[float, Meta(ge=0, le=1e9)] = 0.0
    runs: Annotated[int, Meta(ge=1, le=MOST)] = 1  # how many
    steps: Annotated[int, Meta(ge=0, le=MOST)] = 0  # steady steps in all
    simulated: bool = False  # on the simulated GPU
    note: str = ""  # free text


@dataclass(frozen=True)
class Trend:
    """The entries of one name and hardware in order of time."""

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

        An entry of several runs counts as often. It includes what commits changed, if too little to
        be a change of level: rather too large than too small.
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
    """By how much launches differ, from the trend whose present level is nearest to `median_s`."""
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


POWER = 0.8  # probability with which the minimum detectable effect would be found
FEW_STEPS = 10  # steady steps of a run below which a comparison asks for more
DRIFT_LEVEL = 0.2
"""Significance at which the two runs are taken to drift apart. Missing a drift costs more than a
wider interval.
"""
MOST_ROUNDS = 12  # of `--abba` that are proposed: 48 runs


@dataclass(frozen=True, slots=True)
class Assumptions:
    """The statistical assumptions, as a value."""

    # of the interval, two-sided; 1 - confidence is the level of every test
    confidence: float = 0.95
    margin: float = LEAST_GAIN  # differences below this share count as equality
    # what launches of one program differ by, used where each side has one run; None: from the
    # records
    launch_spread: LaunchSpread | None = None
    paired: bool = False  # run i of BASE belongs to run i of NEW

    @property
    def alpha(self) -> float:
        """The level of every test."""
        return 1 - self.confidence


@dataclass(frozen=True, slots=True)
class Design:
    """How an experiment was done, and the results."""

    unit: str  # what one observation is
    text: str  # how the interval is made
    test: str = ""  # name of the rank test on the units; empty: there is none


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
    """What was found: a difference of logarithms of step times, new - base."""

    design: Design
    difference: float  # the estimate
    # of the two-sided interval at the confidence asked for; infinite if nothing is known
    half_width: float = math.inf
    # smallest true difference found with probability `POWER` at this noise
    detectable: float = math.inf
    p: float | None = (
        None  # of the rank test, two-sided; None: no test, the interval alone decides
    )
    least_p: float = (
        1.0  # the smallest p that this number of units can give; 1 without a test
    )
    n: tuple[int, int] = (1, 1)  # units of base and new
    pair_variance: float = (
        math.inf
    )  # of the difference of one run of each side; estimated
    spread: LaunchSpread | None = (
        None  # of launches, as taken where each side has one run
    )
    # how much lower and higher the difference may be by the model of simulated runs; 0 if measured
    model: tuple[float, float] = (0.0, 0.0)
    warnings: tuple[str, ...] = ()  # what the reader should know, one line each

    @property
    def ends(self) -> tuple[float, float]:
        """Lower and upper end of the interval of `difference`: logarithms, new − base.

        Noise and the model's error are independent, so they add in quadrature.
        """
        below, above = self.model
        return (
            self.difference - math.hypot(self.half_width, below),
            self.difference + math.hypot(self.half_width, above),
        )

    def modelled(self, below: float, above: float, note: str) -> Estimate:
        """With an interval that holds the range of the model whose times were simulated."""
        return replace(
            self,
            model=(below, above),
            detectable=self.detectable + max(below, above),
            warnings=(*self.warnings, note),
        )

    def widened(self, half: float, *notes: str) -> Estimate:
        """With an interval wider by `half` on each side."""
        return replace(
            self,
            half_width=self.half_width + half,
            detectable=self.detectable + half,
            warnings=(*self.warnings, *notes),
        )

    def rounds_for(self, difference: float, alpha: float) -> int | None:
        """Rounds of `--abba`, two pairs each, that would find `difference` with probability `POWER`
        at this noise.

        None: more than `MOST_ROUNDS`, or the noise is not known.
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
    """The difference of two sides, by the design that fits them."""
    if assumptions.paired:
        return _pairs(base, new, assumptions.alpha)
    if len(base.runs) == len(new.runs) == 1:
        return _single(base, new, assumptions)
    return _runs(base, new, assumptions.alpha)


def _pairs(base: Side, new: Side, alpha: float) -> Estimate:
    """The mean of the differences of log medians, Student's t interval, Wilcoxon's signed ranks."""
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
    """The difference of the means of log medians: Welch's t, or the prediction interval of a single
    run.
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
    """With the t interval of a difference, and a warning if there are too few runs for the rank
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
    """The ratio of medians of two runs; without an interval where the steps are too dependent, or
    too few.

    The standard error of each median comes from a circular block bootstrap, with the block length
    from the measured autocorrelation; the quantile is Student's t with as many degrees of freedom
    as the blocks give, since the plain percentile interval is too narrow for few blocks; the wider
    of the two is taken. No step of a single launch shows what launches differ by: that is given,
    measured in a history or taken from the records, and its half-width is added in quadrature
    (wider than Cochran and Cox's weighted quantile). No rank test of steps sees it: there is none.
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
    # Medians of steps that come in two kinds jump, and no t sees that: percentiles of the bootstrap
    # do. Draws of one number are resampled alike, so they are not paired.
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
    """Half-width that spans the ratio at both ends of two runs that drift apart; None where they do
    not.
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
    """That the verdict rests on one launch of each side, and what these are taken to differ by."""
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
    """The quantile of Student's t; `freedom` may be fractional or infinite."""
    from scipy.special import (
        ndtri,
        stdtrit,
    )  # scipy.stats takes five times as long to import

    return float(
        ndtri(probability) if math.isinf(freedom) else stdtrit(freedom, probability)
    )


def two_sided(alpha: float, freedom: float) -> float:
    """The quantile of Student's t that a two-sided interval of level `alpha` reaches to."""
    return t_quantile(1 - alpha / 2, freedom)


def satterthwaite(*parts: tuple[float, float]) -> float:
    """Degrees of freedom of a sum of variances (variance, degrees of freedom), after Welch and
    Satterthwaite.
    """
    below = sum(variance**2 / freedom for variance, freedom in parts if freedom > 0)
    return (
        sum(variance for variance, _ in parts) ** 2 / below if below > 0 else math.inf
    )
