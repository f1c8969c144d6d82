"""What each activity of a simulated step waits for, and when activities run if they take other
times.

A simulation knows which wait decided when an activity began. If the activities take other times,
another wait may decide. So pgle keeps all waits, and `Order.starts_us` goes through them again, for
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
"""int64[ranks, m], for each rank the ranks that it meets, itself included; None if ranks do not
meet in an activity.
"""


@dataclass(frozen=True)
class Order:
    """The waits of n activities, in issue order. An activity waits only for earlier ones."""

    # float64[n], from the start of the step to its launch by the host
    issued_us: Floats
    first: Ints  # int64[n + 1], where the waits of an activity begin
    before: Ints  # int64[m], the activity that is waited for
    lag_us: Floats  # float64[m], from the end of `before` to the start

    def starts_us(
        self, durations_us: Floats, begin_us: Floats, peers: Sequence[Peers]
    ) -> tuple[Floats, Floats]:
        """When the activities run if they take other times.

        Args:
            durations_us: float64[n, executions, ranks].
            begin_us: float64[executions, ranks], when a rank begins.
            peers: one for each activity. The activity waits until these ranks have arrived, and
                then lasts for its duration.

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
    """The waits collected so far by a simulation that draws every iteration of a loop."""

    rows: list[tuple[Wait, ...]] = field(default_factory=list)
    # when the host launched each activity, in its own time, without waits for the device
    issued_us: list[float] = field(default_factory=list)
    # for each activity, the host's last wait for the device: an index into `stops`, or -1
    stop: list[int] = field(default_factory=list)
    # rows that the host waited for, and its own time then
    stops: list[tuple[tuple[int, ...], float]] = field(default_factory=list)

    def add(self, waits: Iterable[Wait], issued_us: float) -> None:
        """Add an activity."""
        self.rows.append(tuple(waits))
        self.issued_us.append(issued_us)
        self.stop.append(len(self.stops) - 1)

    def unfold(self, rows: int, stops: int, issued_us: float, times: int) -> None:
        """Repeat an iteration `times` - 1 times.

        Args:
            rows: number of the iteration's first row. Its last row is the last of all rows.
            stops: number of the iteration's first stop.
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
            rows: number of the iteration's first row.
            issued_us: the host's own time when the iteration began.
        """
        for row in range(rows, len(self.rows)):
            waits = self.rows[row]
            self.rows[row] = tuple((before, lag_us * times) for before, lag_us in waits)
            since_us = self.issued_us[row] - issued_us
            self.issued_us[row] = issued_us + since_us * times

    def order(self) -> Order:
        """The order of all activities. What the host waited for, its later activities wait for."""
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
    """A function that adds `by` to numbers of an iteration and of the one before it.

    Args:
        first: the first number of the iteration.
        by: what the function adds.
        reach: how many numbers the iteration before it has. Older numbers stay.
    """

    def moved(number: int) -> int:
        return number + by if number >= first - reach else number

    return moved
