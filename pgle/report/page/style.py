"""Every colour of pictures and pages, in light and dark: one per kind of activity; templates and style sheets."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from importlib import resources

from jinja2 import Environment, PackageLoader
from markupsafe import Markup

from pgle.errors import printable

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
    environment = Environment(
        loader=PackageLoader("pgle.report.page"), autoescape=True, trim_blocks=True, lstrip_blocks=True,
        finalize=lambda value: printable_lines(value) if type(value) is str else value,
    )  # fmt: skip
    environment.filters["aside"] = aside
    environment.filters["n"] = lambda value: f"{value:.2f}".rstrip("0").rstrip(".")
    return environment


def aside(text: str) -> Markup:
    """Escaped, and what stands in parentheses set smaller: a verdict's figures on its figures."""
    parts = re.split(r"(\([^()]*\))", printable(text))
    return Markup("").join(Markup("<small>{}</small>").format(part) if i % 2 else part for i, part in enumerate(parts))


def printable_lines(text: str) -> str:
    """`pgle.errors.printable` line by line, so that lines stay lines."""
    return text if text.isprintable() else "\n".join(map(printable, text.split("\n")))


def variables(selector: str) -> str:
    """The palettes as custom properties of what `selector` selects, by the reader's system."""
    light, dark = ("".join(f"--{name}:{colour};" for name, colour in colours.items()) for colours in (LIGHT, DARK))
    return f"{selector}{{{light}}}\n@media (prefers-color-scheme:dark){{{selector}{{{dark}}}}}\n"


def style_sheet(name: str, selector: str = ":root") -> str:
    """The palette for what `selector` selects, and the style sheet ``NAME.css``."""
    return variables(selector) + data_file(f"templates/{name}.css")


@cache
def data_file(name: str, package: str = "pgle.report.page") -> str:
    """A text file of a room."""
    return resources.files(package).joinpath(name).read_text(encoding="utf-8")
