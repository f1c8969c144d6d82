"""A history of step times as text, JSON and picture."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from pgle.report import json
from pgle.report.compare import BARS
from pgle.report.page.charts import Panel, seconds, svg, widened
from pgle.report.text import console, duration, printable, table, warn
from pgle.steps.history import Entry, History, Trend

SCHEMA = "pgle.history/1"
MOST_NAMES = 5
"""Entries named below a chart."""


def show_added(path: Any, entry: Entry, *, as_json: bool) -> None:
    """One line on what was added, or the entry as JSON."""
    if as_json:
        json.show(SCHEMA, {"file": path, "added": entry})
        return
    kind = " (simulated)" if entry.simulated else ""
    console().print(
        f"{path}: added {entry.name} on {entry.hardware}: {duration(entry.median_s * 1e6)} ± {entry.spread:.1%}{kind}",
        markup=False,
        soft_wrap=True,
    )


def show_text(history: History, last: int) -> None:
    """For each trend a line of bars and a table of the last entries; a change point is marked at its first entry."""
    out = console()
    for number, trend in enumerate(history.trends):
        if number:
            out.print()
        label = " (simulated)" if any(entry.simulated for entry in trend.entries) else ""
        title = f"{printable(trend.name)} on {printable(trend.hardware)}{label}"
        out.print(title, style="bold", markup=False)
        out.print(sparkline(trend), markup=False)
        rows = [_row(trend, index) for index in range(len(trend.entries))][-last if last else None :]
        out.print(
            table(("time", "commit", "step time", "steps", "change", "note"), rows, right="step time|steps|change")
        )
        count = len(trend.changes)
        found = (
            f"{count} change point{'s' * (count != 1)}"
            if len(trend.entries) > 5
            else "too few entries for change points"
        )
        out.print(f"{len(trend.entries)} entries, noise between them {trend.noise:.2%}, {found}", style="dim")
    warn(history.warnings)


def sparkline(trend: Trend, width: int = 80) -> str:
    """The last medians as bars, ``|`` before each change of level."""
    entries = trend.entries[-width:]
    first = len(trend.entries) - len(entries)
    times = [entry.median_s for entry in entries]
    low, high = min(times), max(times)
    begins = {change.index - first for change in trend.changes}
    text = ""
    for index, value in enumerate(times):
        share = (value - low) / (high - low) if high > low else 0.5
        text += ("|" if index in begins else "") + BARS[round(share * (len(BARS) - 1))]
    return f"{text}  {duration(low * 1e6)} … {duration(high * 1e6)}"


def _row(trend: Trend, index: int) -> tuple[str, ...]:
    entry = trend.entries[index]
    change = next((item for item in trend.changes if item.index == index), None)
    mark = "" if change is None else f"{'▲' if change.change > 0 else '▼'} {change.change:+.2%}"
    time = f"{duration(entry.median_s * 1e6)} ± {entry.spread:.1%}"
    return entry.time[:16], printable(entry.commit), time, str(entry.steps), mark, printable(entry.note)


def show_json(history: History) -> None:
    """``pgle.history/1``: trends with entries and change points."""
    trends = [
        {**json.plain(trend), "changes": [{**json.plain(item), "change": item.change} for item in trend.changes]}
        for trend in history.trends
    ]
    json.show(SCHEMA, {"trends": trends, "warnings": history.warnings})


def plot(history: History) -> str:
    """A chart per trend as SVG: medians with quartiles, levels, a line at each change point."""
    names = ", ".join(f"{trend.name} on {trend.hardware}" for trend in history.trends)
    return svg([_panel(trend) for trend in history.trends], f"step times of {names}")


def _panel(trend: Trend) -> Panel:
    entries, count = trend.entries, len(trend.entries)
    low, high = widened(
        min(item.median_s * (1 - item.spread) for item in entries),
        max(item.median_s * (1 + item.spread) for item in entries),
        0.1,
    )
    label = " (simulated)" if any(item.simulated for item in entries) else ""
    panel = Panel(f"{printable(trend.name)} on {printable(trend.hardware)}{label}", (-0.5, count - 0.5), (low, high))
    panel.axis_y(seconds(low, high))
    shown = range(0, count, -(-count // MOST_NAMES))
    named = {float(index): entries[index].commit[:9] or entries[index].time[:10] for index in shown}
    panel.axis_x(lambda index: printable(named[index]), list(named))
    for index, item in enumerate(entries):
        reach = item.median_s * item.spread
        panel.line("spread", (index, item.median_s - reach), (index, item.median_s + reach))
    panel.dots("base", [(index, item.median_s) for index, item in enumerate(entries)], 2.5)
    edges = [0, *(change.index for change in trend.changes), count]
    levels = [trend.changes[0].before_s, *(item.after_s for item in trend.changes)] if trend.changes else []
    for level, (first, after) in zip(levels, pairwise(edges), strict=bool(levels)):
        panel.line("level", (first - 0.4, level), (after - 0.6, level))
    for change in trend.changes:
        panel.line("mark", (change.index - 0.5, low), (change.index - 0.5, high))
        panel.text("mark", (change.index - 0.5, high), f"{change.change:+.2%}", "middle", -2)
    return panel
