"""What a rehearsal found: two schedules, what moved, whether XLA used the profile, and whether it is worth a job."""

from __future__ import annotations

from pathlib import Path

from pgle.errors import some
from pgle.files import write_files
from pgle.next import typed
from pgle.report.page.html import page_files
from pgle.report.page.schedules import Schedule, schedules_page
from pgle.report.text import WIDTH, console, duration, near, show_rest, table, warn
from pgle.report.timeline.scene import text_timeline
from pgle.run.inputs.folder import TRACE
from pgle.run.launch.captured import STEP_REMEDY
from pgle.run.rehearse.rehearse import LHS, Rehearsal, Side
from pgle.run.rehearse.settings import Setting
from pgle.schedule.moves import Move, Placement
from pgle.schedule.predict import gain
from pgle.schedule.worth import MOSTLY, WORTH_SHARE, in_percent, stuck_share
from pgle.tune.search import ROOM

OTHERS = 4  # modules that were not chosen, in the text
SHOWN = 12  # collectives in the text table; `--json` has all


def write_pictures(result: Rehearsal) -> Path:
    """Draw both schedules, one above the other, beside the dumps of the rehearsal; the page's path is returned."""
    folder = folder_of(result)
    said = (default_line(result), _profile_line(result))
    page = schedules_page(
        _schedules(result),
        title=f"pgle rehearse: {result.baseline.module.name}",
        verdict=result.worth,
        lead=[line for line in said if line],
        next_step=advice(result),
        about=about(result),
    )
    write_files(page_files(folder, page))
    return folder / "timeline.html"


def _schedules(result: Rehearsal) -> list[Schedule]:
    before = {move.name: move.before.reason for move in result.moves if move.before is not None}
    after = {move.name: move.after.reason for move in result.moves if move.after is not None}
    found = []
    for label, side in _sides(result):
        reasons = after if side is result.profiled else before if side is result.baseline else None
        found.append(Schedule(label, side.prediction.timeline, result.costs_are, side.module, reasons))
    return found


def _profile_line(result: Rehearsal) -> str:
    """Where the costs come from, and whether XLA took them."""
    costs = "pgle's own estimates, not measurements" if result.costs_are == "estimated" else f"{result.costs_are} costs"
    return f"The profile holds {costs}. Profile {result.verdict.verdict}: {result.verdict.why}"


def about(result: Rehearsal) -> list[tuple[str, str]]:
    """The module, the target and the compiler of the schedules."""
    compiled = result.baseline.compiled
    return [
        ("module", f"{result.setting.module}, fingerprint {compiled.fingerprint}"),
        ("for", f"{compiled.num_devices} × {result.target.name}, no GPU was used"),
        ("compiled by", f"jaxlib {compiled.jaxlib}"),
        ("your flags", " ".join(result.setting.flags) or "none"),
        ("profile", f"{result.profile} ({result.costs_are})"),
        ("figures", f"predicted from {result.costs_are} costs"),
    ]


def _sides(result: Rehearsal) -> list[tuple[str, Side]]:
    """The schedules by what they are called: XLA's own where that is another, LHS, LHS with the profile."""
    default = [] if result.default is None else [("XLA's default, no LHS", result.default)]
    return [*default, ("LHS, no profile", result.baseline), ("LHS with the profile", result.profiled)]


def show_text(result: Rehearsal, picture: Path | None = None) -> None:
    """Tables on stdout, warnings on stderr."""
    screen = console()
    compiled = result.baseline.compiled
    for line in setting_lines(
        compiled.module_name, compiled.num_devices, result.target.name, compiled.jaxlib, result.setting
    ):
        screen.print(line, style="bold", soft_wrap=True)
    columns = ("", "predicted step", "exposed", "overlap", "LHS expects", "temp memory", "compile")
    rows = [*(_side(label, side) for label, side in _sides(result))]
    rows.append(("perfect overlap", duration(ceiling_us(result)), "", "", "", "", ""))
    screen.print(table(columns, rows, right="|".join(columns[1:]), whole="|exposed|overlap|compile"))
    legend = "LHS expects: exposed time as XLA's scheduler saw it; without a profile its own costs are guesses"
    screen.print(f"predicted from {result.costs_are} costs. {legend}", style="dim")
    if missed := result.profiled.prediction.not_modelled:
        screen.print(f"not modelled: {'; '.join(missed)}", style="dim")
    if result.moves:
        screen.print()
        heads = ("collective", "time", "compute beside it", "exposed", "why it stays exposed")
        moves = map(_move, result.moves[:SHOWN])
        screen.print(table(heads, moves, right="time|exposed", whole="collective|time|exposed"))
        show_rest(screen, len(result.moves) - SHOWN)
    copies = [side.prediction.timeline.breakdown for side in (result.baseline, result.profiled)]
    if any(side.copy_us for side in copies):
        exposed = _change(*(duration(side.exposed_copy_us) for side in copies))
        screen.print(f"copies to and from host memory: {duration(copies[0].copy_us)}, exposed {exposed}")
    screen.print()
    panels = [item.panel for item in _schedules(result)]
    screen.print(text_timeline(panels, min(screen.width, WIDTH)), soft_wrap=True)
    screen.print(f"profile {result.verdict.verdict}: {result.verdict.why}")
    if result.verdict.proof:
        screen.print(f"  {result.verdict.proof}", style="dim")
    if result.matches_job is not None:
        same = "the same fingerprint as" if result.matches_job else "ANOTHER fingerprint than"
        screen.print(f"the module recompiles to {same} the job")
    screen.print(f"Is a profile worth a job? {result.worth}", style="bold")
    if (said := default_line(result)) is not None:
        screen.print(said)
    if picture is not None:
        screen.print(f"timelines: {near(picture)}  (or {TRACE} beside it in ui.perfetto.dev)", soft_wrap=True)
    warn(result.warnings)
    screen.print(advice(result), soft_wrap=True)


def default_line(result: Rehearsal) -> str | None:
    """What LHS itself changes, where XLA does not run it by default."""
    if result.default is None:
        return None
    found = gain(result.default.prediction, result.baseline.prediction)
    change = f"{in_percent(found)} shorter" if found.share >= 0 else f"{-found.share:.1%} longer"
    return f"Without flags XLA runs no LHS on this GPU: {LHS} alone makes the step {change}."


def advice(result: Rehearsal) -> str:
    """What to do next, and what it could bring."""
    if result.setting.no_step:
        return f"Next: {STEP_REMEDY}."
    if not result.good:
        return f"Next: {result.verdict.remedy or _unused(result)}."
    prediction = result.profiled.prediction
    room = 1 - prediction.ceiling.step_us / max(prediction.step_us, 1e-9)
    pays = gain(result.baseline.prediction, result.profiled.prediction).share >= WORTH_SHARE
    if pays:
        costs = "" if result.costs_are == "measured" else "the costs measured and "
        proven = f"Next: have {costs}the gain proven:\n  {result.measure}"
        more = f"\nUp to {room:.1%} more could be hidden; look for flags that do:\n  {result.tune}"
        return proven + (more if room >= ROOM else "")
    parts = prediction.timeline.breakdown
    if not parts.communication_us and not parts.copy_us:
        where = typed("pgle", "analyze", near(folder_of(result)))
        return f"Next: the step communicates nothing, so its time is compute and launches; where it goes:\n  {where}"
    placed = [move.after for move in result.moves if move.after is not None]
    is_stuck = stuck_share(prediction, placed) > MOSTLY
    if room < ROOM:
        what = "what is exposed has nothing to hide behind" if is_stuck else "communication is hidden as it is"
        more = ", other sharding or more work for each device might" if is_stuck else ""
        return (
            f"Next: {what}, so no profile and no flag can shorten this step by more than {max(room, 0.0):.1%}{more}; "
            f"where its time goes:\n  {typed('pgle', 'analyze', near(folder_of(result)))}"
        )
    if is_stuck:
        return (
            "Next: no order of these instructions hides most of that. Other flags combine or pipeline collectives, and "
            f"may save up to {room:.1%} of the step:\n  {result.tune}"
        )
    return f"Next: up to {room:.1%} of the step could be hidden; look for flags that do:\n  {result.tune}"


def _unused(result: Rehearsal) -> str:
    """The check of a profile that XLA did not use."""
    hlo = near(result.baseline.compiled.after_optimizations)
    return f"see which names match: {typed('pgle', 'verify', near(result.profile), '--hlo', hlo)}"


def folder_of(result: Rehearsal) -> Path:
    """Where the dumps of all its schedules lie."""
    return result.baseline.compiled.after_optimizations.parent.parent


def setting_lines(module: str, devices: int, target: str, jaxlib: str, setting: Setting) -> list[str]:
    """Which module was compiled, for what, by which jaxlib and with which flags; and which others there were."""
    assumed = f", {devices} devices (assumed; --devices N takes others)" if setting.assumed else ""
    lines = [
        f"{module} for {devices} × {target}{assumed}, jaxlib {jaxlib}, your flags: {' '.join(setting.flags) or 'none'}"
    ]
    if setting.others:
        lines.append(f"not chosen: {some(setting.others, OTHERS)}; --choose NAME takes another")
    return lines


def _side(name: str, side: Side) -> tuple[str, ...]:
    breakdown = side.prediction.timeline.breakdown
    memory = side.compiled.memory.get("temp")
    return (
        name,
        duration(breakdown.step_us),
        duration(breakdown.exposed_communication_us),
        f"{breakdown.overlap:.0%}",
        "–" if side.believed_exposed_us is None else duration(side.believed_exposed_us),
        "–" if memory is None else f"{memory / 2**30:.2f} GiB",
        "cached" if side.compiled.kept else f"{side.compiled.compile_s:.1f} s",
    )


def ceiling_us(result: Rehearsal) -> float:
    """The lowest bound that any of the schedules gives."""
    return min(side.prediction.ceiling.step_us for _, side in _sides(result))


def _move(move: Move) -> tuple[str, ...]:
    known = move.after or move.before
    assert known is not None
    times = f"{known.count} × " if known.count > 1 else ""
    return (
        move.name if known.kind in move.name.replace("_", "-") else f"{move.name} ({known.kind})",
        f"{times}{duration(known.cost_us)}",
        _change(_beside(move.before), _beside(move.after)),
        _change(_exposed(move.before), _exposed(move.after)),
        "" if move.after is None else move.after.reason,
    )


def _change(before: str, after: str) -> str:
    return after if before == after else f"{before} → {after}"


def _beside(placement: Placement | None) -> str:
    if placement is None:
        return "no such name"
    if placement.sync:
        return "none"
    return duration(placement.cover_us)


def _exposed(placement: Placement | None) -> str:
    return "–" if placement is None else duration(round(placement.exposed_us, 1))
