"""The step times that a history keeps, as a page and as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pgle.errors import many, printable
from pgle.next import Commands, to_way
from pgle.report.page import figures
from pgle.report.page.figures import Unit
from pgle.report.page.value import Column, Page, Table, Value, table
from pgle.report.text import Document
from pgle.steps.estimate import Entry, Trend

NEWEST = 5  # entries of a history on the first screen


def history_page(
    path: object,
    added: Entry,
    trend: Trend,
    *,
    warnings: Sequence[str] = (),
    following: Commands = (),
) -> Page:
    """A page on a new entry and its trend, the newest entries first."""
    time = f"{figures.time(added.median_s * 1e6)} ± {figures.share(added.spread)}"
    steps = many(added.steps, "steady step")
    return Page(
        title=f"{path} · pgle history add",
        identity=(_named(trend), _entry_count(trend), str(path)),
        verdict=f"Added: {time}, {steps}",
        tone="good",
        table=_entries(trend),
        notes=(_noise(trend),),
        way=to_way(following),
        warnings=tuple(warnings),
    )


def _entries(trend: Trend) -> Table:
    """A table of the entries, the newest first."""
    rows: list[tuple[Value, ...]] = []
    for entry in reversed(trend.entries):
        minute = entry.time[:16]
        against_now = entry.median_s / trend.level_s - 1
        step = (entry.median_s * 1e6, against_now, entry.spread, entry.steps)
        rows.append((minute, printable(entry.commit), *step, printable(entry.note)))
    heads = (
        "time",
        "commit",
        Column("step", Unit.TIME),
        Column("against now", Unit.CHANGE),
        Column("±", Unit.SHARE),
        Column("steps", Unit.COUNT),
        "note",
    )
    return table(heads, rows, shown=NEWEST)


def _entry_count(trend: Trend) -> str:
    count = len(trend.entries)
    return "1 entry" if count == 1 else f"{count:,} entries"


def _named(trend: Trend) -> str:
    kind = " (simulated)" if any(entry.simulated for entry in trend.entries) else ""
    return f"{printable(trend.name)} on {printable(trend.hardware)}{kind}"


def _noise(trend: Trend) -> str:
    """Say how much launches differ, and from how many entries that is known."""
    if trend.noise is None:
        return "One entry at this level. Add more runs to measure how much launches differ."
    is_all = len(trend.present) == len(trend.entries)
    since = (
        "" if is_all else f" since {trend.present[0].time[:16]}, when the level changed"
    )
    entries = f"{len(trend.present)} entries{since}"
    return f"Launches differ by {figures.share(trend.noise, 2)} (standard deviation of {entries})."


class TrendDocument(Document):
    """The entries of one name and hardware, with the trend's present level in seconds and its
    noise.
    """

    name: str
    hardware: str
    entries: tuple[Entry, ...]
    level_s: float
    noise: float | None


class HistoryDocument(Document):
    """``pgle.history/1``."""

    file: str
    trend: TrendDocument
    warnings: tuple[str, ...]


def history_document(
    path: object, trend: Trend, warnings: Iterable[str]
) -> HistoryDocument:
    """The trend of the new entry, and the history file."""
    return HistoryDocument(str(path), TrendDocument.of_value(trend), tuple(warnings))
