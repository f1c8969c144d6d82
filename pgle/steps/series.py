"""The recorded step times of a run, its steady steps, and a side of a comparison, which has several
runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntFlag
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pgle.errors import UserError, in_percent
from pgle.steps.patterns import find_patterns
from pgle.trace.columns import heads

Floats = npt.NDArray[np.float64]
LARGEST_STEP = 2**62  # a larger number is not a step number
SHORTEST_S, LONGEST_S = 1e-9, 1e8
"""Step times are between these: a nanosecond, and three years (a time stamp is larger)."""
MOST_STEPS = 4_000_000
"""Most steps of one run, including unreadable lines. It allows hours of steps of a millisecond, in
half a GiB of memory.
"""
LARGEST_LOSS = 1e100  # a larger loss counts as infinite, since means would overflow


class Mark(IntFlag):
    """What the recording notes about a step."""

    NONE = 0
    PROFILED = 1  # a profiler was on, or started or stopped during the step
    COMPILED = 2  # the program compiled something during the step
    CHECKPOINT = 4  # the program saved or restored a checkpoint during the step
    TRUNCATED = 8  # the edge of the recording cut the step
    WARM_UP = 16  # the recording itself marks the step as warm-up


@dataclass(frozen=True, slots=True)
class Malformed:
    """A line that should hold a step time but does not. It is a record, not an exception."""

    line: int  # line number, from 1
    text: str  # beginning of the line
    reason: str  # the mistake


class Step(NamedTuple):
    """One step as a reader finds it. A missing loss is NaN."""

    step: int
    step_time_s: float
    loss: float = float("nan")
    mark: Mark = Mark.NONE


@dataclass(frozen=True)
class Series:
    """The n steps of one run, in recorded order."""

    source: str  # the file or folder that it was read from
    # ``steps``, ``jsonl``, ``csv``, ``maxtext``, ``plain``, ``tqdm``, ``pattern``, ``trace``,
    # ``array``
    format: str
    step: npt.NDArray[np.int64]  # int64[n], step numbers as recorded
    step_time_s: Floats  # float64[n], seconds, all positive and finite
    loss: Floats  # float64[n], NaN if not recorded, infinite if not a finite number
    mark: npt.NDArray[np.uint8]  # uint8[n], `Mark` values
    malformed: tuple[Malformed, ...] = ()  # lines that could not be read
    simulated: bool = False  # whether the times come from the simulated GPU
    warnings: tuple[str, ...] = field(default=())  # one line each
    # facts about the run by name, such as ``hardware``; unknown facts are left out
    about: Mapping[str, str] = field(default_factory=dict)
    # for a simulated run, microseconds of the predicted step: the likely one, then one for each end
    # of each uncertainty, in the order of `pgle.schedule.predict.Steps`
    modelled_us: tuple[float, ...] = ()

    def __len__(self) -> int:
        return len(self.step)

    def warned(self, note: str) -> Series:
        """The series with one more warning."""
        return replace(self, warnings=(*self.warnings, note))


# the arrays of a `Series`, and their types
COLUMNS = dict.fromkeys(Step._fields, np.float64) | {
    "step": np.int64,
    "mark": np.uint8,
}


def make_series(
    source: str, format: str, steps: Sequence[Step], **about: Any
) -> Series:
    """Make a series from steps.

    Args:
        steps: their times must be positive and finite.
        about: further fields of a `Series`.
    """
    columns: dict[str, Any] = {
        name: np.array([getattr(step, name) for step in steps], kind)
        for name, kind in COLUMNS.items()
    }
    return Series(source, format, **columns, **about)


def check_count(source: str, lines: int) -> None:
    """Refuse a run with too many lines.

    Raises:
        UserError: steps and unreadable lines are more than `MOST_STEPS`.
    """
    if lines > MOST_STEPS:
        raise UserError(
            f"more than {MOST_STEPS:,} steps",
            where=source,
            remedy="give the part that matters",
        )


def unfit(seconds: float) -> str:
    """Why a number cannot be a step time in seconds; empty if it can."""
    if not 0 < seconds < float("inf"):
        return "is not a positive number"
    return (
        ""
        if SHORTEST_S <= seconds <= LONGEST_S
        else "is out of range (under 1 ns, or years: a time stamp?)"
    )


def slowest_rank(ranks: Sequence[Series]) -> Series:
    """Join the series of several ranks of a run. Each step takes as long as on its slowest rank.

    If a rank lacks a step, the other ranks decide.
    """
    if len(ranks) == 1:
        return ranks[0]
    lengths = sorted({len(rank) for rank in ranks})
    uneven = (
        [f"ranks recorded {lengths[0]} to {lengths[-1]} steps"]
        if len(lengths) > 1
        else []
    )
    columns: dict[str, Any] = {
        name: np.concatenate([getattr(rank, name) for rank in ranks])
        for name in COLUMNS
    }
    malformed = chain.from_iterable(rank.malformed for rank in ranks)
    warnings = chain.from_iterable(rank.warnings for rank in ranks)
    whole = Series(
        source=f"{ranks[0].source} and {len(ranks) - 1} more ranks",
        format=ranks[0].format,
        malformed=tuple(malformed),
        simulated=any(rank.simulated for rank in ranks),
        warnings=(*warnings, *uneven),
        **columns,
    )
    return _slowest(whole)


def once_per_step(series: Series) -> Series:
    """Keep one value per step, the slowest, if several ranks wrote into one file.

    Lines of ranks alternate, so step numbers repeat often. After a restart, or in the next epoch,
    numbers go back once. Then all steps stay. Both cases add a warning.
    """
    numbers, counts = np.unique(series.step, return_counts=True)
    again = len(series) - len(numbers)
    if again == 0 or len(numbers) == 1:
        return series
    back = int(np.count_nonzero(np.diff(series.step) <= 0))
    if back < again / 4 or again < len(numbers) / 2:
        times = "once" if back == 1 else f"{back} times"
        note = (
            f"{series.source}: step numbers go back {times} (a restart, or epochs): all of the "
            "steps count"
        )
        return series.warned(note)
    note = (
        f"{series.source}: a step is written up to {counts.max()} times (by several ranks?): "
        "the slowest counts"
    )
    return _slowest(series.warned(note))


def _slowest(series: Series) -> Series:
    """Each step once, in order of its number, with its longest time, first known loss and all its
    marks.
    """
    order = np.argsort(series.step, kind="stable")
    step, loss = series.step[order], series.loss[order]
    first = heads(step)
    known = np.minimum.reduceat(
        np.where(np.isnan(loss), len(loss), np.arange(len(loss))), first
    )
    return replace(
        series,
        step=step[first],
        step_time_s=np.maximum.reduceat(series.step_time_s[order], first),
        loss=np.append(loss, np.nan)[known],
        mark=np.bitwise_or.reduceat(series.mark[order], first),
    )


STALL_FACTOR = 1.5
"""A step of more than this many medians is a stall: something other than the step ran (checkpoint,
compile, evaluation).
"""
DISPATCH_FACTOR = 0.5
"""If a step takes less than this share of the median, the loop did not wait for it (asynchronous
dispatch). Its time is only the launch.
"""
# if a larger share of steps is slow, they are normal for the program, and not stalls
FREQUENT_STALLS = 0.2
WARM_UP_AT_MOST = 0.5  # largest share of the steps that can be warm-up
# a leading step is always warm-up if it exceeds the steady median by so many robust standard
# deviations
LEADING = 4.0
FEWEST_FOR_WARM_UP = 10  # with fewer steps, no rule looks for warm-up
LEVEL_SHIFT = 0.03  # share of the step; a smaller change is not a change of level
SHORTEST_LEVEL = 3  # values; fewer are an excursion, not a new level
CLEAR = 4.0  # standard errors by which the means of two levels must differ


@dataclass(frozen=True, slots=True)
class Rules:
    """The user's choice of steps."""

    warmup: int | None = None  # steps to skip at the start; None to find them by rule
    first: int | None = None  # first step number; None for the first recorded step
    last: int | None = None  # last step number; None for the last recorded step


@dataclass(frozen=True, slots=True)
class LeftOut:
    """The steps that a rule left out."""

    # ``outside --steps``, ``profiled``, ``compile``, ``checkpoint``, ``stall``, ``not waited for``,
    # ``warm-up`` or ``truncated``
    rule: str
    steps: tuple[int, ...]  # step numbers
    seconds: float  # total time


@dataclass(frozen=True)
class StepTimes:
    """The steady steps of one run."""

    series: Series  # the run as recorded
    step: npt.NDArray[np.int64]  # int64[n], numbers of the steady steps
    step_time_s: Floats  # float64[n], seconds
    # the other steps by rule, in the order of the rules
    left_out: tuple[LeftOut, ...]
    # stalls and checkpoints as a share of the time of these and the steady steps together
    stall_share: float
    warnings: tuple[str, ...] = ()  # one line each

    def __len__(self) -> int:
        return len(self.step)

    @property
    def median_s(self) -> float:
        """Median step time in seconds; NaN without steps."""
        return float(np.median(self.step_time_s)) if len(self) else float("nan")

    @property
    def grain(self) -> float:
        """The last written digit of the step times: a power of ten in seconds, as a share of the
        median. 0 for simulated steps, or if there are ten digits and more.
        """
        if not len(self) or self.series.simulated:
            return 0.0
        values = self.step_time_s
        for digits in range(10):
            scaled = values * 10**digits
            if np.abs(scaled - np.rint(scaled)).max() < 1e-9 + 1e-12 * scaled.max():
                return float(10**-digits / np.median(values))
        return 0.0


def steady(series: Series, rules: Rules = Rules()) -> StepTimes:
    """Leave out every step that is not steady, by rules in this order:

    1. Steps that the recording marks.
    2. Steps far below the median (`DISPATCH_FACTOR`) and far above it (`STALL_FACTOR`).
    3. Warm-up: the truncation that minimises the marginal standard error of the mean (MSER; White,
       "An effective truncation heuristic for bias reduction in simulation output", Simulation 69,
       1997). It counts only if the dropped steps are slower than the kept ones.
    """
    chosen = _Chosen(series)
    number, seconds = series.step, series.step_time_s
    if rules.first is not None or rules.last is not None:
        low = -np.inf if rules.first is None else rules.first
        high = np.inf if rules.last is None else rules.last
        chosen.drop("outside --steps", (number < low) | (number > high))
    for rule, mark in _MARKED.items():
        chosen.drop(rule, (series.mark & int(mark)) != 0)
    if rules.warmup is not None:
        chosen.drop("warm-up", np.arange(len(series)) < rules.warmup)
    warnings = list(series.warnings)
    if series.malformed:
        item = series.malformed[0]
        more = (
            f" and {len(series.malformed) - 1} more"
            if len(series.malformed) > 1
            else ""
        )
        warnings.append(
            f"{series.source}: line {item.line}{more} could not be read ({item.reason})"
        )
    _stalls(chosen, warnings)
    if rules.warmup is None:
        _warm_up(chosen, warnings)
    kept = np.flatnonzero(chosen.keep)
    stalled = sum(
        item.seconds for item in chosen.left_out if item.rule in ("stall", "checkpoint")
    )
    for pattern in find_patterns(seconds[kept]):
        advice = (
            "" if pattern.period > 1 else "; choose one part with --steps FIRST:LAST"
        )
        warnings.append(
            f"{series.source}: {pattern.describe(number[kept].tolist())}{advice}"
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


def steady_median_s(times_s: Sequence[float]) -> float | None:
    """The median of the steady steps among some step times, in seconds, as a comparison computes
    it; None if no step is steady.
    """
    steps = [Step(number, seconds) for number, seconds in enumerate(times_s)]
    found = steady(make_series("", "steps", steps))
    return found.median_s if len(found) else None


_MARKED = {
    "profiled": Mark.PROFILED,
    "truncated": Mark.TRUNCATED,
    "compile": Mark.COMPILED,
    "checkpoint": Mark.CHECKPOINT,
    "warm-up": Mark.WARM_UP,
}
"""The rules for steps that the recording marks, in their order."""


class _Chosen:
    """The steps that are still kept, and those that rules have left out."""

    def __init__(self, series: Series) -> None:
        self.series = series
        self.keep = np.ones(len(series), bool)
        self.left_out: list[LeftOut] = []

    def drop(self, rule: str, which: npt.NDArray[np.bool_]) -> None:
        """Leave out steps, and note by which rule."""
        gone = np.flatnonzero(which & self.keep)
        if len(gone):
            steps = tuple(self.series.step[gone].tolist())
            self.left_out.append(
                LeftOut(rule, steps, float(self.series.step_time_s[gone].sum()))
            )
            self.keep[gone] = False


def _stalls(chosen: _Chosen, warnings: list[str]) -> None:
    """Drop stalls, and steps that the loop did not wait for. Slow steps before the first good step
    are warm-up.
    """
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
            f"{series.source}: {in_percent(share, 0)} of the steps took less than half the median: "
            "the loop does not "
            "wait for them; call jax.block_until_ready in it"
        )
    chosen.drop("warm-up", at_start)
    if later.any() and np.count_nonzero(later) > FREQUENT_STALLS * np.count_nonzero(
        chosen.keep
    ):
        warnings.append(
            f"{series.source}: {np.count_nonzero(later)} of {np.count_nonzero(chosen.keep)} steps "
            "take more than "
            f"{STALL_FACTOR} times the median: too many to be stalls, they are kept"
        )
    else:
        chosen.drop("stall", later)


def _warm_up(chosen: _Chosen, warnings: list[str]) -> None:
    """Drop the leading steps that are longer than the others."""
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
        # Most of these steps are steady. Only leading steps far beyond the noise are warm-up.
        count = int(np.argmin(np.append(before > level + LEADING * spread, False)))
        if count == 0:
            return
    which = np.zeros(len(chosen.keep), bool)
    which[kept[:count]] = True
    chosen.drop("warm-up", which)
    if count >= int(WARM_UP_AT_MOST * len(values)):
        warnings.append(
            f"{chosen.series.source}: still settling after half of its steps; record more"
        )


def truncation(values: Floats) -> int:
    """How many leading values to drop by MSER: the d that minimises
    sum((v[d:] - mean)²) / (n - d)², for d ≤ n/2.

    Values far from the median are clipped to 5 robust standard deviations, so that one spike does
    not decide.
    """
    median = float(np.median(values))
    bound = 5 * 1.4826 * float(np.median(np.abs(values - median)))
    clipped = np.clip(values, median - bound, median + bound) if bound > 0 else values
    reverse = clipped[::-1] - median
    left = np.arange(1, len(values) + 1)
    squares = np.cumsum(reverse**2) - np.cumsum(reverse) ** 2 / left
    error = (squares / left**2)[::-1]
    return int(np.argmin(error[: int(WARM_UP_AT_MOST * len(values)) + 1]))


def level_shift(values: Floats) -> tuple[int, float] | None:
    """The largest lasting change of level: (index, median after it minus median before it).

    It is the split into two parts with the least sum of squares, after spikes are replaced
    (Hampel's filter: 4 robust standard deviations from the median of five). None if the change is
    below `LEVEL_SHIFT`, or if the means differ by less than `CLEAR` standard errors.

    Args:
        values: float64[n], logarithms of times.
    """
    count = len(values)
    if count < 2 * SHORTEST_LEVEL:
        return None
    around = np.median(
        np.lib.stride_tricks.sliding_window_view(np.pad(values, 2, mode="edge"), 5),
        axis=1,
    )
    sigma = 1.4826 * float(np.median(np.abs(np.diff(values)))) / np.sqrt(2)
    clean = np.where(np.abs(values - around) > 4 * sigma, around, values)
    sums = np.cumsum(clean - clean.mean())
    place = np.arange(SHORTEST_LEVEL, count - SHORTEST_LEVEL + 1)
    at = int(place[np.argmax(sums[place - 1] ** 2 / (place * (count - place)))])
    before, after = clean[:at], clean[at:]
    shift = float(np.median(values[at:]) - np.median(values[:at]))
    error = np.sqrt(before.var(ddof=1) / len(before) + after.var(ddof=1) / len(after))
    return (
        None
        if abs(shift) < LEVEL_SHIFT or abs(after.mean() - before.mean()) < CLEAR * error
        else (at, shift)
    )


FEWEST_STEPS = 3
"""Fewest steps of a single run for an interval. With two steps, the 95 % interval covers in 88 % of
draws; with three, in 97 % (measured).
"""
# runs whose step times differ by a larger factor have other units, or time other things
OTHER_UNIT = 100.0


@dataclass(frozen=True)
class Side:
    """One side of a comparison."""

    label: str  # its name in answers
    runs: tuple[StepTimes, ...]  # the steady steps of its runs

    @property
    def steps(self) -> int:
        """Steady steps of all runs."""
        return sum(len(run) for run in self.runs)

    @property
    def commit(self) -> str:
        """The program's commit in the records; empty if unknown or if runs differ."""
        known = {run.series.about.get("commit", "") for run in self.runs}
        return known.pop() if len(known) == 1 else ""

    @property
    def median_s(self) -> float:
        """Median step time in seconds: the median of the medians of its runs."""
        return float(np.median([run.median_s for run in self.runs]))

    @property
    def log_medians(self) -> Floats:
        """float64[runs], logarithm of each run's median in seconds."""
        return np.log([run.median_s for run in self.runs])

    @property
    def spread(self) -> float:
        """Half the distance of the quartiles, relative to the median. It is of run medians; if
        there is one run, of its steps.
        """
        values = (
            np.exp(self.log_medians) if len(self.runs) > 1 else self.runs[0].step_time_s
        )
        low, middle, high = np.quantile(values, [0.25, 0.5, 0.75])
        return float((high - low) / 2 / middle)

    @property
    def stall_share(self) -> float:
        """The mean over runs of their share of time in stalls."""
        return float(np.mean([run.stall_share for run in self.runs]))

    @property
    def simulated(self) -> bool:
        """Whether any run is of the simulated GPU."""
        return any(run.series.simulated for run in self.runs)


def check_runs(runs: Sequence[StepTimes]) -> None:
    """Refuse runs that cannot be compared.

    Raises:
        UserError: a run has no steady step, or step times differ by more than `OTHER_UNIT` times.
    """
    for run in runs:
        if len(run) == 0:
            gone = ", ".join(f"{len(item.steps)} {item.rule}" for item in run.left_out)
            what = f"no steady step among {len(run.series)} ({gone or 'empty'})"
            outside = any(item.rule == "outside --steps" for item in run.left_out)
            first, last = (
                (run.series.step.min(), run.series.step.max())
                if len(run.series)
                else (0, 0)
            )
            remedy = (
                f"its steps are {first} to {last}"
                if outside
                else "record more steps, or pass --warmup 0"
            )
            raise UserError(what, where=run.series.source, remedy=remedy)
    # fewer steps may be a compilation
    known = (run for run in runs if len(run) >= FEWEST_STEPS)
    ordered = sorted(known, key=lambda run: run.median_s)
    if ordered and ordered[-1].median_s > OTHER_UNIT * ordered[0].median_s:
        fast, slow = ordered[0], ordered[-1]
        what = (
            f"step times of {fast.series.source} and {slow.series.source} differ by a factor of "
            f"{slow.median_s / fast.median_s:.4g} ({fast.median_s:.4g} s and {slow.median_s:.4g} "
            "s): "
            "other units, or one loop does not wait for its steps"
        )
        raise UserError(
            what,
            remedy="name the unit: step_time_s, step_time_ms, or --pattern with a group ms",
        )
