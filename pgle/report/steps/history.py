"""A history of step times as text and JSON."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from pgle.report import json
from pgle.report.text import console, duration, printable, table
from pgle.steps.history import Entry, Trend

SCHEMA = "pgle.history/1"
COLUMNS = ("time", "commit", "step time", "steps", "note")


def show_added(path: Any, entry: Entry, *, as_json: bool) -> None:
    """One line on what was added, or the entry as JSON."""
    if as_json:
        json.show(SCHEMA, {"file": path, "added": entry})
        return
    kind = " (simulated)" if entry.simulated else ""
    console().print(f"{path}: added {entry.name} on {entry.hardware}: {_time(entry)}{kind}", soft_wrap=True)


def show_text(trends: Sequence[Trend], last: int) -> None:
    """For each trend a table of the last entries, and how much launches differ."""
    out = console()
    for number, trend in enumerate(trends):
        if number:
            out.print()
        label = " (simulated)" if any(entry.simulated for entry in trend.entries) else ""
        out.print(f"{printable(trend.name)} on {printable(trend.hardware)}{label}", style="bold")
        rows = [
            (entry.time[:16], printable(entry.commit), _time(entry), str(entry.steps), printable(entry.note))
            for entry in trend.entries[-last if last else None :]
        ]
        out.print(table(COLUMNS, rows, right="step time|steps"))
        out.print(_noise(trend), style="dim")


def _time(entry: Entry) -> str:
    return f"{duration(entry.median_s * 1e6)} ± {entry.spread:.1%}"


def _noise(trend: Trend) -> str:
    count = len(trend.present)
    if trend.noise is None:
        return "1 entry at this level; each further run of the same name and hardware adds one"
    since = "" if count == len(trend.entries) else f" since {trend.present[0].time[:16]}, when the level changed"
    return f"launches differ by {trend.noise:.2%} (standard deviation of {count} entries{since})"


def show_json(trends: Sequence[Trend], warnings: Iterable[str]) -> None:
    """``pgle.history/1``: trends with their entries, present level and noise."""
    json.show(SCHEMA, {"trends": [json.whole(trend, "level_s noise") for trend in trends], "warnings": list(warnings)})
