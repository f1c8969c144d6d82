"""A page as one HTML file that needs nothing else, asks for nothing, and runs no script but its own."""

from __future__ import annotations

import base64
import hashlib

from markupsafe import Markup

from pgle import __version__
from pgle.report.page import figures
from pgle.report.page.style import data_file, style_sheet, templates
from pgle.report.page.value import Chart, Page, Prose, Table, Timeline

KINDS = {Table: "table", Prose: "prose", Timeline: "timeline", Chart: "chart"}


def render(page: Page) -> str:
    """The file's text. The same page gives the same bytes.

    Texts of traces and dumps are escaped. Those of the timeline are in compressed data, which its script shows as text.
    If either fails, a Content-Security-Policy still lets no other script run, and no byte leave the page.
    """
    timeline = page.timeline
    script = data_file("templates/page.js")
    script += data_file("timeline.js", "pgle.report.timeline") if timeline else ""
    script = script.replace("</", "<\\/")  # nothing but a closing tag ends a script element
    charts = any(isinstance(part, Chart) for section in page.sections for part in section.parts)
    sheets = style_sheet("page") + data_file("templates/chart.css") * charts
    values = {
        "page": page,
        "kinds": KINDS,
        "style": sheets,
        "policy": _policy(script),
        "script": Markup(script),
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
