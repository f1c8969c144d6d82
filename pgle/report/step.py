"""A step in parts: names, colours and tiles; and the sections of a measured one, from findings to memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal, TypeAlias

from pgle.analyze.analysis import MeasuredStep, Memory
from pgle.analyze.collectives import MeasuredCollective, Overlap
from pgle.analyze.layers import Layer, Layers, TrainingPhase, folded, short_source
from pgle.analyze.rules import StepFinding
from pgle.analyze.window import mean_breakdown
from pgle.errors import cut, printable
from pgle.report.page import figures
from pgle.report.page.value import Bar, Cell, Part, Prose, Section, Table, Tile, Tone, Value, table
from pgle.report.timeline import rank_label
from pgle.run.analyze import Analysis
from pgle.schedule.predict import ExposedGroup
from pgle.schedule.program import Breakdown

Color: TypeAlias = Literal["compute", "exposed", "copy", "idle"]
PARTS: Mapping[Color, str] = {
    "compute": "compute", "exposed": "exposed communication", "copy": "exposed copies", "idle": "idle",
}  # fmt: skip
"""The parts of a step that add up to it, by the name of their colour."""
EXPLAINED = 0.95  # of the exposed time; so much of it the groups on the first screen explain, if `GROUPS` can
GROUPS = 3


def times_of(found: Breakdown) -> tuple[float, ...]:
    """The `PARTS` of a step, in microseconds."""
    return found.compute_us, found.exposed_communication_us, found.exposed_copy_us, found.idle_us


def parts_of(found: Breakdown) -> list[tuple[str, float]]:
    """The `PARTS` of a step by name, in microseconds."""
    return list(zip(PARTS.values(), times_of(found), strict=True))


def tiles(sides: Sequence[tuple[str, Breakdown]], note: str = "") -> tuple[Tile, ...]:
    """Step, exposed and idle time as tiles: of two sides with the change, of one as shares of the step.

    Args:
        sides: one step, or one before and one after, each with its name.
        note: what holds for all figures: ``simulated``.
    """

    def tile(label: str, times: Sequence[float], bars: tuple[Bar, ...] = ()) -> Tile:
        about = figures.change(times[1] / times[0] - 1) if len(times) > 1 and times[0] > 0 else ""
        if len(times) < 2 and not bars:
            about = f"{figures.share(times[0] / max(sides[0][1].step_us, 1e-9))} of the step"
        figure = " → ".join(dict.fromkeys(map(figures.time, times)))
        return Tile(label, figure, bars, ", ".join(filter(None, (about, note))))

    steps = [parts for _, parts in sides]
    longest_us = max(1e-9, *(parts.step_us for parts in steps))
    exposed = [parts.exposed_communication_us + parts.exposed_copy_us for parts in steps]
    return (
        tile("step", [parts.step_us for parts in steps], tuple(_bar(*side, longest_us) for side in sides)),
        tile("exposed: the GPU waits", exposed),
        tile("idle: nothing runs on the GPU", [parts.idle_us for parts in steps]),
    )


def _bar(label: str, found: Breakdown, longest_us: float) -> Bar:
    """A step, as long as it is of the longest; in words the shares of its own time."""
    times = dict(zip(PARTS, times_of(found), strict=True))
    shares = {color: us / max(found.step_us, 1e-9) for color, us in times.items()}
    words = ", ".join(f"{figures.share(share)} {color}" for color, share in shares.items() if share > 5e-4)
    return Bar(label, words, tuple((color, us / longest_us) for color, us in times.items()))


def most_exposed(found: Sequence[ExposedGroup], least_us: float) -> list[ExposedGroup]:
    """The groups that explain most of the exposed time, three at most.

    Args:
        found: collectives in groups.
        least_us: exposed time that need not be explained.
    """
    total_us = left_us = sum(group.most_us for group in found)
    chosen: list[ExposedGroup] = []
    for group in sorted(found, key=lambda group: -group.most_us)[:GROUPS]:
        if left_us <= max((1 - EXPLAINED) * total_us, least_us) or group.most_us <= 0:
            break
        left_us -= group.most_us
        chosen.append(group)
    return chosen


ROWS = 200  # of a table; `pgle analyze --json` has all
SCOPES, SCOPE_WIDTH = 16, 32  # rows of the table of layers, and characters of a layer's name
LEAST = 0.0005  # of the step; less is no row


def step_sections(found: Analysis) -> tuple[Section, ...]:
    """Facts about a step."""
    step = found.step
    parts: dict[tuple[str, str], Iterable[Part]] = {
        ("findings", "Findings"): tuple(_findings(found.findings)) or (Prose("No finding."),),
        ("parts", "Where the time of a step goes"): _parts(step),
        ("steps", "Step times"): _steps(step),
        ("layers", "Layers and source lines"): _layers(step.layers, step) if step.layers is not None else (),
        ("instructions", "Instructions, their executions added up"): (_instructions(step),) if step.compute else (),
        ("collectives", "Collectives"): _collectives(step) if step.collectives else (),
        ("schedule", "What the scheduler could hide"): _overlap(step.overlap, step) if step.overlap is not None else (),
        ("memory", "Memory"): _memory(step.memory) if step.memory is not None else (),
        ("recording", "Remarks on the recording"): (Prose(printable(line)) for line in step.costs.warnings),
    }
    made = (Section(*names, tuple(of)) for names, of in parts.items())
    return tuple(section for section in made if section.parts)


def _findings(found: Sequence[StepFinding]) -> Iterator[Part]:
    for place, finding in enumerate(found, start=1):
        saves = f", saves up to {figures.share(finding.share)}" if finding.share else ""
        yield Prose(f"{place}. {finding.title}{saves}", tone="head")
        yield Prose(f"{_sentence(finding.number)} {_sentence(finding.unclaimed)}".strip())
        rows = (
            (printable(short_scope(row.name)), row.us or None,
             printable("; ".join(filter(None, (row.note, short_scope(row.op_name.partition("[")[0]))))))
            for row in finding.evidence
        )  # fmt: skip
        yield table("in a step | time (time) | why", rows, finds=[row.name for row in finding.evidence])
        yield Prose(f"→ {_sentence(finding.remedy)}")


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:].rstrip('.')}." if text else ""


def _parts(step: MeasuredStep) -> Iterator[Part]:
    """The parts of the mean step, and of each rank's; idle time by cause."""
    rows = [("mean", step.breakdown), *((rank_label(step, one), mean_breakdown([one])) for one in step.windows)]
    shown = rows if len(step.windows) > 1 else rows[:1]
    heads = ["rank", "step (time)", *(f"{name} (time)" for name in PARTS.values())]
    yield table(heads, ((name, of.step_us, *(us or None for us in times_of(of))) for name, of in shown))
    causes = [(name, us, us / step.step_us) for name, us in step.idle_us.items() if us >= LEAST * step.step_us]
    if causes:
        yield table("idle | time (time) | of the step (share)", causes)
    if step.windows:
        kinds = "launch gaps: up to 20 µs; waits for the host: up to 1 ms; long waits: longer. All are inside steps."
        yield Prose(kinds, tone="soft")


def _steps(step: MeasuredStep) -> Iterator[Part]:
    """Every step of the window, and what was left out."""
    rows = (
        (str(item.execution), item.span_us, item.pause_us, item.step_us, Cell("slow", "warn") if item.is_slow else "")
        for item in step.parts.steps
    )
    yield table("execution | runs (time) | pause after it (time) | step (time) | ", rows, most=ROWS)
    if step.parts.steps and step.parts.steps[-1].pause_us is None:
        yield Prose("The last step is without the pause after it, which the trace does not show.", tone="soft")
    for number, why in list(step.costs.window.dropped.items())[:ROWS]:
        yield Prose(f"Execution {number} is left out: {why}.", tone="soft")


_PHASES = (TrainingPhase.FORWARD, TrainingPhase.BACKWARD, TrainingPhase.REMATERIALISED, TrainingPhase.OPTIMIZER)


def _layers(layers: Layers, step: MeasuredStep) -> Iterator[Part]:
    """By layer and source line, and how much of the GPU's peak is used."""
    for line in products_lines(step):
        yield Prose(line)
    heads = "layer | GPU time (time) | of the step (share) | forward (share) | backward (share) | recomputed (share)"
    rows = (_scope_row(name, group, step.step_us) for name, group in folded(layers.scopes, SCOPES))
    yield table(f"{heads} | update (share) | exposed (share) | of roofline (share)", rows, shown=SCOPES)
    lines = (
        (short_source(item.name) or "(no line)", item.us, item.us / step.step_us, item.instructions, _of_roof([item]))
        for item in layers.lines
    )
    heads = "source line | GPU time (time) | of the step (share) | instructions (count) | of roofline (share)"
    yield table(heads, lines, most=ROWS)


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
        again = f", {figures.share(layers.hfu)} with recomputation" if layers.hfu > layers.mfu else ""
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
    heads = "instruction | times (rate) | each (time) | in a step (time) | of the step (share) | opcode | shape"
    rows = (
        (printable(item.cost.name), item.count, item.cost.cost_us, item.us, item.us / step.step_us,
         item.cost.opcode, cut(item.cost.shape, 40))
        for item in step.compute
    )  # fmt: skip
    return table(heads, rows, finds=True, most=ROWS)


def exposed_groups(step: MeasuredStep) -> list[ExposedGroup]:
    """The exposed collectives by kind and reason, the most exposed group first."""
    found: dict[tuple[str, str], list[MeasuredCollective]] = {}
    for item in sorted(step.collectives, key=lambda item: -item.exposed_us):
        if item.exposed_us > 0:
            kind = item.kind + ", synchronous" * item.sync
            found.setdefault((kind, item.why), []).append(item)
    groups = (
        ExposedGroup(kind, why, items[0].name, count=round(max(sum(item.count for item in items), 1)),
                      after_us=sum(item.exposed_us for item in items))
        for (kind, why), items in found.items()
    )  # fmt: skip
    return sorted(groups, key=lambda group: -group.after_us)


def group_label(group: ExposedGroup) -> str:
    """``all-gather ×72, synchronous``."""
    kind, comma, sync = group.kind.partition(",")
    return f"{kind} ×{group.count:,}{comma}{sync}"


def _collectives(step: MeasuredStep) -> Iterator[Part]:
    """By kind and reason, then each."""
    groups = [(group_label(one), one.after_us, one.after_us / step.step_us, one.why) for one in exposed_groups(step)]
    if groups:
        yield table("exposed | time (time) | of the step (share) | why", groups)
    heads = (
        "collective | times (rate) | each (time) | exposed (time) | waits (time) | expected (time) | bus GB/s (rate) | "
        "of (rate) | "
    )
    yield table(heads, map(_collective, step.collectives[:ROWS]), finds=True)
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
    rows = [
        (item.name, item.transfer_exposed_us, item.hideable_us or None, item.why)
        for item in step.judged[:ROWS]
        if item.transfer_exposed_us >= LEAST * step.step_us
    ]
    if rows:
        yield table("collective | exposed (time) | could hide (time) | why", rows, finds=True)
    if (use := overlap.use) is not None:
        yield Prose(
            f"The scheduler's profile had costs for {figures.share(use.covered)} of the measured time, off by "
            f"{figures.share(use.off)}."
        )


def _memory(memory: Memory) -> Iterator[Part]:
    """The peak, its share of what a program can have, and what lives there."""
    plan, limit = memory.plan, ""
    if memory.limit_bytes is not None and memory.device_bytes is not None:
        default = " that JAX takes by default" if memory.limit_bytes < memory.device_bytes else ""
        limit = f", {figures.share(memory.used_share)} of the {figures.size(memory.limit_bytes)}{default}"
    where = f" at {plan.peak_at}" if plan.peak_at else ""
    yield Prose(f"Peak memory {figures.size(plan.peak_bytes)}{where}, by XLA's plan{limit}.")
    kinds = (("arguments", plan.arguments_bytes), ("results", plan.outputs_bytes), ("temporary", plan.temporary_bytes))
    rows: list[tuple[Value, ...]] = [(*kind, "") for kind in kinds]
    for item in memory.live:
        note = f"{cut(item.shape, 40)} {short_source(item.source)}"
        rows.append((printable(item.name), item.size_bytes, note))
    yield table("at the peak | size (size) | ", rows)


def tones(share: float) -> Tone:
    """The colour of a row that grew or shrank."""
    return "bad" if share > 0 else "good" if share < 0 else ""


def idle_words(step: MeasuredStep) -> str:
    """Causes of idle time, the longest first; the last one, compiling, is a part of others."""
    causes: Iterable[tuple[str, float]] = list(step.idle_us.items())[:-1]
    named = sorted((row for row in causes if row[1] >= 0.001 * step.step_us), key=lambda row: -row[1])
    return ", ".join(f"{name} {figures.time(us)}" for name, us in named)
