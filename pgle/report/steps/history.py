"""A history of step times as a page and as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from pgle.errors import many, printable
from pgle.report import text
from pgle.report.page import figures
from pgle.report.page.value import Page, Prose, Section, Table, table
from pgle.steps.history import Entry, Trend

NEWEST = 5  # entries on the first screen
HEADS = "time | commit | step (time) | against now (change) | ± (share) | steps (count) | note"


def added_page(path: object, entry: Entry, following: Sequence[str] = ()) -> Page:
    """What was added."""
    kind = "simulated" if entry.simulated else "measured"
    time = f"{figures.time(entry.median_s * 1e6)} ± {figures.share(entry.spread)}"
    return Page(
        title=f"{path} · pgle history add",
        identity=(f"{printable(entry.name)} on {printable(entry.hardware)}", kind, str(path)),
        verdict=f"Added: {time}, {many(entry.steps, 'steady step')}",
        tone="good",
        next=tuple(following),
    )


def history_page(path: object, trends: Sequence[Trend], warnings: Sequence[str], following: Sequence[str] = ()) -> Page:
    """The newest entries of the only trend, or a row for each of several; all entries in sections."""
    identity = [_counted(sum(len(trend.entries) for trend in trends)), str(path)]
    verdict, table = many(len(trends), "trend"), _overview(trends)
    notes: tuple[str, ...] = ()
    sections = [
        Section(str(n), _named(trend), (_entries(trend), Prose(noise(trend)))) for n, trend in enumerate(trends, 1)
    ]
    if len(trends) == 1:
        identity = [_named(trends[0]), *identity]
        verdict, table, notes, sections = _level(trends[0]), _entries(trends[0]), (noise(trends[0]),), []
    return Page(
        title=f"{path} · pgle history show",
        identity=tuple(identity),
        verdict=verdict,
        table=table,
        notes=notes,
        sections=tuple(sections),
        next=tuple(following),
        warnings=tuple(warnings),
    )


def _entries(trend: Trend) -> Table:
    """The newest first."""
    rows = (
        (entry.time[:16], printable(entry.commit), entry.median_s * 1e6, entry.median_s / trend.level_s - 1,
         entry.spread, entry.steps, printable(entry.note))
        for entry in reversed(trend.entries)
    )  # fmt: skip
    return table(HEADS, rows, shown=NEWEST)


def _overview(trends: Iterable[Trend]) -> Table:
    """A row for each trend."""
    rows = (
        (
            printable(trend.name), printable(trend.hardware), len(trend.entries), trend.entries[-1].time[:16],
            trend.level_s * 1e6, trend.noise and figures.share(trend.noise, 2),
        )
        for trend in trends
    )  # fmt: skip
    return table("workload | hardware | entries (count) | newest | step now (time) | launches differ by", rows)


def _counted(count: int) -> str:
    return "1 entry" if count == 1 else f"{count:,} entries"


def _level(trend: Trend) -> str:
    now = f"Now {figures.time(trend.level_s * 1e6)}"
    return now if trend.noise is None else f"{now}; launches differ by {figures.share(trend.noise, 2)}"


def _named(trend: Trend) -> str:
    kind = " (simulated)" if any(entry.simulated for entry in trend.entries) else ""
    return f"{printable(trend.name)} on {printable(trend.hardware)}{kind}"


def noise(trend: Trend) -> str:
    """What the spread of launches is computed from."""
    count = len(trend.present)
    if trend.noise is None:
        return "One entry at this level. Add more runs to measure how much launches differ."
    since = "" if count == len(trend.entries) else f" since {trend.present[0].time[:16]}, when the level changed"
    return f"Standard deviation of {count} entries{since}."


def document(trends: Sequence[Trend], warnings: Iterable[str]) -> dict[str, Any]:
    """``pgle.history/1``: trends with their entries, present level and noise."""
    return {"trends": [text.whole(trend, "level_s noise") for trend in trends], "warnings": list(warnings)}
