"""The still picture: panels as SVG, and the same panels as the moving timeline of a page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from pgle.report.page.figures import time
from pgle.report.page.html import style_sheet, templates, ticks
from pgle.report.page.value import Timeline
from pgle.report.timeline.perfetto import encode
from pgle.report.timeline.scene import Lane, Panel, Span, Style, shown, text_timeline
from pgle.trace.intervals import Intervals, covered, union, without

WIDTH, GUTTER, MARGIN = 1200.0, 118.0, 18.0
LANE, STRIP, SPACE, LOOP_LANE = 28.0, 12.0, 6.0, 16.0
HEADER, AXIS, PANEL_SPACE = 44.0, 26.0, 24.0
NARROW = 1.5  # bars of fewer pixels are drawn as how busy their pixels are
LETTER = 6.2  # average width of a letter of the labels in pixels, at 11 px

STYLES = {Style.COMPUTE: "compute", Style.MATMUL: "matmul", Style.COMMUNICATION: "hidden", Style.COPY: "copy"}
LEGEND = {
    "matmul": "matmul",
    "compute": "other compute",
    "hidden": "communication, hidden behind compute",
    "exposed": "communication, exposed",
    "copy": "copy",
    "idle": "idle",
}


@dataclass(frozen=True, slots=True)
class Box:
    """A rectangle with a tooltip; `style` is a class of the style sheet."""

    x: float
    y: float
    width: float
    height: float
    style: str
    title: str = ""
    text: str = ""


@dataclass(frozen=True, slots=True)
class Label:
    """A text; `anchor` as in SVG."""

    x: float
    y: float
    text: str
    style: str = ""
    anchor: str = "start"


@dataclass
class Picture:
    """All that is drawn, in order, and how large it is."""

    until_us: float  # time is drawn from 0 to here
    height: float = 8.0  # in pixels
    # boxes, labels, ticks: what is drawn
    boxes: list[Box] = field(default_factory=list)
    labels: list[Label] = field(default_factory=list)
    ticks: list[Label] = field(default_factory=list)
    tick_bottom: float = 0.0  # where the lines of the axis end

    def x(self, time: float) -> float:
        """The x of a time, at most the right edge."""
        return GUTTER + min(time, self.until_us) * self.pixels

    @property
    def pixels(self) -> float:
        """How many a microsecond takes."""
        return (WIDTH - GUTTER - MARGIN) / max(self.until_us, 1e-9)

    @property
    def legend(self) -> list[tuple[str, str]]:
        """The styles that are drawn, each with what it means."""
        drawn = {box.style for box in self.boxes}
        return [(style, text) for style, text in LEGEND.items() if style in drawn]


def render_svg(panels: Sequence[Panel], until_us: float = 0.0) -> str:
    """One picture, a panel above the other on one time axis. Light or dark as the reader's system is.

    Args:
        panels: what to draw.
        until_us: the part to draw, from 0; 0: all.
    """
    picture = lay_out(panels, until_us)
    alt = "; ".join(f"{panel.label}: {panel.facts}" for panel in panels)
    values = {"p": picture, "width": WIDTH, "alt": alt, "style": style_sheet("picture", ".pgle-timeline")}
    return templates().get_template("picture.svg.j2").render(values)


def lay_out(panels: Sequence[Panel], until_us: float = 0.0) -> Picture:
    """Where everything is, in pixels; see `render_svg`."""
    picture = Picture(until_us or shown(panels) or 1.0)
    for panel in panels:
        _draw(panel, picture)
        picture.height += PANEL_SPACE
    picture.tick_bottom = picture.height - 10
    picture.ticks = [
        Label(picture.x(tick), picture.height + 4, _tick(tick, picture.until_us), "tick", "middle")
        for tick in ticks(0.0, picture.until_us, 8)
    ]
    picture.height += AXIS + 24
    return picture


def _draw(panel: Panel, picture: Picture) -> None:
    """Header, loops, what the device does as a whole, and each lane."""
    top = picture.height
    picture.labels += [
        Label(MARGIN, top + 14, panel.label, "title"),
        Label(WIDTH - MARGIN, top + 14, panel.note, "note", "end"),
        Label(MARGIN, top + 31, panel.facts, "facts"),
    ]
    y = top + HEADER - 6
    spans = [span for span in panel.spans if span.depth == 0 and span.start_us < picture.until_us]
    for span in spans:
        _loop(span, y, picture)
    y += LOOP_LANE + 2 if spans else 4
    _device(panel, y, picture)
    y += STRIP + SPACE
    for lane in panel.lanes:
        picture.labels.append(Label(GUTTER - 10, y + LANE / 2 + 4, lane.label, "lane", "end"))
        _lane(panel, lane, y, picture)
        y += LANE + SPACE
    picture.height = y - SPACE


def _loop(span: Span, y: float, picture: Picture) -> None:
    left, right = picture.x(span.start_us), picture.x(span.end_us)
    more = f", {span.folded} of them drawn as one, stretched" if span.folded else ""
    text = _fit(span.label + more, right - left) or _fit(span.label, right - left)
    title = f"{span.label}{more}: {time(span.end_us - span.start_us)}"
    picture.boxes.append(Box(left, y, max(right - left, 1), LOOP_LANE - 2, "loop", title, text))


def _device(panel: Panel, y: float, picture: Picture) -> None:
    """One strip that says what the device does at each time: compute, else exposed, else idle."""
    picture.labels.append(Label(GUTTER - 10, y + STRIP / 2 + 4, "device", "lane", "end"))
    left, right = picture.x(0.0), picture.x(panel.length_us)
    picture.boxes.append(Box(left, y, max(right - left, 1), STRIP, "idle", panel.facts))
    parts = {"compute": panel.compute, "exposed": panel.exposed, "copy": panel.exposed_copies}
    _shares(parts, left, right, y, STRIP, picture)


def _lane(panel: Panel, lane: Lane, y: float, picture: Picture) -> None:
    rows = np.flatnonzero(lane.start_us < picture.until_us)
    exposed = panel.exposed_us(lane)
    wide = rows[lane.duration_us[rows] * picture.pixels >= NARROW]
    narrow = np.setdiff1d(rows, wide)
    style = panel.styles[lane.named]
    of_style = {
        STYLES[Style(code)]: union(lane.start_us[mine], lane.end_us[mine])
        for code in np.unique(style[narrow]).tolist()
        for mine in [narrow[style[narrow] == code]]
    }
    if of_style:
        _shares(of_style, GUTTER, WIDTH - MARGIN, y, LANE, picture)
    picture.boxes += [_box(panel, lane, int(row), float(exposed[row]), y, picture) for row in wide]
    communicates = style == Style.COMMUNICATION
    mine = union(lane.start_us[communicates], lane.end_us[communicates])
    bare = without(panel.exposed, without(panel.exposed, mine))
    seen = (bare.end - bare.start) * picture.pixels >= NARROW
    for first, last in zip(bare.start[seen].tolist(), bare.end[seen].tolist(), strict=True):
        picture.boxes.append(Box(picture.x(first), y, picture.x(last) - picture.x(first), LANE, "exposed"))
    tiny = {"exposed": Intervals(bare.start[~seen], bare.end[~seen])}
    _shares(tiny, GUTTER, WIDTH - MARGIN, y, LANE, picture)


def _box(panel: Panel, lane: Lane, row: int, exposed_us: float, y: float, picture: Picture) -> Box:
    item, length, count = panel.names[lane.named[row]], float(lane.duration_us[row]), int(lane.count[row])
    times = f" × {count} = {time(length)}" if count > 1 else ""
    lines = [item.name, f"{item.kind} {time(length / count)}{times}".strip()]
    if item.style not in (Style.COMPUTE, Style.MATMUL):
        lines.append(f"exposed {time(exposed_us)}" + (", synchronous" if item.sync else ""))
    lines.append(f"{item.cost} cost, starts at {time(float(lane.start_us[row]))}".strip())
    left, right = (picture.x(float(time[row])) for time in (lane.start_us, lane.end_us))
    text = _fit(item.name + (" (synchronous)" if item.sync else ""), right - left)
    return Box(left, y, max(right - left - 0.5, 1.0), LANE, STYLES[item.style], "\n".join(lines), text)


def _shares(parts: dict[str, Intervals], left: float, right: float, y: float, size: float, picture: Picture) -> None:
    """Each pixel as high as its parts' shares of it, one upon the other; equal neighbours are one box."""
    edges = np.arange(np.floor(left), np.ceil(right) + 1)
    if len(edges) < 2:
        return
    times = (edges - GUTTER) / picture.pixels
    foot = np.zeros(len(edges) - 1)
    for style, times_of in parts.items():
        share = covered(times_of, times[:-1], times[1:]) / np.diff(times)
        height = np.where(share > 1e-9, np.maximum(np.round(share * size), 1.0), 0.0)
        for first, last in _runs(np.stack([height, foot])):
            if height[first]:
                top = y + size - float(foot[first] + height[first])
                x, to = max(float(edges[first]), left), min(float(edges[last]), right)
                picture.boxes.append(Box(x, top, to - x, float(height[first]), style))
        foot = np.minimum(foot + height, size - 1)


def _runs(columns: np.ndarray) -> list[tuple[int, int]]:
    """The runs of equal neighbours, each as (first, one after the last)."""
    change = np.flatnonzero((columns[:, 1:] != columns[:, :-1]).any(axis=0)) + 1
    edges = [0, *change.tolist(), columns.shape[1]]
    return list(pairwise(edges))


def _fit(text: str, width: float) -> str:
    """The text if it fits, cut if most of it does, else nothing."""
    room = int((width - 8) / LETTER)
    if len(text) <= room:
        return text
    return f"{text[: room - 1]}…" if room >= 6 else ""


def _tick(time: float, span: float) -> str:
    unit, name = (1e6, "s") if span >= 3e6 else (1e3, "ms") if span >= 3e3 else (1.0, "µs")
    return f"{time / unit:.6g} {name}"


def timeline(panels: Sequence[Panel], first_us: float = 0.0) -> Timeline:
    """A timeline of panels.

    Args:
        panels: schedules or devices, one above the other.
        first_us: the part of time that is seen first, from 0; 0: one step, or all if there are no steps.
    """
    return Timeline(encode(panels, first_us), text_timeline(panels, until_us=first_us), render_svg(panels, first_us))
