"""Templates and style sheets of pictures and pages."""

from __future__ import annotations

import re
from functools import cache
from importlib import resources

from jinja2 import Environment, PackageLoader
from markupsafe import Markup

from pgle.errors import printable
from pgle.report.page.palette import variables


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


def style_sheet(name: str, selector: str = ":root") -> str:
    """The palette for what `selector` selects, and the style sheet ``NAME.css``."""
    return variables(selector) + data_file(f"templates/{name}.css")


@cache
def data_file(name: str, package: str = "pgle.report.page") -> str:
    """A text file of a room."""
    return resources.files(package).joinpath(name).read_text(encoding="utf-8")
