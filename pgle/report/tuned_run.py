"""`pgle run --tune`: each part as it ends, then the comparison; and as JSON."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

from pgle.costs.profile.coverage import Coverage
from pgle.report import text
from pgle.report.experiment import pipeline
from pgle.report.next_steps import after_tuning
from pgle.report.page import terminal
from pgle.report.schedules.tune import document, tune_page, write_pages
from pgle.report.steps import compare
from pgle.report.text import console, warn
from pgle.run.convert import Conversion
from pgle.run.stages.pipeline import Pipeline
from pgle.run.stages.stage import StageResult
from pgle.run.tune import Tuning
from pgle.run.tuned_run import TUNED, TunedRun


def show_part(
    part: StageResult | Conversion | Coverage | Pipeline | Tuning, run: Path, stages: pipeline.Stages
) -> None:
    """A part of `pgle run --tune`, as it ends."""
    if isinstance(part, Pipeline):
        stages.show_end(part)
        terminal.show(pipeline.run_page(part, stages.warnings, next_step=False))
    elif isinstance(part, Tuning):
        page = tune_page(part, run / TUNED, write_pages(part, run / TUNED))
        terminal.show(page if part.proof is None else replace(page, next=()))
    else:
        stages.show(part)
    sys.stdout.flush()


def show_tuned_run(found: TunedRun, run: Path) -> None:
    """The comparison of the experiment under the new flags with the first, and what to do next."""
    warn(found.warnings)
    if found.second is None or found.comparison is None:
        return
    console().print("\nWith the profile both times: under the new flags against before them", style="bold")
    following = after_tuning(found.second.run, found.comparison)
    terminal.show(compare.comparison_page(found.comparison, found.checks, following))


def show_tuned_run_json(found: TunedRun, run: Path) -> None:
    """``pgle.run/1`` with ``tune``, ``tuned`` and ``tuned_comparison``."""
    out = run / TUNED
    more: dict[str, object] = {
        "ok": found.good,
        "tune": document(found.tuning, out, write_pages(found.tuning, out)),
        "tuned": None if found.second is None else pipeline.document(found.second),
        "tuned_comparison": None if found.comparison is None else compare.document(found.comparison, found.checks),
    }
    text.show("pgle.run/1", {**pipeline.document(found.first), **more})
    warn(found.warnings)
