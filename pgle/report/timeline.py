"""Timelines as a picture (SVG), as a page (HTML) and as text; each is one self-contained value."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from importlib import resources
from typing import Any

import numpy as np

from pgle.files import AnyPath
from pgle.report.charts import templates
from pgle.report.text import duration
from pgle.report.timeline_layout import Picture, View, lay_out
from pgle.schedule.intervals import covered, without
from pgle.schedule.timeline import ORIGINS, Exposure, Stream

CLOSE_UPS = 3
"""The most exposed collectives get a picture of their own."""

_SHADES = " ░▒▓█"


def render_svg(views: Sequence[View], window: tuple[float, float] | None = None) -> str:
    """One picture, a panel per view, one above the other on one time axis. Light or dark as the reader's system is.

    Args:
        views: what to draw.
        window: the part of the step to draw, microseconds; all where None.
    """
    return _svg(lay_out(views, window), views, style=_style(), number=0)


def render_page(views: Sequence[View], *, title: str = "Timeline", intro: str = "") -> str:
    """A page: the picture, where the time goes, the collectives side by side, and the most exposed ones close up.

    Args:
        views: what to draw; the first is what the others are compared with.
        title: heading and window title.
        intro: one paragraph below it.
    """
    return (
        templates()
        .get_template("timeline.html.j2")
        .render(
            title=title,
            intro=intro,
            style=_style(),
            picture=_svg(lay_out(views), views, number=0),
            summary=_summary(views),
            labels=[view.label for view in views],
            collectives=_collectives(views),
            close_ups=[
                _svg(lay_out(shown, window, legend=False), shown, number=number)
                for number, (shown, window) in enumerate(_close_ups(views), start=1)
            ],
            warnings=list(dict.fromkeys(line for view in views for line in view.timeline.warnings)),
        )
    )


def picture_files(folder: AnyPath, views: Sequence[View], *, title: str, intro: str = "") -> dict[AnyPath, str]:
    """What to write for a comparison: ``timeline.html``, ``timeline.svg`` and ``timeline.trace.json`` (Perfetto)."""
    return {
        folder / "timeline.html": render_page(views, title=title, intro=intro),
        folder / "timeline.svg": render_svg(views),
        folder / "timeline.trace.json": render_trace(views),
    }


def text_timeline(views: Sequence[View], width: int = 100) -> str:
    """The lanes as shades of how busy they are, and a line that marks where communication is exposed."""
    longest = max((view.timeline.step_us for view in views), default=0.0)
    cells = width - 16
    edges = np.linspace(0.0, max(longest, 1e-9), cells + 1)
    lines: list[str] = []
    for view in views:
        parts = view.timeline.breakdown
        costs = f" ({view.note} costs)" if view.note not in ("", "measured") else ""
        lines.append(
            f"{view.label}: step {duration(parts.step_us)}{costs}, exposed communication "
            f"{duration(parts.exposed_communication_us)}, idle {duration(parts.idle_us)}"
        )
        compute = view.timeline.busy(Stream.COMPUTE)
        for stream in Stream:
            busy = view.timeline.busy(stream)
            if len(busy):
                share = covered(busy, edges[:-1], edges[1:]) / np.diff(edges)
                shades = np.ceil(share * (len(_SHADES) - 1) - 1e-9).astype(int)
                lines.append(f"{stream.name.lower():>14}  {''.join(_SHADES[shade] for shade in shades).rstrip()}")
        exposed = without(view.timeline.busy(Stream.COMMUNICATION), compute)
        share = covered(exposed, edges[:-1], edges[1:]) / np.diff(edges)
        marks = "".join("^" if part > 0.5 else "'" if part > 0.05 else " " for part in share)
        if marks.strip():
            lines.append(f"{'exposed':>14}  {marks.rstrip()}")
    lines.append(f"{'':16}0{duration(longest):>{cells - 1}}")
    return "\n".join(lines) + "\n"


def _svg(picture: Picture, views: Sequence[View], *, number: int, style: str = "") -> str:
    alt = "; ".join(f"{view.label}: step {duration(view.timeline.step_us)}" for view in views)
    return templates().get_template("timeline.svg.j2").render(p=picture, alt=alt, id=f"pgle{number}", style=style)


@cache
def _style() -> str:
    return resources.files("pgle.report").joinpath("templates/timeline.css").read_text(encoding="utf-8")


def _summary(views: Sequence[View]) -> list[tuple[str, list[str]]]:
    """Rows of the table of where the time goes."""
    parts = [view.timeline.breakdown for view in views]
    base = parts[0].step_us if parts else 0.0
    rows = [
        ("step", [duration(part.step_us) for part in parts]),
        ("of the first", [f"{part.step_us / base:.1%}" if base else "" for part in parts]),
        ("compute", [duration(part.compute_us) for part in parts]),
        ("exposed communication", [duration(part.exposed_communication_us) for part in parts]),
        ("exposed copies", [duration(part.exposed_copy_us) for part in parts]),
        ("idle (launch gaps, waits)", [duration(part.idle_us) for part in parts]),
        ("communication hidden", [f"{part.overlap:.1%}" for part in parts]),
        ("bound by", [view.timeline.bound for view in views]),
        ("costs", [view.note or "" for view in views]),
    ]
    return [row for row in rows if row[0] != "exposed copies" or any(part.copy_us for part in parts)]


def _collectives(views: Sequence[View]) -> list[tuple[str, str, list[Exposure | None]]]:
    """Name when LHS ran, kind and, per view, what becomes of it; most exposed anywhere first."""
    tables = [{item.lhs_name or item.name: item for item in view.timeline.exposures} for view in views]
    names = dict.fromkeys(name for table in tables for name in table)
    rows = []
    for name in names:
        found = [table.get(name) for table in tables]
        kind = next(item.kind for item in found if item is not None)
        rows.append((name, kind, found))
    return sorted(rows, key=lambda row: -max(item.exposed_us for item in row[2] if item is not None))


def _close_ups(views: Sequence[View]) -> list[tuple[list[View], tuple[float, float]]]:
    """Windows around the most exposed collectives of the first view, one and a half times as long on either side."""
    found = []
    for item in views[0].timeline.exposures[:CLOSE_UPS] if views else ():
        if item.exposed_us < 0.001 * views[0].timeline.step_us:
            continue
        spans = [_span(view, item.lhs_name or item.name) for view in views]
        reach = max(end - start for start, end in spans if end > start) * 1.5
        for view, (start, end) in zip(views, spans, strict=True):
            if end > start:
                window = (max(start - reach, 0.0), min(end + reach, view.timeline.step_us))
                found.append(([replace(view, label=f"{item.lhs_name or item.name} in {view.label}")], window))
    return found


def _span(view: View, name: str) -> tuple[float, float]:
    """The first run of an instruction; (0, 0) where it does not run."""
    timeline = view.timeline
    names = timeline.lhs_names or timeline.names
    if name not in names:
        return 0.0, 0.0
    row = int(np.flatnonzero(timeline.instruction == names.index(name))[0])
    return float(timeline.start_us[row]), float(timeline.end_us[row])


def render_trace(views: Sequence[View]) -> str:
    """One process per view, one thread per stream. A folded loop is one iteration, stretched, with its count."""
    events = [event for number, view in enumerate(views, start=1) for event in _events(number, view)]
    return json.dumps({"displayTimeUnit": "ms", "traceEvents": events}, separators=(",", ":")) + "\n"


def _events(process: int, view: View) -> Iterator[dict[str, Any]]:
    timeline = view.timeline
    label = f"{view.label} (predicted{f' from {view.note} costs' if view.note else ''})"
    yield _name("process_name", process, 0, label)
    for stream in Stream:
        yield _name("thread_name", process, stream + 1, stream.name.lower())
    for row in range(len(timeline)):
        code = int(timeline.instruction[row])
        arguments: dict[str, Any] = {"cost": ORIGINS[int(timeline.origin[row])].value}
        if timeline.count[row] > 1:
            arguments["executions"] = int(timeline.count[row])
        if timeline.sync[row]:
            arguments["synchronous"] = True
        yield {
            "ph": "X",
            "pid": process,
            "tid": int(timeline.stream[row]) + 1,
            "ts": round(float(timeline.start_us[row]), 3),
            "dur": round(float(timeline.duration_us[row]), 3),
            "name": timeline.names[code],
            "cat": timeline.kinds[code] if timeline.kinds else "",
            "args": arguments,
        }


def _name(what: str, process: int, thread: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "pid": process, "tid": thread, "name": what, "args": {"name": name}}
