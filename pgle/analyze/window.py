"""Take a measured window apart. Each moment of a step belongs to one row, so rows add up to the
step.

A moment counts as compute if anything computes, else as communication, else as a copy, else as work
of no instruction, else as idle. These are the parts of `StepBreakdown`. If two kernels of a part
overlap, the moment belongs to the one that began first. So the rows of a step add up to the step,
and differences of rows add up to the difference of two steps.

Three lengths have one name everywhere:
- A *span* is one execution on one device, from the start of its first activity to the end of its
  last. A schedule decides it. XProf calls it a step of a GPU.
- A *step* is from the start of one span to the start of the next, as a program's own clock measures
  it.
- The *window* is from the start of the first steady span to the end of the last: N spans and the
  N - 1 pauses between them.

Times are whole nanoseconds since the start of a device's window, as float64. Sums are exact up to
2^53 ns, 104 days.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from functools import cached_property

import numpy as np
import numpy.typing as npt

from pgle.analyze.other_work import OtherKind, kinds_of
from pgle.schedule.simulate import StepBreakdown, Stream
from pgle.steps.patterns import StepPattern, find_patterns
from pgle.trace.columns import Flags, Floats, Ints, distinct, heads, median, noise_of
from pgle.trace.intervals import (
    EMPTY,
    Intervals,
    complement,
    covered,
    join,
    union,
    without,
)
from pgle.trace.steady import ModuleExecutions
from pgle.trace.table import NO_OTHER_WORK, OtherWork, Trace

SLOW = 0.05
"""A step is slow if it exceeds the median step by this share, and by more than noise
(`noise_of`).
"""


class RowGroup(StrEnum):
    """The kind of work, wait or gap that takes the time of a row."""

    COMPUTE = "compute"  # an instruction of the main module
    TRANSFER = "communication"  # exposed time of a collective, without the wait
    WAIT = "waits for other ranks"  # exposed time of a collective before the last rank
    COPY = "copies"  # an exposed transfer of the main module
    MODULE = "other modules"  # another module, whatever it does
    OTHER = "other GPU work"  # work of no instruction, while nothing else runs
    LAUNCH = "launch gaps"  # idle inside steps, in gaps of up to `LAUNCH_GAP_NS`
    # idle inside steps, in longer gaps; named after the instruction that follows the gap
    HOST = "host gaps"
    BETWEEN = "between steps"  # idle between steps


@dataclass(frozen=True, slots=True)
class StepTime:
    """One step, mean over the devices."""

    execution: int  # its number in the trace
    span_us: float  # from the start of its first activity to the end of its last
    pause_us: float | None  # from there to the next step; None for the last step
    is_slow: bool  # much longer than most steps

    @property
    def step_us(self) -> float:
        """Span and pause."""
        return self.span_us + (self.pause_us or 0.0)


@dataclass(frozen=True, eq=False)
class StepParts:
    """The k rows of all n steps, mean over the devices that ran the step."""

    rows: tuple[tuple[RowGroup, str], ...]  # k, group and name of each row
    inside_us: Floats  # float64[k, n], time during the step's span
    pause_us: Floats  # float64[k, n], time between the span and the next one
    steps: tuple[StepTime, ...]  # n, ordered by execution
    # number of the main module's GPU activities in a step, by the name of their row
    kernels: Mapping[str, float]

    def mean_us(self, *, slow: bool | None = None) -> Floats:
        """float64[k], microseconds of each row in a mean step.

        Args:
            slow: True for slow steps only, False for the others, None for all steps.
        """
        is_slow = np.array([step.is_slow for step in self.steps], np.bool_)
        use = np.ones_like(is_slow) if slow is None else is_slow == slow
        paused = use & self._has_pause
        inside = self.inside_us[:, use].sum(axis=1) / max(use.sum(), 1)
        pause = self.pause_us[:, paused].sum(axis=1) / max(paused.sum(), 1)
        return np.asarray(inside + pause)

    @property
    def _has_pause(self) -> Flags:
        """bool[n], whether the pause after a step is known."""
        return np.array([step.pause_us is not None for step in self.steps], np.bool_)

    @cached_property
    def typical_us(self) -> Floats:
        """float64[k], microseconds of each row in the mean of all steps that are not slow."""
        return self.mean_us(slow=False)

    @cached_property
    def times_us(self) -> Floats:
        """float64[n], microseconds of each step with the pause after it. The last step gets the
        usual pause.
        """
        return _with_pauses(self.steps)

    @cached_property
    def patterns(self) -> tuple[StepPattern, ...]:
        """How steps change over time, the largest change first."""
        return find_patterns(self.times_us)

    def along(self, pattern: StepPattern) -> list[tuple[RowGroup, str, float]]:
        """How much a pattern adds to each row of a mean step, compared with the shortest steps:
        group, name, microseconds. The largest is first.
        """
        shape = np.expm1(pattern.fitted)
        added = float((shape - shape.min()).mean())
        shape -= shape.mean()
        paused = self._has_pause
        mean_pause_us = self.pause_us[:, paused].mean(axis=1, keepdims=True)
        times = self.inside_us + np.where(paused, self.pause_us, mean_pause_us)
        return self._longer(times @ shape / float(shape @ shape) * added)

    @property
    def slow_us(self) -> float:
        """How much slow steps lengthen the mean step, in microseconds."""
        return float(self.mean_us().sum() - self.typical_us.sum())

    def of(self, group: RowGroup) -> dict[str, float]:
        """Microseconds of a group's rows in a typical step, by name, the longest first."""
        rows = zip(self.rows, self.typical_us.tolist(), strict=True)
        found = ((name, us) for (of, name), us in rows if of == group)
        return dict(sorted(found, key=lambda row: -row[1]))

    def excess(self) -> list[tuple[RowGroup, str, float]]:
        """How much longer rows are in a slow step than in a typical one: group, name, microseconds.
        The largest is first.
        """
        return self._longer(self.mean_us(slow=True) - self.typical_us)

    def _longer(self, more_us: Floats) -> list[tuple[RowGroup, str, float]]:
        """The rows that get longer, the one that grows most first: group, name, microseconds.

        Args:
            more_us: float64[k], how much longer each row gets.
        """
        order = np.argsort(-more_us, kind="stable").tolist()
        found = [(*self.rows[at], float(more_us[at])) for at in order]
        return [row for row in found if row[-1] > 0]


def step_parts(
    trace: Trace,
    windows: Sequence[DeviceWindow],
    main: int,
    done: Sequence[Floats],
    names: Sequence[str],
) -> StepParts:
    """Take every step apart.

    Args:
        main: index of the main module.
        trace: all activities.
        windows: one for each device.
        done: for each window, float64[rows], when a row would have ended without a wait for other
            ranks.
        names: the row name of each instruction in the trace.
    """
    executions = distinct(np.concatenate([window.numbers for window in windows]))
    count = len(executions)
    groups = list(RowGroup)
    labels = [*names, *(key.name for key in trace.modules), *OtherKind]
    size = len(labels)
    # by group and name: float64[2 * executions], inside spans, then between them
    found: dict[int, Floats] = {}
    ran = np.zeros(count)
    paused = np.zeros(count)
    for window, finished in zip(windows, done, strict=True):
        at = np.searchsorted(executions, window.numbers)
        ran[at] += 1
        paused[at[:-1]] += 1
        for piece in _pieces(trace, window, main, finished, len(names)):
            step = window.steps_at(piece.begin)
            is_between = piece.begin >= window.finishes[step]
            codes = groups.index(piece.group) * size + piece.name
            key = (codes * 2 + is_between) * count + at[step]
            for cell, us in zip(*_sums(key, piece.ns / 1e3), strict=True):
                row, where = divmod(cell, 2 * count)
                found.setdefault(row, np.zeros(2 * count))[where] += us
    by_name: dict[tuple[RowGroup, str], Floats] = {}
    for row, cells in found.items():
        known = (groups[row // size], str(labels[row % size]))
        by_name[known] = by_name.get(known, 0.0) + cells.reshape(2, -1)
    table = np.array(list(by_name.values())).reshape(len(by_name), 2, count)
    return StepParts(
        rows=tuple(by_name),
        inside_us=table[:, 0] / np.maximum(ran, 1),
        pause_us=table[:, 1] / np.maximum(paused, 1),
        steps=_step_times(windows, executions, ran, paused),
        kernels=_kernels(trace, windows, main, names),
    )


def _kernels(
    trace: Trace, windows: Sequence[DeviceWindow], main: int, names: Sequence[str]
) -> dict[str, float]:
    counts = np.zeros(len(names))
    steps = sum(window.steps for window in windows)
    for window in windows:
        rows = window.rows[trace.module[window.rows] == main]
        counts += np.bincount(trace.instruction[rows], minlength=len(names))
    found = defaultdict[str, float](float)
    for code in np.flatnonzero(counts).tolist():
        found[names[code]] += float(counts[code]) / steps
    return found


def _sums(key: Ints, values: Floats) -> tuple[list[int], list[float]]:
    """The distinct keys, and the sum of the values of each."""
    if not len(key):
        return [], []
    order = np.argsort(key, kind="stable")
    ordered = key[order]
    first = heads(ordered)
    sums = np.add.reduceat(values[order], first)
    return ordered[first].tolist(), sums.tolist()


@dataclass(frozen=True, eq=False, slots=True)
class _Pieces:
    """Own times of k activities or gaps of one group."""

    group: RowGroup
    name: Ints  # int64[k], code of the row's name
    begin: Floats  # float64[k], ns
    ns: Floats  # float64[k]

    def where(self, use: Flags) -> _Pieces:
        """Only some of them.

        Args:
            use: bool[k].
        """
        return _Pieces(self.group, self.name[use], self.begin[use], self.ns[use])


def _pieces(
    trace: Trace, window: DeviceWindow, main: int, done: Floats, names: int
) -> Iterator[_Pieces]:
    """The own time of every activity and gap on one device.

    Args:
        names: number of instructions in the trace. They have the first codes; modules follow, and
            then every `OtherKind`.
    """
    is_main = trace.module[window.rows] == main
    name = _name_codes(trace, window.rows, main, names)
    start, end = window.start, window.end
    compute = window.busy(Stream.COMPUTE)
    communication = window.busy(Stream.COMMUNICATION)
    for stream, group, cover in (
        (Stream.COMPUTE, RowGroup.COMPUTE, EMPTY),
        (Stream.COMMUNICATION, RowGroup.TRANSFER, compute),
        (Stream.COPY, RowGroup.COPY, join(compute, communication)),
    ):
        here = np.flatnonzero(window.stream == stream)
        ours = is_main[here]
        code = name[here]
        begin = np.maximum(start[here], _reach(end[here]))
        stop = np.maximum(end[here], begin)
        whole_ns = _own(cover, begin, stop)
        yield _Pieces(RowGroup.MODULE, code, begin, whole_ns).where(~ours)
        if group != RowGroup.TRANSFER:
            yield _Pieces(group, code, begin, whole_ns).where(ours)
            continue
        arrived = np.clip(done[here], begin, stop)
        transfer_ns = _own(cover, begin, arrived)
        wait_ns = _own(cover, arrived, stop)
        yield _Pieces(group, code, begin, transfer_ns).where(ours)
        yield _Pieces(RowGroup.WAIT, code, begin, wait_ns).where(ours)
    yield from _other_pieces(window, names + len(trace.modules))
    gaps = window.gaps
    lengths = gaps.times.lengths
    is_short = gaps.inside & (lengths <= LAUNCH_GAP_NS)
    after = _name_codes(trace, gaps.after, main, names)
    unnamed = np.zeros_like(after)
    for group, code, use in (
        (RowGroup.LAUNCH, unnamed, is_short),
        (RowGroup.HOST, after, gaps.inside & ~is_short),
        (RowGroup.BETWEEN, unnamed, ~gaps.inside),
    ):
        yield _Pieces(group, code, gaps.times.start, lengths).where(use)


def _name_codes(
    trace: Trace, rows: npt.NDArray[np.int32], main: int, names: int
) -> Ints:
    """int64[rows], the instruction of each row; of another module ``names`` + that module."""
    module = trace.module[rows].astype(np.int64)  # two bytes hold no large sums
    return np.where(module == main, trace.instruction[rows], names + module)


def _other_pieces(window: DeviceWindow, first: int) -> Iterator[_Pieces]:
    """Work of no instruction while nothing else runs.

    Args:
        first: code of the first `OtherKind`.
    """
    work, cover = window.other, window.named
    kinds = list(OtherKind)
    for kind, rows in kinds_of(work):
        begin = work.start_ns[rows].astype(np.float64)
        stop = begin + work.duration_ns[rows]
        alone = union(begin, stop)
        own_ns = _own(cover, alone.start, alone.end)
        code = np.full(len(alone), first + kinds.index(kind), np.int64)
        yield _Pieces(RowGroup.OTHER, code, alone.start, own_ns)
        cover = join(cover, alone)


def _reach(end: Floats) -> Floats:
    """Return for each row the latest end of the rows before it. Rows are ordered by start."""
    reach = np.zeros(len(end))
    np.maximum.accumulate(end[:-1], out=reach[1:])
    return reach


def _own(cover: Intervals, begin: Floats, end: Floats) -> Floats:
    """The length of intervals outside of `cover`."""
    return end - begin - covered(cover, begin, end)


def _step_times(
    windows: Sequence[DeviceWindow], executions: Ints, ran: Floats, paused: Floats
) -> tuple[StepTime, ...]:
    span = np.zeros(len(executions))
    pause = np.zeros(len(executions))
    for window in windows:
        at = np.searchsorted(executions, window.numbers)
        span[at] += (window.finishes - window.begins) / 1e3
        pauses = window.begins[1:] - window.finishes[:-1]
        pause[at[:-1]] += np.maximum(pauses, 0.0) / 1e3
    span /= np.maximum(ran, 1)
    pause /= np.maximum(paused, 1)
    steps = []
    for row, execution in enumerate(executions.tolist()):
        pause_us = float(pause[row]) if paused[row] else None
        steps.append(StepTime(execution, float(span[row]), pause_us, is_slow=False))
    for row in np.flatnonzero(_slow(_with_pauses(steps))).tolist():
        steps[row] = replace(steps[row], is_slow=True)
    return tuple(steps)


def _with_pauses(steps: Sequence[StepTime]) -> Floats:
    """float64[n], microseconds of each step with its pause. The last step gets the usual pause."""
    pauses = [step.pause_us for step in steps if step.pause_us is not None]
    usual_us = median(np.array(pauses)) if pauses else 0.0
    return np.array(times_with_pauses(steps, usual_us), np.float64)


def times_with_pauses(steps: Iterable[StepTime], usual_us: float) -> list[float]:
    """Microseconds of each step with the pause after it; `usual_us` replaces an unknown pause."""
    times = []
    for step in steps:
        pause_us = usual_us if step.pause_us is None else step.pause_us
        times.append(step.span_us + pause_us)
    return times


def _slow(times: Floats) -> Flags:
    """The steps that are much longer than most, beyond any change over time."""
    if len(times) <= 2:
        return np.zeros(len(times), np.bool_)
    for pattern in find_patterns(times):
        times = times / np.exp(pattern.fitted)
    middle = median(times)
    above = times - middle
    noise = noise_of(np.abs(above))
    return np.asarray(above > max(SLOW * middle, noise))


LAUNCH_GAP_NS = 20_000
"""The longest gap between two launches that wait in a queue. It is the field's limit, see
`pgle.analyze.rules`.
"""

LONG_GAP_NS = 1_000_000  # in a longer gap the device waits for host, input or others


@dataclass(frozen=True, eq=False, slots=True)
class Gaps:
    """Times in which a device runs nothing: k gaps, ordered by start."""

    times: Intervals  # k, ns
    # bool[k], inside a span; spans begin and end with activities, so no gap crosses an edge
    inside: Flags
    after: npt.NDArray[np.int32]  # int32[k], the trace's row that ends the gap


@dataclass(frozen=True)
class DeviceWindow:
    """All that one device ran, from the start of its first steady span to the end of its last."""

    device: int  # index into the trace's devices
    steps: int  # number of steady executions of the main module
    rows: npt.NDArray[np.int32]  # int32[m], rows of the trace, ordered by start
    stream: npt.NDArray[np.uint8]  # uint8[m], values of `Stream`
    # int64[steps], numbers of the executions, ordered by start
    numbers: Ints
    # begins, finishes: float64[steps], start and end of each span, ns from the window's start
    begins: Floats
    finishes: Floats
    begin_ns: int  # start of the window on the trace's clock
    length: float  # of the window, ns
    trace: Trace
    compiling: Intervals = EMPTY  # when XLA compiles in the device's process
    # work that belongs to no instruction, clipped to the window, in ns from its start
    other: OtherWork = NO_OTHER_WORK

    @property
    def start(self) -> Floats:
        """float64[m], start of each row in ns, clipped to the window. To save memory, it is
        computed at each call, like `end`.
        """
        return np.asarray(
            np.maximum(self.trace.start_ns[self.rows] - self.begin_ns, 0), np.float64
        )

    @property
    def end(self) -> Floats:
        """float64[m], end of each row in ns, clipped to the window."""
        end = self.trace.start_ns[self.rows] + self.trace.duration_ns[self.rows]
        return np.asarray(np.minimum(end - self.begin_ns, int(self.length)), np.float64)

    def steps_at(self, times: Floats) -> Ints:
        """int64[k], the last step that has begun at each of k times, in ns from the start of the
        window; 0 before the first one.
        """
        begun = np.searchsorted(self.begins, times, side="right")
        return np.maximum(begun - 1, 0)

    @cached_property
    def spans(self) -> Intervals:
        """The span of each step, in ns from the start of the window."""
        return union(self.begins, self.finishes)

    def busy(self, stream: Stream) -> Intervals:
        """When activities of one kind of stream run."""
        here = self.stream == stream
        return union(self.start[here], self.end[here])

    @property
    def named(self) -> Intervals:
        """When activities of instructions run. To save memory, it is computed at each call."""
        return union(self.start, self.end)

    @cached_property
    def unnamed(self) -> Intervals:
        """When work of no instruction runs, even if something else runs, too."""
        return union(self.other.start_ns, self.other.start_ns + self.other.duration_ns)

    @property
    def gaps(self) -> Gaps:
        """All intervals in which nothing runs. To save memory, they are computed at each call."""
        busy = join(self.named, self.unnamed) if len(self.unnamed) else self.named
        idle = complement(busy, 0.0, self.length)
        span = np.searchsorted(self.spans.start, idle.start, side="right") - 1
        inside = (span >= 0) & (idle.start < self.spans.end[np.maximum(span, 0)])
        after = np.minimum(np.searchsorted(self.start, idle.end), len(self.rows) - 1)
        return Gaps(idle, inside, self.rows[after])

    @cached_property
    def waits(self) -> Gaps:
        """The gaps that are longer than a launch gap, and all gaps outside of spans."""
        gaps = self.gaps
        here = ~gaps.inside | (gaps.times.lengths > LAUNCH_GAP_NS)
        return Gaps(
            Intervals(gaps.times.start[here], gaps.times.end[here]),
            gaps.inside[here],
            gaps.after[here],
        )

    @cached_property
    def _lengths_ns(self) -> dict[str, tuple[float, float]]:
        """By part: its time in the whole window, and its time between spans, in ns."""
        compute = self.busy(Stream.COMPUTE)
        communication = self.busy(Stream.COMMUNICATION)
        copies = self.busy(Stream.COPY)
        gaps = self.gaps
        idle, inside = gaps.times.lengths, gaps.inside
        launch = inside & (idle <= LAUNCH_GAP_NS)
        long = inside & (idle > LONG_GAP_NS)
        waits = inside & ~launch & ~long
        compiling = covered(self.compiling, gaps.times.start, gaps.times.end)
        runs = {
            "compute": compute,
            "exposed_communication": without(communication, compute),
            "exposed_copy": without(copies, join(compute, communication)),
            "other": without(self.unnamed, self.named),
            "communication": communication,
            "copy": copies,
        }
        idle_ns = {
            "idle": idle,
            "launch_gaps": idle * launch,  # inside spans, up to `LAUNCH_GAP_NS`
            "waits": idle * waits,  # inside spans, up to `LONG_GAP_NS`
            "long_waits": idle * long,  # inside spans, longer
            "between_steps": idle * ~inside,
            "compile": compiling,  # gaps in which XLA compiles; also in the others
        }
        lengths = {}
        for name, times in runs.items():
            lengths[name] = (times.length, without(times, self.spans).length)
        for name, ns in idle_ns.items():
            lengths[name] = (float(ns.sum()), float(ns[~inside].sum()))
        lengths["window"] = (self.length, self.length - self.spans.length)
        return lengths

    @property
    def parts_ns(self) -> dict[str, int]:
        """The parts of the whole window. Compute, exposed parts, other work and idle time add up to
        it.
        """
        return {
            f"{name}_ns": round(whole) for name, (whole, _) in self._lengths_ns.items()
        }

    def mean_us(self, part: str) -> float:
        """Microseconds of a part in a mean step. If there is only one step, its pause is unknown
        and left out.
        """
        whole, between = self._lengths_ns[part]
        return ((whole - between) / self.steps + between / max(self.steps - 1, 1)) / 1e3


def device_windows(
    trace: Trace, executions: ModuleExecutions, main: int, stream: npt.NDArray[np.uint8]
) -> tuple[DeviceWindow, ...]:
    """The window of each device that ran the main module.

    Args:
        trace: n activities, ordered by (device, start).
        executions: of the trace. The kept ones of the main module are the steps; if none is kept,
            all of them.
        main: index of the main module.
        stream: uint8[n], values of `Stream`.
    """
    steps = executions.module == main
    if (steps & executions.keep).any():
        steps &= executions.keep
        steps &= _in_a_row(executions, main, steps)
    found = []
    for device in distinct(executions.device[steps]).tolist():
        mine = np.flatnonzero(steps & (executions.device == device))
        mine = mine[np.argsort(executions.start_ns[mine], kind="stable")]
        start = int(executions.start_ns[mine].min())
        end = int(executions.end_ns[mine].max())
        low, high = np.searchsorted(trace.device, [device, device + 1]).tolist()
        first = trace.start_ns[low:high]
        here = (first < end) & (first + trace.duration_ns[low:high] > start)
        rows = np.flatnonzero(here) + low
        compiling = trace.compiling.get(trace.devices[device].process)
        begins = (executions.start_ns[mine] - start).astype(np.float64)
        finishes = (executions.end_ns[mine] - start).astype(np.float64)
        other = _other_within(trace.other, device, start, end)
        window = DeviceWindow(
            device=device,
            steps=len(mine),
            rows=rows.astype(np.int32),
            stream=stream[rows],
            numbers=executions.execution[mine],
            begins=begins,
            finishes=finishes,
            begin_ns=start,
            length=float(end - start),
            trace=trace,
            other=other,
            compiling=_within(compiling, start, end),
        )
        found.append(window)
    return tuple(found)


def _in_a_row(executions: ModuleExecutions, main: int, steps: Flags) -> Flags:
    """bool[executions], True in the longest run of steps without lost records between them. A
    window contains all of its time, so a gap would count.
    """
    lost = [number for module, number in executions.lost if module == main]
    lost.sort()
    part = np.searchsorted(lost, executions.execution)
    numbers = distinct(executions.execution[steps])
    counts = np.bincount(np.searchsorted(lost, numbers))
    return np.asarray(part == counts.argmax())


def _other_within(work: OtherWork, device: int, start: int, end: int) -> OtherWork:
    """The part of the work on one device between two times in ns. Times count from `start`."""
    stop = work.start_ns + work.duration_ns
    is_inside = (work.start_ns < end) & (stop > start)
    here = work.of_rows(np.flatnonzero(is_inside & (work.device == device)))
    first = np.maximum(here.start_ns, start)
    last = np.minimum(here.start_ns + here.duration_ns, end)
    return replace(here, start_ns=first - start, duration_ns=last - first)


def _within(times: Ints | None, start: int, end: int) -> Intervals:
    """The part of some times between `start` and `end`, counted from `start`."""
    if times is None:
        return EMPTY
    clipped = np.clip(times - start, 0, end - start).astype(np.float64)
    return union(clipped[:, 0], clipped[:, 1])


def mean_us(windows: Sequence[DeviceWindow], part: str) -> float:
    """Microseconds of a part of `DeviceWindow.parts_ns` in the mean step of all devices."""
    steps = sum(window.steps for window in windows)
    return sum(window.steps * window.mean_us(part) for window in windows) / steps


def mean_breakdown(windows: Sequence[DeviceWindow]) -> StepBreakdown:
    """The breakdown of one step, mean over steps and devices."""
    us = {
        field.name: mean_us(windows, field.name.removesuffix("_us"))
        for field in fields(StepBreakdown)
        if field.name != "step_us"
    }
    return StepBreakdown(step_us=mean_us(windows, "window"), **us)
