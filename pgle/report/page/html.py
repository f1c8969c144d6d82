"""A page as one HTML file that needs nothing else and runs no script but its own; its colours and charts."""

from __future__ import annotations

import base64
import hashlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any

from pgle import __version__
from pgle.errors import printable
from pgle.report.page import figures
from pgle.report.page.value import Chart, Page

if TYPE_CHECKING:
    from jinja2 import Environment

LIGHT: Mapping[str, str] = {
    "paper": "#ffffff", "raised": "#f6f7f9", "ink": "#1b1f24", "soft": "#57606a", "line": "#dfe3e8",
    "compute": "#4174b4", "matmul": "#26568f", "hidden": "#8ccbb0", "exposed": "#c0390b", "copy": "#7355a6",
    "idle": "#d3d8de", "in-bar": "#ffffff", "mark": "#9a1f63", "accent": "#1f5fbf",
    "base": "#1f5fbf", "new": "#b3401a", "good": "#116329", "bad": "#a3123f",
}  # fmt: skip
DARK: Mapping[str, str] = {
    "paper": "#12161b", "raised": "#1a2027", "ink": "#e6e9ed", "soft": "#a3adb8", "line": "#2c343d",
    "compute": "#8fb8ea", "matmul": "#5f98dd", "hidden": "#2c6b52", "exposed": "#ff8a5c", "copy": "#bda2f0",
    "idle": "#3b444e", "in-bar": "#0b0f14", "mark": "#ff9ccb", "accent": "#7ab0ff",
    "base": "#7ab0ff", "new": "#ff9d70", "good": "#56d364", "bad": "#ff7d9b",
}  # fmt: skip


@cache
def templates() -> Environment:
    """The templates of this room. Every value is escaped, and what would turn or hide text is made visible."""
    from jinja2 import Environment, PackageLoader

    environment = Environment(
        loader=PackageLoader("pgle.report.page"), autoescape=True, trim_blocks=True, lstrip_blocks=True,
        finalize=lambda value: printable_lines(value) if type(value) is str else value,
    )  # fmt: skip
    environment.filters["n"] = lambda value: f"{value:.2f}".rstrip("0").rstrip(".")
    return environment


def printable_lines(text: str) -> str:
    """`pgle.errors.printable` line by line, so that lines stay lines."""
    return text if text.isprintable() else "\n".join(map(printable, text.split("\n")))


def style_sheet() -> str:
    """The palettes as custom properties, by the reader's system, and the style of a page."""
    light, dark = ("".join(f"--{name}:{colour};" for name, colour in colours.items()) for colours in (LIGHT, DARK))
    palettes = f":root{{{light}}}\n@media (prefers-color-scheme:dark){{:root{{{dark}}}}}\n"
    return palettes + data_file("templates/page.css")


@cache
def data_file(name: str) -> str:
    """A text file of this room."""
    return resources.files("pgle.report.page").joinpath(name).read_text(encoding="utf-8")


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
    shapes: list[Shape] = field(default_factory=list)  # the shapes to draw
    top: int = 0  # its place in a picture of several

    def place(self, x: float, y: float) -> tuple[float, float]:
        """The place of a point of the values on the paper."""
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

    def stacks(self, parts: Mapping[Any, Sequence[float]], gap: float) -> None:
        """Bars of parts one upon the other, bar n between n and n + 1.

        Args:
            parts: microseconds of each bar, by colour, from below; the axis is in seconds.
            gap: the rim on both sides of a bar.
        """
        for at, times in enumerate(zip(*parts.values(), strict=True)):
            left, right, floor = at + gap, at + 1 - gap, 0.0
            for color, time in zip(parts, times, strict=True):
                top = floor + time / 1e6
                if time > 0:
                    self.area(f"stack {color}", [(left, floor), (left, top), (right, top), (right, floor)])
                floor = top

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


def seconds(low: float, high: float) -> Callable[[float], str]:
    """How to write step times between two, in one unit, with as many digits as their distance needs."""
    unit, scale = ("s", 1.0) if high >= 1 else ("ms", 1e3) if high >= 1e-3 else ("µs", 1e6)
    digits = max(0, math.ceil(-math.log10(max((high - low) * scale / 5, 1e-9))))
    return lambda value: f"{value * scale:.{digits}f} {unit}"


def svg(panels: Sequence[Panel], alt: str) -> str:
    """Charts one above the other as one SVG, for a page, which has their style."""
    height = 0
    for panel in panels:
        panel.top, height = height, height + panel.height
    template = templates().get_template("chart.svg.j2")
    return template.render(width=WIDTH, height=height, alt=alt, panels=panels) + "\n"


def render(page: Page) -> str:
    """The file's text. The same page gives the same bytes.

    Texts of traces and dumps are escaped. Those of the timeline are in compressed data, which its script shows as text.
    If either fails, a Content-Security-Policy still lets no other script run, and no byte leave the page.
    """
    timeline = page.timeline
    script = data_file("templates/page.js")
    script += data_file("templates/timeline.js") if timeline else ""
    script = script.replace("</", "<\\/")  # nothing but a closing tag ends a script element
    charts = any(isinstance(part, Chart) for section in page.sections for part in section.parts)
    sheets = style_sheet() + data_file("templates/chart.css") * charts
    values = {
        "page": page,
        "style": sheets,
        "policy": _policy(script),
        "script": script,
        "data": timeline.data if timeline else "",
        "share": figures.share,
        "version": __version__,
    }
    return templates().get_template("page.html.j2").render(values)


def _policy(script: str) -> str:
    """No network, no frame, no form; of scripts only this one."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    allowed = f"script-src 'sha256-{digest}'; style-src 'unsafe-inline'"
    return f"default-src 'none'; {allowed}; base-uri 'none'; form-action 'none'"
