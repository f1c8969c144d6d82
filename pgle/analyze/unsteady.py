"""Findings about steps that differ from each other: slow steps, pauses of a host, changes over
time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from statistics import median

from pgle.analyze.analysis import MeasuredStep
from pgle.analyze.findings import ROWS, EvidenceRow, Observation
from pgle.analyze.pauses import HostPause, find_pauses
from pgle.analyze.window import RowGroup
from pgle.errors import in_words, many
from pgle.steps.patterns import PatternKind

_TO_FIND = {
    PatternKind.GROWTH: (
        "find what grows with the steps: lists and caches of the host, the input's length, "
        "falling clocks (nvidia-smi -q -d PERFORMANCE)"
    ),
    PatternKind.LEVEL: (
        "find what changed at that step: clocks (nvidia-smi -q -d PERFORMANCE), another "
        "job on the node, the input, a second compilation"
    ),
    PatternKind.SPAN: (
        "find what ran meanwhile: clocks (nvidia-smi -q -d PERFORMANCE), another job on "
        "the node, a checkpoint that is written in the background"
    ),
    PatternKind.PERIOD: (
        "find what only these steps do: gradient accumulation, logging, input of two sizes"
    ),
}
"""The advice for each kind of change over time."""


_START_LATER = "start the trace later, when steps have settled"
_SETTLES = "steps get shorter by themselves"


def slow_steps(step: MeasuredStep) -> Observation | None:
    """Find steps that are much longer than the others, on all ranks or on one."""
    steps = step.parts.steps
    slow = [item for item in steps if item.is_slow]
    pauses = find_pauses(step.windows)[:ROWS]
    if not slow:
        return _paused(step, pauses)
    usual_us = median([item.step_us for item in steps if not item.is_slow])
    listed = ", ".join(
        f"execution {item.execution} by {in_words(item.step_us - usual_us)}"
        for item in slow[:ROWS]
    )
    us = max(step.parts.slow_us, _pauses_us(step, pauses))
    share = len(slow) / len(steps)
    rows = _rows_of_groups(step.parts.excess(), share, "in each slow step")
    return Observation(
        us,
        f"{len(slow)} of {many(len(steps), 'step')} longer than the others, {listed}: "
        f"{step.percent(us)} of the mean step",
        (*_rows_of_pauses(step, pauses), *rows),
        "look at what happens in those steps: checkpoints, evaluation, garbage collection, "
        "another job on the node",
    )


def _paused(step: MeasuredStep, pauses: Sequence[HostPause]) -> Observation | None:
    """Find hosts that pause in single steps, although no step is slow in the mean over ranks."""
    if not pauses:
        return None
    first = pauses[0]
    return Observation(
        _pauses_us(step, pauses),
        f"the host of {step.rank_name(first.device)} pauses for {in_words(first.us)} in "
        f"execution {first.execution}, {_who_waits(step, first)}",
        _rows_of_pauses(step, pauses),
        "look at this host in those steps: garbage collection, input, logging, another "
        "process on its cores",
    )


def _pauses_us(step: MeasuredStep, pauses: Sequence[HostPause]) -> float:
    """Microseconds of pauses in a mean step of the rank that pauses longest, since the job ends
    with that rank.
    """
    of_rank: dict[int, float] = defaultdict(float)
    for pause in pauses:
        of_rank[pause.device] += pause.us / len(step.parts.steps)
    return max(of_rank.values(), default=0.0)


def _who_waits(step: MeasuredStep, pause: HostPause) -> str:
    """Whether the other ranks wait for a pause, in words."""
    if len(step.windows) < 2:
        return "no other rank is in the trace"
    if pause.paused == len(step.windows):
        return "as all ranks do"
    return "the other ranks wait" if pause.is_waited_for else "no other rank waits"


def _rows_of_pauses(
    step: MeasuredStep, pauses: Sequence[HostPause]
) -> tuple[EvidenceRow, ...]:
    """An evidence row for each pause: the host, the execution, and who waits."""
    rows = []
    for pause in pauses:
        host = f"host of {step.rank_name(pause.device)}"
        note = (
            f"pauses for {in_words(pause.us)} in execution {pause.execution}, "
            f"{_who_waits(step, pause)}"
        )
        rows.append(EvidenceRow(host, pause.us / len(step.parts.steps), note))
    return tuple(rows)


def _rows_of_groups(
    more: Iterable[tuple[RowGroup, str, float]], share: float, where: str
) -> tuple[EvidenceRow, ...]:
    """Evidence rows for the groups that take longer in some steps. Each names the row that grew
    most.

    Args:
        more: group, name and additional microseconds, the largest first.
        share: of all steps, the share of such steps.
        where: the steps, in words.
    """
    groups: dict[RowGroup, list[tuple[str, float]]] = defaultdict(list)
    for group, name, more_us in more:
        groups[group].append((name, more_us))
    rows = []
    for group, found in groups.items():
        most = _most(group, *found[0])
        us = sum(more_us for _, more_us in found)
        note = f"{in_words(us)} more {where}; {most}"
        rows.append(EvidenceRow(str(group), us * share, note))
    rows.sort(key=lambda row: -row.us)
    return tuple(rows[:ROWS])


def _most(group: RowGroup, name: str, most_us: float) -> str:
    """Describe the row that grew most in its group."""
    if group in (RowGroup.LAUNCH, RowGroup.BETWEEN):
        return f"most: {name}"
    if group == RowGroup.HOST:
        return f"most before {name}"
    return f"most: {in_words(most_us)}, {name}"


def changing_steps(step: MeasuredStep) -> Observation | None:
    """Find steps that get longer over time, change level, or alternate."""
    patterns = step.parts.patterns
    if not patterns:
        return None
    numbers = [item.execution for item in step.parts.steps]
    first = patterns[0]
    falls = first.change < 0 and first.kind in (PatternKind.GROWTH, PatternKind.LEVEL)
    rows = _rows_of_groups(
        step.parts.along(first), 1.0, "in the mean step than in the shortest ones"
    )
    return Observation(
        first.lost * step.step_us,
        "; ".join(item.describe(numbers, "execution") for item in patterns),
        rows,
        _START_LATER if falls else _TO_FIND[first.kind],
        unclaimed=_SETTLES if falls else "",
    )
