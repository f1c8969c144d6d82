"""The sections of a measured step: its parts, findings, instructions, collectives, memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from pgle.account.value import Account
from pgle.analyze.analysis import MeasuredStep
from pgle.analyze.collectives import MeasuredCollective, Overlap
from pgle.analyze.findings import EvidenceRow, StepFinding
from pgle.analyze.layers import MeasuredInstruction, short_source
from pgle.analyze.memory import LiveValue, Memory
from pgle.analyze.window import StepTime, mean_breakdown
from pgle.errors import cut, printable
from pgle.report import account
from pgle.report.layers import LEAST, ROWS, layer_parts, short_scope
from pgle.report.page import figures
from pgle.report.page.figures import Unit
from pgle.report.page.value import (
    Cell,
    Column,
    Part,
    Prose,
    Section,
    Table,
    Value,
    table,
)
from pgle.report.timeline import group_label, part_names, parts_of
from pgle.schedule.placements import ExposedGroup

_MOST_SHAPE = 40  # characters of a shape
OF_STEP = (Column("time", Unit.TIME), Column("of the step", Unit.SHARE))
"""The heads of a time and its share of the step."""


def step_sections(
    step: MeasuredStep, found: Account, findings: Sequence[StepFinding]
) -> tuple[Section, ...]:
    """Return the sections about a step.

    Args:
        step: the measured step.
        found: its account.
        findings: findings on the step.
    """
    remarks = map(printable, step.costs.warnings)
    return (
        account.section(found),
        _section("findings", "Findings", _findings(findings)),
        *_time_sections(step),
        *_hlo_sections(step),
        _section("memory", "Memory", _memory(step.memory)),
        _section("recording", "Remarks on the recording", map(Prose, remarks)),
    )


def _section(key: str, heading: str, parts: Iterable[Part]) -> Section:
    return Section(key, heading, tuple(parts))


def _time_sections(step: MeasuredStep) -> Iterator[Section]:
    """Where the time goes in the mean step, and every step."""
    yield _section("parts", "Where the time of a step goes", _parts(step))
    yield _section("steps", "Step times", _steps(step))


def _hlo_sections(step: MeasuredStep) -> Iterator[Section]:
    """Yield the sections that need HLO: layers, instructions, collectives, memory."""
    yield _section("layers", "Layers and source lines", _layers(step))
    heading = "Instructions, their executions added up"
    yield _section("instructions", heading, [_instructions(step)])
    yield _section("collectives", "Collectives", _collectives(step))
    yield _section("schedule", "What the scheduler could hide", _overlap(step))


def _findings(found: Sequence[StepFinding]) -> Iterator[Part]:
    """Each finding with its number, its evidence in the step, and what to do."""
    if not found:
        yield Prose("No finding.")
    for place, finding in enumerate(found, start=1):
        share = f", {figures.share(finding.share)}" if finding.share else ""
        yield Prose(f"{place}. {finding.title}{share}", tone="head")
        words = f"{_sentence(finding.number)} {_sentence(finding.unclaimed)}"
        yield Prose(words.strip())
        names = [row.name for row in finding.evidence]
        rows = map(_evidence_row, finding.evidence)
        yield table(("in a step", Column("time", Unit.TIME), "why"), rows, finds=names)
        yield Prose(f"→ {_sentence(finding.remedy)}")


def _evidence_row(row: EvidenceRow) -> tuple[Value, ...]:
    """A row for an instruction that shows the finding."""
    scope = short_scope(row.op_name.partition("[")[0])
    why = "; ".join(filter(None, (row.note, scope)))
    return printable(short_scope(row.name)), row.us or None, printable(why)


def _sentence(words: str) -> str:
    """Words as a sentence; empty if there are none."""
    return account.sentence(words) if words else ""


def _parts(step: MeasuredStep) -> Iterator[Part]:
    """The parts of the mean step and of each rank's step; idle time by cause."""
    yield _rank_parts(step)
    causes: list[tuple[Value, ...]] = []
    for name, us in step.idle_us.items():
        if us >= LEAST * step.step_us:
            causes.append((name, us, us / step.step_us))
    yield table(("idle", *OF_STEP), causes)
    kinds = (
        "launch gaps: up to 20 µs; waits for the host: up to 1 ms; long waits: longer"
    )
    yield Prose(f"{kinds}. All are inside steps.", tone="soft")


def _rank_parts(step: MeasuredStep) -> Table:
    """A row for the mean step, and one for each rank if there are several."""
    steps = [("mean", step.breakdown)]
    if len(step.windows) > 1:
        for window in step.windows:
            name = step.rank_name(window.device)
            steps.append((name, mean_breakdown([window])))
    names = part_names(step.breakdown)
    rows: list[tuple[Value, ...]] = []
    for label, parts in steps:
        times = dict(parts_of(parts))
        cells = (times.get(name) or None for name in names)
        rows.append((label, parts.step_us, *cells))
    heads = [Column(name, Unit.TIME) for name in ("step", *names)]
    return table(("rank", *heads), rows)


def _steps(step: MeasuredStep) -> Iterator[Part]:
    """Every step of the window, and the steps that were left out."""
    heads = (
        "execution",
        Column("runs", Unit.TIME),
        Column("pause after it", Unit.TIME),
        Column("step", Unit.TIME),
        "",
    )
    steps = step.parts.steps
    yield table(heads, map(_span_row, steps), most=ROWS)
    if steps and steps[-1].pause_us is None:
        last = "The last step is without the pause after it, which the trace does not show."
        yield Prose(last, tone="soft")
    dropped = step.costs.window.dropped.items()
    for number, why in islice(dropped, ROWS):
        yield Prose(f"Execution {number} is left out: {why}.", tone="soft")


def _span_row(item: StepTime) -> tuple[Value, ...]:
    """A row for a step: how long it runs, and the pause after it."""
    slow = Cell("slow", "warn") if item.is_slow else ""
    return str(item.execution), item.span_us, item.pause_us, item.step_us, slow


def _layers(step: MeasuredStep) -> Iterator[Part]:
    if step.layers is not None:
        yield from layer_parts(step.layers, step)


def _instructions(step: MeasuredStep) -> Table:
    """Each instruction with the sum of its executions in a step, the costliest first."""
    times = (
        Column("times", Unit.RATE),
        Column("each", Unit.TIME),
        Column("in a step", Unit.TIME),
        Column("of the step", Unit.SHARE),
    )
    heads = ("instruction", *times, "opcode", "shape")
    rows = (_instruction_row(item, step.step_us) for item in step.compute)
    return table(heads, rows, finds=True, most=ROWS)


def _instruction_row(item: MeasuredInstruction, step_us: float) -> tuple[Value, ...]:
    """A row for an instruction: its executions in a step, one of them, and all."""
    cost = item.cost
    share = item.us / step_us
    shape = cut(cost.shape, _MOST_SHAPE)
    name = printable(cost.name)
    return name, item.count, cost.cost_us, item.us, share, cost.opcode, shape


def exposed_groups(step: MeasuredStep) -> list[ExposedGroup]:
    """The exposed collectives by kind and reason, the most exposed group first."""
    exposed = [item for item in step.collectives if item.exposed_us > 0]
    exposed.sort(key=lambda item: -item.exposed_us)
    found: dict[tuple[str, str], list[MeasuredCollective]] = {}
    for item in exposed:
        kind = f"{item.kind}, synchronous" if item.sync else item.kind
        found.setdefault((kind, item.why), []).append(item)
    groups = [_group(kind, why, items) for (kind, why), items in found.items()]
    return sorted(groups, key=lambda group: -group.after_us)


def _group(kind: str, why: str, items: Sequence[MeasuredCollective]) -> ExposedGroup:
    """Make a group of collectives, named after the first."""
    executions = sum(item.count for item in items)
    count = round(max(executions, 1))
    exposed_us = sum(item.exposed_us for item in items)
    return ExposedGroup(kind, why, items[0].name, count=count, after_us=exposed_us)


def _collectives(step: MeasuredStep) -> Iterator[Part]:
    """Yield exposed collectives by kind and reason, then every collective."""
    if not step.collectives:
        return
    groups: list[tuple[Value, ...]] = []
    for group in exposed_groups(step):
        share = group.after_us / step.step_us
        groups.append((group_label(group), group.after_us, share, group.why))
    yield table(("exposed", *OF_STEP, "why"), groups)
    times = (
        Column("each", Unit.TIME),
        Column("exposed", Unit.TIME),
        Column("waits", Unit.TIME),
        Column("expected", Unit.TIME),
    )
    bus = (Column("bus GB/s", Unit.RATE), Column("of", Unit.RATE))
    heads = ("collective", Column("times", Unit.RATE), *times, *bus, "")
    rows = map(_collective_row, step.collectives[:ROWS])
    yield table(heads, rows, finds=True)
    yield Prose(
        "exposed: the GPU waits for it and nothing computes. waits: exposed time before the last "
        "rank arrived. The other times start when the last rank arrived. bus GB/s as nccl-tests "
        "count them, of the link's peak.",
        tone="soft",
    )


def _collective_row(item: MeasuredCollective) -> tuple[Value, ...]:
    """A row for a collective: its times, and its bandwidth against the link's peak."""
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


def _overlap(step: MeasuredStep) -> Iterator[Part]:
    """The exposed collectives with the compute that could hide them, and the profile's costs
    against the measured ones.
    """
    overlap = step.overlap
    if overlap is None:
        return
    yield from _hideable(overlap, step.step_us)
    rows: list[tuple[Value, ...]] = []
    for item in step.exposed_collectives[:ROWS]:
        exposed_us = item.transfer_exposed_us
        if exposed_us >= LEAST * step.step_us:
            rows.append((item.name, exposed_us, item.hideable_us or None, item.why))
    heads = (
        "collective",
        Column("exposed", Unit.TIME),
        Column("could hide", Unit.TIME),
        "why",
    )
    yield table(heads, rows, finds=True)
    if (use := overlap.profile) is not None:
        covered = f"{figures.share(use.covered)} of the measured time"
        off = figures.share(use.off)
        yield Prose(f"The scheduler's profile had costs for {covered}, off by {off}.")


def _hideable(overlap: Overlap, step_us: float) -> Iterator[Prose]:
    """Say how much of the exposed communication a schedule could hide; empty without any."""
    lost_us = overlap.hideable_us + overlap.stuck_us
    if lost_us < 0.001 * step_us:
        return
    share = figures.share(overlap.hideable_us / step_us)
    could = f"{figures.time(overlap.hideable_us)} ({share} of the step)"
    lost = f"{figures.time(lost_us)} of communication is exposed"
    yield Prose(f"{lost}. A better schedule could hide {could}.")
    if overlap.stuck_us > 0.01 * step_us:
        rest = f"No schedule hides the other {figures.time(overlap.stuck_us)}"
        remedy = "'pgle tune' tries combined and pipelined collectives"
        yield Prose(f"{rest}: {remedy}.")


def _memory(memory: Memory | None) -> Iterator[Part]:
    """Yield the peak of memory, its share of the usable memory, and the buffers alive at the
    peak.
    """
    if memory is None:
        return
    plan = memory.plan
    where = f" at {plan.peak_at}" if plan.peak_at else ""
    peak = f"Peak memory {figures.size(plan.peak_bytes)}{where}"
    yield Prose(f"{peak}, by XLA's plan{_of_limit(memory)}.")
    kinds: Iterable[tuple[Value, ...]] = (
        ("arguments", plan.arguments_bytes, ""),
        ("results", plan.outputs_bytes, ""),
        ("temporary", plan.temporary_bytes, ""),
    )
    rows = (*kinds, *map(_live, memory.live))
    yield table(("at the peak", Column("size", Unit.SIZE), ""), rows)


def _of_limit(memory: Memory) -> str:
    """``, 62.1 % of the 60.0 GiB that JAX takes by default``; empty if no limit is known."""
    limit_bytes = memory.limit_bytes
    device_bytes = memory.device_bytes
    if limit_bytes is None or device_bytes is None:
        return ""
    default = " that JAX takes by default" if limit_bytes < device_bytes else ""
    share = figures.share(memory.used_share)
    return f", {share} of the {figures.size(limit_bytes)}{default}"


def _live(item: LiveValue) -> tuple[Value, ...]:
    """A row for a buffer alive at the peak."""
    what = f"{cut(item.shape, _MOST_SHAPE)} {short_source(item.source)}"
    return printable(item.name), item.size_bytes, what
