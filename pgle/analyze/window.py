"""What each device did during the steady steps: parts of time that add up to the window, and the gaps between them.

Three lengths, each with one name everywhere. A *span*: one execution on one device, from the start of its first
activity to the end of its last; what a schedule decides, and what XProf calls a step of a GPU. A *step*: from the start
of one span to the start of the next, as a program's own clock measures it. The *window*: from the start of the first
steady span to the end of the last, N spans and the N - 1 pauses between them.

Times are whole nanoseconds since the start of a device's window, as float64: sums are exact up to 2^53 ns, 104 days.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property

import numpy as np
import numpy.typing as npt

from pgle.schedule.timeline import Breakdown, Stream
from pgle.trace.column import distinct
from pgle.trace.intervals import EMPTY, Intervals, complement, covered, join, union, without
from pgle.trace.table import Kind, Trace
from pgle.trace.windows import Executions

LAUNCH_GAP_NS = 20_000
"""Longer gaps are not those between two launches that wait in a queue: the field's limit, see `THRESHOLDS`."""

LONG_GAP_NS = 1_000_000  # from here on the device waits for the host, its input, or another program


@dataclass(frozen=True, slots=True)
class Parts:
    """One device's window in ns; the first four parts add up to it, those from `launch_gaps_ns` to `idle_ns`."""

    compute_ns: int  # something computes
    exposed_communication_ns: int  # collectives run and nothing computes
    exposed_copy_ns: int  # only copies run
    idle_ns: int  # nothing runs
    window_ns: int  # all of it
    # communication_ns, copy_ns: collectives or copies run, hidden or not
    communication_ns: int
    copy_ns: int
    launch_gaps_ns: int  # idle inside steps, in gaps of up to `LAUNCH_GAP_NS`
    waits_ns: int  # idle inside steps, in gaps of up to `LONG_GAP_NS`
    long_waits_ns: int  # idle inside steps, in longer gaps
    between_steps_ns: int  # idle between steps
    compile_ns: int = 0  # of all idle time, that while XLA compiles in the device's process


_FIELDS = tuple(field.name for field in fields(Parts))


@dataclass(frozen=True, eq=False, slots=True)
class Gaps:
    """Times in which a device runs nothing, k rows ordered by start."""

    times: Intervals  # k, ns
    inside: npt.NDArray[np.bool_]  # bool[k], in a step; a step begins and ends with an activity, so no gap is both
    after: npt.NDArray[np.int32]  # int32[k], the row of the trace that ends the gap

    @property
    def length(self) -> npt.NDArray[np.float64]:
        """float64[k], ns."""
        return self.times.lengths


@dataclass(frozen=True)
class DeviceWindow:
    """What one device ran, of all programs, from the start of the first steady step to the end of the last."""

    device: int  # index into the trace's devices
    steps: int  # steady executions of the main module
    rows: npt.NDArray[np.int32]  # int32[m], rows of the trace, ordered by start
    stream: npt.NDArray[np.uint8]  # uint8[m], values of `Stream`
    spans: Intervals  # the steps
    numbers: npt.NDArray[np.int64]  # int64[steps], their executions, in the order of their starts
    # begins, finishes: float64[steps], when each begins and ends
    begins: npt.NDArray[np.float64]
    finishes: npt.NDArray[np.float64]
    begin_ns: int  # when it starts, as the trace counts
    length: float  # of the window
    trace: Trace
    compiling: Intervals = EMPTY  # when XLA compiles in its process

    @property
    def start(self) -> npt.NDArray[np.float64]:
        """float64[m], of the rows, clipped to the window; reckoned anew each time, for memory, as is `end`."""
        return np.asarray(np.maximum(self.trace.start_ns[self.rows] - self.begin_ns, 0), np.float64)

    @property
    def end(self) -> npt.NDArray[np.float64]:
        """float64[m], of the rows, clipped to the window."""
        end = self.trace.start_ns[self.rows] + self.trace.duration_ns[self.rows]
        return np.asarray(np.minimum(end - self.begin_ns, int(self.length)), np.float64)

    def busy(self, stream: Stream) -> Intervals:
        """When activities of a kind run."""
        here = self.stream == stream
        return union(self.start[here], self.end[here])

    @property
    def gaps(self) -> Gaps:
        """Every interval in which nothing runs; reckoned anew each time, for memory."""
        idle = complement(union(self.start, self.end), 0.0, self.length)
        span = np.searchsorted(self.spans.start, idle.start, side="right") - 1
        inside = (span >= 0) & (idle.start < self.spans.end[np.maximum(span, 0)])
        after = np.minimum(np.searchsorted(self.start, idle.end), len(self.rows) - 1)
        return Gaps(idle, inside, self.rows[after])

    @cached_property
    def waits(self) -> Gaps:
        """The gaps that are not those between two launches: the longer ones, and those outside of steps."""
        gaps = self.gaps
        here = ~gaps.inside | (gaps.length > LAUNCH_GAP_NS)
        return Gaps(Intervals(gaps.times.start[here], gaps.times.end[here]), gaps.inside[here], gaps.after[here])

    @cached_property
    def _lengths(self) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        """float64[fields of `Parts`], ns: of the whole window, and of the time between its spans."""
        compute, communication, copies = map(self.busy, (Stream.COMPUTE, Stream.COMMUNICATION, Stream.COPY))
        gaps = self.gaps
        idle, compiling = gaps.length, covered(self.compiling, gaps.times.start, gaps.times.end)
        inside = idle[gaps.inside]
        launch, long = inside <= LAUNCH_GAP_NS, inside > LONG_GAP_NS
        exposed, alone = without(communication, compute), without(copies, join(compute, communication))
        runs = (compute, exposed, alone, communication, copies)
        whole = [times.length for times in runs]
        apart = [without(times, self.spans).length for times in runs]
        between = idle[~gaps.inside].sum()
        waits = (inside[launch].sum(), inside[~launch & ~long].sum(), inside[long].sum())
        return (
            np.array([*whole[:3], idle.sum(), self.length, *whole[3:], *waits, between, compiling.sum()]),
            np.array([*apart[:3], between, self.length - self.spans.length, *apart[3:], 0, 0, 0, between,
                      compiling[~gaps.inside].sum()]),
        )  # fmt: skip

    @property
    def parts(self) -> Parts:
        """The breakdown of the whole window."""
        return Parts(*(round(float(time)) for time in self._lengths[0]))

    def mean_us(self, part: str) -> float:
        """A field of `Parts` in a mean step, in µs: of one step alone the pause after it is not known, and left out."""
        whole, between = (float(times[_FIELDS.index(part)]) for times in self._lengths)
        return ((whole - between) / self.steps + between / max(self.steps - 1, 1)) / 1e3


def device_windows(
    trace: Trace, executions: Executions, main: int, stream: npt.NDArray[np.uint8]
) -> tuple[DeviceWindow, ...]:
    """A window per device that ran the main module.

    Args:
        trace: n activities, ordered by (device, start).
        executions: of the trace; the kept ones of the main module are the steps, all where none is kept.
        main: index of the main module.
        stream: uint8[n], values of `Stream`.
    """
    steps = executions.module == main
    if bool((steps & executions.keep).any()):
        steps &= executions.keep
    found = []
    for device in distinct(executions.device[steps]).tolist():
        mine = np.flatnonzero(steps & (executions.device == device))
        mine = mine[np.argsort(executions.start_ns[mine], kind="stable")]
        start, end = int(executions.start_ns[mine].min()), int(executions.end_ns[mine].max())
        low, high = np.searchsorted(trace.device, [device, device + 1]).tolist()
        first = trace.start_ns[low:high]
        here = np.flatnonzero((first < end) & (first + trace.duration_ns[low:high] > start))
        found.append(
            DeviceWindow(
                device=device,
                steps=len(mine),
                rows=(here + low).astype(np.int32),
                stream=stream[here + low],
                spans=union(executions.start_ns[mine] - start, executions.end_ns[mine] - start),
                numbers=executions.execution[mine],
                begins=(executions.start_ns[mine] - start).astype(np.float64),
                finishes=(executions.end_ns[mine] - start).astype(np.float64),
                begin_ns=start,
                length=float(end - start),
                trace=trace,
                compiling=_within(trace.compiling.get(trace.devices[device].process), start, end),
            )
        )
    return tuple(found)


def _within(times: npt.NDArray[np.int64] | None, start: int, end: int) -> Intervals:
    """The part of some times between two, counted from the first."""
    if times is None:
        return EMPTY
    clipped = np.clip(times - start, 0, end - start).astype(np.float64)
    return union(clipped[:, 0], clipped[:, 1])


def row_streams(
    trace: Trace, main: int, of_main: npt.NDArray[np.uint8], of_others: npt.NDArray[np.uint8]
) -> npt.NDArray[np.uint8]:
    """uint8[len(trace)], values of `Stream`: what a row's instruction is; transfers of anything else are copies.

    Args:
        of_main, of_others: uint8[len(trace.instructions)], what instructions of the main and of other modules are.
    """
    stream = np.where(trace.module == main, of_main[trace.instruction], of_others[trace.instruction]).astype(np.uint8)
    stream[(trace.kind == Kind.MEMCPY) & (stream == Stream.COMPUTE)] = Stream.COPY
    return stream


def mean_us(windows: Sequence[DeviceWindow], part: str) -> float:
    """A field of `Parts` in a mean step of all devices, in µs."""
    steps = sum(window.steps for window in windows)
    return sum(window.steps * window.mean_us(part) for window in windows) / max(steps, 1)


def mean_breakdown(windows: Sequence[DeviceWindow]) -> Breakdown:
    """The parts of one step, mean over steps and devices."""
    return Breakdown(*(mean_us(windows, part) for part in _FIELDS[: len(fields(Breakdown))]))  # in the same order
