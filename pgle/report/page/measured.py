"""The sections of a measured step: findings, parts, step times, layers, instructions, collectives, schedule, memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from pgle.analyze.analysis import MeasuredStep
from pgle.analyze.collectives import MeasuredCollective, Overlap
from pgle.analyze.findings import Finding
from pgle.analyze.layers import Layer, Layers, Phase, folded, short_source
from pgle.analyze.memory import Memory
from pgle.analyze.window import DeviceWindow, Group, mean_breakdown
from pgle.errors import cut, many, printable
from pgle.report.page import figures, html
from pgle.report.page.figures import Unit
from pgle.report.page.value import Cell, Chart, Column, Part, Prose, Section, Table, Tone, Value
from pgle.report.timeline.scene import parts_of
from pgle.run.analyze import Analysis
from pgle.run.inputs.measured_step import on_host

ROWS = 200  # of a table; `pgle analyze --json` has all
SCOPES, SCOPE_WIDTH = 16, 32  # rows of the table of layers, and characters of a layer's name
LEAST = 0.0005  # of the step; less is no row
MOST_STEPS = 400  # bars of the chart of step times
EXPLAINED = 0.95  # of the exposed time; so much of it the groups on the first screen explain, if three can
GROUPS = 3


def step_sections(found: Analysis, chart: bool = False) -> tuple[Section, ...]:
    """What is known of a step; on a page with its step times as a chart."""
    step = found.step
    sections = [
        Section("findings", "Findings", tuple(_findings(found.findings)) or (Prose("No finding."),)),
        Section("parts", "Where the time of a step goes", tuple(_parts(step))),
        Section("steps", "Step times", tuple(_steps(step, chart))),
    ]
    if step.layers is not None:
        sections.append(Section("layers", "Layers and source lines", tuple(_layers(step.layers, step))))
    if step.compute:
        sections.append(Section("instructions", "Instructions, their executions added up", (_instructions(step),)))
    if step.collectives:
        sections.append(Section("collectives", "Collectives", tuple(_collectives(step))))
    if step.overlap is not None:
        sections.append(Section("schedule", "What the scheduler could hide", tuple(_overlap(step.overlap, step))))
    if step.memory is not None:
        sections.append(Section("memory", "Memory", tuple(_memory(step.memory))))
    if step.costs.warnings:
        lines = tuple(Prose(printable(line)) for line in step.costs.warnings)
        sections.append(Section("recording", "Remarks on the recording", lines))
    return tuple(sections)


def _findings(found: Sequence[Finding]) -> Iterator[Part]:
    for place, finding in enumerate(found, start=1):
        saves = f", saves up to {figures.share(finding.share)}" if finding.share else ""
        yield Prose(f"{place}. {finding.title}{saves}", tone="head")
        yield Prose(f"{_sentence(finding.number)} {_sentence(finding.unclaimed)}".strip())
        rows = tuple(
            (
                printable(short_scope(row.name)),
                row.us or None,
                printable("; ".join(filter(None, (row.note, short_scope(row.op_name.partition("[")[0]))))),
            )
            for row in finding.evidence
        )
        columns = (Column("in a step"), Column("time", Unit.TIME), Column("why"))
        yield Table(columns, rows, tuple(row.name for row in finding.evidence))
        yield Prose(f"→ {_sentence(finding.remedy)}")


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:].rstrip('.')}." if text else ""


def _parts(step: MeasuredStep) -> Iterator[Part]:
    """The parts of the mean step, and of each rank's; idle time by cause."""
    names = [name for name, _ in parts_of(step.breakdown)]
    columns = (Column("rank"), Column("step", Unit.TIME), *(Column(name, Unit.TIME) for name in names))
    rows: list[tuple[Value, ...]] = [
        ("mean", step.breakdown.step_us, *(us or None for _, us in parts_of(step.breakdown)))
    ]
    for window in step.windows if len(step.windows) > 1 else ():
        parts = mean_breakdown([window])
        rows.append((rank_label(step, window), parts.step_us, *(us or None for _, us in parts_of(parts))))
    yield Table(columns, tuple(rows))
    causes = tuple((name, us, us / step.step_us) for name, us in step.idle_us.items() if us >= LEAST * step.step_us)
    if causes:
        yield Table((Column("idle"), Column("time", Unit.TIME), Column("of the step", Unit.SHARE)), causes)
    if step.windows:
        kinds = "launch gaps: up to 20 µs; waits for the host: up to 1 ms; long waits: longer. All are inside steps."
        yield Prose(kinds, tone="soft")


def rank_label(step: MeasuredStep, window: DeviceWindow) -> str:
    """``rank 3 · GPU 0``: the place among the ranks that were given, or JAX's number, and the device's own number."""
    device = step.trace.devices[window.device]
    rank = step.windows.index(window) if device.global_id is None else device.global_id
    name = "CPU device" if on_host(step.trace) else "GPU"
    return f"rank {rank} · {name} {device.ordinal}"


_STACK: Sequence[tuple[str, str, tuple[Group, ...]]] = (
    ("compute", "compute", (Group.COMPUTE, Group.MODULE)),
    ("exposed", "exposed communication", (Group.TRANSFER, Group.WAIT)),
    ("copy", "exposed copies", (Group.COPY,)),
    ("idle", "idle", (Group.LAUNCH, Group.HOST, Group.BETWEEN)),
)
"""Style, name and groups of the parts of a step, from below."""


def _steps(step: MeasuredStep, chart: bool) -> Iterator[Part]:
    """Every step of the window with its parts."""
    parts = step.parts
    whole = parts.inside_us + parts.pause_us
    stacks = []
    for _, _, groups in _STACK:
        mine = [row for row, (group, _) in enumerate(parts.rows) if group in groups]
        stacks.append(whole[mine].sum(axis=0).tolist())
    if chart and len(parts.steps) > 1:
        yield _step_chart(parts.steps[:MOST_STEPS], stacks)
    stacked = (Column(name, Unit.TIME) for _, name, _ in _STACK)
    columns = (Column("execution"), *stacked, Column("step", Unit.TIME), Column(""))
    rows = tuple(
        (str(item.execution), *(us or None for us in times), sum(times), Cell("slow", "warn") if item.is_slow else "")
        for item, times in zip(parts.steps, zip(*stacks, strict=True), strict=True)
    )
    yield Table(columns, rows[:ROWS], more=max(len(rows) - ROWS, 0))
    if parts.steps and parts.steps[-1].pause_us is None:
        yield Prose("The last step is without the pause after it, which the trace does not show.", tone="soft")
    for number, why in list(step.costs.window.dropped.items())[:ROWS]:
        yield Prose(f"Execution {number} is left out: {why}.", tone="soft")


def _step_chart(steps: Sequence[object], stacks: Sequence[Sequence[float]]) -> Chart:
    """The steps as stacked bars."""
    count = len(steps)
    totals = [sum(stack[at] for stack in stacks) for at in range(count)]
    most = max(totals) / 1e6
    drawn = html.Panel("Steps of the window, in order", (0.0, float(count)), (0.0, most * 1.02))
    drawn.axis_y(html.seconds(0.0, most))
    gap = 0.1 if count <= 60 else 0.0
    base = [0.0] * count
    for (style, _, _), stack in zip(_STACK, stacks, strict=True):
        for at in range(count):
            low, high = base[at] / 1e6, (base[at] + stack[at]) / 1e6
            if stack[at] > 0:
                corners = [(at + gap, low), (at + gap, high), (at + 1 - gap, high), (at + 1 - gap, low)]
                drawn.area(f"stack {style}", corners)
            base[at] += stack[at]
    for at in range(0, count, max(1, count // 8)):
        drawn.text("tick", (at + 0.5, 0.0), str(at + 1), dy=16)
    low, high = min(totals), max(totals)
    words = (
        f"{many(count, 'step')}, from {figures.time(low)} to {figures.time(high)}; from below: compute, exposed "
        "communication, exposed copies, idle"
    )
    return Chart(html.svg([drawn], words, style=False), words)


_PHASES = (Phase.FORWARD, Phase.BACKWARD, Phase.REMATERIALISED, Phase.OPTIMIZER)


def _layers(layers: Layers, step: MeasuredStep) -> Iterator[Part]:
    """By layer and source line, and how much of the GPU's peak is used."""
    for line in products_lines(step):
        yield Prose(line)
    columns = (
        Column("layer"), Column("GPU time", Unit.TIME), Column("of the step", Unit.SHARE),
        *(Column(name, Unit.SHARE) for name in ("forward", "backward", "recomputed", "update", "exposed")),
        Column("of roofline", Unit.SHARE),
    )  # fmt: skip
    rows = tuple(_scope_row(name, group, step.step_us) for name, group in folded(layers.scopes, SCOPES))
    yield Table(columns, rows, shown=SCOPES)
    columns = (Column("source line"), Column("GPU time", Unit.TIME), Column("of the step", Unit.SHARE),
               Column("instructions", Unit.COUNT), Column("of roofline", Unit.SHARE))  # fmt: skip
    lines = tuple(
        (short_source(item.name) or "(no line)", item.us, item.us / step.step_us, item.instructions, _of_roof([item]))
        for item in layers.lines
    )
    yield Table(columns, lines[:ROWS], more=max(len(lines) - ROWS, 0))


def _scope_row(name: str, group: Sequence[Layer], step_us: float) -> tuple[Value, ...]:
    phases = [sum(layer.us for layer in group if layer.phase == phase) for phase in _PHASES]
    shares = (us / step_us if us >= LEAST * step_us else None
              for us in (*phases, sum(layer.exposed_us for layer in group)))  # fmt: skip
    us = sum(layer.us for layer in group)
    return short_scope(name) or "(no scope)", us, us / step_us, *shares, _of_roof(group)


def _of_roof(group: Sequence[Layer]) -> float | None:
    """What the same work takes at the GPU's peaks, as a share of its time."""
    known = [(layer.roofline_us, layer.us) for layer in group if layer.roofline_us is not None]
    total = sum(us for _, us in known)
    return sum(roofline for roofline, _ in known) / total if total > 0 else None


def short_scope(name: str) -> str:
    """The last scopes, as many as fit; other names as they are."""
    if "/" not in name:
        return name
    scopes = name.split("/")
    while len(scopes) > 1 and len("/".join(scopes)) > SCOPE_WIDTH:
        scopes = ["…", *(scopes[2:] if scopes[0] == "…" else scopes[1:])]
        if len(scopes) == 2:
            break
    return cut("/".join(scopes), SCOPE_WIDTH)


def products_lines(step: MeasuredStep) -> Iterator[str]:
    """Utilisation of the GPU, and the matrix products by type."""
    layers = step.layers
    if layers is not None and layers.mfu is not None and layers.hfu is not None:
        again = f", {figures.share(layers.hfu)} with what is recomputed" if layers.hfu > layers.mfu else ""
        yield f"Model FLOPs utilisation (MFU): {figures.share(layers.mfu)} of the peak{again}."
    for item in step.products:
        peak = "" if item.peak_tflops is None else f" of {item.peak_tflops:.4g}"
        where = "" if item.tensor_cores else ", not on the Tensor Cores"
        speed = f", {item.tflops:.3g}{peak} TFLOP/s" if item.flops else ""
        named = item.named_us / item.us if item.us else 0.0
        source = "kernel names" if named > 0.995 else f"kernel names for {named:.0%}, else the HLO" if named else "HLO"
        share = figures.share(item.us / step.step_us)
        yield f"Matrix products in {item.dtype}{where}: {figures.time(item.us)} ({share}){speed}; type from {source}."


def _instructions(step: MeasuredStep) -> Table:
    """Each instruction with all its executions in a step, the costliest first."""
    columns = (
        Column("instruction"), Column("times", Unit.RATE), Column("each", Unit.TIME), Column("in a step", Unit.TIME),
        Column("of the step", Unit.SHARE), Column("opcode"), Column("shape"),
    )  # fmt: skip
    rows = tuple(
        (printable(item.cost.name), item.count, item.cost.cost_us, item.us, item.us / step.step_us,
         item.cost.opcode, cut(item.cost.shape, 40))
        for item in step.compute[:ROWS]
    )  # fmt: skip
    names = tuple(item.cost.name for item in step.compute[:ROWS])
    return Table(columns, rows, names, more=max(len(step.compute) - ROWS, 0))


@dataclass(frozen=True)
class Exposed:
    """Collectives of one kind that are exposed for one reason."""

    label: str  # ``all-gather ×72, synchronous``
    exposed_us: float  # in a step
    why: str
    first: str  # the most exposed one


def exposed_groups(step: MeasuredStep) -> list[Exposed]:
    """The exposed collectives by kind and reason, the most exposed group first."""
    rooms = {} if step.overlap is None else {room.name: room.why for room in step.overlap.rooms}
    found: dict[tuple[str, bool, str], list[MeasuredCollective]] = {}
    for item in sorted(step.collectives, key=lambda item: -item.exposed_us):
        if item.exposed_us > 0:
            found.setdefault((item.kind, item.sync, rooms.get(item.name, "")), []).append(item)
    groups = [
        Exposed(
            f"{kind} ×{round(max(sum(item.count for item in items), 1)):,}{', synchronous' * sync}",
            sum(item.exposed_us for item in items), why, items[0].name,
        )
        for (kind, sync, why), items in found.items()
    ]  # fmt: skip
    return sorted(groups, key=lambda group: -group.exposed_us)


def first_groups(step: MeasuredStep) -> list[Exposed]:
    """As many groups as explain most of the exposed time, three at most."""
    rest = exposed_groups(step)
    found: list[Exposed] = []
    total = sum(group.exposed_us for group in rest)
    for group in rest[:GROUPS]:
        if group.exposed_us < LEAST * step.step_us or sum(one.exposed_us for one in found) >= EXPLAINED * total:
            break
        found.append(group)
    return found


def _collectives(step: MeasuredStep) -> Iterator[Part]:
    """By kind and reason, then each."""
    groups = tuple((group.label, group.exposed_us, group.exposed_us / step.step_us, group.why)
                   for group in exposed_groups(step))  # fmt: skip
    if groups:
        heads = (Column("exposed"), Column("time", Unit.TIME), Column("of the step", Unit.SHARE), Column("why"))
        yield Table(heads, groups)
    columns = (
        Column("collective"), Column("times", Unit.RATE), Column("each", Unit.TIME), Column("exposed", Unit.TIME),
        Column("waits", Unit.TIME), Column("expected", Unit.TIME), Column("bus GB/s", Unit.RATE),
        Column("of", Unit.RATE), Column(""),
    )  # fmt: skip
    shown = step.collectives[:ROWS]
    yield Table(columns, tuple(map(_collective, shown)), tuple(item.name for item in shown))
    yield Prose(
        "exposed: the GPU waits for it and nothing computes. waits: exposed time before the last rank arrived. The "
        "other times start when the last rank arrived. bus GB/s as nccl-tests count them, of the link's peak.",
        tone="soft",
    )


def _collective(item: MeasuredCollective) -> tuple[Value, ...]:
    link = item.link
    return (
        printable(item.name), item.count, item.time_us, item.transfer_exposed_us or None, item.wait_us or None,
        None if link is None else link.estimate_us, item.bus_gb_s, None if link is None else link.peak_gb_s,
        "synchronous" if item.sync else "",
    )  # fmt: skip


def _overlap(overlap: Overlap, step: MeasuredStep) -> Iterator[Part]:
    """Exposed collectives with what hides them, and the scheduler's profile against what ran."""
    lost, hideable = overlap.hideable_us + overlap.stuck_us, figures.share(overlap.hideable_us / step.step_us)
    if lost >= 0.001 * step.step_us:
        line = f"{figures.time(lost)} of communication is exposed"
        yield Prose(
            f"{line}. A better schedule could hide {figures.time(overlap.hideable_us)} ({hideable} of the step)."
        )
        if overlap.stuck_us > 0.01 * step.step_us:
            rest = figures.time(overlap.stuck_us)
            yield Prose(f"No schedule hides the other {rest}: 'pgle tune' tries combined and pipelined collectives.")
    rows = tuple(
        (room.name, room.exposed_us, room.hideable_us or None, room.why)
        for room in overlap.rooms[:ROWS] if room.exposed_us >= LEAST * step.step_us
    )  # fmt: skip
    if rows:
        heads = (Column("collective"), Column("exposed", Unit.TIME), Column("could hide", Unit.TIME), Column("why"))
        yield Table(heads, rows, tuple(str(row[0]) for row in rows))
    path = sorted(((us, kind) for kind, us in overlap.predicted.timeline.path_us.items() if us > 0), reverse=True)
    yield Prose(f"Critical path of the schedule: {', '.join(f'{kind} {figures.time(us)}' for us, kind in path)}.")
    use = overlap.use
    if use is None:
        return
    yield Prose(
        f"The scheduler's profile had costs for {figures.share(use.covered)} of the measured time, off by "
        f"{figures.share(use.off)}. With it a step was predicted to take {figures.time(use.step_us)}, "
        f"{figures.time(use.exposed_us)} of it exposed."
    )
    wrong = [row for row in use.rows[:ROWS] if abs(row.error_us) >= LEAST * step.step_us]
    if wrong:
        columns = (Column("most wrong"), Column("times", Unit.RATE), Column("profile", Unit.TIME),
                   Column("measured", Unit.TIME), Column("of the step", Unit.CHANGE))  # fmt: skip
        cells = tuple(
            (row.name, row.count, row.profile_us, row.measured_us, row.error_us / step.step_us) for row in wrong
        )
        yield Table(columns, cells, tuple(row.name for row in wrong))


def memory_line(memory: Memory) -> str:
    """The peak and its share of what a program can have."""
    limit = ""
    if memory.limit_bytes is not None and memory.device_bytes is not None:
        default = " that JAX takes by default" if memory.limit_bytes < memory.device_bytes else ""
        limit = f", {figures.share(memory.used_share)} of the {figures.size(memory.limit_bytes)}{default}"
    return f"peak memory {figures.size(memory.peak_bytes)}{limit}"


def _memory(memory: Memory) -> Iterator[Part]:
    kinds = (
        ("arguments", memory.arguments_bytes),
        ("results", memory.outputs_bytes),
        ("temporary", memory.temporary_bytes),
    )
    yield Prose(f"{_sentence(memory_line(memory))} At {memory.at} ({memory.origin}).")
    rows = (*kinds, *((printable(item.name), item.size_bytes) for item in memory.live))
    notes = ("", "", "", *(f"{cut(item.shape, 40)} {short_source(item.source)}" for item in memory.live))
    cells = tuple((name, size, note) for (name, size), note in zip(rows, notes, strict=True))
    yield Table((Column("at the peak"), Column("size", Unit.SIZE), Column("")), cells[:ROWS])


def tones(share: float) -> Tone:
    """The colour of a row that grew or shrank."""
    return "bad" if share > 0 else "good" if share < 0 else ""


def idle_words(step: MeasuredStep) -> str:
    """Causes of idle time, the longest first; the last one, compiling, is a part of others."""
    causes: Iterable[tuple[str, float]] = list(step.idle_us.items())[:-1]
    named = sorted((row for row in causes if row[1] >= 0.001 * step.step_us), key=lambda row: -row[1])
    return ", ".join(f"{name} {figures.time(us)}" for name, us in named)
