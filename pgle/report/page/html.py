"""A page as one HTML file, with its colours and charts. It loads nothing, and runs only its own
script.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from functools import cache
from html import escape
from importlib import resources
from typing import TYPE_CHECKING

from pgle import __version__
from pgle.errors import printable
from pgle.report.page.value import Chart, Page, Section

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
    """The templates of this folder. They escape every value, and make characters visible that would
    turn or hide text.
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
    environment.filters["columns"] = _columns
    environment.filters["n"] = lambda value: f"{value:.2f}".rstrip("0").rstrip(".")
    return environment


def _is_wide(section: Section) -> bool:
    """Whether a section's charts are side by side, over the whole width of the page."""
    charts = [part for part in section.parts if isinstance(part, Chart)]
    return len(charts) > 1


def _columns(sections: Sequence[Section]) -> list[list[Section]]:
    """Arrange the folded sections: wide ones first, then two columns, each read from top to bottom.
    Opening a section moves only those below it.
    """
    folded = [item for item in sections if item.key != "timeline"]
    wide = [item for item in folded if _is_wide(item)]
    others = [item for item in folded if not _is_wide(item)]
    middle = (len(others) + 1) // 2
    return [part for part in (wide, others[:middle], others[middle:]) if part]


def printable_lines(text: str) -> Markup:
    """Escape text and keep its lines. Every other value of a template is one line."""
    from markupsafe import escape

    return escape("\n".join(map(printable, text.split("\n"))))


def style_sheet() -> str:
    """Return the style sheet of a page. The palettes are custom properties, chosen by the reader's
    system.
    """
    light = f":root{{{_properties(LIGHT)}}}"
    dark = f"@media (prefers-color-scheme:dark){{:root{{{_properties(DARK)}}}}}"
    rules = data_file("templates/page.css")
    return f"{light}\n{dark}\n{rules}"


def _properties(colours: Mapping[str, str]) -> str:
    """A palette as custom properties."""
    return "".join(f"--{name}:{colour};" for name, colour in colours.items())


@cache
def data_file(name: str) -> str:
    """Read a text file of this folder."""
    return (
        resources.files("pgle.report.page").joinpath(name).read_text(encoding="utf-8")
    )


def render(page: Page) -> str:
    """The file's text. The same page gives the same bytes.

    Texts of traces and dumps are escaped. The timeline's texts are in compressed data, and its
    script shows them as text. Even if that fails, the Content-Security-Policy blocks all other
    scripts and all requests.
    """
    timeline = page.timeline
    script = data_file("templates/page.js")
    script += data_file("templates/timeline.js") if timeline else ""
    # only a closing tag ends a script element
    script = script.replace("</", "<\\/")
    style = style_sheet()
    if any(isinstance(part, Chart) for part in page.parts):
        style += data_file("templates/chart.css")
    # No network, frames or forms; no script but this one.
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
            version=__version__,
        )
    )


def frame(page: Page) -> str:
    """Return the page in an iframe for a notebook. It loads nothing, and its style and script do
    not reach the notebook.
    """
    height = 620 if page.timeline is None else 1040
    style = f"width:100%;height:{height}px;border:0;resize:vertical;overflow:auto"
    content = escape(render(page))
    return (
        f'<iframe sandbox="allow-scripts" style="{style}" srcdoc="{content}"></iframe>'
    )
