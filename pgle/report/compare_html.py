"""A comparison as one HTML file that needs nothing else."""

from __future__ import annotations

from collections.abc import Sequence

from jinja2 import Environment

from pgle import __version__
from pgle.report.compare import figures, headline, left_out_text, method_line
from pgle.report.compare_plot import plot
from pgle.steps.compare import Comparison
from pgle.steps.gate import Check

TEMPLATE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>pgle compare: {{ headline }}</title>
<style>
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #222 }
table { border-collapse: collapse; margin: 1rem 0 } th, td { padding: .2rem .8rem; text-align: right }
th:first-child, td:first-child { text-align: left } thead { border-bottom: 1px solid #888 }
.fail { color: #a11 } small, footer { color: #666 } svg { max-width: 100%; height: auto }
</style>
<h1>{{ headline }}</h1>
<table><thead><tr>{% for name in columns %}<th>{{ name }}</th>{% endfor %}</tr></thead>
{% for row in rows %}<tr>{% for cell in row %}<td>{{ cell }}</td>{% endfor %}</tr>
{% endfor %}</table>
{% for check in checks %}<p{% if not check.ok %} class="fail"{% endif %}>{{ "ok" if check.ok else "FAIL" }} – \
{{ check.name }}: {{ check.message }}</p>
{% endfor %}{{ picture | safe }}
<table><thead><tr><th></th><th>runs</th><th>steps</th><th>left out</th></tr></thead>
{% for side in sides %}<tr><td>{{ side.label }}</td><td>{{ side.runs | length }}</td><td>{{ side.steps }}</td>\
<td>{{ left_out(side) }}</td></tr>
{% endfor %}</table>
<p><small>{{ method }}</small></p>
<ol>{% for line in footnotes %}<li><small>{{ line }}</small></li>{% endfor %}</ol>
<footer>pgle {{ version }}</footer>
</html>
"""


def page(found: Comparison, checks: Sequence[Check]) -> str:
    """The HTML text."""
    confidence = f"{found.assumptions.confidence:.0%} CI"
    svg = plot(found, "svg").decode()
    return (
        Environment(autoescape=True)
        .from_string(TEMPLATE)
        .render(
            headline=headline(found),
            columns=("", found.base.label, found.new.label, "change", confidence, "p", "n"),
            rows=figures(found),
            checks=checks,
            picture=svg[svg.index("<svg") :],
            sides=(found.base, found.new),
            left_out=left_out_text,
            method=method_line(found),
            footnotes=found.warnings,
            version=__version__,
        )
    )
