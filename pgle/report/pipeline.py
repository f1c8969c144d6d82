"""What `pgle run` came to, stage by stage."""

from __future__ import annotations

from pgle.report import compare as compare_report
from pgle.report import convert as convert_report
from pgle.report import json, stage
from pgle.report.text import console, warn
from pgle.run.experiment.pipeline import Pipeline
from pgle.xla.log.module_verdict import ProfileUse


def show_text(result: Pipeline) -> None:
    """The stages that were run, then coverage, use and the comparison."""
    for item in result.stages:
        stage.show_text(item, next_step=False)
        if item.request.stage == "profile" and result.conversion is not None:
            convert_report.show_text(result.conversion)
    if result.comparison is not None:
        compare_report.show_text(result.comparison, result.checks)
    out = console()
    for line in summary(result):
        out.print(line, style="bold")
    out.print(f"next: {_next(result)}", style="dim", soft_wrap=True, markup=False)
    warn(result.warnings)


def summary(result: Pipeline) -> tuple[str, ...]:
    """One line for each check."""
    return (f"coverage: {'good' if result.covered else 'too small'}", f"profile: {_use(result)}")


def _next(result: Pipeline) -> str:
    """The command to type next."""
    run = result.run
    if not result.covered:
        return f"pgle verify {run.profile} --hlo {run.stage('profile').rank().hlo}"
    if not result.used:
        return f"pgle confirm {run.stage('perf').rank().log}"
    return f"pgle perf --profile {run.profile} -- COMMAND"


def _use(result: Pipeline) -> str:
    if result.used:
        return "used by XLA for the main module"
    for item in result.stages:
        if item.verdict is not None and item.verdict.verdict is ProfileUse.CANNOT_TELL:
            return f"cannot tell whether it was used: {item.verdict.why}"
    return "NOT used"


def show_json(result: Pipeline) -> None:
    """``pgle.run/1``."""
    json.show("pgle.run/1", document(result))
    warn(result.warnings)


def document(result: Pipeline) -> dict[str, object]:
    """``pgle.run/1`` without its name."""
    comparison = result.comparison
    return {
        "ok": result.good,
        "covered": result.covered,
        "used": result.used,
        "skipped": result.skipped,
        "comparison": None if comparison is None else compare_report.document(comparison, result.checks),
        "ran": [item.request.stage for item in result.stages],
        "warnings": result.warnings,
    }
