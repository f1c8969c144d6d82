"""`pgle predict`: what a step of a scheduled module takes, as a page and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pgle.account.next_move import Known, Move, next_move
from pgle.errors import printable, shown
from pgle.files import AnyPath
from pgle.next import Following, Next, Sentence, to_way
from pgle.report import account
from pgle.report.account import AccountDocument
from pgle.report.page import figures
from pgle.report.page.figures import Unit
from pgle.report.page.value import (
    Cell,
    Column,
    Page,
    Prose,
    Section,
    Table,
    Tone,
    Value,
    table,
    way_of,
)
from pgle.report.schedules import Schedule, exposed_notes, sections
from pgle.report.text import Document, flat
from pgle.report.timeline import (
    parts_of,
)
from pgle.run.directory.directory import STORED
from pgle.schedule.placements import (
    ExposedGroup,
    in_one,
    placements,
)
from pgle.worth import is_worth

if TYPE_CHECKING:
    from pgle.costs.measure.contention import Slowdown
    from pgle.costs.profile.value import Origin
    from pgle.run.predict import Predicted
    from pgle.run.target import TargetFrom
    from pgle.schedule.predict import Prediction, Uncertain
    from pgle.schedule.simulate import Breakdown, Exposure

GIVE_IT = (
    "the profile fits; give it to the job in XLA_FLAGS: "
    "--xla_gpu_pgle_profile_file_or_directory_path="
)
# share of the step: first measure instructions whose time depends on the data and may add more than
# this
MUCH_DOUBT = 0.2
_TARGET_FROM: Mapping[TargetFrom, str] = {
    "option": "",
    "description": " (by the description next to the dump)",
    "file name": " (by the sm_… of the dump's name; --target)",
    "trace": " (by the trace)",
    "nothing": " (GPU assumed, the dump does not say: --target)",
}
"""The origin of the GPU's name, shown after it."""


def predict_page(found: Predicted, following: Following) -> Page:
    """Show the step and its range, where its time goes, what stays exposed and why, and the next
    action.
    """
    prediction = found.prediction
    placed = placements(found.module, prediction.timeline)
    grouped = in_one(placed.values())
    schedule = Schedule(
        label=found.module.name,
        timeline=prediction.timeline,
        costs_are=prediction.costs_are,
        module=found.module,
        reasons={name: item.reason for name, item in placed.items()},
    )
    why, command = following
    parts = (
        *sections([schedule], grouped, (schedule.label, schedule.label)),
        account.section(found.account),
        _limits(found),
    )
    notes = (
        *_predict_notes(found, grouped),
        why,
        account.note(found.account),
        account.timed_note(found.account, is_base=found.stage != "perf"),
    )
    return Page(
        title=f"pgle predict: {found.module.name}",
        identity=_predict_identity(found),
        verdict=_verdict(found),
        table=_step_table(found),
        actions=account.actions(found.account),
        notes=notes,
        sections=parts,
        way=way_of(found.page) or to_way([command]),
        warnings=found.warnings,
    )


def _predict_identity(found: Predicted) -> tuple[str, ...]:
    """The module, its GPUs and what names them, the origin of its costs, and its stage."""
    module = found.module
    named_by = _TARGET_FROM[found.target_from]
    return (
        module.name,
        f"{module.num_devices} × {found.target}{named_by}",
        f"{found.prediction.costs_are} costs",
        f"as its {found.stage} stage compiled it" if found.stage else "",
    )


def _predict_notes(found: Predicted, grouped: Sequence[ExposedGroup]) -> Iterator[str]:
    """What stays exposed and why, contention, waits, and the widest range."""
    prediction = found.prediction
    step_us = prediction.step_us
    yield from exposed_notes(grouped, max(step_us, 1e-9))
    yield account.contention_note(found.account)
    if prediction.skew_us and is_worth(prediction.skew_us, step_us):
        yield f"{figures.time(prediction.skew_us)} are waits for the slowest rank"
    yield from map(_uncertain_line, prediction.uncertain[:1])


def _limits(found: Predicted) -> Section:
    """Name what may change the answer: contention, data-dependent costs, effects without a
    model.
    """
    prediction = found.prediction
    contended = account.contention_words(found.account)
    uncertain = map(_uncertain_line, prediction.uncertain)
    not_modelled = (f"Not modelled: {line}." for line in prediction.not_modelled)
    lines = (contended, *uncertain, *not_modelled)
    return Section("limits", "What is not known", tuple(map(Prose, lines)))


def _verdict(found: Predicted) -> str:
    """The step in one line, and what would shorten it most."""
    words = _step_words(found.prediction)
    lever = found.account.lever
    if lever is None or found.prediction.lower_bound:
        return words
    saves = account.share_words(found.account, lever.known_saving_us)
    return f"{words}; {account.lowered(lever.title)}: saves {saves}"


def _step_words(prediction: Prediction) -> str:
    """The step with its range, in one line."""
    if not prediction.step_us:
        return "Nothing of this module runs on a GPU"
    if prediction.lower_bound:
        least = figures.time(prediction.interval_us[0])
        return f"A step takes at least {least}: {shown(prediction.lower_bound_why)}"
    step = figures.time(prediction.step_us)
    ends = figures.between(*map(figures.time, prediction.interval_us))
    return f"A step takes {step} ({ends})"


def _step_table(found: Predicted) -> Table:
    """The parts of the step, which add up to it, and the bounds of the step."""
    prediction = found.prediction
    parts = prediction.timeline.breakdown
    step_us = max(prediction.step_us, 1e-9)
    named = [
        *parts_of(parts)[:-1],
        ("idle: launch gaps and waits", parts.idle_us),
        ("step", parts.step_us),
    ]
    rows: list[tuple[Value, ...]] = []
    for name, us in named:
        if us:
            tone: Tone = "exposed" if name.startswith("exposed") else ""
            rows.append((name, Cell(us, tone), us / step_us))
    rows += account.bound_rows(found.account)
    return table(("", Column("time", Unit.TIME), Column("share", Unit.SHARE)), rows)


def _uncertain_line(item: Uncertain) -> str:
    """Describe an instruction whose time depends on the data, with its range and reason."""
    times = f"{item.count} × " if item.count > 1 else ""
    least = figures.time(item.range.least_us)
    most = figures.time(item.range.most_us)
    cost = f"{times}{figures.time(item.cost_us)} ({figures.between(least, most)})"
    line = f"unsure: {printable(item.name)}: {cost}, {item.range.why}"
    extreme_us = item.range.extreme_us
    if extreme_us is None or extreme_us <= item.range.most_us:
        return line
    return f"{line}; up to {figures.time(extreme_us)} if {item.range.extreme_why}"


def _extreme_us(item: Uncertain) -> float | None:
    """Its time with extreme data, in µs, summed over all executions; None if no such data is
    known.
    """
    extreme = item.range.extreme_us
    return None if extreme is None else extreme * item.count


def advice(found: Predicted) -> Following:
    """Name the data-dependent costs, and what to do next: a command, or a closing sentence."""
    prediction = found.prediction
    if not prediction.step_us:
        words = "give the dump of a job's step, or choose its module with --module"
        return "", Sentence.todo(words)
    run = found.run_around
    words, remedy = _doubt(prediction)
    if run is not None:
        # the dump of a module alone needs no next step of a run
        from pgle.report.next_steps import way_in_run

        return words, way_in_run(run)[0]
    return words, remedy or _follow(found)


def _doubt(prediction: Prediction) -> tuple[str, Sentence | None]:
    """Say how much longer the data can make the step, and what to do then; empty and None if that
    is little.
    """
    doubt = prediction.steps_us.most_data / prediction.step_us - 1
    if doubt <= MUCH_DOUBT:
        return "", None
    item = shown(prediction.uncertain[0].name)
    why = prediction.uncertain[0].range.why
    words = f"Up to {figures.share(doubt, 0)} more, most of it {item}: {why}."
    return words, Sentence.todo(f"measure {item}: profile the program")


def _follow(found: Predicted) -> Next | Sentence:
    """Return the next command for a module outside a run directory, or a closing sentence."""
    asked = found.asked
    known = Known(account=found.account)
    if next_move(known) in (Move.EDIT, Move.ADVISE):
        return account.end_words(known)
    if found.prediction.costs_are == "measured":
        return Sentence.todo(f"{GIVE_IT}{asked.profile}")
    if asked.profile is not None or not _is_whole(asked.hlo):
        return account.end_words(known)
    target = asked.target
    if not target and found.target_from != "nothing":
        target = found.target
    options = ("--target", target) if target else ()
    devices = ("--devices", found.module.num_devices)
    return Next.of("rehearse", asked.hlo, *options, *devices)


def _is_whole(hlo: AnyPath) -> bool:
    """Whether a dump has the module before optimizations, which XLA can compile.

    The dump of a rehearsal does not count: its module was optimized before.
    """
    if not isinstance(hlo, Path) or not hlo.is_dir():
        return False
    if (hlo.parent / STORED).exists():
        return False
    return any(".before_optimizations." in path.name for path in hlo.iterdir())


class PredictedCollective(Document):
    """The executions of a collective or copy in one step."""

    name: str
    instruction: str
    kind: str
    exposed_us: float
    sync: bool
    origin: Origin
    time_us: float
    executions: int


class PredictedStep(Document):
    """The step with its range, and its parts."""

    step_us: float  # includes contention
    # range of step_us: contention from none to twice the likely, estimates, data; the second is
    # null if the step is a lower bound
    interval_us: tuple[float, float]
    contended_us: float
    contention: Mapping[str, Slowdown]
    skew_us: float
    ceiling_us: float
    breakdown: Breakdown
    collectives: tuple[PredictedCollective, ...]


class UnsureInstruction(Document):
    """An instruction whose time depends on the data. Times are sums over its executions."""

    name: str
    executions: int
    why: str
    time_us: float
    interval_us: tuple[float, float]
    # all its executions with extreme data, such as rows that are all equal; null if no such data is
    # known
    extreme_us: float | None


class PredictedLimits(Document):
    """How far the prediction can be trusted."""

    # true if the program has a loop of unknown length, of which one iteration is counted: the step
    # takes at least step_us
    lower_bound: bool
    least_us: float  # shortest time that the GPU's peaks and links allow
    #: effects that could change this answer and that no figure includes
    not_modelled: tuple[str, ...]
    costs_are: str
    estimated_share: float
    unsure: tuple[UnsureInstruction, ...]


class PredictDocument(Document):
    """``pgle.predict/1``."""

    module: str
    target: str  # the GPU that it is predicted for
    target_from: str
    devices: int
    step: PredictedStep = flat()
    limits: PredictedLimits = flat()
    account: AccountDocument
    warnings: tuple[str, ...]


def predict_document(found: Predicted) -> PredictDocument:
    """The step, what it consists of, and its account."""
    prediction = found.prediction
    return PredictDocument.of_value(
        found,
        module=found.module.name,
        devices=found.module.num_devices,
        step=_predicted_step(prediction),
        limits=_predicted_limits(prediction),
        account=account.document(found.account),
    )


def _predicted_step(prediction: Prediction) -> PredictedStep:
    contention = prediction.contention
    exposures = prediction.timeline.exposures
    return PredictedStep.of_value(
        prediction,
        contention={"product": contention.product, "other": contention.other},
        ceiling_us=prediction.shortest_us,
        breakdown=prediction.timeline.breakdown,
        collectives=tuple(map(_predicted_collective, exposures)),
    )


def _predicted_collective(item: Exposure) -> PredictedCollective:
    return PredictedCollective.of_value(
        item,
        name=item.filed_as,
        instruction=item.name,
        time_us=item.duration_us,
        executions=item.count,
    )


def _predicted_limits(prediction: Prediction) -> PredictedLimits:
    return PredictedLimits.of_value(
        prediction,
        least_us=prediction.program.least_us,
        unsure=tuple(map(_unsure, prediction.uncertain)),
    )


def _unsure(item: Uncertain) -> UnsureInstruction:
    least_us = item.range.least_us * item.count
    most_us = item.range.most_us * item.count
    return UnsureInstruction(
        name=item.name,
        executions=item.count,
        why=item.range.why,
        time_us=item.cost_us * item.count,
        interval_us=(least_us, most_us),
        extreme_us=_extreme_us(item),
    )
