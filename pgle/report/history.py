"""A history of step times as text, JSON and picture."""

from __future__ import annotations

import io
from typing import Any

from pgle.report import json
from pgle.report.compare import BARS
from pgle.report.text import console, duration, printable, table, warn
from pgle.steps.history import Entry, History, Trend

SCHEMA = "pgle.history/1"


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


def plot(history: History, format: str) -> bytes:
    """A panel per trend: medians with quartiles, levels, a line at each change point."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "pgle"
    from matplotlib import pyplot

    count = len(history.trends)
    figure, panels = pyplot.subplots(count, 1, figsize=(9, 3 * count), squeeze=False, layout="constrained")
    try:
        for axes, trend in zip(panels[:, 0], history.trends, strict=True):
            _panel(axes, trend)
        buffer = io.BytesIO()
        figure.savefig(buffer, format=format, metadata={"Date": None} if format == "svg" else {"Software": None})
    finally:
        pyplot.close(figure)
    return buffer.getvalue()


def _panel(axes: Any, trend: Trend) -> None:
    times = [entry.median_s * 1e3 for entry in trend.entries]
    spreads = [entry.median_s * entry.spread * 1e3 for entry in trend.entries]
    axes.errorbar(range(len(times)), times, yerr=spreads, fmt=".", color="#4477aa", ecolor="#bbccee")
    edges = [0, *(change.index for change in trend.changes), len(times)]
    for change in trend.changes:
        axes.axvline(change.index - 0.5, color="#ee6677", linewidth=1)
        axes.annotate(f"{change.change:+.2%}", (change.index, max(times)), color="#ee6677")
        axes.hlines(change.after_s * 1e3, change.index, edges[edges.index(change.index) + 1] - 1, color="#222222")
    if trend.changes:
        axes.hlines(trend.changes[0].before_s * 1e3, 0, trend.changes[0].index - 1, color="#222222")
    label = " (simulated)" if any(entry.simulated for entry in trend.entries) else ""
    axes.set(title=f"{trend.name} on {trend.hardware}{label}", ylabel="step time, ms")
    shown = range(0, len(times), max(1, len(times) // 10))
    names = [trend.entries[i].commit or trend.entries[i].time[:10] for i in shown]
    axes.set_xticks(list(shown), names, rotation=30, ha="right")
