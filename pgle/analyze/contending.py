"""Copies and memsets that slow kernels and collectives at the same time.

A copy takes memory bandwidth, and often a link, from kernels and collectives that it overlaps. A
launch that overlaps a copy is compared with the same launch without one: the same instruction, at
the same place of another execution. If every execution of a rank has a copy there, other ranks
count. If all of these have one too, the effect is unknown.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np

from pgle.analyze.alike import exceeds_chance
from pgle.analyze.other_work import OtherKind
from pgle.analyze.window import DeviceWindow
from pgle.schedule.simulate import Stream
from pgle.trace.columns import (
    Codes,
    Flags,
    Floats,
    Ints,
    distinct,
    heads,
    occurrences,
    run_lengths,
    run_medians,
)
from pgle.trace.intervals import EMPTY, Intervals, covered, union
from pgle.trace.table import ActivityKind, Trace

COPIES = (ActivityKind.MEMCPY, ActivityKind.MEMSET)


@dataclass(frozen=True, slots=True)
class Contention:
    """Copies of one name, and their effect on other work."""

    name: str  # an instruction, another module, or ``copies outside of instructions``
    us: float  # how much they lengthen work that is not hidden, in a mean step
    copied_us: float  # time of the copies in a mean step
    ratio: float  # time of overlapped work, divided by its time without a copy
    launches: int  # number of kernels and collectives that they overlap
    executions: tuple[int, ...]  # the executions in which they overlap work


def find_contention(
    trace: Trace, windows: Sequence[DeviceWindow], main: int, done: Sequence[Floats]
) -> tuple[Contention, ...]:
    """Find the copies that slow other work, the costliest first.

    Args:
        main: index of the main module.
        done: for each window, float64[rows], when a row would have ended without a wait for other
            ranks.
    """
    copies = [_copies(trace, window, main) for window in windows]
    if not any(copies):
        return ()
    launches = _launches(trace, windows, main, done)
    all_copies = [_together(list(of.values())) for of in copies]
    is_clean = launches.overlap(all_copies) == 0
    usual = launches.usual(is_clean)
    steps = sum(window.steps for window in windows)
    found = []
    for name in dict.fromkeys(chain.from_iterable(copies)):
        times = [of.get(name, EMPTY) for of in copies]
        one = _effect(name, times, launches, usual, steps=steps)
        if one is not None:
            found.append(one)
    return tuple(sorted(found, key=lambda item: -item.us))


def _together(times: Sequence[Intervals]) -> Intervals:
    """When any of several copies runs."""
    if not times:
        return EMPTY
    start = np.concatenate([one.start for one in times])
    end = np.concatenate([one.end for one in times])
    return union(start, end)


def _effect(
    name: str,
    times: Sequence[Intervals],
    launches: _Launches,
    usual: Floats,
    *,
    steps: int,
) -> Contention | None:
    """The effect of copies of one name; None if launches are not longer with them, beyond chance.

    Args:
        times: for each window, when these copies run.
        usual: `_Launches.usual`.
        steps: number of steps in all windows.
    """
    is_known = np.isfinite(usual)
    slowed = np.flatnonzero((launches.overlap(times) > 0) & is_known)
    usual_ns = usual[slowed]
    more_ns = launches.length[slowed] - usual_ns
    longer = int(np.count_nonzero(more_ns > 0))
    if not exceeds_chance(longer, len(more_ns)) or more_ns.sum() <= 0:
        return None
    lost_ns = float((more_ns * launches.exposed[slowed]).sum())
    copied_ns = sum(of_window.length for of_window in times)
    executions = distinct(launches.execution[slowed]).tolist()
    return Contention(
        name=name,
        us=lost_ns / steps / 1e3,
        copied_us=copied_ns / steps / 1e3,
        ratio=1 + float(more_ns.sum() / usual_ns.sum()),
        launches=len(slowed),
        executions=tuple(executions),
    )


def _copies(trace: Trace, window: DeviceWindow, main: int) -> dict[str, Intervals]:
    """When copies run on a device, by name of the copy."""
    found = {}
    copies = np.flatnonzero(np.isin(trace.kind[window.rows], COPIES))
    rows = window.rows[copies]
    start = window.start[copies]
    end = window.end[copies]
    module = trace.module[rows]
    # an instruction of the main module, or -1 - (another module)
    code = np.where(module == main, trace.instruction[rows], -1 - module)
    for number in distinct(code.astype(np.int64)).tolist():
        mine = code == number
        if number >= 0:
            name = trace.instructions[number]
        else:
            name = trace.modules[-1 - number].name
        found[name] = union(start[mine], end[mine])
    other = window.other
    is_copy = np.isin(other.kind, COPIES)
    if is_copy.any():
        begin_ns = other.start_ns[is_copy]
        end_ns = begin_ns + other.duration_ns[is_copy]
        found[str(OtherKind.COPIES)] = union(begin_ns, end_ns)
    return found


@dataclass(frozen=True, eq=False)
class _Launches:
    """The k launches of kernels and collectives of the main module in steps."""

    window: Ints  # int64[k], index into the windows
    execution: Ints  # int64[k]
    place: Ints  # int64[k], equal for one instruction at one place of its executions
    start: Floats  # float64[k], ns from the start of its window
    length: Floats  # float64[k], ns, without the wait for other ranks
    exposed: Floats  # float64[k], share of the length that compute does not hide

    def overlap(self, times: Sequence[Intervals]) -> Floats:
        """float64[k], ns that some times overlap each launch.

        Args:
            times: for each window.
        """
        found = np.zeros(len(self.start))
        for number, of_window in enumerate(times):
            mine = self.window == number
            begin = self.start[mine]
            found[mine] = covered(of_window, begin, begin + self.length[mine])
        return found

    def usual(self, is_clean: Flags) -> Floats:
        """float64[k], usual length of each launch without a copy, in ns, on its rank, else on other
        ranks; NaN if every launch overlaps a copy.

        Args:
            is_clean: bool[k], whether a launch overlaps no copy.
        """
        windows = int(self.window.max(initial=0)) + 1
        own = _medians_of(self.place * windows + self.window, self.length, is_clean)
        others = _medians_of(self.place, self.length, is_clean)
        return np.where(np.isfinite(own), own, others)


def _medians_of(key: Ints, values: Floats, use: Flags) -> Floats:
    """float64[k], the median of the usable values with the same key; NaN if there is none.

    Args:
        use: bool[k], which values are usable.
    """
    found = np.full(len(key), np.nan)
    rows = np.flatnonzero(use)
    if not len(rows):
        return found
    rows = rows[np.lexsort((values[rows], key[rows]))]
    ordered = values[rows]
    first = heads(key[rows])
    medians = run_medians(ordered, first, run_lengths(first, len(rows)))
    known = key[rows][first]
    at = np.minimum(np.searchsorted(known, key), len(known) - 1)
    is_known = known[at] == key
    found[is_known] = medians[at[is_known]]
    return found


def _launches(
    trace: Trace, windows: Sequence[DeviceWindow], main: int, done: Sequence[Floats]
) -> _Launches:
    parts: list[tuple[Codes | Floats, ...]] = []
    for number, (window, until) in enumerate(zip(windows, done, strict=True)):
        is_own = trace.module[window.rows] == main
        is_copy = np.isin(trace.kind[window.rows], COPIES)
        is_in_step = trace.execution[window.rows] >= 0
        here = np.flatnonzero(is_own & ~is_copy & is_in_step)
        rows = window.rows[here]
        execution = trace.execution[rows].astype(np.int64)
        instruction = trace.instruction[rows].astype(np.int64)
        start = window.start[here]
        length = until[here] - start
        compute = window.busy(Stream.COMPUTE)
        hidden = covered(compute, start, start + length) / np.maximum(length, 1.0)
        communicates = window.stream[here] == Stream.COMMUNICATION
        exposed = np.where(communicates, 1 - hidden, 1.0)
        occurrence = occurrences(execution, instruction)
        place = occurrence * len(trace.instructions) + instruction
        window_of = np.full(len(here), number)
        parts.append((window_of, execution, place, start, length, exposed))
    columns = (np.concatenate(column) for column in zip(*parts, strict=True))
    return _Launches(*columns)
