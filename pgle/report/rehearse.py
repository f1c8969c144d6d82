"""`pgle rehearse`: a program compiled without and with a profile, as a page and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from pgle.account.next_move import Move, Search, known_of
from pgle.account.schedule_gains import pays
from pgle.account.value import OpportunityKind
from pgle.errors import shown, some
from pgle.next import Following, Next, Sentence, WayEnd, quoted, to_way
from pgle.report import account, control
from pgle.report.account import AccountDocument
from pgle.report.control import RehearsalControl
from pgle.report.next_steps import way_in_run
from pgle.report.page import figures
from pgle.report.page.figures import Unit
from pgle.report.page.value import (
    Advice,
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
from pgle.report.schedules import Schedule, exposed_notes, sections, steps_table
from pgle.report.text import Document, flat, near
from pgle.report.timeline import (
    tiles,
)
from pgle.run.capture.captured import STEP_REMEDY
from pgle.run.rehearse import CompiledSide, Rehearsal
from pgle.run.rehearse_program import RehearseRequest
from pgle.schedule.placements import (
    ExposedGroup,
    Placement,
    groups,
)
from pgle.worth import LEAST_GAIN, is_worth

if TYPE_CHECKING:
    from pgle.schedule.predict import Gain
    from pgle.xla.hlo.schedule_dump import Statistics
    from pgle.xla.log.verdict import ProfileUse

LHS_WORDS = "LHS: XLA's latency-hiding scheduler"
OTHERS = 4  # other modules that the text names
LABELS = ("LHS, no profile", "LHS with the profile")


def rehearse_page(
    result: Rehearsal, following: Following, picture: Path | None = None
) -> Page:
    """Show the largest fact first, then the schedules in one table, exposed collectives in groups,
    and what to do.

    Args:
        result: the rehearsal.
        following: the next commands, from `advice`.
        picture: path of the written page; None while making that page.
    """
    schedules = _schedules(result)
    words, tone = headline(result)
    why, command = following
    todo = _rehearse_actions(result)
    notes = tuple(_rehearse_notes(result, why, picture))
    parts = tuple(_rehearse_sections(result, schedules))
    return Page(
        title=f"pgle rehearse: {result.baseline.module.name}",
        identity=_rehearse_identity(result),
        verdict=words,
        tone=tone,
        table=steps_table(schedules, result.account),
        notes=notes,
        actions=todo,
        sections=parts,
        way=to_way([command]),
        warnings=result.warnings,
        tiles=_rehearse_tiles(schedules),
        about=_about(result),
    )


def _rehearse_identity(result: Rehearsal) -> tuple[str, ...]:
    """The module, its GPUs, what compiled it, and where its costs come from."""
    compiled = result.baseline.compiled
    assumed = " (assumed: --devices N)" if result.request.assumed else ""
    return (
        compiled.module_name,
        f"{compiled.num_devices} × {result.request.target.name}{assumed}",
        f"jaxlib {compiled.jaxlib}",
        f"predicted from {result.costs_are} costs",
    )


def _rehearse_actions(result: Rehearsal) -> tuple[Advice, ...]:
    """Return what to do; nothing if the prediction cannot be used."""
    if not result.holds and not result.lower_bound_why:
        return ()
    return account.actions(result.account, span_finder(result))


def _rehearse_notes(result: Rehearsal, why: str, picture: Path | None) -> Iterator[str]:
    """What LHS is, whether kernels matter, what the savings refer to, and what is exposed."""
    request = result.request
    yield f"{LHS_WORDS}."
    yield control.note(result)
    lever = result.account.lever
    is_said = lever is not None and lever.kind is OpportunityKind.PROFILE
    words = profile_words(result)
    is_said |= words.lower() == headline(result)[0].lower()
    if result.holds and not is_said:
        yield words
    yield account.contention_note(result.account)
    yield account.note(result.account)
    yield account.timed_note(result.account, is_base=True)
    yield from setting_notes(request)
    yield from exposed_notes(
        groups(result.moves),
        result.profiled.prediction.step_us,
        ", without and with the profile",
    )
    if request.no_step:
        yield f"no step: {request.no_step}"
    if not _rehearse_actions(result):
        yield why
    if picture is not None:
        yield f"Page: {near(picture)}"


def _rehearse_sections(
    result: Rehearsal, schedules: Sequence[Schedule]
) -> Iterator[Section]:
    """The schedules, the account, both compilations, and whether XLA used the profile."""
    yield from sections(schedules, groups(result.moves), LABELS)
    yield account.section(result.account)
    depends = "Does it depend on autotuning?"
    yield Section("control", depends, control.section(result))
    yield Section("profile", "Did XLA use the profile?", _use(result))


def _rehearse_tiles(schedules: Sequence[Schedule]) -> tuple[Tile, ...]:
    """Compare the last schedule with the first."""
    ends = (schedules[0], schedules[-1])
    sides = [(item.label, item.timeline.breakdown) for item in ends]
    return tiles(sides, "predicted")


def _about(result: Rehearsal) -> tuple[tuple[str, str], ...]:
    """Where the figures come from: the module, flags, the profile."""
    request = result.request
    fingerprint = result.baseline.compiled.fingerprint
    figures_are = f"predicted from {result.costs_are} costs; no GPU was used"
    return (
        ("module", f"{request.module}, fingerprint {fingerprint}"),
        ("your flags", " ".join(request.flags) or "none"),
        ("profile", f"{result.profile} ({result.costs_are})"),
        ("figures", figures_are),
    )


def headline(result: Rehearsal) -> tuple[str, Tone]:
    """The largest fact in one line with one number, and its tone."""
    if result.request.no_step:
        return "Cannot tell: no training step was found", "bad"
    if result.lower_bound_why:
        return _of_bound(result), "warn"
    if not result.holds:
        used = str(result.verdict.verdict).replace("-", " ")
        return f"Cannot tell: XLA's use of the profile is '{used}'", "bad"
    depends = control.depends_words(result)
    if result.account.lever is None:
        if depends:
            return depends, "warn"
        if is_worth(-result.gained.answer.share):
            return profile_words(result), "warn"
    words, tone = account.headline(result.account)
    if depends:
        what, _, _ = depends.partition(":")
        words = f"{words}. {what}"
    return words, tone


def _of_bound(result: Rehearsal) -> str:
    """Say why the step is unknown; and what an edit saves of its known part, as a time, since a
    share of a lower bound would be too large.
    """
    unknown = f"Cannot tell: {shown(result.lower_bound_why)}"
    lever = result.account.lever
    if lever is None or lever.comes_first or lever.expected_us is None:
        return unknown
    saves = f"saves {figures.time(lever.expected_us)} a step, {lever.basis}"
    return (
        f"{lever.title}: {saves}; the whole step is unknown: {result.lower_bound_why}"
    )


def profile_words(result: Rehearsal) -> str:
    """What the profile is predicted to change, in one line."""
    found = result.gained.answer
    if depends := control.changes_words("the profile", result.gained):
        return depends
    if is_worth(-found.share):
        return (
            f"Use no profile here: the step gets {figures.share(-found.share)} longer"
        )
    if pays(result.gained):
        return f"the profile shortens the step by {figures.share(found.share)}"
    if is_worth(found.share):
        change = figures.share(found.share)
        return f"the profile's change, {change}, is within the model's noise"
    return f"the profile changes less than {figures.share(LEAST_GAIN)} of the step"


BOUND_REMEDY = (
    "mend what the warnings name, then rehearse: what the step takes beyond its lower bound is "
    "unknown, and so is what is left to gain"
)


def advice(result: Rehearsal) -> Following:
    """Return a reason and what follows: a command, or a closing sentence."""
    if result.request.no_step:
        return "", Sentence.todo(STEP_REMEDY)
    if not result.holds and not result.lower_bound_why:
        hlo = near(result.baseline.compiled.after_optimizations)
        remedy = str(result.verdict.remedy) or "See which names match."
        return remedy, Next.of("verify", near(result.profile), "--hlo", hlo)
    if result.run is not None:
        return "", way_in_run(result.run)[0]
    found = result.account
    search = Search.IN_VAIN if result.tune is None else Search.NOT
    known = known_of(found.timed, search=search, account=found)
    commands = {
        Move.MEASURE: result.measure,
        Move.ADVISE: result.advise,
        Move.SEARCH: result.tune,
    }
    follows = account.follow(known, commands)
    is_done = isinstance(follows, Sentence) and follows.end is WayEnd.DONE
    if result.lower_bound_why and is_done:
        return "", Sentence.todo(BOUND_REMEDY)
    return "", follows


def span_finder(result: Rehearsal) -> account.SpanOf:
    """Return a function that finds an instruction in the timeline of the schedule compiled with the
    user's flags.
    """
    made = result.now.prediction.timeline
    codes = {name: code for code, name in enumerate(made.names)}

    def place(name: str) -> tuple[float, float] | None:
        rows = np.flatnonzero(made.instruction == codes.get(name, -1))
        if not len(rows):
            return None
        longest = rows[np.argmax(made.duration_us[rows])]
        return float(made.start_us[longest]), float(made.end_us[longest])

    return place


def setting_notes(asked: RehearseRequest) -> Iterator[str]:
    """The user's flags, and the modules that were not chosen."""
    yield flags_note(asked)
    if asked.others:
        others = some(asked.others, OTHERS)
        yield f"other modules: {others} (--module NAME takes one)"


def flags_note(asked: RehearseRequest) -> str:
    """The user's flags; empty if there are none."""
    if not asked.flags:
        return ""
    return f"your flags: {some(map(quoted, asked.flags), 1)}"


def _use(result: Rehearsal) -> tuple[Prose | Table, ...]:
    """Say whether XLA used the profile, with its log line, and what LHS expected."""
    rows: list[tuple[Value, ...]] = []
    for label, side in _sides(result):
        took: Value = side.compiled.compile_s * 1e6
        if side.compiled.is_cached:
            took = "cached"
        believed_us = side.believed_exposed_us
        rows.append((label, "" if believed_us is None else believed_us, took))
    heads = (
        "schedule",
        Column("LHS expects exposed", Unit.TIME),
        Column("compile time", Unit.TIME),
    )
    guesses = f"{LHS_WORDS}. Without a profile its costs are guesses."
    not_modelled = result.profiled.prediction.not_modelled
    limits = (Prose(f"Not modelled: {line}.", tone="soft") for line in not_modelled)
    verdict = result.verdict
    use = str(verdict.verdict).capitalize()
    return (
        Prose(f"{use}: {verdict.why}."),
        Prose(verdict.proof, code=True),
        table(heads, rows),
        Prose(guesses, tone="soft"),
        *limits,
    )


def _sides(result: Rehearsal) -> list[tuple[str, CompiledSide]]:
    """The compiled sides by name: XLA's own schedule if it differs, LHS, LHS with the profile."""
    sides = list(zip(LABELS, (result.baseline, result.profiled), strict=True))
    if result.default is not None:
        sides.insert(0, ("XLA's default, no LHS", result.default))
    return sides


def _schedules(result: Rehearsal) -> list[Schedule]:
    """The `_sides`, as schedules to show."""
    changes = iter(control.changes(result))
    schedules: list[Schedule] = []
    for label, side in _sides(result):
        schedule = Schedule(
            label=label,
            timeline=side.prediction.timeline,
            costs_are=result.costs_are,
            module=side.module,
            reasons=_reasons(result, side),
            memory_bytes=side.compiled.memory_bytes,
            control=next(changes),
        )
        schedules.append(schedule)
    return schedules


def _reasons(result: Rehearsal, side: CompiledSide) -> Mapping[str, str]:
    """The reason why each collective of LHS's schedules is exposed, by name."""
    if side is result.profiled:
        placed = [move.after for move in result.moves]
    elif side is result.baseline:
        placed = [move.before for move in result.moves]
    else:
        placed = []
    return {item.name: item.reason for item in placed if item is not None}


def folder_of(result: Rehearsal) -> Path:
    """The folder with the dumps of all schedules."""
    return result.baseline.compiled.after_optimizations.parent.parent


def shortest_us(result: Rehearsal) -> float:
    """The lowest bound on the step over all schedules."""
    return min(side.prediction.shortest_us for _, side in _sides(result))


class ProfileUseDocument(Document):
    """Whether XLA used the profile for the module, with its proof."""

    name: str
    verdict: ProfileUse
    why: str
    proof: str
    remedy: Sentence


class RehearsedModule(Document):
    """The module of ``pgle.rehearse/1``, its target, and whether XLA used the profile."""

    module: str
    others: tuple[str, ...]
    flags: tuple[str, ...]
    devices: int
    jaxlib: str
    target: str
    used: bool
    modules: tuple[ProfileUseDocument, ...]


class SidePrediction(Document):
    """The predicted step of one schedule."""

    step_us: float
    interval_us: tuple[float, float]
    lower_bound: bool
    contended_us: float
    not_modelled: tuple[str, ...]
    exposed_us: float
    exposed_copy_us: float
    overlap: float


class SideCompilation(Document):
    """The files that the compiler wrote for one schedule."""

    believed: Mapping[str, Statistics]
    fingerprint: str
    compile_s: float
    kept: bool
    schedule: Path | None
    log: Path
    memory_bytes: Mapping[str, int]
    hlo: Path


class PlacementDocument(Document):
    """A collective in one schedule."""

    kind: str
    sync: bool
    between: int
    cover_us: float
    cost_us: float
    exposed_us: float
    independent_us: float
    reason: str
    executions: int


class MoveDocument(Document):
    """A collective without and with the profile."""

    name: str
    before: PlacementDocument | None
    after: PlacementDocument | None


class RehearsedMoves(Document):
    """The collectives: in groups, moved by the profile, and not moved."""

    ceiling_us: float
    groups: tuple[ExposedGroup, ...]
    moved: tuple[MoveDocument, ...]
    stayed: tuple[MoveDocument, ...]


class SideOfRehearsal(Document):
    """A schedule: its prediction, and the files that the compiler wrote."""

    prediction: SidePrediction = flat()
    compilation: SideCompilation = flat()


class RehearseDocument(Document):
    """``pgle.rehearse/1``."""

    head: RehearsedModule = flat()
    default: SideOfRehearsal | None
    baseline: SideOfRehearsal
    profiled: SideOfRehearsal
    moves: RehearsedMoves = flat()
    costs_are: str
    profile: Path
    gain: Gain  # of the profile, in both compilations
    control: RehearsalControl | None
    account: AccountDocument
    verdict: str
    warnings: tuple[str, ...]
    picture: Path


def rehearse_document(result: Rehearsal, picture: Path) -> RehearseDocument:
    """Both schedules, the moves and the gain due to the profile, and the account."""
    default = None if result.default is None else _side_document(result.default)
    words, _ = headline(result)
    return RehearseDocument.of_value(
        result,
        head=_rehearsed_module(result),
        default=default,
        baseline=_side_document(result.baseline),
        profiled=_side_document(result.profiled),
        moves=_rehearsed_moves(result),
        gain=result.gained.answer,
        control=control.document(result),
        account=account.document(result.account),
        verdict=words,
        picture=picture,
    )


def _rehearsed_module(result: Rehearsal) -> RehearsedModule:
    """The module, its GPUs and the profile, in JSON."""
    request = result.request
    compiled = result.baseline.compiled
    name = result.baseline.module.name
    use = ProfileUseDocument.of_value(result.verdict, name=name)
    return RehearsedModule.of_value(
        request,
        module=str(request.module),
        devices=compiled.num_devices,
        jaxlib=compiled.jaxlib,
        target=request.target.name,
        used=result.used,
        modules=(use,),
    )


def _side_document(side: CompiledSide) -> SideOfRehearsal:
    """One schedule in JSON: its step, memory, and what LHS expected."""
    compiled = side.compiled
    parts = side.prediction.timeline.breakdown
    prediction = SidePrediction.of_value(
        side.prediction,
        exposed_us=parts.exposed_communication_us,
        exposed_copy_us=parts.exposed_copy_us,
        overlap=parts.overlap,
    )
    compilation = SideCompilation.of_value(
        compiled,
        kept=compiled.is_cached,
        memory_bytes=compiled.memory,
        hlo=compiled.after_optimizations,
    )
    return SideOfRehearsal(prediction, compilation)


def _rehearsed_moves(result: Rehearsal) -> RehearsedMoves:
    """The collectives that the profile moves, and the others that are exposed."""
    moved: list[MoveDocument] = []
    stayed: list[MoveDocument] = []
    for move in result.moves:
        before = _placement_document(move.before)
        after = _placement_document(move.after)
        side = moved if move.moved else stayed
        side.append(MoveDocument(move.name, before, after))
    return RehearsedMoves(
        ceiling_us=shortest_us(result),
        groups=groups(result.moves),
        moved=tuple(moved),
        stayed=tuple(stayed),
    )


def _placement_document(item: Placement | None) -> PlacementDocument | None:
    if item is None:
        return None
    return PlacementDocument.of_value(item, executions=item.count)
