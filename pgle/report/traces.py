"""A trace as a page and as JSON: its modules, instructions and devices, and what was left out."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from pgle.errors import many, printable
from pgle.next import Next, to_way
from pgle.report.page import figures
from pgle.report.page.figures import Unit
from pgle.report.page.value import Column, Page, Prose, Section, Table, Value, table
from pgle.report.text import Document, flat
from pgle.trace.summary import (
    DeviceSummary,
    InstructionSummary,
    ModuleSummary,
    TraceSummary,
)
from pgle.trace.table import Recording, Source, Unresolved

MODULES = 8  # on the first screen


def trace_page(path: str, summary: TraceSummary, following: Next) -> Page:
    """Show modules with their executions. Sections have instructions, devices and what was left
    out.
    """
    kinds = [f"{count:,} {kind.words}" for kind, count in summary.kinds.items()]
    span = figures.time(summary.span_us)
    left = tuple(map(Prose, _left_executions(summary)))
    flags = Prose(summary.trace.xla_flags, code=True)
    counts = _counts(summary, left_out=len(left))
    sections = (
        Section("instructions", "Instructions", (_instructions(summary),)),
        Section("devices", "Devices", (_devices(summary),)),
        Section("left-out", "Left out", (*left, _lost(summary))),
        Section("flags", "XLA_FLAGS", (flags,)),
    )
    return Page(
        title=f"pgle show {path}",
        identity=(path, *_identity(summary)),
        verdict=f"{', '.join(kinds)} in {span}",
        table=_modules(summary),
        notes=(counts,),
        sections=sections,
        way=to_way([following]),
        warnings=tuple(map(printable, summary.trace.warnings)),
    )


def _identity(summary: TraceSummary) -> tuple[str, ...]:
    """Formats, devices, and whether a GPU was measured."""
    trace = summary.trace
    formats = (f"{source.format} {source.version}".strip() for source in trace.sources)
    origin = "simulated" if trace.simulated else "measured"
    devices = many(len(summary.devices), "device")
    return (*dict.fromkeys(formats), devices, origin)


def _counts(summary: TraceSummary, left_out: int) -> str:
    """How many modules and instructions there are, and their time."""
    modules = many(len(summary.modules), "module")
    instructions = many(len(summary.instructions), "instruction")
    time = f"{figures.time(summary.gpu_time_us)} of device time"
    skipped = f", {many(left_out, 'execution')} left out" if left_out else ""
    return f"{modules}, {instructions}, {time}{skipped} (--all)"


def _left_executions(summary: TraceSummary) -> Iterator[str]:
    """A line for each execution that is not used for costs."""
    for item in summary.modules:
        of_module = f"of {item.module.name}"
        for execution in item.executions:
            why = execution.left_out
            if why:
                yield printable(f"execution {execution.number} {of_module}: {why}")


def _modules(summary: TraceSummary) -> Table:
    """A row for each module: its steady executions, and its time."""
    heads = (
        "module",
        "steady",
        Column("devices", Unit.COUNT),
        Column("median span", Unit.TIME),
        Column("time", Unit.TIME),
        Column("share", Unit.SHARE),
    )
    return table(heads, map(_module_row, summary.modules), shown=MODULES)


def _module_row(item: ModuleSummary) -> tuple[Value, ...]:
    """A row for a module. Its span is unknown if no execution is steady."""
    name = printable(item.module.name)
    if item.module.program_id is not None:
        name = f"{name} ({item.module.program_id})"
    devices = (execution.devices for execution in item.executions)
    return (
        name,
        f"{item.steady} of {len(item.executions)}",
        max(devices, default=0),
        None if math.isnan(item.step_us) else item.step_us,
        item.gpu_time_us,
        item.share,
    )


def _instructions(summary: TraceSummary) -> Table:
    """A row for each instruction, the costliest first."""
    heads = (
        "instruction",
        "kind",
        Column("launches", Unit.COUNT),
        Column("time", Unit.TIME),
        Column("share", Unit.SHARE),
    )
    return table(heads, map(_instruction_row, summary.instructions))


def _instruction_row(item: InstructionSummary) -> tuple[Value, ...]:
    """A row for an instruction. Without HLO its kind is guessed from its name."""
    kind = f"{item.kind}?"  # guessed from the name
    return printable(item.name), kind, item.launches, item.gpu_time_us, item.share


def _devices(summary: TraceSummary) -> Table:
    """A row for each device: its activities, and how long it was busy."""
    counts = (
        Column("JAX id", Unit.COUNT),
        Column("streams", Unit.COUNT),
        Column("activities", Unit.COUNT),
    )
    heads = ("device", *counts, Column("busy", Unit.TIME), Column("span", Unit.TIME))
    return table(heads, map(_device_row, summary.devices))


def _device_row(item: DeviceSummary) -> tuple[Value, ...]:
    return (
        f"{printable(item.device.process)} {item.device.ordinal}",
        item.device.global_id,
        item.streams,
        item.activities,
        item.busy_us,
        item.span_us,
    )


def _lost(summary: TraceSummary) -> Table:
    """The activities that belong to no instruction, with the reasons."""
    rows: list[tuple[Value, ...]] = []
    for item in summary.trace.unresolved:
        why = summary.meanings.get(item.reason) or item.reason
        rows.append((item.count, item.duration_ns / 1e3, why))
    heads = (Column("activities", Unit.COUNT), Column("time", Unit.TIME), "why")
    return table(heads, rows)


class ListedModule(Document):
    """A module of a trace as `pgle show --json` lists it."""

    summary: ModuleSummary = flat()
    steady: int


class ListedTrace(Document):
    """What a trace holds, without its activities."""

    sources: tuple[Source, ...]
    recordings: Mapping[str, Recording]
    unresolved: tuple[Unresolved, ...]
    simulated: bool
    xla_flags: str
    warnings: tuple[str, ...]
    span_us: float
    gpu_time_us: float
    devices: tuple[DeviceSummary, ...]
    modules: tuple[ListedModule, ...]
    meanings: Mapping[str, str]
    instructions: tuple[InstructionSummary, ...]
    kinds: Mapping[str, int]


class TraceDocument(Document):
    """``pgle.show/1`` of a trace."""

    path: str
    trace: ListedTrace


def trace_document(path: str, summary: TraceSummary) -> TraceDocument:
    """The content of a trace."""
    return TraceDocument(path, _listed_trace(summary))


def _listed_trace(summary: TraceSummary) -> ListedTrace:
    trace = summary.trace
    kinds = {kind.name.lower(): count for kind, count in summary.kinds.items()}
    modules = tuple(ListedModule(item, item.steady) for item in summary.modules)
    return ListedTrace.of_value(summary, trace, modules=modules, kinds=kinds)
