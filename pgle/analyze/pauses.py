"""Pauses of a host: executions in which a rank runs nothing for much longer than usual, and whether
the other ranks wait.

A rank that waits for another rank runs a collective. So a gap without activities comes from the
rank's own host.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np

from pgle.analyze.window import LONG_GAP_NS, DeviceWindow
from pgle.trace.columns import Floats, median, noise_of

LEAST_PAUSE = 0.01  # share of the usual step; a shorter gap is not a pause
FEWEST_STEPS = 3  # of a rank; fewer do not show which gap is usual


@dataclass(frozen=True, slots=True)
class HostPause:
    """One step in which one rank is idle for much longer than in its usual ones."""

    device: int  # index into the trace's devices
    execution: int  # the pause is in this execution, or after it
    us: float  # idle time in gaps over 20 µs, beyond that of a usual step
    # how much the step of the typical other rank got longer; 0 if there is none
    waits_us: float
    paused: int  # number of ranks that pause in this execution, this one included

    @property
    def is_waited_for(self) -> bool:
        """Whether the other ranks wait: their step gets longer by most of the pause."""
        return self.waits_us > self.us / 2


def find_pauses(windows: Sequence[DeviceWindow]) -> tuple[HostPause, ...]:
    """The pauses of all ranks, the longest first."""
    known = [window for window in windows if window.steps >= FEWEST_STEPS]
    pauses = {window.device: dict(_pauses_us(window)) for window in known}
    longer = {window.device: _longer_us(window) for window in known}
    paused = Counter(chain.from_iterable(pauses.values()))
    found = []
    for device, ours in pauses.items():
        for execution, us in ours.items():
            pause = HostPause(
                device=device,
                execution=execution,
                us=us,
                waits_us=_waits_us(longer, device, execution),
                paused=paused[execution],
            )
            found.append(pause)
    return tuple(sorted(found, key=lambda pause: -pause.us))


def _pauses_us(window: DeviceWindow) -> Iterator[tuple[int, float]]:
    """Execution and microseconds of each pause of one rank."""
    gaps = window.waits.times
    step = window.steps_at(gaps.start)
    idle = np.bincount(step, weights=gaps.lengths, minlength=window.steps)
    above = idle - median(idle)
    noise = noise_of(np.abs(above))
    usual_step = median(_lengths(window))
    least = max(noise, LONG_GAP_NS, LEAST_PAUSE * usual_step)
    for at in np.flatnonzero(above > least).tolist():
        yield int(window.numbers[at]), float(above[at]) / 1e3


def _lengths(window: DeviceWindow) -> Floats:
    """float64[steps], ns from the start of each step to the start of the next; for the last step,
    to its end.
    """
    return np.diff(np.append(window.begins, window.finishes[-1]))


def _longer_us(window: DeviceWindow) -> Mapping[int, float]:
    """How many microseconds each execution is longer than the usual one on this rank."""
    lengths = _lengths(window)
    longer = (lengths - median(lengths)) / 1e3
    return dict(zip(window.numbers.tolist(), longer.tolist(), strict=True))


def _waits_us(
    longer: Mapping[int, Mapping[int, float]], device: int, execution: int
) -> float:
    """How many microseconds an execution is longer than usual on the typical other rank."""
    others = [
        times[execution]
        for other, times in longer.items()
        if other != device and execution in times
    ]
    return max(median(np.array(others)), 0.0) if others else 0.0
