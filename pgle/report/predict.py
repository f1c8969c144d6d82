"""What a schedule is predicted to take, alone (`pgle predict`) or next to others (`pgle rehearse`,
and `tune`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from pgle.errors import printable, shown, some
from pgle.files import write_files
from pgle.next import Next, quoted, to_lines
from pgle.report import control, text
from pgle.report.next_steps import Commands
from pgle.report.page import figures, html, value
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
from pgle.run.inputs.next_command import UNKNOWN, following, launch_of
from pgle.run.rehearse import CompiledSide, Rehearsal
from pgle.run.rehearse_program import LHS_ON, RehearseRequest
from pgle.schedule.placements import (
    MOSTLY,
    ExposedGroup,
    groups,
    in_one,
    placements,
    stuck_share,
)
from pgle.schedule.predict import LEAST_GAIN, Gain
from pgle.tune.search import NEAR_CEILING

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


def steps_table(schedules: Sequence[Schedule], ceiling_us: float) -> Table:
    """A row per schedule, compared with the first, and what perfect overlap would take."""
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
    rows.append(
        ("all communication hidden", ceiling_us, ceiling_us / first - 1, "", "")
    )
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
    why, commands = _predict_advice(found)
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
        table=_step_table(prediction),
        notes=(
            *exposed_notes(grouped, max(prediction.step_us, 1e-9)),
            contended
            if prediction.contended_us >= LEAST_SHOWN * prediction.step_us
            else "",
            f"{figures.time(prediction.skew_us)} are waits for the slowest rank"
            if prediction.skew_us
            else "",
            *map(_uncertain_line, prediction.uncertain[:1]),
            why,
        ),
        sections=(
            *sections([schedule], grouped, (schedule.label,) * 2),
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
        next=to_lines(commands),
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


def _step_table(prediction: Prediction) -> Table:
    """What the step consists of; the parts add up to it."""
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
    ceiling = prediction.ceiling_us
    hidden = ("step if all communication were hidden", ceiling, ceiling / step)
    return table(" | time (time) | share (share)", (*rows, hidden))


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


def _predict_advice(found: Predicted) -> tuple[str, Commands]:
    """What a better schedule could save, and the commands that say more, the first to type now."""
    prediction, asked = found.prediction, found.asked
    if not prediction.step_us:
        words = "Give the dump of a job's step, or choose its module with --module."
        return words, (Next.of("predict", asked.hlo, "--module", "NAME"),)
    ceiling_saves = 1 - prediction.ceiling_us / prediction.step_us
    most = f"Another schedule saves at most {figures.share(ceiling_saves)}"
    doubt = prediction.steps_us.most_data / prediction.step_us - 1
    folders = asked.hlo.parents if isinstance(asked.hlo, Path) else ()
    run = next((run for run in map(RunDirectory, folders) if run.is_recorded), None)
    costs = () if asked.profile is None else ("--profile", asked.profile)
    if doubt > MUCH_DOUBT:
        most_of_it = f"most of it {shown(prediction.uncertain[0].name)}"
        return (
            f"Data decides up to {figures.share(doubt, 0)} more, {most_of_it}: measure it.",
            (_measure(asked, run),),
        )
    if ceiling_saves < LEAST_SHOWN:
        return f"{most}.", (Next.of("analyze", asked.hlo, *costs),)
    if run is not None:
        rehearse = Next.of("rehearse", run.path)
    else:
        whole = asked.hlo.is_dir() and any(
            ".before_optimizations." in path.name for path in asked.hlo.iterdir()
        )
        named = asked.target or ("" if found.target_from == "nothing" else found.target)
        target = ("--target", named) if named else ()
        options = (*costs, *target, "--devices", found.module.num_devices)
        rehearse = Next.of("rehearse", asked.hlo if whole else "MODULE", *options)
    if prediction.costs_are == "measured":
        words = f"{most}. Rehearse with the jaxlib that made this dump"
        return (
            f"{words}: another gives instructions other names, which the profile does not have.",
            (rehearse,),
        )
    return f"{most}, by {prediction.costs_are} costs. Measure them.", (
        _measure(asked, run),
        rehearse,
    )


def _measure(asked: Predict, run: RunDirectory | None) -> Next:
    """The command that takes measured costs: from the HLO's run directory, else of the program."""
    if run is None:
        return Next.of("profile", "--", *UNKNOWN)
    if (profile := run.found_profile) is None:
        return following(run)
    if asked.profile is None:
        return Next.of("predict", asked.hlo, "--profile", profile)
    return replace(launch_of(run), capture="").line(
        "run", free(run.path.with_name(f"{run.path.name}-gpu"))
    )


def predict_document(found: Predicted) -> dict[str, object]:
    """``pgle.predict/1`` without its name."""
    prediction, (why, commands) = found.prediction, _predict_advice(found)
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
        "next": "\n  ".join((why, *map(str, commands))),
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
    (why, command), todo = advice(result), _actions(result)
    grouped = groups(result.moves)
    notes = (
        f"{LHS_WORDS}.",
        control.note(result),
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
        table=steps_table(schedules, ceiling_us(result)),
        notes=notes,
        actions=todo,
        sections=(
            *sections(schedules, grouped, LABELS),
            Section(
                "control", "Does it depend on autotuning?", control.section(result)
            ),
            Section("profile", "Did XLA use the profile?", _use(result)),
        ),
        next=to_lines([command]),
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
    prediction = result.profiled.prediction
    if result.request.no_step:
        return "Cannot tell: no training step was found", "bad"
    if result.request.failed:
        return f"The program failed after its step: {result.request.failed}", "bad"
    if not result.good:
        used = str(result.verdict.verdict).replace("-", " ")
        return f"Cannot tell: XLA's use of the profile is '{used}'", "bad"
    bounded = [
        item for item in (prediction, result.baseline.prediction) if item.lower_bound
    ]
    if bounded:
        return f"Cannot tell: {shown(bounded[0].lower_bound_why)}", "warn"
    found, lhs = result.gained.answer, _lhs_gain(result)
    ceiling_saves = _ceiling_saves(result)
    if depends := control.depends_words(result):
        return depends, "warn"
    if lhs is not None and lhs.share >= max(LEAST_GAIN, found.share):
        return (
            f"The latency-hiding scheduler (LHS) shortens the step by {figures.share(lhs.share)}",
            "good",
        )
    if pays(result):
        return (
            f"The profile shortens the step by {figures.share(found.share)} (predicted)",
            "good",
        )
    if found.share >= LEAST_GAIN:
        return (
            f"Cannot tell: the predicted {figures.share(found.share)} is within the model's noise",
            "warn",
        )
    if found.share <= -LEAST_GAIN:
        return (
            f"Use no profile here: the step gets {figures.share(-found.share)} longer",
            "warn",
        )
    if _is_stuck(result):
        exposed = prediction.exposed_us / max(prediction.step_us, 1e-9)
        return (
            f"{figures.share(exposed)} of the step is exposed, and no order hides it",
            "warn",
        )
    if ceiling_saves < NEAR_CEILING:
        return (
            f"Nothing to gain: at most {figures.share(max(ceiling_saves, 0.0))} of the step could be hidden",
            "",
        )
    profile = (
        "A profile would change"
        if result.costs_are == "estimated"
        else "The profile changes"
    )
    return (
        f"{profile} nothing; another order saves at most {figures.share(_hideable(result))}",
        "warn",
    )


def pays(result: Rehearsal) -> bool:
    """Whether the profile is predicted to shorten the step: by enough, and by overlap rather than
    noise.
    """
    found = result.gained.answer
    return (
        found.share >= LEAST_GAIN
        and found.low >= 0
        and found.idle_share <= found.share / 2
    )


def _shown(command: Next | None) -> str:
    """A command of an `Advice`; empty if there is none."""
    return next(iter(to_lines([command])), "")


def advice(result: Rehearsal) -> tuple[str, Next | None]:
    """Why, and the command to type next."""
    if result.request.no_step:
        return f"{STEP_REMEDY[:1].upper()}{STEP_REMEDY[1:]}.", _analyze_command(result)
    if result.request.failed:
        return "Mend the program. The prediction of its step holds.", _analyze_command(
            result
        )
    if not result.good:
        hlo = near(result.baseline.compiled.after_optimizations)
        remedy = str(result.verdict.remedy) or "See which names match."
        return remedy, Next.of("verify", near(result.profile), "--hlo", hlo)
    prediction, ceiling_saves = result.profiled.prediction, _ceiling_saves(result)
    if pays(result):
        return "Measure the costs and prove the gain.", result.measure
    parts = prediction.timeline.breakdown
    if not parts.communication_us and not parts.copy_us:
        return (
            "The step communicates nothing: its time is compute and launch gaps.",
            _analyze_command(result),
        )
    is_stuck = _is_stuck(result)
    if ceiling_saves < NEAR_CEILING:
        what = (
            "Exposed communication has nothing to hide behind"
            if is_stuck
            else "The communication is hidden already"
        )
        more = " Other sharding or more work per device might help." if is_stuck else ""
        most = f"no profile and no flag saves more than {figures.share(max(ceiling_saves, 0.0))}"
        return f"{what}: {most}.{more}", _analyze_command(result)
    if not result.tune:
        return (
            "The search for flags in this run directory found nothing better.",
            _analyze_command(result),
        )
    if is_stuck:
        return (
            "No order of these instructions hides it; other flags combine or pipeline collectives.",
            result.tune,
        )
    most = figures.share(_hideable(result))
    return (
        f"Another order saves at most {most}; other flags also combine or pipeline collectives.",
        result.tune,
    )


def _analyze_command(result: Rehearsal) -> Next:
    """The command that shows where the time goes."""
    return Next.of("analyze", near(folder_of(result)))


def _is_stuck(result: Rehearsal) -> bool:
    """Whether most of the exposed time has nothing to hide behind."""
    placed = [move.after for move in result.moves if move.after is not None]
    return stuck_share(result.profiled.prediction, placed) > MOSTLY


def _actions(result: Rehearsal) -> tuple[Advice, ...]:
    """What shortens the step, what saves most first."""
    if not result.good:
        return ()
    schedules, lhs, found = _schedules(result), _lhs_gain(result), []
    if lhs is not None and lhs.share >= LEAST_GAIN:
        command, why = (
            f'export XLA_FLAGS="$XLA_FLAGS {LHS_ON}"',
            f"off by default here; {_range(lhs)}",
        )
        found.append(
            Advice(
                f"Set {LHS_ON}", lhs.high, why, command, span_us=span_us(schedules[0])
            )
        )
    if pays(result):
        gained = result.gained.answer
        moved = sum(move.moved for move in result.moves)
        why = f"{moved} of {len(result.moves)} collectives move; {_range(gained)}"
        title = (
            "Measure a profile and use it"
            if result.costs_are != "measured"
            else "Use the profile"
        )
        found.append(
            Advice(
                title,
                gained.high,
                why,
                command=_shown(result.measure),
                span_us=span_us(schedules[-2]),
            )
        )
    if _ceiling_saves(result) >= NEAR_CEILING and result.tune:
        most = figures.share(_hideable(result))
        why = f"another order saves at most {most}; flags that combine or pipeline collectives may save more"
        found.append(
            Advice(
                "Look for other flags",
                None,
                why,
                command=_shown(result.tune),
                span_us=span_us(schedules[-1]),
            )
        )
    return tuple(sorted(found, key=lambda action: -(action.saves or 0.0)))


def _range(found: Gain) -> str:
    """``8.5 %``, with its range if contention or data decide."""
    if found.high - found.low < 5e-4:
        return figures.share(found.share)
    return f"{figures.share(found.share)} ({figures.between(figures.share(found.low), figures.share(found.high))})"


def _lhs_gain(result: Rehearsal) -> Gain | None:
    """What LHS alone changes; None: XLA runs it without being asked."""
    return None if result.lhs_gained is None else result.lhs_gained.answer


def _ceiling_saves(result: Rehearsal) -> float:
    """The share of the profiled step that perfect overlap would save."""
    prediction = result.profiled.prediction
    return 1 - prediction.ceiling_us / max(prediction.step_us, 1e-9)


def _hideable(result: Rehearsal) -> float:
    """The share of the profiled step that another order of its instructions saves at most."""
    hideable_us = sum(
        move.after.hideable_us for move in result.moves if move.after is not None
    )
    return min(
        _ceiling_saves(result),
        hideable_us / max(result.profiled.prediction.step_us, 1e-9),
    )


def setting_notes(asked: RehearseRequest) -> list[str]:
    """The user's flags, and the modules that were not chosen."""
    flags = f"your flags: {some(map(quoted, asked.flags), 1)}" if asked.flags else ""
    others = (
        f"other modules: {some(asked.others, OTHERS)} (--choose NAME takes one)"
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
