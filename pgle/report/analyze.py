"""A measured step, and what changed since another, as a page and as ``pgle.analyze/1``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime

from pgle.account.value import LEAST_WORTH
from pgle.account.way import ENDS, Move, known_of
from pgle.analyze.analysis import MeasuredStep, Memory
from pgle.analyze.collectives import MeasuredCollective, Overlap
from pgle.analyze.differences import (
    LAUNCHES_DIFFER,
    Differences,
    StepChange,
    StepVerdict,
)
from pgle.analyze.findings import StepFinding
from pgle.analyze.layers import folded, short_source
from pgle.analyze.rules import RULES
from pgle.analyze.window import RowGroup, mean_breakdown
from pgle.errors import cut, many, printable
from pgle.next import Commands, to_way
from pgle.report import account, text
from pgle.report.layers import LEAST, ROWS, SCOPE_WIDTH, layer_parts, short_scope
from pgle.report.page import figures
from pgle.report.page.value import (
    Advice,
    Cell,
    Page,
    Part,
    Prose,
    Section,
    Table,
    Tone,
    Value,
    table,
)
from pgle.report.text import bar
from pgle.report.timeline import (
    OTHER_WORK,
    PARTS,
    most_exposed,
    parts_of,
)
from pgle.run.analyze import Analysis
from pgle.schedule.placements import ExposedGroup

FIRST = 5  # changes on the first screen
NOTE = 40  # characters of a note on the first screen
LATE = 0.005  # of the step; a smaller change of the waits for other ranks is no note
TIMES = "before (time) | after (time) | change (change-time) | of the step (change)"


def verdict_of_change(found: Differences) -> tuple[str, Tone]:
    """``2.3 % longer steps (more than ±0.5 % is no noise)``."""
    share = found.typical_us / found.before.step_us
    if found.noise_us is None:
        return f"Cannot tell whether steps changed: {found.why}", "warn"
    noise = figures.share(found.noise_us / found.before.step_us)
    if found.verdict == StepVerdict.CANNOT_TELL:
        return (
            f"No change beyond noise: {figures.change(share, 2)} (noise ±{noise})",
            "",
        )
    tone: Tone = "bad" if found.verdict == StepVerdict.LONGER else "good"
    return (
        f"Steps are {figures.share(abs(share))} {found.verdict} (noise ±{noise})",
        tone,
    )


def difference_notes(found: Differences) -> Iterator[str]:
    """The test, and ranks that arrive later."""
    if found.noise_us is not None:
        least = figures.share(LAUNCHES_DIFFER, 2)
        yield (
            f"Noise: Welch's 95 % interval of the difference of typical steps, and at least ±{least}, as two launches "
            "of one program differ so much."
        )
    before_us, after_us = found.late_us
    if abs(after_us - before_us) >= LATE * found.before.step_us:
        rank = printable(found.late_rank) or "the last rank, each time another one"
        yield f"Other ranks wait {figures.time(after_us)} for {rank}; before: {figures.time(before_us)}."


def first_changes(found: Differences) -> Table:
    """The largest changes, the sum of the others, and the step: the rows add up to it."""
    whole, first = found.before.step_us, found.changes[:FIRST]
    other_us = found.delta_us - sum(change.delta_us for change in first)
    return table(
        f"change | what | {TIMES}",
        (
            *(_row(change, short=True) for change in first),
            ("", "all other changes", None, None, other_us, other_us / whole),
            (
                Cell("step", "head"),
                "",
                whole,
                found.after.step_us,
                found.delta_us,
                found.share,
            ),
        ),
    )


def _row(change: StepChange, *, short: bool = False) -> tuple[Value, ...]:
    before, after = change.before, change.after
    renamed = (
        f", was {before.name}" if before and after and before.name != after.name else ""
    )
    where = short_source(change.source) or "/".join(change.op_name.split("/")[-2:])
    note = "" if short and before and after and len(change.note) > NOTE else change.note
    about = "; ".join(filter(None, (f"{change.name}{renamed}", where, note)))
    times = (None if part is None else part.us for part in (before, after))
    tone: Tone = "bad" if change.share > 0 else "good" if change.share < 0 else ""
    return (
        Cell(str(change.kind), tone),
        printable(about),
        *times,
        change.delta_us,
        change.share,
    )


def difference_sections(found: Differences) -> tuple[Section, ...]:
    """Every change, and the parts of both steps."""
    whole_us = found.before.step_us
    rows = [_row(change) for change in found.changes]
    rows.append(
        (
            "",
            "smaller changes together",
            None,
            None,
            found.other_us,
            found.other_us / whole_us,
        )
    )
    names = [*(change.name for change in found.changes), ""]
    same = f"{many(found.matched, 'instruction')} in both steps, {found.renamed:,} under another name."
    changes = table(f"change | what | {TIMES}", rows[:ROWS], finds=names[:ROWS])

    def times(one: float, two: float) -> tuple[Value, ...]:
        return one or None, two or None, two - one, (two - one) / whole_us

    sides = (
        [*parts_of(parts), ("step", parts.step_us)]
        for parts in (found.before, found.after)
    )
    parts = [
        (name, *times(one, two)) for (name, one), (_, two) in zip(*sides, strict=True)
    ]
    return (
        Section("changes", "What changed", (changes, Prose(same, tone="soft"))),
        Section(
            "before", "The parts of both steps", (table(f"part | {TIMES}", parts),)
        ),
    )


LEAST_HEAVY = 0.01  # of the step; a lighter layer is not named
# findings, however little they save
ALWAYS_NAMED = ("other-work", "recompilation", "untimed-records")
FOLDED = 10  # groups that the layers are folded into, to name the heaviest
BETWEEN = str(RowGroup.BETWEEN)


def analyze_page(
    found: Analysis, span_of: account.SpanOf = account.nowhere, is_page: bool = False
) -> Page:
    """Where the time of a step goes, and what could be saved; with another step, what changed
    since.

    Args:
        found: the step.
        span_of: where in the timeline an instruction is.
        is_page: there is a timeline, so shares of the step need no bars.
    """
    step, changed = found.step, found.against
    answer, tone = headline(found)
    page = Page(
        title=f"pgle analyze: {printable(step.costs.program.key.name)}",
        identity=identity(step),
        verdict=answer,
        tone=tone,
        table=breakdown_table(step, bars=not is_page),
        notes=(*notes(step), account.note(found.account), _timed(found)),
        actions=actions(found, span_of),
        sections=step_sections(found),
        way=to_way(way_on(found)),
        warnings=found.shown_warnings,
    )
    if changed is None:
        return page
    answer, tone = verdict_of_change(changed)
    times = [figures.time(parts.step_us) for parts in (changed.before, changed.after)]
    return replace(
        page,
        title=f"{page.title}, two steps",
        identity=(
            *page.identity[:2],
            f"{' → '.join(times)} a step",
            *page.identity[3:],
        ),
        verdict=answer,
        tone=tone,
        table=first_changes(changed),
        notes=tuple(difference_notes(changed)),
        actions=(),
        sections=(*difference_sections(changed), *page.sections),
    )


def identity(step: MeasuredStep) -> tuple[str, ...]:
    """Program, GPU, how many of the ranks, steps and their time, date, and whether it was
    measured.
    """
    simulated, host, given = (
        step.trace.simulated,
        step.trace.on_host,
        len(step.windows),
    )
    gpu = (
        "CPU devices"
        if host
        else "GPU unknown"
        if step.hardware is None
        else step.hardware.name.upper()
    )
    devices = max(
        step.costs.ranks, given, 1 if step.module is None else step.module.num_devices
    )
    ranks = (
        f"{given} of {devices} ranks"
        if devices > given and not simulated
        else many(devices, "rank")
    )
    each = step.steps / max(given, 1)
    kind = (
        " (profile run)"
        if step.mode
        else f" ({each:g} {'steps' if step.has_step else 'runs'})"
        if each > 1 and not simulated
        else ""
    )
    begun = [item.utc_ns for item in step.trace.recordings.values() if item.utc_ns]
    date = ""
    if begun:
        date = datetime.fromtimestamp(min(begun) / 1e9, UTC).strftime("%Y-%m-%d")
    name = printable(step.costs.program.key.name)
    time = f"{figures.time(step.step_us)} a step{kind}"
    if not step.has_step:
        name = f"{many(len(step.runs_of_others()) + 1, 'module')}, most time in {name}"
        time = f"{figures.time(step.step_us)} from one run of it to the next{kind}"
    label = "simulated" if simulated else ""
    return name, f"{gpu}, {ranks}", time, date, label


def headline(found: Analysis) -> tuple[str, Tone]:
    """The largest lever in a line, or why none can be told."""
    step = found.step
    if step.measures_alone:
        return "This is a profile run: it runs each collective alone, to measure it", ""
    if not step.has_step:
        modules = many(len(step.runs_of_others()) + 1, "module")
        share = figures.share(step.main_share)
        return (
            f"No module is the step: the largest of {modules} takes {share} of the GPU's compute",
            "warn",
        )
    if any(finding.id == "other-work" for finding in found.findings):
        share = figures.share(step.breakdown.other_us / step.step_us)
        most = next(iter(step.parts.of(RowGroup.OTHER)))
        return (
            f"Cannot tell XLA's share: {share} of the step has no instruction, most: {most}",
            "warn",
        )
    return account.headline(found.account)


def way_on(found: Analysis) -> Commands:
    """The command that leads on, or the end in words."""
    if found.next:
        return found.next
    known = known_of(found.timed, is_searched=found.is_searched, account=found.account)
    command = found.search or found.convert
    return (account.follow(known, dict.fromkeys(set(Move) - ENDS, command)),)


def _timed(found: Analysis) -> str:
    return account.timed_note(found.account, is_base=found.is_base)


def breakdown_table(step: MeasuredStep, *, bars: bool) -> Table:
    """The parts of the step, and the exposed collectives by kind and reason."""
    rows: list[tuple[Value, ...]] = []
    for name, us in parts_of(step.breakdown):
        share = us / step.step_us if step.step_us > 0 else 0.0
        if not us and name != "exposed communication":
            continue
        tone: Tone = "exposed" if name.startswith("exposed") and us else ""
        rows.append(
            (
                Cell(name, tone),
                us or None,
                share or None,
                bar(share).rstrip() if bars else "",
            )
        )
        if name == OTHER_WORK:
            rows += [
                (f"  {kind}", us, us / step.step_us, "")
                for kind, us in step.parts.of(RowGroup.OTHER).items()
                if us >= LEAST * step.step_us
            ]
        groups = exposed_groups(step) if name == "exposed communication" else []
        for group in most_exposed(groups, LEAST * step.step_us):
            label, share = (
                f"  {printable(group_label(group))}",
                group.after_us / step.step_us,
            )
            rows.append((label, group.after_us, share, group.why))
    return table("part of the step | time (time) | share (share) | ", rows)


def notes(step: MeasuredStep) -> tuple[str, ...]:
    """Waits, causes of idle time, the heaviest layers, the use of the GPU; what a profile run
    cannot say.
    """
    found = []
    if step.breakdown.exposed_communication_us > LEAST * step.step_us:
        is_late = step.waiting_us > LEAST * step.step_us
        waits = (
            f"; {figures.time(step.waiting_us)} of it for other ranks"
            if is_late
            else ""
        )
        found.append(f"Exposed: the GPU waits and computes nothing{waits}.")
    causes = list(step.idle_us.items())[
        :-1
    ]  # the last one, compiling, is a part of others
    named = sorted(
        (row for row in causes if row[1] >= 0.001 * step.step_us),
        key=lambda row: -row[1],
    )
    found += (
        [f"Idle: {', '.join(f'{name} {figures.time(us)}' for name, us in named)}."]
        if named
        else []
    )
    if step.layers is not None and step.step_us > 0:
        shares = (
            (name, sum(layer.us for layer in group) / step.step_us)
            for name, group in folded(step.layers.scopes, FOLDED)
        )
        heavy = [
            (name.rpartition("/")[2], share)
            for name, share in shares
            if name and share >= LEAST_HEAVY
        ][:3]
        heaviest = " · ".join(
            f"{cut(name, SCOPE_WIDTH)} {figures.share(share, 0)}"
            for name, share in heavy
        )
        lines = [item for item in step.layers.lines if item.name][:1]
        line = [
            f"line {short_source(item.name)} {figures.share(item.us / step.step_us, 0)}"
            for item in lines
        ]
        words = [f"layers {heaviest}" if heaviest else "", *line]
        found += (
            [f"Heaviest: {printable('; '.join(filter(None, words)))}"]
            if heavy or line
            else []
        )
        if step.layers.mfu is not None:
            found.append(
                f"Model FLOPs utilisation (MFU): {figures.share(step.layers.mfu)}"
            )
    if (
        len(step.windows) < step.costs.ranks and not step.trace.simulated
    ):  # one simulated rank represents all
        given = f"{len(step.windows)} of {step.costs.ranks} ranks"
        found.append(f"{given} are given: waiting for the others counts as transfer.")
    if step.measures_alone:
        share = figures.share(
            sum(item.transfer_exposed_us for item in step.collectives if item.sync)
            / step.step_us
        )
        found.append(
            f"Collectives take {share} of this step. Only a plain run shows what stays exposed."
        )
    return tuple(found)


def actions(
    found: Analysis, span_of: account.SpanOf = account.nowhere
) -> tuple[Advice, ...]:
    """How to record what cannot be told, then what saves most."""
    untold = (
        _to_tell(finding)
        for finding in found.findings
        if finding.id in ALWAYS_NAMED and finding.share < LEAST_WORTH
    )
    return (*untold, *account.actions(found.account, span_of))


def _to_tell(finding: StepFinding) -> Advice:
    """What to do about a finding that saves nothing here, but tells that the steps are not all."""
    why = finding.remedy if finding.id == "other-work" else printable(finding.number)
    return Advice(finding.todo, None, why)


def document(found: Analysis) -> dict[str, object]:
    """``pgle.analyze/1`` without its name; the integers of a rank add up to its window exactly."""
    step, overlap, memory = found.step, found.step.overlap, found.step.memory
    ranks = [(step.trace.devices[window.device], window) for window in step.windows]
    late = (
        (step.trace.devices[device], us, count)
        for device, us, count in step.late.devices
    )
    return {
        **text.picked(
            step,
            "module=costs.program.key.name step_us steps hardware=hardware.name breakdown",
        ),
        "idle_us": {name.replace(" ", "_"): us for name, us in step.idle_us.items()},
        "other_work": [
            {"kind": kind, "us": us}
            for kind, us in step.parts.of(RowGroup.OTHER).items()
        ],
        **text.picked(step, "waiting_us main_share skew_us=costs.skew_us"),
        "late": {
            **text.picked(step.late, "us steps"),
            "ranks": [
                dict(zip(("device", "us", "last_in_steps"), rank, strict=True))
                for rank in late
            ],
        },
        "step_times": [text.whole(item, "step_us") for item in step.parts.steps],
        "collectives": [
            {
                **text.picked(item, _COLLECTIVE),
                "source": item.instruction.source if item.instruction else "",
                "why_exposed": item.why,
            }
            for item in step.collectives
        ],
        "findings": [
            text.picked(finding, "id title share number evidence remedy unclaimed")
            | text.picked(RULES[finding.id], "rule source")
            for finding in found.findings
        ],
        "ranks": [
            {"device": device, "steps": window.steps, **window.parts_ns}
            for device, window in ranks
        ],
        "layers": None
        if step.layers is None
        else {**text.plain(step.layers), "products": step.products},
        "products": step.products,
        "memory": memory
        and {
            **text.picked(
                memory.plan,
                "peak_bytes arguments_bytes outputs_bytes constants_bytes temporary_bytes",
            ),
            **text.picked(memory, "at=plan.peak_at live device_bytes limit_bytes"),
        },
        "overlap": overlap
        and {
            **text.picked(
                overlap, "hideable_us stuck_us predicted_step_us=predicted.step_us"
            ),
            "collectives": [
                text.picked(item, "name exposed_us=transfer_exposed_us hideable_us why")
                for item in step.exposed_collectives
            ],
            "profile": overlap.profile
            and {
                **text.plain(overlap.profile),
                "rows": [text.whole(row, "error_us") for row in overlap.profile.rows],
            },
        },
        "account": account.document(found.account),
        "against": found.against and text.whole(found.against, "delta_us share"),
        "next": "\n".join(map(str, way_on(found))),
        "warnings": found.warnings,
    }


_COLLECTIVE = "name kind sync count time_us exposed_us wait_us link trace_name op_name transfer_exposed_us bus_gb_s"


def step_sections(found: Analysis) -> tuple[Section, ...]:
    """Facts about a step."""
    step = found.step
    parts: dict[tuple[str, str], Iterable[Part]] = {
        ("opportunities", "What would shorten the step"): account.section(
            found.account
        ).parts,
        ("findings", "Findings"): tuple(_findings(found.findings))
        or (Prose("No finding."),),
        ("parts", "Where the time of a step goes"): _parts(step),
        ("steps", "Step times"): _steps(step),
        ("layers", "Layers and source lines"): layer_parts(step.layers, step)
        if step.layers is not None
        else (),
        ("instructions", "Instructions, their executions added up"): (
            _instructions(step),
        )
        if step.compute
        else (),
        ("collectives", "Collectives"): _collectives(step) if step.collectives else (),
        ("schedule", "What the scheduler could hide"): _overlap(step.overlap, step)
        if step.overlap is not None
        else (),
        ("memory", "Memory"): _memory(step.memory) if step.memory is not None else (),
        ("recording", "Remarks on the recording"): (
            Prose(printable(line)) for line in step.costs.warnings
        ),
    }
    made = (Section(*names, tuple(of)) for names, of in parts.items())
    return tuple(section for section in made if section.parts)


def _findings(found: Sequence[StepFinding]) -> Iterator[Part]:
    for place, finding in enumerate(found, start=1):
        share = f", {figures.share(finding.share)}" if finding.share else ""
        yield Prose(f"{place}. {finding.title}{share}", tone="head")
        yield Prose(
            f"{_sentence(finding.number)} {_sentence(finding.unclaimed)}".strip()
        )
        notes = (
            (row.note, short_scope(row.op_name.partition("[")[0]))
            for row in finding.evidence
        )
        rows = (
            (
                printable(short_scope(row.name)),
                row.us or None,
                printable("; ".join(filter(None, note))),
            )
            for row, note in zip(finding.evidence, notes, strict=True)
        )
        yield table(
            "in a step | time (time) | why",
            rows,
            finds=[row.name for row in finding.evidence],
        )
        yield Prose(f"→ {_sentence(finding.remedy)}")


def _sentence(words: str) -> str:
    return account.sentence(words) if words else ""


def _parts(step: MeasuredStep) -> Iterator[Part]:
    """The parts of the mean step, and of each rank's; idle time by cause."""
    rows = [("mean", step.breakdown)]
    rows += [
        (step.rank_name(one.device), mean_breakdown([one]))
        for one in step.windows
        if len(step.windows) > 1
    ]
    names = [*PARTS.values()]
    if step.breakdown.other_us:
        names.insert(-1, OTHER_WORK)
    heads = ["rank", "step (time)", *(f"{name} (time)" for name in names)]
    cells = []
    for label, of in rows:
        times = dict(parts_of(of))
        cells.append((label, of.step_us, *(times.get(name) or None for name in names)))
    yield table(heads, cells)
    causes = [
        (name, us, us / step.step_us)
        for name, us in step.idle_us.items()
        if us >= LEAST * step.step_us
    ]
    if causes:
        yield table("idle | time (time) | of the step (share)", causes)
    kinds = "launch gaps: up to 20 µs; waits for the host: up to 1 ms; long waits: longer. All are inside steps."
    yield Prose(kinds, tone="soft")


def _steps(step: MeasuredStep) -> Iterator[Part]:
    """Every step of the window, and what was left out."""
    rows = (
        (
            str(item.execution),
            item.span_us,
            item.pause_us,
            item.step_us,
            Cell("slow", "warn") if item.is_slow else "",
        )
        for item in step.parts.steps
    )
    yield table(
        "execution | runs (time) | pause after it (time) | step (time) | ",
        rows,
        most=ROWS,
    )
    if step.parts.steps and step.parts.steps[-1].pause_us is None:
        yield Prose(
            "The last step is without the pause after it, which the trace does not show.",
            tone="soft",
        )
    for number, why in list(step.costs.window.dropped.items())[:ROWS]:
        yield Prose(f"Execution {number} is left out: {why}.", tone="soft")


def _instructions(step: MeasuredStep) -> Table:
    """Each instruction with all its executions in a step, the costliest first."""
    heads = "instruction | times (rate) | each (time) | in a step (time) | of the step (share) | opcode | shape"
    rows = (
        (
            printable(item.cost.name),
            item.count,
            item.cost.cost_us,
            item.us,
            item.us / step.step_us,
            item.cost.opcode,
            cut(item.cost.shape, 40),
        )
        for item in step.compute
    )
    return table(heads, rows, finds=True, most=ROWS)


def exposed_groups(step: MeasuredStep) -> list[ExposedGroup]:
    """The exposed collectives by kind and reason, the most exposed group first."""
    found: dict[tuple[str, str], list[MeasuredCollective]] = {}
    for item in sorted(step.collectives, key=lambda item: -item.exposed_us):
        if item.exposed_us > 0:
            kind = item.kind + ", synchronous" * item.sync
            found.setdefault((kind, item.why), []).append(item)
    groups = []
    for (kind, why), items in found.items():
        count, exposed_us = (
            sum(item.count for item in items),
            sum(item.exposed_us for item in items),
        )
        groups.append(
            ExposedGroup(
                kind,
                why,
                items[0].name,
                count=round(max(count, 1)),
                after_us=exposed_us,
            )
        )
    return sorted(groups, key=lambda group: -group.after_us)


def group_label(group: ExposedGroup) -> str:
    """``all-gather ×72, synchronous``."""
    kind, comma, sync = group.kind.partition(",")
    return f"{kind} ×{group.count:,}{comma}{sync}"


def _collectives(step: MeasuredStep) -> Iterator[Part]:
    """By kind and reason, then each."""
    groups = [
        (group_label(one), one.after_us, one.after_us / step.step_us, one.why)
        for one in exposed_groups(step)
    ]
    if groups:
        yield table("exposed | time (time) | of the step (share) | why", groups)
    heads = "collective | times (rate) | each (time) | exposed (time) | waits (time) | expected (time)"
    rows = map(_collective, step.collectives[:ROWS])
    yield table(f"{heads} | bus GB/s (rate) | of (rate) | ", rows, finds=True)
    yield Prose(
        "exposed: the GPU waits for it and nothing computes. waits: exposed time before the last rank arrived. The "
        "other times start when the last rank arrived. bus GB/s as nccl-tests count them, of the link's peak.",
        tone="soft",
    )


def _collective(item: MeasuredCollective) -> tuple[Value, ...]:
    link = item.link
    return (
        printable(item.name),
        item.count,
        item.time_us,
        item.transfer_exposed_us or None,
        item.wait_us or None,
        None if link is None else link.estimate_us,
        item.bus_gb_s,
        None if link is None else link.peak_gb_s,
        "synchronous" if item.sync else "",
    )


def _overlap(overlap: Overlap, step: MeasuredStep) -> Iterator[Part]:
    """Exposed collectives with what hides them, and the scheduler's profile against what ran."""
    lost, hideable = (
        overlap.hideable_us + overlap.stuck_us,
        figures.share(overlap.hideable_us / step.step_us),
    )
    if lost >= 0.001 * step.step_us:
        could = f"A better schedule could hide {figures.time(overlap.hideable_us)} ({hideable} of the step)."
        yield Prose(f"{figures.time(lost)} of communication is exposed. {could}")
        if overlap.stuck_us > 0.01 * step.step_us:
            rest = figures.time(overlap.stuck_us)
            yield Prose(
                f"No schedule hides the other {rest}: 'pgle tune' tries combined and pipelined collectives."
            )
    rows = [
        (item.name, item.transfer_exposed_us, item.hideable_us or None, item.why)
        for item in step.exposed_collectives[:ROWS]
        if item.transfer_exposed_us >= LEAST * step.step_us
    ]
    if rows:
        yield table(
            "collective | exposed (time) | could hide (time) | why", rows, finds=True
        )
    if (use := overlap.profile) is not None:
        yield Prose(
            f"The scheduler's profile had costs for {figures.share(use.covered)} of the measured time, off by "
            f"{figures.share(use.off)}."
        )


def _memory(memory: Memory) -> Iterator[Part]:
    """The peak, its share of what a program can have, and what lives there."""
    plan, limit = memory.plan, ""
    if memory.limit_bytes is not None and memory.device_bytes is not None:
        default = (
            " that JAX takes by default"
            if memory.limit_bytes < memory.device_bytes
            else ""
        )
        limit = f", {figures.share(memory.used_share)} of the {figures.size(memory.limit_bytes)}{default}"
    where = f" at {plan.peak_at}" if plan.peak_at else ""
    yield Prose(
        f"Peak memory {figures.size(plan.peak_bytes)}{where}, by XLA's plan{limit}."
    )
    yield table(
        "at the peak | size (size) | ",
        (
            ("arguments", plan.arguments_bytes, ""),
            ("results", plan.outputs_bytes, ""),
            ("temporary", plan.temporary_bytes, ""),
            *(
                (
                    printable(item.name),
                    item.size_bytes,
                    f"{cut(item.shape, 40)} {short_source(item.source)}",
                )
                for item in memory.live
            ),
        ),
    )
