"""A measured step, and what changed since another, as a page and as ``pgle.analyze/1``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime

from pgle.account.next_move import ENDS, Known, Move
from pgle.account.value import UnreadWork
from pgle.analyze.analysis import MeasuredStep
from pgle.analyze.collectives import (
    CostError,
    LateRanks,
    LinkUse,
    MeasuredCollective,
    Overlap,
    ProfileErrors,
)
from pgle.analyze.differences import Differences
from pgle.analyze.findings import EvidenceRow, StepFinding
from pgle.analyze.layers import Layers, Products, folded, short_source
from pgle.analyze.memory import LiveValue
from pgle.analyze.rules import RULES
from pgle.analyze.window import RowGroup, StepTime
from pgle.errors import cut, many, printable
from pgle.next import Commands, Next, Sentence, to_way
from pgle.report import account
from pgle.report.account import AccountDocument
from pgle.report.layers import LEAST
from pgle.report.next_steps import way_in_run
from pgle.report.page import figures
from pgle.report.page.figures import Unit
from pgle.report.page.value import (
    Advice,
    Cell,
    Column,
    Page,
    Table,
    Tone,
    Value,
    table,
    way_of,
)
from pgle.report.step_differences import (
    difference_notes,
    difference_sections,
    first_changes,
    verdict_of_change,
)
from pgle.report.step_sections import exposed_groups, step_sections
from pgle.report.text import SCOPE_WIDTH, Document, bar, flat
from pgle.report.timeline import OTHER_WORK, OTHERS, group_label, most_exposed, parts_of
from pgle.run.analyze import Analysis
from pgle.schedule.simulate import StepBreakdown
from pgle.trace.table import Device
from pgle.worth import is_worth

LEAST_HEAVY = 0.01  # share of the step; lighter layers are not named
HEAVY = 3  # how many layers are named
LEAST_IDLE = 0.001  # share of the step; smaller causes of idle time are not named
# findings that are shown however little they save
ALWAYS_NAMED = ("other-work", "recompilation", "untimed-records")
FOLDED = 10  # groups of layers, from which the heaviest are named
BETWEEN = str(RowGroup.BETWEEN)


def analyze_page(
    found: Analysis,
    following: Commands = (),
    span_of: account.SpanOf = account.nowhere,
    *,
    is_page: bool = False,
) -> Page:
    """Where the time of a step goes, and what could be saved; with another step, what changed
    since.

    Args:
        found: the step.
        following: what to do next, from `way_on`.
        span_of: where in the timeline an instruction is.
        is_page: there is a timeline, so shares of the step need no bars.
    """
    step = found.step
    answer, tone = headline(found)
    name = printable(step.costs.program.key.name)
    timed = account.timed_note(found.account, is_base=found.is_base)
    lines = (
        *notes(step, found.plain),
        account.without_communication(found.account),
        account.contention_note(found.account),
        account.note(found.account),
        timed,
    )
    page = Page(
        title=f"pgle analyze: {name}",
        identity=identity(step),
        verdict=answer,
        tone=tone,
        table=breakdown_table(step, bars=not is_page),
        notes=lines,
        actions=actions(found, span_of),
        sections=step_sections(step, found.account, found.findings),
        way=way_of(found.page) or to_way(following),
        warnings=found.shown_warnings,
    )
    return page if found.against is None else _of_two_steps(page, found.against)


def _of_two_steps(page: Page, changed: Differences) -> Page:
    """Turn the page of a step into a page on its differences from another step."""
    answer, tone = verdict_of_change(changed)
    before = figures.time(changed.before.step_us)
    after = figures.time(changed.after.step_us)
    program, where, _, *when = page.identity
    return replace(
        page,
        title=f"{page.title}, two steps",
        identity=(program, where, f"{before} → {after} a step", *when),
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
    name = printable(step.costs.program.key.name)
    time = f"{figures.time(step.step_us)} a step"
    if not step.has_step:
        name = f"{_modules(step)}, most time in {name}"
        time = f"{figures.time(step.step_us)} from one run of it to the next"
    return (
        name,
        f"{_gpu(step)}, {_ranks(step)}",
        f"{time}{_kind_of_run(step)}",
        _date(step),
        "simulated" if step.trace.simulated else "",
    )


def _modules(step: MeasuredStep) -> str:
    """The number of modules that ran: ``3 modules``."""
    return many(len(step.runs_of_others()) + 1, "module")


def _gpu(step: MeasuredStep) -> str:
    """``H100``; ``CPU devices`` if the trace is of the host."""
    if step.trace.on_host:
        return "CPU devices"
    return "GPU unknown" if step.hardware is None else step.hardware.name.upper()


def _ranks(step: MeasuredStep) -> str:
    """``4 ranks``, or ``2 of 4 ranks`` if others were not recorded."""
    given = len(step.windows)
    named = 1 if step.module is None else step.module.num_devices
    devices = max(step.costs.ranks, given, named)
    if devices > given and not step.trace.simulated:
        return f"{given} of {devices} ranks"
    return many(devices, "rank")


def _kind_of_run(step: MeasuredStep) -> str:
    """Whether it was a profile run, else how many steps a rank ran if there are several."""
    if step.mode:
        return " (profile run)"
    each = step.steps / max(len(step.windows), 1)
    if each <= 1 or step.trace.simulated:
        return ""
    noun = "steps" if step.has_step else "runs"
    return f" ({each:g} {noun})"


def _date(step: MeasuredStep) -> str:
    """The day of the recording in UTC; empty if the trace does not say it."""
    begun = [item.utc_ns for item in step.trace.recordings.values() if item.utc_ns]
    if not begun:
        return ""
    return datetime.fromtimestamp(min(begun) / 1e9, UTC).strftime("%Y-%m-%d")


def headline(found: Analysis) -> tuple[str, Tone]:
    """Name the largest lever in a line, or say why there is no answer."""
    step = found.step
    if step.measures_alone:
        return "This is a profile run: it runs each collective alone, to measure it", ""
    if not step.has_step:
        share = f"{figures.share(step.main_share)} of the GPU's compute"
        largest = f"the largest of {_modules(step)} takes {share}"
        return f"No module is the step: {largest}", "warn"
    unknown = _unknown_work(found)
    if unknown is not None:
        share = f"{figures.share(unknown.reached)} of the step"
        why = f"{share} has no instruction, most: {unknown.evidence[0].name}"
        return f"Cannot tell XLA's share: {why}", "warn"
    return account.headline(found.account)


def _unknown_work(found: Analysis) -> StepFinding | None:
    """The finding of work without instructions; None if the largest lever saves more than this
    work takes.
    """
    lever = found.account.lever
    saved_us = 0.0 if lever is None else lever.known_saving_us
    for finding in found.findings:
        if finding.id == "other-work":
            is_larger = finding.reached > found.account.share(saved_us)
            return finding if is_larger else None
    return None


def way_on(found: Analysis) -> Commands:
    """Return the next command, or the end in words."""
    if found.next:
        return found.next
    if found.run is not None:
        return way_in_run(found.run)
    unknown = _unknown_work(found)
    if unknown is not None:
        record = f"{account.lowered(unknown.todo)}: {unknown.remedy}"
        return (Sentence.todo(f"{record}; then analyze the new trace"),)
    if found.account.needs_module and found.with_hlo is not None:
        dump = "run the program once with --xla_dump_to=hlo in XLA_FLAGS, then "
        return (Sentence.todo(dump, found.with_hlo),)
    others = set(Move) - ENDS - {Move.ADVISE}  # all moves that need the program
    commands = dict.fromkeys(others, found.convert)
    return (account.follow(Known(account=found.account), commands),)


def breakdown_table(step: MeasuredStep, *, bars: bool) -> Table:
    """The parts of the step, and its exposed collectives by kind and reason."""
    rows: list[tuple[Value, ...]] = []
    for name, us in parts_of(step.breakdown):
        if us or name == "exposed communication":
            rows.append(_part_row(name, us, step.step_us, bars=bars))
            rows += _rows_within(name, step)
    times = (Column("time", Unit.TIME), Column("share", Unit.SHARE))
    return table(("part of the step", *times, ""), rows)


def _part_row(name: str, us: float, step_us: float, *, bars: bool) -> tuple[Value, ...]:
    """A row for a part of the step: its time, its share, and a bar if bars are drawn."""
    share = us / step_us if step_us > 0 else 0.0
    tone: Tone = "exposed" if name.startswith("exposed") and us else ""
    drawn = bar(share).rstrip() if bars else ""
    return Cell(name, tone), us or None, share or None, drawn


def _rows_within(name: str, step: MeasuredStep) -> Iterator[tuple[Value, ...]]:
    """Yield rows for what a part of the step consists of; small ones are one row."""
    least_us = LEAST * step.step_us
    if name == OTHER_WORK:
        kinds = step.parts.of(RowGroup.OTHER)
        small = [us for us in kinds.values() if us < least_us]
        for kind, us in kinds.items():
            if us >= least_us:
                yield f"  {kind}", us, us / step.step_us, ""
        small_us = sum(small)
        if small_us > 0 and len(small) < len(kinds):
            yield f"  {OTHERS} ({len(small)})", small_us, small_us / step.step_us, ""
    if name == "exposed communication":
        for group in most_exposed(exposed_groups(step), least_us):
            label = f"  {printable(group_label(group))}"
            yield label, group.after_us, group.after_us / step.step_us, group.why


def notes(step: MeasuredStep, plain: Next | None = None) -> tuple[str, ...]:
    """Return lines about waits, idle time, the heaviest layers, GPU utilization, and what the
    recording lacks.

    Args:
        plain: the command that shows a step in which collectives overlap.
    """
    lines = (*_waits(step), *_weights(step), *_limits(step, plain))
    return tuple(filter(None, lines))


def _waits(step: MeasuredStep) -> Iterator[str]:
    """Say what the GPU waits for."""
    if step.breakdown.exposed_communication_us > LEAST * step.step_us:
        waits = ""
        if step.waiting_us > LEAST * step.step_us:
            waits = f"; {figures.time(step.waiting_us)} of it for other ranks"
        yield f"Exposed: the GPU waits and computes nothing{waits}."
    # the last one, compiling, is part of the others
    *causes, _ = step.idle_us.items()
    causes.sort(key=lambda cause: -cause[1])
    least_us = LEAST_IDLE * step.step_us
    words = [f"{name} {figures.time(us)}" for name, us in causes if us >= least_us]
    if words:
        yield f"Idle: {', '.join(words)}."


def _weights(step: MeasuredStep) -> Iterator[str]:
    """Name the heaviest layers and source line, and the GPU's utilization, if HLO has them."""
    if step.layers is None or step.step_us <= 0:
        return
    heavy = _heavy_layers(step.layers, step.step_us)
    line = _heaviest_line(step.layers, step.step_us)
    words = "; ".join(filter(None, (heavy, line)))
    if words:
        yield f"Heaviest: {printable(words)}"
    if step.layers.mfu is not None:
        yield f"Model FLOPs utilisation (MFU): {figures.share(step.layers.mfu)}"


def _heavy_layers(layers: Layers, step_us: float) -> str:
    """``layers mlp 40 % · attention 31 %``; empty if no layer is heavy."""
    shares: list[tuple[float, str]] = []
    for name, group in folded(layers.scopes, FOLDED):
        share = sum(layer.us for layer in group) / step_us
        if name and share >= LEAST_HEAVY:
            shares.append((share, name))
    shares.sort(key=lambda item: -item[0])
    heavy: list[str] = []
    for share, name in shares[:HEAVY]:
        _, _, last_scope = name.rpartition("/")
        heavy.append(f"{cut(last_scope, SCOPE_WIDTH)} {figures.share(share, 0)}")
    return f"layers {' · '.join(heavy)}" if heavy else ""


def _heaviest_line(layers: Layers, step_us: float) -> str:
    """``line model.py:31 12 %``; empty if no line is known."""
    for item in layers.lines:
        if item.name:
            share = figures.share(item.us / step_us, 0)
            return f"line {short_source(item.name)} {share}"
    return ""


def _limits(step: MeasuredStep, plain: Next | None) -> Iterator[str]:
    """Name what the recording cannot show, and the command that shows it."""
    given = len(step.windows)
    # one simulated rank represents all
    if given < step.costs.ranks and not step.trace.simulated:
        ranks = f"{given} of {step.costs.ranks} ranks"
        yield f"{ranks} are given: waiting for the others counts as transfer."
    if step.measures_alone:
        sync = [item for item in step.collectives if item.sync]
        sync_us = sum(item.transfer_exposed_us for item in sync)
        share = figures.share(sync_us / step.step_us)
        shows = "Only a plain run shows what stays exposed"
        said = f"{shows}." if plain is None else f"{shows}: {plain}"
        yield f"Collectives take {share} of this step. {said}"


def actions(
    found: Analysis, span_of: account.SpanOf = account.nowhere
) -> tuple[Advice, ...]:
    """Advise first how to record what is missing, then what saves most."""
    untold = (
        _to_tell(finding)
        for finding in found.findings
        if finding.id in ALWAYS_NAMED and not is_worth(finding.share)
    )
    return (*untold, *account.actions(found.account, span_of))


def _to_tell(finding: StepFinding) -> Advice:
    """Advise about a finding that saves nothing itself, but makes other figures incomplete."""
    why = finding.remedy if finding.id == "other-work" else printable(finding.number)
    return Advice(finding.todo, None, why)


# The document: the integer times of a rank add up exactly to its window.


class KindOfWork(Document):
    """GPU work that no instruction owns."""

    kind: str
    us: float


class LateDevice(Document):
    """A device that others wait for."""

    device: Device
    us: float
    last_in_steps: int


class LateDocument(Document):
    """The time per step in which ranks wait for the last one."""

    us: float
    steps: int
    ranks: tuple[LateDevice, ...]


class StepFacts(Document):
    """The step as a whole."""

    module: str
    step_us: float
    steps: int
    hardware: str | None
    breakdown: StepBreakdown
    idle_us: Mapping[str, float]
    other_work: tuple[KindOfWork, ...]
    waiting_us: float
    main_share: float
    skew_us: float | None
    late: LateDocument


class ListedCollective(Document):
    """A collective as `pgle analyze --json` lists it."""

    name: str
    kind: str
    sync: bool
    count: float
    time_us: float
    exposed_us: float
    wait_us: float
    link: LinkUse | None
    trace_name: str
    op_name: str
    transfer_exposed_us: float
    bus_gb_s: float | None
    source: str
    why_exposed: str


class ListedFinding(Document):
    """A finding with its rule."""

    id: str
    title: str
    share: float
    number: str
    evidence: tuple[EvidenceRow, ...]
    remedy: str
    unclaimed: str
    rule: str
    source: str


class MemoryDocument(Document):
    """Device memory of one execution of the main module, by XLA's plan."""

    peak_bytes: int
    arguments_bytes: int
    outputs_bytes: int
    constants_bytes: int
    temporary_bytes: int
    at: str
    live: tuple[LiveValue, ...]
    device_bytes: int | None
    limit_bytes: int | None


class HideableCollective(Document):
    """An exposed collective, and the part of it that a schedule could hide."""

    name: str
    exposed_us: float
    hideable_us: float | None
    why: str


class ListedCostError(Document):
    """An instruction's time in the profile and as measured."""

    costs: CostError = flat()
    error_us: float  # of a step: measured time minus the profile's time


class ProfileErrorsDocument(Document):
    """A profile compared with a measured step."""

    rows: tuple[ListedCostError, ...]  # the largest error first
    #: share of the measured time whose instructions have a cost in the profile
    covered: float
    off: float  # sum of the errors' absolute values, as a share of that time


class OverlapDocument(Document):
    """How much the scheduler could hide, and its profile compared with the measured step."""

    hideable_us: float
    stuck_us: float
    predicted_step_us: float
    collectives: tuple[HideableCollective, ...]
    profile: ProfileErrorsDocument | None


class ListedStep(Document):
    """One execution of the main module."""

    parts: StepTime = flat()
    step_us: float


class WindowOfRank(Document):
    """The window of a rank by part: compute, the exposed parts and idle add up to it."""

    device: Device
    steps: int
    compute_ns: int
    exposed_communication_ns: int
    exposed_copy_ns: int
    other_ns: int
    communication_ns: int
    copy_ns: int
    idle_ns: int
    launch_gaps_ns: int
    waits_ns: int
    long_waits_ns: int
    between_steps_ns: int
    compile_ns: int
    window_ns: int


class LayersDocument(Document):
    """The step by parts of the program, and its matrix products."""

    layers: Layers = flat()
    products: tuple[Products, ...]


class StepDetails(Document):
    """Every step, collective, finding and rank; layers, memory and overlap if HLO says them."""

    step_times: tuple[ListedStep, ...]
    collectives: tuple[ListedCollective, ...]
    findings: tuple[ListedFinding, ...]
    ranks: tuple[WindowOfRank, ...]
    layers: LayersDocument | None
    products: tuple[Products, ...]
    memory: MemoryDocument | None
    overlap: OverlapDocument | None


class AgainstDocument(Document):
    """The other step, and the difference to this one."""

    differences: Differences = flat()
    delta_us: float  # how much longer this step takes
    share: float  # `delta_us` as a share of the step before


class AnalyzeDocument(Document):
    """``pgle.analyze/1``: first the facts of the step as a whole."""

    facts: StepFacts = flat()
    details: StepDetails = flat()
    account: AccountDocument
    unread: UnreadWork | None
    against: AgainstDocument | None
    warnings: tuple[str, ...]


def document(found: Analysis) -> AnalyzeDocument:
    """Make the JSON document of an analysis: the step, its findings, its account."""
    return AnalyzeDocument(
        facts=_step_facts(found.step),
        details=_details(found),
        account=account.document(found.account),
        unread=found.account.unread,
        against=_against(found.against),
        warnings=found.warnings,
    )


def _step_facts(step: MeasuredStep) -> StepFacts:
    """The step as a whole, with idle time by cause and other work by kind."""
    kinds = step.parts.of(RowGroup.OTHER)
    other = tuple(KindOfWork(kind, us) for kind, us in kinds.items())
    hardware = None if step.hardware is None else step.hardware.name
    idle_us = {name.replace(" ", "_"): us for name, us in step.idle_us.items()}
    return StepFacts.of_value(
        step,
        module=step.costs.program.key.name,
        hardware=hardware,
        idle_us=idle_us,
        other_work=other,
        skew_us=step.costs.skew_us,
        late=_late(step.late, step.trace.devices),
    )


def _late(found: LateRanks, devices: Sequence[Device]) -> LateDocument:
    """The waits for the last rank, with the devices that others wait for."""
    ranks = [LateDevice(devices[at], us, count) for at, us, count in found.devices]
    return LateDocument(found.us, found.steps, tuple(ranks))


def _details(found: Analysis) -> StepDetails:
    """Everything that the sections of the page list."""
    step = found.step
    spans = tuple(ListedStep(item, item.step_us) for item in step.parts.steps)
    memory = None
    if step.memory is not None:
        plan = step.memory.plan
        memory = MemoryDocument.of_value(step.memory, plan, at=plan.peak_at)
    overlap = None if step.overlap is None else _overlap(step.overlap, step)
    layers = None
    if step.layers is not None:
        layers = LayersDocument(step.layers, step.products)
    return StepDetails.of_value(
        step,
        step_times=spans,
        collectives=tuple(map(_listed_collective, step.collectives)),
        findings=tuple(map(_listed_finding, found.findings)),
        ranks=tuple(_windows_of_ranks(step)),
        layers=layers,
        memory=memory,
        overlap=overlap,
    )


def _listed_collective(item: MeasuredCollective) -> ListedCollective:
    """A collective with its line in the program, and why it is exposed."""
    source = item.instruction.source if item.instruction else ""
    return ListedCollective.of_value(item, source=source, why_exposed=item.why)


def _listed_finding(finding: StepFinding) -> ListedFinding:
    """A finding with its rule, and the source of the rule."""
    rule = RULES[finding.id]
    return ListedFinding.of_value(finding, rule=rule.rule, source=rule.source)


def _windows_of_ranks(step: MeasuredStep) -> Iterator[WindowOfRank]:
    """The window of each rank. Its parts in nanoseconds add up exactly."""
    for window in step.windows:
        device = step.trace.devices[window.device]
        yield WindowOfRank(device, window.steps, **window.parts_ns)


def _overlap(overlap: Overlap, step: MeasuredStep) -> OverlapDocument:
    """What a schedule could hide, and the errors of the profile's costs."""
    collectives = [
        HideableCollective.of_value(item, exposed_us=item.transfer_exposed_us)
        for item in step.exposed_collectives
    ]
    return OverlapDocument.of_value(
        overlap,
        predicted_step_us=overlap.predicted.step_us,
        collectives=tuple(collectives),
        profile=None if overlap.profile is None else _errors(overlap.profile),
    )


def _errors(found: ProfileErrors) -> ProfileErrorsDocument:
    """How far the costs that the scheduler used are from the measured ones."""
    rows = tuple(ListedCostError(row, row.error_us) for row in found.rows)
    return ProfileErrorsDocument.of_value(found, rows=rows)


def _against(found: Differences | None) -> AgainstDocument | None:
    """The other step and its differences from this one; None without another step."""
    if found is None:
        return None
    return AgainstDocument(found, found.delta_us, found.share)
