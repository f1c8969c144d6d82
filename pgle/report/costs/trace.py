"""What a trace holds, as text and JSON."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from pgle.errors import many
from pgle.report import json
from pgle.report.text import console, duration, numbers, printable, show_rest, table, warn
from pgle.trace.summary import DeviceSummary, InstructionSummary, ModuleSummary, TraceSummary

MOST_MODULES = 8
MOST_DEVICES = 8
MOST_EXECUTIONS = 6  # lines of each; ``--json`` has all


def show_text(
    path: str, summary: TraceSummary, instructions: Sequence[InstructionSummary], top: int, following: str
) -> None:
    """Modules, executions left out, the first `top` instructions (0: all), devices, and the command that follows."""
    out = console()
    out.print(f"{printable(path)}: {_counts(summary)}", style="bold", soft_wrap=True)
    for line in _facts(summary):
        out.print(printable(line), style="dim")
    out.print()
    out.print(_module_table(summary.modules[:MOST_MODULES]))
    show_rest(out, len(summary.modules) - MOST_MODULES)
    for line in _left_out(summary.modules):
        out.print(printable(line), style="dim")
    out.print()
    shown = instructions[: top or None]
    out.print(_instruction_table(shown) if shown else "no instruction of that kind")
    if len(shown) < len(instructions):
        out.print(f"… and {len(instructions) - len(shown):,} more (--top 0 lists all)", style="dim")
    out.print()
    out.print(_device_table(summary.devices[:MOST_DEVICES]))
    show_rest(out, len(summary.devices) - MOST_DEVICES)
    for item in summary.unresolved:
        why = summary.meanings.get(item.reason) or item.reason
        out.print(f"left out: {item.count:,} activities, {duration(item.duration_ns / 1e3)}: {why}", style="dim")
    out.print(f"next: {following}", soft_wrap=True)
    warn(map(printable, summary.warnings))


def _counts(summary: TraceSummary) -> str:
    names = {"kernel": "kernels", "memcpy": "copies", "memset": "memsets", "host": "thunks on the CPU"}
    kinds = ", ".join(f"{count:,} {names[kind]}" for kind, count in summary.kinds.items())
    simulated = "simulated: " if summary.simulated else ""
    return f"{simulated}{kinds} in {duration(summary.span_us)}"


def _facts(summary: TraceSummary) -> Iterator[str]:
    formats = dict.fromkeys(f"{source.format} {source.version}".strip() for source in summary.sources)
    number = len({item.device.process for item in summary.devices})
    where = f"{number} process{'es' * (number > 1)}, {many(len(summary.devices), 'device')}"
    yield f"{', '.join(formats)}; {where}, {duration(summary.gpu_time_us)} of device time"
    yield f"{many(len(summary.modules), 'module')}, {len(summary.instructions):,} instructions"
    if summary.xla_flags:
        yield f"XLA_FLAGS {summary.xla_flags}"


def _module_table(modules: Sequence[ModuleSummary]) -> object:
    rows = [
        (
            _label(item),
            f"{item.steady} of {len(item.executions)}",
            str(max((execution.devices for execution in item.executions), default=0)),
            "–" if math.isnan(item.step_us) else duration(item.step_us),
            duration(item.gpu_time_us),
            f"{item.share:.1%}",
        )
        for item in modules
    ]
    return numbers(("module", "steady", "devices", "median span", "time", "share"), rows)


def _label(item: ModuleSummary) -> str:
    number = "" if item.module.program_id is None else f" ({item.module.program_id})"
    return printable(item.module.name) + number


def _left_out(modules: Sequence[ModuleSummary]) -> Iterator[str]:
    lines = [
        f"left out: execution {execution.number} of {item.module.name}, {execution.left_out}"
        for item in modules
        for execution in item.executions
        if execution.left_out
    ]
    yield from lines[:MOST_EXECUTIONS]
    if len(lines) > MOST_EXECUTIONS:
        yield f"… and {len(lines) - MOST_EXECUTIONS:,} more executions (--json lists all)"


def _instruction_table(shown: Sequence[InstructionSummary]) -> object:
    rows = [
        (printable(item.name), f"{item.kind}?", f"{item.launches:,}", duration(item.gpu_time_us), f"{item.share:.1%}")
        for item in shown
    ]
    return table(
        ("instruction", "kind", "launches", "time", "share"), rows,
        right="launches|time|share", whole="kind|launches|time|share",
    )  # fmt: skip


def _device_table(devices: Sequence[DeviceSummary]) -> object:
    rows = [
        (
            f"{printable(item.device.process)} {item.device.ordinal}",
            "–" if item.device.global_id is None else str(item.device.global_id),
            str(item.streams),
            f"{item.activities:,}",
            duration(item.busy_us),
            duration(item.span_us),
        )
        for item in devices
    ]
    return numbers(("device", "JAX id", "streams", "activities", "time", "span"), rows)


def show_json(
    path: str, summary: TraceSummary, instructions: Sequence[InstructionSummary], top: int | None, following: str
) -> None:
    """``pgle.show/1`` with a ``trace``; all instructions unless `top` says otherwise."""
    found = json.plain(summary)
    found["instructions"] = instructions[: top or None]
    for record, module in zip(found["modules"], summary.modules, strict=True):
        record["steady"] = module.steady
    json.show("pgle.show/1", {"path": path, "trace": found, "next": following})
    warn(map(printable, summary.warnings))
