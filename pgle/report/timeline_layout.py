"""Geometry of the timeline picture: what is drawn where, in pixels. No markup."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import floor, log10

import numpy as np

from pgle.report.text import duration
from pgle.schedule.intervals import covered, without
from pgle.schedule.timeline import ORIGINS, Stream, Timeline

WIDTH, GUTTER, MARGIN = 1200.0, 118.0, 18.0
LANE, SPACE, LOOP_LANE = 30.0, 6.0, 16.0
HEADER, AXIS, PANEL_SPACE = 44.0, 26.0, 24.0
MIN_PIXELS = 0.8
"""Activities narrower than this are drawn together with their neighbours."""

LETTER = 6.2
"""Average width of a letter of the labels in pixels, at 11 px."""

COLLECTIVES = ("all-gather", "reduce-scatter", "all-reduce", "all-to-all", "collective-permute")
"""Collectives with a colour of their own; the rest share one."""


@dataclass(frozen=True, slots=True)
class View:
    """A timeline to draw.

    Attributes:
        label: ``baseline``.
        timeline: one step.
        note: where the costs come from: ``measured``, ``estimated``, ``mixed``.
    """

    label: str
    timeline: Timeline
    note: str = ""


@dataclass(frozen=True, slots=True)
class Bar:
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


@dataclass(frozen=True)
class Picture:
    """All that is drawn, in order, and how large it is."""

    width: float
    height: float
    bars: tuple[Bar, ...]
    labels: tuple[Label, ...]
    ticks: tuple[Label, ...]
    legend: tuple[tuple[str, str], ...]
    tick_top: float
    tick_bottom: float


def lay_out(views: Sequence[View], window: tuple[float, float] | None = None, *, legend: bool = True) -> Picture:
    """One panel per view, one above the other, on one time axis.

    Args:
        views: what to draw.
        window: the part of the step to draw, microseconds; the longest step where None.
        legend: list the colours.
    """
    start, end = window or (0.0, max((view.timeline.step_us for view in views), default=1.0))
    scale = (WIDTH - GUTTER - MARGIN) / max(end - start, 1e-9)
    bars: list[Bar] = []
    labels: list[Label] = []
    top = 8.0
    for view in views:
        top = _Panel(view, start, end, scale, top, bars, labels).draw() + PANEL_SPACE
    ticks = tuple(
        Label(GUTTER + (tick - start) * scale, top + 4, _tick(tick, end - start), "tick", "middle")
        for tick in _ticks(start, end)
    )
    styles = dict.fromkeys(bar.style.split()[0] for bar in bars) if legend else {}
    entries = tuple((style, LEGEND[style]) for style in LEGEND if style in styles)
    return Picture(
        width=WIDTH,
        height=top + AXIS + (24 if entries else 0),
        bars=tuple(bars),
        labels=tuple(labels),
        ticks=ticks,
        legend=entries,
        tick_top=HEADER,
        tick_bottom=top - 10,
    )


LEGEND = {
    "matmul": "matmul",
    "compute": "other compute",
    **{kind: kind for kind in COLLECTIVES},
    "communication": "other communication",
    "copy": "copy",
    "exposed": "exposed: nothing computes",
    "sync": "synchronous",
}


class _Panel:
    """Draws one view into the lists it is given."""

    def __init__(
        self, view: View, start: float, end: float, scale: float, top: float, bars: list[Bar], labels: list[Label]
    ) -> None:
        self.view, self.timeline = view, view.timeline
        self.start, self.end, self.scale = start, end, scale
        self.top, self.bars, self.labels = top, bars, labels

    def draw(self) -> float:
        """Draw; return the lower edge."""
        self._header()
        loops = self._loops(self.top + HEADER - 8)
        y = self.top + HEADER + (LOOP_LANE if loops else 0)
        streams = [stream for stream in Stream if stream is not Stream.COPY or (self.timeline.stream == stream).any()]
        bottom = y + len(streams) * (LANE + SPACE) - SPACE
        self._exposed(y - 2, bottom + 2)
        for stream in streams:
            self.labels.append(Label(GUTTER - 10, y + LANE / 2 + 4, stream.name.lower(), "lane", "end"))
            self._lane(stream, y)
            y += LANE + SPACE
        self._end(self.top + HEADER - 2, bottom + 2)
        return bottom

    def _x(self, time: float) -> float:
        return GUTTER + (min(max(time, self.start), self.end) - self.start) * self.scale

    def _header(self) -> None:
        parts = self.timeline.breakdown
        facts = [
            f"step {duration(parts.step_us)}",
            f"exposed communication {duration(parts.exposed_communication_us)}",
            f"idle {duration(parts.idle_us)}",
        ]
        if parts.exposed_copy_us > 0:
            facts.insert(2, f"exposed copies {duration(parts.exposed_copy_us)}")
        note = f"predicted from {self.view.note} costs" if self.view.note else "predicted"
        self.labels.append(Label(MARGIN, self.top + 14, self.view.label, "title"))
        self.labels.append(Label(WIDTH - MARGIN, self.top + 14, note, "note", "end"))
        self.labels.append(Label(MARGIN, self.top + 31, " · ".join(facts), "facts"))

    def _loops(self, y: float) -> bool:
        drawn = [loop for loop in self.timeline.loops if loop.depth == 0 and loop.trips > 1 and self._seen(loop)]
        for loop in drawn:
            left, right = self._x(loop.start_us), self._x(loop.end_us)
            folded = f", one iteration drawn for {loop.folded}" if loop.folded > 1 else ""
            title = f"{loop.name}: {loop.trips} iterations, {duration(loop.end_us - loop.start_us)}{folded}"
            text = _fit(f"{loop.name} × {loop.trips}{folded}", right - left) or _fit(f"× {loop.trips}", right - left)
            self.bars.append(Bar(left, y, max(right - left, 1), LOOP_LANE - 2, "loop", title, text))
        return bool(drawn)

    def _seen(self, loop: object) -> bool:
        return bool(getattr(loop, "end_us") > self.start and getattr(loop, "start_us") < self.end)  # noqa: B009

    def _exposed(self, top: float, bottom: float) -> None:
        """Where collectives run and nothing computes, behind all lanes."""
        compute = self.timeline.busy(Stream.COMPUTE)
        exposed = without(self.timeline.busy(Stream.COMMUNICATION), compute)
        for begin, finish in zip(exposed.start.tolist(), exposed.end.tolist(), strict=True):
            left, right = self._x(begin), self._x(finish)
            if right - left >= MIN_PIXELS / 2:
                title = f"exposed communication: {duration(finish - begin)}"
                width = max(right - left, 1)
                self.bars.append(Bar(left, top, width, bottom - top, "exposed", title))
                self.bars.append(Bar(left, bottom + 1, width, 3, "mark", title))

    def _lane(self, stream: Stream, y: float) -> None:
        timeline = self.timeline
        rows = np.flatnonzero(
            (timeline.stream == stream) & (timeline.end_us > self.start) & (timeline.start_us < self.end)
        )
        rows = rows[np.argsort(timeline.start_us[rows], kind="stable")]
        if stream is Stream.COMPUTE:
            exposed = np.zeros(len(rows))
        else:
            hidden = covered(timeline.busy(Stream.COMPUTE), timeline.start_us[rows], timeline.end_us[rows])
            exposed = timeline.duration_us[rows] - hidden
        starts, ends = timeline.start_us[rows].tolist(), timeline.end_us[rows].tolist()
        crowd: list[int] = []
        edge = -1.0
        for i, row in enumerate(rows.tolist()):
            left, right = self._x(starts[i]), self._x(ends[i])
            if right - left >= MIN_PIXELS:
                self._crowd(crowd, y)
                crowd = []
                self._activity(row, left, right, y, float(exposed[i]))
            else:
                if crowd and left - edge > MIN_PIXELS:
                    self._crowd(crowd, y)
                    crowd = []
                crowd.append(row)
            edge = right
        self._crowd(crowd, y)

    def _activity(self, row: int, left: float, right: float, y: float, exposed: float) -> None:
        timeline = self.timeline
        code, count = int(timeline.instruction[row]), int(timeline.count[row])
        name, length = timeline.names[code], float(timeline.duration_us[row])
        times = f" × {count} = {duration(length)}" if count > 1 else ""
        lines = [name, f"{timeline.kinds[code] if timeline.kinds else ''} {duration(length / count)}{times}".strip()]
        if timeline.stream[row] != Stream.COMPUTE:
            lines.append(f"exposed {duration(max(exposed, 0.0))}" + (", synchronous" if timeline.sync[row] else ""))
        lines.append(f"{ORIGINS[int(timeline.origin[row])].value} cost, starts at {duration(timeline.start_us[row])}")
        width, sync = max(right - left, MIN_PIXELS), bool(timeline.sync[row])
        text = _fit(name, width)
        self.bars.append(Bar(left, y, width, LANE, self._style(row), "\n".join(lines), "" if sync else text))
        if sync:
            self.bars.append(Bar(left, y, width, LANE, "sync", text=text))

    def _crowd(self, rows: list[int], y: float) -> None:
        """Activities too narrow to be seen one by one, as one bar."""
        if not rows:
            return
        timeline = self.timeline
        first, last = rows[0], rows[-1]
        busy = float(timeline.duration_us[rows].sum())
        left, right = self._x(float(timeline.start_us[first])), self._x(float(timeline.end_us[rows].max()))
        names = [timeline.names[int(timeline.instruction[row])] for row in (first, last)]
        title = f"{len(rows)} activities, {duration(busy)} busy\n{names[0]} … {names[1]}"
        styles = [self._style(row) for row in rows]
        style = max(set(styles), key=styles.count)
        self.bars.append(Bar(left, y, max(right - left, MIN_PIXELS), LANE, f"{style} crowd", title))

    def _style(self, row: int) -> str:
        stream = Stream(int(self.timeline.stream[row]))
        kind = self.timeline.kinds[int(self.timeline.instruction[row])] if self.timeline.kinds else ""
        if stream is Stream.COMMUNICATION:
            return kind if kind in COLLECTIVES else "communication"
        return "copy" if stream is Stream.COPY else "matmul" if kind == "matmul" else "compute"

    def _end(self, top: float, bottom: float) -> None:
        """A line where the step ends."""
        if self.start <= self.timeline.step_us <= self.end:
            x = self._x(self.timeline.step_us)
            self.bars.append(
                Bar(x, top, 1.5, bottom - top, "end", f"end of the step: {duration(self.timeline.step_us)}")
            )


def _fit(text: str, width: float) -> str:
    """The text if it fits, cut if most of it does, else nothing."""
    room = int((width - 8) / LETTER)
    if len(text) <= room:
        return text
    return f"{text[: room - 1]}…" if room >= 6 else ""


def _ticks(start: float, end: float) -> list[float]:
    """Between 5 and 12 round times."""
    rough = max(end - start, 1e-9) / 8
    power = 10.0 ** floor(log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough)
    first = int(np.ceil(start / step))
    return [number * step for number in range(first, int(end / step) + 1)]


def _tick(time: float, span: float) -> str:
    unit, name = (1e6, "s") if span >= 3e6 else (1e3, "ms") if span >= 3e3 else (1.0, "µs")
    return f"{time / unit:.6g} {name}"
