"""What a search for flags found: each trial, the verdict over the worlds, and what to do next."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from pathlib import Path

from pgle.files import write_files
from pgle.report import json
from pgle.report.page.html import TRACE, page_files
from pgle.report.page.parts import Prose, Section, Table
from pgle.report.page.schedules import Schedule, schedules_page
from pgle.report.text import console, duration, printable, say, table, warn
from pgle.report.tune_advice import advice
from pgle.run.tune.request import Proof, Tuning
from pgle.run.tune.tune import OnTrial
from pgle.tune.room import Reason, reasons
from pgle.tune.trial import Trial, judge

COLUMNS = ("", "predicted step", "exposed", "change", "won", "temp memory")


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
            ("figures", f"predicted from {found.costs_are} costs; {_modelled(found.tuned.trial)}"),
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
            beside = trial.label.startswith("without ")
            number = "" if beside else f"trial {next(numbers)} of at most {budget}: "
            say(f"{number}{trial.label}: {words}{took}")

    return announce


def figures(trial: Trial, pgle: Trial) -> tuple[str, str, int, int]:
    """Step, mean change over worlds, worlds won, worlds."""
    judged = judge(trial.worlds_us, pgle.worlds_us)
    return duration(trial.step_us or 0.0), f"{judged.mean:+.1%}", judged.won, judged.of


def show_text(found: Tuning, out: Path, page: Path, *, next_step: bool = True) -> None:
    """Tables on stdout, warnings on stderr."""
    screen = console()
    others = [trial for trial in found.trials if not trial.same_as]
    rows = [row(found, trial) for trial in (found.baseline.trial, found.pgle.trial, *others)]
    screen.print(table(COLUMNS, rows, right="|".join(COLUMNS[1:]), whole="|".join(COLUMNS[1:])))
    if same := [trial.label for trial in found.trials if trial.same_as]:
        screen.print(f"no other program, so no trial: {', '.join(same)}", style="dim")
    screen.print(f"with all communication hidden: {duration(found.pgle.prediction.ceiling.step_us)}")
    if found.trials:
        screen.print(legend(found), style="dim")
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


def legend(found: Tuning) -> str:
    """The columns of the worlds in words."""
    of = len(found.pgle.trial.worlds_us)
    return (
        f"change: of the step against 'the profile', on average over {of} worlds, in which costs, latencies and "
        "contention differ as far as they are uncertain; negative is shorter. won: in how many worlds it is shorter. "
        "+: on top of the best before it. →: the one chosen"
    )


def row(found: Tuning, trial: Trial) -> tuple[str, ...]:
    """A trial as cells of `COLUMNS`."""
    tuned = found.tuned.trial
    best = found.proof is not None and (trial.label, trial.shape) == (tuned.label, tuned.shape)
    name = f"→ {trial.label}" if best else trial.label
    if trial.step_us is None:
        return name, "does not compile", "", "", "", ""
    if trial.same_as:
        return name, f"as '{trial.same_as}'", "", "", "", ""
    step, mean, won, of = figures(trial, found.pgle.trial)
    same = trial is found.pgle.trial
    return (
        name,
        step,
        duration(trial.exposed_us),
        "–" if same else mean,
        "–" if same else f"{won}/{of}",
        "–" if trial.temp_bytes is None else f"{trial.temp_bytes / 2**30:.2f} GiB",
    )


def sentence(found: Tuning) -> str:
    """The verdict with its figures."""
    by = "predicted" if found.costs_are == "measured" else f"predicted, {found.costs_are} costs"
    prediction = found.pgle.prediction
    step = max(prediction.step_us, 1e-9)
    room = 1 - prediction.ceiling.step_us / step
    if found.verdict == "no-room":
        exposed = prediction.exposed_us / step
        return f"No room: {exposed:.2%} of the step is exposed, and hiding all would save {room:.2%} ({by})."
    if found.proof is None:
        return (
            f"Nothing better in {tried(found)}: none is shorter by 0.5 % in nine of ten worlds; hiding all "
            f"communication would save {room:.1%} ({by})."
        )
    judged, harder = found.proof.judged, found.proof.harder
    return (
        f"Better: the step gets {-judged.mean:.1%} shorter than with the profile alone, on average over {judged.of} "
        f"worlds (won {judged.won}, at worst {judged.worst:+.1%}), and {-harder.mean:.1%} in worlds with twice the "
        f"contention (won {harder.won} of {harder.of}; {by}; {_modelled(found.tuned.trial)})."
    )


def tried(found: Tuning) -> str:
    """How many settings made another program, as progress counts them."""
    count = sum(not trial.same_as for trial in found.trials)
    return f"{count} trial{'s' * (count != 1)}"


def _modelled(trial: Trial) -> str:
    count = trial.modelled
    if not count:
        return "its collectives are those of the profile"
    return f"{count} of its collectives {'are' if count != 1 else 'is'} new, with modelled times"


def gains(found: Tuning) -> list[str]:
    """What each flag of the accepted setting gives: how much longer the step is without it."""
    tuned = found.tuned.trial
    lines = []
    for name, trial in found.without.items():
        if trial.step_us is not None:
            lost = judge(trial.worlds_us, tuned.worlds_us).mean
            lines.append(f"  --{name}={tuned.flags[name]}: without it the step changes by {lost:+.1%}")
    return lines


def proven(proof: Proof) -> str:
    """Whether XLA took the profile under the accepted flags, with its line, and what the new profile covers."""
    head = (
        "proven by a whole compilation"
        if proof.used
        else "NOT proven: compiled whole, the profile does not count as used"
    )
    moved = f"changes by {proof.change:+.2%}" if abs(proof.change) > 1e-4 else "is the same"
    same = f"against the trial its step {moved}"
    return f"{head} ({same}, the profile has costs for {proof.coverage:.1%} of it): {proof.why}"


def reasons_of(found: Tuning) -> tuple[Reason, ...]:
    """The collectives that stay exposed after all."""
    return reasons(found.pgle.module, found.collectives)


def why_exposed(found: Tuning) -> Sequence[str]:
    """Why communication stays exposed with the profile alone, in the program's own words, and what would help."""
    lines = []
    for item in reasons_of(found):
        words = [f"made by {item.made_by}"] if item.made_by else []
        words += [f"needed by {item.needed_by}"] if item.needed_by else []
        words += [f"in {item.loop}"] if item.loop else []
        about = f" ({'; '.join(words)})" if words else ""
        lines.append(
            f"  {printable(item.name)}, {duration(item.exposed_us)} exposed: {item.why}{printable(about)}. "
            f"Would help: {item.help}."
        )
    return lines


def show_json(found: Tuning, out: Path, page: Path) -> None:
    """``pgle.tune/1``."""
    json.show("pgle.tune/1", document(found, out, page))
    warn(found.warnings)


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
        "harder_worlds": judge(tuned.harder_us, pgle.trial.harder_us),
        "temp_bytes": tuned.temp_bytes,
        "trials": [_trial(found, trial) for trial in found.trials],
        "resumed": found.resumed,
        "without": {name: _trial(found, trial) for name, trial in found.without.items()},
        "refused": found.refused,
        "costs_are": found.costs_are,
        "modelled": tuned.modelled,
        "used": None if proof is None else proof.used,
        "why": "" if proof is None else proof.why,
        "coverage": None if proof is None else proof.coverage,
        "whole_against_trial": None if proof is None else proof.change,
        "reasons": reasons_of(found),
        "written": () if proof is None else proof.written,
        "page": page,
        "jaxlib": found.jaxlib,
        "next": advice(found, out),
        "warnings": found.warnings,
    }


def _trial(found: Tuning, trial: Trial) -> dict[str, object]:
    done = trial.step_us is not None
    return {
        "label": trial.label,
        "flags": dict(trial.flags),
        "step_us": trial.step_us,
        "exposed_us": trial.exposed_us if done else None,
        "worlds": judge(trial.worlds_us, found.pgle.trial.worlds_us) if done else None,
        "temp_bytes": trial.temp_bytes,
        "shape": dict(trial.shape),
        "same_as": trial.same_as,
        "modelled": trial.modelled,
        "failure": trial.failure,
    }
