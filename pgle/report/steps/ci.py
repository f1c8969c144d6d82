"""A comparison for continuous integration: GitHub's job summary and outputs, JUnit XML."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from xml.etree import ElementTree

import numpy as np

from pgle.errors import UserError, one_line
from pgle.report.page.charts import unit_of
from pgle.report.page.markdown import escaped, fenced, section, table
from pgle.report.steps.compare import headline, other_warnings, picture, pooled, sections, sides_table
from pgle.steps.compare import Comparison, Verdict
from pgle.steps.gate import Check, Outcome, overall

ICONS = {Verdict.FASTER: "🟢", Verdict.SLOWER: "🔴", Verdict.SAME: "⚪", Verdict.UNDECIDED: "🟡"}
OUTCOMES = {Outcome.OK: "✅", Outcome.FAIL: "❌", Outcome.CANNOT_TELL: "❔ cannot tell:"}
SHADES = ("#8c8c8c", "#2f81f7")  # of base and new; seen on GitHub's light and dark pages
PERCENTILES = range(5, 100, 5)  # shown in the chart: a few wild steps must not set its scale


def summary(found: Comparison, checks: Sequence[Check]) -> str:
    """The job summary: verdict, table, limits, chart; all else folded away."""
    lines = [f"### {ICONS[found.verdict]} pgle compare: {escaped(headline(found))}", "", table(sides_table(found)), ""]
    lines += [f"- {OUTCOMES[check.outcome]} **{escaped(check.name)}**: {escaped(check.message)}" for check in checks]
    lines += ["", *chart(found), "<details><summary>Distributions, what was left out, footnotes</summary>", ""]
    lines += [fenced("\n".join(picture(found)), "text"), ""]
    for item in list(sections(found))[1:]:
        lines += [block + "\n" for block in section(item)]
    lines += [f"- {escaped(line)}" for line in other_warnings(found)]
    return "\n".join((*lines, "", "</details>", "", ""))


def chart(found: Comparison) -> list[str]:
    """Step times of both sides by percentile, as Mermaid; empty if all are equal.

    A job summary shows no image of the job's own files and no ``data:`` address, but it draws Mermaid.
    """
    base, new = (np.percentile(pooled(side), PERCENTILES) for side in (found.base, found.new))
    low, high = min(base[0], new[0]), max(base[-1], new[-1])
    if low == high:
        return []
    unit, scale = unit_of(high)
    room = (high - low) / 20
    lines = [", ".join(f"{value * scale:.6g}" for value in times) for times in (base, new)]
    palette = json.dumps({"themeVariables": {"xyChart": {"plotColorPalette": ", ".join(SHADES)}}})
    return [
        "```mermaid",
        f"%%{{init: {palette}}}%%",
        "xychart-beta",
        f'  title "Step times in {unit}: base grey, new blue"',
        f'  x-axis "percentile of the steps" {PERCENTILES[0]} --> {PERCENTILES[-1]}',
        f"  y-axis {max(low - room, 0) * scale:.6g} --> {(high + room) * scale:.6g}",
        *(f"  line [{line}]" for line in lines),
        "```",
        "",
    ]


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
