"""A measured step, and what changed since another, as a page and as ``pgle.analyze/1``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from pgle.analyze.analysis import MeasuredStep
from pgle.analyze.collectives import MeasuredCollective
from pgle.analyze.differences import LAUNCHES_DIFFER, Differences, StepChange, StepVerdict
from pgle.analyze.layers import folded, short_source
from pgle.analyze.rules import LEAST_SAVED, RULES, StepFinding
from pgle.analyze.window import RowGroup
from pgle.errors import cut, many, printable
from pgle.report import text
from pgle.report.page import figures
from pgle.report.page.value import Advice, Cell, Page, Prose, Section, Table, Tone, Value, table
from pgle.report.step import (
    LEAST,
    ROWS,
    SCOPE_WIDTH,
    exposed_groups,
    group_label,
    idle_words,
    most_exposed,
    parts_of,
    step_sections,
    tones,
)
from pgle.report.text import bar
from pgle.run.analyze import Analysis, on_host

FIRST = 5  # changes on the first screen
NOTE = 40  # characters of a note on the first screen
LATE = 0.005  # of the step; a smaller change of the waits for other ranks is no note
TIMES = "before (time) | after (time) | change (change-time) | of the step (change)"


def verdict_of_change(found: Differences) -> tuple[str, Tone]:
    """``2.3 % longer steps (more than ±0.5 % is no noise)``."""
    share = found.typical_us / found.before.step_us
    if found.noise_us is None:
        return f"Cannot tell whether steps changed: {found.why}", "warn"
    noise = figures.share(found.noise_us / found.before.step_us)
    if found.verdict == StepVerdict.CANNOT_TELL:
        return f"No change beyond noise: {figures.change(share, 2)} (noise ±{noise})", ""
    tone: Tone = "bad" if found.verdict == StepVerdict.LONGER else "good"
    return f"Steps are {figures.share(abs(share))} {found.verdict} (noise ±{noise})", tone


def difference_notes(found: Differences) -> Iterator[str]:
    """The test, and ranks that arrive later."""
    if found.noise_us is not None:
        least = figures.share(LAUNCHES_DIFFER, 2)
        yield (
            f"Noise: Welch's 95 % interval of the difference of typical steps, and at least ±{least}, as two launches "
            "of one program differ so much."
        )
    before_us, after_us = found.late_us
    if abs(after_us - before_us) >= LATE * found.before.step_us:
        rank = printable(found.late_rank) or "the last rank, each time another one"
        yield f"Other ranks wait {figures.time(after_us)} for {rank}; before: {figures.time(before_us)}."


def first_changes(found: Differences) -> Table:
    """The largest changes, the sum of the others, and the step: the rows add up to it."""
    first = found.changes[:FIRST]
    other_us = found.delta_us - sum(change.delta_us for change in first)
    whole = found.before.step_us
    rows = [_row(change, short=True) for change in first]
    rows.append(("", "all other changes", None, None, other_us, other_us / whole))
    rows.append((Cell("step", "head"), "", whole, found.after.step_us, found.delta_us, found.share))
    return table(f"change | what | {TIMES}", rows)


def _row(change: StepChange, *, short: bool = False) -> tuple[Value, ...]:
    before, after = change.before, change.after
    renamed = f", was {before.name}" if before and after and before.name != after.name else ""
    where = short_source(change.source) or "/".join(change.op_name.split("/")[-2:])
    note = "" if short and change.before and change.after and len(change.note) > NOTE else change.note
    about = "; ".join(filter(None, (f"{change.name}{renamed}", where, note)))
    times = (None if part is None else part.us for part in (before, after))
    return Cell(str(change.kind), tones(change.share)), printable(about), *times, change.delta_us, change.share


def difference_sections(found: Differences) -> tuple[Section, ...]:
    """Every change, and the parts of both steps."""
    whole_us = found.before.step_us
    rows = [_row(change) for change in found.changes]
    rows.append(("", "smaller changes together", None, None, found.other_us, found.other_us / whole_us))
    names = [*(change.name for change in found.changes), ""]
    same = f"{many(found.matched, 'instruction')} in both steps, {found.renamed:,} under another name."
    changes = table(f"change | what | {TIMES}", rows[:ROWS], finds=names[:ROWS])

    def times(one: float, two: float) -> tuple[Value, ...]:
        return one or None, two or None, two - one, (two - one) / whole_us

    sides = ([*parts_of(parts), ("step", parts.step_us)] for parts in (found.before, found.after))
    parts = [(name, *times(one, two)) for (name, one), (_, two) in zip(*sides, strict=True)]
    return (
        Section("changes", "What changed", (changes, Prose(same, tone="soft"))),
        Section("before", "The parts of both steps", (table(f"part | {TIMES}", parts),)),
    )


WORTH = 0.05  # of the step; from here on a possible saving is a warning
LEAST_HEAVY = 0.01  # of the step; a lighter layer is not named
FOLDED = 10  # groups that the layers are folded into, to name the heaviest
SpanOf = Callable[[str], "tuple[float, float] | None"]
"""Where an instruction, or `BETWEEN`, lies in the timeline, in µs; None if it does not."""
BETWEEN = str(RowGroup.BETWEEN)


def nowhere(name: str) -> None:
    """No place: there is no timeline."""


def analyze_page(found: Analysis, span_of: SpanOf = nowhere, is_page: bool = False) -> Page:
    """Where the time of a step goes, and what could be saved; with another step, what changed since.

    Args:
        found: the step.
        span_of: where in the timeline an instruction is.
        is_page: there is a timeline, so shares of the step need no bars.
    """
    step, changed, todo = found.step, found.against, actions(found, span_of)
    answer, tone = verdict(found, todo)
    name, sections = printable(step.costs.program.key.name), step_sections(found)
    page = Page(
        title=f"pgle analyze: {name}",
        identity=identity(step),
        verdict=answer,
        tone=tone,
        table=breakdown_table(step, bars=not is_page),
        notes=notes(step),
        actions=todo,
        sections=sections,
        next=found.next,
        warnings=found.shown_warnings,
    )
    if changed is None:
        return page
    answer, tone = verdict_of_change(changed)
    times = [figures.time(parts.step_us) for parts in (changed.before, changed.after)]
    return replace(
        page,
        title=f"pgle analyze: {name}, two steps",
        identity=(*page.identity[:2], f"{' → '.join(times)} a step", *page.identity[3:]),
        verdict=answer,
        tone=tone,
        table=first_changes(changed),
        notes=tuple(difference_notes(changed)),
        actions=(),
        sections=(*difference_sections(changed), *sections),
    )


def identity(step: MeasuredStep) -> tuple[str, ...]:
    """Program, GPU, how many of the ranks, steps and their time, date, and whether it was measured."""
    simulated, host, given = step.trace.simulated, on_host(step.trace), len(step.windows)
    gpu = "CPU devices" if host else "GPU unknown" if step.hardware is None else step.hardware.name.upper()
    devices = max(step.costs.ranks, given, 1 if step.module is None else step.module.num_devices)
    ranks = f"{given} of {devices} ranks" if devices > given and not simulated else many(devices, "rank")
    each = step.steps / max(given, 1)
    kind = " (profile run)" if step.mode else f" ({each:g} steps)" if each > 1 and not simulated else ""
    begun = [item.utc_ns for item in step.trace.recordings.values() if item.utc_ns]
    return (
        printable(step.costs.program.key.name),
        f"{gpu}, {ranks}",
        f"{figures.time(step.step_us)} a step{kind}",
        datetime.fromtimestamp(min(begun) / 1e9, UTC).strftime("%Y-%m-%d") if begun else "",
        "simulated" if simulated else "",
    )


def verdict(found: Analysis, todo: tuple[Advice, ...]) -> tuple[str, Tone]:
    """What could be saved, in a line, and how good that is."""
    step = found.step
    if step.measures_alone:
        return "This is a profile run: it runs each collective alone, to measure it", ""
    best = max((action.saves or 0.0 for action in todo), default=0.0)
    if best >= LEAST_SAVED:
        title = todo[0].title
        return (
            f"You could save up to {figures.share(best)}: {title[:1].lower()}{title[1:]}",
            "warn" if best >= WORTH else "",
        )
    share = figures.share(step.breakdown.compute_us / step.step_us if step.step_us > 0 else None)
    return f"Nothing large to save: the GPU computes {share} of the time", "good"


def breakdown_table(step: MeasuredStep, *, bars: bool) -> Table:
    """The parts of the step, and the exposed collectives by kind and reason."""
    rows: list[tuple[Value, ...]] = []
    for name, us in parts_of(step.breakdown):
        share = us / step.step_us if step.step_us > 0 else 0.0
        if not us and name != "exposed communication":
            continue
        tone: Tone = "exposed" if name.startswith("exposed") and us else ""
        rows.append((Cell(name, tone), us or None, share or None, bar(share).rstrip() if bars else ""))
        groups = exposed_groups(step) if name == "exposed communication" else []
        for group in most_exposed(groups, LEAST * step.step_us):
            label, share = f"  {printable(group_label(group))}", group.after_us / step.step_us
            rows.append((label, group.after_us, share, group.why))
    return table("part of the step | time (time) | share (share) | ", rows)


def notes(step: MeasuredStep) -> tuple[str, ...]:
    """Waits, causes of idle time, the heaviest layers, the use of the GPU; what a profile run cannot say."""
    found = []
    if step.breakdown.exposed_communication_us > LEAST * step.step_us:
        waits = (
            f"; {figures.time(step.waiting_us)} of it for other ranks" if step.waiting_us > LEAST * step.step_us else ""
        )
        found.append(f"Exposed: the GPU waits and computes nothing{waits}.")
    if causes := idle_words(step):
        found.append(f"Idle: {causes}.")
    if step.layers is not None and step.step_us > 0:
        groups = [(name, sum(layer.us for layer in group)) for name, group in folded(step.layers.scopes, FOLDED)]
        named = [(name.rpartition("/")[2], us) for name, us in groups if name and us >= LEAST_HEAVY * step.step_us][:3]
        heavy = [f"{cut(name, SCOPE_WIDTH)} {figures.share(us / step.step_us, 0)}" for name, us in named]
        lines = [item for item in step.layers.lines if item.name][:1]
        line = [f"line {short_source(item.name)} {figures.share(item.us / step.step_us, 0)}" for item in lines]
        heaviest = [*([f"layers {' · '.join(heavy)}"] if heavy else []), *line]
        found += [f"Heaviest: {printable('; '.join(heaviest))}"] if heaviest else []
        if step.layers.mfu is not None:
            found.append(f"Model FLOPs utilisation (MFU): {figures.share(step.layers.mfu)}")
    if len(step.windows) < step.costs.ranks and not step.trace.simulated:  # one simulated rank represents all
        given = f"{len(step.windows)} of {step.costs.ranks} ranks"
        found.append(f"{given} are given: waiting for the others counts as transfer.")
    if step.measures_alone:
        alone = sum(item.transfer_exposed_us for item in step.collectives if item.sync) / step.step_us
        share = figures.share(alone)
        found.append(f"Collectives take {share} of this step. Only a plain run shows what stays exposed.")
    return tuple(found)


def actions(found: Analysis, span_of: SpanOf = nowhere) -> tuple[Advice, ...]:
    """Findings that save time, and smaller losses of at least `LEAST_SAVED`, the largest first."""
    step = found.step
    todo = [_action(finding, span_of) for finding in found.findings if finding.share >= LEAST_SAVED]
    known = {finding.id for finding in found.findings}
    between_us = sum(step.parts.of(RowGroup.BETWEEN).values())
    if not step.trace.simulated and between_us >= LEAST_SAVED * step.step_us and "input-bound" not in known:
        why = f"no kernel runs for {figures.time(between_us)} after each step; look at the host"
        todo.append(Advice(RULES["input-bound"].todo, between_us / step.step_us, why, span_us=span_of(BETWEEN)))
    overlap = step.overlap
    if (
        overlap is not None
        and not known & {"synchronous-collective", "exposed-communication"}
        and overlap.hideable_us >= LEAST_SAVED * step.step_us
    ):
        judged = [item for item in step.judged if (item.hideable_us or 0.0) >= LEAST * step.step_us] or step.judged
        name, time = printable(judged[0].name), figures.time(judged[0].hideable_us or 0.0)
        why = f"{many(len(judged), 'collective')} could run next to independent compute, most: {name} ({time})"
        saves = overlap.hideable_us / step.step_us
        todo.append(
            Advice(RULES["exposed-communication"].todo, saves, why, "", judged[0].name, span_of(judged[0].name))
        )
    return tuple(sorted(todo, key=lambda action: -(action.saves or 0.0)))


def _action(finding: StepFinding, span_of: SpanOf) -> Advice:
    """What to do about a finding, with its number and its largest row."""
    first = finding.evidence[0] if finding.evidence else None
    most = (
        ""
        if first is None or not first.us or len(finding.evidence) == 1
        else f", most in {cut(first.name.rpartition('/')[2], SCOPE_WIDTH)} ({figures.time(first.us)})"
    )
    name = "" if first is None else first.name.removeprefix("before ")
    place = span_of(BETWEEN if finding.id == "input-bound" else name)
    return Advice(RULES[finding.id].todo, finding.share, printable(f"{finding.number}{most}"), find=name, span_us=place)


def document(found: Analysis) -> dict[str, object]:
    """``pgle.analyze/1`` without its name; the integers of a rank add up to its window exactly."""
    step, overlap, memory = found.step, found.step.overlap, found.step.memory
    ranks = [(step.trace.devices[window.device], window) for window in step.windows]
    late = ((step.trace.devices[device], us, count) for device, us, count in step.late.devices)
    return {
        **text.picked(step, "module=costs.program.key.name step_us steps hardware=hardware.name breakdown"),
        "idle_us": {name.replace(" ", "_"): us for name, us in step.idle_us.items()},
        **text.picked(step, "waiting_us skew_us=costs.skew_us"),
        "late": {
            **text.picked(step.late, "us steps"),
            "ranks": [dict(zip(("device", "us", "last_in_steps"), rank, strict=True)) for rank in late],
        },
        "step_times": [text.whole(item, "step_us") for item in step.parts.steps],
        "collectives": [_collective_json(item) for item in step.collectives],
        "findings": [
            {
                **text.picked(finding, "id title share number evidence remedy unclaimed"),
                **text.picked(RULES[finding.id], "rule source"),
            }
            for finding in found.findings
        ],
        "ranks": [{"device": device, "steps": window.steps, **window.parts_ns} for device, window in ranks],
        "layers": None if step.layers is None else {**text.plain(step.layers), "products": step.products},
        "products": step.products,
        "memory": memory and {
            **text.picked(memory.plan, "peak_bytes arguments_bytes outputs_bytes constants_bytes temporary_bytes"),
            **text.picked(memory, "at=plan.peak_at live device_bytes limit_bytes"),
        },
        "overlap": overlap and {
            **text.picked(overlap, "hideable_us stuck_us predicted_step_us=predicted.step_us"),
            "collectives": [
                text.picked(item, "name exposed_us=transfer_exposed_us hideable_us why") for item in step.judged
            ],
            "profile": overlap.use and {
                **text.plain(overlap.use), "rows": [text.whole(row, "error_us") for row in overlap.use.rows],
            },
        },
        "against": found.against and {
            **text.whole(found.against, "delta_us share"),
        },
        "next": "\n".join(found.next),
        "warnings": found.warnings,
    }  # fmt: skip


def _collective_json(item: MeasuredCollective) -> dict[str, Any]:
    found: dict[str, Any] = text.whole(item, "op_name transfer_exposed_us bus_gb_s")
    known, why, _ = (found.pop(name) for name in ("instruction", "why", "hideable_us"))
    return {**found, "source": (known or {}).get("source", ""), "why_exposed": why}
