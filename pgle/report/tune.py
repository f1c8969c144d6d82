"""What a search for flags found: each trial, the verdict over the worlds, and what to do next."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pgle.files import write_files
from pgle.report import json
from pgle.report.text import console, duration, printable, table, warn
from pgle.report.timeline import picture_files
from pgle.report.timeline_layout import View
from pgle.run.tune import Tuning
from pgle.tune.search import Trial, judge

SHOWN = 3


def write_pages(found: Tuning, out: Path) -> Path:
    """Draw the schedules before and after beside the flags; the page's path is returned."""
    views = [
        View(label, trial.prediction.timeline, found.costs_are)
        for label, trial in (("LHS, no profile", found.baseline), ("the profile", found.pgle), ("tuned", found.tuned))
        if trial.prediction is not None and (label != "tuned" or found.verdict == "better")
    ]
    write_files(picture_files(out, views, title=found.module, intro=sentence(found)), force=True)
    return out / "timeline.html"


def show_text(found: Tuning, out: Path, page: Path) -> None:
    """Tables on stdout, warnings on stderr."""
    screen = console()
    label = "" if found.costs_are == "measured" else f" ({found.costs_are} costs)"
    rows = [_row(found, trial) for trial in (found.baseline, found.pgle, *found.trials)]
    columns = ("", f"step{label}", "exposed", "mean over worlds", "won", "temp memory")
    right = f"step{label}|exposed|mean over worlds|won|temp memory"
    screen.print(table(columns, rows, right=right, whole="exposed|won|temp memory"))
    assert found.pgle.prediction is not None
    screen.print(f"with all communication hidden: {duration(found.pgle.prediction.ceiling.step_us)}")
    screen.print()
    screen.print(sentence(found), style="bold", soft_wrap=True)
    for line in reasons(found):
        screen.print(line, soft_wrap=True)
    if found.used is not None:
        proof = "proven" if found.used else "NOT proven"
        screen.print(f"{proof} by a compilation with these flags: {found.why}", soft_wrap=True)
    for path in found.written:
        screen.print(f"wrote {path}", soft_wrap=True)
    screen.print(f"schedules: {page}", soft_wrap=True)
    screen.print(advice(found, out), style="bold", soft_wrap=True)
    warn(found.warnings)


def _row(found: Tuning, trial: Trial) -> tuple[str, ...]:
    name = f"→ {trial.label}" if trial.flags == found.tuned.flags and found.verdict == "better" else trial.label
    if trial.prediction is None:
        return name, "does not compile", "", "", "", ""
    judged = judge(trial, found.pgle)
    same = trial is found.pgle
    return (
        name,
        duration(trial.prediction.step_us),
        duration(trial.prediction.exposed_us),
        "–" if same else f"{judged.mean:+.1%}",
        "–" if same else f"{judged.won}/{judged.of}",
        "–" if trial.temp_bytes is None else f"{trial.temp_bytes / 2**30:.2f} GiB",
    )


def sentence(found: Tuning) -> str:
    """The verdict with its figures."""
    by = "predicted" if found.costs_are == "measured" else f"predicted, {found.costs_are} costs"
    assert found.pgle.prediction is not None
    step = found.pgle.prediction.step_us
    room = 1 - found.pgle.prediction.ceiling.step_us / max(step, 1e-9)
    exposed = found.pgle.prediction.exposed_us / max(step, 1e-9)
    if found.verdict == "no-room":
        return f"No room: {exposed:.2%} of the step is exposed, and hiding all would save {room:.2%} ({by})."
    if found.verdict == "not-better":
        tried = len(found.trials)
        return f"Nothing better in {tried} trials: none is shorter by 0.5 % in nine of ten worlds ({by})."
    judged = found.judged
    return (
        f"Better: the step gets {-judged.mean:.1%} shorter over {judged.of} worlds (won {judged.won}, at worst "
        f"{judged.worst:+.1%}) than with the profile alone ({by}; new collectives are modelled)."
    )


def reasons(found: Tuning) -> Sequence[str]:
    """Why communication stays exposed, in the program's own words: the collectives that matter most."""
    exposed = sorted((item for item in found.collectives if item.reason), key=lambda item: -item.exposed_us)
    return [
        f"  {printable(item.name)} ({item.kind}): {duration(item.exposed_us)} exposed, {item.reason}"
        for item in exposed[:SHOWN]
    ]


def advice(found: Tuning, out: Path) -> str:
    """What to do next."""
    if found.verdict != "better":
        return (
            "Flags do not help here. What would: independent work beside the collectives above (larger layers, "
            "prefetched weights, gradient accumulation), or fewer bytes; 'pgle predict' shows where the step goes."
        )
    return (
        f"Next: profile again under these flags and compare on the GPUs, the only real proof:\n"
        f"  pgle run --flags-file {out / 'flags.txt'} -- COMMAND\n"
        f"  pgle compare OLD_RUN/perf NEW_RUN/perf"
    )


def show_json(found: Tuning, out: Path, page: Path) -> None:
    """``pgle.tune/1``."""
    steps = {name: trial.prediction for name, trial in (("baseline", found.baseline), ("pgle", found.pgle))}
    assert found.pgle.prediction is not None
    tuned = found.tuned.prediction
    json.show(
        "pgle.tune/1",
        {
            "verdict": found.verdict,
            "module": found.module,
            "flags": dict(found.tuned.flags),
            "step_us": {
                **{name: None if item is None else item.step_us for name, item in steps.items()},
                "tuned": None if tuned is None else tuned.step_us,
                "ceiling": found.pgle.prediction.ceiling.step_us,
            },
            "worlds": found.judged,
            "temp_bytes": found.tuned.temp_bytes,
            "trials": [_trial(found, trial) for trial in found.trials],
            "costs_are": found.costs_are,
            "used": found.used,
            "why": found.why,
            "reasons": reasons(found),
            "written": found.written,
            "page": page,
            "jaxlib": found.jaxlib,
            "next": advice(found, out),
            "warnings": found.warnings,
        },
    )
    warn(found.warnings)


def _trial(found: Tuning, trial: Trial) -> dict[str, object]:
    return {
        "label": trial.label,
        "flags": dict(trial.flags),
        "step_us": None if trial.prediction is None else trial.prediction.step_us,
        "exposed_us": None if trial.prediction is None else trial.prediction.exposed_us,
        "worlds": None if trial.prediction is None else judge(trial, found.pgle),
        "temp_bytes": trial.temp_bytes,
        "failure": trial.failure,
    }
