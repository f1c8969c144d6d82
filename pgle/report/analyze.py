"""A measured step taken apart, as text and JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pgle.analyze.collectives import MeasuredCollective
from pgle.analyze.findings import THRESHOLDS, Evidence, Finding
from pgle.analyze.layers import Layer, Layers, Phase, folded, short_source
from pgle.analyze.memory import Memory
from pgle.report import json
from pgle.report.text import bar, console, duration, printable, table, warn
from pgle.run.analyze import Analysis
from pgle.trace.nsys.kernels import WHOLE

SHOWN = 8
"""Collectives in the text table; ``--json`` has all."""
SCOPE_WIDTH = 24
"""Characters of a layer's name in the text table."""
SCOPES, LINES, VALUES = 10, 6, 5
"""Rows of the tables of layers, source lines and values in memory."""


def show_text(found: Analysis) -> None:
    """What to do first, where the time goes, findings, and the step by layer, collective and memory."""
    screen, step = console(), found.step
    devices, parts = len(step.windows), step.breakdown
    per_device = step.steps / max(devices, 1)
    name = printable(step.costs.program.key.name)
    of = "" if name == WHOLE else f" a step, mean of {per_device:g} step{'s' * (per_device != 1)}"
    screen.print(f"{name}: {duration(parts.step_us)}{of} on {devices} device{'s' * (devices != 1)}")
    screen.print(_verdict(found), style="bold")
    screen.print()
    rows = [
        ("compute", parts.compute_us),
        ("exposed communication", parts.exposed_communication_us),
        ("exposed copies", parts.exposed_copy_us),
        ("idle", parts.idle_us),
    ]
    cells = [(name, duration(us), f"{us / parts.step_us:.1%}", bar(us / parts.step_us)) for name, us in rows]
    screen.print(table(("", "time", "share", ""), cells, right="time|share", whole="|time|share"))
    if step.waiting_us > 0.001 * parts.step_us:
        screen.print(f"of the exposed communication {duration(step.waiting_us)} are waits for another rank")
    for number, finding in enumerate(found.findings, start=1):
        screen.print()
        _show_finding(screen, number, finding)
    if step.layers is not None:
        _show_layers(screen, step.layers, parts.step_us)
    if step.collectives:
        _show_collectives(screen, step.collectives)
    if step.memory is not None:
        _show_memory(screen, step.memory)
    screen.print()
    screen.print(found.next, style="bold")
    warn(found.warnings)


def _verdict(found: Analysis) -> str:
    """What could be saved, in a line."""
    saving = [finding for finding in found.findings if finding.share]
    if not saving:
        return "Nothing stands out."
    named = ", ".join(f"{finding.id} up to {finding.share:.1%}" for finding in saving[:3])
    return f"Could be saved: {named}" + (f", and {len(saving) - 3} more." if len(saving) > 3 else ".")


def _show_finding(screen: Any, number: int, finding: Finding) -> None:
    saves = f", could save up to {finding.share:.1%}" if finding.share else ""
    screen.print(f"{number}. {finding.id}{saves}", style="bold")
    screen.print(printable(finding.number))
    rows = [_evidence(row) for row in finding.evidence]
    screen.print(table(("in a step", "time", ""), rows, right="time", whole="time"))
    screen.print(f"→ {finding.remedy}.")


def _evidence(row: Evidence) -> tuple[str, ...]:
    where = short_op_name(row.op_name)
    note = "; ".join(filter(None, (row.note, where)))
    return printable(row.name), duration(row.us) if row.us else "", printable(note)


def _show_layers(screen: Any, layers: Layers, step_us: float) -> None:
    scopes = [_scope(name, group, step_us) for name, group in folded(layers.scopes, SCOPES)]
    _show_table(screen, ("layer", "GPU time", "fwd", "bwd", "again", "update", "exposed", "roof"), scopes)
    lines = [_line(layer, step_us) for layer in layers.lines[:LINES]]
    _show_table(screen, ("source line", "GPU time", "share", "kernels", "roof"), lines)
    for item in layers.products[:3]:
        peak = "" if item.peak_tflops is None else f" of {item.peak_tflops:.4g}"
        where = "" if item.tensor_cores else ", off the Tensor Cores"
        screen.print(
            f"matrix products in {item.dtype}{where}: {duration(item.us)} ({item.us / step_us:.1%}), "
            f"{item.tflops:.3g}{peak} TFLOP/s"
        )
    if layers.mfu is not None and layers.hfu is not None:
        again = f"; {layers.hfu:.1%} with what is computed again" if layers.hfu > layers.mfu else ""
        screen.print(f"model flops utilisation (MFU) {layers.mfu:.1%} of the peak{again}")


def _show_table(screen: Any, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table of numbers, whose first column names them."""
    screen.print()
    screen.print(table(columns, rows, right="|".join(columns[1:]), whole="|".join(columns[1:])))


def _line(layer: Layer, step_us: float) -> tuple[str, ...]:
    name = short_source(layer.name) or "(no line)"
    return name, duration(layer.us), f"{layer.us / step_us:.1%}", str(layer.instructions), _of_roofline([layer])


def _scope(name: str, group: Sequence[Layer], step_us: float) -> tuple[str, ...]:
    phases = [sum(layer.us for layer in group if layer.phase == phase) for phase in _COLUMNS]
    shares = [*phases, sum(layer.exposed_us for layer in group)]
    shown = [f"{us / step_us:.1%}" if us >= 0.0005 * step_us else "" for us in shares]
    return _short_scope(name) or "(no scope)", duration(sum(layer.us for layer in group)), *shown, _of_roofline(group)


def _short_scope(name: str) -> str:
    """The last scopes, as many as fit."""
    scopes = name.split("/")
    while len(scopes) > 1 and len("/".join(scopes)) > SCOPE_WIDTH:
        scopes = ["…", *(scopes[2:] if scopes[0] == "…" else scopes[1:])]
        if len(scopes) == 2:
            break
    short = "/".join(scopes)
    return short if len(short) <= SCOPE_WIDTH else f"{short[: SCOPE_WIDTH - 1]}…"


_COLUMNS = (Phase.FORWARD, Phase.BACKWARD, Phase.REMATERIALISED, Phase.OPTIMIZER)


def _of_roofline(group: Sequence[Layer]) -> str:
    known = [(layer.roofline_us, layer.us) for layer in group if layer.roofline_us is not None]
    total = sum(us for _, us in known)
    return f"{sum(roofline for roofline, _ in known) / total:.0%}" if total > 0 else ""


def _show_collectives(screen: Any, collectives: Sequence[MeasuredCollective]) -> None:
    columns = ("collective", "time", "exposed", "waits", "bus GB/s", "expected")
    _show_table(screen, columns, [_collective(item) for item in collectives[:SHOWN]])
    if len(collectives) > SHOWN:
        screen.print(f"… and {len(collectives) - SHOWN} more (--json has all)", style="dim")


def _collective(item: MeasuredCollective) -> tuple[str, ...]:
    times = f"{item.count:.3g} × " if item.count != 1 else ""
    bus, link = item.bus_gb_s, item.link
    return (
        printable(item.name) + (" (sync)" if item.sync else ""),
        f"{times}{duration(item.time_us)}",
        duration(item.exposed_us),
        duration(item.wait_us),
        "–" if bus is None or link is None else f"{bus:.3g} of {link.peak_gb_s:.3g}",
        "–" if link is None else duration(link.estimate_us),
    )


def _show_memory(screen: Any, memory: Memory) -> None:
    limit = ""
    if memory.limit_bytes is not None and memory.device_bytes is not None:
        jax = " that JAX takes by default" if memory.limit_bytes < memory.device_bytes else ""
        limit = f", {memory.used_share:.0%} of the {_gib(memory.limit_bytes)}{jax}"
    screen.print()
    screen.print(
        f"memory at its peak: {_gib(memory.peak_bytes)}{limit}: arguments {_gib(memory.arguments_bytes)}, results "
        f"{_gib(memory.outputs_bytes)}, temporary {_gib(memory.temporary_bytes)}, most at {memory.at} ({memory.origin})"
    )
    rows = [
        (item.name, _gib(item.size_bytes), f"{item.shape} {short_source(item.source)}") for item in memory.live[:VALUES]
    ]
    if rows:
        screen.print(table(("largest there", "size", ""), rows, right="size", whole="size"))


def _gib(size: int) -> str:
    power = max((size.bit_length() - 1) // 10, 0)
    return f"{size / 1024**power:.3g} {('B', 'KiB', 'MiB', 'GiB', 'TiB')[min(power, 4)]}"


def short_op_name(op_name: str) -> str:
    """The last three scopes of ``jit(step)/…/decoder/mlp/dot_general[…]``, without parameters."""
    return "/".join(op_name.partition("[")[0].split("/")[-3:])


def show_json(found: Analysis) -> None:
    """``pgle.analyze/1``; the integers of a rank add up to its window exactly."""
    step = found.step
    json.show(
        "pgle.analyze/1",
        {
            "module": step.costs.program.key.name,
            "step_us": step.breakdown.step_us,
            "steps": step.steps,
            "hardware": None if step.hardware is None else step.hardware.name,
            "breakdown": step.breakdown,
            "waiting_us": step.waiting_us,
            "skew_us": step.costs.skew_us,
            "collectives": [_collective_json(item) for item in step.collectives],
            "findings": [
                {
                    "id": finding.id,
                    "share": finding.share,
                    "number": finding.number,
                    "evidence": finding.evidence,
                    "remedy": finding.remedy,
                    "rule": THRESHOLDS[finding.id].rule,
                    "source": THRESHOLDS[finding.id].source,
                }
                for finding in found.findings
            ],
            "ranks": [
                {"device": step.trace.devices[window.device], "steps": window.steps, **json.plain(window.parts)}
                for window in step.windows
            ],
            "layers": step.layers,
            "memory": step.memory,
            "next": found.next,
            "warnings": found.warnings,
        },
    )
    warn(found.warnings)


def _collective_json(item: MeasuredCollective) -> dict[str, Any]:
    found: dict[str, Any] = json.plain(item)
    known = found.pop("instruction") or {}
    return {**found, "op_name": item.op_name, "source": known.get("source", ""), "bus_gb_s": item.bus_gb_s}
