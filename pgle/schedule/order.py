"""What each activity of a simulated step waits for, and when all of them run if they take other
times.

A simulation knows which wait decided when an activity began. If the activities take other times,
another wait may decide. So all waits are kept, and `Order.starts_us` goes through them again, for
many executions on many ranks at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from pgle.trace.columns import Floats, Ints

Wait: TypeAlias = tuple[int, float]  # row of an activity, and microseconds from its end
Peers: TypeAlias = Ints | None
"""int64[ranks, m], of each rank the ranks that it meets, itself among them; None if it meets none.
"""


@dataclass(frozen=True)
class Order:
    """The waits of n activities in the order in which they were issued; an activity waits for
    earlier ones only.
    """

    # float64[n], from the start of the step to its launch by the host
    issued_us: Floats
    first: Ints  # int64[n + 1], where the waits of an activity begin
    before: Ints  # int64[m], the activity that is waited for
    lag_us: Floats  # float64[m], from the end of `before` to the start

    def starts_us(
        self, durations_us: Floats, begin_us: Floats, peers: Sequence[Peers]
    ) -> tuple[Floats, Floats]:
        """When activities run that take other times.

        Args:
            durations_us: float64[n, executions, ranks].
            begin_us: float64[executions, ranks], when a rank begins.
            peers: of each activity. It lasts until these ranks have arrived, and then for its
                duration.

        Returns:
            Starts and ends, float64[n, executions, ranks] each.
        """
        start = begin_us + self.issued_us[:, None, None]
        end = np.empty_like(durations_us)
        edges = self.first.tolist()
        before = self.before.tolist()
        lag_us = self.lag_us.tolist()
        for row, own in enumerate(start):
            for wait in range(edges[row], edges[row + 1]):
                np.maximum(own, end[before[wait]] + lag_us[wait], out=own)
            # when the last of each rank's peers arrives
            met = own if peers[row] is None else own[:, peers[row]].max(axis=2)
            np.add(met, durations_us[row], out=end[row])
        return start, end


@dataclass(slots=True)
class Waits:
    """The waits of the activities so far, of a simulation that draws every iteration of a loop."""

    rows: list[tuple[Wait, ...]] = field(default_factory=list)
    # when the host launched each, in microseconds of its own time, without waits for the device
    issued_us: list[float] = field(default_factory=list)
    # of each, the last time the host waited for the device before, an index into `stops`
    stop: list[int] = field(default_factory=list)
    # what the host waited for, and its own time then
    stops: list[tuple[tuple[int, ...], float]] = field(default_factory=list)

    def add(self, waits: Iterable[Wait], issued_us: float) -> None:
        """One more activity."""
        self.rows.append(tuple(waits))
        self.issued_us.append(issued_us)
        self.stop.append(len(self.stops) - 1)

    def unfold(self, rows: int, stops: int, issued_us: float, times: int) -> None:
        """Repeat an iteration `times` - 1 times.

        Args:
            rows: number of its first row; the last row is its last, too.
            stops: number of its first stop.
            issued_us: the host's own time for one iteration.
        """
        iteration = slice(rows, len(self.rows))
        waits = self.rows[iteration]
        issued = self.issued_us[iteration]
        stop = self.stop[iteration]
        new_stops = self.stops[stops:]
        for again in range(1, times):
            moved = mover(rows, again * len(waits), reach=len(waits))
            moved_stop = mover(stops, again * len(new_stops), reach=1)
            later_us = again * issued_us
            self.rows += [
                tuple((moved(before), lag_us) for before, lag_us in of_row)
                for of_row in waits
            ]
            self.issued_us += [time_us + later_us for time_us in issued]
            self.stop += map(moved_stop, stop)
            self.stops += [
                (tuple(map(moved, at)), time_us + later_us) for at, time_us in new_stops
            ]

    def stretch(self, rows: int, issued_us: float, times: int) -> None:
        """Make the last iteration represent `times` iterations.

        Args:
            rows: number of its first row.
            issued_us: the host's own time when the iteration began.
        """
        for row in range(rows, len(self.rows)):
            waits = self.rows[row]
            self.rows[row] = tuple((before, lag_us * times) for before, lag_us in waits)
            since_us = self.issued_us[row] - issued_us
            self.issued_us[row] = issued_us + since_us * times

    def order(self) -> Order:
        """All of them. The wait of the host becomes one of each activity that it launches later."""
        counts = np.zeros(len(self.rows) + 1, np.int64)
        waits: list[Wait] = []
        for row, own in enumerate(self.rows):
            waits += own
            if self.stop[row] >= 0:
                at, time_us = self.stops[self.stop[row]]
                lag_us = self.issued_us[row] - time_us
                waits += [(before, lag_us) for before in at]
            counts[row + 1] = len(waits)
        issued_us = np.array(self.issued_us, np.float64)
        waits_for_nothing = np.diff(counts) == 0
        first_us = issued_us.min(initial=np.inf, where=waits_for_nothing)
        return Order(
            issued_us=issued_us - first_us,
            first=counts,
            before=np.array([before for before, _ in waits], np.int64),
            lag_us=np.array([lag_us for _, lag_us in waits], np.float64),
        )


def mover(first: int, by: int, *, reach: int) -> Callable[[int], int]:
    """A function that moves numbers from an iteration, and from the one before it, to a later one.

    Args:
        first: the first number of the iteration.
        reach: how many numbers the iteration before it has. Older numbers stay.
    """

    def moved(number: int) -> int:
        return number + by if number >= first - reach else number

    return moved
