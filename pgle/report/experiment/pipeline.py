"""What `pgle run` came to, stage by stage."""

from __future__ import annotations

import sys

from pgle.next import typed
from pgle.report import json
from pgle.report.costs import convert as convert_report
from pgle.report.experiment import stage
from pgle.report.onward import after_stages, show_next
from pgle.report.steps import compare as compare_report
from pgle.report.text import console, warn
from pgle.run.convert import Conversion
from pgle.run.experiment.pipeline import Pipeline
from pgle.run.experiment.stage import StageResult


def show_part(part: StageResult | Conversion) -> None:
    """What one stage came to, at once: the next may take minutes."""
    if isinstance(part, StageResult):
        stage.show_text(part, next_step=False)
    else:
        convert_report.show_text(part)
    sys.stdout.flush()


def show_end(result: Pipeline, *, next_step: bool = True) -> None:
    """The comparison, coverage and use, and what to do next; the stages were shown as they ended."""
    if result.comparison is not None:
        compare_report.show_text(result.comparison, result.checks)
    out = console()
    for line in summary(result):
        out.print(line, style="bold")
    warn(result.warnings)
    if next_step:
        show_next(_next(result))


def summary(result: Pipeline) -> tuple[str, ...]:
    """One line for each check."""
    time = min((module.time.value or 0.0 for module in result.coverage.main), default=0.0)
    judged = "good" if result.covered else "too small"
    return f"coverage: {judged}, {time:.1%} of the baseline's step has a cost", f"profile: {_use(result)}"


def _next(result: Pipeline) -> list[str]:
    run = result.run
    if not result.covered:
        return [f"next: {typed('pgle', 'verify', run.profile, '--hlo', run.dump_to_cover)}"]
    if not result.used:
        return [f"next: {typed('pgle', 'confirm', run.path)}"]
    return after_stages(run, result.comparison)


def _use(result: Pipeline) -> str:
    return "used by XLA for the main module" if result.used else result.use or "NOT used"


def show_json(result: Pipeline) -> None:
    """``pgle.run/1``."""
    json.show("pgle.run/1", document(result))


def document(result: Pipeline) -> dict[str, object]:
    """``pgle.run/1`` without its name."""
    comparison = result.comparison
    return {
        "ok": result.good,
        **json.picked(result, "covered used skipped"),
        "comparison": None if comparison is None else compare_report.document(comparison, result.checks),
        "ran": [item.request.stage for item in result.stages],
        "warnings": result.warnings,
    }
