"""A measured step taken apart, as text and JSON."""

from __future__ import annotations

from typing import Any

from pgle.analyze.collectives import MeasuredCollective
from pgle.analyze.findings import THRESHOLDS, Evidence, Finding
from pgle.report import json
from pgle.report.text import bar, console, duration, printable, table, warn
from pgle.run.analyze import Analysis
from pgle.trace.nsys.kernels import WHOLE

SHOWN = 8
"""Collectives in the text table; ``--json`` has all."""


def show_text(found: Analysis) -> None:
    """Parts of the step, collectives, findings, and what to do next; warnings on stderr."""
    screen, step = console(), found.step
    devices, parts = len(step.windows), step.breakdown
    per_device = step.steps / max(devices, 1)
    name = printable(step.costs.program.key.name)
    of = "" if name == WHOLE else f" a step, mean of {per_device:g} step{'s' * (per_device != 1)}"
    screen.print(f"{name}: {duration(parts.step_us)}{of} on {devices} device{'s' * (devices != 1)}")
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
    if step.collectives:
        screen.print()
        screen.print(
            table(
                ("collective", "time", "exposed", "waits", "bus GB/s", "expected"),
                [_collective(item) for item in step.collectives[:SHOWN]],
                right="time|exposed|waits|bus GB/s|expected",
                whole="time|exposed|waits|bus GB/s|expected",
            )
        )
        if len(step.collectives) > SHOWN:
            screen.print(f"… and {len(step.collectives) - SHOWN} more (--json has all)", style="dim")
    for number, finding in enumerate(found.findings, start=1):
        screen.print()
        _show_finding(screen, number, finding)
    screen.print()
    screen.print(found.next, style="bold")
    warn(found.warnings)


def _show_finding(screen: Any, number: int, finding: Finding) -> None:
    saves = f", could save up to {finding.share:.1%}" if finding.share else ""
    screen.print(f"{number}. {finding.id}{saves}", style="bold")
    screen.print(printable(finding.number))
    rows = [_evidence(row) for row in finding.evidence]
    screen.print(table(("in a step", "time", ""), rows, right="time", whole="time"))
    screen.print(f"→ {finding.remedy}.")


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


def _evidence(row: Evidence) -> tuple[str, ...]:
    where = short_op_name(row.op_name)
    note = "; ".join(filter(None, (row.note, where)))
    return printable(row.name), duration(row.us) if row.us else "", printable(note)


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
            "next": found.next,
            "warnings": found.warnings,
        },
    )
    warn(found.warnings)


def _collective_json(item: MeasuredCollective) -> dict[str, Any]:
    found: dict[str, Any] = json.plain(item)
    return {**found, "bus_gb_s": item.bus_gb_s}
