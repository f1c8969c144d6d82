"""Step times of one run as recorded: the value that every reader makes; from a trace too."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntFlag
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pgle.errors import UserError
from pgle.trace.table import Trace, distinct
from pgle.trace.windows import compute_ns, find_executions


def execution_series(trace: Trace, source: str) -> Series:
    """The executions of the main module, the one with most compute, as the series of one run.

    A step takes from the first start to the last end on the slowest device. Warm-up and truncated executions are marked
    as `pgle.trace.windows` finds them.

    Raises:
        UserError: the trace has no module executions.
    """
    known = trace.execution >= 0
    if not known.any():
        where = trace.sources[0].path if trace.sources else None
        raise UserError("trace without module executions", where=where, remedy="record a window of whole steps")
    main = int(np.argmax(compute_ns(trace)))
    found = find_executions(trace)
    here = found.module == main
    numbers = distinct(found.execution[here])
    spans = np.zeros(len(numbers), np.int64)
    np.maximum.at(spans, np.searchsorted(numbers, found.execution[here]), found.span_ns[here])
    steps = [
        Step(number, span / 1e9, mark=_mark(found.reasons.get((main, number), "")))
        for number, span in zip(numbers.tolist(), spans.tolist(), strict=True)
        if span > 0
    ]
    series = make_series(source, "trace", steps, simulated=trace.simulated, warnings=trace.warnings)
    return replace(series, about={"module": trace.modules[main].name})


def _mark(reason: str) -> Mark:
    if not reason:
        return Mark.NONE
    return Mark.TRUNCATED if reason.startswith("truncated") else Mark.WARM_UP


Floats = npt.NDArray[np.float64]
LARGEST_STEP = 2**62  # a larger number is no step number
SHORTEST_S, LONGEST_S = 1e-9, 1e8
"""Seconds outside which a number is no step time: a nanosecond, three years (a time stamp is above)."""
MOST_STEPS = 4_000_000
"""Of one run, with the lines that could not be read: hours of steps of a millisecond, in half a GiB."""
LARGEST_LOSS = 1e100  # above, a loss counts as infinite: means of such would overflow


class Mark(IntFlag):
    """What a recording says of a step."""

    NONE = 0
    PROFILED = 1  # a profiler was on, or was started or stopped in it
    COMPILED = 2  # something was compiled in it
    CHECKPOINT = 4  # a checkpoint was saved or restored in it
    TRUNCATED = 8  # the edge of the recording cut it
    WARM_UP = 16  # the recording itself calls it warm-up
    NEAR_PROFILER = 32  # the log speaks of a profile just before: reports are still being written
    NEAR_COMPILE = 64  # the log speaks of a compilation just before
    NEAR_CHECKPOINT = 128  # the log speaks of a checkpoint just before


@dataclass(frozen=True, slots=True)
class Malformed:
    """A line that should hold a step time and does not: a record, not an exception."""

    line: int  # its number, from 1
    text: str  # its beginning
    reason: str  # what is wrong


class Step(NamedTuple):
    """One step as a reader finds it; missing figures are NaN."""

    step: int
    step_time_s: float
    loss: float = float("nan")
    peak_memory_bytes: float = float("nan")
    mark: Mark = Mark.NONE


@dataclass(frozen=True)
class Series:
    """The steps of one run, n of them in the order recorded."""

    source: str  # where it was read
    # ``steps``, ``jsonl``, ``csv``, ``maxtext``, ``plain``, ``pattern``, ``trace``, ``array``
    format: str
    step: npt.NDArray[np.int64]  # int64[n], step numbers as recorded
    step_time_s: Floats  # float64[n], seconds, all positive and finite
    loss: Floats  # float64[n], NaN where not recorded, infinite where it was no finite number
    peak_memory_bytes: Floats  # float64[n], NaN where not recorded
    mark: npt.NDArray[np.uint8]  # uint8[n], `Mark` values
    malformed: tuple[Malformed, ...] = ()  # lines that could not be read
    simulated: bool = False  # True where the times come from the simulated GPU
    warnings: tuple[str, ...] = field(default=())  # what the user should know, one line each
    # where and when it ran, by name, such as ``hardware``; what is not known is left out
    about: Mapping[str, str] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.step)


COLUMNS = ("step", "step_time_s", "loss", "peak_memory_bytes", "mark")  # arrays of a `Series`


def make_series(
    source: str,
    format: str,
    steps: Sequence[Step],
    *,
    malformed: Iterable[Malformed] = (),
    simulated: bool = False,
    warnings: Iterable[str] = (),
) -> Series:
    """The series of steps; times must be positive and finite."""
    return Series(
        source=source,
        format=format,
        step=np.array([item.step for item in steps], np.int64),
        step_time_s=np.array([item.step_time_s for item in steps], np.float64),
        loss=np.array([item.loss for item in steps], np.float64),
        peak_memory_bytes=np.array([item.peak_memory_bytes for item in steps], np.float64),
        mark=np.array([int(item.mark) for item in steps], np.uint8),
        malformed=tuple(malformed),
        simulated=simulated,
        warnings=tuple(warnings),
    )


def check_count(source: str, lines: int) -> None:
    """Raise `UserError` if a run has more steps and unreadable lines than `MOST_STEPS`."""
    if lines > MOST_STEPS:
        raise UserError(f"more than {MOST_STEPS:,} steps", where=source, remedy="give the part that matters")


def unfit(seconds: float) -> str:
    """Why a number is no step time; empty where it can be one."""
    if not 0 < seconds < float("inf"):
        return "is not a positive number"
    return "" if SHORTEST_S <= seconds <= LONGEST_S else "is out of range (under 1 ns, or years: a time stamp?)"


def slowest_rank(ranks: Sequence[Series]) -> Series:
    """One series of several ranks of a run: each step takes as long as its slowest rank; memory is the largest rank's.

    Steps that a rank lacks are taken from the ranks that have them.
    """
    if len(ranks) == 1:
        return ranks[0]
    lengths = sorted({len(rank) for rank in ranks})
    uneven = [f"ranks recorded {lengths[0]} to {lengths[-1]} steps"] if len(lengths) > 1 else []
    columns: dict[str, Any] = {name: np.concatenate([getattr(rank, name) for rank in ranks]) for name in COLUMNS}
    whole = Series(
        source=f"{ranks[0].source} and {len(ranks) - 1} more ranks",
        format=ranks[0].format,
        malformed=tuple(item for rank in ranks for item in rank.malformed),
        simulated=any(rank.simulated for rank in ranks),
        warnings=(*(line for rank in ranks for line in rank.warnings), *uneven),
        **columns,
    )
    return _slowest(whole)


def once_per_step(series: Series) -> Series:
    """One value per step where several ranks wrote into one file: the slowest. Warns of step numbers that start over.

    Lines of ranks lie side by side; after a restart, or in the next epoch, the numbers go back once.
    """
    numbers, counts = np.unique(series.step, return_counts=True)
    again = len(series) - len(numbers)
    if again == 0 or len(numbers) == 1:
        return series
    back = int(np.count_nonzero(np.diff(series.step) <= 0))
    if back < again / 4 or again < len(numbers) / 2:
        times = "once" if back == 1 else f"{back} times"
        note = f"{series.source}: step numbers go back {times} (a restart, or epochs): all of the steps count"
        return replace(series, warnings=(*series.warnings, note))
    note = f"{series.source}: a step is written up to {counts.max()} times (by several ranks?): the slowest counts"
    return _slowest(replace(series, warnings=(*series.warnings, note)))


def _slowest(series: Series) -> Series:
    """Each step once, in order: its longest time, first known loss, largest memory, and all its marks."""
    order = np.argsort(series.step, kind="stable")
    step, loss = series.step[order], series.loss[order]
    first = np.flatnonzero(np.diff(step, prepend=step[0] - 1))
    known = np.minimum.reduceat(np.where(np.isnan(loss), len(loss), np.arange(len(loss))), first)
    return replace(
        series,
        step=step[first],
        step_time_s=np.maximum.reduceat(series.step_time_s[order], first),
        loss=np.append(loss, np.nan)[known],
        peak_memory_bytes=np.fmax.reduceat(series.peak_memory_bytes[order], first),
        mark=np.bitwise_or.reduceat(series.mark[order], first),
    )
