"""What the pages of `pgle rehearse`, `tune` and `predict` share: schedules on one time axis, and their collectives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from pgle.files import AnyPath
from pgle.report import parts
from pgle.report.page import figures, html, stored
from pgle.report.page.value import Cell, Page, Prose, Section, Table, Value, table
from pgle.report.timeline.perfetto import render_trace
from pgle.report.timeline.picture import timeline
from pgle.report.timeline.scene import Panel, panel_of
from pgle.run.inputs.next_command import PAGE_FILES, TRACE
from pgle.schedule.compare import ExposedGroup
from pgle.schedule.program import Breakdown, Timeline
from pgle.xla.hlo.module import Module

EXPOSED = "exposed (the GPU waits, nothing computes)"
LHS_WORDS = "LHS: XLA's latency-hiding scheduler"
PREDICTED = "Times are predictions of pgle's schedule simulator. docs/rehearse.md says how far to trust them."
OPEN = f"{TRACE} has the same timeline for ui.perfetto.dev"
LEAST = 0.002  # share of the step; less exposed time needs no line


@dataclass(frozen=True)
class Schedule:
    """One of the schedules."""

    label: str  # ``LHS, no profile``
    timeline: Timeline  # its step
    costs_are: str  # ``measured``, ``estimated`` or ``mixed``
    module: Module | None = None  # that was scheduled; None: not known
    reasons: Mapping[str, str] | None = None  # by name when LHS ran, why a collective is exposed
    memory_bytes: int | None = None  # device memory that XLA plans for

    @property
    def panel(self) -> Panel:
        """This schedule as part of a timeline."""
        return panel_of(self.label, self.timeline, self.costs_are, self.module)

    @property
    def parts(self) -> Breakdown:
        """What its step consists of."""
        return self.timeline.breakdown


def sections(
    schedules: Sequence[Schedule], grouped: Sequence[ExposedGroup], labels: tuple[str, str]
) -> tuple[Section, ...]:
    """The timeline, where the time goes, the groups of collectives, and each collective.

    Args:
        schedules: the first is what the others are compared with.
        grouped: the collectives of two of them in groups.
        labels: the names of these two; the same twice if it is one schedule.
    """
    moving = timeline([item.panel for item in schedules])
    found = [
        Section("timeline", "Timeline", (moving, Prose(PREDICTED, tone="soft"))),
        Section("time", "Where the time goes", (_parts(schedules),)),
    ]
    if grouped:
        found.append(Section("groups", "Collectives by kind and reason", (_groups(grouped, labels),)))
    collectives = _collectives(schedules)
    if collectives.rows:
        heading = "Collectives and copies, the most exposed first"
        found.append(Section("collectives", heading, (collectives,)))
    return tuple(found)


def span_us(schedule: Schedule) -> tuple[float, float] | None:
    """The longest time of a schedule in which the GPU waits for communication; None if it never waits."""
    exposed = schedule.panel.exposed
    if not len(exposed):
        return None
    at = int(np.argmax(exposed.lengths))
    return float(exposed.start[at]), float(exposed.end[at])


def steps_table(schedules: Sequence[Schedule], ceiling_us: float) -> Table:
    """A row per schedule, compared with the first, and what perfect overlap would take."""
    heads = "schedule | step (time) | change (change) | exposed (time) | peak memory (size)"
    first = schedules[0].parts.step_us or 1.0
    rows: list[tuple[Value, ...]] = []
    for item in schedules:
        shorter = item.parts.step_us / first - 1
        exposed = Cell(item.parts.exposed_communication_us, "exposed")
        change = "" if item is schedules[0] else Cell(shorter, "good" if shorter < 0 else "")
        rows.append((item.label, item.parts.step_us, change, exposed, item.memory_bytes))
    rows.append(("all communication hidden", ceiling_us, ceiling_us / first - 1, "", ""))
    return table(heads, rows)


def group_notes(found: Sequence[ExposedGroup], step_us: float) -> tuple[str, ...]:
    """A line for each group that matters: its exposed time, the share of the step, and why; most exposed first."""
    lines: list[str] = []
    for group in parts.most_exposed(found, LEAST * step_us):
        times = " → ".join(dict.fromkeys((figures.time(group.before_us), figures.time(group.after_us))))
        why = group.why if group.is_left else f"was: {group.why}" if group.why else "at most 5 % of each"
        share = figures.share(group.most_us / step_us)
        lines.append(f"  {group.kind} ×{group.count}: {times} ({share}); {why}")
    return tuple(lines)


def page_files(folder: AnyPath, page: Page, schedules: Sequence[Schedule]) -> dict[AnyPath, str]:
    """The files of a page, by path: the page, its still picture, a Perfetto trace, and what `pgle report` reads."""
    still = page.timeline.still if page.timeline else ""
    forms = (html.render(page), still, render_trace([item.panel for item in schedules]), stored.as_json(page))
    return {folder / name: form for name, form in zip(PAGE_FILES, forms, strict=True)}


def _parts(schedules: Sequence[Schedule]) -> Table:
    """What a step consists of, a row per schedule."""
    heads = (
        "schedule | step (time) | compute (time) | exposed communication (time) | exposed copies (time) | "
        "idle (time) | communication hidden (share) | costs"
    )
    rows = []
    for item in schedules:
        compute, exposed, copies, idle = parts.times_of(item.parts)
        rows.append((
            item.label, item.parts.step_us, compute, Cell(exposed, "exposed"), copies if item.parts.copy_us else "",
            idle, item.parts.overlap, item.costs_are,
        ))  # fmt: skip
    return table(heads, rows)


def _groups(found: Sequence[ExposedGroup], labels: tuple[str, str]) -> Table:
    is_one = labels[0] == labels[1]
    exposed = ["exposed (time)"] if is_one else [f"exposed: {label} (time)" for label in labels]
    rows: list[tuple[Value, ...]] = []
    for group in found:
        sides = (Cell(us, "exposed") for us in (group.before_us, group.after_us)[is_one:])
        rows.append((group.kind, group.count, group.time_us, *sides, group.why))
    heads = ["kind", "executions (count)", "time (time)", *exposed, "why"]
    return table(heads, rows, finds=[group.name for group in found])


def _collectives(schedules: Sequence[Schedule]) -> Table:
    """A row per collective or copy, with its exposed time in each schedule; the most exposed anywhere first."""
    tables = [{item.filed_as: item for item in schedule.timeline.exposures} for schedule in schedules]
    found = [(name, [table.get(name) for table in tables]) for name in dict.fromkeys(n for t in tables for n in t)]
    found.sort(key=lambda row: -max(item.exposed_us for item in row[1] if item is not None))
    exposed = (f"exposed{f': {item.label}' if len(schedules) > 1 else ''} (time)" for item in schedules)
    rows: list[tuple[Value, ...]] = []
    for name, items in found:
        last = [item for item in items if item is not None][-1]
        why = [(schedule.reasons or {}).get(name, "") for schedule in schedules]
        rows.append((
            name, last.kind + ", synchronous" * last.sync, last.count, last.duration_us,
            *("" if item is None else Cell(item.exposed_us, "exposed") for item in items),
            Cell(next((line for line in reversed(why) if line), ""), "soft"), last.origin.value,
        ))  # fmt: skip
    heads = ["instruction", "kind", "executions (count)", "time (time)", *exposed, "why it is exposed", "cost"]
    return table(heads, rows, finds=True)
