"""A comparison as files: a page, a picture, JUnit XML, GitHub's job summary and outputs."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from xml.etree import ElementTree

import numpy as np

from pgle.errors import UserError, one_line, printable
from pgle.files import AnyPath, write_files
from pgle.report.page.html import Panel, render, seconds, svg, widened
from pgle.report.page.markdown import escaped, fenced, section, table
from pgle.report.page.value import Chart
from pgle.report.steps.compare import comparison_page, headline, other_warnings, picture, pooled, sections, sides_table
from pgle.steps.compare import Check, Comparison, Outcome, Verdict, overall
from pgle.steps.series import Side

ICONS = {Verdict.FASTER: "🟢", Verdict.SLOWER: "🔴", Verdict.SAME: "⚪", Verdict.UNDECIDED: "🟡"}
OUTCOMES = {Outcome.OK: "✅", Outcome.FAIL: "❌", Outcome.CANNOT_TELL: "❔ cannot tell:"}


def summary(found: Comparison, checks: Sequence[Check]) -> str:
    """The job summary: verdict, table, limits, distributions; all else folded away."""
    lines = [f"### {ICONS[found.verdict]} pgle compare: {escaped(headline(found))}", "", table(sides_table(found)), ""]
    lines += [f"- {OUTCOMES[check.outcome]} **{escaped(check.name)}**: {escaped(check.message)}" for check in checks]
    lines += ["", fenced("\n".join(picture(found)), "text"), ""]
    lines += ["<details><summary>What was left out, footnotes</summary>", ""]
    for item in list(sections(found))[1:]:
        lines += [block + "\n" for block in section(item)]
    lines += [f"- {escaped(line)}" for line in other_warnings(found)]
    return "\n".join((*lines, "", "</details>", "", ""))


def outputs(found: Comparison, checks: Sequence[Check]) -> dict[str, str]:
    """The outputs of the step: verdict, ok, ratio, change, ci-low, ci-high, p, minimum-detectable, message.

    ``ok`` is true, false or cannot-tell.
    """
    outcome = overall(checks)
    short = [check for check in checks if check.ok is not True]
    message = "; ".join(f"{check.name}: {check.message}" for check in short) or headline(found)
    return {
        "verdict": found.verdict.value,
        "ok": {Outcome.OK: "true", Outcome.FAIL: "false"}.get(outcome, outcome.value),
        "ratio": f"{found.ratio:.6f}",
        "change": f"{found.change:+.2%}",
        "ci-low": _number(found.ci[0]),
        "ci-high": _number(found.ci[1]),
        "p": "" if found.estimate.p is None else f"{found.estimate.p:.6g}",
        "minimum-detectable": _number(found.minimum_detectable),
        "message": one_line(message),
    }


def append(found: Comparison, checks: Sequence[Check], environ: Mapping[str, str] = os.environ) -> None:
    """Append the summary to the file in $GITHUB_STEP_SUMMARY and the outputs to that in $GITHUB_OUTPUT.

    Raises:
        UserError: neither variable is set, or a file cannot be written.
    """
    texts = {
        "GITHUB_STEP_SUMMARY": summary(found, checks),
        "GITHUB_OUTPUT": "".join(f"{name}={value}\n" for name, value in outputs(found, checks).items()),
    }
    if not any(environ.get(name) for name in texts):
        remedy = "--github is for GitHub Actions; elsewhere use --json or --html"
        raise UserError("neither GITHUB_STEP_SUMMARY nor GITHUB_OUTPUT is set", where="--github", remedy=remedy)
    for name, text in texts.items():
        if environ.get(name):
            try:
                with Path(environ[name]).open("a", encoding="utf-8") as file:
                    file.write(text)
            except OSError as error:
                remedy = "name a file that can be written, or leave --github out"
                raise UserError(f"cannot be written ({error.strerror})", where=f"${name}", remedy=remedy) from None


def xml(found: Comparison, checks: Sequence[Check]) -> str:
    """The document: suite ``pgle compare``; a check that failed is a failure, one that cannot tell is skipped."""
    suite = ElementTree.Element("testsuite", name="pgle compare", tests=str(len(checks)))
    for name, outcome in (("failures", Outcome.FAIL), ("skipped", Outcome.CANNOT_TELL)):
        suite.set(name, str(sum(check.outcome is outcome for check in checks)))
    properties = ElementTree.SubElement(suite, "properties")
    for name, value in (("verdict", found.verdict.value), ("ratio", f"{found.ratio:.6f}")):
        ElementTree.SubElement(properties, "property", name=name, value=value)
    for check in checks:
        case = ElementTree.SubElement(suite, "testcase", classname="pgle.compare", name=check.name)
        if check.outcome is Outcome.CANNOT_TELL:
            ElementTree.SubElement(case, "skipped", message=_for_xml(f"cannot tell: {check.message}"))
        elif check.ok:
            ElementTree.SubElement(case, "system-out").text = _for_xml(check.message)
        else:
            failure = ElementTree.SubElement(case, "failure", message=_for_xml(check.message), type=found.verdict.value)
            failure.text = _for_xml("\n".join((headline(found), *found.warnings)))
    ElementTree.indent(suite)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(suite, encoding="unicode") + "\n"


def _number(value: float) -> str:
    return f"{value:.6f}" if math.isfinite(value) else ""


def _for_xml(text: str) -> str:
    """Without the control characters that XML 1.0 cannot hold."""
    return "".join(sign for sign in text if sign in "\t\n" or ord(sign) >= 32)


BINS = 60
MOST_DOTS = 600  # dots of a side; longer runs are drawn as medians of so many groups of steps
STYLES = ("base", "new")


def write_reports(
    found: Comparison,
    checks: Sequence[Check],
    following: Sequence[str] = (),
    *,
    html: AnyPath | None = None,
    picture: AnyPath | None = None,
    junit: AnyPath | None = None,
    force: bool = False,
) -> tuple[AnyPath, ...]:
    """Write what was asked for, all or nothing; the paths written.

    Raises:
        UserError: a file exists (without `force`) or cannot be written.
    """
    forms: dict[AnyPath | None, Callable[[], str]] = {
        html: lambda: render(comparison_page(found, checks, following, charts(found))),
        picture: lambda: svg(panels(found), headline(found)),
        junit: lambda: xml(found, checks),
    }
    files = {path: form() for path, form in forms.items() if path is not None}
    if files:
        write_files(files, force=force)
    return tuple(files)


def charts(found: Comparison) -> tuple[Chart, ...]:
    """Each chart as a part of a page; the distributions have the text picture for a terminal."""
    drawn = panels(found)
    words = [panel.title for panel in drawn]
    words[-2] = "\n".join(picture(found))
    return tuple(Chart(svg([panel], panel.title, style=False), text) for panel, text in zip(drawn, words, strict=True))


def panels(found: Comparison) -> list[Panel]:
    """The charts: how the steps are distributed, in which order they came, what the change may be."""
    sides = (found.base, found.new)
    values = np.concatenate([pooled(side) for side in sides])
    low, high = widened(*(float(edge) for edge in np.quantile(values, [0.005, 0.995])))
    charts = [_distributions(sides, low, high), _in_order(sides, low, high)]
    return [_interval(found), *charts] if math.isfinite(found.ci[1]) else charts


def _interval(found: Comparison) -> Panel:
    low, high = (100 * (edge - 1) for edge in found.ci)
    margin = 100 * found.assumptions.margin
    title = f"Change of the step time with its {found.assumptions.confidence * 100:g} % interval"
    panel = Panel(title, (0, 1), (0, 1), height=150, x_label="change of the step time")
    panel.x = widened(min(low, -margin), max(high, margin), 0.1)
    panel.axis_x(lambda value: f"{value:+.3g} %".replace("-", "−") if abs(value) > 1e-9 else "0")
    panel.line("level", (0.0, 0.0), (0.0, 1.0))
    panel.text("tick", (panel.x[0], 1.0), "◂ faster", "start", -4)
    panel.text("tick", (panel.x[1], 1.0), "slower ▸", "end", -4)
    panel.line("new", (low, 0.4), (high, 0.4))
    for edge in (low, high):
        panel.line("new", (edge, 0.25), (edge, 0.55))
    panel.dots("new", [(100 * found.change, 0.4)], 4)
    return panel


def _distributions(sides: tuple[Side, Side], low: float, high: float) -> Panel:
    panel = Panel("How many steps take how long (lines: medians)", (low, high), (0, 2.7), x_label="step time")
    panel.axis_x(seconds(low, high))
    for side, style, floor in zip(sides, STYLES, (1.4, 0.0), strict=True):
        counts, edges = np.histogram(np.clip(pooled(side), low, high), BINS, (low, high))
        heights = floor + counts / counts.max()
        corners = [(low, floor)]
        for height, left, right in zip(heights.tolist(), edges[:-1].tolist(), edges[1:].tolist(), strict=True):
            corners += [(left, height), (right, height)]
        panel.area(style, [*corners, (high, floor)])
        panel.line(style, (side.median_s, floor), (side.median_s, floor + 1.05))
        panel.text(style, (low, floor + 1.1), printable(side.label), "start")
    return panel


def _in_order(sides: tuple[Side, Side], low: float, high: float) -> Panel:
    groups = max(1, *(-(-side.steps // MOST_DOTS) for side in sides))
    dot = "step" if groups == 1 else f"median of {groups} steps"
    points = [[point for run in side.runs for point in _thinned(run.step, run.step_time_s, groups)] for side in sides]
    numbers = [number for side in points for number, _ in side]
    panel = Panel(f"Step times in order, a dot per {dot}", widened(min(numbers), max(numbers), 0.02), (low, high))
    panel.x_label = "step number"
    panel.axis_y(seconds(low, high))
    panel.axis_x(lambda value: f"{value:.0f}")
    for dots, style in zip(points, STYLES, strict=True):
        panel.dots(style, [(number, min(max(time, low), high)) for number, time in dots])
    for side, style, place in zip(sides, STYLES, (0.55, 1.0), strict=True):
        name = f"{'●' if style == 'base' else '○'} {printable(side.label)}"
        panel.text(style, (panel.x[0] + place * (panel.x[1] - panel.x[0]), high), name, "end", -5)
    return panel


def _thinned(step: np.ndarray, times: np.ndarray, groups: int) -> list[tuple[float, float]]:
    pieces = range(0, len(step), groups)
    return [(float(step[i]), float(np.median(times[i : i + groups]))) for i in pieces]
