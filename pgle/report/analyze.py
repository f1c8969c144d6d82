"""A measured step taken apart, as text and JSON."""

from __future__ import annotations

from typing import Any

from pgle.analyze.collectives import MeasuredCollective
from pgle.analyze.differences import Differences
from pgle.analyze.findings import THRESHOLDS, Evidence, Finding
from pgle.analyze.overlap import Overlap
from pgle.errors import many
from pgle.report import json
from pgle.report.analyze_parts import (
    idle_line,
    product_lines,
    short_scope,
    show_collectives,
    show_differences,
    show_layers,
    show_memory,
    show_overlap,
    signed,
)
from pgle.report.text import bar, console, duration, printable, table, warn
from pgle.report.timeline.scene import parts_of
from pgle.run.analyze import Analysis

CLEAN = "Nothing stands out."
SAME = 0.00005  # of a step: less is not shown


def show_text(found: Analysis) -> None:
    """What could be saved, where the time goes, findings, the step by its parts, and what to do first."""
    screen = console()
    screen.print(_headline(found))
    if found.against is not None:
        show_differences(screen, found.against)
    else:
        _show_step(screen, found)
    screen.print()
    for line in found.next.splitlines():
        screen.print(line, style="bold", soft_wrap=line.startswith(" "))
    warn(found.warnings)


def _headline(found: Analysis) -> str:
    step = found.step
    devices, us = len(step.windows), step.step_us
    per_device = step.steps / max(devices, 1)
    of = f"mean of {per_device:g} steps" if per_device > 1 else "one step without the pause after it,"
    name = printable(step.costs.program.key.name)
    on = many(devices, "device")
    simulated = " (simulated)" if step.trace.simulated else ""
    line = f"{name}: {duration(us)} a step{simulated}, {of} on {on}"
    if found.against is None:
        return line
    if abs(found.against.share) < SAME:
        return f"{line}: as long as before"
    return f"{line}: {signed(found.against.delta_us)} ({found.against.share:+.2%}) since before"


def _show_step(screen: Any, found: Analysis) -> None:
    step, us = found.step, found.step.step_us
    screen.print(verdict(found), style="bold")
    screen.print()
    cells = [(name, duration(part), f"{part / us:.1%}", bar(part / us)) for name, part in parts_of(step.breakdown)]
    screen.print(table(("", "time", "share", ""), cells, right="time|share", whole="|time|share"))
    if causes := idle_line(step):
        screen.print(causes)
    if step.waiting_us > 0.001 * us:
        screen.print(f"of the exposed communication {duration(step.waiting_us)} are waits for another rank")
    for place, finding in enumerate(found.findings, start=1):
        screen.print()
        _show_finding(screen, place, finding)
    if step.layers is not None:
        show_layers(screen, step.layers, us)
    for line in product_lines(step.products, us):
        screen.print(line)
    if step.collectives:
        show_collectives(screen, step.collectives)
    if step.overlap is not None:
        show_overlap(screen, step.overlap, us)
    if step.memory is not None:
        show_memory(screen, step.memory)


def verdict(found: Analysis) -> str:
    """What could be saved, in a line."""
    step = found.step
    saving = [finding for finding in found.findings if finding.share]
    named = ", ".join(f"{finding.title} up to {finding.share:.1%}" for finding in saving[:3])
    said = f"Could be saved: {named}" + (f", and {len(saving) - 3} more." if len(saving) > 3 else ".")
    if step.measures_alone:
        alone = sum(item.transfer_exposed_us for item in step.collectives if item.sync) / step.step_us
        kept = (
            f"This is a profile run: each collective runs alone here to be measured ({alone:.1%} of the step). What "
            "a plain run exposes of it, this one cannot say."
        )
        return f"{kept} {said}" if saving else kept
    if saving:
        return said
    return (
        f"Nothing that would save time stands out; {many(len(found.findings), 'remark')} on the recording."
        if found.findings
        else CLEAN
    )


def heading(finding: Finding) -> str:
    """What a finding is called, and what it could save."""
    return finding.title + (f", could save up to {finding.share:.1%}" if finding.share else "")


def number(finding: Finding) -> str:
    """What was found, and why nothing is claimed of it where the recording makes it."""
    return f"{finding.number}; {finding.unclaimed}" if finding.unclaimed else finding.number


EVIDENCE_COLUMNS = ("in a step", "time", "why")


def _show_finding(screen: Any, place: int, finding: Finding) -> None:
    screen.print(f"{place}. {heading(finding)}", style="bold")
    screen.print(printable(number(finding)))
    rows = [evidence_row(row) for row in finding.evidence]
    screen.print(table(EVIDENCE_COLUMNS, rows, right="time", whole="time"))
    screen.print(f"→ {finding.remedy}.")


def evidence_row(row: Evidence) -> tuple[str, ...]:
    """What a finding stands on: name, time, why and where."""
    where = short_scope(row.op_name.partition("[")[0])
    note = "; ".join(filter(None, (row.note, where)))
    return printable(short_scope(row.name)), duration(row.us) if row.us else "", printable(note)


def show_json(found: Analysis) -> None:
    """``pgle.analyze/1``; the integers of a rank add up to its window exactly."""
    step = found.step
    json.show(
        "pgle.analyze/1",
        {
            "module": step.costs.program.key.name,
            "step_us": step.step_us,
            "steps": step.steps,
            "hardware": None if step.hardware is None else step.hardware.name,
            "breakdown": step.breakdown,
            "idle_us": {name.replace(" ", "_"): us for name, us in step.idle_us.items()},
            "waiting_us": step.waiting_us,
            "skew_us": step.costs.skew_us,
            "late": {
                "us": step.late.us,
                "steps": step.late.steps,
                "ranks": [
                    {"device": step.trace.devices[device], "us": us, "last_in_steps": count}
                    for device, us, count in step.late.devices
                ],
            },
            "step_times": [json.whole(item, "step_us") for item in step.parts.steps],
            "collectives": [_collective_json(item, step.overlap) for item in step.collectives],
            "findings": [
                {
                    **json.picked(finding, "id title share number evidence remedy unclaimed"),
                    **json.picked(THRESHOLDS[finding.id], "rule source"),
                }
                for finding in found.findings
            ],
            "ranks": [
                {"device": step.trace.devices[window.device], "steps": window.steps, **json.plain(window.parts)}
                for window in step.windows
            ],
            "layers": None if step.layers is None else {**json.plain(step.layers), "products": step.products},
            "products": step.products,
            "memory": step.memory,
            "overlap": None if step.overlap is None else _overlap_json(step.overlap),
            "against": None if found.against is None else _against_json(found.against),
            "next": found.next,
            "warnings": found.warnings,
        },
    )


def _collective_json(item: MeasuredCollective, overlap: Overlap | None) -> dict[str, Any]:
    found: dict[str, Any] = json.plain(item)
    known = found.pop("instruction") or {}
    reasons = {} if overlap is None else {room.name: room.why for room in overlap.rooms}
    return {
        **found,
        "op_name": item.op_name,
        "source": known.get("source", ""),
        "transfer_exposed_us": item.transfer_exposed_us,
        "algorithm_gb_s": item.algorithm_gb_s,
        "bus_gb_s": item.bus_gb_s,
        "why_exposed": reasons.get(item.name, ""),
    }


def _overlap_json(overlap: Overlap) -> dict[str, Any]:
    use = overlap.use
    return {
        "hideable_us": overlap.hideable_us,
        "stuck_us": overlap.stuck_us,
        "collectives": overlap.rooms,
        "predicted_step_us": overlap.predicted.step_us,
        "critical_path_us": overlap.predicted.timeline.path_us,
        "profile": use and {**json.plain(use), "rows": [json.whole(row, "error_us") for row in use.rows]},
    }


def _against_json(found: Differences) -> dict[str, Any]:
    names = ("name", "phase", "before_us", "after_us")
    return {
        **json.whole(found, "delta_us share"),
        "layers": [dict(zip(names, row, strict=True)) for row in found.layers],
    }
