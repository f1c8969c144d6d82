"""How the steps of a run change over time: they grow, change level, or every k-th one takes longer.

`compare` and `analyze` use this one rule. It asks two questions:
- Do steps change in the course of the run (growth, another level from some step on or for a while)?
- Does every k-th step differ?

A pattern counts if three things hold:
1. Ranks: at most `SHUFFLED` of all shuffles show a pattern as clear as this. The patterns of one
   question share this level (the smallest p of several tests: Westfall and Young, "Resampling-Based
   Multiple Testing", 1993).
2. Size against noise: the p of the F test is at most `BY_CHANCE`, corrected for the number of
   places that the pattern could have.
3. Cost: the mean step would be shorter by at least `LEAST_GAIN` if all steps were as the shortest.

Steps of a long run depend on each other. If the steps around a pattern do so significantly, blocks
of steps are tested.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache

import numpy as np

from pgle.errors import in_percent
from pgle.steps.dependence import blocks, independent_length, mean_ranks
from pgle.trace.columns import MAD_TO_DEVIATION, Flags, Floats
from pgle.worth import is_worth

FEWEST = 6  # fewest steps for a search: five allow no rank test at level `SHUFFLED`
SHUFFLED = 0.05  # share of shuffles that may show as clear a pattern
BY_CHANCE = 0.01  # largest p of the F test, corrected for all places of the pattern
SHUFFLES = 999
SEED = 20240306
SHORTEST_LEVEL = 3  # steps; fewer are single slow steps, not a level
MOST_POINTS = 60  # most values of a question: steps, or medians of blocks of steps
LONGEST_PERIOD = 16  # steps
PERIODS_SEEN = 3  # a run must be at least so many periods long
LEAST_SHOWN = 0.0005  # growth of each step; a smaller one would show as 0.0 %
# robust standard deviations; a step further from the pattern counts as this far
OUTLIER = 5.0


class PatternKind(StrEnum):
    """The kind of change over time."""

    GROWTH = "growth"  # each step differs from the one before by the same share
    LEVEL = "level"  # from some step on
    SPAN = "span"  # for a while
    PERIOD = "period"  # every k-th step


@dataclass(frozen=True, eq=False)
class StepPattern:
    """One change of the steps of a run over time."""

    kind: PatternKind
    # logarithm of a ratio: for growth, of a step to the one before; else, of the steps that differ
    # to the others
    change: float
    first: int  # index of the first step that differs; 0 for growth
    last: int  # index of the last step that differs
    # distance in steps from one that differs to the next; 1 if they are consecutive
    period: int
    p: float  # share of shuffles that show as clear a pattern
    fitted: Floats  # float64[n], what the pattern adds to each step's logarithm

    @property
    def lost(self) -> float:
        """How much shorter the mean step would be if all steps were as the shortest, as a share."""
        times = np.exp(self.fitted)
        return float(1 - times.min() / times.mean())

    def describe(self, steps: Sequence[int], what: str = "step") -> str:
        """Describe the pattern in one clause.

        Args:
            steps: the number of each step.
            what: the word for a step.
        """
        share = in_percent(abs(math.expm1(self.change)))
        more = "longer" if self.change > 0 else "shorter"
        first, last = steps[self.first], steps[self.last]
        if self.kind == PatternKind.GROWTH:
            whole = in_percent(abs(math.expm1(self.change * (self.last - self.first))))
            each = f" ({share} each)" if abs(self.change) >= LEAST_SHOWN else ""
            return f"steps get {whole} {more} from {what} {first} to {last}{each}"
        if self.kind == PatternKind.LEVEL:
            return f"steps are {share} {more} from {what} {first} on"
        if self.kind == PatternKind.SPAN:
            return f"steps are {share} {more} from {what} {first} to {last}"
        which = {2: "second", 3: "third"}.get(self.period, f"{self.period}th")
        return (
            f"every {which} step is {share} {more} ({what} {first}, "
            f"{steps[self.first + self.period]} …)"
        )


def find_patterns(seconds: Floats) -> tuple[StepPattern, ...]:
    """Find how the steps of a run change over time: at most one pattern for each question, the
    costliest first.

    Args:
        seconds: float64[n], times of consecutive steps.
    """
    if len(seconds) < FEWEST or np.ptp(seconds) == 0:
        return ()
    logs = np.log(seconds)
    first, second = _clearest_first(logs)
    # Each question is asked of the steps without the pattern of the other one.
    guessed = _answer(logs - _fitted(logs, first), second)
    one = _answer(logs - _added(guessed), first)
    other = _answer(logs - _added(one), second)
    found = [item for item in (one, other) if item is not None]
    large = [item for item in found if is_worth(item.lost)]
    return tuple(sorted(large, key=lambda item: -item.lost))


def _added(pattern: StepPattern | None) -> Floats | float:
    """What a pattern adds to each step's logarithm; 0 without a pattern."""
    return 0.0 if pattern is None else pattern.fitted


def _clearest_first(logs: Floats) -> list[bool]:
    """Both questions, each as whether it asks for periods. The one whose best pattern explains more
    is first.
    """
    points = _points(logs)
    _, of_course = _best(points, is_periodic=False)
    _, of_periods = _best(points, is_periodic=True)
    return [True, False] if of_periods > of_course else [False, True]


def _points(logs: Floats) -> Floats:
    """The last 2 × `MOST_POINTS` steps, from which a pattern is guessed before it is tested."""
    return logs[-2 * MOST_POINTS :]


def _fitted(logs: Floats, is_periodic: bool) -> Floats | float:
    """What the best pattern of a question adds to each step, even if it may be chance."""
    length = 1 if is_periodic else _guess_length(logs)
    values = _points(blocks(logs, length))
    place, _ = _best(values, is_periodic)
    if place is None:
        return 0.0
    return _pattern(logs, values, place, length, p=1.0).fitted


def _guess_length(logs: Floats) -> int:
    """Length in steps of the blocks in which a pattern is guessed: at most 2 × `MOST_POINTS`."""
    return -(-len(logs) // (2 * MOST_POINTS))


def _answer(logs: Floats, is_periodic: bool) -> StepPattern | None:
    """The pattern of one question, or None if there is none beyond chance."""
    length = 1
    if not is_periodic:
        length = max(_dependent_steps(logs), -(-len(logs) // MOST_POINTS))
    values = blocks(logs, length)
    if is_periodic:
        values = _points(values)
    if len(values) < FEWEST:
        return None
    place, explained = _best(values, is_periodic)
    if place is None or not _exceeds_noise(values, explained, is_periodic):
        return None
    p = _shuffled(values, is_periodic)
    if p > SHUFFLED:
        return None
    return _pattern(logs, values, place, length, p)


@dataclass(frozen=True, slots=True)
class _Place:
    """One pattern that steps could have, with its place."""

    kind: PatternKind
    first: int
    last: int
    period: int

    def steps(self, count: int) -> Flags:
        """bool[count], True for the steps that differ."""
        found = np.zeros(count, bool)
        found[self.first : self.last + 1 : self.period] = True
        return found


@cache
def _places(count: int, is_periodic: bool) -> tuple[tuple[_Place, ...], Floats]:
    """All k patterns of a question, and their shapes.

    Returns:
        The patterns, and float64[k, count]; each shape has mean 0 and norm 1.
    """
    places = tuple(_periods(count) if is_periodic else _courses(count))
    shapes = np.empty((len(places), count))
    for row, place in enumerate(places):
        shapes[row] = _shape(place, count)
    shapes -= shapes.mean(axis=1, keepdims=True)
    norms = np.linalg.norm(shapes, axis=1, keepdims=True)
    shapes /= np.maximum(norms, 1e-12)
    return places, shapes


def _shape(place: _Place, count: int) -> Floats:
    """float64[count], what a pattern of change 1 adds to each step's logarithm."""
    if place.kind == PatternKind.GROWTH:
        return np.arange(count, dtype=np.float64)
    return place.steps(count).astype(np.float64)


def _courses(count: int) -> Iterator[_Place]:
    """Yield the changes that `count` steps could have in the course of the run."""
    last = count - 1
    yield _Place(PatternKind.GROWTH, 0, last, 1)
    for begin in range(SHORTEST_LEVEL, count - SHORTEST_LEVEL + 1):
        yield _Place(PatternKind.LEVEL, begin, last, 1)
        for end in range(begin + SHORTEST_LEVEL, count - SHORTEST_LEVEL + 1):
            yield _Place(PatternKind.SPAN, begin, end - 1, 1)


def _periods(count: int) -> Iterator[_Place]:
    """Yield the periods that `count` steps could have, from each of the first steps on."""
    longest = min(LONGEST_PERIOD, count // PERIODS_SEEN)
    for period in range(2, longest + 1):
        phases = 1 if period == 2 else period  # for 2, `_pattern` picks the longer one
        for first in range(phases):
            yield _periodic(first, period, count)


def _best(values: Floats, is_periodic: bool) -> tuple[_Place | None, float]:
    """The place of the pattern that explains most of some values, with the share of the variance
    that it explains.
    """
    places, shapes = _places(len(values), is_periodic)
    if not places:
        return None, 0.0
    apart = values - np.median(values)
    clipped = _clipped(apart)
    for _ in range(2):  # the second pass clips values far from the first pattern
        centred = clipped - clipped.mean()
        along = shapes @ centred
        best = int(np.argmax(np.abs(along)))
        fit = along[best] * shapes[best] + clipped.mean()
        clipped = fit + _clipped(apart - fit)
    total = float((centred**2).sum())
    explained = float(along[best] ** 2)
    return places[best], explained / total if total > 0 else 0.0


def _clipped(rest: Floats) -> Floats:
    """Clip values to `OUTLIER` robust standard deviations around 0."""
    bound = OUTLIER * MAD_TO_DEVIATION * float(np.median(np.abs(rest)))
    return np.clip(rest, -bound, bound) if bound > 0 else rest


def _exceeds_noise(values: Floats, explained: float, is_periodic: bool) -> bool:
    """Whether the best pattern passes the F test, corrected for all places that it could have
    (Bonferroni).
    """
    # only here: it takes longer to import than all else
    from scipy.special import fdtrc

    if explained >= 1:
        return True
    freedom = len(values) - 2
    ratio = explained / (1 - explained) * freedom
    p = float(fdtrc(1, freedom, ratio))
    places, _ = _places(len(values), is_periodic)
    return p * len(places) <= BY_CHANCE


def _shuffled(values: Floats, is_periodic: bool) -> float:
    """The share of shuffles whose ranks show a pattern of this question as clear as the values'."""
    places, shapes = _places(len(values), is_periodic)
    ranks = mean_ranks(values)
    ranks -= ranks.mean()
    random = np.random.default_rng(SEED)
    shuffled = random.permuted(np.tile(ranks, (SHUFFLES, 1)), axis=1)
    orders = np.vstack([ranks, shuffled])
    ps = []  # the p of each order and test, as if that order were the real one
    for rows in _rows_by_kind(places).values():
        along = np.abs(orders @ shapes[rows].T)
        clear = np.round(along.max(axis=1), 9)
        below = np.searchsorted(np.sort(clear), clear, side="left")
        ps.append((len(clear) - below) / len(clear))
    least = np.min(ps, axis=0)
    return float((least <= least[0]).mean())


def _rows_by_kind(
    places: Sequence[_Place],
) -> Mapping[tuple[PatternKind, int], list[int]]:
    """The rows of each test. Each kind, and each period, has a test of its own."""
    found: dict[tuple[PatternKind, int], list[int]] = {}
    for row, place in enumerate(places):
        found.setdefault((place.kind, place.period), []).append(row)
    return found


def _dependent_steps(logs: Floats) -> int:
    """Length in steps of nearly independent blocks; 1 if steps around the best course pattern are
    independent.
    """
    length = _guess_length(logs)
    values = blocks(logs, length)
    rest = values - _fitted(values, is_periodic=False)
    rest = _clipped(rest - np.median(rest))
    squares = float((rest**2).sum())
    if squares <= 0:
        return 1
    lag1 = float((rest[1:] * rest[:-1]).sum()) / squares
    if lag1 <= 2 / math.sqrt(len(rest)):  # two standard errors of independent steps
        return 1
    return independent_length(rest) * length


def _pattern(
    logs: Floats, values: Floats, place: _Place, length: int, p: float
) -> StepPattern:
    """Measure a pattern in all steps of a run.

    Args:
        logs: float64[n], logarithms of the step times.
        values: medians of blocks of `length` steps, in which the pattern was found.
        place: the pattern's place in `values`.
        p: share of shuffles that show as clear a pattern.
    """
    count = len(logs)
    before = count - len(values) * length
    if place.kind == PatternKind.GROWTH:
        found = _Place(place.kind, 0, count - 1, 1)
        change = _slope(values) / length
    else:
        found = _in_steps(place, logs, before, length)
        differ = found.steps(count)
        change = float(np.median(logs[differ]) - np.median(logs[~differ]))
    if found.period == 2 and change < 0:
        # if two levels alternate, the pattern names the longer steps
        found = _periodic(1 - found.first, 2, count)
        change = -change
    return StepPattern(
        kind=found.kind,
        change=change,
        first=found.first,
        last=found.last,
        period=found.period,
        p=p,
        fitted=change * _shape(found, count),
    )


def _in_steps(place: _Place, logs: Floats, before: int, length: int) -> _Place:
    """Convert a place in blocks of `length` steps to steps. The first `before` steps are in no
    block.
    """
    if place.kind == PatternKind.PERIOD:
        return _periodic((place.first + before) % place.period, place.period, len(logs))
    first = before + place.first * length
    if place.kind == PatternKind.LEVEL:
        first = _edge(logs, first, length)
    return _Place(place.kind, first, before + (place.last + 1) * length - 1, 1)


def _periodic(first: int, period: int, count: int) -> _Place:
    """The place of every `period`-th step of a run, from `first` on."""
    last = first + (count - 1 - first) // period * period
    return _Place(PatternKind.PERIOD, first, last, period)


def _edge(logs: Floats, near: int, length: int) -> int:
    """The step within `length` of `near` at which the level changes most clearly."""
    if length == 1:
        return near
    sums = np.cumsum(logs - logs.mean())
    first = max(near - length, 1)
    last = min(near + length, len(logs) - 1)
    at = np.arange(first, last + 1)
    # the variance that two levels explain, which change at a step
    explained = sums[at - 1] ** 2 / (at * (len(logs) - at))
    return int(at[np.argmax(explained)])


def _slope(values: Floats) -> float:
    """The median slope of all pairs (Theil and Sen), which ignores single outliers."""
    one, other = np.triu_indices(len(values), 1)
    return float(np.median((values[other] - values[one]) / (other - one)))
