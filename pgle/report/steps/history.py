"""A history of step times as text, JSON and picture."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

from pgle.errors import many
from pgle.report import json
from pgle.report.page.charts import Panel, seconds, svg, widened
from pgle.report.page.html import render
from pgle.report.page.parts import Chart, Page, Part, Prose, Section, Table
from pgle.report.steps.compare import BARS
from pgle.report.text import console, duration, printable, table, warn
from pgle.steps.history import Entry, History, Trend

SCHEMA = "pgle.history/1"
COLUMNS = ("time", "commit", "step time", "steps", "change", "note")
RIGHT = frozenset((2, 3, 4))  # columns that are numbers
MOST_NAMES = 5  # entries named below a chart


def show_added(path: Any, entry: Entry, *, as_json: bool) -> None:
    """One line on what was added, or the entry as JSON."""
    if as_json:
        json.show(SCHEMA, {"file": path, "added": entry})
        return
    kind = " (simulated)" if entry.simulated else ""
    time = f"{duration(entry.median_s * 1e6)} ± {entry.spread:.1%}{kind}"
    console().print(f"{path}: added {entry.name} on {entry.hardware}: {time}", soft_wrap=True)


def show_text(history: History, last: int) -> None:
    """For each trend a line of bars and a table of the last entries; a change point is marked at its first entry."""
    out = console()
    for number, trend in enumerate(history.trends):
        if number:
            out.print()
        out.print(_title(trend), style="bold")
        out.print(sparkline(trend))
        rows = [_row(trend, index) for index in range(len(trend.entries))][-last if last else None :]
        out.print(table(COLUMNS, rows, right="step time|steps|change"))
        out.print(_level(trend), style="dim")
    warn(history.warnings)


def sparkline(trend: Trend) -> str:
    """The last eighty medians as bars, ``|`` before each change of level."""
    entries = trend.entries[-80:]
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
    time = f"{duration(entry.median_s * 1e6)} ± {entry.spread:.1%}"
    what = (printable(entry.commit), time, str(entry.steps), _change(trend, index), printable(entry.note))
    return (entry.time[:16], *what)


def _change(trend: Trend, index: int) -> str:
    """The change of level that begins with an entry; empty where none does."""
    change = next((item.change for item in trend.changes if item.index == index), None)
    return "" if change is None else f"{'▲' if change > 0 else '▼'} {change:+.2%}"


def show_json(history: History, written: Path | None = None) -> None:
    """``pgle.history/1``: trends with entries and change points, and the page or picture that was written of them."""
    trends = [
        {**json.plain(trend), "changes": [json.whole(item, "change") for item in trend.changes]}
        for trend in history.trends
    ]
    wrote = {} if written is None else {"written": written}
    json.show(SCHEMA, {"trends": trends, **wrote, "warnings": history.warnings})


def plot(history: History) -> str:
    """A chart per trend as SVG: medians with quartiles, levels, a line at each change point."""
    return svg([_panel(trend) for trend in history.trends], f"step times of {', '.join(map(_title, history.trends))}")


def page(history: History) -> str:
    """A page as HTML: what is slower since its last change, and per trend its chart and entries, the newest first."""
    slower = [trend for trend in history.trends if trend.changes and trend.changes[-1].change > 0]
    said = [f"{_title(trend)} {_change(trend, trend.changes[-1].index)}" for trend in slower]
    why = "Why: pgle analyze AFTER/perf --against BEFORE/perf, a run from after the change and one from before it."
    return render(
        Page(
            title="pgle history",
            verdict=f"Slower since the last change: {', '.join(said)}." if said else "Nothing is slower than before.",
            tone="bad" if said else "",
            sections=tuple(Section(_title(trend), tuple(_parts(trend))) for trend in history.trends),
            next=(Prose(why),) if said else (),
            warnings=history.warnings,
        )
    )


def _parts(trend: Trend) -> Iterator[Part]:
    chart = _panel(trend)
    chart.title = "Median step times and their quartiles"
    yield Chart((chart,), sparkline(trend))
    yield Prose(_level(trend))
    yield Table(COLUMNS, tuple(_row(trend, index) for index in reversed(range(len(trend.entries)))), RIGHT)


def _title(trend: Trend) -> str:
    label = " (simulated)" if any(entry.simulated for entry in trend.entries) else ""
    return f"{printable(trend.name)} on {printable(trend.hardware)}{label}"


def _level(trend: Trend) -> str:
    """How sure the level is: entries, noise, change points."""
    enough = len(trend.entries) > 5
    found = many(len(trend.changes), "change point") if enough else "too few entries for change points"
    if len(trend.entries) == 1:
        return "1 entry; each further run of the same name and hardware adds one"
    return f"{len(trend.entries)} entries, noise between them {trend.noise:.2%}, {found}"


def _panel(trend: Trend) -> Panel:
    entries, count = trend.entries, len(trend.entries)
    low, high = widened(
        min(item.median_s * (1 - item.spread) for item in entries),
        max(item.median_s * (1 + item.spread) for item in entries),
        0.1,
    )
    panel = Panel(_title(trend), (-0.5, count - 0.5), (low, high))
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
