"""Timeline: when each instruction of a module runs, as columns, and what can be read off it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum
from functools import cached_property

import numpy as np
import numpy.typing as npt

from pgle.costs.profile.value import Origin
from pgle.trace.intervals import Intervals, complement, covered, join, overlap, union
from pgle.trace.table import distinct

ORIGINS: tuple[Origin, ...] = tuple(Origin)  # `Timeline.origin` indexes this


class Stream(IntEnum):
    """Where an activity runs."""

    COMPUTE = 0
    COMMUNICATION = 1
    COPY = 2


@dataclass(frozen=True, slots=True)
class Loop:
    """One loop of a timeline."""

    name: str  # of the ``while``
    trips: int  # how often the body runs
    # start_us, end_us: of all its iterations
    start_us: float
    end_us: float
    depth: int = 0  # 0 for the outermost
    # folded_start_us, folded_end_us: the part that is drawn once for many iterations
    folded_start_us: float = 0.0
    folded_end_us: float = 0.0
    folded: int = 0  # how many iterations it represents; 0 if every one is drawn

    def moved(self, clock: float, times: int, shift: float = 0.0) -> Loop:
        """The loop with its times stretched away from `clock`, then shifted."""
        all_times = (self.start_us, self.end_us, self.folded_start_us, self.folded_end_us)
        start, end, first, last = (clock + (time - clock) * times + shift for time in all_times)
        return replace(self, start_us=start, end_us=end, folded_start_us=first, folded_end_us=last)


@dataclass(frozen=True, slots=True)
class Breakdown:
    """Where the time of one step goes; the first four add up to `step_us`."""

    compute_us: float  # something computes
    exposed_communication_us: float  # collectives run and nothing computes
    exposed_copy_us: float  # only copies run
    idle_us: float  # nothing runs: launch gaps and waits
    step_us: float  # all of it
    communication_us: float  # collectives run, hidden or not
    copy_us: float  # copies run, hidden or not

    @property
    def overlap(self) -> float:
        """Share of the communication time during which something computes; 1 where there is none."""
        if self.communication_us <= 0:
            return 1.0
        return 1.0 - self.exposed_communication_us / self.communication_us


@dataclass(frozen=True, slots=True)
class Exposure:
    """One collective or copy over the step."""

    name: str  # the instruction
    kind: str  # ``all-gather`` …, ``copy``
    duration_us: float  # all its executions together
    exposed_us: float  # the part of it during which nothing computes
    count: int  # executions
    sync: bool  # it runs on the compute stream, nothing can hide it
    origin: Origin  # where its cost comes from
    lhs_name: str = ""  # its name when LHS ran

    @property
    def filed_as(self) -> str:
        """The name that its cost has in a profile: when LHS ran."""
        return self.lhs_name or self.name


@dataclass(frozen=True)
class Timeline:
    """One step of one module, n activities in the order in which they were issued.

    A loop in its steady state is *folded*: one iteration represents many, its activities stretched over the time that
    all of them take, so that `start_us` and `duration_us` are true on the clock of the step and every sum is exact.
    """

    names: tuple[str, ...]  # instruction names
    instruction: npt.NDArray[np.int32]  # int32[n], index into `names`
    stream: npt.NDArray[np.uint8]  # uint8[n], values of `Stream`
    sync: npt.NDArray[np.bool_]  # bool[n], a collective on the compute stream
    start_us: npt.NDArray[np.float64]  # float64[n], from the start of the step
    duration_us: npt.NDArray[np.float64]  # float64[n], of all `count` executions
    count: npt.NDArray[np.int64]  # int64[n], executions that the row represents
    origin: npt.NDArray[np.uint8]  # uint8[n], index into `ORIGINS`
    step_us: float  # length of the step, from the start of the first activity to the end of the last
    module: str = ""  # name of the module
    loops: tuple[Loop, ...] = ()  # the loops, in order of their start
    # what each of `names` is: ``all-gather``, ``matmul``, else its opcode; empty where unknown
    kinds: tuple[str, ...] = ()
    # what each of `names` was called when LHS ran, by which schedules are compared; empty where unknown
    lhs_names: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()  # instructions that had no cost from anywhere and count as nothing
    warnings: tuple[str, ...] = ()  # what the user should know, one line each
    lower_bound: bool = False  # one iteration is counted of a loop of unknown length: the step takes at least `step_us`

    def __len__(self) -> int:
        return len(self.instruction)

    @property
    def end_us(self) -> npt.NDArray[np.float64]:
        """float64[n], start + duration."""
        return self.start_us + self.duration_us

    def busy(self, stream: Stream) -> Intervals:
        """When anything of one kind runs."""
        rows = self.stream == stream
        return union(self.start_us[rows], self.end_us[rows])

    @cached_property
    def breakdown(self) -> Breakdown:
        """Where the time of the step goes."""
        compute, communication, copy = (self.busy(stream) for stream in Stream)
        return breakdown(compute, communication, copy, self.step_us)

    @cached_property
    def exposures(self) -> tuple[Exposure, ...]:
        """Collectives and copies, the most exposed first."""
        rows = np.flatnonzero(self.stream != Stream.COMPUTE)
        start, duration = self.start_us[rows], self.duration_us[rows]
        hidden = covered(self.busy(Stream.COMPUTE), start, start + duration)
        found = []
        for code in distinct(self.instruction[rows]).tolist():
            of_name = np.flatnonzero(self.instruction[rows] == code)
            total, first = float(duration[of_name].sum()), int(rows[of_name[0]])
            exposed = total - float(hidden[of_name].sum())
            exposed = exposed if exposed > 1e-9 * self.step_us else 0.0  # sums of floats are not exact
            count = int(self.count[rows[of_name]].sum())
            origin = ORIGINS[int(self.origin[first])]
            name, kind = self.names[code], self.kinds[code] if self.kinds else ""
            lhs_name = self.lhs_names[code] if self.lhs_names else name
            found.append(Exposure(name, kind, total, exposed, count, bool(self.sync[first]), origin, lhs_name))
        return tuple(sorted(found, key=lambda item: (-item.exposed_us, -item.duration_us, item.name)))

    @property
    def estimated_share(self) -> float:
        """Share of the activity time whose cost was not measured; a profile without sidecar is taken at its word."""
        total = float(self.duration_us.sum())
        if total <= 0:
            return 0.0
        given = [ORIGINS.index(origin) for origin in (Origin.MEASURED, Origin.UNKNOWN)]
        return float(self.duration_us[~np.isin(self.origin, given)].sum()) / total


def breakdown(compute: Intervals, communication: Intervals, copy: Intervals, step_us: float) -> Breakdown:
    """Where the time of the window [0, step) goes.

    |compute| + exposed communication + exposed copy + idle = step, as in TraceLens (`gpu_event_analyser.py`).
    """
    busy = join(compute, communication)
    everything = join(busy, copy)
    return Breakdown(
        compute_us=compute.length,
        exposed_communication_us=communication.length - overlap(communication, compute),
        exposed_copy_us=copy.length - overlap(copy, busy),
        idle_us=complement(everything, 0.0, step_us).length,
        step_us=step_us,
        communication_us=communication.length,
        copy_us=copy.length,
    )
