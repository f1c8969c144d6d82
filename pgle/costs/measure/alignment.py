"""Find execution numbers that mean the same execution on every rank, from the times at which
collectives end.

A collective ends on all ranks of its group at about the same moment, however late each arrived: no
rank can leave before the last one arrives. So if two windows are shifted correctly, all ends differ
by one constant, the difference of the two clocks. In the real 4 × A100 run in testdata/ the ends
then differ from the constant by 2 µs, and with any other shift by 560 µs or more.

If the ends do not decide, wall clocks do, if they are known and agree well within a step. Otherwise
pgle assumes that the windows begin with the same execution.

Each device of a trace is a window. Windows are placed one after the other. Each is compared with
the placed window that has the most collectives in common with it.
"""

from __future__ import annotations

import zlib
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum

import numpy as np

from pgle.costs.profile.lookup import Naming, group_of_device
from pgle.costs.profile.value import Cost, CostKind
from pgle.trace.columns import EARLIEST, LATEST, Flags, Floats, Ints, distinct, median
from pgle.trace.table import Trace
from pgle.xla.collective_kinds import ends_together

MAX_EXECUTIONS = 128  # most executions of each rank to compare
MAX_NAMES = 16  # most collectives to compare

MAX_SAMPLED = 32  # most executions to compare for one shift
MIN_POINTS = 4  # fewer ends can differ by one constant by chance

MAX_SPREAD_NS = 1_000_000.0
"""Ends of one collective that are further apart belong to different executions. Ends of the same
execution differ by a few µs.
"""

# Up to this spread, ends are consistent with windows that begin with the same execution.
UNSUSPICIOUS_NS = 100_000.0
# smaller spreads count as equal, because timestamps are not more precise
RESOLUTION_NS = 1000.0

CLEARLY = 4.0
"""A shift fits if every other one is worse by this factor. The factor grows to twice that if few
executions are common.
"""

# Clocks identify executions if they agree within this share of the time from one to the next.
CLOCK_SHARE = 0.25


class MatchedBy(IntEnum):
    """The evidence by which executions are matched, the best first."""

    CLOCK = 0  # devices of one process or of one recording share a clock
    ENDS = 1  # the times at which collectives end
    WALL_CLOCKS = 2
    ORDER = 3  # assumed to begin with the same execution, which the ends allow
    NONE = 4  # assumed to begin with the same execution, without evidence
    # assumed to begin with the same execution, although wall clocks say that no execution is common
    APART = 5


def match(
    one: Floats, other: Floats, ahead_ns: float | None = None, same_clock: bool = False
) -> tuple[int, MatchedBy]:
    """Find the execution of one device that is the same as the first of another device.

    Args:
        one, other: float64[executions, collectives], ns, when each collective ended; NaN if it did
        not run.
        ahead_ns: what to add to the times of `one` to get the other's clock; None if unknown.
        same_clock: `ahead_ns` is exact.

    Returns:
        What to add to the execution numbers of `other`, and the evidence.
    """
    if not one.shape[1]:
        # They do not communicate, so no time of theirs is compared.
        return 0, MatchedBy.ORDER
    one = _recorded(one)
    other = _recorded(other)
    ways = _ways(one, other)
    if not ways:
        return 0, MatchedBy.NONE
    if same_clock and ahead_ns is not None:
        return _by_one_clock(ways, ahead_ns, len(one) == len(other))
    period = _period(one, other)
    chosen = _clearest(ways)
    if chosen is not None and _believable(chosen, ways, ahead_ns, period):
        return chosen.shift, MatchedBy.ENDS
    if ahead_ns is not None and period > 0:
        nearest = min(ways, key=lambda way: abs(way.offset_ns - ahead_ns))
        off_ns = abs(nearest.offset_ns - ahead_ns)
        if max(off_ns, nearest.spread_ns) <= CLOCK_SHARE * period:
            return nearest.shift, MatchedBy.WALL_CLOCKS
        return 0, MatchedBy.APART if off_ns > period else MatchedBy.NONE
    if len(one) != len(other):
        return 0, MatchedBy.NONE
    unshifted = ways[0]
    least_ns = unshifted.spread_ns
    for way in ways:
        if way.points >= MIN_POINTS:
            least_ns = min(least_ns, way.spread_ns)
    if unshifted.spread_ns <= min(CLEARLY * least_ns, UNSUSPICIOUS_NS):
        return 0, MatchedBy.ORDER
    return 0, MatchedBy.NONE


def _by_one_clock(
    ways: Sequence[Way], ahead_ns: float, as_many: bool
) -> tuple[int, MatchedBy]:
    """Return the shift with the smallest difference of ends on one clock. Windows are shifted only
    if the ends then coincide.
    """

    def off_ns(way: Way) -> float:
        return max(abs(way.offset_ns - ahead_ns), way.spread_ns)

    nearest = min(ways, key=off_ns)
    if nearest.shift == 0 or off_ns(nearest) <= MAX_SPREAD_NS:
        return nearest.shift, MatchedBy.CLOCK
    return 0, MatchedBy.ORDER if as_many else MatchedBy.NONE


def _clearest(ways: Sequence[Way]) -> Way | None:
    """Return the shift that fits clearly better than all others; None if there is none.

    The fewer executions are compared, the better they fit by chance. Within a step ends repeat to
    some 10 µs, from step to step to some 100 µs. So shifts with many common executions are compared
    first, shifts with one last.
    """
    long = [way for way in ways if way.points >= MIN_POINTS]
    if len(long) < 2:
        return None
    longest = max(way.common for way in long)
    for enough in (max(longest / 2, 2), 2, 1):
        among = [way for way in long if way.common >= enough]
        best = _clearly_least(among)
        if best is None:
            continue
        fewer = [way.spread_ns for way in long if way.common < enough]
        factor = CLEARLY if len(among) > 1 else 1
        if best.spread_ns <= factor * min(fewer, default=np.inf):
            return best
    return None


def _clearly_least(ways: Sequence[Way]) -> Way | None:
    """Return the shift with the least spread; None if it is large, or not clearly the least."""
    ordered = sorted(ways, key=lambda way: way.spread_ns)
    if not ordered:
        return None
    best, *others = ordered
    if best.spread_ns > MAX_SPREAD_NS:
        return None
    # among two or three executions some pair fits by chance
    factor = CLEARLY * (1 + 1 / max(best.common - 1, 1))
    if others and best.spread_ns * factor > others[0].spread_ns:
        return None
    return best


def _believable(
    way: Way, ways: Sequence[Way], ahead_ns: float | None, period_ns: float
) -> bool:
    """Whether a shift that fits is right: clocks agree with it, or it fits so much better than
    others that clocks do not count.
    """
    if ahead_ns is not None and abs(way.offset_ns - ahead_ns) <= period_ns / 2:
        return True
    if way.common == 1:
        return False  # single executions resemble each other
    if ahead_ns is None:
        return True
    rivals = [
        other.spread_ns for other in ways if other is not way and other.common > 1
    ]
    return way.spread_ns * CLEARLY**2 <= min(rivals, default=0)


@dataclass(frozen=True, slots=True)
class Way:
    """One shift of two windows, and how well it fits."""

    shift: int  # what to add to the second window's execution numbers
    offset_ns: float  # median of the second window's ends minus the first's
    # median distance of these differences from `offset_ns`, at least `RESOLUTION_NS`
    spread_ns: float
    points: int  # number of differences
    common: int  # number of executions compared


def _ways(one: Floats, other: Floats) -> list[Way]:
    """Return all shifts for which two windows have an execution in common, the smallest first."""
    if not len(one) or not len(other):
        return []
    shifts = sorted(range(1 - len(other), len(one)), key=lambda by: (abs(by), by))
    shift = np.array(shifts, np.int64)
    at, is_common = _common_executions(shift, len(one), len(other))
    apart = other[at - shift[:, None]] - one[at]
    apart[~is_common] = np.nan
    common = np.isfinite(apart).any(axis=2).sum(axis=1)
    apart = apart.reshape(len(shift), -1)
    points = np.isfinite(apart).sum(axis=1)
    offset = _medians(apart, points)
    spread = _medians(np.abs(apart - offset[:, None]), points)
    spread = np.maximum(spread, RESOLUTION_NS)
    columns = (column.tolist() for column in (shift, offset, spread, points, common))
    ways = (Way(*row) for row in zip(*columns, strict=True))
    return [way for way in ways if way.points]


def _common_executions(shift: Ints, one: int, other: int) -> tuple[Ints, Flags]:
    """Return the executions to compare for each shift of two windows, at most `MAX_SAMPLED`.

    Args:
        shift: int64[n], the shifts.
        one, other: how many executions the windows have.

    Returns:
        int64[n, k] numbers of the first window's executions, spaced evenly if not all are
        compared; then bool[n, k], False where a shift has fewer in common.
    """
    low = np.maximum(0, shift)[:, None]
    last = np.minimum(one, other + shift)[:, None] - 1
    place = np.arange(min(MAX_SAMPLED, one, other))
    spaced = np.linspace(low[:, 0], last[:, 0], MAX_SAMPLED, axis=1).astype(np.int64)
    consecutive = np.minimum(low + place, last)
    is_long = last - low >= MAX_SAMPLED
    at = np.where(is_long, spaced[:, : len(place)], consecutive)
    return at, low + place <= last


def _medians(values: Floats, known: Ints) -> Floats:
    """Return the median of the finite values of each row; NaN if there are none.

    Args:
        known: the number of finite values in each row.
    """
    ordered = np.sort(values, axis=1)  # NaN come last
    rows = np.arange(len(values))
    last = np.maximum(known, 1)
    medians: Floats = (ordered[rows, (last - 1) // 2] + ordered[rows, last // 2]) / 2
    return medians


def _recorded(ends: Floats) -> Floats:
    """Drop the executions after the last one in which something ran."""
    ran = np.flatnonzero(np.isfinite(ends).any(axis=1))
    return ends[: int(ran.max(initial=-1)) + 1]


def _period(*windows: Floats) -> float:
    """Return the typical time in ns from one execution to the next; 0 if no device has two."""
    gaps = np.concatenate([np.diff(ends, axis=0).ravel() for ends in windows])
    gaps = gaps[np.isfinite(gaps)]
    return median(gaps) if len(gaps) else 0.0


Column = tuple[str, int]  # a collective and its replica group

_MATCHED_BY = {
    MatchedBy.CLOCK: "matched by their clock",
    MatchedBy.ENDS: "matched by when their collectives end",
    MatchedBy.WALL_CLOCKS: "matched by their wall clocks",
}


@dataclass(frozen=True, eq=False)
class CollectiveEnds:
    """The times at which collectives ended on one device."""

    label: str  # the name in messages
    columns: tuple[Column, ...]  # the collectives that ran, with their replica groups
    ns: Floats  # float64[executions, columns], NaN if one did not run
    clock: Hashable = None  # windows with equal values share a clock
    # the wall clock in ns since 1970 at time 0 of `ns`; None if unknown
    utc_ns: int | None = None
    first_ns: int = 0  # the trace's time in ns at time 0 of `ns`

    def shared(self, other: CollectiveEnds) -> list[Column]:
        """Return the columns that both windows have."""
        known = set(other.columns)
        return [column for column in self.columns if column in known]

    def of(self, columns: Sequence[Column]) -> Floats:
        """Return float64[executions, len(columns)]: when these collectives ended, in ns.

        All must be among `columns` of this window.
        """
        place = {column: number for number, column in enumerate(self.columns)}
        return self.ns[:, [place[column] for column in columns]]

    def executions(self) -> Ints:
        """Return the numbers of the executions in which a collective ended."""
        return np.flatnonzero(np.isfinite(self.ns).any(axis=1))


@dataclass(frozen=True)
class Alignment:
    """The shifts of several windows, and the evidence for them."""

    shift: tuple[int, ...] = ()  # what to add to the execution numbers of each window
    evidence: MatchedBy = MatchedBy.CLOCK  # the weakest evidence for any window
    apart: int = 0  # executions from the first window's beginning to the last window's
    # label of a window with the weakest evidence, if that is `NONE` or `APART`; else empty
    unclear: str = ""
    whole: int = 0  # number of executions that every window has
    # each window except the first, with the window that it was compared with
    placed: tuple[tuple[int, int], ...] = ()

    def describe(self, fewest: int, most: int) -> str:
        """Return clauses on how the recorded executions of ranks differ; empty if they do not.

        Args:
            fewest: executions on the device with the fewest.
            most: executions on the device with the most.
        """
        found = []
        if fewest < most:
            found.append(f"ranks recorded {fewest} to {most} executions")
        if self.apart:
            subject = "" if found else "ranks "
            found.append(f"{subject}begin up to {self.apart} apart")
        if self.evidence is MatchedBy.APART:
            found.append(
                f"wall clocks show that {self.unclear} recorded other executions, so collectives "
                "include waiting"
            )
            return ", ".join(found)
        if self.unclear:
            found.append(f"cannot tell which execution {self.unclear} started with")
        if not found:
            return ""
        found.append(
            _MATCHED_BY.get(self.evidence, "assumed to begin with the same one")
        )
        if not self.whole:
            found.append("none was recorded by all, so collectives include waiting")
        return ", ".join(found)


def align(windows: Sequence[CollectiveEnds]) -> Alignment:
    """Find the shifts of the windows of one program."""
    if len(windows) < 2:
        return Alignment(shift=(0,) * len(windows))
    shift = np.zeros(len(windows), np.int64)
    placed = list(_nearest_first(windows))
    weakest, unclear = MatchedBy.CLOCK, ""
    for number, partner in placed:
        by, evidence = _match(windows[partner], windows[number])
        shift[number] = shift[partner] + by
        if evidence >= MatchedBy.NONE and evidence > weakest:
            unclear = windows[number].label
        weakest = max(weakest, evidence)
    shift -= shift.min()
    moves = shift.tolist()
    recorded = [
        window.executions() + by for window, by in zip(windows, moves, strict=True)
    ]
    times_recorded = np.bincount(np.concatenate(recorded))
    whole = int(np.count_nonzero(times_recorded == len(windows)))
    return Alignment(
        shift=tuple(moves),
        evidence=weakest,
        apart=max(moves),
        unclear=unclear,
        whole=whole,
        placed=tuple(placed),
    )


def clocks_ahead_ns(windows: Sequence[CollectiveEnds], found: Alignment) -> Floats:
    """Return how far each window's clock is ahead of the first window's, in ns.

    The difference is 0 for windows of one clock. For others it is the median difference of ends
    within an execution, because clocks drift. An execution with few ends takes the median over all
    executions.

    Returns:
        float64[executions, windows], by the number of the execution; NaN if unknown.
    """
    lengths = [len(one.ns) + by for one, by in zip(windows, found.shift, strict=True)]
    ahead = np.zeros((max(lengths, default=0), len(windows)))
    for number, partner in found.placed:
        one, other = windows[partner], windows[number]
        ahead[:, number] = ahead[:, partner]
        if one.clock == other.clock:
            continue
        columns = one.shared(other)
        mine = _numbered(one.of(columns), found.shift[partner], len(ahead))
        theirs = _numbered(other.of(columns), found.shift[number], len(ahead))
        apart = _apart_ns(theirs - mine) + other.first_ns - one.first_ns
        ahead[:, number] += apart
    return ahead


def _numbered(ends: Floats, first: int, count: int) -> Floats:
    """Return float64[count, columns]: the ends of a window by execution number; NaN without an
    end.
    """
    table = np.full((count, ends.shape[1]), np.nan)
    table[first : first + len(ends)] = ends
    return table


def _apart_ns(ends: Floats) -> Floats:
    """Return float64[executions]: the median difference of ends; NaN if none is known."""
    known = np.isfinite(ends).sum(axis=1)
    every = ends[np.isfinite(ends)]
    if not len(every):
        return np.full(len(ends), np.nan)
    return np.where(known >= MIN_POINTS, _medians(ends, known), median(every))


def _nearest_first(windows: Sequence[CollectiveEnds]) -> Iterator[tuple[int, int]]:
    """Yield each window except the first with its closest earlier window, the closest pair first.

    Windows are closer if they have more collectives in common. Windows of one clock come before all
    others.
    """
    members: dict[Column, list[int]] = {}
    of_clock: dict[Hashable, list[int]] = {}
    for number, window in enumerate(windows):
        of_clock.setdefault(window.clock, []).append(number)
        for column in window.columns:
            members.setdefault(column, []).append(number)
    arrays = {column: np.array(numbers) for column, numbers in members.items()}
    closest = np.full(len(windows), -1)
    partner = np.zeros(len(windows), np.int64)
    waiting = np.ones(len(windows), np.bool_)
    placed = 0
    while True:
        waiting[placed] = False
        window = windows[placed]
        sharing = np.concatenate([arrays[column] for column in window.columns])
        common = np.bincount(sharing, minlength=len(windows))
        common[of_clock[window.clock]] += len(members) + 1
        nearer = common > closest
        closest[nearer] = common[nearer]
        partner[nearer] = placed
        if not waiting.any():
            return
        placed = int(np.where(waiting, closest, -2).argmax())
        yield placed, int(partner[placed])


def _match(one: CollectiveEnds, other: CollectiveEnds) -> tuple[int, MatchedBy]:
    """Return what to add to the execution numbers of `other`, and the evidence."""
    columns = one.shared(other)
    same_clock = one.clock == other.clock
    ahead_ns = 0.0 if same_clock else None
    if one.utc_ns is not None and other.utc_ns is not None:
        ahead_ns = float(one.utc_ns - other.utc_ns)
    return match(one.of(columns), other.of(columns), ahead_ns, same_clock)


@dataclass(frozen=True, eq=False)
class AlignedProgram:
    """The alignment of the devices that ran one program."""

    alignment: Alignment  # the alignment of these devices
    # int64[devices of the trace], what to add to a device's execution numbers
    shift: Ints
    windows: tuple[CollectiveEnds, ...]  # when the collectives of each device ended
    # float64[executions, devices of the trace], how far each clock is ahead of the first window's
    # in ns, by the renumbered execution; NaN if unknown
    ahead_ns: Floats


def align_program(trace: Trace, module: int, naming: Naming) -> AlignedProgram:
    """Align the devices that ran the program of one module index."""
    shift = np.zeros(len(trace.devices), np.int64)
    compared = _compared(naming.filed)
    windows = _windows(trace, module, naming, compared) if compared else {}
    ordered = tuple(windows.values())
    found = align(ordered)
    shift[list(windows)] = found.shift
    known = clocks_ahead_ns(ordered, found)
    ahead = np.full((len(known), len(trace.devices)), np.nan)
    ahead[:, list(windows)] = known
    return AlignedProgram(found, shift, ordered, ahead)


def renumbered(
    trace: Trace, modules: Sequence[int], aligned: Sequence[AlignedProgram]
) -> Trace:
    """Renumber the executions of some modules, so that a number means the same execution on every
    device.
    """
    move = np.zeros((len(trace.modules), len(trace.devices)), np.int32)
    for module, found in zip(modules, aligned, strict=True):
        move[module] = found.shift
    if not move.any():
        return trace
    by = move[trace.module, trace.device]
    by[trace.execution < 0] = 0
    return replace(trace, execution=trace.execution + by)


def _compared(filed: Sequence[Cost]) -> list[int]:
    """Return the collectives to compare, as indices into `filed`.

    They end together on all ranks. If a program has none of these, all its collectives are taken.
    """
    every = []
    together = []
    for number, item in enumerate(filed):
        if item.kind == CostKind.COLLECTIVE:
            every.append(number)
            if ends_together(item.opcode or item.name):
                together.append(number)

    def digest(number: int) -> int:
        """Return a number of a collective's name that every rank computes alike."""
        return zlib.crc32(filed[number].name.encode())

    # Chosen by name alone, so that every rank chooses the same ones, although ranks are reduced
    # separately and one may lack a name.
    return sorted(together or every, key=digest)[:MAX_NAMES]


def _windows(
    trace: Trace, module: int, naming: Naming, names: Sequence[int]
) -> dict[int, CollectiveEnds]:
    """Return when these collectives ended, by device, in ns since the first of these ends in its
    process.

    In a loop, the last end counts.
    """
    last = _last_ends(trace, module, naming, names)
    base: dict[str, int] = {}  # the first end in each process
    for device, ends in last.items():
        first = int(ends.min(where=ends > EARLIEST, initial=LATEST))
        process = trace.devices[device].process
        base[process] = min(first, base.get(process, first))
    group = group_of_device(naming, trace.devices)
    windows = {}
    for device, ends in last.items():
        ran = np.flatnonzero((ends > EARLIEST).any(axis=0))
        ends = ends[:, ran]
        process = trace.devices[device].process
        first = base[process]
        filed = [names[number] for number in ran.tolist()]
        columns = [(naming.filed[at].name, int(group[at, device])) for at in filed]
        # devices of one process share a clock, and so do devices of one recording
        clock: Hashable = process
        first_utc_ns = None
        recording = trace.recordings.get(process)
        if recording is not None and recording.utc_ns is not None:
            clock = recording.utc_ns
            first_utc_ns = recording.utc_ns + first
        windows[device] = CollectiveEnds(
            label=process,
            columns=tuple(columns),
            # doubles represent whole ns exactly for 100 days
            ns=np.where(ends > EARLIEST, ends - first, np.nan),
            clock=clock,
            utc_ns=first_utc_ns,
            first_ns=first,
        )
    return windows


def _last_ends(
    trace: Trace, module: int, naming: Naming, names: Sequence[int]
) -> dict[int, Ints]:
    """Return when collectives ended, by device, in ns on the trace's clock.

    Args:
        names: m collectives, as indices into `Naming.filed`.

    Returns:
        int64[executions, m], the last end in each execution; `EARLIEST` if one did not run.
            Devices that ran none of them are missing.
    """
    code = np.full(len(trace.instructions), -1, np.int64)
    for number, name in enumerate(names):
        code[naming.target == name] = number
    rows = np.flatnonzero((code >= 0)[trace.instruction])
    rows = rows[trace.module[rows] == module]
    execution = trace.execution[rows]
    rows = rows[(execution >= 0) & (execution < MAX_EXECUTIONS)]
    device = trace.device[rows]
    execution = trace.execution[rows]
    collective = code[trace.instruction[rows]]
    end = trace.start_ns[rows] + trace.duration_ns[rows]
    executions = int(execution.max(initial=-1)) + 1
    last = np.full((len(trace.devices), executions, len(names)), EARLIEST)
    np.maximum.at(last, (device, execution, collective), end)
    return {at: last[at] for at in distinct(device).tolist()}


def rank_ids(trace: Trace, devices: Sequence[int]) -> tuple[int, ...]:
    """Return JAX's global ids of some devices, each once and in order; empty if one is unknown."""
    ids = [trace.devices[device].global_id for device in devices]
    known = {item for item in ids if item is not None}
    return () if None in ids else tuple(sorted(known))
