"""Charts as SVG, in the style sheet's colours: axes, and what is drawn between them.

No chart needs a script. Each has a text with the same content (`Chart.alt`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from pgle.report.page import figures
from pgle.report.page.html import templates
from pgle.report.page.value import Chart

WIDTH = 440  # width of every chart in units; text is 12 units high, readable on a phone
HEIGHT = 230
LETTER = 6.2  # width of a letter on average, in the same units
WIDEST = 7.0  # the same in a wide font, so that texts side by side do not touch


Point: TypeAlias = tuple[float, float]
"""A place: its value on the horizontal axis, and on the vertical one."""


@dataclass(frozen=True, slots=True)
class SvgElement:
    """One element of a chart: SVG tag, class in the style sheet, attributes, text."""

    tag: str
    style: str
    at: Mapping[str, float | str]
    text: str = ""


@dataclass(frozen=True, slots=True)
class Margins:
    """Space around the plot, in the chart's units."""

    left: float = 62
    right: float = 16
    top: float = 42
    bottom: float = 42


@dataclass(frozen=True, slots=True)
class Axis:
    """One direction of a plot."""

    low: float  # value at its left or lower end
    high: float  # value at the other end
    ticks: tuple[tuple[float, str], ...] = ()  # values with their texts
    label: str = ""  # what it shows
    is_log: bool = False
    has_grid: bool = False  # a line at each tick

    def at(self, value: float) -> float:
        """Map a value to its position: 0 is the low end, 1 the high end."""
        low, high = self.low, self.high
        if self.is_log:
            value, low, high = (math.log(one) for one in (value, low, high))
        return (value - low) / (high - low)


def linear(
    high: float,
    write: Callable[[float], str],
    *,
    low: float = 0.0,
    label: str = "",
    most: int = 5,
) -> Axis:
    """A linear axis from 0 with grid lines at round values, at most `most`. Zero is written
    ``0``.
    """
    step = _round_step((high - low) / most)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    values = [number * step for number in range(first, last + 1)]
    ticks = tuple((value, _written(value, write)) for value in values)
    return Axis(low, high, ticks, label, has_grid=True)


def _written(value: float, write: Callable[[float], str]) -> str:
    """The text of a tick."""
    return write(value) if value else "0"


def times(low_us: float, high_us: float, *, label: str = "", most: int = 5) -> Axis:
    """A linear axis of times. Its ends are in microseconds; its ticks, about `most` of them, are
    written in the unit that fits.
    """
    unit = figures.time_unit(max(abs(low_us), abs(high_us)))
    return _in_unit(unit, (low_us, high_us), label, most)


def sizes(high_bytes: float, *, most: int = 4) -> Axis:
    """An axis of sizes in bytes, from 0."""
    return _in_unit(figures.size_unit(high_bytes), (0.0, high_bytes), "", most)


def _in_unit(
    unit: tuple[float, str], ends: tuple[float, float], label: str, most: int
) -> Axis:
    """An axis whose ticks are round in one unit, with as many decimals as these need."""
    scale, name = unit
    low, high = (end / scale for end in ends)
    step = _round_step((high - low) / most)
    decimals = max(0, -math.floor(math.log10(step) + 1e-9))

    def write(value: float) -> str:
        return f"{value:,.{decimals}f} {name}"

    axis = linear(high, write, low=low, label=label, most=most)
    ticks = tuple((value * scale, text) for value, text in axis.ticks)
    return replace(axis, low=ends[0], high=ends[1], ticks=ticks)


def logarithmic(
    low: float, high: float, write: Callable[[float], str], *, label: str = ""
) -> Axis:
    """A logarithmic axis with a tick at each power of ten."""
    first = math.ceil(math.log10(low) - 1e-9)
    last = math.floor(math.log10(high))
    values = [10.0**power for power in range(first, last + 1)]
    ticks = tuple((value, write(value)) for value in values)
    return Axis(low, high, ticks, label, is_log=True, has_grid=True)


def columns(names: Sequence[str], label: str = "") -> Axis:
    """An axis of names: column n is between n and n + 1."""
    return Axis(0.0, len(names), _in_middles(names), label)


def rows(names: Sequence[str]) -> Axis:
    """A vertical axis of names from above: row n is between n and n + 1."""
    return Axis(len(names), 0.0, _in_middles(names))


def _in_middles(names: Sequence[str]) -> tuple[tuple[float, str], ...]:
    """Ticks in the middle of columns or rows that are one unit wide."""
    return tuple((place + 0.5, name) for place, name in enumerate(names))


def _round_step(rough: float) -> float:
    """Round up to the next step of the form 1, 2 or 5 times a power of ten."""
    unit = 10.0 ** math.floor(math.log10(rough))
    least = rough * (1 - 1e-9)
    steps = (unit * factor for factor in (1, 2, 5, 10))
    return next(step for step in steps if step >= least)


@dataclass
class Plot:
    """Two axes, and what is drawn between them."""

    title: str  # above it
    x: Axis
    y: Axis
    height: float = HEIGHT
    margins: Margins = Margins()
    elements: list[SvgElement] = field(default_factory=list)

    def __post_init__(self) -> None:
        x, y = self.x, self.y
        for value, text in y.ticks:
            if y.has_grid:
                self.line("grid", (x.low, value), (x.high, value))
            self.text("tick", (x.low, value), text, "end", dx=-6, dy=4)
        for value, text in x.ticks:
            if x.has_grid:
                self.line("grid", (value, y.low), (value, y.high))
            self.text("tick", (value, y.low), text, dy=16)
        if x.label:
            middle = (self._across(0.5), self._down(0.0) + 34)
            self._write("label", middle, x.label, "middle")
        if y.label:
            above = (self.margins.left, self.margins.top - 8)
            self._write("label", above, y.label, "start")

    def line(self, style: str, start: Point, end: Point) -> None:
        """A straight line."""
        x1, y1 = self._place(*start)
        x2, y2 = self._place(*end)
        self._add("line", style, {"x1": x1, "y1": y1, "x2": x2, "y2": y2})

    def path(self, style: str, points: Sequence[Point]) -> None:
        """A line through points."""
        self._add("path", style, {"d": self._course(points)})

    def area(self, style: str, points: Sequence[Point]) -> None:
        """A filled polygon."""
        self._add("path", style, {"d": f"{self._course(points)}Z"})

    def dot(self, style: str, point: Point, radius: float = 3, about: str = "") -> None:
        """A dot at a point. A pointer over it shows `about`."""
        x, y = self._place(*point)
        self._add("circle", style, {"cx": x, "cy": y, "r": radius}, about)

    def box(
        self,
        style: str,
        start: Point,
        end: Point,
        *,
        strength: float = 1.0,
        about: str = "",
    ) -> None:
        """A filled box between two corners.

        Args:
            strength: opacity of the colour, 0 to 1.
            about: text shown when a pointer is over it.
        """
        x1, y1 = self._place(*start)
        x2, y2 = self._place(*end)
        at = {
            "x": min(x1, x2),
            "y": min(y1, y2),
            "width": abs(x2 - x1),
            "height": abs(y2 - y1),
        }
        if strength < 1:
            at["fill-opacity"] = strength
        self._add("rect", style, at, about)

    def stack(self, column: int, parts: Mapping[str, float]) -> None:
        """Stack parts in a column. `parts` maps a colour to a height, from below."""
        floor = 0.0
        for colour, height in parts.items():
            if height > 0:
                start = (column + 0.2, floor)
                floor += height
                self.box(f"part {colour}", start, (column + 0.8, floor))

    def text(
        self,
        style: str,
        point: Point,
        text: str,
        anchor: str = "middle",
        *,
        dx: float = 0,
        dy: float = 4,
    ) -> None:
        """A text at a point, shifted by `dx` and `dy` in the chart's units."""
        x, y = self._place(*point)
        self._write(style, (x + dx, y + dy), text, anchor)

    def key(self, colours: Iterable[tuple[str, str]]) -> None:
        """A legend line below the title: the style and name of each colour."""
        x = 8.0
        y = self.margins.top - 8
        for style, name in colours:
            self._write(f"key {style}", (x, y), "■", "start")
            self._write("label", (x + 14, y), name, "start")
            x += 30 + WIDEST * len(name)

    def distance(self, one: Point, other: Point) -> float:
        """The distance between two points, in the chart's units."""
        return math.dist(self._place(*one), self._place(*other))

    def caption(self, line: int, text: str) -> None:
        """A line of text below the axis; the margin there must have room for it."""
        y = self._down(0.0) + 54 + 17 * line
        self._write("caption", (8, y), text, "start")

    def _add(
        self, tag: str, style: str, at: Mapping[str, float | str], text: str = ""
    ) -> None:
        self.elements.append(SvgElement(tag, style, at, text))

    def _write(
        self, style: str, place: tuple[float, float], text: str, anchor: str
    ) -> None:
        """A text at a place of the chart. Texts outside of the axes need it."""
        x, y = place
        self._add("text", style, {"x": x, "y": y, "text-anchor": anchor}, text)

    def _course(self, points: Sequence[Point]) -> str:
        """The line through points in the language of SVG paths."""
        places = (self._place(*point) for point in points)
        return "M" + "L".join(f"{x:.2f} {y:.2f}" for x, y in places)

    def _place(self, x: float, y: float) -> tuple[float, float]:
        """The place in the chart, in its units from the upper left, of values of both axes."""
        return self._across(self.x.at(x)), self._down(self.y.at(y))

    def _across(self, share: float) -> float:
        """The place of a share of the horizontal axis, from its left end."""
        width = WIDTH - self.margins.left - self.margins.right
        return self.margins.left + share * width

    def _down(self, share: float) -> float:
        """The place of a share of the vertical axis, from its lower end."""
        floor = self.height - self.margins.bottom
        height = floor - self.margins.top
        return floor - share * height


def drawn(plots: Sequence[Plot], alt: str) -> Chart:
    """Combine plots, one above the other, in one chart.

    Args:
        alt: what they show, in words.
    """
    placed: list[tuple[Plot, float]] = []  # with the height above it
    height = 0.0
    for plot in plots:
        placed.append((plot, height))
        height += plot.height
    template = templates().get_template("chart.svg.j2")
    svg = template.render(width=WIDTH, height=height, alt=alt, plots=placed)
    return Chart(f"{svg}\n", alt)
