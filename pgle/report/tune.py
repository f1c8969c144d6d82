"""A search for flags: one live line while it runs, its answer as a page and as JSON."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from pgle.account.value import OpportunityKind
from pgle.account.way import Known, Search
from pgle.errors import cut, many, shown
from pgle.next import Commands, Next, Sentence, quoted, to_way
from pgle.report import account, text
from pgle.report.control import STAGE
from pgle.report.page import figures
from pgle.report.page.value import (
    Advice,
    Cell,
    Page,
    Prose,
    Section,
    Table,
    Tone,
    Value,
    table,
)
from pgle.report.predict import (
    Schedule,
    exposed_notes,
    sections,
    setting_notes,
    span_us,
)
from pgle.report.text import Line, live, near, phases, say
from pgle.report.timeline import tiles
from pgle.run.compiler.compile import OnPhase
from pgle.run.directory.directory import free
from pgle.run.inputs.next_command import UNKNOWN
from pgle.run.rehearse_program import LHS_ON
from pgle.run.tune import LESS, OnTrial, Simulated, Tuning
from pgle.schedule.control import Controlled
from pgle.schedule.placements import in_one, placements
from pgle.tune.search import Trial, best, judge
from pgle.xla.flags.catalogue import effects_of, is_slower, summary

VARIATIONS = "Variations: costs, latencies, contention and launch gaps, drawn anew as far as they are uncertain"
SET_THEM = "set these flags in the job, and compare its step times with today's;"
_PLAIN = re.compile(
    r"[\w=.,:/+ -]*", re.ASCII
)  # what a shell leaves alone between double quotes


def tune_page(found: Tuning, out: Path, picture: Path | None = None) -> Page:
    """The flags that were found, ready to paste, or why there are none.

    Args:
        found: the search.
        out: its folder.
        picture: where the page is; None: this makes the page itself.
    """
    grouped, schedules = [], []
    for label, side in _sides(found):
        made = side.prediction.timeline
        placed = placements(side.module, made, found.request.flags).values()
        grouped.append(in_one(placed))
        reasons = {item.name: item.reason for item in placed}
        head = "LHS, " if side is found.baseline else ""
        schedules.append(
            Schedule(
                f"{head}{label}",
                made,
                found.costs_are,
                side.module,
                reasons,
                side.trial.memory_bytes,
            )
        )
    words, tone = headline(found)
    actions = _actions(found, schedules)
    following = commands(found, out)
    count = found.tuned.trial.modelled
    modelled = (
        f"{many(count, 'collective')} with modelled times"
        if count
        else "its collectives are the profile's"
    )
    done = figures.count(sum(not trial.same_as for trial in found.trials))
    exposed = exposed_notes(
        grouped[1], found.pgle.prediction.step_us, ", with the profile"
    )[:3]
    return Page(
        title=f"pgle tune: {found.pgle.module.name}",
        identity=(
            found.pgle.module.name,
            f"{found.pgle.module.num_devices} × {found.request.target.name}",
            f"jaxlib {found.jaxlib}",
            f"predicted from {found.costs_are} costs",
            f"{done} of at most {found.budget} trials",
        ),
        verdict=words,
        tone=tone,
        paste=exported(found),
        table=_table(found),
        notes=(
            STAGE,
            f"{VARIATIONS}.",
            account.note(found.account),
            *setting_notes(found.request),
            *(
                _record(found)
                if found.proof is not None
                else (why_next(found), *exposed)
            ),
            f"Page: {near(picture)}" if picture is not None else "",
        ),
        actions=actions,
        sections=(
            *sections(schedules, grouped[-1], (schedules[-1].label,) * 2),
            account.section(found.account),
            Section("trials", "Every trial", _trials(found)),
            Section("proof", "Proof", tuple(map(Prose, _proof(found)))),
        ),
        way=to_way(following),
        warnings=(*found.refused, *found.warnings),
        tiles=tiles(
            [
                (item.label, item.timeline.breakdown)
                for item in (schedules[-2], schedules[-1])
            ],
            "predicted",
        ),
        about=(
            ("module", str(found.request.module)),
            ("your flags", " ".join(found.request.flags) or "none"),
            (
                "figures",
                f"predicted from {found.costs_are} costs, no GPU was used; {modelled}",
            ),
        ),
    )


def headline(found: Tuning) -> tuple[str, Tone]:
    """The answer in one line, and its tone."""
    if found.verdict == "cannot-tell":
        why = found.pgle.prediction.lower_bound_why
        return f"Cannot tell: {shown(why)}", "warn"
    if found.proof is None:
        words, tone = account.headline(found.account)
        return f"No better flags. {words}", tone
    saved_by, neither_us, trial = (
        found.proof.saved,
        found.baseline.trial.step_us,
        found.tuned.trial,
    )
    words = (
        f"Try these flags: predicted {figures.share(saved_by.share)} shorter on average"
    )
    if saved_by.low < saved_by.high:
        words += f" ({figures.shares((saved_by.low, saved_by.high))})"
    if neither_us and trial.step_us:
        words += (
            f"; they and the profile by {figures.share(1 - trial.step_us / neither_us)}"
        )
    words += "" if found.proof.used else ", not proven"
    longer = any(
        is_slower(effects_of(name, value)) for name, value in trial.flags.items()
    )
    words += "; others measured longer steps" if longer else ""
    return words, "good" if found.proof.used and not longer else "warn"


def exported(found: Tuning) -> str:
    """The line that sets the flags that were found, for a shell; empty: there are none."""
    if found.proof is None:
        return ""
    words = (LHS_ON, *found.request.flags, *_words(found.tuned.trial))
    text = " ".join(dict.fromkeys(words))
    return (
        f'export XLA_FLAGS="{text}"'
        if _PLAIN.fullmatch(text)
        else f"export XLA_FLAGS={quoted(text)}"
    )


def _words(trial: Trial) -> list[str]:
    return [f"--{name}={value}" for name, value in trial.flags.items()]


def _sides(found: Tuning) -> list[tuple[str, Simulated]]:
    """No profile, the profile and, if there are some, the flags that were found."""
    proven = [] if found.proof is None else [("with these flags", found.tuned)]
    return [("no profile", found.baseline), ("the profile", found.pgle), *proven]


def _table(found: Tuning) -> Table:
    """The sides, and perfect overlap."""
    rows = [_row(found, side.trial, name)[:-1] for name, side in _sides(found)]
    for name, us, share in account.bound_rows(found.account):
        rows.append((name, us, share - 1, "", ""))
    return table(_heads(found)[:-1], rows)


def _heads(found: Tuning) -> list[str]:
    mean = f"mean of {len(found.pgle.trial.worlds_us)} variations (change)"
    return [
        "setting",
        "step (time)",
        mean,
        "exposed (time)",
        "peak memory (size)",
        "shorter in",
    ]


def _row(found: Tuning, trial: Trial, name: str) -> tuple[Value, ...]:
    """A trial under `_heads`; changes are against the profile alone."""
    if trial.step_us is None:
        return name, "does not compile", "", "", "", trial.failure
    if trial.same_as:
        return name, f"as {trial.same_as}", "", "", "", ""
    exposed = Cell(trial.exposed_us, "exposed")
    if trial is found.pgle.trial:
        return name, trial.step_us, "", exposed, trial.memory_bytes, ""
    judged = judge(trial.worlds_us, found.pgle.trial.worlds_us)
    change = Cell(judged.mean, "good" if judged.mean < 0 else "")
    return (
        name,
        trial.step_us,
        change,
        exposed,
        trial.memory_bytes,
        f"{judged.won} of {judged.of}",
    )


def _trials(found: Tuning) -> tuple[Table | Prose, ...]:
    taken = "" if found.proof is None else found.tuned.trial.label
    trials = [(name, side.trial) for name, side in _sides(found)[:2]] + [
        (trial.label, trial) for trial in found.trials
    ]
    rows = (
        _row(found, trial, "→ " * (bool(taken) and trial.label == taken) + name)
        for name, trial in trials
    )
    legend = f"{VARIATIONS}. Changes are against the profile alone. +: on top of the best before it. →: chosen."
    return table(_heads(found), rows, shown=24), Prose(legend, tone="soft")


def _record(found: Tuning) -> Iterator[str]:
    """What the step loses without each flag, and what others measured for it; what less memory
    changes.
    """
    tuned = found.tuned.trial
    if found.proof is not None and (less := found.proof.in_less) is not None:
        yield f"With {figures.share(LESS, 0)} less memory: {figures.change(less.mean)}."
    yield "measured by others (step time, minus is shorter):"
    for name, value in tuned.flags.items():
        trial, alone = found.without.get(name), ""
        if trial is not None and trial.step_us is not None:
            alone = f"; without it the step changes by {_change(trial, tuned)}"
        yield f"  {name.removeprefix('xla_gpu_')}: {summary(effects_of(name, value))}{alone}"


def _proof(found: Tuning) -> Iterator[str]:
    """Whether XLA took the profile under the accepted flags, with its line, and what the new
    profile covers.
    """
    if (proof := found.proof) is None:
        return
    head = (
        "Compiled whole: XLA used the profile"
        if proof.used
        else "Not proven: XLA did not use enough of the profile"
    )
    moved = f"The step changes by {figures.change(proof.change, 2)} against the trial."
    same = "The step equals the trial's." if abs(proof.change) <= 1e-4 else moved
    yield f"{head}: {proof.use.why}. {same} The new profile covers {figures.share(proof.coverage)} of the step."
    if proof.control is None:
        yield "Every matrix product has a measured cost, or there is none: nothing hangs on autotuning."
    elif proof.control.other is not None:
        first, other = proof.control.first, proof.control.other
        yield (
            f"Control, with other kernels for products: the step changes by {figures.change(-other.share)}, and by "
            f"{figures.change(-first.share)} without. The smaller change counts."
        )
    yield from (f"wrote {path}" for path in proof.written)


def _actions(found: Tuning, schedules: list[Schedule]) -> tuple[Advice, ...]:
    """What saves most; the flags have the line that sets them."""
    flags = OpportunityKind.FLAGS
    span = span_us(schedules[1])
    return tuple(
        replace(one, command=exported(found), span_us=span)
        if item.kind is flags
        else one
        for item, one in account.listed(found.account)
    )


def why_next(found: Tuning) -> str:
    """What the answer leads to, in a sentence or two."""
    if found.proof is not None:
        return "Profile again under these flags and compare on the GPUs: only that proves the gain."
    if found.verdict == "cannot-tell":
        return "Give the loop a constant length (jax.lax.scan, or fori_loop with constant bounds), then tune again."
    if found.verdict == "no-room":
        return "The communication is hidden already."
    return "No setting of flags was shorter in enough variations."


def commands(found: Tuning, out: Path) -> Commands:
    """What to type next; the first is the most useful."""
    launch = found.launch
    if found.proof is not None and launch.words == UNKNOWN:
        return (Sentence.of(f"{SET_THEM} {out / 'flags.txt'} has them"),)
    if found.proof is not None:
        before = (
            launch.run.path if launch.run is not None else free(Path("runs/untuned"))
        )
        after = free(
            before.with_name("tuned" if launch.run is None else f"{before.name}-tuned")
        )
        is_there = launch.run is not None and launch.run.stage("perf").path.exists()
        lines = [] if is_there else [launch.line("run", before)]
        new = launch.line("run", after, "--flags-file", out / "flags.txt")
        return new, *lines, Next.of("compare", before / "perf", after / "perf")
    return (account.end_words(Known(search=Search.IN_VAIN, account=found.account)),)


@contextmanager
def searching(budget: int) -> Iterator[tuple[OnTrial, OnPhase]]:
    """One live line on a search: trial k of n, the best so far, what compiles, and how long the
    rest takes.
    """
    with (
        live("starting XLA's compiler") as line,
        phases(line) as on_phase,
        announced(line, budget) as on,
    ):
        yield on, on_phase


@contextmanager
def announced(line: Line, budget: int) -> Iterator[OnTrial]:
    """Counts trials on a line, and has it name the best; what compiles to a known program is no
    trial.

    If a signal ends the search, it names the best setting so far and how to continue.
    """
    seen: list[Trial] = []  # the first is the profile alone

    def announce(trial: Trial, pgle: Trial) -> None:
        seen.append(trial)
        line.total, line.noun = budget, "trial"
        if trial is pgle or trial.same_as or trial.label.startswith("without "):
            return
        line.done = min(line.done + 1, budget)
        found = best(pgle, seen)
        line.best = (
            "" if found is pgle else f"{_change(found, pgle)} ({cut(found.label, 40)})"
        )

    try:
        yield announce
    except (KeyboardInterrupt, SystemExit):
        if seen:
            found, pgle = best(seen[0], seen), seen[0]
            change = f"{' '.join(_words(found))}, {_change(found, pgle)} (predicted, not proven)"
            say(f"best so far: {'the profile alone' if found is pgle else change}")
            say("the trials are kept; run the same command again to continue")
        raise


def _change(trial: Trial, other: Trial) -> str:
    return figures.change(judge(trial.worlds_us, other.worlds_us).mean)


def document(found: Tuning, out: Path, page: Path) -> dict[str, object]:
    """``pgle.tune/1`` without its name."""
    pgle, proof, tuned = found.pgle, found.proof, found.tuned.trial
    return {
        "verdict": found.verdict,
        "module": pgle.module.name,
        "flags": dict(tuned.flags),
        "step_us": text.picked(
            found,
            (
                "baseline=baseline.trial.step_us pgle=pgle.trial.step_us tuned=tuned.trial.step_us "
                "ceiling=pgle.prediction.ceiling_us"
            ),
        ),
        "worlds": judge(tuned.worlds_us, pgle.trial.worlds_us),
        "temp_bytes": tuned.temp_bytes,
        "trials": [_trial(found, trial) for trial in found.trials],
        "without": {
            name: _trial(found, trial) for name, trial in found.without.items()
        },
        **text.picked(found, "refused costs_are"),
        "account": account.document(found.account),
        "modelled": tuned.modelled,
        "not_modelled": found.tuned.prediction.not_modelled,
        "public": {
            name: effects_of(name, value) for name, value in tuned.flags.items()
        },
        "used": proof and proof.used,
        "why": proof.use.why if proof else "",
        "coverage": proof and proof.coverage,
        "less_memory": proof and proof.in_less,
        "control": proof and proof.control and _control(proof.control),
        "saved": proof and proof.saved,
        "whole_against_trial": proof and proof.change,
        "written": proof.written if proof else (),
        "page": page,
        "jaxlib": found.jaxlib,
        "next": "\n  ".join((why_next(found), *map(str, commands(found, out)))),
        "warnings": found.warnings,
    }


def _control(found: Controlled) -> dict[str, object]:
    """What both compilations say of the accepted flags."""
    return {"depends": found.depends, "first": found.first, "other": found.other}


def _trial(found: Tuning, trial: Trial) -> dict[str, object]:
    done = trial.step_us is not None
    return {
        **text.picked(trial, "label flags step_us temp_bytes same_as modelled failure"),
        "exposed_us": trial.exposed_us if done else None,
        "worlds": judge(trial.worlds_us, found.pgle.trial.worlds_us) if done else None,
    }
