"""Predicted schedules side by side, as tables and sections of a page, and the folder of the
page.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from pgle.account.value import Account
from pgle.files import write_files
from pgle.report import account
from pgle.report.page import figures, value
from pgle.report.page.figures import Unit
from pgle.report.page.value import (
    Cell,
    Column,
    Page,
    Prose,
    Section,
    Table,
    Value,
    table,
)
from pgle.report.timeline import (
    OTHERS,
    PARTS,
    Panel,
    group_label,
    most_exposed,
    panel_of,
    timeline,
    times_of,
)
from pgle.run.directory.directory import STORED, TIMELINE
from pgle.schedule.placements import (
    ExposedGroup,
)

if TYPE_CHECKING:
    from pgle.schedule.simulate import Exposure, Timeline
    from pgle.xla.hlo.module import Module

PREDICTED = (
    "Times are predictions of pgle's schedule simulator. "
    "docs/rehearse.md says how far to trust them."
)
LEAST = 0.002  # share of the step; less exposed time gets no line


@dataclass(frozen=True)
class Schedule:
    """One of the schedules."""

    label: str  # ``LHS, no profile``
    timeline: Timeline  # the step of this schedule
    costs_are: str  # ``measured``, ``simulated and estimated``, …
    module: Module | None = None  # the scheduled module; None: unknown
    # why each collective is exposed, by its name when LHS ran
    reasons: Mapping[str, str] = field(default_factory=dict)
    memory_bytes: int | None = None  # device memory that XLA plans for
    # change of the step against the first schedule, as a share, when both are compiled with other
    # kernels for matrix products; None: not compiled so
    control: float | None = None

    @property
    def panel(self) -> Panel:
        """Return this schedule as a panel of a timeline."""
        return panel_of(self.label, self.timeline, self.costs_are, self.module)


def sections(
    schedules: Sequence[Schedule],
    grouped: Sequence[ExposedGroup],
    labels: tuple[str, str],
) -> tuple[Section, ...]:
    """The timeline, where the time goes, the groups of collectives, and each collective.

    Args:
        schedules: the others are compared with the first.
        grouped: the collectives of two schedules, in groups.
        labels: the names of these two; twice the same name for a single schedule.
    """
    moving = timeline([item.panel for item in schedules])
    groups = _groups(grouped, labels)
    heading = "Collectives and copies, the most exposed first"
    return (
        Section("timeline", "Timeline", (moving, Prose(PREDICTED, tone="soft"))),
        Section("time", "Where the time goes", (_parts(schedules),)),
        Section("groups", "Collectives by kind and reason", (groups,)),
        Section("collectives", heading, (_collectives(schedules),)),
    )


def span_us(schedule: Schedule) -> tuple[float, float] | None:
    """The longest interval of a schedule in which the GPU waits for communication, in µs; None if
    it never waits.
    """
    exposed = schedule.panel.exposed
    if not len(exposed):
        return None
    longest = int(np.argmax(exposed.lengths))
    return float(exposed.start[longest]), float(exposed.end[longest])


def steps_table(schedules: Sequence[Schedule], known: Account) -> Table:
    """A row per schedule, compared with the first, then the bounds of the step.

    A second compilation has its own column; the smaller of both changes counts.
    """
    has_control = any(item.control is not None for item in schedules)
    controls = [Column("control", Unit.CHANGE)] if has_control else []
    heads: tuple[str | Column, ...] = (
        "schedule",
        Column("step", Unit.TIME),
        Column("change", Unit.CHANGE),
        *controls,
        Column("exposed", Unit.TIME),
        Column("peak memory", Unit.SIZE),
    )
    first_us = schedules[0].timeline.breakdown.step_us or 1.0
    rows: list[tuple[Value, ...]] = []
    for item in schedules:
        parts = item.timeline.breakdown
        change: Value = ""
        if item is not schedules[0]:
            share = parts.step_us / first_us - 1
            change = Cell(share, "good" if share < 0 else "")
        changes: list[Value] = [change]
        if has_control:
            changes.append("" if item.control is None else item.control)
        exposed = Cell(parts.exposed_communication_us, "exposed")
        rows.append((item.label, parts.step_us, *changes, exposed, item.memory_bytes))
    blank = [""] * (len(heads) - 3)
    for name, us, share in account.bound_rows(known):
        rows.append((name, us, share - 1, *blank))
    return table(heads, rows)


def exposed_notes(
    found: Sequence[ExposedGroup], step_us: float, which: str = ""
) -> tuple[str, ...]:
    """A line for each group that matters: its exposed time, the share of the step, and why; most
    exposed first. The first line also has the unnamed groups.

    Args:
        found: collectives in groups.
        step_us: the step.
        which: the schedules, in the line above.
    """
    shown = most_exposed(found, LEAST * step_us)
    others = ""
    lines = []
    for group in shown:
        times = f"{group_label(group)}: {_exposed_times(group)}"
        if group.kind == OTHERS:
            others = f"; {times}"
        else:
            share = figures.share(group.most_us / step_us)
            lines.append(f"  {times} ({share}); {_why_exposed(group)}")
    if not lines:
        return ()
    return (f"exposed (the GPU waits, nothing computes){which}{others}:", *lines)


def _exposed_times(group: ExposedGroup) -> str:
    """The exposed time in both schedules; one time if they are equal."""
    times = (figures.time(group.before_us), figures.time(group.after_us))
    return " → ".join(dict.fromkeys(times))


def _why_exposed(group: ExposedGroup) -> str:
    """Why collectives are exposed, or were before."""
    if group.is_left:
        return group.why
    return f"was: {group.why}" if group.why else "at most 5 % of each"


def write_page(
    folder: Path, page: Page, name: str = TIMELINE, *, force: bool = False
) -> Path:
    """Write a page and its JSON, which `pgle report` reads, into a folder. Return the page's
    path.
    """
    from pgle.report.page import html

    path = folder / name
    files = {path: html.render(page), folder / STORED: value.as_json(page)}
    write_files(files, force=force)
    return path


def _parts(schedules: Sequence[Schedule]) -> Table:
    """The parts of the step, a row per schedule."""
    rows: list[tuple[Value, ...]] = []
    for item in schedules:
        found = item.timeline.breakdown
        compute, exposed, copies, idle = times_of(found)
        copied = copies if found.copy_us else ""
        parts = (compute, Cell(exposed, "exposed"), copied, idle)
        rows.append((item.label, found.step_us, *parts, found.overlap, item.costs_are))
    times = [Column(name, Unit.TIME) for name in PARTS.values()]
    heads: list[str | Column] = ["schedule", Column("step", Unit.TIME), *times]
    heads += [Column("communication hidden", Unit.SHARE), "costs"]
    return table(heads, rows)


_TIMES = (Column("executions", Unit.COUNT), Column("time", Unit.TIME))


def _groups(found: Sequence[ExposedGroup], labels: tuple[str, str]) -> Table:
    """A row for each group of collectives, with its exposed time in both schedules."""
    is_one = labels[0] == labels[1]
    exposed = [Column(f"exposed: {label}", Unit.TIME) for label in labels]
    if is_one:
        exposed = [Column("exposed", Unit.TIME)]
    rows: list[tuple[Value, ...]] = []
    for group in found:
        sides = [Cell(group.before_us, "exposed"), Cell(group.after_us, "exposed")]
        if is_one:
            sides = sides[1:]
        rows.append((group.kind, group.count, group.time_us, *sides, group.why))
    heads: list[str | Column] = ["kind", *_TIMES, *exposed, "why"]
    return table(heads, rows, finds=[group.name for group in found])


def _collectives(schedules: Sequence[Schedule]) -> Table:
    """A row per collective or copy, with its exposed time in each schedule. Rows are sorted by the
    largest exposed time.
    """
    sides = [
        {item.filed_as: item for item in schedule.timeline.exposures}
        for schedule in schedules
    ]
    most_us: dict[str, float] = {}
    for side in sides:
        for name, item in side.items():
            known_us = most_us.get(name, item.exposed_us)
            most_us[name] = max(known_us, item.exposed_us)
    exposed = [Column("exposed", Unit.TIME)]
    if len(schedules) > 1:
        exposed = [Column(f"exposed: {item.label}", Unit.TIME) for item in schedules]
    rows: list[tuple[Value, ...]] = []
    for name in sorted(most_us, key=lambda name: -most_us[name]):
        found = [side.get(name) for side in sides]
        rows.append(_collective_row(name, found, _reason(name, schedules)))
    heads: list[str | Column] = [
        "instruction",
        "kind",
        *_TIMES,
        *exposed,
        "why it is exposed",
        "cost",
    ]
    return table(heads, rows, finds=True)


def _collective_row(
    name: str, sides: Sequence[Exposure | None], why: str
) -> tuple[Value, ...]:
    """A collective in each schedule. `sides` has None for a schedule without this collective. The
    figures come from the last schedule that has it.
    """
    last = [item for item in sides if item is not None][-1]
    kind = f"{last.kind}, synchronous" if last.sync else last.kind
    exposed = map(_exposed_cell, sides)
    soft = Cell(why, "soft")
    times = (last.count, last.duration_us)
    return (name, kind, *times, *exposed, soft, last.origin.value)


def _exposed_cell(item: Exposure | None) -> Value:
    return "" if item is None else Cell(item.exposed_us, "exposed")


def _reason(name: str, schedules: Sequence[Schedule]) -> str:
    """Why a collective is exposed in the last schedule that gives a reason; empty if none does."""
    for schedule in reversed(schedules):
        if why := schedule.reasons.get(name):
            return why
    return ""
