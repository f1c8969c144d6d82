"""Which steps of a run are steady: the rules that leave steps out, and what each left out."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pgle.steps.series import Floats, Mark, Series

STALL_FACTOR = 1.5
"""A step this many times the median is a stall: something other than the step ran (checkpoint, compile, evaluation)."""
DISPATCH_FACTOR = 0.5
"""A step below this share of the median was not waited for (asynchronous dispatch): its time is the launch's."""
FREQUENT_STALLS = 0.2  # above this share of steps, slow steps are how the program runs and no stalls
WARM_UP_AT_MOST = 0.5  # share of the steps that warm-up can take
LEADING = 4.0  # robust standard deviations above the steady median from which a leading step is warm-up in any case
FEWEST_FOR_WARM_UP = 10  # steps below which warm-up is not looked for
LEVEL_SHIFT = 0.03  # a lasting change of step time by this share gets a warning
SHORTEST_LEVEL = 3  # values; fewer are an excursion, no new level
CLEAR = 4.0  # standard errors by which the means of two levels must differ


@dataclass(frozen=True, slots=True)
class Rules:
    """How steps are chosen."""

    warmup: int | None = None  # steps to leave out at the start; None: found by rule
    first: int | None = None  # first step number to take; None: from the start
    last: int | None = None  # last step number to take; None: to the end
    keep_stalls: bool = False  # do not leave out stalls


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Steps that a rule left out."""

    # ``outside --steps``, ``profiled``, ``compile``, ``checkpoint``, ``stall after the profiler``, ``stall``, ``not
    # waited for``, ``warm-up``, ``truncated``
    rule: str
    steps: tuple[int, ...]  # their numbers
    seconds: float  # their total time


@dataclass(frozen=True)
class StepTimes:
    """The steady steps of one run."""

    series: Series  # the run as recorded
    step: npt.NDArray[np.int64]  # int64[n], numbers of the steady steps
    step_time_s: Floats  # float64[n], their times
    left_out: tuple[LeftOut, ...]  # what was left out, by rule, in the order of the rules
    stall_share: float  # share of the run's time after warm-up that went into stalls; profiled steps do not count
    warnings: tuple[str, ...] = ()  # what the user should know, one line each

    def __len__(self) -> int:
        return len(self.step)

    @property
    def median_s(self) -> float:
        """Median step time in seconds; NaN without steps."""
        return float(np.median(self.step_time_s)) if len(self) else float("nan")

    @property
    def grain(self) -> float:
        """How finely the step times were written: a power of ten, relative to the median."""
        if not len(self) or self.series.simulated:
            return 0.0
        values = self.step_time_s
        for digits in range(10):
            scaled = values * 10**digits
            if np.abs(scaled - np.rint(scaled)).max() < 1e-9 + 1e-12 * scaled.max():
                return float(10**-digits / np.median(values))
        return 0.0

    @property
    def tail(self) -> float:
        """By how much the mean of the steady steps exceeds their median, as a logarithm."""
        return float(np.log(self.step_time_s.mean() / self.median_s))

    @property
    def mean_error(self) -> float:
        """Standard error of the mean of the steady steps, relative, as if they were independent."""
        return float(self.step_time_s.std() / self.median_s / np.sqrt(len(self)))


def steady(series: Series, rules: Rules = Rules()) -> StepTimes:
    """Leave out what is no steady step.

    Steps that the recording marks go first; then steps far above the median (`STALL_FACTOR`; a checkpoint, compile or
    profile just before is given as the reason) and far below it (`DISPATCH_FACTOR`); then warm-up: the truncation
    that minimises the marginal standard error of the mean (MSER; White, "An effective truncation heuristic for bias
    reduction in simulation output", Simulation 69, 1997), taken only where what it drops is slower than what it keeps.
    """
    chosen = _Chosen(series)
    number, seconds = series.step, series.step_time_s
    if rules.first is not None or rules.last is not None:
        low = -np.inf if rules.first is None else rules.first
        high = np.inf if rules.last is None else rules.last
        chosen.drop("outside --steps", (number < low) | (number > high))
    chosen.drop_marked("profiled", Mark.PROFILED)
    chosen.drop_marked("truncated", Mark.TRUNCATED)
    chosen.drop_marked("compile", Mark.COMPILED)
    chosen.drop_marked("checkpoint", Mark.CHECKPOINT)
    chosen.drop_marked("warm-up", Mark.WARM_UP)
    if rules.warmup is not None:
        chosen.drop("warm-up", np.arange(len(series)) < rules.warmup)
    warnings = list(series.warnings)
    if series.malformed:
        item = series.malformed[0]
        more = f" and {len(series.malformed) - 1} more" if len(series.malformed) > 1 else ""
        warnings.append(f"{series.source}: line {item.line}{more} could not be read ({item.reason})")
    _stalls(chosen, rules, warnings)
    if rules.warmup is None:
        _warm_up(chosen, warnings)
    kept = np.flatnonzero(chosen.keep)
    stalled = sum(item.seconds for item in chosen.left_out if item.rule in STALLS)
    shift = level_shift(np.log(seconds[kept]))
    if shift is not None:
        at, change = shift
        warnings.append(
            f"{series.source}: steps are {abs(np.expm1(change)) * 100:.1f} % {'longer' if change > 0 else 'shorter'} "
            f"from step {number[kept[at]]} on; choose one part with --steps FIRST:LAST"
        )
    total = float(seconds[kept].sum()) + stalled
    return StepTimes(
        series=series,
        step=number[kept],
        step_time_s=seconds[kept],
        left_out=tuple(chosen.left_out),
        stall_share=stalled / total if total > 0 else 0.0,
        warnings=tuple(warnings),
    )


STALLS = ("stall after a checkpoint", "stall after the profiler", "stall after a compile", "stall", "checkpoint")
"""The rules that leave out stalls."""


class _Chosen:
    """Which steps are still in, and what went."""

    def __init__(self, series: Series) -> None:
        self.series = series
        self.keep = np.ones(len(series), bool)
        self.left_out: list[LeftOut] = []

    def drop(self, rule: str, which: npt.NDArray[np.bool_]) -> None:
        gone = np.flatnonzero(which & self.keep)
        if len(gone):
            steps = tuple(self.series.step[gone].tolist())
            self.left_out.append(LeftOut(rule, steps, float(self.series.step_time_s[gone].sum())))
            self.keep[gone] = False

    def drop_marked(self, rule: str, mark: Mark) -> None:
        self.drop(rule, (self.series.mark & int(mark)) != 0)


def _stalls(chosen: _Chosen, rules: Rules, warnings: list[str]) -> None:
    """Drop stalls and steps not waited for; stalls before the first good step are warm-up."""
    series, seconds = chosen.series, chosen.series.step_time_s
    if not chosen.keep.any():
        return
    median = float(np.median(seconds[chosen.keep]))
    fast = chosen.keep & (seconds < DISPATCH_FACTOR * median)
    slow = chosen.keep & (seconds > STALL_FACTOR * median)
    good = np.flatnonzero(chosen.keep & ~slow & ~fast)
    first_good = int(good[0]) if len(good) else len(series)
    at_start = slow & (np.arange(len(series)) < first_good)
    later = slow & ~at_start
    if fast.any():
        share = np.count_nonzero(fast) / np.count_nonzero(chosen.keep)
        chosen.drop("not waited for", fast)
        warnings.append(
            f"{series.source}: {share * 100:.0f} % of the steps took less than half the median: the loop does not "
            "wait for them; call jax.block_until_ready in it"
        )
    if at_start.any() and not rules.keep_stalls:
        chosen.drop("warm-up", at_start)
    if later.any() and np.count_nonzero(later) > FREQUENT_STALLS * np.count_nonzero(chosen.keep):
        warnings.append(
            f"{series.source}: {np.count_nonzero(later)} of {np.count_nonzero(chosen.keep)} steps take more than "
            f"{STALL_FACTOR} times the median: too many to be stalls, they are kept"
        )
    elif not rules.keep_stalls:
        for rule, mark in (
            ("stall after the profiler", Mark.NEAR_PROFILER),
            ("stall after a checkpoint", Mark.NEAR_CHECKPOINT),
            ("stall after a compile", Mark.NEAR_COMPILE),
        ):
            chosen.drop(rule, later & ((series.mark & int(mark)) != 0))
        chosen.drop("stall", later)


def _warm_up(chosen: _Chosen, warnings: list[str]) -> None:
    kept = np.flatnonzero(chosen.keep)
    if len(kept) < FEWEST_FOR_WARM_UP:
        return
    values = np.log(chosen.series.step_time_s[kept])
    count = truncation(values)
    if count == 0:
        return
    before, after = values[:count], values[count:]
    spread = 1.4826 * float(np.median(np.abs(after - np.median(after))))
    level = float(np.median(after))
    if float(np.median(before)) - level <= spread:
        # Mostly steady steps: what leads without a gap, far beyond the noise, is warm-up all the same.
        count = int(np.argmin(np.append(before > level + LEADING * spread, False)))
        if count == 0:
            return
    which = np.zeros(len(chosen.keep), bool)
    which[kept[:count]] = True
    chosen.drop("warm-up", which)
    if count >= int(WARM_UP_AT_MOST * len(values)):
        warnings.append(f"{chosen.series.source}: still settling after half of its steps; record more")


def truncation(values: Floats) -> int:
    """How many leading values to drop by MSER: the d that minimises sum((v[d:] - mean)²) / (n - d)², d ≤ n/2.

    Values far from the median count as 5 robust standard deviations, so that one spike does not decide.
    """
    median = float(np.median(values))
    bound = 5 * 1.4826 * float(np.median(np.abs(values - median)))
    clipped = np.clip(values, median - bound, median + bound) if bound > 0 else values
    reverse = clipped[::-1] - median
    left = np.arange(1, len(values) + 1)
    squares = np.cumsum(reverse**2) - np.cumsum(reverse) ** 2 / left
    error = (squares / left**2)[::-1]
    return int(np.argmin(error[: int(WARM_UP_AT_MOST * len(values)) + 1]))


def level_shift(values: Floats, least: float = LEVEL_SHIFT) -> tuple[int, float] | None:
    """The largest lasting change of level: (index, difference of the medians after and before).

    The split into two that leaves the least sum of squares, spikes cut off (Hampel's filter: 4 robust standard
    deviations from the median of five). None if it is below `least`, or not `CLEAR` of the scatter of the two parts.
    """
    count = len(values)
    if count < 2 * SHORTEST_LEVEL:
        return None
    around = np.median(np.lib.stride_tricks.sliding_window_view(np.pad(values, 2, mode="edge"), 5), axis=1)
    sigma = 1.4826 * float(np.median(np.abs(np.diff(values)))) / np.sqrt(2)
    clean = np.where(np.abs(values - around) > 4 * sigma, around, values)
    sums, place = np.cumsum(clean - clean.mean()), np.arange(SHORTEST_LEVEL, count - SHORTEST_LEVEL + 1)
    at = int(place[np.argmax(sums[place - 1] ** 2 / (place * (count - place)))])
    before, after = clean[:at], clean[at:]
    shift = float(np.median(values[at:]) - np.median(values[:at]))
    error = np.sqrt(before.var(ddof=1) / len(before) + after.var(ddof=1) / len(after))
    return None if abs(shift) < least or abs(after.mean() - before.mean()) < CLEAR * error else (at, shift)
