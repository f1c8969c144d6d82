"""Charts as SVG, in light or dark as the reader's system is: what comparisons and histories draw with."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from pgle.report.page.style import style_sheet, templates

WIDTH = 440  # width of every chart, in units in which its text is 12 high: readable on a phone
LEFT, RIGHT, TOP, BOTTOM, LABEL = 62, 16, 42, 24, 18  # margins around the plot; more below for the axis's name


@dataclass(frozen=True, slots=True)
class Shape:
    """One element of a chart: SVG tag, class of the style sheet, attributes, text."""

    tag: str
    style: str
    at: dict[str, float | str]
    text: str = ""


@dataclass
class Panel:
    """A chart with its axes; marks are given in its own values."""

    title: str  # above it
    x: tuple[float, float]  # values at the left and right edge
    y: tuple[float, float]  # values at the bottom and top edge
    height: int = 230  # in the units of `WIDTH`
    x_label: str = ""  # below the axis
    shapes: list[Shape] = field(default_factory=list)  # what is drawn
    top: int = 0  # where it lies in a picture of several

    def place(self, x: float, y: float) -> tuple[float, float]:
        """Where a point of the values lies on the paper."""
        across, up = ((value - low) / (high - low) for value, (low, high) in ((x, self.x), (y, self.y)))
        floor = self.height - BOTTOM - LABEL * bool(self.x_label)
        return LEFT + across * (WIDTH - LEFT - RIGHT), floor - up * (floor - TOP)

    def line(self, style: str, start: tuple[float, float], end: tuple[float, float]) -> None:
        """A straight line."""
        (x1, y1), (x2, y2) = self.place(*start), self.place(*end)
        self.shapes.append(Shape("line", style, {"x1": x1, "y1": y1, "x2": x2, "y2": y2}))

    def dots(self, style: str, points: Iterable[tuple[float, float]], radius: float = 1.6) -> None:
        """A dot at each point."""
        for point in points:
            x, y = self.place(*point)
            self.shapes.append(Shape("circle", style, {"cx": x, "cy": y, "r": radius}))

    def area(self, style: str, points: Sequence[tuple[float, float]]) -> None:
        """A filled polygon."""
        path = "M" + "L".join("{:.2f} {:.2f}".format(*self.place(*point)) for point in points) + "Z"
        self.shapes.append(Shape("path", style, {"d": path}))

    def text(self, style: str, point: tuple[float, float], text: str, anchor: str = "middle", dy: float = 0) -> None:
        """A text at a point, `dy` below it."""
        x, y = self.place(*point)
        self.shapes.append(Shape("text", style, {"x": x, "y": y + dy, "text-anchor": anchor}, text))

    def axis_x(self, write: Callable[[float], str], at: Sequence[float] | None = None) -> None:
        """Names below the chart, at round values or `at`."""
        for value in ticks(*self.x, 6) if at is None else at:
            self.text("tick", (value, self.y[0]), write(value), dy=16)
        if self.x_label:
            self.text("label", (sum(self.x) / 2, self.y[0]), self.x_label, dy=16 + LABEL)

    def axis_y(self, write: Callable[[float], str]) -> None:
        """Lines across, with their values on the left."""
        for value in ticks(*self.y, 4):
            self.line("grid", (self.x[0], value), (self.x[1], value))
            self.text("tick", (self.x[0], value), write(value), "end", 4)
            last = self.shapes[-1]
            last.at["x"] = LEFT - 6.0


def ticks(low: float, high: float, most: int) -> list[float]:
    """Round values from `low` to `high`, at most `most` and one."""
    rough = max(high - low, 1e-9) / most
    unit = 10.0 ** math.floor(math.log10(rough))
    step = next(unit * factor for factor in (1, 2, 5, 10) if unit * factor >= rough * (1 - 1e-9))
    return [number * step for number in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]


def unit_of(high: float) -> tuple[str, float]:
    """The unit in which to write seconds of at most that, and how many of it are a second."""
    return ("s", 1.0) if high >= 1 else ("ms", 1e3) if high >= 1e-3 else ("µs", 1e6)


def seconds(low: float, high: float) -> Callable[[float], str]:
    """How to write step times between two, in one unit, with as many digits as their distance needs."""
    unit, scale = unit_of(high)
    digits = max(0, math.ceil(-math.log10(max((high - low) * scale / 5, 1e-9))))
    return lambda value: f"{value * scale:.{digits}f} {unit}"


def widened(low: float, high: float, share: float = 0.05) -> tuple[float, float]:
    """The range with a rim, also where both ends are one."""
    rim = (high - low) * share or abs(high) * 0.001 or 1.0
    return low - rim, high + rim


def svg(panels: Sequence[Panel], alt: str, *, style: bool = True) -> str:
    """Charts one above the other as one SVG; without `style` for a page, which has it."""
    height = 0
    for panel in panels:
        panel.top, height = height, height + panel.height
    values = {
        "width": WIDTH,
        "height": height,
        "alt": alt,
        "panels": panels,
        "style": style_sheet("chart", ".pgle-chart") if style else "",
    }
    return templates().get_template("chart.svg.j2").render(values) + "\n"
