"""The results of `advise`: a live line, a page, and its JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from pgle.account.value import Account
from pgle.costs.profile.value import costs_are
from pgle.errors import many, some
from pgle.next import Commands, Sentence, to_way
from pgle.report import account, charts
from pgle.report.account import AccountDocument, lowered
from pgle.report.next_steps import way_in_run
from pgle.report.page import figures
from pgle.report.page.figures import Unit
from pgle.report.page.value import (
    Advice,
    Cell,
    Chart,
    Column,
    Page,
    Part,
    Prose,
    Saving,
    Section,
    Table,
    Tone,
    Value,
    table,
)
from pgle.report.rehearse import flags_note
from pgle.report.text import Document, flat, live, near, phases
from pgle.report.timeline import PARTS, colored_parts
from pgle.run.advise import Advised, OnAttempt
from pgle.run.alternative_steps import Tried
from pgle.run.alternatives import BY_HAND, OF_COMMAND, ROUNDING, Alternative, Kind
from pgle.run.attempts import Attempt, place_of_edit
from pgle.run.capture.captured import STEP_REMEDY, ComparedValues
from pgle.run.compiler.compile import OnPhase
from pgle.run.untried import OVER_BUDGET, TRIED_BY, Untried
from pgle.schedule.control import Controlled
from pgle.schedule.verdict import Verdict
from pgle.worth import LEAST_GAIN

AT_START = OF_COMMAND | {Kind.FLAGS}
"""Kinds of alternatives that change no file of the program."""

NOT_COMPARED = "values not compared"

IN_TURN = (
    "savings are shares of the step as it is, each counted after the edits above it"
)

IN_EDITS = (
    "Each block of code can be pasted. … stands for the arguments that are there; one of the same "
    "name is replaced. jnp is jax.numpy; functools is Python's."
)


MOST_LEFT = 3  # most unchanged places that a note lists

AS_IT_IS = "as it is"
_HEADS = (
    "alternative",
    Column("step", Unit.TIME),
    Column("change", Unit.CHANGE),
    Column("control", Unit.CHANGE),
    Column("exposed", Unit.TIME),
    Column("memory", Unit.SIZE),
    "verdict",
)
_TONES: dict[Verdict, Tone] = {
    Verdict.BETTER: "good",
    Verdict.FITS: "good",
    Verdict.WORSE: "bad",
    Verdict.SAME: "soft",
    Verdict.UNSURE: "soft",
    Verdict.DIFFERS: "bad",
}


def advise_page(
    found: Advised, following: Commands, picture: Path | None = None
) -> Page:
    """Show the alternatives, ranked, and what to write for the best."""
    words, tone = headline(found)
    module = found.base.compiled.scheduled
    shown = "" if picture is None else f"Page: {near(picture)}"
    worded = map(found.request.target.vendor.worded, _notes(found))
    identity = (
        module.name,
        f"{module.num_devices} × {found.request.target.name}",
        f"jaxlib {found.base.compiled.jaxlib}",
        _costs(found),
    )
    sections = (
        Section("steps", "Before and after", (_chart(found),), open=True),
        Section("edits", "What each alternative is", tuple(_edits(found))),
        account.section(found.account),
        Section("method", "How it is judged", (Prose(METHOD),)),
    )
    about = (
        ("module", str(found.request.module)),
        ("your flags", " ".join(found.request.flags) or "none"),
        ("figures", f"{_costs(found)}, no GPU was used"),
    )
    way = to_way(following)
    return Page(
        title=f"pgle advise: {module.name}",
        identity=identity,
        verdict=words,
        tone=tone,
        table=_table(found),
        notes=(*worded, flags_note(found.request), shown),
        actions=_actions(found, way.code),
        sections=sections,
        way=way,
        warnings=found.warnings,
        about=about,
    )


def _costs(found: Advised) -> str:
    """Name the kinds of costs behind the figures."""
    return f"predicted from {found.base.costs_are} costs"


METHOD = (
    "The program is captured again with each alternative. Its step is compiled by your flags, and "
    "once more with the other kernels for matrix products (control). An alternative is better if "
    f"both compilations make the step at least {figures.share(LEAST_GAIN)} shorter, launch gaps "
    "left out, and it fits in the GPU's memory. The smaller change must not be less than the "
    "difference between both, and no estimate may turn its sign. Better ones are then combined, "
    "best first."
)


def headline(found: Advised) -> tuple[str, Tone]:
    """Return the answer in one line, and its tone."""
    best = found.best
    least = figures.share(LEAST_GAIN)
    if found.request.no_step:
        return "Cannot tell: no training step was found", "bad"
    stopped = "Stopped. " if found.interrupted else ""
    if found.account.first is not None:
        words, tone = account.headline(found.account)
        return f"{stopped}{words}", tone
    if best is not None and best.verdict is Verdict.FITS:
        return f"{stopped}{best.name} makes the step fit in memory", "good"
    if best is not None:
        return f"{stopped}{best.name}{_shortens(found, best)}", "good"
    likely = _likely(found)
    if found.interrupted and likely is None:
        return f"Stopped: nothing that was tried is surely {least} shorter", ""
    is_answered = found.unchanged or any(item.tried for item in found.attempts)
    if found.attempts and not is_answered:
        failed = many(len(found.attempts), "alternative")
        return f"No answer: {failed} tried, all failed", ""
    is_tried = bool(found.attempts or found.unchanged)
    if likely is not None:
        saves = f"may shorten the step by {_saving(likely)}"
        why = f": {likely.why}" if likely.why else ""
        return f"{stopped}No sure gain; open: {likely.name} {saves}{why}", "warn"
    if found.open is not None:
        left = _untried(found, found.open)
        tried = "Nothing of what was tried helps" if is_tried else "Nothing was tried"
        return f"{tried}. Not tried: {left}", "warn"
    if not (is_tried or found.left):
        bound = account.bound_words(found.account)
        return f"Nothing to gain: found no alternative to try; {bound}", ""
    return f"Nothing to gain: no alternative is surely {least} shorter", ""


def _likely(found: Advised) -> Attempt | None:
    """The unsure attempt that saves most in both compilations; None if none saves enough, or if
    an opportunity that nobody tried may save more.
    """
    unsure = [item for item in found.attempts if item.is_open]
    best = max(unsure, key=lambda item: item.least, default=None)
    untried = None if found.open is None else found.open.opportunity
    if best is None or untried is None:
        return best
    is_larger = best.least >= found.account.share(untried.at_stake_us)
    return best if is_larger else None


def _shortens(found: Advised, best: Attempt) -> str:
    """Say what the best saves: part of the step, or of the time per unit of data if it takes other
    data.
    """
    shorter = _saving(best)
    if best.work == 1 or best.tried is None:
        return f" shortens the step by about {shorter}"
    before = figures.time(found.base.step_us)
    after = figures.time(best.tried.step_us)
    steps = f"step {before} → {after}"
    return f": each element of the data takes {shorter} less time; {steps}"


FOR_EACH = "the time for each element of the data"


def _untried(found: Advised, left: Untried) -> str:
    """Name an opportunity, what it may save, and why nobody tried it."""
    suffices = f" (--budget {found.budget})" if left.why == OVER_BUDGET else ""
    why = f"{left.why}{suffices}"
    if left.opportunity is None:
        return f"{left.what}: {why}"
    saves = account.saving_of(found.account, left.opportunity)
    return f"{left.what} (saves {saves} of the step): {why}"


MOST_SHOWN = 6  # most alternatives in the picture


def _chart(found: Advised) -> Chart:
    """Draw the unchanged step and the steps of the alternatives on one axis."""
    compiled = [(item.name, item.tried) for item in found.ranked if item.tried]
    steps = [(AS_IT_IS, found.base), *compiled[:MOST_SHOWN]]
    most_us = max(tried.step_us for _, tried in steps)
    up = charts.times(0.0, most_us * 1.15)
    across = charts.columns([str(column) for column in range(len(steps))])
    room = 42 + 17 * len(steps)
    margins = charts.Margins(bottom=room)
    plot = charts.Plot("Step, predicted", across, up, 170 + room, margins)
    plot.key(PARTS.items())
    said: list[str] = []
    for column, (name, tried) in enumerate(steps):
        parts = colored_parts(tried.prediction.timeline.breakdown)
        plot.stack(column, dict(parts))
        step = figures.time(tried.step_us)
        plot.text("name", (column + 0.5, tried.step_us), step, dy=-4)
        plot.caption(column - 1, f"{column}: {name}")
        said.append(f"{name} {step}")
    return charts.drawn([plot], "; ".join(said))


def _table(found: Advised) -> Table:
    """A table of the unchanged program and every alternative. If an alternative looks like a gain
    and is not one, the next row has the reason.
    """
    base = found.base
    rows: list[tuple[Value, ...]] = [(AS_IT_IS, *_figures(base), "", _profiled(base))]
    steps = [base]
    for item in found.ranked:
        rows.append((*_row(item), _profiled(item.tried)))
        if _reads_like_gain(item):
            rows.append((f"  {item.why}", *[""] * len(_HEADS)))
        if item.tried is not None:
            steps.append(item.tried)
    origins = costs_are(step.costs_are for step in steps)
    head = origins.removesuffix(" and estimated")
    return table((*_HEADS, Column(head, Unit.SHARE)), rows)


def _reads_like_gain(item: Attempt) -> bool:
    """Whether a step is shorter without being a gain, for a reason that its figures do not show."""
    is_shorter = item.gained is not None and item.gained.first.share > 0
    return is_shorter and bool(item.why) and not item.helps


def _why(item: Attempt) -> str:
    """Say why an alternative is not proposed; for a single change, also what limits it."""
    is_open = item.verdict is not Verdict.WORSE and len(item.changes) == 1
    limits = _limits(item.changes) if is_open else ()
    return "; ".join((item.why, *limits))


def _profiled(tried: Tried | None) -> Value:
    """Say which part of a step has costs from the profile; empty if unknown."""
    if tried is None or tried.profiled_share is None:
        return ""
    return tried.profiled_share


def _figures(
    tried: Tried, change: Value = "", control: Value = ""
) -> tuple[Value, ...]:
    """The cells of a step: time, change in both compilations, exposed time, memory."""
    exposed = Cell(tried.prediction.exposed_us, "exposed")
    return tried.step_us, change, control, exposed, tried.memory_bytes or ""


def _row(item: Attempt) -> tuple[Value, ...]:
    """A row for an attempt; its figures are empty if it was not compiled."""
    verdict = Cell(item.verdict, _TONES[item.verdict])
    name = f"{item.name}{_at(item)}"
    if item.tried is None or item.gained is None:
        return name, "", "", "", "", "", verdict
    gained = item.gained
    control = "" if gained.other is None else -gained.other.share
    return name, *_figures(item.tried, -gained.first.share, control), verdict


def _at(item: Attempt) -> str:
    """The place of a single alternative, for a table."""
    if len(item.changes) != 1 or item.changes[0].kind in AT_START:
        return ""
    where = item.changes[0].where
    return f", {where}" if where not in ("", BY_HAND) else ""


def _notes(found: Advised) -> Iterator[str]:
    """Say why others are not proposed, and what was left out."""
    for item in found.ranked:
        if item.why and not _reads_like_gain(item):
            yield f"{item.name}{_at(item)}: {_why(item)}"
    for item in found.attempts:
        if item.helps and len(item.changes) == 1:
            yield from _values_note(item)
    if found.best is not None and len(found.best.changes) > 1:
        yield IN_TURN
    if found.left_out:
        yield found.left_out
    if any(item.changes[0].kind is Kind.VARIED for item in found.attempts):
        yield f"change: in {FOR_EACH} that a step takes"
    if found.unchanged:
        yield f"changed nothing in the step: {some(found.unchanged, MOST_LEFT)}"
    if found.left_alone:
        yield f"left as it is: {some(_left_alone(found), MOST_LEFT)}"
    if left := "; ".join(_left(found)):
        yield f"not tried: {left}"


def _limits(changes: Sequence[Alternative]) -> tuple[str, ...]:
    """Say when changes hold, or what they may cost other models or data."""
    return tuple(change.limit for change in changes if change.limit)


def _left_alone(found: Advised) -> Iterator[str]:
    """Name what was found but has no alternative, and why."""
    for site in found.left_alone:
        yield f"{site.kind} at {site.where} ({site.why})"


def _left(found: Advised) -> Iterator[str]:
    """Name what was not tried, unless the headline does."""
    names_budget = found.interrupted
    if found.open is not None and (found.best or found.interrupted):
        yield _untried(found, found.open)
        names_budget |= found.open.why == OVER_BUDGET
    if found.left:
        remedy = "" if names_budget else f" (--budget {found.budget})"
        yield f"{many(found.left, 'alternative')}{remedy}"
    if found.left_sites:
        yield many(found.left_sites, "further call site")


def _values_note(item: Attempt) -> Iterator[str]:
    """Say what is known about the values of an alternative that changes them."""
    values = item.values
    if values is None or item.same_as:
        return
    if values.why:
        yield f"{item.name}: {NOT_COMPARED} ({values.why}); compare the loss"
        return
    small = f" ({values.sizes})" if values.sizes else ""
    how = f"on the CPU{small}, {_stand_in(item)}"
    if not (values.are_rounded or values.differs):
        yield f"{item.name}: {_compared(values)} are the same but for rounding; {how}"
        return
    difference = figures.share(values.difference, decimals=2)
    explained = ""
    if values.are_rounded:
        tolerance = figures.share(values.tolerance, decimals=2)
        explained = f", rounding explains {tolerance}"
    yield f"{item.name}: {_compared(values)} differ by {difference} at most{explained}; {how}"


def _compared(values: ComparedValues) -> str:
    """Say what was compared."""
    noisy = f" ({values.noisy:,} too sensitive to say)" if values.noisy else ""
    if not values.seen:
        return many(values.results, "result") + noisy
    return f"loss, gradients and results{noisy}"


def _stand_in(item: Attempt) -> str:
    """Name the computation that replaced one that only a GPU has."""
    if any(change.kind == Kind.ATTENTION for change in item.changes):
        return (
            "with 64 bits a number, where XLA's attention stands in for cuDNN's kernel"
        )
    if any(change.kind == Kind.CAST for change in item.changes):
        return "where operands of products are rounded, and nothing else that a cast rounds"
    if not any(change.kind in ROUNDING for change in item.changes):
        return "with 64 bits a number"
    return "where operands of products are rounded as Tensor Cores round them"


def _actions(found: Advised, last: str = "") -> tuple[Advice, ...]:
    """Advise what comes first, then the edits of the best, each with its saving after those above
    it.

    Args:
        last: the code at the end of the answer. What goes with it is said there.
    """
    first = account.firsts(found.account)
    if found.best is None:
        return first
    known = {item.changes: item for item in (*found.attempts, found.best)}
    edits: list[Advice] = []
    before: Attempt | None = None
    for number, change in enumerate(found.best.changes, start=1):
        doubts: list[str] = []
        saves: Saving | None = None
        made = known.get(found.best.changes[:number])
        if made is not None:
            saves = _saving_after(made, before)
            before = made
            if made.work != 1:
                doubts.append(f"of {FOR_EACH}")
        code = _code(change)
        is_last = bool(code) and code == last
        if change.how and not is_last:
            doubts.append(lowered(change.how))
        if change.limit and not is_last:
            doubts.append(change.limit)
        alone = known.get((change,))
        is_compared = alone is not None and alone.are_values_compared
        if change.kind != Kind.FLAGS and not is_compared:
            doubts.append(NOT_COMPARED)
        why = "; ".join(doubts)
        shown = "" if is_last else code
        edits.append(Advice(_written(change), saves, why, code=shown))
    return (*first, *edits)


def _written(change: Alternative) -> str:
    """Tell the user what to write, and where. Code stands in a block of its own, which has the
    number of this edit.
    """
    if change.is_in_words:
        return f"Write {change.edit} {place_of_edit(change)}"
    return f"{change.name} {place_of_edit(change)}"


def _code(change: Alternative) -> str:
    """Return what the user pastes: into the program, or into the shell for flags; empty if the edit
    is words.
    """
    if change.kind is Kind.FLAGS:
        return f'export XLA_FLAGS="$XLA_FLAGS {change.edit}"'
    return change.code


def _saving_after(item: Attempt, before: Attempt | None) -> Saving | None:
    """The additional saving of an attempt over the one before it, as a share of the unchanged
    step.
    """
    if before is None:
        return _saving(item)
    more = item.least - before.least
    if item.tried is None or before.tried is None or more <= 0:
        return None
    gained = item.tried.gain_over(before.tried, item.work / before.work).answer
    left = 1 - before.least  # of the unchanged step
    least = min(gained.low * left, more)
    most = max(gained.high * left, more)
    return Saving(more, least, most)


def _saving(item: Attempt) -> Saving | None:
    """The saving of an attempt; None if it was not compiled, or gains nothing."""
    if item.gained is None or item.least <= 0:
        return None
    return _saving_by(item.gained)


def _saving_by(gained: Controlled) -> Saving:
    """The smaller gain of two compilations, with the range over both."""
    answer = gained.answer
    return Saving(min(gained.shares), answer.low, answer.high)


def _range(item: Attempt) -> tuple[float, float] | None:
    """The least and largest change of the step over both compilations, as shares; None: not
    compiled.
    """
    if item.gained is None:
        return None
    answer = item.gained.answer
    return -answer.high, -answer.low


def _edits(found: Advised) -> Iterator[Part]:
    """The text to write for each alternative, unwrapped, because a broken line cannot be pasted."""
    yield Prose(IN_EDITS)
    for item in found.ranked:
        change = item.changes[-1]
        if len(item.changes) > 1 and change.kind != Kind.FLAGS:
            continue
        head = f"{change.name} {place_of_edit(change)}: {item.verdict}"
        yield Prose(head, tone="head")
        if item.tried is None:  # nobody knows whether the code works in this program
            yield Prose(account.sentence(item.why))
            continue
        if change.how:
            yield Prose(f"{change.how}:")
        code = _code(change)
        yield Prose(code or change.edit, code=bool(code))
        if change.limit:
            yield Prose(account.sentence(change.limit))


def commands(found: Advised) -> Commands:
    """Return the run that proves the best; a closing sentence if nothing helps."""
    if found.request.no_step:
        return (Sentence.todo(STEP_REMEDY),)
    if found.account.first is not None and not found.interrupted:
        return (account.to_act(found.account, found.account.first),)
    if found.run is not None and _is_of_account(found):
        return way_in_run(found.run, shown=found.shown)
    if found.best is not None and found.measure is not None:
        if all(change.kind in AT_START for change in found.best.changes):
            return (found.measure,)
        return (Sentence.edit("the program, then measure it: ", found.measure),)
    if found.best is not None:
        return (Sentence.todo("measure the step before and after the edit"),)
    if found.interrupted:
        return (found.again or Sentence.todo("call pgle.advise again to try the rest"),)
    if found.whole is not None:
        return (found.whole,)
    if found.run is not None:
        return way_in_run(found.run, shown=found.shown)
    likely = _likely(found)
    if likely is not None:
        edits = " and ".join(map(_written, likely.changes))
        words = f"{edits}; only a measurement tells whether that helps"
        code = "\n".join(filter(None, map(_code, likely.changes)))
        if found.measure is None:
            return (Sentence.edit(words, code=code),)
        return (Sentence.edit(f"{words}: ", found.measure, code=code),)
    if found.open is not None:
        how = found.open.how.rstrip(".")
        return (Sentence.edit(f"{how}; then rehearse again"),)
    if not (found.attempts or found.unchanged):
        return (Sentence.done("pgle knows no edit that shortens this step"),)
    return (Sentence.done("nothing that was tried is worth an edit"),)


def _is_of_account(found: Advised) -> bool:
    """Whether the account, and so every answer on the run directory, knows the trials of the best's
    edits.
    """
    if found.best is None or found.interrupted:
        return False
    kinds = {change.kind for change in found.best.changes}
    known = {TRIED_BY[kind] for kind in found.shown if kind in TRIED_BY}
    return kinds <= known - AT_START


@contextmanager
def trying() -> Iterator[tuple[OnAttempt, OnPhase]]:
    """Show a live line: alternative k of n, and what compiles."""
    with live("starting XLA's compiler") as line, phases(line) as on_phase:

        def on_attempt(what: str, number: int, of: int) -> None:
            line.noun = "alternative"
            line.done, line.total = number, of
            line.item = what
            line.what = ""

        yield on_attempt, on_phase


class StepFigures(Document):
    """The prediction of a step; every field is None if it was not compiled."""

    step_us: float | None = None
    interval_us: tuple[float, float | None] | None = None
    control_us: float | None = None
    exposed_us: float | None = None
    temp_bytes: int | None = None
    memory_bytes: int | None = None
    measured_share: float | None = None


class TriedChange(Document):
    """One change of the program."""

    kind: str
    where: str
    value: str
    edit: str  # code to paste
    how: (
        str  # where the code goes, and what its names mean; empty: it replaces the call
    )
    library: str  # file of an installed library that makes the call; empty: no library
    limit: str  # when it holds, or what it may cost other models or data


class Alternatives(Document):
    """The changes of an attempt; the texts of several changes are joined."""

    kind: str
    where: str
    edit: str
    changes: tuple[TriedChange, ...]


class JudgedAttempt(Document):
    """The result of an attempt; `change` and `range` are shares of the step."""

    change: float | None
    values_compared: bool
    # of the step with and without the alternative, at a small size on the CPU; null: it computes
    # the same, or values were not compared
    values: ComparedValues | None
    range: tuple[float, float] | None
    same_as: str
    verdict: Verdict
    why: str


class TriedAlternatives(Document):
    """An attempt: its changes, its step, and its result."""

    alternatives: Alternatives = flat()
    figures: StepFigures = flat()
    judged: JudgedAttempt = flat()


class UntriedDocument(Document):
    """What nobody tried: an opportunity of the account, an alternative, or a place."""

    what: str
    why: str
    how: str  # how to try it: a command to paste, or what to write
    # shares of the step that an opportunity saves; null: unknown
    expected: float | None
    most: float | None


class LeftAlone(Document):
    """A part of the program that was found and stays unchanged."""

    kind: str
    where: str
    why: str


class AdvisedAttempts(Document):
    """Every attempt, the best of them, and what was not tried."""

    tried: tuple[TriedAlternatives, ...]
    best: TriedAlternatives | None
    #: alternatives that were tried and do not change the step
    unchanged: tuple[str, ...]
    left: int
    left_sites: int
    # alternatives that this input does not allow, and why; empty: all are possible
    left_out: str
    interrupted: bool
    untried: tuple[UntriedDocument, ...]
    # parts of the program without an alternative
    left_alone: tuple[LeftAlone, ...]
    warnings: tuple[str, ...]


class AdviseDocument(Document):
    """``pgle.advise/1``: the unchanged step, then every attempt."""

    module: str
    figures: StepFigures = flat()
    attempts: AdvisedAttempts = flat()
    account: AccountDocument
    page: Path
    jaxlib: str


def document(found: Advised, page: Path) -> AdviseDocument:
    """The unchanged step, the attempts, and the best of them."""
    compiled = found.base.compiled
    return AdviseDocument.of_value(
        compiled,
        module=compiled.scheduled.name,
        figures=_figures_of(found.base),
        attempts=_attempts(found),
        account=account.document(found.account),
        page=page,
    )


def _figures_of(tried: Tried | None) -> StepFigures:
    """The step of a program in JSON; without values if it was not compiled."""
    if tried is None:
        return StepFigures()
    control = tried.control
    control_us = None if control is None else control.step_us
    return StepFigures.of_value(tried, tried.prediction, control_us=control_us)


def _attempts(found: Advised) -> AdvisedAttempts:
    """Every attempt in JSON, the best one, and what was not tried."""
    untried = (_document_of(found.account, item) for item in found.untried)
    best = None if found.best is None else _attempt(found.best)
    return AdvisedAttempts.of_value(
        found,
        tried=tuple(map(_attempt, found.ranked)),
        best=best,
        untried=tuple(untried),
        left_alone=tuple(map(LeftAlone.of_value, found.left_alone)),
    )


def _document_of(known: Account, item: Untried) -> UntriedDocument:
    """An opportunity or alternative that nobody tried, with what it may save if that is known."""
    if item.opportunity is None:
        return UntriedDocument.of_value(item, expected=None, most=None)
    return UntriedDocument.of_value(item, account.saving_of(known, item.opportunity))


def _attempt(item: Attempt) -> TriedAlternatives:
    """An attempt in JSON: its changes, its step, and how it was judged."""
    return TriedAlternatives(
        alternatives=_alternatives(item.changes),
        figures=_figures_of(item.tried),
        judged=_judged(item),
    )


def _alternatives(changes: Sequence[Alternative]) -> Alternatives:
    """The changes of an attempt. Texts of several changes are joined."""
    return Alternatives(
        kind=" + ".join(change.kind for change in changes),
        where=" + ".join(change.where for change in changes),
        edit="\n".join(change.edit for change in changes),
        changes=tuple(map(TriedChange.of_value, changes)),
    )


def _judged(item: Attempt) -> JudgedAttempt:
    """The change of the step by an attempt, what is known about values, and the verdict."""
    gained = item.gained
    return JudgedAttempt.of_value(
        item,
        change=None if gained is None else -gained.first.share,
        values_compared=item.are_values_compared,
        range=_range(item),
    )
