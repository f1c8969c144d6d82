"""A search for flags: its trials as they end, its tables, pages and JSON; and `pgle run --tune`, which runs one."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

from pgle.errors import many
from pgle.files import write_files
from pgle.report import json
from pgle.report.experiment import pipeline
from pgle.report.onward import after_tuning, show_next
from pgle.report.page.html import page_files
from pgle.report.page.parts import Prose, Section, Table
from pgle.report.page.schedules import Schedule, schedules_page
from pgle.report.schedules.rehearse import setting_lines
from pgle.report.schedules.tune_words import (
    COLUMNS,
    advice,
    figures,
    gains,
    legend,
    modelled,
    proven,
    reasons_of,
    row,
    sentence,
    why_exposed,
)
from pgle.report.steps import compare
from pgle.report.text import console, duration, numbers, say, warn
from pgle.run.convert import Conversion
from pgle.run.experiment.pipeline import Pipeline
from pgle.run.experiment.stage import StageResult
from pgle.run.inputs.folder import TRACE
from pgle.run.tune.experiment import TUNED, TunedRun
from pgle.run.tune.record import NAME
from pgle.run.tune.request import Tuning
from pgle.run.tune.tune import OnTrial
from pgle.tune.search import best
from pgle.tune.trial import Trial, judge
from pgle.xla.flags.record import effects_of


def write_pages(found: Tuning, out: Path) -> Path:
    """Draw the schedules before and after beside the flags; the page's path is returned."""
    sides = [("LHS, no profile", found.baseline), ("the profile", found.pgle)]
    sides += [("tuned", found.tuned)] if found.proof is not None else []
    rows = [row(found, trial) for trial in (found.baseline.trial, found.pgle.trial, *found.trials)]
    why = why_exposed(found)
    page = schedules_page(
        [Schedule(label, side.prediction.timeline, found.costs_are, side.module) for label, side in sides],
        title=f"pgle tune: {found.pgle.module.name}",
        verdict=sentence(found),
        lead=[line.strip() for line in gains(found)],
        next_step=advice(found, out),
        about=[
            ("compiled by", f"jaxlib {found.jaxlib}"),
            ("figures", f"predicted from {found.costs_are} costs; {modelled(found.tuned.trial)}"),
        ],
        more=[
            *([Section("Why communication stays exposed", tuple(Prose(line.strip()) for line in why))] if why else []),
            Section("Every trial", (Table(("setting", *COLUMNS[1:]), tuple(rows), frozenset(range(1, 6))),)),
        ],
    )
    write_files(page_files(out, page), force=True)
    return out / "timeline.html"


def announcer(budget: int) -> OnTrial:
    """Says on stderr what each trial came to, as it ends; those that change nothing are not counted."""
    numbers = count(1)
    began, compiled = time.monotonic(), count(1)

    def rest(number: int) -> str:
        """What is left of the budget at most, where that takes over a minute, by the trials that were compiled now."""
        left_s = (time.monotonic() - began) / next(compiled) * (budget - number)
        return f", at most {left_s / 60:.0f} min more" if left_s > 60 else ""

    def announce(trial: Trial, pgle: Trial) -> None:
        took = f", {trial.cpu_s:.1f} CPU-s" if trial.cpu_s else ""
        if trial is pgle:
            share = trial.exposed_us / max(trial.step_us or 0.0, 1e-9)
            say(f"the profile alone: {duration(trial.step_us or 0.0)}, {share:.1%} exposed")
        elif trial.same_as:
            say(f"{trial.label}: the same program as {trial.same_as}{took}")
        else:
            failed = f"does not compile ({trial.failure})"
            words = failed if trial.step_us is None else "{}, {}, won {} of {}".format(*figures(trial, pgle))
            number = ""
            if not trial.label.startswith("without "):
                nth = next(numbers)
                number, took = f"trial {nth} of at most {budget}: ", took and f"{took}{rest(nth)}"
            say(f"{number}{trial.label}: {words}{took}")

    return announce


@contextmanager
def search_ended(memory_limit: int | None) -> Iterator[Callable[[OnTrial], OnTrial]]:
    """If a signal ends the search, say what it found so far and how to continue; `watched` keeps the trials."""
    seen: list[Trial] = []
    alone: list[Trial] = []

    def watched(on_trial: OnTrial) -> OnTrial:
        def keep(trial: Trial, pgle: Trial) -> None:
            alone[:] = [pgle]
            seen.append(trial)
            on_trial(trial, pgle)

        return keep

    try:
        yield watched
    except (KeyboardInterrupt, SystemExit):
        if alone:
            found, pgle = best(alone[0], seen, memory_limit), alone[0]
            words = " ".join(f"--{name}={value}" for name, value in found.flags.items())
            change = f"{words}, {figures(found, pgle)[1]} (predicted, not proven)"
            say(f"best so far: {'the profile alone' if found is pgle else change}")
            say("the trials are kept; run the same command again to continue")
        raise


def show_text(found: Tuning, out: Path, page: Path, *, next_step: bool = True) -> None:
    """Tables on stdout, warnings on stderr."""
    screen, module, request = console(), found.pgle.module, found.request
    for line in setting_lines(module.name, module.num_devices, request.target.name, found.jaxlib, request.setting):
        screen.print(line, style="bold", soft_wrap=True)
    others = [trial for trial in found.trials if not trial.same_as]
    rows = [row(found, trial) for trial in (found.baseline.trial, found.pgle.trial, *others)]
    screen.print(numbers(COLUMNS, rows))
    if same := [trial.label for trial in found.trials if trial.same_as]:
        screen.print(f"no other program, so no trial: {', '.join(same)}", style="dim")
    screen.print(f"with all communication hidden: {duration(found.pgle.prediction.ceiling.step_us)}")
    if found.trials:
        screen.print(legend(found), style="dim")
    if found.resumed:
        said = f"{many(found.resumed, 'trial')} of an earlier search, as {request.out / NAME} has them"
        screen.print(said, style="dim", soft_wrap=True)
    screen.print()
    screen.print(sentence(found), style="bold", soft_wrap=True)
    for line in gains(found):
        screen.print(line, soft_wrap=True)
    if why := why_exposed(found):
        screen.print("With the profile alone these stay exposed:")
    for line in why:
        screen.print(line, soft_wrap=True)
    if found.proof is not None:
        screen.print(proven(found.proof), soft_wrap=True)
        for path in found.proof.written:
            screen.print(f"wrote {path}", soft_wrap=True)
    screen.print(f"every trial and both schedules: {page}  (or {TRACE} beside it in ui.perfetto.dev)", soft_wrap=True)
    warn((*found.refused, *found.warnings))
    if next_step:
        screen.print(advice(found, out), style="bold", soft_wrap=True)


def show_json(found: Tuning, out: Path, page: Path) -> None:
    """``pgle.tune/1``."""
    json.show("pgle.tune/1", document(found, out, page))


def document(found: Tuning, out: Path, page: Path) -> dict[str, object]:
    """``pgle.tune/1`` without its name."""
    pgle, proof, tuned = found.pgle, found.proof, found.tuned.trial
    return {
        "verdict": found.verdict,
        "module": pgle.module.name,
        "flags": dict(tuned.flags),
        "step_us": {
            "baseline": found.baseline.trial.step_us,
            "pgle": pgle.trial.step_us,
            "tuned": tuned.step_us,
            "ceiling": pgle.prediction.ceiling.step_us,
        },
        "worlds": judge(tuned.worlds_us, pgle.trial.worlds_us),
        "temp_bytes": tuned.temp_bytes,
        "trials": [_trial(found, trial) for trial in found.trials],
        "resumed": found.resumed,
        "complete": found.complete,
        "without": {name: _trial(found, trial) for name, trial in found.without.items()},
        **json.picked(found, "refused costs_are"),
        "modelled": tuned.modelled,
        "public": {name: effects_of(name, value) for name, value in tuned.flags.items()},
        "used": proof and proof.used,
        "why": proof.why if proof else "",
        "coverage": proof and proof.coverage,
        "less_memory": proof and proof.in_less,
        "whole_against_trial": proof and proof.change,
        "reasons": reasons_of(found),
        "written": proof.written if proof else (),
        "page": page,
        "jaxlib": found.jaxlib,
        "next": advice(found, out),
        "warnings": found.warnings,
    }


def _trial(found: Tuning, trial: Trial) -> dict[str, object]:
    done = trial.step_us is not None
    return {
        **json.picked(trial, "label flags step_us temp_bytes same_as modelled failure"),
        "exposed_us": trial.exposed_us if done else None,
        "worlds": judge(trial.worlds_us, found.pgle.trial.worlds_us) if done else None,
    }


def show_part(part: StageResult | Conversion | Pipeline | Tuning, run: Path) -> None:
    """A part of `pgle run --tune`, as it ends."""
    if isinstance(part, Pipeline):
        pipeline.show_end(part, next_step=False)
    elif isinstance(part, Tuning):
        show_text(part, run / TUNED, write_pages(part, run / TUNED), next_step=part.proof is None)
    else:
        pipeline.show_part(part)
    sys.stdout.flush()


def show_tuned_run(found: TunedRun, run: Path) -> None:
    """The comparison of the experiment under the new flags with the first, and what to do next."""
    warn(found.warnings)
    if found.second is None or found.comparison is None:
        return
    console().print("\nWith the profile both times: under the new flags against before them", style="bold")
    compare.show_text(found.comparison, found.checks)
    show_next(after_tuning(found.second.run, found.comparison, run / TUNED / "flags.txt"))


def show_tuned_run_json(found: TunedRun, run: Path) -> None:
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
