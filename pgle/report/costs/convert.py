"""What a conversion found and wrote."""

from __future__ import annotations

import math

from pgle.costs.measure.program_costs import ProgramCosts
from pgle.costs.profile.value import CostKind, most_skewed
from pgle.errors import many
from pgle.report import json
from pgle.report.text import console, duration, table, warn, wrote
from pgle.run.convert import Conversion

MOST_EXECUTIONS = 4  # executions left out that are listed, per module
_NOT_COMPUTE = (CostKind.COLLECTIVE, CostKind.LOOP)  # a loop's cost is that of what is in it, which is there too


def show_text(result: Conversion) -> None:
    """A table of the modules, what was left out, the files and the next command; warnings on stderr."""
    out = console()
    out.print(
        table(
            ("module", "executions", "devices", "median span", "compute", "", "collectives", ""),
            [_row(program) for program in result.measured.costs],
            right="executions|devices|median span|compute||collectives",
        )
    )
    explained = "executions of each device, spans from first start to last end; 'pgle analyze' adds gaps"
    out.print(explained, style="dim", soft_wrap=True)
    out.print(f"{len(result.measured.trace):,} activities, {duration(result.gpu_time_us)} of device time", style="dim")
    for program in result.measured.costs:
        if program.skew_us is not None:
            from pgle.report.costs.show import MIN_SKEW, skew_line

            span_us, skewed = program.window.span_us, most_skewed(program.costs)
            if program.skew_us > MIN_SKEW * span_us:
                line = skew_line(program.skew_us, span_us, skewed)
                out.print(f"{program.program.key.name}: per step, {line}; costs are typical ones", soft_wrap=True)
        if program.contention is not None:
            from pgle.report.schedules.predict import (
                contention_line,  # with timelines, which a small conversion does without
            )

            if line := contention_line(program.contention):
                out.print(f"{program.program.key.name}: {line}", soft_wrap=True)
    for line in _left_out(result):
        out.print(f"left out: {line}", style="dim")
    for written in result.written:
        out.print(wrote(written), soft_wrap=True)
    warn(result.warnings)


def _row(result: ProgramCosts) -> tuple[str, ...]:
    window = result.window
    collective = [cost for cost in result.costs if cost.kind == CostKind.COLLECTIVE]
    rest = [cost for cost in result.costs if cost.kind not in _NOT_COMPUTE]
    return (
        result.program.key.name,
        f"{window.steps_used} of {window.steps_seen}",
        str(len(window.devices)),
        "–" if math.isnan(window.span_us) else duration(window.span_us),
        f"{len(rest)} names",
        duration(sum(cost.cost_us for cost in rest)),
        f"{len(collective)} names",
        duration(sum(cost.cost_us for cost in collective)),
    )


def _left_out(result: Conversion) -> list[str]:
    lines = [line for program in result.measured.costs for line in _executions_left_out(program)]
    lines += [
        f"{item.count:,} activities, {item.reason} ({duration(item.duration_ns / 1e3)})"
        for item in result.measured.trace.unresolved
    ]
    lines += [
        f"{len(names)} names, {reason} ({', '.join(names[:3])})"
        for program in result.measured.costs
        for reason, names in program.left_out.items()
    ]
    if result.other_modules:
        share, number = sum(result.other_modules.values()), many(len(result.other_modules), "other module")
        lines.append(f"{number}, {share:.1%} of the time (--module all to convert)")
    return lines


def _executions_left_out(program: ProgramCosts) -> list[str]:
    name, dropped = program.program.key.name, list(program.window.dropped.items())
    lines = [f"execution {number} of {name}, {why}" for number, why in dropped[:MOST_EXECUTIONS]]
    if len(dropped) > MOST_EXECUTIONS:
        lines.append(f"{len(dropped) - MOST_EXECUTIONS} more executions of {name} (--json lists all)")
    return lines


def show_json(result: Conversion) -> None:
    """``pgle.convert/1``."""
    json.show(
        "pgle.convert/1",
        {
            "written": result.written,
            "modules": [
                {
                    "name": program.program.key.name,
                    "program_id": program.program.key.program_id,
                    "fingerprints": program.program.fingerprints,
                    "executions_used": program.window.used,
                    "executions_seen": program.window.seen,
                    "steps_used": program.window.steps_used,
                    "steps_seen": program.window.steps_seen,
                    "executions_dropped": program.window.dropped,
                    "devices": len(program.window.devices),
                    "step_us": program.window.span_us,
                    "costs": len(program.costs),
                    "collectives": sum(cost.kind == CostKind.COLLECTIVE for cost in program.costs),
                    "compute_us": sum(c.cost_us for c in program.costs if c.kind not in _NOT_COMPUTE),
                    "skew_us": program.skew_us,
                    "contention": program.contention and json.picked(program.contention, "product other"),
                    "skewed": [json.picked(cost, "name cost_us slowest_us") for cost in most_skewed(program.costs)],
                    "collective_us": sum(c.cost_us for c in program.costs if c.kind == CostKind.COLLECTIVE),
                    "left_out": program.left_out,
                }
                for program in result.measured.costs
            ],
            "activities": len(result.measured.trace),
            "gpu_time_us": result.gpu_time_us,
            "unresolved": result.measured.trace.unresolved,
            "other_modules": result.other_modules,
            "warnings": result.warnings,
        },
    )
