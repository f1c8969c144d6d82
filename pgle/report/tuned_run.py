"""`pgle run --tune`: each part as it ends, then the experiment under the new flags against the first."""

from __future__ import annotations

import sys
from pathlib import Path

from pgle.report import compare, json, pipeline
from pgle.report.onward import after_tuning, show_next
from pgle.report.text import console, warn
from pgle.report.tune import document, show_text, write_pages
from pgle.run.convert import Conversion
from pgle.run.experiment.pipeline import Pipeline
from pgle.run.experiment.stage import StageResult
from pgle.run.tune.experiment import TUNED, TunedRun
from pgle.run.tune.request import Tuning


def show_part(part: StageResult | Conversion | Pipeline | Tuning, run: Path) -> None:
    """A part of `pgle run --tune`, as it ends."""
    if isinstance(part, Pipeline):
        pipeline.show_end(part, next_step=False)
    elif isinstance(part, Tuning):
        show_text(part, run / TUNED, write_pages(part, run / TUNED), next_step=part.proof is None)
    else:
        pipeline.show_part(part)
    sys.stdout.flush()


def show_end(found: TunedRun, run: Path) -> None:
    """The comparison of the experiment under the new flags with the first, and what to do next."""
    warn(found.warnings)
    if found.second is None or found.comparison is None:
        return
    console().print("\nWith the profile both times: under the new flags against before them", style="bold")
    compare.show_text(found.comparison, found.checks)
    show_next(after_tuning(found.second.run, found.comparison, run / TUNED / "flags.txt"))


def show_json(found: TunedRun, run: Path) -> None:
    """``pgle.run/1`` with ``tune``, ``tuned`` and ``tuned_comparison``."""
    out = run / TUNED
    more: dict[str, object] = {
        "ok": found.good,
        "tune": document(found.tuning, out, write_pages(found.tuning, out)),
        "tuned": None if found.second is None else pipeline.document(found.second),
        "tuned_comparison": None if found.comparison is None else compare.document(found.comparison, found.checks),
    }
    json.show("pgle.run/1", {**pipeline.document(found.first), **more})
    warn(found.warnings)
