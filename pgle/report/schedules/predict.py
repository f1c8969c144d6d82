"""What a step is predicted to take, as a page and as ``pgle.predict/1``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from pgle.errors import printable, shown
from pgle.next import typed
from pgle.report import text
from pgle.report.page import figures
from pgle.report.page.value import Cell, Page, Prose, Section, Table, Value, table
from pgle.report.parts import parts_of
from pgle.report.schedules.schedule import EXPOSED, Schedule, group_notes, sections
from pgle.run.directory.directory import RunDirectory, free
from pgle.run.inputs.next_command import UNKNOWN, following, launch_of
from pgle.run.predict import Predicted, PredictRequest, TargetFrom
from pgle.schedule.compare import in_one, placements
from pgle.schedule.predict import Prediction, Uncertain

LITTLE = 0.005
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
    """The step and its range, where its time goes, what stays exposed and why, and what to do next."""
    prediction = found.prediction
    placed = placements(found.module, prediction.timeline)
    grouped = in_one(placed.values())
    schedule = Schedule(
        found.module.name, prediction.timeline, prediction.costs_are, found.module,
        {name: item.reason for name, item in placed.items()},
    )  # fmt: skip
    exposed = group_notes(grouped, max(prediction.step_us, 1e-9))
    why, following_ = advice(found)
    return Page(
        title=f"pgle predict: {found.module.name}",
        identity=(
            found.module.name, f"{found.module.num_devices} × {found.target}{_TARGET_FROM[found.target_from]}",
            f"{prediction.costs_are} costs", *([f"as its {found.stage} stage compiled it"] if found.stage else []),
        ),
        verdict=verdict(prediction),
        table=_parts(prediction),
        notes=(
            *([f"{EXPOSED}:", *exposed] if exposed else []),
            *([_contended(prediction)] if prediction.contended_us >= LITTLE * prediction.step_us else []),
            *([f"{figures.time(prediction.skew_us)} are waits for the slowest rank"] if prediction.skew_us else []),
            *map(_uncertain_line, prediction.uncertain[:1]),
            why,
        ),
        sections=(
            *sections([schedule], grouped, (schedule.label,) * 2),
            Section("limits", "What is not known", (
                *([Prose(_contended(prediction))] if prediction.contended_us else []),
                *(Prose(_uncertain_line(item)) for item in prediction.uncertain),
                *(Prose(f"Not modelled: {line}.") for line in prediction.not_modelled),
            )),
        ),
        next=following_,
        warnings=found.warnings,
    )  # fmt: skip


def verdict(prediction: Prediction) -> str:
    """The step in one line, with its range."""
    if not prediction.step_us:
        return "Nothing of this module runs on a GPU"
    step = figures.time(prediction.step_us)
    if prediction.lower_bound:
        return f"A step takes at least {step}: a loop has an unknown length"
    return f"A step takes {step} ({figures.between(*map(figures.time, prediction.interval_us))})"


def _parts(prediction: Prediction) -> Table:
    """What the step consists of; the parts add up to it."""
    parts, step = prediction.timeline.breakdown, max(prediction.step_us, 1e-9)
    named = [*parts_of(parts)[:-1], ("idle: launch gaps and waits", parts.idle_us), ("step", parts.step_us)]
    rows: list[tuple[Value, ...]] = [
        (name, Cell(us, "exposed" if name.startswith("exposed") else ""), us / step) for name, us in named if us
    ]
    ceiling = prediction.ceiling.step_us
    rows.append(("step if all communication were hidden", ceiling, ceiling / step))
    return table(" | time (time) | share (share)", rows)


def _contended(prediction: Prediction) -> str:
    """What contention adds to the step, and where its factors come from."""
    product, other = prediction.contention.likely
    measured = prediction.contention.samples
    source = f"measured on {measured} launches" if measured else "assumed"
    return (
        f"contention adds {figures.time(prediction.contended_us)}: while a collective runs, matrix products take "
        f"{product:.2f}× as long, other kernels {other:.2f}× ({source})"
    )


def _uncertain_line(item: Uncertain) -> str:
    times = f"{item.count} × " if item.count > 1 else ""
    span = figures.between(figures.time(item.range.least_us), figures.time(item.range.most_us))
    return f"data decides {printable(item.name)}: {times}{figures.time(item.cost_us)} ({span}), {item.range.why}"


def advice(found: Predicted) -> tuple[str, tuple[str, ...]]:
    """What a better schedule could save, and the commands that say more, the first to type now."""
    prediction, asked = found.prediction, found.asked
    if not prediction.step_us:
        words = "Give the dump of a job's step, or choose its module with --module."
        return words, (typed("pgle", "predict", asked.hlo, "--module", "NAME"),)
    room = 1 - prediction.ceiling.step_us / prediction.step_us
    doubt = prediction.steps_us.most_data / prediction.step_us - 1
    if doubt > MUCH_DOUBT:
        name = shown(prediction.uncertain[0].name)
        return f"Data decides up to {figures.share(doubt, 0)} more, most of it {name}: measure it.", (_measure(asked),)
    if room < LITTLE:
        costs = () if asked.profile is None else ("--profile", asked.profile)
        words = f"Another schedule saves at most {figures.share(room)}."
        return words, (typed("pgle", "analyze", asked.hlo, *costs),)
    rehearse = _rehearse(found)
    if prediction.costs_are == "measured":
        words = f"Another schedule saves at most {figures.share(room)}. Rehearse with the jaxlib that made this dump"
        return f"{words}: another gives instructions other names, which the profile does not have.", (rehearse,)
    words = f"Another schedule saves at most {figures.share(room)}, by {prediction.costs_are} costs. Measure them."
    return words, (_measure(asked), rehearse)


def _measure(asked: PredictRequest) -> str:
    """The command that takes measured costs: from the HLO's run directory, else of the program."""
    run = _run_of(asked)
    profile = None if run is None else run.found_profile
    if run is None or profile is None:
        return typed("pgle", "profile", "--", *UNKNOWN) if run is None else following(run)
    if asked.profile is None:
        return typed("pgle", "predict", asked.hlo, "--profile", profile)
    return replace(launch_of(run), capture="").line("run", free(run.path.with_name(f"{run.path.name}-gpu")))


def _rehearse(found: Predicted) -> str:
    """The command that compiles the module again: of its run directory, of its dump, else of a module to be named."""
    asked, run = found.asked, _run_of(found.asked)
    if run is not None:
        return typed("pgle", "rehearse", run.path)
    costs = () if asked.profile is None else ("--profile", asked.profile)
    whole = asked.hlo.is_dir() and any(".before_optimizations." in path.name for path in asked.hlo.iterdir())
    named = asked.target or ("" if found.target_from == "nothing" else found.target)
    target = ("--target", named) if named else ()
    devices = ("--devices", found.module.num_devices)
    return typed("pgle", "rehearse", asked.hlo if whole else "MODULE", *costs, *target, *devices)


def _run_of(asked: PredictRequest) -> RunDirectory | None:
    folders = asked.hlo.parents if isinstance(asked.hlo, Path) else ()
    return next((run for run in map(RunDirectory, folders) if run.is_recorded), None)


def document(found: Predicted) -> dict[str, object]:
    """``pgle.predict/1`` without its name."""
    prediction, (why, following_) = found.prediction, advice(found)
    exposures = (
        "name=filed_as instruction=name lhs_name kind exposed_us sync origin time_us=duration_us executions=count"
    )
    return {
        **text.picked(found, "module=module.name target target_from devices=module.num_devices"),
        **text.picked(prediction, "step_us interval_us contended_us"),
        "contention": text.picked(prediction.contention, "product other"),
        **text.picked(prediction, "skew_us ceiling_us=ceiling.step_us timeline.breakdown"),
        "collectives": [text.picked(item, exposures) for item in prediction.timeline.exposures],
        **text.picked(prediction, "lower_bound program.least_us not_modelled costs_are estimated_share"),
        "unsure": [
            {
                **text.picked(item, "name executions=count why=range.why"),
                "time_us": item.cost_us * item.count,
                "interval_us": (item.range.least_us * item.count, item.range.most_us * item.count),
            }
            for item in prediction.uncertain
        ],
        "without_cost": prediction.timeline.missing,
        "next": "\n  ".join((why, *following_)),
        "warnings": found.warnings,
    }
