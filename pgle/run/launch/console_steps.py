"""Steps of programs that mark none in code: their lines are watched as they come, and timed by print or by arrival."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from pgle.errors import UserError
from pgle.files import write_files
from pgle.steps.collect_console import read_console, step_number

STEP_WORDS = (b"step", b"iter", b"batch", b"epoch")
"""One of these, in small or capital letters, is in every line that names a step or its time."""

MAX_LINES = 1_000_000  # step lines remembered with their times


@dataclass(frozen=True, slots=True)
class StepLine:
    """A line that names a step: its number, and when it came, in seconds since the epoch."""

    step: int
    at: float


class StepLines:
    """Watches the output for lines that name a step, and hands their numbers to the hook.

    Args:
        control: file that the hook reads; made with the first line.
    """

    def __init__(self, control: Path) -> None:
        self._control = control
        self._lines: list[StepLine] = []

    @property
    def lines(self) -> Sequence[StepLine]:
        """Those seen so far."""
        return self._lines

    def __call__(self, line: str) -> None:
        """Look at a line of output."""
        number = step_number(line)
        if number is None or len(self._lines) >= MAX_LINES:
            return
        self._lines.append(StepLine(number, time.time()))
        with self._control.open("a") as file:
            file.write(f"{number}\n")


def console_records(log: Iterable[str], lines: Sequence[StepLine], facts: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Records for a steps file: the times that the program printed, else those between its step lines.

    Args:
        log: its lines; gone through twice.
        lines: its step lines with their times.
        facts: from the hook: when the trace was open, when something was compiled.
    """
    spans = {line.step: (before.at, line.at) for before, line in pairwise(lines)}
    try:
        series = read_console(log, "output")
        times = [(int(step), float(s)) for step, s in zip(series.step, series.step_time_s, strict=True)]
        how = "printed"
    except UserError:
        times = _between(lines)
        how = "between_lines"
    return [
        {"step": step, "step_time_s": round(seconds, 9), how: True, **_marks(spans.get(step), facts)}
        for step, seconds in times
    ]


def write_steps(path: Path, records: Iterable[Mapping[str, Any]]) -> None:
    """Write a steps file."""
    write_files({path: "".join(json.dumps(record) + "\n" for record in records)})


def _between(lines: Sequence[StepLine]) -> list[tuple[int, float]]:
    """Time from line to line, per step where a program names every tenth step only; a number twice is one step."""
    found = []
    for before, line in pairwise(lines):
        if line.step > before.step:
            found.append((line.step, (line.at - before.at) / (line.step - before.step)))
    return [(step, seconds) for step, seconds in found if seconds > 0]


def _marks(span: tuple[float, float] | None, facts: Mapping[str, Any]) -> dict[str, bool]:
    if span is None:
        return {}
    begin, end = span
    marks = {}
    opened, closed = facts.get("window_opened"), facts.get("window_closed")
    if opened is not None and opened < end and (closed is None or closed > begin):
        marks["profiled"] = True
    if any(begin < at <= end for at in facts.get("compiled_at", ())):
        marks["compiled"] = True
    return marks
