"""A page as one HTML file that needs nothing else, asks for nothing, and runs no script but its own."""

from __future__ import annotations

import base64
import hashlib

from markupsafe import Markup

from pgle import __version__
from pgle.report.page.charts import svg
from pgle.report.page.parts import Chart, Moving, Page, Prose, Table
from pgle.report.page.style import data_file, style_sheet, templates

KINDS = {Table: "table", Prose: "prose", Moving: "moving", Chart: "chart"}


def render(page: Page) -> str:
    """The file's text. The same page gives the same bytes.

    Texts of traces and dumps are escaped where they stand in the HTML; those of the timeline are inside of compressed
    data, which its script shows as text. Should either fail, a Content-Security-Policy still lets no other script run,
    and no byte leave the page.
    """
    timeline = page.timeline
    script = _script(data_file("timeline.js", "pgle.report.timeline")) if timeline else ""
    values = {
        "page": page,
        "kinds": KINDS,
        "style": style_sheet("page") + _charts_style(page),
        "policy": _policy(script),
        "script": Markup(script),
        "data": timeline.data if timeline else "",
        "chart": lambda part: Markup(svg(part.panels, part.alt, style=False)),
        "version": __version__,
    }
    return templates().get_template("page.html.j2").render(values)


def _charts_style(page: Page) -> str:
    charts = any(isinstance(part, Chart) for section in page.sections for part in section.parts)
    return data_file("templates/chart.css") if charts else ""


def _script(source: str) -> str:
    """A script as the text of its element, which nothing but a closing tag would end."""
    return source.replace("</", "<\\/")


def _policy(script: str) -> str:
    """No network, no frame, no form; of scripts only this one."""
    scripts = f"script-src 'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'; "
    allowed = scripts if script else ""
    return f"default-src 'none'; {allowed}style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
