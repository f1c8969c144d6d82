"""What the compiler says of a program's alternatives: a live line, a page, and its JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from pgle.account.value import Account
from pgle.costs.profile.value import costs_are
from pgle.errors import many, some
from pgle.next import Commands, Sentence, to_way
from pgle.report import account, charts
from pgle.report.account import AccountDocument
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
from pgle.run.alternatives import OF_COMMAND, ROUNDING, Alternative, Kind
from pgle.run.attempts import LONGEST, Attempt, place_of_edit
from pgle.run.capture.captured import STEP_REMEDY, ComparedValues
from pgle.run.compiler.compile import OnPhase
from pgle.run.untried import OVER_BUDGET, TRIED_BY, Untried
from pgle.schedule.control import Controlled
from pgle.schedule.verdict import Verdict
from pgle.worth import LEAST_GAIN

AT_START = OF_COMMAND | {Kind.FLAGS}
"""Kinds that no file of the program needs."""

NOT_COMPARED = "values not compared"

IN_TURN = (
    "savings are shares of the step as it is, each counted after the edits above it"
)

IN_EDITS = (
    "… stands for the arguments that are there; one of the same name is replaced. jnp is "
    "jax.numpy; functools is Python's."
)


MOST_LEFT = 3  # places that are left as they are, in a note

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
    """The alternatives, ranked, and what to write for the best."""
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
    return Page(
        title=f"pgle advise: {module.name}",
        identity=identity,
        verdict=words,
        tone=tone,
        table=_table(found),
        notes=(*worded, flags_note(found.request), shown),
        actions=_actions(found),
        sections=sections,
        way=to_way(following),
        warnings=found.warnings,
        about=about,
    )


def _costs(found: Advised) -> str:
    """What the figures are made of, in words."""
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
    """The answer in one line, and its tone."""
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
    if found.interrupted:
        return f"Stopped: nothing that was tried is surely {least} shorter", ""
    has_failed = [item.tried is None for item in found.attempts]
    if has_failed and all(has_failed) and not found.unchanged:
        failed = many(len(has_failed), "alternative")
        return f"No answer: {failed} tried, all failed", ""
    is_tried = bool(found.attempts or found.unchanged)
    if found.open is not None:
        left = _untried(found, found.open)
        tried = "Nothing of what was tried helps" if is_tried else "Nothing was tried"
        return f"{tried}. Not tried: {left}", "warn"
    if not (is_tried or found.left):
        bound = account.bound_words(found.account)
        return f"Nothing to gain: found no alternative to try; {bound}", ""
    return f"Nothing to gain: no alternative is surely {least} shorter", ""


def _shortens(found: Advised, best: Attempt) -> str:
    """What the best saves: of the step, or of the time for each element if it takes other data."""
    shorter = _saving(best)
    if best.work == 1 or best.tried is None:
        return f" shortens the step by about {shorter}"
    before = figures.time(found.base.step_us)
    after = figures.time(best.tried.step_us)
    steps = f"step {before} → {after}"
    return f": each element of the data takes {shorter} less time; {steps}"


FOR_EACH = "the time for each element of the data"


def _untried(found: Advised, left: Untried) -> str:
    """An opportunity with what it may save, and why nobody tried it."""
    suffices = f" (--budget {found.budget})" if left.why == OVER_BUDGET else ""
    why = f"{left.why}{suffices}"
    if left.opportunity is None:
        return f"{left.what}: {why}"
    saves = account.saving_of(found.account, left.opportunity)
    return f"{left.what} (saves {saves} of the step): {why}"


MOST_SHOWN = 6  # alternatives in the picture


def _chart(found: Advised) -> Chart:
    """The step as it is, and with the alternatives, all on one axis."""
    compiled = [(item.name, item.tried) for item in found.ranked if item.tried]
    steps = [(AS_IT_IS, found.base), *compiled[:MOST_SHOWN]]
    most_us = max(tried.step_us for _, tried in steps)
    up = charts.times(0.0, most_us * 1.15)
    across = charts.columns([str(place) for place in range(len(steps))])
    room = 42 + 17 * len(steps)
    plot = charts.Plot(
        "Step, predicted", across, up, 170 + room, charts.Margins(bottom=room)
    )
    plot.key(PARTS.items())
    said = []
    for place, (name, tried) in enumerate(steps):
        plot.stack(place, dict(colored_parts(tried.prediction.timeline.breakdown)))
        shown = figures.time(tried.step_us)
        plot.text("name", (place + 0.5, tried.step_us), shown, dy=-4)
        plot.caption(place - 1, f"{place}: {name}")
        said.append(f"{name} {shown}")
    return charts.drawn([plot], "; ".join(said))


def _table(found: Advised) -> Table:
    """The program as it is, and every alternative; one that reads like a gain and is none has the
    reason in a row under it.
    """
    rows: list[tuple[Value, ...]] = [
        (AS_IT_IS, *_figures(found.base), "", _profiled(found.base))
    ]
    for item in found.ranked:
        rows.append((*_row(item), _profiled(item.tried)))
        if _reads_like_gain(item):
            rows.append((f"  {item.why}", *[""] * len(_HEADS)))
    steps = (found.base, *(item.tried for item in found.ranked))
    origins = costs_are(step.costs_are for step in steps if step is not None)
    head = origins.removesuffix(" and estimated")
    return table((*_HEADS, Column(head, Unit.SHARE)), rows)


def _reads_like_gain(item: Attempt) -> bool:
    """Whether a step is shorter, and the reason why it is no gain is not in its figures."""
    is_shorter = item.gained is not None and item.gained.first.share > 0
    return is_shorter and bool(item.why) and not item.helps


def _why(item: Attempt) -> str:
    """Why an alternative is not proposed, and what limits it if it is one change."""
    is_open = item.verdict is not Verdict.WORSE and len(item.changes) == 1
    limits = _limits(item.changes) if is_open else ()
    return "; ".join((item.why, *limits))


def _profiled(tried: Tried | None) -> Value:
    """The part of a step whose cost is the profile's; empty if nothing is known of that."""
    if tried is None or tried.profiled_share is None:
        return ""
    return tried.profiled_share


def _figures(
    tried: Tried, change: Value = "", control: Value = ""
) -> tuple[Value, ...]:
    """Cells of a step: its time, its change by both compilations, exposed time and memory."""
    exposed = Cell(tried.prediction.exposed_us, "exposed")
    return tried.step_us, change, control, exposed, tried.memory_bytes or ""


def _row(item: Attempt) -> tuple[Value, ...]:
    verdict = Cell(item.verdict, _TONES[item.verdict])
    name = f"{item.name}{_at(item)}"
    if item.tried is None or item.gained is None:
        return name, "", "", "", "", "", verdict
    gained = item.gained
    control = "" if gained.other is None else -gained.other.share
    return name, *_figures(item.tried, -gained.first.share, control), verdict


def _at(item: Attempt) -> str:
    """Where a single alternative is, for a table."""
    if len(item.changes) != 1 or item.changes[0].kind in AT_START:
        return ""
    where = item.changes[0].where
    return f", {where}" if where else ""


def _notes(found: Advised) -> Iterator[str]:
    """Why others are not proposed, and what was left out."""
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
        yield f"change: of {FOR_EACH} that a step takes"
    if found.unchanged:
        yield f"changed nothing in the step: {some(found.unchanged, MOST_LEFT)}"
    if found.left_alone:
        yield f"left as it is: {some(_left_alone(found), MOST_LEFT)}"
    if left := "; ".join(_left(found)):
        yield f"not tried: {left}"


def _limits(changes: Sequence[Alternative]) -> tuple[str, ...]:
    """When changes hold, or what they may cost other models or data."""
    return tuple(change.limit for change in changes if change.limit)


def _left_alone(found: Advised) -> Iterator[str]:
    """What was found and has no alternative, and why."""
    for site in found.left_alone:
        yield f"{site.kind} at {site.where} ({site.why})"


def _left(found: Advised) -> Iterator[str]:
    """What was not tried, unless the headline says it."""
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
    """What is known of the values of an alternative that changes them."""
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
    """What was compared, in words."""
    noisy = f" ({values.noisy:,} too sensitive to say)" if values.noisy else ""
    if not values.seen:
        return many(values.results, "result") + noisy
    return f"loss, gradients and results{noisy}"


def _stand_in(item: Attempt) -> str:
    """What computed in place of what only a GPU has."""
    if any(change.kind == Kind.ATTENTION for change in item.changes):
        return (
            "with 64 bits a number, where XLA's attention stands in for cuDNN's kernel"
        )
    if not any(change.kind in ROUNDING for change in item.changes):
        return "with 64 bits a number"
    return "where operands of products are rounded as Tensor Cores round them"


def _actions(found: Advised) -> tuple[Advice, ...]:
    """What comes first, then the edits of the best, each with what it saves after those above
    it.
    """
    first = account.firsts(found.account)
    if found.best is None:
        return first
    known = {item.changes: item for item in (*found.attempts, found.best)}
    listed = []
    before: Attempt | None = None
    for place, change in enumerate(found.best.changes, start=1):
        made = known.get(found.best.changes[:place])
        saves = None if made is None else _saving_after(made, before)
        before = made or before
        title = f"Write {_short(change)} {place_of_edit(change)}"
        alone = known.get((change,))
        is_compared = alone is not None and alone.are_values_compared
        is_known = change.kind == Kind.FLAGS or is_compared
        of_what = "" if made is None or made.work == 1 else f"of {FOR_EACH}"
        doubts = (of_what, change.limit, "" if is_known else NOT_COMPARED)
        listed.append(Advice(title, saves, "; ".join(filter(None, doubts))))
    return (*first, *listed)


def _short(change: Alternative) -> str:
    """What to write, or where its lines are: several do not fit on a screen."""
    if len(change.edit) <= LONGEST:
        return change.edit
    return f"{change.name} as --section edits has it"


def _saving_after(item: Attempt, before: Attempt | None) -> Saving | None:
    """What an attempt saves more than the one before it, as a share of the program as it is."""
    if before is None:
        return _saving(item)
    more = item.least - before.least
    if item.tried is None or before.tried is None or more <= 0:
        return None
    gained = item.tried.gain_over(before.tried, item.work / before.work).answer
    left = 1 - before.least
    return Saving(more, min(gained.low * left, more), max(gained.high * left, more))


def _saving(item: Attempt) -> Saving | None:
    """What it saves of the step; None if it was not compiled, or only fits."""
    if item.gained is None or item.least <= 0:
        return None
    return _saving_by(item.gained)


def _saving_by(gained: Controlled) -> Saving:
    """The smaller gain of both compilations, with the range of both."""
    answer = gained.answer
    return Saving(min(gained.shares), answer.low, answer.high)


def _range(item: Attempt) -> tuple[float, float] | None:
    """Ends of the change of the step as a share, over both compilations; None: not compiled."""
    if item.gained is None:
        return None
    answer = item.gained.answer
    return -answer.high, -answer.low


def _edits(found: Advised) -> Iterator[Part]:
    """What to write for each alternative, as it is: a line that is broken cannot be pasted."""
    yield Prose(IN_EDITS)
    for item in found.ranked:
        change = item.changes[-1]
        if len(item.changes) > 1 and change.kind != Kind.FLAGS:
            continue
        yield Prose(
            f"{change.name} {place_of_edit(change)}: {item.verdict}", tone="head"
        )
        yield Prose(change.edit, code=not change.is_in_words)
        if change.limit:
            yield Prose(change.limit)


def commands(found: Advised) -> Commands:
    """The run that proves the best; the end if nothing helps."""
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
    if found.open is not None:
        how = found.open.how.rstrip(".")
        return (Sentence.edit(f"{how}; then rehearse again"),)
    if not (found.attempts or found.unchanged):
        return (Sentence.done("pgle knows no edit that shortens this step"),)
    return (Sentence.done("nothing that was tried is worth an edit"),)


def _is_of_account(found: Advised) -> bool:
    """Whether the best is made of edits whose trials the account has, as all answers on the run
    directory know it.
    """
    if found.best is None or found.interrupted:
        return False
    kinds = {change.kind for change in found.best.changes}
    known = {TRIED_BY[kind] for kind in found.shown if kind in TRIED_BY}
    return kinds <= known - AT_START


@contextmanager
def trying() -> Iterator[tuple[OnAttempt, OnPhase]]:
    """One live line: alternative k of n, and what compiles."""
    with live("starting XLA's compiler") as line, phases(line) as on_phase:

        def on_attempt(what: str, number: int, of: int) -> None:
            line.noun = "alternative"
            line.done, line.total = number, of
            line.item = what
            line.what = ""

        yield on_attempt, on_phase


class StepFigures(Document):
    """What was predicted of a step; None in every field if it was not compiled."""

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
    edit: str
    library: str  # file of an installed library that makes the call; empty: none
    limit: str  # when it holds, or what it may cost other models or data


class Alternatives(Document):
    """What was tried; the words of several changes are joined."""

    kind: str
    where: str
    edit: str
    changes: tuple[TriedChange, ...]


class JudgedAttempt(Document):
    """What became of it; `change` and `range` are shares of the step."""

    change: float | None
    values_compared: bool
    # of the step with the alternative against as it is, at a small size on the CPU; null: it
    # computes the same, or nobody compared
    values: ComparedValues | None
    range: tuple[float, float] | None
    same_as: str
    verdict: Verdict
    why: str


class TriedAlternatives(Document):
    """One attempt: what was tried, its step, and what became of it."""

    alternatives: Alternatives = flat()
    figures: StepFigures = flat()
    judged: JudgedAttempt = flat()


class UntriedDocument(Document):
    """What nobody tried: an opportunity of the account, an alternative, or a place."""

    what: str
    why: str
    how: str  # to try it: a command to paste, or what to write
    # shares of the step that an opportunity saves; null: nobody knows
    expected: float | None
    most: float | None


class LeftAlone(Document):
    """What was found in the program and stays as it is."""

    kind: str
    where: str
    why: str


class AdvisedAttempts(Document):
    """Every attempt, the best of them, and what was not tried."""

    tried: tuple[TriedAlternatives, ...]
    best: TriedAlternatives | None
    unchanged: tuple[str, ...]  # what was tried and changes nothing in the step
    left: int
    left_sites: int
    # alternatives that cannot be made of what was given, and why; empty: all can
    left_out: str
    interrupted: bool
    untried: tuple[UntriedDocument, ...]
    # what was found and has no alternative
    left_alone: tuple[LeftAlone, ...]
    warnings: tuple[str, ...]


class AdviseDocument(Document):
    """``pgle.advise/1``: the step as it is, then every attempt."""

    module: str
    figures: StepFigures = flat()
    attempts: AdvisedAttempts = flat()
    account: AccountDocument
    page: Path
    jaxlib: str


def document(found: Advised, page: Path) -> AdviseDocument:
    """The step, what was tried on it, and the best."""
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
    if tried is None:
        return StepFigures()
    control = tried.control
    control_us = None if control is None else control.step_us
    return StepFigures.of_value(tried, tried.prediction, control_us=control_us)


def _attempts(found: Advised) -> AdvisedAttempts:
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
    if item.opportunity is None:
        return UntriedDocument.of_value(item, expected=None, most=None)
    return UntriedDocument.of_value(item, account.saving_of(known, item.opportunity))


def _attempt(item: Attempt) -> TriedAlternatives:
    return TriedAlternatives(
        alternatives=_alternatives(item.changes),
        figures=_figures_of(item.tried),
        judged=_judged(item),
    )


def _alternatives(changes: Sequence[Alternative]) -> Alternatives:
    return Alternatives(
        kind=" + ".join(change.kind for change in changes),
        where=" + ".join(change.where for change in changes),
        edit="; ".join(change.edit for change in changes),
        changes=tuple(map(TriedChange.of_value, changes)),
    )


def _judged(item: Attempt) -> JudgedAttempt:
    gained = item.gained
    return JudgedAttempt.of_value(
        item,
        change=None if gained is None else -gained.first.share,
        values_compared=item.are_values_compared,
        range=_range(item),
    )
