"""What a schedule is predicted to take, alone (`pgle predict`) or next to others (`pgle rehearse`,
and `tune`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from pgle.account.tried import pays
from pgle.account.value import Account
from pgle.account.way import Known, Move, known_of, next_move
from pgle.errors import printable, shown, some
from pgle.files import AnyPath, write_files
from pgle.next import Next, Sentence, quoted, to_way
from pgle.report import account, control, text
from pgle.report.next_steps import GIVE_IT
from pgle.report.page import figures, html, value
from pgle.report.page.value import (
    Cell,
    Page,
    Prose,
    Section,
    Table,
    Tone,
    Value,
    table,
)
from pgle.report.text import near
from pgle.report.timeline import (
    PARTS,
    Panel,
    most_exposed,
    panel_of,
    parts_of,
    tiles,
    timeline,
    times_of,
)
from pgle.run.capture.captured import STEP_REMEDY
from pgle.run.directory.directory import STORED, TIMELINE, RunDirectory, free
from pgle.run.inputs.next_command import following, launch_of
from pgle.run.rehearse import CompiledSide, Rehearsal
from pgle.run.rehearse_program import RehearseRequest
from pgle.schedule.placements import (
    ExposedGroup,
    groups,
    in_one,
    placements,
)
from pgle.schedule.predict import LEAST_GAIN

if TYPE_CHECKING:
    from pgle.requests.predictions import Predict
    from pgle.run.predict import Predicted
    from pgle.run.target import TargetFrom
    from pgle.schedule.predict import Prediction, Uncertain
    from pgle.schedule.simulate import Timeline
    from pgle.xla.hlo.module import Module

LHS_WORDS = "LHS: XLA's latency-hiding scheduler"
PREDICTED = "Times are predictions of pgle's schedule simulator. docs/rehearse.md says how far to trust them."
LEAST = 0.002  # share of the step; less exposed time needs no line


@dataclass(frozen=True)
class Schedule:
    """One of the schedules."""

    label: str  # ``LHS, no profile``
    timeline: Timeline  # its step
    costs_are: str  # ``measured``, ``estimated`` or ``mixed``
    module: Module | None = None  # that was scheduled; None: not known
    reasons: Mapping[str, str] | None = (
        None  # by name when LHS ran, why a collective is exposed
    )
    memory_bytes: int | None = None  # device memory that XLA plans for

    @property
    def panel(self) -> Panel:
        """This schedule as part of a timeline."""
        return panel_of(self.label, self.timeline, self.costs_are, self.module)


def sections(
    schedules: Sequence[Schedule],
    grouped: Sequence[ExposedGroup],
    labels: tuple[str, str],
) -> tuple[Section, ...]:
    """The timeline, where the time goes, the groups of collectives, and each collective.

    Args:
        schedules: the first is what the others are compared with.
        grouped: the collectives of two of them in groups.
        labels: the names of these two; the same twice if it is one schedule.
    """
    moving = timeline([item.panel for item in schedules])
    return (
        Section("timeline", "Timeline", (moving, Prose(PREDICTED, tone="soft"))),
        Section("time", "Where the time goes", (_parts(schedules),)),
        Section(
            "groups", "Collectives by kind and reason", (_groups(grouped, labels),)
        ),
        Section(
            "collectives",
            "Collectives and copies, the most exposed first",
            (_collectives(schedules),),
        ),
    )


def span_us(schedule: Schedule) -> tuple[float, float] | None:
    """The longest time of a schedule in which the GPU waits for communication; None if it never
    waits.
    """
    if not len(exposed := schedule.panel.exposed):
        return None
    at = int(np.argmax(exposed.lengths))
    return float(exposed.start[at]), float(exposed.end[at])


def steps_table(schedules: Sequence[Schedule], known: Account) -> Table:
    """A row per schedule, compared with the first, and what that could come to at best."""
    heads = (
        "schedule | step (time) | change (change) | exposed (time) | peak memory (size)"
    )
    first = schedules[0].timeline.breakdown.step_us or 1.0
    rows: list[tuple[Value, ...]] = []
    for item in schedules:
        parts = item.timeline.breakdown
        shorter = parts.step_us / first - 1
        change = (
            "" if item is schedules[0] else Cell(shorter, "good" if shorter < 0 else "")
        )
        exposed = Cell(parts.exposed_communication_us, "exposed")
        rows.append((item.label, parts.step_us, change, exposed, item.memory_bytes))
    for name, us, share in account.bound_rows(known):
        rows.append((name, us, share - 1, "", ""))
    return table(heads, rows)


def exposed_notes(
    found: Sequence[ExposedGroup], step_us: float, which: str = ""
) -> tuple[str, ...]:
    """A line for each group that matters: its exposed time, the share of the step, and why; most
    exposed first.

    Args:
        found: collectives in groups.
        step_us: the step.
        which: the schedules, in the line above.
    """
    lines: list[str] = []
    for group in most_exposed(found, LEAST * step_us):
        times = " → ".join(
            dict.fromkeys((figures.time(group.before_us), figures.time(group.after_us)))
        )
        why = (
            group.why
            if group.is_left
            else f"was: {group.why}"
            if group.why
            else "at most 5 % of each"
        )
        lines.append(
            f"  {group.kind} ×{group.count}: {times} ({figures.share(group.most_us / step_us)}); {why}"
        )
    return (
        (f"exposed (the GPU waits, nothing computes){which}:", *lines) if lines else ()
    )


def write_page(
    folder: Path, page: Page, name: str = TIMELINE, *, force: bool = False
) -> Path:
    """Write a page, and what `pgle report` reads, into a folder; the page's path is returned."""
    write_files(
        {folder / name: html.render(page), folder / STORED: value.as_json(page)},
        force=force,
    )
    return folder / name


def _parts(schedules: Sequence[Schedule]) -> Table:
    """What a step consists of, a row per schedule."""
    parts = " | ".join(f"{name} (time)" for name in PARTS.values())
    rows = []
    for item in schedules:
        of = item.timeline.breakdown
        compute, exposed, copies, idle = times_of(of)
        copied = copies if of.copy_us else ""
        rows.append(
            (
                item.label,
                of.step_us,
                compute,
                Cell(exposed, "exposed"),
                copied,
                idle,
                of.overlap,
                item.costs_are,
            )
        )
    return table(
        f"schedule | step (time) | {parts} | communication hidden (share) | costs", rows
    )


def _groups(found: Sequence[ExposedGroup], labels: tuple[str, str]) -> Table:
    is_one = labels[0] == labels[1]
    exposed = (
        ["exposed (time)"]
        if is_one
        else [f"exposed: {label} (time)" for label in labels]
    )
    rows: list[tuple[Value, ...]] = []
    for group in found:
        sides = (
            Cell(us, "exposed") for us in (group.before_us, group.after_us)[is_one:]
        )
        rows.append((group.kind, group.count, group.time_us, *sides, group.why))
    heads = ["kind", "executions (count)", "time (time)", *exposed, "why"]
    return table(heads, rows, finds=[group.name for group in found])


def _collectives(schedules: Sequence[Schedule]) -> Table:
    """A row per collective or copy, with its exposed time in each schedule; the most exposed
    anywhere first.
    """
    tables = [
        {item.filed_as: item for item in schedule.timeline.exposures}
        for schedule in schedules
    ]
    found = [
        (name, [table.get(name) for table in tables])
        for name in dict.fromkeys(n for t in tables for n in t)
    ]
    found.sort(
        key=lambda row: -max(item.exposed_us for item in row[1] if item is not None)
    )
    exposed = (
        f"exposed{f': {item.label}' if len(schedules) > 1 else ''} (time)"
        for item in schedules
    )
    rows: list[tuple[Value, ...]] = []
    for name, items in found:
        last = [item for item in items if item is not None][-1]
        why = [
            line
            for schedule in schedules
            if (line := (schedule.reasons or {}).get(name))
        ]
        rows.append(
            (
                name,
                last.kind + ", synchronous" * last.sync,
                last.count,
                last.duration_us,
                *(
                    "" if item is None else Cell(item.exposed_us, "exposed")
                    for item in items
                ),
                Cell(why[-1] if why else "", "soft"),
                last.origin.value,
            )
        )
    heads = [
        "instruction",
        "kind",
        "executions (count)",
        "time (time)",
        *exposed,
        "why it is exposed",
        "cost",
    ]
    return table(heads, rows, finds=True)


LEAST_SHOWN = 0.005  # of the step: less is not worth a line
MUCH_DOUBT = 0.2
"""Of the step: costs that data decides and that may add more than this are measured first."""
_TARGET_FROM: Mapping[TargetFrom, str] = {
    "option": "",
    "description": " (by the description next to the dump)",
    "file name": " (by the sm_… of the dump's name; --target)",
    "trace": " (by the trace)",
    "nothing": " (GPU assumed, the dump does not say: --target)",
}
"""What says so, behind the GPU's name."""


def predict_page(found: Predicted) -> Page:
    """The step and its range, where its time goes, what stays exposed and why, and what to do
    next.
    """
    prediction = found.prediction
    placed = placements(found.module, prediction.timeline)
    grouped = in_one(placed.values())
    schedule = Schedule(
        found.module.name,
        prediction.timeline,
        prediction.costs_are,
        found.module,
        {name: item.reason for name, item in placed.items()},
    )
    why, command = _predict_advice(found)
    contended = _contended(prediction)
    return Page(
        title=f"pgle predict: {found.module.name}",
        identity=(
            found.module.name,
            f"{found.module.num_devices} × {found.target}{_TARGET_FROM[found.target_from]}",
            f"{prediction.costs_are} costs",
            f"as its {found.stage} stage compiled it" if found.stage else "",
        ),
        verdict=_step_words(prediction),
        table=_step_table(found),
        actions=account.actions(found.account),
        notes=(
            *exposed_notes(grouped, max(prediction.step_us, 1e-9)),
            contended
            if prediction.contended_us >= LEAST_SHOWN * prediction.step_us
            else "",
            f"{figures.time(prediction.skew_us)} are waits for the slowest rank"
            if prediction.skew_us >= LEAST_SHOWN * prediction.step_us
            else "",
            *map(_uncertain_line, prediction.uncertain[:1]),
            why,
            account.note(found.account),
            account.timed_note(found.account, is_base=found.stage != "perf"),
        ),
        sections=(
            *sections([schedule], grouped, (schedule.label,) * 2),
            account.section(found.account),
            Section(
                "limits",
                "What is not known",
                tuple(
                    map(
                        Prose,
                        (
                            contended,
                            *map(_uncertain_line, prediction.uncertain),
                            *(
                                f"Not modelled: {line}."
                                for line in prediction.not_modelled
                            ),
                        ),
                    )
                ),
            ),
        ),
        way=to_way([command]),
        warnings=found.warnings,
    )


def _step_words(prediction: Prediction) -> str:
    """The step in one line, with its range."""
    if not prediction.step_us:
        return "Nothing of this module runs on a GPU"
    step = figures.time(prediction.step_us)
    if prediction.lower_bound:
        least = figures.time(prediction.interval_us[0])
        return f"A step takes at least {least}: {shown(prediction.lower_bound_why)}"
    return f"A step takes {step} ({figures.between(*map(figures.time, prediction.interval_us))})"


def _step_table(found: Predicted) -> Table:
    """What the step consists of, which adds up to it; and what it could come to at best."""
    prediction = found.prediction
    parts, step = prediction.timeline.breakdown, max(prediction.step_us, 1e-9)
    named = [
        *parts_of(parts)[:-1],
        ("idle: launch gaps and waits", parts.idle_us),
        ("step", parts.step_us),
    ]
    rows = [
        (name, Cell(us, "exposed" if name.startswith("exposed") else ""), us / step)
        for name, us in named
        if us
    ]
    bounds = account.bound_rows(found.account)
    return table(" | time (time) | share (share)", (*rows, *bounds))


def _contended(prediction: Prediction) -> str:
    """What contention adds to the step, and where its factors come from; empty if nothing."""
    if not prediction.contended_us:
        return ""
    (product, other), measured = (
        prediction.contention.likely,
        prediction.contention.samples,
    )
    source = f"measured on {measured} launches" if measured else "assumed"
    return (
        f"contention adds {figures.time(prediction.contended_us)}: while a collective runs, matrix products take "
        f"{product:.2f}× as long, other kernels {other:.2f}× ({source})"
    )


def _uncertain_line(item: Uncertain) -> str:
    times = f"{item.count} × " if item.count > 1 else ""
    span = figures.between(
        figures.time(item.range.least_us), figures.time(item.range.most_us)
    )
    line = f"data decides {printable(item.name)}: {times}{figures.time(item.cost_us)} ({span}), {item.range.why}"
    if item.range.extreme_us is None or item.range.extreme_us <= item.range.most_us:
        return line
    return f"{line}; up to {figures.time(item.range.extreme_us)} if {item.range.extreme_why}"


def _extreme_us(item: Uncertain) -> float | None:
    """What data that is not plausible makes of all executions of an instruction; None if nothing
    more.
    """
    extreme = item.range.extreme_us
    return None if extreme is None else extreme * item.count


def _predict_advice(found: Predicted) -> tuple[str, Next | Sentence]:
    """What a better order could save, and what follows: a command, or the end in words."""
    prediction, asked = found.prediction, found.asked
    if not prediction.step_us:
        words = "give the dump of a job's step, or choose its module with --module"
        return "", Sentence.of(words)
    best_us = found.account.bounds.best_order_us
    saves = figures.share(max(1 - best_us / prediction.step_us, 0.0))
    most = f"Another order saves at most {saves}."
    inside = asked.hlo.parents if isinstance(asked.hlo, Path) else ()
    around = (run for run in map(RunDirectory, inside) if run.is_recorded)
    run = found.run or next(around, None)
    doubt = prediction.steps_us.most_data / prediction.step_us - 1
    if doubt > MUCH_DOUBT:
        item = shown(prediction.uncertain[0].name)
        words = f"Data decides up to {figures.share(doubt, 0)} more, most of it {item}."
        unmeasured = Sentence.of(f"measure {item}: profile the program")
        return words, _measure(asked, run) or unmeasured
    known = Known(account=found.account)
    if next_move(known) is Move.EDIT:
        return most, account.end_words(known)
    if run is not None:
        return most, following(run)
    if prediction.costs_are == "measured":
        return most, Sentence.of(f"{GIVE_IT}{asked.profile}")
    if asked.profile is None and _is_whole(asked.hlo):
        target = asked.target or (
            "" if found.target_from == "nothing" else found.target
        )
        named = ("--target", target) if target else ()
        devices = ("--devices", found.module.num_devices)
        return most, Next.of("rehearse", asked.hlo, *named, *devices)
    return most, account.end_words(known)


def _is_whole(hlo: AnyPath) -> bool:
    """Whether a dump has the module as it was before optimizations, which can be compiled.

    That of a rehearsal is made of a module that was optimized already.
    """
    if not isinstance(hlo, Path) or not hlo.is_dir():
        return False
    if (hlo.parent / STORED).exists():
        return False
    return any(".before_optimizations." in path.name for path in hlo.iterdir())


def _measure(asked: Predict, run: RunDirectory | None) -> Next | None:
    """The command that takes measured costs from the HLO's run directory; None without one."""
    if run is None:
        return None
    if (profile := run.found_profile) is None:
        return following(run)
    if asked.profile is None:
        return Next.of("predict", asked.hlo, "--profile", profile)
    return replace(launch_of(run), capture="").line(
        "run", free(run.path.with_name(f"{run.path.name}-gpu"))
    )


def predict_document(found: Predicted) -> dict[str, object]:
    """``pgle.predict/1`` without its name."""
    prediction = found.prediction
    follows = _predict_advice(found)
    exposures = "name=filed_as instruction=name kind exposed_us sync origin time_us=duration_us executions=count"
    return {
        **text.picked(
            found, "module=module.name target target_from devices=module.num_devices"
        ),
        **text.picked(prediction, "step_us interval_us contended_us"),
        "contention": text.picked(prediction.contention, "product other"),
        **text.picked(prediction, "skew_us ceiling_us timeline.breakdown"),
        "collectives": [
            text.picked(item, exposures) for item in prediction.timeline.exposures
        ],
        **text.picked(
            prediction,
            "lower_bound program.least_us not_modelled costs_are estimated_share",
        ),
        "unsure": [
            {
                **text.picked(item, "name executions=count why=range.why"),
                "time_us": item.cost_us * item.count,
                "interval_us": (
                    item.range.least_us * item.count,
                    item.range.most_us * item.count,
                ),
                "extreme_us": _extreme_us(item),
            }
            for item in prediction.uncertain
        ],
        "account": account.document(found.account),
        "next": "\n  ".join(str(item) for item in follows if item),
        "warnings": found.warnings,
    }


OTHERS = 4  # modules that were not chosen, in the text
LABELS = ("LHS, no profile", "LHS with the profile")


def rehearse_page(result: Rehearsal, picture: Path | None = None) -> Page:
    """The largest fact first; the schedules in one table; exposed collectives in groups; what to
    do.

    Args:
        result: the rehearsal.
        picture: where the page is; None: this makes the page itself.
    """
    schedules = _schedules(result)
    words, tone = headline(result)
    why, command = advice(result)
    is_known = result.good or bool(result.lower_bound_why)
    todo = account.actions(result.account, span_finder(result)) if is_known else ()
    grouped = groups(result.moves)
    notes = (
        f"{LHS_WORDS}.",
        control.note(result),
        profile_words(result) if result.good else "",
        account.note(result.account),
        account.timed_note(result.account, is_base=True),
        *setting_notes(result.request),
        *exposed_notes(
            grouped,
            result.profiled.prediction.step_us,
            ", without and with the profile",
        ),
        f"no step: {result.request.no_step}" if result.request.no_step else "",
        "" if todo else why,
        f"Page: {near(picture)}" if picture is not None else "",
    )
    compiled, assumed = (
        result.baseline.compiled,
        " (assumed: --devices N)" if result.request.assumed else "",
    )
    return Page(
        title=f"pgle rehearse: {result.baseline.module.name}",
        identity=(
            compiled.module_name,
            f"{compiled.num_devices} × {result.request.target.name}{assumed}",
            f"jaxlib {compiled.jaxlib}",
            f"predicted from {result.costs_are} costs",
        ),
        verdict=words,
        tone=tone,
        table=steps_table(schedules, result.account),
        notes=notes,
        actions=todo,
        sections=(
            *sections(schedules, grouped, LABELS),
            account.section(result.account),
            Section(
                "control", "Does it depend on autotuning?", control.section(result)
            ),
            Section("profile", "Did XLA use the profile?", _use(result)),
        ),
        way=to_way([command]),
        warnings=result.warnings,
        tiles=tiles(
            [
                (item.label, item.timeline.breakdown)
                for item in (schedules[0], schedules[-1])
            ],
            "predicted",
        ),
        about=(
            ("module", f"{result.request.module}, fingerprint {compiled.fingerprint}"),
            ("your flags", " ".join(result.request.flags) or "none"),
            ("profile", f"{result.profile} ({result.costs_are})"),
            ("figures", f"predicted from {result.costs_are} costs; no GPU was used"),
        ),
    )


def headline(result: Rehearsal) -> tuple[str, Tone]:
    """The largest fact in one line with one number, and its tone."""
    if result.request.no_step:
        return "Cannot tell: no training step was found", "bad"
    if result.request.failed:
        return f"The program failed after its step: {result.request.failed}", "bad"
    if result.lower_bound_why:
        return f"Cannot tell: {shown(result.lower_bound_why)}", "warn"
    if not result.good:
        used = str(result.verdict.verdict).replace("-", " ")
        return f"Cannot tell: XLA's use of the profile is '{used}'", "bad"
    if result.account.lever is None:
        if depends := control.depends_words(result):
            return depends, "warn"
        if result.gained.answer.share <= -LEAST_GAIN:
            return profile_words(result), "warn"
    return account.headline(result.account)


def profile_words(result: Rehearsal) -> str:
    """What the profile is predicted to change, in one line."""
    found = result.gained.answer
    if found.share <= -LEAST_GAIN:
        return (
            f"Use no profile here: the step gets {figures.share(-found.share)} longer"
        )
    if pays(result.gained):
        return f"the profile shortens the step by {figures.share(found.share)}"
    if found.share >= LEAST_GAIN:
        change = figures.share(found.share)
        return f"the profile's change, {change}, is within the model's noise"
    return f"the profile changes less than {figures.share(LEAST_GAIN)} of the step"


def advice(result: Rehearsal) -> tuple[str, Next | Sentence]:
    """Why, and what follows: a command, or the end in words."""
    if result.request.no_step:
        return "", Sentence.of(STEP_REMEDY)
    if result.request.failed:
        words = "mend the program, then rehearse it again"
        return "The prediction of its step holds.", Sentence.of(words)
    if not result.good and not result.lower_bound_why:
        hlo = near(result.baseline.compiled.after_optimizations)
        remedy = str(result.verdict.remedy) or "See which names match."
        return remedy, Next.of("verify", near(result.profile), "--hlo", hlo)
    found = result.account
    is_searched = result.tune is None
    known = known_of(found.timed, is_searched=is_searched, account=found)
    commands = {Move.MEASURE: result.measure, Move.SEARCH: result.tune}
    return "", account.follow(known, commands)


def span_finder(result: Rehearsal) -> account.SpanOf:
    """Where an instruction is in the timeline of the schedule that the user's flags make."""
    made = result.now.prediction.timeline
    codes = {name: code for code, name in enumerate(made.names)}

    def place(name: str) -> tuple[float, float] | None:
        rows = np.flatnonzero(made.instruction == codes.get(name, -1))
        if not len(rows):
            return None
        longest = rows[np.argmax(made.duration_us[rows])]
        return float(made.start_us[longest]), float(made.end_us[longest])

    return place


def setting_notes(asked: RehearseRequest) -> list[str]:
    """The user's flags, and the modules that were not chosen."""
    flags = f"your flags: {some(map(quoted, asked.flags), 1)}" if asked.flags else ""
    others = (
        f"other modules: {some(asked.others, OTHERS)} (--module NAME takes one)"
        if asked.others
        else ""
    )
    return [flags, others]


def _use(result: Rehearsal) -> tuple[Prose | Table, ...]:
    """Whether XLA took the profile, with its line, and what LHS expected."""
    rows = (
        (
            label,
            "" if side.believed_exposed_us is None else side.believed_exposed_us,
            "cached" if side.compiled.kept else side.compiled.compile_s * 1e6,
        )
        for label, side in _sides(result)
    )
    return (
        Prose(f"{str(result.verdict.verdict).capitalize()}: {result.verdict.why}."),
        Prose(result.verdict.proof, code=True),
        table("schedule | LHS expects exposed (time) | compile time (time)", rows),
        Prose(f"{LHS_WORDS}. Without a profile its costs are guesses.", tone="soft"),
        *(
            Prose(f"Not modelled: {line}.", tone="soft")
            for line in result.profiled.prediction.not_modelled
        ),
    )


def _sides(result: Rehearsal) -> list[tuple[str, CompiledSide]]:
    """The schedules by name: XLA's own if that is another, LHS, LHS with the profile."""
    default = (
        [] if result.default is None else [("XLA's default, no LHS", result.default)]
    )
    return [*default, *zip(LABELS, (result.baseline, result.profiled), strict=True)]


def _schedules(result: Rehearsal) -> list[Schedule]:
    before = {
        move.name: move.before.reason
        for move in result.moves
        if move.before is not None
    }
    after = {
        move.name: move.after.reason for move in result.moves if move.after is not None
    }
    reasons = {id(result.baseline): before, id(result.profiled): after}
    return [
        Schedule(
            label,
            side.prediction.timeline,
            result.costs_are,
            side.module,
            reasons.get(id(side)),
            side.compiled.memory_bytes,
        )
        for label, side in _sides(result)
    ]


def folder_of(result: Rehearsal) -> Path:
    """Where the dumps of all its schedules are."""
    return result.baseline.compiled.after_optimizations.parent.parent


def ceiling_us(result: Rehearsal) -> float:
    """The lowest bound that any of the schedules gives."""
    return min(side.prediction.ceiling_us for _, side in _sides(result))


def rehearse_document(result: Rehearsal) -> dict[str, object]:
    """``pgle.rehearse/1`` without its name."""
    moves: dict[bool, list[object]] = {True: [], False: []}
    for move in result.moves:
        sides = {"before": move.before, "after": move.after}
        moves[move.moved].append(
            {
                "name": move.name,
                **{key: of and text.picked(of, _MOVE) for key, of in sides.items()},
            }
        )
    return {
        "module": str(result.request.module),
        **text.picked(result.request, "others flags"),
        **text.picked(result.baseline.compiled, "devices=num_devices jaxlib"),
        **text.picked(result, "target=request.target.name used"),
        "modules": [
            text.picked(
                result,
                "name=baseline.module.name verdict.verdict verdict.why verdict.proof verdict.remedy",
            )
        ],
        **{
            key: side and text.picked(side, _SIDE)
            for key, side in (
                ("default", result.default),
                ("baseline", result.baseline),
                ("profiled", result.profiled),
            )
        },
        "ceiling_us": ceiling_us(result),
        "groups": groups(result.moves),
        "moved": moves[True],
        "stayed": moves[False],
        "costs_are": result.costs_are,
        "profile": str(result.profile),
        "gain": result.gained.answer,
        "control": control.document(result),
        "account": account.document(result.account),
        "verdict": headline(result)[0],
        "next": "\n  ".join(str(item) for item in advice(result) if item),
        "warnings": result.warnings,
    }


_MOVE = "kind sync between cover_us cost_us exposed_us independent_us reason executions=count"
_SIDE = (
    "prediction.step_us prediction.interval_us prediction.lower_bound prediction.contended_us prediction.not_modelled "
    "exposed_us=prediction.timeline.breakdown.exposed_communication_us prediction.timeline.breakdown.exposed_copy_us "
    "prediction.timeline.breakdown.overlap compiled.believed compiled.fingerprint "
    "compiled.compile_s compiled.kept compiled.schedule compiled.log memory_bytes=compiled.memory "
    "hlo=compiled.after_optimizations"
)
"""Fields of a collective in one schedule, and of a schedule, in ``pgle.rehearse/1``."""
