"""What a trace holds, as a page and as JSON."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from pgle.errors import many, printable
from pgle.report import text
from pgle.report.page import figures
from pgle.report.page.value import Page, Prose, Section, Table, table
from pgle.trace.summary import InstructionSummary, ModuleSummary, TraceSummary

ROWS = 8  # of the first screen
_NAMES = {"kernel": "kernels", "memcpy": "copies", "memset": "memsets", "host": "thunks on the CPU"}


def trace_page(path: str, summary: TraceSummary, instructions: Sequence[InstructionSummary], following: str) -> Page:
    """Modules with their executions first; instructions, devices and what was left out in sections."""
    kinds = ", ".join(f"{count:,} {_NAMES[kind]}" for kind, count in summary.kinds.items())
    formats = dict.fromkeys(f"{source.format} {source.version}".strip() for source in summary.sources)
    left = tuple(_left_out(summary.modules))
    unresolved = [
        (item.count, item.duration_ns / 1e3, summary.meanings.get(item.reason) or item.reason)
        for item in summary.unresolved
    ]
    lost = table("activities (count) | time (time) | why", unresolved)
    sections = [
        Section("instructions", "Instructions", (_instruction_table(instructions),)),
        Section("devices", "Devices", (_device_table(summary),)),
    ]
    if left or unresolved:
        dropped = tuple(Prose(line) for line in left)
        sections.append(Section("left-out", "Left out", (*dropped, *([lost] if unresolved else []))))
    if summary.xla_flags:
        sections.append(Section("flags", "XLA_FLAGS", (Prose(summary.xla_flags, code=True),)))
    skipped = f", {many(len(left), 'execution')} left out" if left else ""
    return Page(
        title=f"pgle show {path}",
        identity=(
            path,
            *formats,
            many(len(summary.devices), "device"),
            "simulated" if summary.simulated else "measured",
        ),
        verdict=f"{kinds} in {figures.time(summary.span_us)}",
        table=_module_table(summary.modules),
        notes=(
            f"{many(len(summary.modules), 'module')}, {many(len(summary.instructions), 'instruction')}, "
            f"{figures.time(summary.gpu_time_us)} of device time{skipped} (--all)",
        ),
        sections=tuple(sections),
        next=(following.removeprefix("next: "),),
        warnings=tuple(map(printable, summary.warnings)),
    )


def _module_table(modules: Sequence[ModuleSummary]) -> Table:
    rows = (
        (
            printable(item.module.name) + ("" if item.module.program_id is None else f" ({item.module.program_id})"),
            f"{item.steady} of {len(item.executions)}",
            max((execution.devices for execution in item.executions), default=0),
            None if math.isnan(item.step_us) else item.step_us,
            item.gpu_time_us,
            item.share,
        )
        for item in modules
    )
    return table(
        "module | steady | devices (count) | median span (time) | time (time) | share (share)", rows, shown=ROWS
    )


def _left_out(modules: Sequence[ModuleSummary]) -> Iterator[str]:
    for item in modules:
        for execution in item.executions:
            if execution.left_out:
                yield printable(f"execution {execution.number} of {item.module.name}: {execution.left_out}")


def _instruction_table(instructions: Sequence[InstructionSummary]) -> Table:
    rows = ((printable(i.name), f"{i.kind}?", i.launches, i.gpu_time_us, i.share) for i in instructions)
    return table("instruction | kind | launches (count) | time (time) | share (share)", rows)


def _device_table(summary: TraceSummary) -> Table:
    rows = (
        (
            f"{printable(item.device.process)} {item.device.ordinal}", item.device.global_id, item.streams,
            item.activities, item.busy_us, item.span_us,
        )
        for item in summary.devices
    )  # fmt: skip
    return table("device | JAX id (count) | streams (count) | activities (count) | busy (time) | span (time)", rows)


def document(
    path: str, summary: TraceSummary, instructions: Sequence[InstructionSummary], following: str
) -> dict[str, object]:
    """``pgle.show/1`` with a ``trace``."""
    found = text.plain(summary)
    found["instructions"] = instructions
    for record, module in zip(found["modules"], summary.modules, strict=True):
        record["steady"] = module.steady
    return {"path": path, "trace": found, "next": following}
