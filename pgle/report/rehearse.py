"""What a rehearsal found, as a page and as ``pgle.rehearse/1``: the schedules, what hides more, and what to do."""

from __future__ import annotations

from pathlib import Path

from pgle.errors import some
from pgle.next import quoted, typed
from pgle.report import text
from pgle.report.page import figures
from pgle.report.page.value import Advice, Page, Prose, Section, Table, Tone, table
from pgle.report.predict import (
    LHS_WORDS,
    Schedule,
    exposed_notes,
    sections,
    span_us,
    steps_table,
)
from pgle.report.step import tiles
from pgle.report.text import near
from pgle.run.capture.captured import STEP_REMEDY
from pgle.run.rehearse import CompiledSide, Rehearsal
from pgle.run.rehearse_program import LHS_ON, RehearseRequest
from pgle.schedule.predict import LEAST_GAIN, MOSTLY, Gain, gain, groups, stuck_share
from pgle.tune.search import NEAR_CEILING

OTHERS = 4  # modules that were not chosen, in the text
LABELS = ("LHS, no profile", "LHS with the profile")


def rehearse_page(result: Rehearsal, picture: Path | None = None) -> Page:
    """The largest fact first; the schedules in one table; exposed collectives in groups; what to do.

    Args:
        result: the rehearsal.
        picture: where the page is; None: this makes the page itself.
    """
    schedules = _schedules(result)
    words, tone = verdict(result)
    (why, command), todo = advice(result), _actions(result)
    grouped = groups(result.moves)
    notes = (
        f"{LHS_WORDS}.",
        *setting_notes(result.request),
        *exposed_notes(grouped, result.profiled.prediction.step_us, ", without and with the profile"),
        f"no step: {result.request.no_step}" if result.request.no_step else "",
        "" if todo else why,
        f"Page: {near(picture)}" if picture is not None else "",
    )
    compiled, assumed = result.baseline.compiled, " (assumed: --devices N)" if result.request.assumed else ""
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
            Section("profile", "Did XLA use the profile?", _use(result)),
        ),
        next=(command,),
        warnings=result.warnings,
        tiles=tiles([(item.label, item.parts) for item in (schedules[0], schedules[-1])], "predicted"),
        about=(
            ("module", f"{result.request.module}, fingerprint {compiled.fingerprint}"),
            ("your flags", " ".join(result.request.flags) or "none"),
            ("profile", f"{result.profile} ({result.costs_are})"),
            ("figures", f"predicted from {result.costs_are} costs; no GPU was used"),
        ),
    )


def verdict(result: Rehearsal) -> tuple[str, Tone]:
    """The largest fact in one line with one number, and its tone."""
    prediction = result.profiled.prediction
    if result.request.no_step:
        return "Cannot tell: no training step was found", "bad"
    if not result.good:
        used = str(result.verdict.verdict).replace("-", " ")
        return f"Cannot tell: XLA's use of the profile is '{used}'", "bad"
    if prediction.lower_bound or result.baseline.prediction.lower_bound:
        return "Cannot tell: a loop has an unknown length", "warn"
    found, lhs = gain(result.baseline.prediction, prediction), _lhs_gain(result)
    room = _ceiling_saves(result)
    if lhs is not None and lhs.share >= max(LEAST_GAIN, found.share):
        return f"The latency-hiding scheduler (LHS) shortens the step by {figures.share(lhs.share)}", "good"
    if pays(result):
        return f"The profile shortens the step by {figures.share(found.share)} (predicted)", "good"
    if found.share >= LEAST_GAIN:
        return f"Cannot tell: the predicted {figures.share(found.share)} is within the model's noise", "warn"
    if found.share <= -LEAST_GAIN:
        return f"Use no profile here: the step gets {figures.share(-found.share)} longer", "warn"
    if _is_stuck(result):
        exposed = prediction.exposed_us / max(prediction.step_us, 1e-9)
        return f"{figures.share(exposed)} of the step is exposed, and no order hides it", "warn"
    if room < NEAR_CEILING:
        return f"Nothing to gain: at most {figures.share(max(room, 0.0))} of the step could be hidden", ""
    profile = "A profile would change" if result.costs_are == "estimated" else "The profile changes"
    return f"{profile} nothing; another order saves at most {figures.share(_hideable(result))}", "warn"


def pays(result: Rehearsal) -> bool:
    """Whether the profile is predicted to shorten the step: by enough, and by overlap rather than noise."""
    found = gain(result.baseline.prediction, result.profiled.prediction)
    return found.share >= LEAST_GAIN and found.low >= 0 and found.idle_share <= found.share / 2


def advice(result: Rehearsal) -> tuple[str, str]:
    """Why, and the command to type next."""
    if result.request.no_step:
        return f"{STEP_REMEDY[:1].upper()}{STEP_REMEDY[1:]}.", _analyze_command(result)
    if not result.good:
        hlo = near(result.baseline.compiled.after_optimizations)
        remedy = result.verdict.remedy or "See which names match."
        return remedy, typed("pgle", "verify", near(result.profile), "--hlo", hlo)
    prediction, room = result.profiled.prediction, _ceiling_saves(result)
    if pays(result):
        return "Measure the costs and prove the gain.", result.measure
    parts = prediction.timeline.breakdown
    if not parts.communication_us and not parts.copy_us:
        return "The step communicates nothing: its time is compute and launch gaps.", _analyze_command(result)
    is_stuck = _is_stuck(result)
    if room < NEAR_CEILING:
        what = "Exposed communication has nothing to hide behind" if is_stuck else "The communication is hidden already"
        more = " Other sharding or more work per device might help." if is_stuck else ""
        return (
            f"{what}: no profile and no flag saves more than {figures.share(max(room, 0.0))}.{more}",
            _analyze_command(result),
        )
    if not result.tune:
        return "The search for flags in this run directory found nothing better.", _analyze_command(result)
    if is_stuck:
        return "No order of these instructions hides it; other flags combine or pipeline collectives.", result.tune
    most = figures.share(_hideable(result))
    return f"Another order saves at most {most}; other flags also combine or pipeline collectives.", result.tune


def _analyze_command(result: Rehearsal) -> str:
    """The command that shows where the time goes."""
    return typed("pgle", "analyze", near(folder_of(result)))


def _is_stuck(result: Rehearsal) -> bool:
    """Whether most of the exposed time has nothing to hide behind."""
    placed = [move.after for move in result.moves if move.after is not None]
    return stuck_share(result.profiled.prediction, placed) > MOSTLY


def _actions(result: Rehearsal) -> tuple[Advice, ...]:
    """What shortens the step, what saves most first."""
    if not result.good:
        return ()
    schedules, found = _schedules(result), []
    lhs = _lhs_gain(result)
    if lhs is not None and lhs.share >= LEAST_GAIN:
        command = f'export XLA_FLAGS="$XLA_FLAGS {LHS_ON}"'
        why = f"off by default here; {_range(lhs)}"
        found.append(Advice(f"Set {LHS_ON}", lhs.high, why, command, span_us=span_us(schedules[0])))
    if pays(result):
        gained = gain(result.baseline.prediction, result.profiled.prediction)
        moved = sum(move.moved for move in result.moves)
        why = f"{moved} of {len(result.moves)} collectives move; {_range(gained)}"
        title = "Measure a profile and use it" if result.costs_are != "measured" else "Use the profile"
        found.append(Advice(title, gained.high, why, result.measure, span_us=span_us(schedules[-2])))
    if _ceiling_saves(result) >= NEAR_CEILING and result.tune:
        most = figures.share(_hideable(result))
        why = f"another order saves at most {most}; flags that combine or pipeline collectives may save more"
        found.append(Advice("Look for other flags", None, why, result.tune, span_us=span_us(schedules[-1])))
    return tuple(sorted(found, key=lambda action: -(action.saves or 0.0)))


def _range(found: Gain) -> str:
    """``8.5 %``, with its range if contention or data decide."""
    if found.high - found.low < 5e-4:
        return figures.share(found.share)
    return f"{figures.share(found.share)} ({figures.between(figures.share(found.low), figures.share(found.high))})"


def _lhs_gain(result: Rehearsal) -> Gain | None:
    """What LHS alone changes; None: XLA runs it without being asked."""
    return None if result.default is None else gain(result.default.prediction, result.baseline.prediction)


def _ceiling_saves(result: Rehearsal) -> float:
    """The share of the profiled step that perfect overlap would save."""
    prediction = result.profiled.prediction
    return 1 - prediction.ceiling_us / max(prediction.step_us, 1e-9)


def _hideable(result: Rehearsal) -> float:
    """The share of the profiled step that another order of its instructions saves at most."""
    hideable_us = sum(move.after.hideable_us for move in result.moves if move.after is not None)
    return min(_ceiling_saves(result), hideable_us / max(result.profiled.prediction.step_us, 1e-9))


def setting_notes(asked: RehearseRequest) -> list[str]:
    """The user's flags, and the modules that were not chosen."""
    flags = [f"your flags: {some(map(quoted, asked.flags), 1)}"] if asked.flags else []
    others = f"other modules: {some(asked.others, OTHERS)} (--choose NAME takes one)"
    return [*flags, *([others] if asked.others else [])]


def _use(result: Rehearsal) -> tuple[Prose | Table, ...]:
    """Whether XLA took the profile, with its line, and what LHS expected."""
    rows = (
        (label, "" if side.believed_exposed_us is None else side.believed_exposed_us,
         "cached" if side.compiled.kept else side.compiled.compile_s * 1e6)
        for label, side in _sides(result)
    )  # fmt: skip
    return (
        Prose(f"{str(result.verdict.verdict).capitalize()}: {result.verdict.why}."),
        Prose(result.verdict.proof, code=True),
        table("schedule | LHS expects exposed (time) | compile time (time)", rows),
        Prose(f"{LHS_WORDS}. Without a profile its costs are guesses.", tone="soft"),
        *(Prose(f"Not modelled: {line}.", tone="soft") for line in result.profiled.prediction.not_modelled),
    )


def _sides(result: Rehearsal) -> list[tuple[str, CompiledSide]]:
    """The schedules by name: XLA's own if that is another, LHS, LHS with the profile."""
    default = [] if result.default is None else [("XLA's default, no LHS", result.default)]
    return [*default, *zip(LABELS, (result.baseline, result.profiled), strict=True)]


def _schedules(result: Rehearsal) -> list[Schedule]:
    before = {move.name: move.before.reason for move in result.moves if move.before is not None}
    after = {move.name: move.after.reason for move in result.moves if move.after is not None}
    reasons = {id(result.baseline): before, id(result.profiled): after}
    return [
        Schedule(
            label, side.prediction.timeline, result.costs_are, side.module, reasons.get(id(side)),
            side.compiled.memory_bytes,
        )
        for label, side in _sides(result)
    ]  # fmt: skip


def folder_of(result: Rehearsal) -> Path:
    """Where the dumps of all its schedules are."""
    return result.baseline.compiled.after_optimizations.parent.parent


def ceiling_us(result: Rehearsal) -> float:
    """The lowest bound that any of the schedules gives."""
    return min(side.prediction.ceiling_us for _, side in _sides(result))


def document(result: Rehearsal) -> dict[str, object]:
    """``pgle.rehearse/1`` without its name."""
    moves: dict[bool, list[object]] = {True: [], False: []}
    for move in result.moves:
        sides = {"before": move.before, "after": move.after}
        moves[move.moved].append(
            {"name": move.name, **{key: of and text.picked(of, _MOVE) for key, of in sides.items()}}
        )
    return {
        "module": str(result.request.module),
        **text.picked(result.request, "others flags"),
        **text.picked(result.baseline.compiled, "devices=num_devices jaxlib"),
        **text.picked(result, "target=request.target.name used"),
        "modules": [text.picked(
            result, "name=baseline.module.name verdict.verdict verdict.why verdict.proof verdict.remedy"
        )],
        **{key: side and text.picked(side, _SIDE) for key, side in (
            ("default", result.default), ("baseline", result.baseline), ("profiled", result.profiled))},
        "ceiling_us": ceiling_us(result),
        "groups": groups(result.moves),
        "moved": moves[True],
        "stayed": moves[False],
        "costs_are": result.costs_are,
        "profile": str(result.profile),
        "gain": gain(result.baseline.prediction, result.profiled.prediction),
        "verdict": verdict(result)[0],
        "next": "\n  ".join(advice(result)),
        "warnings": result.warnings,
    }  # fmt: skip


_MOVE = "kind sync between cover_us cost_us exposed_us independent_us reason executions=count"
_SIDE = (
    "prediction.step_us prediction.interval_us prediction.lower_bound prediction.contended_us prediction.not_modelled "
    "exposed_us=prediction.timeline.breakdown.exposed_communication_us prediction.timeline.breakdown.exposed_copy_us "
    "prediction.timeline.breakdown.overlap compiled.believed compiled.fingerprint "
    "compiled.compile_s compiled.kept compiled.schedule compiled.log memory_bytes=compiled.memory "
    "hlo=compiled.after_optimizations"
)
"""Fields of a collective in one schedule, and of a schedule, in ``pgle.rehearse/1``."""
