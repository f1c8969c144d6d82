"""The page of several schedules of one program: what `pgle rehearse` and `pgle tune` show of theirs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pgle.report.page.html import OPEN
from pgle.report.page.parts import Cell, Moving, Page, Prose, Section, Table, next_steps
from pgle.report.text import duration
from pgle.report.timeline.scene import Panel, panel_of
from pgle.schedule.timeline import Exposure, Timeline
from pgle.xla.hlo.module import Module

PREDICTED = "Times are predictions of pgle's schedule simulator; how far to trust them: docs/rehearse.md."


@dataclass(frozen=True)
class Schedule:
    """One of the schedules."""

    label: str  # ``LHS, no profile``
    timeline: Timeline  # its step
    costs_are: str  # ``measured``, ``estimated`` or ``mixed``
    module: Module | None = None  # that was scheduled; None where it is not at hand
    reasons: Mapping[str, str] | None = None  # by name when LHS ran, why a collective stays exposed

    @property
    def panel(self) -> Panel:
        """This schedule as part of a timeline."""
        return panel_of(self.label, self.timeline, self.costs_are, self.module)


def schedules_page(
    schedules: Sequence[Schedule],
    *,
    title: str,
    verdict: str,
    lead: Sequence[str] = (),
    next_step: str = "",
    about: Sequence[tuple[str, str]] = (),
    more: Sequence[Section] = (),
) -> Page:
    """The schedules on one time axis, where their time goes, and their collectives side by side.

    Args:
        schedules: the first is what the others are compared with.
    """
    warnings = dict.fromkeys(line for item in schedules for line in item.timeline.warnings)
    collectives = _collectives(schedules)
    sections = [
        Section("", (Moving.of([item.panel for item in schedules]), Prose(PREDICTED, tone="soft"))),
        Section("Where the time goes", (_parts(schedules),)),
    ]
    if collectives.rows:
        sections.append(Section("Collectives and copies, the most exposed first", (collectives,)))
    return Page(
        title=title,
        verdict=verdict,
        lead=tuple(lead),
        sections=(*sections, *more),
        next=next_steps(next_step),
        about=(*about, ("trace", OPEN)),
        warnings=tuple(warnings),
    )


def _parts(schedules: Sequence[Schedule]) -> Table:
    """What a step consists of, a row per schedule."""
    parts = [item.timeline.breakdown for item in schedules]
    first = parts[0].step_us if parts else 0.0
    columns = {
        "schedule": [item.label for item in schedules],
        "step": [duration(part.step_us) for part in parts],
        "of the first": [f"{part.step_us / first:.1%}" if first else "" for part in parts],
        "compute": [duration(part.compute_us) for part in parts],
        "exposed communication": [duration(part.exposed_communication_us) for part in parts],
        "exposed copies": [duration(part.exposed_copy_us) for part in parts],
        "idle": [duration(part.idle_us) for part in parts],
        "communication hidden": [f"{part.overlap:.1%}" for part in parts],
        "bound by": [item.timeline.bound for item in schedules],
        "costs": [item.costs_are for item in schedules],
    }
    if not any(part.copy_us for part in parts):
        del columns["exposed copies"]
    right = frozenset(range(1, len(columns) - 2))
    return Table(tuple(columns), tuple(zip(*columns.values(), strict=True)), right)


def _collectives(schedules: Sequence[Schedule]) -> Table:
    """A row per collective or copy and, per schedule, what becomes of it; most exposed anywhere first."""
    tables = [{item.filed_as: item for item in schedule.timeline.exposures} for schedule in schedules]
    found = [(name, [table.get(name) for table in tables]) for name in dict.fromkeys(n for t in tables for n in t)]
    found.sort(key=lambda row: -max(item.exposed_us for item in row[1] if item is not None))
    reasons = any(schedule.reasons for schedule in schedules)
    columns = ["instruction", "kind"]
    for schedule in schedules:
        columns += [f"{schedule.label}: time", "exposed"]
    rows: list[tuple[str | Cell, ...]] = []
    for name, items in found:
        row: list[str | Cell] = [name, next(item.kind for item in items if item is not None)]
        for item in items:
            row += [Cell("–", "soft"), ""] if item is None else [_time(item), _exposed(item)]
        if reasons:
            why = [(schedule.reasons or {}).get(name, "") for schedule in schedules]
            row.append(Cell(next((line for line in reversed(why) if line), ""), "soft"))
        rows.append(tuple(row))
    right = frozenset(range(2, 2 + 2 * len(schedules)))
    names = tuple(name for name, _ in found)
    return Table((*columns, *(["why it stays exposed"] if reasons else [])), tuple(rows), right, names)


def _time(item: Exposure) -> str:
    times = (
        f"{item.count} × {duration(item.duration_us / item.count)}" if item.count > 1 else duration(item.duration_us)
    )
    return times + (", synchronous" if item.sync else "")


def _exposed(item: Exposure) -> Cell:
    much = item.exposed_us > 0.5 * item.duration_us and item.exposed_us > 1
    return Cell(duration(item.exposed_us), "bad" if much else "")
