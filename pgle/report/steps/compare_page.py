"""A comparison as files: a page that needs nothing else, a picture, JUnit XML."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from pgle.errors import printable
from pgle.files import AnyPath, write_files
from pgle.report.page.charts import Panel, seconds, svg, widened
from pgle.report.page.html import render
from pgle.report.page.value import Chart, Page
from pgle.report.steps.compare import comparison_page, headline, picture, pooled
from pgle.steps.compare import Comparison
from pgle.steps.gate import Check
from pgle.steps.side import Side

BINS = 60
MOST_DOTS = 600  # dots of a side; longer runs are drawn as medians of so many groups of steps
STYLES = ("base", "new")


def write_reports(
    found: Comparison,
    checks: Sequence[Check],
    following: Sequence[str] = (),
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
        files[html] = render(page(found, checks, following))
    if picture is not None:
        files[picture] = svg(panels(found), headline(found))
    if junit is not None:
        from pgle.report.steps.ci import xml

        files[junit] = xml(found, checks)
    if files:
        write_files(files, force=force)
    return wanted


def page(found: Comparison, checks: Sequence[Check], following: Sequence[str] = ()) -> Page:
    """The answer with its charts."""
    return comparison_page(found, checks, following, charts(found))


def charts(found: Comparison) -> tuple[Chart, ...]:
    """Each chart as a part of a page; the distributions have the text picture for a terminal."""
    drawn = panels(found)
    words = [panel.title for panel in drawn]
    words[-2] = "\n".join(picture(found))
    return tuple(Chart(svg([panel], panel.title, style=False), text) for panel, text in zip(drawn, words, strict=True))


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
    title = f"Change of the step time with its {found.assumptions.confidence * 100:g} % interval"
    panel = Panel(title, (0, 1), (0, 1), height=150, x_label="change of the step time")
    panel.x = widened(min(low, -margin), max(high, margin), 0.1)
    panel.axis_x(lambda value: f"{value:+.3g} %".replace("-", "−") if abs(value) > 1e-9 else "0")
    panel.line("level", (0.0, 0.0), (0.0, 1.0))
    panel.text("tick", (panel.x[0], 1.0), "◂ faster", "start", -4)
    panel.text("tick", (panel.x[1], 1.0), "slower ▸", "end", -4)
    panel.line("new", (low, 0.4), (high, 0.4))
    for edge in (low, high):
        panel.line("new", (edge, 0.25), (edge, 0.55))
    panel.dots("new", [(100 * found.change, 0.4)], 4)
    return panel


def _distributions(sides: tuple[Side, Side], low: float, high: float) -> Panel:
    panel = Panel("How many steps take how long (lines: medians)", (low, high), (0, 2.7), x_label="step time")
    panel.axis_x(seconds(low, high))
    for side, style, floor in zip(sides, STYLES, (1.4, 0.0), strict=True):
        counts, edges = np.histogram(np.clip(pooled(side), low, high), BINS, (low, high))
        heights = floor + counts / counts.max()
        corners = [(low, floor)]
        for height, left, right in zip(heights.tolist(), edges[:-1].tolist(), edges[1:].tolist(), strict=True):
            corners += [(left, height), (right, height)]
        panel.area(style, [*corners, (high, floor)])
        panel.line(style, (side.median_s, floor), (side.median_s, floor + 1.05))
        panel.text(style, (low, floor + 1.1), printable(side.label), "start")
    return panel


def _in_order(sides: tuple[Side, Side], low: float, high: float) -> Panel:
    groups = max(1, *(-(-side.steps // MOST_DOTS) for side in sides))
    dot = "step" if groups == 1 else f"median of {groups} steps"
    points = [[point for run in side.runs for point in _thinned(run.step, run.step_time_s, groups)] for side in sides]
    numbers = [number for side in points for number, _ in side]
    panel = Panel(f"Step times in order, a dot per {dot}", widened(min(numbers), max(numbers), 0.02), (low, high))
    panel.x_label = "step number"
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
