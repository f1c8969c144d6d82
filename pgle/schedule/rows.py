"""Rows of a timeline in the making: activities are added one by one, repeated, or stretched over many iterations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from pgle.schedule.program import Op
from pgle.schedule.timeline import ORIGINS, Loop, Timeline


@dataclass(slots=True)
class Rows:
    """The columns of a `Timeline` so far, times in microseconds from some start, and its tables of names."""

    code: list[int] = field(default_factory=list)
    start: list[float] = field(default_factory=list)
    duration: list[float] = field(default_factory=list)
    count: list[int] = field(default_factory=list)
    cause: list[int] = field(default_factory=list)
    ops: dict[str, tuple[int, Op]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.start)

    def add(self, op: Op, start: float, duration: float, cause: int) -> int:
        """One execution of an op; the number of its row."""
        code, _ = self.ops.setdefault(op.name, (len(self.ops), op))
        self.code.append(code)
        self.start.append(start)
        self.duration.append(duration)
        self.count.append(1)
        self.cause.append(cause)
        return len(self.start) - 1

    def stretch(self, first: int, clock: float, times: int) -> None:
        """Let the rows from `first` on, an iteration that began at `clock`, stand for so many."""
        for row in range(first, len(self)):
            self.start[row] = clock + (self.start[row] - clock) * times
            self.duration[row] *= times
            self.count[row] *= times

    def unfold(self, first: int, period: float, times: int) -> None:
        """Append `times` - 1 copies of the rows from `first` on, `period` apart."""
        more = len(self) - first
        self.start += [
            self.start[row] + again * period for again in range(1, times) for row in range(first, first + more)
        ]
        # What released a row is in the same iteration or in the one before; anything older stays what it is.
        causes = self.cause[first:]
        self.cause += [
            cause + again * more if cause >= first - more else cause for again in range(1, times) for cause in causes
        ]
        for column in (self.code, self.duration, self.count):
            column += column[first:] * (times - 1)

    def timeline(self, loops: Sequence[Loop], module: str) -> Timeline:
        """What has run, with the first activity at time 0."""
        ops = [op for _, op in self.ops.values()]
        code = np.array(self.code, dtype=np.int32)
        start = np.array(self.start, dtype=np.float64)
        first = float(start.min()) if len(start) else 0.0
        duration = np.array(self.duration, dtype=np.float64)
        return Timeline(
            names=tuple(self.ops),
            instruction=code,
            stream=np.array([op.stream for op in ops], dtype=np.uint8)[code],
            sync=np.array([op.is_sync for op in ops], dtype=bool)[code],
            start_us=start - first,
            duration_us=duration,
            count=np.array(self.count, dtype=np.int64),
            cause=np.array(self.cause, dtype=np.int32),
            origin=np.array([ORIGINS.index(op.origin) for op in ops], dtype=np.uint8)[code],
            step_us=float((start + duration).max()) - first if len(start) else 0.0,
            module=module,
            kinds=tuple(op.kind for op in ops),
            lhs_names=tuple(op.lhs_name for op in ops),
            loops=tuple(loop.moved(0.0, 1, -first) for loop in loops),
        )
