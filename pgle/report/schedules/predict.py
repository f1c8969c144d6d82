"""What a step is predicted to take, as text and JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from pgle.costs.fit.contention import Contention
from pgle.errors import many
from pgle.next import typed
from pgle.report import json
from pgle.report.text import WIDTH, console, duration, printable, show_rest, table, warn
from pgle.report.timeline.scene import panel_of, parts_of, text_timeline
from pgle.run.experiment.directory import RunDirectory, free
from pgle.run.experiment.onward import UNKNOWN, following, launch_of
from pgle.run.predict import Predicted, PredictRequest, TargetFrom
from pgle.schedule.predict import Prediction, Unsure
from pgle.schedule.timeline import Exposure

SHOWN = 12  # collectives and copies in the text table; ``--json`` has all
LITTLE = 0.005
MUCH_DOUBT = 0.2
"""Of the step: beyond this no schedule is worth looking at before the costs that data decides are measured."""
UNSURE_SHOWN = 3  # costs that data decides, in text
_TARGET_FROM: Mapping[TargetFrom, str] = {
    "option": "",
    "description": " (by XLA's description beside the dump)",
    "file name": " (by the sm_… in the dump's name; another GPU of that kind: --target)",
    "nothing": " (GPU assumed, the dump does not say: --target)",
}
"""Where the GPU is known from, behind its name."""


def show_text(found: Predicted) -> None:
    """Tables on stdout, warnings on stderr."""
    screen, prediction = console(), found.prediction
    parts, (low, high) = prediction.timeline.breakdown, prediction.interval_us
    screen.print(
        f"{printable(found.module.name)} on {printable(found.target)}{_TARGET_FROM[found.target_from]}, "
        f"{many(found.module.num_devices, 'device')}, {prediction.costs_are} costs",
        soft_wrap=True,
    )
    rows = [*parts_of(parts)[:-1], ("idle: launch gaps and waits", parts.idle_us)]
    cells = [(name, duration(us), f"{us / max(parts.step_us, 1e-9):.1%}") for name, us in rows if us]
    reach = f"range {duration(low)} … {duration(high)}"
    if prediction.lower_bound:
        reach = "at least: one iteration is counted of each loop of unknown length"
    cells.append((f"step ({reach})", duration(parts.step_us), "100.0%"))
    hidden_us = prediction.ceiling.step_us
    cells.append(("with all communication hidden", duration(hidden_us), f"{hidden_us / max(parts.step_us, 1e-9):.1%}"))
    screen.print(table(("", "time", "share"), cells, right="time|share", whole="time|share"))
    if prediction.skew_us:
        screen.print(f"{duration(prediction.skew_us)} of the step are waits for the slowest rank")
    if prediction.contended_us:
        screen.print(_contended(prediction), soft_wrap=True)
    for item in prediction.unsure[:UNSURE_SHOWN]:
        screen.print(_unsure_line(item), soft_wrap=True)
    for line in prediction.not_modelled:
        screen.print(f"not modelled: {printable(line)}", soft_wrap=True)
    exposures = prediction.timeline.exposures
    if exposures:
        screen.print()
        columns = ("collective", "kind", "time", "exposed", "cost")
        rows_shown = map(_row, exposures[:SHOWN])
        screen.print(table(columns, rows_shown, right="time|exposed", whole="kind|time|exposed|cost"))
    show_rest(screen, len(exposures) - SHOWN)
    screen.print()
    panel = panel_of(found.module.name, prediction.timeline, prediction.costs_are)
    screen.print(text_timeline([panel], min(screen.width, WIDTH)), soft_wrap=True)
    screen.print(advice(found), style="bold", soft_wrap=True)
    warn(found.warnings)


def contention_line(found: Contention) -> str:
    """How much longer kernels were measured to take while a collective runs; empty where that was not."""
    kinds = (("matrix products", found.product), ("other kernels", found.other))
    parts = [f"{kind} {item.likely:.2f} times ({item.samples} launches)" for kind, item in kinds if item.samples]
    return f"beside collectives kernels take longer, as measured: {', '.join(parts)}" if parts else ""


def _contended(prediction: Prediction) -> str:
    """What contention adds to the step, and where its factors come from."""
    product, other = prediction.contention.likely
    measured = prediction.contention.samples
    source = f"measured on {measured} launches" if measured else "assumed, as on two other jobs"
    return (
        f"contention adds {duration(prediction.contended_us)}: while a collective runs, matrix products take "
        f"{product:.2f} times as long, other kernels {other:.2f} times ({source})"
    )


def _unsure_line(item: Unsure) -> str:
    times = f"{item.count} × " if item.count > 1 else ""
    least, most = duration(item.range.least_us), duration(item.range.most_us)
    return f"data decides {printable(item.name)}: {times}{duration(item.cost_us)} ({least} … {most}), {item.range.why}"


def advice(found: Predicted) -> str:
    """What to do next, and what it would bring."""
    prediction = found.prediction
    if not prediction.step_us:
        return "Nothing of it runs on a GPU: give the dump of a job's step, or choose its module with --module."
    room = 1 - prediction.ceiling.step_us / prediction.step_us
    doubt = prediction.steps_us.most_data / prediction.step_us - 1
    asked = found.asked
    if doubt > MUCH_DOUBT:
        name = printable(prediction.unsure[0].name)
        return f"Data decides up to {doubt:.0%} more, most of it {name}: measure it first\n  {_measure(asked)}"
    if room < LITTLE:
        costs = () if asked.profile is None else ("--profile", asked.profile)
        look = typed("pgle", "analyze", asked.hlo, *costs)
        return f"Another schedule can save at most {room:.1%}; where the time goes:\n  {look}"
    saved, rehearse = f"Hiding all communication would save up to {room:.1%}", _rehearse(found)
    if prediction.costs_are == "measured":
        return f"{saved}; what the compiler makes of a profile:\n  {rehearse}"
    return (
        f"{saved}, by {prediction.costs_are} costs; measured costs say it surely:\n  {_measure(asked)}\n"
        f"What the compiler makes of a profile:\n  {rehearse}"
    )


def _measure(asked: PredictRequest) -> str:
    """The command that takes measured costs: those that lie in the HLO's run directory, else of the program."""
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


def _row(item: Exposure) -> tuple[str, ...]:
    times = f"{item.count} × " if item.count > 1 else ""
    sync = " (synchronous)" if item.sync else ""
    each = item.duration_us / max(item.count, 1)
    return (
        printable(item.filed_as),
        item.kind + sync,
        f"{times}{duration(each)}",
        duration(item.exposed_us),
        item.origin,
    )


def show_json(found: Predicted) -> None:
    """``pgle.predict/1``."""
    prediction = found.prediction
    json.show(
        "pgle.predict/1",
        {
            "module": found.module.name,
            **json.picked(found, "target target_from"),
            "devices": found.module.num_devices,
            **json.picked(prediction, "step_us interval_us contended_us"),
            "contention": json.picked(prediction.contention, "product other"),
            "skew_us": prediction.skew_us,
            "ceiling_us": prediction.ceiling.step_us,
            **json.picked(prediction.timeline, "breakdown bound"),
            "collectives": [
                {
                    "name": item.filed_as,
                    "instruction": item.name,
                    **json.picked(item, "lhs_name kind exposed_us sync origin"),
                    "time_us": item.duration_us,
                    "executions": item.count,
                }
                for item in prediction.timeline.exposures
            ],
            "lower_bound": prediction.lower_bound,
            "least_us": prediction.program.least_us,
            "not_modelled": prediction.not_modelled,
            "costs_are": prediction.costs_are,
            "estimated_share": prediction.estimated_share,
            "unsure": [
                {
                    "name": item.name,
                    "time_us": item.cost_us * item.count,
                    "interval_us": (item.range.least_us * item.count, item.range.most_us * item.count),
                    "executions": item.count,
                    "why": item.range.why,
                }
                for item in prediction.unsure
            ],
            "without_cost": prediction.timeline.missing,
            "next": advice(found),
            "warnings": found.warnings,
        },
    )
