"""A comparison as files: a page that needs nothing else, a picture, JUnit XML."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from pgle.files import AnyPath, write_files
from pgle.report.page.charts import Panel, seconds, svg, widened
from pgle.report.page.html import render
from pgle.report.page.parts import Chart, Page, Part, Prose, Section, Table, Tone
from pgle.report.steps.compare import MARKS, columns, figures, headline, left_out_text, method_line, pooled
from pgle.report.text import printable
from pgle.steps.compare import Comparison, Verdict
from pgle.steps.gate import Check, Outcome
from pgle.steps.side import Side

BINS = 60
MOST_DOTS = 600  # dots of a side; longer runs are drawn as medians of so many groups of steps
STYLES = ("base", "new")
TONES: Mapping[Verdict, Tone] = {Verdict.FASTER: "good", Verdict.SLOWER: "bad"}  # others have none
OUTCOME_TONES: Mapping[Outcome, Tone] = {Outcome.OK: "good", Outcome.FAIL: "bad", Outcome.CANNOT_TELL: "soft"}


def write_reports(
    found: Comparison,
    checks: Sequence[Check],
    *,
    html: AnyPath | None = None,
    picture: AnyPath | None = None,
    junit: AnyPath | None = None,
    force: bool = False,
) -> tuple[AnyPath, ...]:
    """Write what was asked for, all or nothing; the paths written.

    Raises:
        UserError: a file exists (without `force`) or cannot be written.
    """
    wanted = tuple(path for path in (html, picture, junit) if path is not None)
    files: dict[AnyPath, bytes | str] = {}
    if html is not None:
        files[html] = page(found, checks)
    if picture is not None:
        files[picture] = svg(panels(found), headline(found))
    if junit is not None:
        from pgle.report.steps.ci import xml

        files[junit] = xml(found, checks)
    if files:
        write_files(files, force=force)
    return wanted


def page(found: Comparison, checks: Sequence[Check]) -> str:
    """The page as HTML: verdict, figures, checks, charts, where the runs come from, method."""
    sides = tuple(printable(side.label) for side in (found.base, found.new))
    failed = any(check.failed for check in checks)
    return render(
        Page(
            title=f"pgle compare: {sides[0]} and {sides[1]}",
            verdict=headline(found),
            tone="bad" if failed else TONES.get(found.verdict, ""),
            sections=(
                Section("", comparison_parts(found, checks)),
                Section("What was compared", (Table(("", *sides), tuple((n, *v) for n, v in about(found)), shown=99),)),
                Section("How", (Prose(method_line(found)),)),
            ),
            warnings=found.warnings,
        )
    )


def comparison_parts(found: Comparison, checks: Sequence[Check]) -> tuple[Part, ...]:
    """Figures, checks and charts."""
    rows = list(zip(columns(found), *figures(found), strict=True))  # upright, for narrow screens
    figured = Table(tuple(rows[0]), tuple(rows[1:]), frozenset(range(1, len(rows[0]))), shown=99)
    said = [
        Prose(f"{MARKS[check.outcome][0].strip()} {check.name}: {check.message}", tone=OUTCOME_TONES[check.outcome])
        for check in checks
    ]
    return (figured, *said, Chart(tuple(panels(found)), headline(found)))


def about(found: Comparison) -> list[tuple[str, list[str]]]:
    """Rows (name, of base, of new) on where the runs come from; what is known of neither side is left out."""
    sides = (found.base, found.new)
    rows = {
        "runs": [str(len(side.runs)) for side in sides],
        "steady steps": [str(side.steps) for side in sides],
        "left out": [left_out_text(side) for side in sides],
        "read from": [_listed(run.series.source for run in side.runs) for side in sides],
    }
    for name in dict.fromkeys(name for side in sides for run in side.runs for name in run.series.about):
        rows[name] = [_listed(run.series.about.get(name, "not recorded") for run in side.runs) for side in sides]
    return list(rows.items())


def _listed(values: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(values))


def panels(found: Comparison) -> list[Panel]:
    """The charts: how the steps are distributed, in which order they came, what the change may be."""
    sides = (found.base, found.new)
    values = np.concatenate([pooled(side) for side in sides])
    low, high = widened(*(float(edge) for edge in np.quantile(values, [0.005, 0.995])))
    charts = [_distributions(sides, low, high), _in_order(sides, low, high)]
    return [_interval(found), *charts] if math.isfinite(found.ci[1]) else charts


def _interval(found: Comparison) -> Panel:
    low, high = (100 * (edge - 1) for edge in found.ci)
    margin = 100 * found.assumptions.margin
    panel = Panel(f"Change of step time, {found.assumptions.confidence:.0%} interval", (0, 1), (0, 1), height=104)
    panel.x = widened(min(low, -margin), max(high, margin), 0.1)
    panel.axis_x(lambda value: f"{value:+.3g} %" if abs(value) > 1e-9 else "0")
    panel.line("level", (0.0, 0.0), (0.0, 1.0))
    panel.line("new", (low, 0.5), (high, 0.5))
    for edge in (low, high):
        panel.line("new", (edge, 0.3), (edge, 0.7))
    panel.dots("new", [(100 * found.change, 0.5)], 4)
    return panel


def _distributions(sides: tuple[Side, Side], low: float, high: float) -> Panel:
    panel = Panel("Steady steps by time; lines: medians", (low, high), (0, 2.3))
    panel.axis_x(seconds(low, high))
    for side, style, floor in zip(sides, STYLES, (1.15, 0.0), strict=True):
        counts, edges = np.histogram(np.clip(pooled(side), low, high), BINS, (low, high))
        heights = floor + counts / counts.max()
        corners = [(low, floor)]
        for height, left, right in zip(heights.tolist(), edges[:-1].tolist(), edges[1:].tolist(), strict=True):
            corners += [(left, height), (right, height)]
        panel.area(style, [*corners, (high, floor)])
        panel.line(style, (side.median_s, floor), (side.median_s, floor + 1.05))
        panel.text(style, (low, floor + 0.8), printable(side.label), "start")
        panel.shapes[-1].at["x"] = 8.0
    return panel


def _in_order(sides: tuple[Side, Side], low: float, high: float) -> Panel:
    groups = max(1, *(-(-side.steps // MOST_DOTS) for side in sides))
    dot = "step" if groups == 1 else f"median of {groups} steps"
    points = [[point for run in side.runs for point in _thinned(run.step, run.step_time_s, groups)] for side in sides]
    numbers = [number for side in points for number, _ in side]
    panel = Panel(f"Step times in order, a dot per {dot}", widened(min(numbers), max(numbers), 0.02), (low, high))
    panel.axis_y(seconds(low, high))
    panel.axis_x(lambda value: f"{value:.0f}")
    for dots, style in zip(points, STYLES, strict=True):
        panel.dots(style, [(number, min(max(time, low), high)) for number, time in dots])
    for side, style, place in zip(sides, STYLES, (0.55, 1.0), strict=True):
        name = f"{'●' if style == 'base' else '○'} {printable(side.label)}"
        panel.text(style, (panel.x[0] + place * (panel.x[1] - panel.x[0]), high), name, "end", -5)
    return panel


def _thinned(step: np.ndarray, times: np.ndarray, groups: int) -> list[tuple[float, float]]:
    pieces = range(0, len(step), groups)
    return [(float(step[i]), float(np.median(times[i : i + groups]))) for i in pieces]
