"""A search for flags: one live line while it runs, its answer as a page and as JSON."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from pgle.account.next_move import Move, Search, known_of
from pgle.account.value import OpportunityKind, StepBase
from pgle.errors import cut, many, shown
from pgle.next import Commands, Next, Sentence, quoted, to_way
from pgle.report import account
from pgle.report.account import AccountDocument
from pgle.report.control import SMALLER, STAGE
from pgle.report.next_in_run import way_of_run
from pgle.report.page import figures
from pgle.report.page.figures import Unit
from pgle.report.page.value import (
    Advice,
    Cell,
    Column,
    Page,
    Prose,
    Section,
    Table,
    Tile,
    Tone,
    Value,
    table,
)
from pgle.report.rehearse import setting_notes
from pgle.report.schedules import Schedule, exposed_notes, sections, span_us
from pgle.report.text import Document, Line, flat, live, near, phases, say
from pgle.report.timeline import tiles
from pgle.run.compiler.compile import OnPhase
from pgle.run.directory.directory import free
from pgle.run.inputs.next_command import UNKNOWN
from pgle.run.known_run import known_of_run
from pgle.run.rehearse_program import LHS_ON
from pgle.run.tune import LESS, OnTrial, Proven, Simulated, Tuning
from pgle.schedule.placements import ExposedGroup, in_one, placements
from pgle.schedule.predict import Gain
from pgle.tune.search import Flags, OverWorlds, Trial, best, judge
from pgle.xla.flags.catalogue import Effect, effects_of, is_slower, summary

VARIATIONS = (
    "Variations: costs, latencies, contention and launch gaps, "
    "drawn anew as far as they are uncertain"
)
SET_THEM = "set these flags in the job, and compare its step times with today's;"
CONSTANT_LOOP = (
    "give the loop a constant length (jax.lax.scan, or fori_loop with constant bounds), "
    "then tune again"
)
CONTROL_AT = 3  # its column, behind the change
EXPOSED_LINES = 3  # on the first screen, the heading included
SAME = 1e-4  # a step whose change is at most this share equals the trial's
# what a shell leaves alone between double quotes
_PLAIN = re.compile(r"[\w=.,:/+ -]*", re.ASCII)


@dataclass(frozen=True)
class DrawnSide:
    """One setting as the page draws it: its schedule, and its collectives in groups."""

    schedule: Schedule
    groups: tuple[ExposedGroup, ...]


def tune_page(found: Tuning, following: Commands, picture: Path | None = None) -> Page:
    """The flags that were found, ready to paste, or why there are none.

    Args:
        found: the search.
        following: what to type next, by `commands`.
        picture: where the page is; None: this makes the page itself.
    """
    sides = _drawn_sides(found)
    words, tone = headline(found)
    actions = _actions(found, sides[1].schedule)
    notes = tuple(_notes(found, sides, picture))
    parts = tuple(_sections(found, sides))
    return Page(
        title=f"pgle tune: {found.pgle.module.name}",
        identity=_identity(found),
        verdict=words,
        tone=tone,
        paste=exported(found),
        table=_table(found),
        notes=notes,
        actions=actions,
        sections=parts,
        way=to_way(following),
        warnings=(*found.refused, *found.warnings),
        tiles=_tiles(sides),
        about=_about(found),
    )


def _drawn_sides(found: Tuning) -> list[DrawnSide]:
    """The schedules of `_sides`, with their collectives in groups."""
    sides: list[DrawnSide] = []
    for label, side in _sides(found):
        timeline = side.prediction.timeline
        placed = placements(side.module, timeline, found.request.flags).values()
        reasons = {item.name: item.reason for item in placed}
        schedule = Schedule(
            label=f"LHS, {label}" if side is found.baseline else label,
            timeline=timeline,
            costs_are=found.costs_are,
            module=side.module,
            reasons=reasons,
            memory_bytes=side.trial.memory_bytes,
        )
        sides.append(DrawnSide(schedule, in_one(placed)))
    return sides


def _identity(found: Tuning) -> tuple[str, ...]:
    """The module, its GPUs, what compiled it, its costs, and how many settings were tried."""
    tried = figures.count(sum(not trial.same_as for trial in found.trials))
    module = found.pgle.module
    return (
        module.name,
        f"{module.num_devices} × {found.request.target.name}",
        f"jaxlib {found.jaxlib}",
        f"predicted from {found.costs_are} costs",
        f"{tried} of at most {found.budget} trials",
    )


def _notes(
    found: Tuning, sides: Sequence[DrawnSide], picture: Path | None
) -> Iterator[str]:
    """How it was judged, what the savings refer to, and what follows from the search."""
    yield STAGE if _by_control(found) is None else f"control: {SMALLER}; {STAGE}"
    yield f"{VARIATIONS}."
    yield account.note(found.account)
    is_base = found.account.base is not StepBase.PROFILED
    yield account.timed_note(found.account, is_base=is_base)
    yield from setting_notes(found.request)
    if found.proof is not None:
        yield from _record(found)
    else:
        step_us = found.pgle.prediction.step_us
        exposed = exposed_notes(sides[1].groups, step_us, ", with the profile")
        yield why_next(found)
        yield from exposed[:EXPOSED_LINES]
    if picture is not None:
        yield f"Page: {near(picture)}"


def _sections(found: Tuning, sides: Sequence[DrawnSide]) -> Iterator[Section]:
    """The schedules, the account, every trial, and the proof."""
    last = sides[-1]
    schedules = [side.schedule for side in sides]
    labels = (last.schedule.label, last.schedule.label)
    yield from sections(schedules, last.groups, labels)
    yield account.section(found.account)
    yield Section("trials", "Every trial", _trials(found))
    yield Section("proof", "Proof", tuple(map(Prose, _proof(found))))


def _tiles(sides: Sequence[DrawnSide]) -> tuple[Tile, ...]:
    """The last setting against the one before it."""
    schedules = [side.schedule for side in sides[-2:]]
    pair = [(item.label, item.timeline.breakdown) for item in schedules]
    return tiles(pair, "predicted")


def _about(found: Tuning) -> tuple[tuple[str, str], ...]:
    """Where the figures come from: the module, flags, costs."""
    count = found.tuned.trial.modelled
    modelled = "its collectives are the profile's"
    if count:
        modelled = f"{many(count, 'collective')} with modelled times"
    costs = f"predicted from {found.costs_are} costs, no GPU was used"
    return (
        ("module", str(found.request.module)),
        ("your flags", " ".join(found.request.flags) or "none"),
        ("figures", f"{costs}; {modelled}"),
    )


def headline(found: Tuning) -> tuple[str, Tone]:
    """The answer in one line, and its tone."""
    if found.verdict == "cannot-tell":
        why = found.pgle.prediction.lower_bound_why
        return f"Cannot tell: {shown(why)}", "warn"
    if found.proof is None:
        words, tone = account.headline(found.account)
        return f"No better flags. {words}", tone
    words = f"Try these flags: predicted {_gain_words(found.proof)}"
    flags = found.tuned.trial.flags.items()
    if any(is_slower(effects_of(name, value)) for name, value in flags):
        return f"{words}; others measured longer steps", "warn"
    return words, "good" if found.proof.used else "warn"


def _gain_words(proof: Proven) -> str:
    """What the flags save on top of the profile, and whether that is proven."""
    saved = proof.saved
    words = f"{figures.share(saved.share)} shorter on average"
    if saved.low < saved.high:
        words += f" ({figures.shares((saved.low, saved.high))})"
    return words if proof.used else f"{words}, not proven"


def exported(found: Tuning) -> str:
    """The line that sets the flags that were found, for a shell; empty: there are none."""
    if found.proof is None:
        return ""
    words = (LHS_ON, *found.request.flags, *_words(found.tuned.trial))
    flags = " ".join(dict.fromkeys(words))
    if _PLAIN.fullmatch(flags):
        return f'export XLA_FLAGS="{flags}"'
    return f"export XLA_FLAGS={quoted(flags)}"


def _words(trial: Trial) -> list[str]:
    """The flags of a trial as words of a command line."""
    return [f"--{name}={value}" for name, value in trial.flags.items()]


def _sides(found: Tuning) -> list[tuple[str, Simulated]]:
    """No profile, the profile and, if there are some, the flags that were found."""
    proven = [] if found.proof is None else [("with these flags", found.tuned)]
    return [("no profile", found.baseline), ("the profile", found.pgle), *proven]


def _table(found: Tuning) -> Table:
    """The sides, and perfect overlap. The flags that were found have their change by the second
    compilation, too: the smaller one is the answer.
    """
    sides = _sides(found)
    rows = [list(_row(found, side.trial, name)[:-1]) for name, side in sides]
    step_us = found.pgle.prediction.step_us
    for name, us, _ in account.bound_rows(found.account):
        rows.append([name, us, us / step_us - 1, "", ""])
    heads = _heads(found)[:-1]
    other = _by_control(found)
    if other is not None:
        heads.insert(CONTROL_AT, Column("control", Unit.CHANGE))
        for row in rows:
            row.insert(CONTROL_AT, "")
        of_flags = rows[len(sides) - 1]
        of_flags[CONTROL_AT] = other
    return table(heads, rows)


def _by_control(found: Tuning) -> float | None:
    """The change of the step with the flags by the second compilation; None if there is none."""
    control = None if found.proof is None else found.proof.control
    if control is None or control.other is None:
        return None
    return -control.other.share


def _heads(found: Tuning) -> list[str | Column]:
    """The heads of the rows that `_row` makes."""
    mean = f"mean of {len(found.pgle.trial.worlds_us)}"
    return [
        "setting",
        Column("step", Unit.TIME),
        Column(mean, Unit.CHANGE),
        Column("exposed", Unit.TIME),
        Column("peak memory", Unit.SIZE),
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
    won = f"{judged.won} of {judged.of}"
    return name, trial.step_us, change, exposed, trial.memory_bytes, won


def _trials(found: Tuning) -> tuple[Table | Prose, ...]:
    """The settings that are compared with, then every trial in its order."""
    taken = "" if found.proof is None else found.tuned.trial.label
    named = [(name, side.trial) for name, side in _sides(found)[:2]]
    named += [(trial.label, trial) for trial in found.trials]
    rows: list[tuple[Value, ...]] = []
    for name, trial in named:
        if taken and trial.label == taken:
            name = f"→ {name}"
        rows.append(_row(found, trial, name))
    legend = (
        f"{VARIATIONS}. Changes are against the profile alone. "
        "+: on top of the best before it. →: chosen."
    )
    return table(_heads(found), rows, shown=24), Prose(legend, tone="soft")


def _record(found: Tuning) -> Iterator[str]:
    """What the step loses without each flag, and what others measured for it; what less memory
    changes.
    """
    if found.proof is not None and (less := found.proof.in_less) is not None:
        yield f"With {figures.share(LESS, 0)} less memory: {figures.change(less.mean)}."
    yield "measured by others (step time, minus is shorter):"
    for name, value in found.tuned.trial.flags.items():
        short = name.removeprefix("xla_gpu_")
        measured = summary(effects_of(name, value))
        yield f"  {short}: {measured}{_alone(found, name)}"


def _alone(found: Tuning, flag: str) -> str:
    """What the step changes by without a flag; empty if that was not tried."""
    without = found.without.get(flag)
    if without is None or without.step_us is None:
        return ""
    change = _change(without, found.tuned.trial)
    return f"; without it the step changes by {change}"


def _proof(found: Tuning) -> Iterator[str]:
    """Lines on the proof: whether XLA used the profile under the accepted flags and why, what the
    new profile covers, and which files were written; none without a proof.
    """
    proof = found.proof
    if proof is None:
        return
    head = "Not proven: XLA did not use enough of the profile"
    if proof.used:
        head = "Compiled whole: XLA used the profile"
    step = "The step equals the trial's."
    if abs(proof.change) > SAME:
        change = figures.change(proof.change, 2)
        step = f"The step changes by {change} against the trial."
    covers = f"The new profile covers {figures.share(proof.coverage)} of the step."
    yield f"{head}: {proof.use.why}. {step} {covers}"
    yield from _control_words(proof)
    yield from (f"wrote {path}" for path in proof.written)


def _control_words(proof: Proven) -> Iterator[str]:
    """What the compilation with other kernels for matrix products says."""
    control = proof.control
    if control is None:
        yield (
            "Every matrix product has a measured cost, or there is none: "
            "nothing hangs on autotuning."
        )
    elif control.other is not None:
        other = figures.change(-control.other.share)
        first = figures.change(-control.first.share)
        yield (
            f"Control, with other kernels for products: the step changes by {other}, "
            f"and by {first} without. The smaller change counts."
        )


def _actions(found: Tuning, with_profile: Schedule) -> tuple[Advice, ...]:
    """What saves most; the flags have the line that sets them."""
    given: list[Advice] = []
    for item in account.listed(found.account):
        advice = account.advice_of(found.account, item)
        if item.kind is OpportunityKind.FLAGS:
            span = span_us(with_profile)
            advice = replace(advice, command=exported(found), span_us=span)
        given.append(advice)
    return tuple(given)


def why_next(found: Tuning) -> str:
    """What the answer leads to, in a sentence or two."""
    if found.proof is not None:
        return (
            "Profile again under these flags and compare on the GPUs: "
            "only that proves the gain."
        )
    if found.verdict == "cannot-tell":
        return ""
    if found.verdict == "no-room":
        return "The communication is hidden already."
    return "No setting of flags was shorter in enough variations."


def commands(found: Tuning, out: Path) -> Commands:
    """What to type next; the first is the most useful."""
    launch = found.launch
    if found.proof is None:
        return (_after_search(found),)
    if launch.words == UNKNOWN:
        return (Sentence.todo(f"{SET_THEM} {out / 'flags.txt'} has them"),)
    if launch.run is None:
        before = free(Path("runs/untuned"))
        after = free(before.with_name("tuned"))
    else:
        before = launch.run.path
        after = free(before.with_name(f"{before.name}-tuned"))
    new = launch.line("run", after, "--flags-file", out / "flags.txt")
    compare = Next.of("compare", before / "perf", after / "perf")
    if launch.run is not None and launch.run.stage("perf").path.exists():
        return new, compare
    return new, launch.line("run", before), compare


def _after_search(found: Tuning) -> Next | Sentence:
    """What follows if no flags were found: in a run directory as all answers on it say."""
    if found.verdict == "cannot-tell":
        return Sentence.todo(CONSTANT_LOOP)
    if found.run is not None:
        known = known_of_run(found.run)
        if known.search is Search.NOT:
            known = replace(known, search=Search.IN_VAIN)
        return way_of_run(found.run, known)[0]
    of_step = found.account
    known = known_of(of_step.timed, search=Search.IN_VAIN, account=of_step)
    ways = {Move.ADVISE: found.advise, Move.MEASURE: found.measure}
    return account.follow(known, ways)


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
    """Count trials on a line that names the best. A setting that compiles to a known program does
    not count.

    If a signal ends the search, it names the best setting so far and how to continue.
    """
    seen: list[Trial] = []  # the first is the profile alone

    def announce(trial: Trial, pgle: Trial) -> None:
        seen.append(trial)
        line.total = budget
        line.noun = "trial"
        if trial is pgle or trial.same_as or trial.label.startswith("without "):
            return
        line.done = min(line.done + 1, budget)
        found = best(pgle, seen)
        line.best = ""
        if found is not pgle:
            line.best = f"{_change(found, pgle)} ({cut(found.label, 40)})"

    try:
        yield announce
    except (KeyboardInterrupt, SystemExit):
        if seen:
            say(f"best so far: {_best_so_far(seen)}")
            say("the trials are kept; run the same command again to continue")
        raise


def _best_so_far(seen: Sequence[Trial]) -> str:
    """The flags of the best trial, and what they change.

    Args:
        seen: trials, the profile alone first.
    """
    pgle = seen[0]
    found = best(pgle, seen)
    if found is pgle:
        return "the profile alone"
    flags = " ".join(_words(found))
    return f"{flags}, {_change(found, pgle)} (predicted, not proven)"


def _change(trial: Trial, other: Trial) -> str:
    """The mean change of the step from another trial, over all variations."""
    return figures.change(judge(trial.worlds_us, other.worlds_us).mean)


class TunedSteps(Document):
    """Steps in microseconds: without the profile, with it, with the flags, and at best."""

    baseline: float | None
    pgle: float | None
    tuned: float | None
    ceiling: float


class TrialDocument(Document):
    """One trial. `worlds` compares it with the profile alone, over many variations of the costs."""

    label: str
    flags: Flags
    step_us: float | None
    temp_bytes: int | None
    same_as: str
    modelled: int
    failure: str
    exposed_us: float | None
    worlds: OverWorlds | None


class TuneHead(Document):
    """The verdict of ``pgle.tune/1``, and the setting that is its answer."""

    verdict: str
    module: str
    flags: Flags
    step_us: TunedSteps
    worlds: OverWorlds
    temp_bytes: int | None


class TuneControl(Document):
    """What both compilations say of the accepted flags."""

    depends: bool
    first: Gain
    other: Gain | None


class TuneProof(Document):
    """The accepted flags compiled whole; nothing if no flags were accepted."""

    used: bool | None = None
    why: str = ""
    coverage: float | None = None
    less_memory: OverWorlds | None = None
    control: TuneControl | None = None
    saved: Gain | None = None
    whole_against_trial: float | None = None
    written: tuple[Path, ...] = ()


class TuneDocument(Document):
    """``pgle.tune/1``."""

    head: TuneHead = flat()
    trials: tuple[TrialDocument, ...]
    without: Mapping[str, TrialDocument]
    refused: tuple[str, ...]
    costs_are: str
    account: AccountDocument
    modelled: int
    not_modelled: tuple[str, ...]
    public: Mapping[str, tuple[Effect, ...]]
    proof: TuneProof = flat()
    page: Path
    jaxlib: str
    warnings: tuple[str, ...]


def document(found: Tuning, page: Path) -> TuneDocument:
    """What the search has found, and what it proved."""
    tuned = found.tuned.trial
    trials = tuple(_trial_document(found, trial) for trial in found.trials)
    without: dict[str, TrialDocument] = {}
    for flag, trial in found.without.items():
        without[flag] = _trial_document(found, trial)
    public = {name: effects_of(name, value) for name, value in tuned.flags.items()}
    return TuneDocument.of_value(
        *(found, tuned, found.tuned.prediction),
        head=_head_document(found),
        trials=trials,
        without=without,
        account=account.document(found.account),
        public=public,
        proof=_proof_document(found.proof),
        page=page,
    )


def _head_document(found: Tuning) -> TuneHead:
    """The verdict and the setting that is the answer, in JSON."""
    pgle = found.pgle
    tuned = found.tuned.trial
    steps = TunedSteps(
        baseline=found.baseline.trial.step_us,
        pgle=pgle.trial.step_us,
        tuned=tuned.step_us,
        ceiling=pgle.prediction.shortest_us,
    )
    return TuneHead(
        verdict=found.verdict,
        module=pgle.module.name,
        flags=tuned.flags,
        step_us=steps,
        worlds=judge(tuned.worlds_us, pgle.trial.worlds_us),
        temp_bytes=tuned.temp_bytes,
    )


def _proof_document(proof: Proven | None) -> TuneProof:
    """The proof in JSON; without values if no flags were accepted."""
    if proof is None:
        return TuneProof()
    control = proof.control
    return TuneProof.of_value(
        proof,
        why=proof.use.why,
        less_memory=proof.in_less,
        control=None if control is None else TuneControl.of_value(control),
        whole_against_trial=proof.change,
    )


def _trial_document(found: Tuning, trial: Trial) -> TrialDocument:
    """A trial in JSON, compared with the profile alone if it compiles."""
    if trial.step_us is None:
        return TrialDocument.of_value(trial, exposed_us=None, worlds=None)
    worlds = judge(trial.worlds_us, found.pgle.trial.worlds_us)
    return TrialDocument.of_value(trial, worlds=worlds)
