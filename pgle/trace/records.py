"""Which records of a profiler are possible: one rule for all readers, applied before any
measurement.

A stream runs one activity at a time, in launch order. So a record that ends after the start of the
next one on its stream has a wrong timestamp. If many records do, the "stream" is something else,
and nothing is changed: a queue of AMD's profiler, or kernels with programmatic dependent launch,
which overlap by design (CUDA C++ Programming Guide).

A record that is too long is clipped. A record that fits nowhere is left out. Both are counted and
named.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from pgle.errors import many
from pgle.trace.columns import (
    BLOCK_ROWS,
    NO_ROWS,
    Codes,
    Flags,
    Ints,
    changes,
    distinct,
    heads,
    median,
)
from pgle.trace.table import LeftOutReason, OtherWork, Unresolved, joined

# GPU timestamps are not more precise, so a shorter overlap is no fault
TOLERANCE_NS = 1000
# share of a stream's records; if more of them overlap, the stream works like that
COMMON = 0.05
# times the usual duration of an instruction; a shorter record has a plausible duration
LONG = 2.0
FEW = 20  # records; fewer do not show which one is far away
# times the length of its execution; a last record that is further away has a wrong timestamp
FAR = 10.0
# a host may keep a GPU waiting for a millisecond in any execution
LEAST_FAR_NS = 1_000_000
SWEEPS = 8  # passes over a stream, because a mended record can overlap another one


@dataclass(frozen=True, eq=False)
class Records:
    """Records of a profiler on GPUs, n rows ordered by (device, start)."""

    device: Codes  # int[n]
    stream: Codes  # int[n]
    start_ns: Ints  # int64[n]
    duration_ns: Ints  # int64[n], not negative
    # int[n], index into `instructions`; -1 for an activity without instruction
    instruction: Codes
    instructions: Sequence[str]  # instruction names
    # int[n], equal for activities of one execution; None if unknown
    run: Codes | None = None
    # bool[n], whether it is a node of a CUDA graph: branches of a graph may overlap
    in_graph: Flags | None = None


@dataclass(frozen=True, eq=False)
class Mended:
    """Mended records, n rows in the order given. They may no longer be ordered by start."""

    start_ns: Ints  # int64[n]
    duration_ns: Ints  # int64[n]
    # uint8[n], values of `LeftOutReason`: why a record is left out
    reason: npt.NDArray[np.uint8]
    clipped: int  # records that were made shorter
    example: str  # one clipped record in words; empty if there is none

    @property
    def remarks(self) -> list[str]:
        """Return one line about the clipped records; no line if there are none."""
        if not self.clipped:
            return []
        records = many(self.clipped, "GPU record")
        what = f"{records} overlapped the next one on the stream"
        return [f"{what}: clipped; {self.example}"]


def without_time(start: Ints, end: Ints) -> npt.NDArray[np.uint8]:
    """Return uint8[n]: why a record has no time, as `LeftOutReason`; 0 if it has one.

    CUPTI gives 0 for both timestamps if it could not collect them (CUpti_ActivityKernel). Recorders
    subtract the start of the session, so these zeros can become other equal numbers. Every real
    activity of a GPU takes some time.
    """
    reason = np.zeros(len(start), np.uint8)
    if (end > start).all():
        return reason
    reason[end < start] = LeftOutReason.REVERSED
    has_no_end = (end == 0) & (start > 0)
    reason[has_no_end | (end == start)] = LeftOutReason.NO_TIME
    return reason


WITHOUT_TIME = (LeftOutReason.BAD_TIME, LeftOutReason.NO_TIME, LeftOutReason.REVERSED)
_CANNOT_BE = (*WITHOUT_TIME, LeftOutReason.OVERLAP, LeftOutReason.MISPLACED)


@dataclass(frozen=True, eq=False)
class LeftOut:
    """Counts and GPU time of records that belong to no instruction, by reason."""

    counts: Counter[LeftOutReason] = field(default_factory=Counter)
    duration_ns: Counter[LeftOutReason] = field(default_factory=Counter)

    def add(self, reasons: npt.NDArray[np.uint8], duration_ns: Ints) -> None:
        """Count records; records without a time add no duration."""
        for code in distinct(reasons).tolist():
            reason = LeftOutReason(code)
            durations = duration_ns[reasons == code]
            self.counts[reason] += len(durations)
            if reason not in WITHOUT_TIME:
                self.duration_ns[reason] += int(durations.sum())

    def unresolved(self) -> tuple[Unresolved, ...]:
        """Return all counts in the order of the reasons."""
        found = []
        for reason in sorted(self.counts):
            duration_ns = self.duration_ns[reason]
            found.append(Unresolved(reason.word, self.counts[reason], duration_ns))
        return tuple(found)

    @property
    def remarks(self) -> list[str]:
        """Return one line for each reason that makes a record impossible."""
        return [
            f"{many(self.counts[reason], 'GPU record')} {reason.meaning}: left out"
            for reason in _CANNOT_BE
            if self.counts[reason]
        ]


def mend(records: Records) -> Mended | None:
    """Return the mended records; None if all records are possible."""
    streams = _suspects(records)
    far = _far_away(records)
    if not streams and not len(far):
        return None
    mending = _Mending(records)
    mending.reason[far] = LeftOutReason.MISPLACED
    for device, stream in sorted(streams):
        mending.stream(device, stream)
    return mending.result()


LOOK_AHEAD = 1 << 12  # rows per step of the search for the next record of a stream


def _suspects(records: Records) -> set[tuple[int, int]]:
    """Return the streams, as (device, stream), with records that overlap or are out of place."""
    found: set[tuple[int, int]] = set()
    for first in range(0, len(records.start_ns), BLOCK_ROWS):
        rows = slice(first, first + BLOCK_ROWS + LOOK_AHEAD)
        device = records.device[rows]
        stream = records.stream[rows]
        order = _by_stream(device, stream)
        device = device[order]
        stream = stream[order]
        start = records.start_ns[rows][order]
        end = start + records.duration_ns[rows][order]
        # whether the next record runs on the same stream
        same = ~changes(device, stream)[1:]
        wrong = same & (end[:-1] > start[1:] + TOLERANCE_NS)
        if records.run is not None:
            run = records.run[rows][order]
            wrong[1:] |= _is_foreign(run) & same[1:] & same[:-1]
        if wrong.any():
            at = np.flatnonzero(wrong)
            found.update(zip(device[at].tolist(), stream[at].tolist(), strict=True))
    return found


def _by_stream(device: Codes, stream: Codes) -> npt.NDArray[np.intp] | slice:
    """Return the order by (device, stream) of rows ordered by device.

    Return a slice over all rows if they belong to one stream.
    """
    if (stream == stream[:1]).all():
        return slice(None)
    # two-byte numbers are sorted by counting
    by_stream = np.argsort(stream, kind="stable")
    if device[0] == device[-1]:
        return by_stream
    by_device = np.argsort(device[by_stream], kind="stable")
    return by_stream[by_device]


def _is_foreign(run: Codes) -> Flags:
    """Return bool[n - 2]: whether a record lies between two records of one other execution."""
    return np.asarray((run[1:-1] != run[:-2]) & (run[2:] == run[:-2]))


def _far_away(records: Records) -> Ints:
    """Return the first or last records of devices that lie too far from their execution to be
    right.

    The distance is the time in which nothing runs. A first collective may wait seconds for the rank
    that compiles last.
    """
    found: list[int] = []
    if records.run is None:
        return NO_ROWS
    edges = np.append(heads(records.device), len(records.device))
    for low, high in pairwise(edges.tolist()):
        if high - low < FEW:
            continue
        start = records.start_ns[low:high]
        end = start + records.duration_ns[low:high]
        run = records.run[low:high]
        if _is_first_far(start, end, run):
            found.append(low)
        if _is_last_far(start, end, run):
            found.append(high - 1)
    return np.array(found, np.int64)


def _is_first_far(start: Ints, end: Ints, run: Codes) -> bool:
    """Whether the first record of a device ends long before the second one begins, although its
    execution has more records.
    """
    ahead_ns = int(start[1] - end[0])
    others_ns = int(start[-2] - start[1])
    if run[0] < 0 or ahead_ns <= max(others_ns, LEAST_FAR_NS):
        return False
    return bool(np.count_nonzero(run == run[0]) > 1)


def _is_last_far(start: Ints, end: Ints, run: Codes) -> bool:
    """Whether the last record of a device begins long after the rest of its execution."""
    rest = np.flatnonzero(run[:-1] == run[-1])
    if run[-1] < 0 or len(rest) < 2:
        return False
    rest_end = int(end[rest].max())
    extent_ns = rest_end - int(start[rest[0]])
    behind_ns = int(start[-1]) - rest_end
    return behind_ns > max(FAR * extent_ns, LEAST_FAR_NS)


class _Mending:
    """The state of mending: the records as changed so far."""

    def __init__(self, records: Records) -> None:
        self.records = records
        self.start = records.start_ns.astype(np.int64)
        self.end = self.start + records.duration_ns
        self.reason = np.zeros(len(self.start), np.uint8)
        self.clipped: set[int] = set()  # rows of clipped records
        # ns by instruction, 0 if the instruction ran once
        self._usual_of: dict[int, float] = {}

    def result(self) -> Mended | None:
        """Return the mended records; None if none had to be changed."""
        if not self.clipped and not self.reason.any():
            return None
        return Mended(
            start_ns=self.start,
            duration_ns=self.end - self.start,
            reason=self.reason,
            clipped=len(self.clipped),
            example=self._example(),
        )

    def _example(self) -> str:
        """Describe the record that was clipped most."""
        if not self.clipped:
            return ""
        recorded_ns = self.records.duration_ns
        row = max(self.clipped, key=lambda at: int(recorded_ns[at]))
        name = "a record without an instruction"
        code = int(self.records.instruction[row])
        if code >= 0:
            name = self.records.instructions[code]
        was_us = int(recorded_ns[row]) / 1e3
        now_us = int(self.end[row] - self.start[row]) / 1e3
        return f"{name} took {was_us:,.0f} µs, now {now_us:,.0f} µs"

    def stream(self, device: int, stream: int) -> None:
        """Mend one stream, unless so many of its records overlap that the overlap is normal."""
        rows = self._rows(device, stream)
        allowed = max(1.0, COMMON * len(rows))
        self._leave_out_foreign(rows, allowed)
        rows = self._in_order(rows)
        if np.count_nonzero(self._overlapping(rows)) <= allowed:
            for _ in range(SWEEPS):
                if not self._sweep(self._in_order(rows)):
                    break

    def _rows(self, device: int, stream: int) -> Ints:
        """Return the records of a stream by start, without nodes of CUDA graphs."""
        records = self.records
        here = (records.device == device) & (records.stream == stream)
        here &= self.reason == 0
        if records.in_graph is not None:
            here &= ~records.in_graph
        rows = np.flatnonzero(here)
        instruction = records.instruction[rows]
        is_new = changes(self.start[rows], self.end[rows], instruction)
        return rows[is_new]  # a record that was recorded twice counts once

    def _in_order(self, rows: Ints) -> Ints:
        """Return the records that are not left out, by start."""
        left = rows[self.reason[rows] == 0]
        ordered: Ints = left[np.argsort(self.start[left], kind="stable")]
        return ordered

    def _overlapping(self, rows: Ints) -> Flags:
        """Return bool[n - 1]: whether a record ends after the next one begins."""
        next_start = self.start[rows[1:]]
        overlaps: Flags = self.end[rows[:-1]] > next_start + TOLERANCE_NS
        return overlaps

    def _sweep(self, rows: Ints) -> bool:
        """Mend every record that overlaps the next one. Return whether there was one."""
        wrong = np.flatnonzero(self._overlapping(rows)).tolist()
        for at in wrong:
            row, following = rows[at : at + 2]
            if self.reason[row] or self.reason[following]:
                continue
            if self.end[row] > self.start[following]:
                self._mend(rows, at)
        return bool(wrong)

    def _mend(self, rows: Ints, at: int) -> None:
        """Mend a record that overlaps the next one.

        The record with the unusual duration is changed, and moved to where it has room.
        """
        row, following = rows[at : at + 2].tolist()
        if not self._is_likely(row):
            self._clip(row, *self._room(rows, at))
        elif self.end[following] <= self.end[row]:
            self.reason[following] = LeftOutReason.OVERLAP
        elif self._is_likely(following):
            self._clip(row, *self._room(rows, at))
        else:
            self._clip(following, int(self.end[row]), int(self.end[following]))

    def _is_likely(self, row: int) -> bool:
        """Whether a record takes no longer than is plausible for its instruction."""
        usual_ns = self._usual(row)
        if usual_ns is None:
            return False
        return bool(self.end[row] - self.start[row] <= LONG * usual_ns)

    def _room(self, rows: Ints, at: int) -> tuple[int, int]:
        """Return the possible start and end of a record that overlaps the next one.

        It runs from its start to the next record, or from the end of the last record inside it to
        its own end. The room that is closer to the usual duration counts.
        """
        row, following = rows[at : at + 2].tolist()
        start = int(self.start[row])
        end = int(self.end[row])
        usual_ns = self._usual(row)
        front_ns = int(self.start[following]) - start
        if usual_ns is None:
            return start, start + front_ns
        behind = int(np.searchsorted(self.start[rows], end))
        inside = rows[at + 1 : max(behind, at + 2)]
        back_ns = end - int(self.end[inside].max())
        longest_ns = int(usual_ns)
        if back_ns > 0:
            front_is_off = abs(np.log(max(front_ns, 1) / usual_ns))
            back_is_off = abs(np.log(back_ns / usual_ns))
            if back_is_off < front_is_off:
                return end - min(back_ns, longest_ns), end
        return start, start + min(front_ns, longest_ns)

    def _clip(self, row: int, start: int, end: int) -> None:
        """Give a record these times, or leave it out if no time is left."""
        if end <= start:
            self.reason[row] = LeftOutReason.OVERLAP
            return
        self.start[row] = start
        self.end[row] = end
        self.clipped.add(row)

    def _usual(self, row: int) -> float | None:
        """Return the median duration of the instruction's other records, in ns.

        None if the instruction ran once or the record has no instruction.
        """
        code = int(self.records.instruction[row])
        if code < 0:
            return None
        known = self._usual_of.get(code)
        if known is None:
            same = np.flatnonzero(self.records.instruction == code)
            others = self.records.duration_ns[same[same != row]]
            known = median(others) if len(others) else 0.0
            self._usual_of[code] = known
        return known or None

    def _leave_out_foreign(self, rows: Ints, allowed: float) -> None:
        """Leave out misplaced records: each lies inside another execution, away from the rest of
        its own.

        Only records of a plausible duration are left out.
        """
        if self.records.run is None or len(rows) < FEW:
            return
        run = self.records.run[rows]
        foreign = np.flatnonzero(_is_foreign(run)) + 1
        if len(foreign) > allowed:
            return
        for at in foreign.tolist():
            row = int(rows[at])
            has_others = run[at] >= 0 and np.count_nonzero(run == run[at]) > 1
            if has_others and self._is_likely(row):
                self.reason[row] = LeftOutReason.MISPLACED


@dataclass(frozen=True, eq=False)
class Believed:
    """The activities of instructions and the other activities, mended."""

    # the given columns, ordered by (device, start)
    columns: dict[str, npt.NDArray[Any]]
    other: OtherWork
    # counts of left-out records by reason
    left_out: Mapping[LeftOutReason, int] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()  # what was clipped, in words


def believed(
    columns: dict[str, npt.NDArray[Any]],
    other: OtherWork,
    instructions: Sequence[str],
    in_graph: Flags | None = None,
) -> Believed:
    """Mend the records of one recording: activities of instructions and other activities together.

    Args:
        columns: activities of instructions, n rows ordered by (device, start): ``device``,
            ``stream``, ``start_ns``, ``duration_ns``, ``instruction``, ``run`` (as in `Records`),
            and any more.
        other: the other activities. Whole CUDA graphs among them cover several streams and stay
            unchanged.
    """
    count = len(columns["start_ns"])
    loose = np.flatnonzero(other.reason != LeftOutReason.GRAPH_LAUNCH)
    records, place = _records(columns, other.of_rows(loose), instructions, in_graph)
    found = mend(records)
    if found is None:
        return Believed(columns, other)
    start, duration, reason = found.start_ns, found.duration_ns, found.reason
    # from the common order back to instructions' activities first, then the others
    if place is not None:
        back = np.argsort(place)
        start = start[back]
        duration = duration[back]
        reason = reason[back]
    mended = {**columns, "start_ns": start[:count], "duration_ns": duration[:count]}
    kept = np.flatnonzero(reason[:count] == 0)
    kept = kept[np.lexsort((mended["start_ns"][kept], mended["device"][kept]))]
    # whole CUDA graphs stay as they are
    others = replace(
        other, start_ns=other.start_ns.copy(), duration_ns=other.duration_ns.copy()
    )
    others.start_ns[loose] = start[count:]
    others.duration_ns[loose] = duration[count:]
    left = np.ones(len(other), np.bool_)
    left[loose] = reason[count:] == 0
    counts = np.bincount(reason, minlength=len(LeftOutReason)).tolist()
    left_out = {why: counts[why] for why in LeftOutReason if why and counts[why]}
    return Believed(
        columns={name: column[kept] for name, column in mended.items()},
        other=joined([others.of_rows(np.flatnonzero(left))]),
        left_out=left_out,
        remarks=tuple(found.remarks),
    )


def _records(
    columns: Mapping[str, npt.NDArray[Any]],
    other: OtherWork,
    instructions: Sequence[str],
    in_graph: Flags | None,
) -> tuple[Records, Ints | None]:
    """Return both kinds of activities ordered by time, and that order.

    The order is None if there are only activities of instructions.
    """
    names = ("device", "stream", "start_ns", "duration_ns", "instruction", "run")
    own = {name: columns[name] for name in names}
    if not len(other):
        return Records(**own, instructions=instructions, in_graph=in_graph), None
    none = np.full(len(other), -1, np.int32)
    theirs = {**other.columns, "instruction": none, "run": none}
    both = {name: np.concatenate([own[name], theirs[name]]) for name in names}
    order = np.lexsort((both["start_ns"], both["device"]))
    if in_graph is not None:
        is_node = other.reason == LeftOutReason.GRAPH_NODE
        in_graph = np.concatenate([in_graph, is_node])[order]
    ordered = {name: column[order] for name, column in both.items()}
    return Records(**ordered, instructions=instructions, in_graph=in_graph), order
