"""A page as one HTML file that needs nothing else and runs no script but its own; its colours and
charts.
"""

from __future__ import annotations

import base64
import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from html import escape
from importlib import resources
from typing import TYPE_CHECKING

from pgle import __version__
from pgle.errors import printable
from pgle.report.page import figures
from pgle.report.page.value import Chart, Page

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup

LIGHT: Mapping[str, str] = {
    "paper": "#ffffff",
    "raised": "#f6f7f9",
    "ink": "#1b1f24",
    "soft": "#57606a",
    "line": "#dfe3e8",
    "compute": "#4174b4",
    "matmul": "#26568f",
    "hidden": "#8ccbb0",
    "exposed": "#c0390b",
    "copy": "#7355a6",
    "other": "#97a1ab",
    "idle": "#d3d8de",
    "in-bar": "#ffffff",
    "mark": "#9a1f63",
    "accent": "#1f5fbf",
    "good": "#116329",
    "bad": "#a3123f",
}
DARK: Mapping[str, str] = {
    "paper": "#12161b",
    "raised": "#1a2027",
    "ink": "#e6e9ed",
    "soft": "#a3adb8",
    "line": "#2c343d",
    "compute": "#8fb8ea",
    "matmul": "#5f98dd",
    "hidden": "#2c6b52",
    "exposed": "#ff8a5c",
    "copy": "#bda2f0",
    "other": "#6d7883",
    "idle": "#3b444e",
    "in-bar": "#0b0f14",
    "mark": "#ff9ccb",
    "accent": "#7ab0ff",
    "good": "#56d364",
    "bad": "#ff7d9b",
}


@cache
def templates() -> Environment:
    """The templates of this room. Every value is escaped, and what would turn or hide text is made
    visible.
    """
    from jinja2 import Environment, PackageLoader

    environment = Environment(
        loader=PackageLoader("pgle.report.page"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: printable(value) if type(value) is str else value,
    )
    environment.filters["lines"] = printable_lines
    environment.filters["n"] = lambda value: f"{value:.2f}".rstrip("0").rstrip(".")
    return environment


def printable_lines(text: str) -> Markup:
    """Escaped text whose lines stay lines; every other value of a template is one line."""
    from markupsafe import escape

    return escape("\n".join(map(printable, text.split("\n"))))


def style_sheet() -> str:
    """The palettes as custom properties, by the reader's system, and the style of a page."""
    light, dark = (
        "".join(f"--{name}:{colour};" for name, colour in colours.items())
        for colours in (LIGHT, DARK)
    )
    palettes = (
        f":root{{{light}}}\n@media (prefers-color-scheme:dark){{:root{{{dark}}}}}\n"
    )
    return palettes + data_file("templates/page.css")


@cache
def data_file(name: str) -> str:
    """A text file of this room."""
    return (
        resources.files("pgle.report.page").joinpath(name).read_text(encoding="utf-8")
    )


WIDTH, HEIGHT = (
    440,
    230,
)  # of every chart, in units in which its text is 12 high: readable on a phone
LEFT, RIGHT, TOP, BOTTOM = 62, 16, 42, 42  # margins around the plot


@dataclass(frozen=True, slots=True)
class SvgElement:
    """One element of a chart: SVG tag, class of the style sheet, attributes, text."""

    tag: str
    style: str
    at: dict[str, float | str]
    text: str = ""


@dataclass
class ChartPanel:
    """A chart over named columns: column n lies between n and n + 1, heights count from 0."""

    title: str  # above it
    columns: Sequence[str]  # names below the columns
    highest: float  # value at the top
    write: Callable[[float], str]  # how a height is written
    x_label: str  # below the names
    elements: list[SvgElement] = field(default_factory=list)  # what is drawn

    def __post_init__(self) -> None:
        rough = self.highest / 4
        unit = 10.0 ** math.floor(math.log10(rough))
        step = next(
            unit * factor
            for factor in (1, 2, 5, 10)
            if unit * factor >= rough * (1 - 1e-9)
        )
        for number in range(math.floor(self.highest / step + 1e-9) + 1):
            self.line("grid", (0, number * step), (len(self.columns), number * step))
            self._text(
                "tick",
                (0, number * step),
                self.write(number * step) if number else "0",
                "end",
                dx=-6,
                dy=4,
            )
        for at, name in enumerate(self.columns):
            self._text("tick", (at + 0.5, 0), name, dy=16)
        self._text("label", (len(self.columns) / 2, 0), self.x_label, dy=34)

    def line(
        self, style: str, start: tuple[float, float], end: tuple[float, float]
    ) -> None:
        """A straight line."""
        x1, y1 = self._place(*start)
        x2, y2 = self._place(*end)
        self.elements.append(
            SvgElement("line", style, {"x1": x1, "y1": y1, "x2": x2, "y2": y2})
        )

    def dot(self, style: str, point: tuple[float, float]) -> None:
        """A dot at a point."""
        x, y = self._place(*point)
        self.elements.append(SvgElement("circle", style, {"cx": x, "cy": y, "r": 3}))

    def area(self, style: str, points: Sequence[tuple[float, float]]) -> None:
        """A filled polygon."""
        path = (
            "M"
            + "L".join("{:.2f} {:.2f}".format(*self._place(*point)) for point in points)
            + "Z"
        )
        self.elements.append(SvgElement("path", style, {"d": path}))

    def bar(self, column: int, parts: Mapping[str, float]) -> None:
        """A bar of parts, one upon the other: their heights by colour, from below."""
        left, right, floor = column + 0.2, column + 0.8, 0.0
        for color, height in parts.items():
            if height > 0:
                top = floor + height
                self.area(
                    f"stack {color}",
                    [(left, floor), (left, top), (right, top), (right, floor)],
                )
                floor = top

    def _place(self, x: float, y: float) -> tuple[float, float]:
        floor = HEIGHT - BOTTOM
        across = x / len(self.columns) * (WIDTH - LEFT - RIGHT)
        return LEFT + across, floor - y / self.highest * (floor - TOP)

    def _text(
        self,
        style: str,
        point: tuple[float, float],
        text: str,
        anchor: str = "middle",
        *,
        dx: float = 0,
        dy: float,
    ) -> None:
        x, y = self._place(*point)
        self.elements.append(
            SvgElement(
                "text", style, {"x": x + dx, "y": y + dy, "text-anchor": anchor}, text
            )
        )


def svg(panels: Sequence[ChartPanel], alt: str) -> str:
    """Charts one above the other as one SVG, for a page, which has their style."""
    template = templates().get_template("chart.svg.j2")
    return template.render(width=WIDTH, height=HEIGHT, alt=alt, panels=panels) + "\n"


def render(page: Page) -> str:
    """The file's text. The same page gives the same bytes.

    Texts of traces and dumps are escaped. Those of the timeline are in compressed data, which its
    script shows as text. If either fails, a Content-Security-Policy still lets no other script run,
    and no byte leave the page.
    """
    timeline = page.timeline
    script = data_file("templates/page.js")
    script += data_file("templates/timeline.js") if timeline else ""
    # nothing but a closing tag ends a script element
    script = script.replace("</", "<\\/")
    style = style_sheet()
    if any(isinstance(part, Chart) for part in page.parts):
        style += data_file("templates/chart.css")
    # No network, no frame, no form; of scripts only this one.
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    allowed = f"script-src 'sha256-{digest}'; style-src 'unsafe-inline'"
    return (
        templates()
        .get_template("page.html.j2")
        .render(
            page=page,
            style=style,
            policy=f"default-src 'none'; {allowed}; base-uri 'none'; form-action 'none'",
            script=script,
            data=timeline.data if timeline else "",
            share=figures.share,
            version=__version__,
        )
    )


def frame(page: Page) -> str:
    """The page in a frame for a notebook: it loads nothing, and neither its style nor its script
    reaches the rest.
    """
    height = 620 if page.timeline is None else 1040
    style = f"width:100%;height:{height}px;border:0;resize:vertical;overflow:auto"
    content = escape(render(page))
    return (
        f'<iframe sandbox="allow-scripts" style="{style}" srcdoc="{content}"></iframe>'
    )
