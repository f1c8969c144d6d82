"""What a schedule is predicted to take, alone or next to others: for `pgle predict`, `rehearse` and `tune`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from pgle.errors import printable, shown
from pgle.files import write_files
from pgle.next import typed
from pgle.report import step, text
from pgle.report.page import figures, html, value
from pgle.report.page.value import Cell, Page, Prose, Section, Table, Value, table
from pgle.report.step import parts_of
from pgle.report.timeline import Panel, panel_of, timeline
from pgle.run.directory.directory import RunDirectory, free
from pgle.run.inputs.next_command import PAGE_FILES, UNKNOWN, following, launch_of
from pgle.schedule.predict import ExposedGroup, in_one, placements

if TYPE_CHECKING:
    from pgle.files import AnyPath
    from pgle.run.predict import Predicted, PredictRequest, TargetFrom
    from pgle.schedule.predict import Prediction, Uncertain
    from pgle.schedule.program import Breakdown, Timeline
    from pgle.xla.hlo.module import Module

LHS_WORDS = "LHS: XLA's latency-hiding scheduler"
PREDICTED = "Times are predictions of pgle's schedule simulator. docs/rehearse.md says how far to trust them."
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


def exposed_notes(found: Sequence[ExposedGroup], step_us: float, which: str = "") -> tuple[str, ...]:
    """A line for each group that matters: its exposed time, the share of the step, and why; most exposed first.

    Args:
        found: collectives in groups.
        step_us: the step.
        which: the schedules, in the line above.
    """
    lines: list[str] = []
    for group in step.most_exposed(found, LEAST * step_us):
        times = " → ".join(dict.fromkeys((figures.time(group.before_us), figures.time(group.after_us))))
        why = group.why if group.is_left else f"was: {group.why}" if group.why else "at most 5 % of each"
        lines.append(f"  {group.kind} ×{group.count}: {times} ({figures.share(group.most_us / step_us)}); {why}")
    return (f"exposed (the GPU waits, nothing computes){which}:", *lines) if lines else ()


def write_page(folder: AnyPath, page: Page, *, force: bool = False) -> AnyPath:
    """Write a page, and what `pgle report` reads, into a folder; the page's path is returned."""
    forms = (html.render(page), value.as_json(page))
    paths = [folder / name for name in PAGE_FILES]
    write_files(dict(zip(paths, forms, strict=True)), force=force)
    return paths[0]


def _parts(schedules: Sequence[Schedule]) -> Table:
    """What a step consists of, a row per schedule."""
    heads = (
        "schedule | step (time) | compute (time) | exposed communication (time) | exposed copies (time) | "
        "idle (time) | communication hidden (share) | costs"
    )
    rows = []
    for item in schedules:
        compute, exposed, copies, idle = step.times_of(item.parts)
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


LITTLE = 0.005
MUCH_DOUBT = 0.2
"""Of the step: costs that data decides and that may add more than this are measured first."""
_TARGET_FROM: Mapping[TargetFrom, str] = {
    "option": "",
    "description": " (by the description next to the dump)",
    "file name": " (by the sm_… of the dump's name; --target)",
    "nothing": " (GPU assumed, the dump does not say: --target)",
}
"""What says so, behind the GPU's name."""


def predict_page(found: Predicted) -> Page:
    """The step and its range, where its time goes, what stays exposed and why, and what to do next."""
    prediction = found.prediction
    placed = placements(found.module, prediction.timeline)
    grouped = in_one(placed.values())
    schedule = Schedule(
        found.module.name, prediction.timeline, prediction.costs_are, found.module,
        {name: item.reason for name, item in placed.items()},
    )  # fmt: skip
    why, following_ = advice(found)
    contended = _contended(prediction)
    return Page(
        title=f"pgle predict: {found.module.name}",
        identity=(
            found.module.name, f"{found.module.num_devices} × {found.target}{_TARGET_FROM[found.target_from]}",
            f"{prediction.costs_are} costs", f"as its {found.stage} stage compiled it" if found.stage else "",
        ),
        verdict=verdict(prediction),
        table=_step_table(prediction),
        notes=(
            *exposed_notes(grouped, max(prediction.step_us, 1e-9)),
            contended if prediction.contended_us >= LITTLE * prediction.step_us else "",
            f"{figures.time(prediction.skew_us)} are waits for the slowest rank" if prediction.skew_us else "",
            *map(_uncertain_line, prediction.uncertain[:1]),
            why,
        ),
        sections=(
            *sections([schedule], grouped, (schedule.label,) * 2),
            Section("limits", "What is not known", (
                Prose(contended),
                *(Prose(_uncertain_line(item)) for item in prediction.uncertain),
                *(Prose(f"Not modelled: {line}.") for line in prediction.not_modelled),
            )),
        ),
        next=following_,
        warnings=found.warnings,
    )  # fmt: skip


def verdict(prediction: Prediction) -> str:
    """The step in one line, with its range."""
    if not prediction.step_us:
        return "Nothing of this module runs on a GPU"
    step = figures.time(prediction.step_us)
    if prediction.lower_bound:
        return f"A step takes at least {step}: a loop has an unknown length"
    return f"A step takes {step} ({figures.between(*map(figures.time, prediction.interval_us))})"


def _step_table(prediction: Prediction) -> Table:
    """What the step consists of; the parts add up to it."""
    parts, step = prediction.timeline.breakdown, max(prediction.step_us, 1e-9)
    named = [*parts_of(parts)[:-1], ("idle: launch gaps and waits", parts.idle_us), ("step", parts.step_us)]
    rows: list[tuple[Value, ...]] = [
        (name, Cell(us, "exposed" if name.startswith("exposed") else ""), us / step) for name, us in named if us
    ]
    ceiling = prediction.ceiling_us
    rows.append(("step if all communication were hidden", ceiling, ceiling / step))
    return table(" | time (time) | share (share)", rows)


def _contended(prediction: Prediction) -> str:
    """What contention adds to the step, and where its factors come from; empty if nothing."""
    if not prediction.contended_us:
        return ""
    product, other = prediction.contention.likely
    measured = prediction.contention.samples
    source = f"measured on {measured} launches" if measured else "assumed"
    return (
        f"contention adds {figures.time(prediction.contended_us)}: while a collective runs, matrix products take "
        f"{product:.2f}× as long, other kernels {other:.2f}× ({source})"
    )


def _uncertain_line(item: Uncertain) -> str:
    times = f"{item.count} × " if item.count > 1 else ""
    span = figures.between(figures.time(item.range.least_us), figures.time(item.range.most_us))
    return f"data decides {printable(item.name)}: {times}{figures.time(item.cost_us)} ({span}), {item.range.why}"


def advice(found: Predicted) -> tuple[str, tuple[str, ...]]:
    """What a better schedule could save, and the commands that say more, the first to type now."""
    prediction, asked = found.prediction, found.asked
    if not prediction.step_us:
        words = "Give the dump of a job's step, or choose its module with --module."
        return words, (typed("pgle", "predict", asked.hlo, "--module", "NAME"),)
    room = 1 - prediction.ceiling_us / prediction.step_us
    most = f"Another schedule saves at most {figures.share(room)}"
    doubt = prediction.steps_us.most_data / prediction.step_us - 1
    folders = asked.hlo.parents if isinstance(asked.hlo, Path) else ()
    run = next((run for run in map(RunDirectory, folders) if run.is_recorded), None)
    costs = () if asked.profile is None else ("--profile", asked.profile)
    if doubt > MUCH_DOUBT:
        name = shown(prediction.uncertain[0].name)
        return f"Data decides up to {figures.share(doubt, 0)} more, most of it {name}: measure it.", (
            _measure(asked, run),
        )
    if room < LITTLE:
        return f"{most}.", (typed("pgle", "analyze", asked.hlo, *costs),)
    if run is not None:
        rehearse = typed("pgle", "rehearse", run.path)
    else:
        whole = asked.hlo.is_dir() and any(".before_optimizations." in path.name for path in asked.hlo.iterdir())
        named = asked.target or ("" if found.target_from == "nothing" else found.target)
        target = ("--target", named) if named else ()
        options = (*costs, *target, "--devices", found.module.num_devices)
        rehearse = typed("pgle", "rehearse", asked.hlo if whole else "MODULE", *options)
    if prediction.costs_are == "measured":
        words = f"{most}. Rehearse with the jaxlib that made this dump"
        return f"{words}: another gives instructions other names, which the profile does not have.", (rehearse,)
    return f"{most}, by {prediction.costs_are} costs. Measure them.", (_measure(asked, run), rehearse)


def _measure(asked: PredictRequest, run: RunDirectory | None) -> str:
    """The command that takes measured costs: from the HLO's run directory, else of the program."""
    if run is None:
        return typed("pgle", "profile", "--", *UNKNOWN)
    if (profile := run.found_profile) is None:
        return following(run)
    if asked.profile is None:
        return typed("pgle", "predict", asked.hlo, "--profile", profile)
    return replace(launch_of(run), capture="").line("run", free(run.path.with_name(f"{run.path.name}-gpu")))


def document(found: Predicted) -> dict[str, object]:
    """``pgle.predict/1`` without its name."""
    prediction, (why, following_) = found.prediction, advice(found)
    exposures = "name=filed_as instruction=name kind exposed_us sync origin time_us=duration_us executions=count"
    return {
        **text.picked(found, "module=module.name target target_from devices=module.num_devices"),
        **text.picked(prediction, "step_us interval_us contended_us"),
        "contention": text.picked(prediction.contention, "product other"),
        **text.picked(prediction, "skew_us ceiling_us timeline.breakdown"),
        "collectives": [text.picked(item, exposures) for item in prediction.timeline.exposures],
        **text.picked(prediction, "lower_bound program.least_us not_modelled costs_are estimated_share"),
        "unsure": [
            {
                **text.picked(item, "name executions=count why=range.why"),
                "time_us": item.cost_us * item.count,
                "interval_us": (item.range.least_us * item.count, item.range.most_us * item.count),
            }
            for item in prediction.uncertain
        ],
        "next": "\n  ".join((why, *following_)),
        "warnings": found.warnings,
    }
