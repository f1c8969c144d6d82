"""What `pgle run` did: a line for each stage as it ends, then the verdict as a page; and as JSON."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from types import TracebackType

from pgle.costs.profile.coverage import Coverage
from pgle.errors import printable
from pgle.next import typed
from pgle.report import text
from pgle.report.costs.convert import costs_line
from pgle.report.experiment.confirm import use_line
from pgle.report.experiment.stage import SIMULATED, identity, steps_line
from pgle.report.next_steps import after_stages
from pgle.report.page import figures
from pgle.report.page.value import Page, Tone
from pgle.report.progress import live
from pgle.report.steps import compare as compare_report
from pgle.run.convert import Conversion
from pgle.run.stages.pipeline import STAGES, Pipeline
from pgle.run.stages.stage import StageResult
from pgle.run.tuned_run import UNDER_NEW_FLAGS
from pgle.trace.table import SIMULATED as NO_GPU


class Stages:
    """Prints a line for each stage of an experiment; a live line while one runs.

    Args:
        simulated: no program runs that prints lines of its own.
    """

    def __init__(self, *, simulated: bool) -> None:
        self._simulated, self._what = simulated, ""
        self._stage, self._again, self._since = "", "", 0.0
        self._running = ExitStack()
        self._warnings: dict[str, None] = {}

    def __enter__(self) -> Stages:
        if self._simulated:
            self._running.enter_context(live("checking the program and the compiler"))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._running.close()
        if error is not None:  # otherwise the page has them
            text.warn(self._warnings)

    def announce(self, line: str) -> None:
        """What `run_pipeline` announces: a stage that begins, again and why, or that is skipped."""
        self._running.close()
        if line.startswith(UNDER_NEW_FLAGS):
            self._what, line = "tuned ", line.removeprefix(UNDER_NEW_FLAGS)
        name, _, why = line.partition(": ")
        if name not in STAGES:
            text.say(line)
        elif why == "unchanged, skipped":
            self._stage, self._again = name, ""
            self._print("unchanged")
        else:
            self._stage, self._again, self._since = name, why.removeprefix("again, "), time.monotonic()
            if self._simulated:
                self._running.enter_context(live(f"{self._head()}{why}".rstrip()))
            else:
                text.say(f"{self._head()}{why}".rstrip())

    def show(self, part: StageResult | Conversion | Coverage | Pipeline) -> None:
        """What a stage came to, at once: the next may take minutes. At the end the comparison."""
        self._running.close()
        if isinstance(part, StageResult):
            use = use_line(part.verdict).partition(": ")[2] if part.verdict is not None else ""
            self._print(" · ".join(filter(None, (steps_line(part) or "done", use))))
            self._warnings |= dict.fromkeys(part.warnings)
        elif isinstance(part, Conversion):
            self._print(costs_line(part))
            self._warnings |= dict.fromkeys(line for line in part.warnings if not line.endswith(NO_GPU))
        elif isinstance(part, Coverage):
            self._print(f"{figures.share(_covered(part))} of the step's time has a cost")
        else:
            self._stage, self._again = STAGES[-1], ""
            self._print(compare_report.headline(part.comparison) if part.comparison else "too few steps")

    def show_end(self, result: Pipeline) -> None:
        """The line of the comparison, and a blank one before the page."""
        self.show(result)
        if not text.quiet:
            text.console().print()

    @property
    def warnings(self) -> tuple[str, ...]:
        """Of all stages so far, each once."""
        return tuple(self._warnings)

    def _head(self) -> str:
        number = f"[{STAGES.index(self._stage) + 1}/{len(STAGES)}] "
        return f"{self._what}{number}{self._stage:<{max(map(len, STAGES))}}  "

    def _print(self, line: str) -> None:
        if text.quiet:
            return
        again = f" · again: {self._again}" if self._again else ""
        took = time.monotonic() - self._since if self._since else 0.0
        seconds = f" · {took:.0f} s" if took >= 1 else ""
        text.console().print(printable(f"{self._head()}{line}{seconds}{again}"), soft_wrap=True)
        sys.stdout.flush()
        self._since = 0.0


def _covered(coverage: Coverage) -> float:
    return min((module.time.value or 0.0 for module in coverage.main), default=0.0)


def run_page(result: Pipeline, warnings: Sequence[str] = (), *, next_step: bool = True) -> Page:
    """Whether the step got faster with the profile; first of all whether XLA found and used it."""
    verdict, tone = _verdict(result)
    found, notes = result.comparison, []
    if result.exposed_us is not None:
        before, after = (figures.time(us).replace(figures.NONE, "none") for us in result.exposed_us)
        notes.append(f"exposed communication: {before} → {after} (exposed: the GPU waits, nothing computes)")
    if result.simulated:
        notes.append(SIMULATED)
    sections = () if found is None else compare_report.comparison_page(found, result.checks).sections
    return Page(
        title=f"pgle run {result.run.path}",
        identity=(*identity(result.facts), str(result.run.path)),
        verdict=printable(verdict),
        tone=tone,
        notes=tuple(notes),
        sections=sections,
        next=_next(result) if next_step else (),
        warnings=tuple(dict.fromkeys((*warnings, *result.warnings))),
    )


def _verdict(result: Pipeline) -> tuple[str, Tone]:
    if not result.covered:
        return (
            f"FAILED: the profile covers only {figures.share(_covered(result.coverage))} of the baseline's step",
            "bad",
        )
    if not result.used:
        return f"FAILED: XLA did not use the profile{f' ({result.use})' if result.use else ''}", "bad"
    if result.comparison is None:
        return "The profile is used; too few steps to compare", "warn"
    failed = any(check.failed for check in result.checks)
    tones: dict[str, Tone] = {"faster": "good", "slower": "bad"}
    return compare_report.headline(result.comparison), "bad" if failed else tones.get(result.comparison.verdict, "")


def _next(result: Pipeline) -> tuple[str, ...]:
    run = result.run
    if not result.covered:
        return (typed("pgle", "verify", run.profile, "--hlo", run.dump_to_cover),)
    if not result.used:
        return (typed("pgle", "confirm", run.path),)
    return after_stages(run, result.comparison)


def document(result: Pipeline) -> dict[str, object]:
    """``pgle.run/1`` without its name."""
    comparison = result.comparison
    return {
        "ok": result.good,
        **text.picked(result, "covered used skipped"),
        "comparison": None if comparison is None else compare_report.document(comparison, result.checks),
        "ran": [item.request.stage for item in result.stages],
        "warnings": result.warnings,
    }
