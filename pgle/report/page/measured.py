"""What a page says of a measured step: findings, where its time goes, what the scheduler knew, memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pgle.analyze.analysis import MeasuredStep
from pgle.analyze.layers import Layers, folded
from pgle.analyze.overlap import Overlap
from pgle.analyze.window import mean_breakdown
from pgle.report import analyze as analyze_report
from pgle.report import analyze_parts
from pgle.report.page.parts import Part, Prose, Section, Table
from pgle.report.text import duration
from pgle.report.timeline.scene import parts_of
from pgle.run.analyze import Analysis
from pgle.schedule.timeline import Breakdown

LINES, COLLECTIVES, SCOPES, WRONG = 60, 200, 16, 60  # rows that a page holds; `pgle analyze --json` has all


def step_sections(found: Analysis) -> Iterator[Section]:
    """Findings first; what is not known of the step is left out."""
    step = found.step
    yield Section("Findings", tuple(_findings(found)) or (Prose(analyze_report.CLEAN),))
    causes = analyze_parts.idle_line(step)
    yield Section("Where the time of a step goes", (_parts(step), *([Prose(_sentence(causes))] if causes else [])))
    if step.layers is not None:
        yield Section("By layer and by source line", (*_products(step), *_layers(step.layers, step.step_us)))
    elif step.products:
        yield Section("Matrix products", tuple(_products(step)))
    if step.collectives:
        yield Section("Collectives", tuple(_collectives(step)))
    if step.overlap is not None:
        yield Section("What the scheduler could still hide", tuple(_overlap(step.overlap, step.step_us)))
    if step.memory is not None:
        columns, rows = analyze_parts.memory_table(step.memory)
        names = tuple(item.name for item in step.memory.live[: len(rows)])
        said = _sentence(analyze_parts.memory_line(step.memory))
        yield Section("Memory", (Prose(said), Table(columns, rows, frozenset({1}), names)))


def _findings(found: Analysis) -> Iterator[Part]:
    for place, finding in enumerate(found.findings, start=1):
        evidence = tuple(map(analyze_report.evidence_row, finding.evidence))
        yield Prose(f"{place}. {analyze_report.heading(finding)}", tone="head")
        yield Prose(_sentence(analyze_report.number(finding)))
        names = tuple(row.name for row in finding.evidence)
        yield Table(analyze_report.EVIDENCE_COLUMNS, evidence, frozenset({1}), names)
        yield Prose(f"→ {finding.remedy}.")


def _parts(step: MeasuredStep) -> Table:
    """The parts of the step, mean and by device."""
    columns = ("device", "step", *(name for name, _ in parts_of(step.breakdown)))
    rows: list[tuple[str, ...]] = [_parts_row("mean", step.breakdown)]
    for window in step.windows if len(step.windows) > 1 else ():
        parts = mean_breakdown([window])
        times = (parts.step_us, *(us for _, us in parts_of(parts)))
        device = step.trace.devices[window.device]
        number = device.ordinal if device.global_id is None else device.global_id
        rows.append((f"{number}, {device.process}", *map(duration, times)))
    return Table(columns, tuple(rows), frozenset(range(1, 6)))


def _parts_row(name: str, parts: Breakdown) -> tuple[str, ...]:
    shares = (f"{duration(us)} ({us / parts.step_us:.1%})" for _, us in parts_of(parts))
    return (name, duration(parts.step_us), *shares)


def _layers(layers: Layers, step_us: float) -> Iterator[Part]:
    scopes = [analyze_parts.scope_row(name, group, step_us) for name, group in folded(layers.scopes, SCOPES)]
    lines = [analyze_parts.line_row(layer, step_us) for layer in layers.lines[:LINES]]
    yield _numbers(analyze_parts.LAYER_COLUMNS, scopes)
    yield _numbers(analyze_parts.LINE_COLUMNS, lines)


def _products(step: MeasuredStep) -> Iterator[Part]:
    """Matrix products by type, and how much of the GPU's peak the step uses."""
    said = [*analyze_parts.product_lines(step.products, step.step_us)]
    said += [] if step.layers is None else analyze_parts.utilisation_lines(step.layers)
    for line in said:
        yield Prose(_sentence(line))


def _collectives(step: MeasuredStep) -> Iterator[Part]:
    shown = step.collectives[:COLLECTIVES]
    rows = tuple(analyze_parts.collective_row(item) for item in shown)
    yield Table(analyze_parts.COLLECTIVE_COLUMNS, rows, frozenset(range(1, 6)), tuple(item.name for item in shown))
    yield Prose(_sentence(analyze_parts.WAITS), tone="soft")


def _overlap(overlap: Overlap, step_us: float) -> Iterator[Part]:
    """Exposed collectives with what hides them, and the profile against what ran."""
    yield Prose(_sentence(analyze_parts.path_line(overlap)))
    yield Prose(_sentence(analyze_parts.overlap_line(overlap, step_us)))
    rooms = overlap.rooms[:COLLECTIVES]
    if rooms:
        rows = tuple(map(analyze_parts.room_row, rooms))
        yield Table(analyze_parts.ROOM_COLUMNS, rows, frozenset({1, 2}), tuple(room.name for room in rooms))
    if overlap.use is not None:
        wrong = overlap.use.rows[:WRONG]
        rows = tuple(analyze_parts.believed_row(row, step_us) for row in wrong)
        yield Prose(_sentence(analyze_parts.use_line(overlap.use)))
        yield Table(analyze_parts.BELIEVED_COLUMNS, rows, frozenset({1, 2, 3, 4}), tuple(row.name for row in wrong))


def _numbers(columns: Sequence[str], rows: Sequence[tuple[str, ...]]) -> Table:
    return Table(tuple(columns), tuple(rows), frozenset(range(1, len(columns))))


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."
