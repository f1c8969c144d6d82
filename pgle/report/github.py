"""A comparison for GitHub: the job summary as markdown, and the outputs of a step."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from pgle.errors import UserError
from pgle.report.compare import figures, headline, left_out_text, method_line, picture
from pgle.steps.compare import Comparison, Verdict
from pgle.steps.gate import Check

ICONS = {Verdict.FASTER: "🟢", Verdict.SLOWER: "🔴", Verdict.SAME: "⚪", Verdict.UNDECIDED: "🟡"}


def summary(found: Comparison, checks: Sequence[Check]) -> str:
    """The job summary: verdict, table, checks, picture as text, what was left out, footnotes."""
    confidence = f"{found.assumptions.confidence:.0%} CI"
    lines = [
        f"### {ICONS[found.verdict]} pgle compare: {_cell(headline(found))}",
        "",
        _row(("", found.base.label, found.new.label, "change", confidence, "p", "n")),
        "|:--|--:|--:|--:|--:|--:|--:|",
        *(_row(row) for row in figures(found)),
        "",
    ]
    lines += [f"- {'✅' if check.ok else '❌'} **{check.name}**: {_cell(check.message)}" for check in checks]
    lines += ["", "<details><summary>Distributions and what was left out</summary>", "", "```text"]
    lines += [line.replace("`", "'") for line in picture(found)]
    lines += ["```", "", _row(("", "runs", "steps", "left out")), "|:--|--:|--:|:--|"]
    for side in (found.base, found.new):
        lines.append(_row((side.label, str(len(side.runs)), str(side.steps), left_out_text(side))))
    lines += ["", _cell(method_line(found)), ""]
    lines += [f"{number}. {_cell(line)}" for number, line in enumerate(found.warnings, 1)]
    return "\n".join((*lines, "", "</details>", "", ""))


def outputs(found: Comparison, checks: Sequence[Check]) -> dict[str, str]:
    """The outputs of the step: verdict, ok, ratio, change, ci-low, ci-high, p, minimum-detectable, message."""
    failed = [check for check in checks if not check.ok]
    message = "; ".join(f"{check.name}: {check.message}" for check in failed) or headline(found)
    return {
        "verdict": found.verdict.value,
        "ok": "true" if not failed else "false",
        "ratio": f"{found.ratio:.6f}",
        "change": f"{found.change:+.2%}",
        "ci-low": _number(found.ci[0]),
        "ci-high": _number(found.ci[1]),
        "p": "" if found.estimate.p is None else f"{found.estimate.p:.6g}",
        "minimum-detectable": _number(found.minimum_detectable),
        "message": " ".join(message.split()),
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
                raise UserError(f"cannot be written ({error.strerror})", where=f"${name}") from None


def _number(value: float) -> str:
    return f"{value:.6f}" if math.isfinite(value) else ""


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(_cell(cell) for cell in cells) + " |"


def _cell(text: str) -> str:
    """Text that markdown leaves alone: no line end, column, HTML or emphasis out of a file name."""
    flat = " ".join(text.split())
    for sign, safe in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ("|", "\\|"), ("`", "'"), ("*", "\\*")):
        flat = flat.replace(sign, safe)
    return flat
