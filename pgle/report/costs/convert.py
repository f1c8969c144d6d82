"""What a conversion found and wrote, as a page and as JSON."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence

from pgle.costs.measure.measured import ProgramCosts
from pgle.costs.profile.value import Cost, CostKind, most_skewed
from pgle.errors import many, printable
from pgle.report import text
from pgle.report.page import figures
from pgle.report.page.value import Page, Prose, Section, Value, table
from pgle.run.convert import Conversion

MOST_MODULES = 6
_RECORDED = (
    "program.key.name program.key.program_id program.fingerprints executions_used=window.used "
    "executions_seen=window.seen window.steps_used window.steps_seen executions_dropped=window.dropped "
    "step_us=window.span_us skew_us left_out"
)
_NOT_COMPUTE = (CostKind.COLLECTIVE, CostKind.LOOP)  # a loop's cost sums its instructions, which are listed too


def convert_page(result: Conversion, following: Sequence[str] = ()) -> Page:
    """What was written and how much was left out; the modules and everything that was left out in sections."""
    programs = result.measured.costs
    heads = (
        "module | executions | devices (count) | span (time) | compute costs (count) | compute (time) | "
        "collective costs (count) | collectives (time)"
    )
    modules = table(heads, map(_row, programs), shown=MOST_MODULES)
    left = tuple(map(Prose, _each_left_out(result)))
    several, name = len(programs) > 1, programs[0].program.key.name
    return Page(
        title="pgle convert",
        identity=(many(len(programs), "module"),) if several else _identity(programs[0]),
        verdict=f"wrote {printable(_where(result))}: {costs_line(result)}",
        tone="good",
        table=modules if several else None,
        notes=(*_left_out(result), *(() if several else _remarks(programs[0]))),
        sections=(
            Section("modules", "Converted modules (span: from the first start to the last end)", (modules,)),
            *([Section("left", "Left out", left)] if left else []),
        ),
        next=tuple(following),
        warnings=result.warnings if several else tuple(line.removeprefix(f"{name}: ") for line in result.warnings),
        about=tuple((str(item.path), f"sha256 {item.sha256}") for item in result.written),
    )


def _identity(found: ProgramCosts) -> tuple[str, ...]:
    window = found.window
    span = "" if math.isnan(window.span_us) else f", {figures.time(window.span_us)} each"
    used = f"{window.steps_used} of {many(window.steps_seen, 'execution')}{span}"
    return printable(found.program.key.name), many(len(window.devices), "device"), used


def _where(result: Conversion) -> str:
    first = str(result.written[0].path)
    return first if len(result.written) == 1 else f"{many(len(result.written), 'profile')}, the first {first}"


def costs_line(result: Conversion) -> str:
    """How many costs there are, and of what: ``2,514 costs (2,491 compute 120.3 ms, 23 collectives 7.64 ms)``."""
    compute, collectives = ([cost for item in result.measured.costs for cost in of(item)] for of in _KINDS)
    parts = [f"{len(compute):,} compute {_sum(compute)}"] if compute else []
    parts += [f"{many(len(collectives), 'collective')} {_sum(collectives)}"] if collectives else []
    return f"{many(sum(item.names for item in result.written), 'cost')} ({', '.join(parts)})"


def _compute(found: ProgramCosts) -> list[Cost]:
    return [cost for cost in found.costs if cost.kind not in _NOT_COMPUTE]


def _collectives(found: ProgramCosts) -> list[Cost]:
    return [cost for cost in found.costs if cost.kind is CostKind.COLLECTIVE]


_KINDS = (_compute, _collectives)


def _sum(costs: Sequence[Cost]) -> str:
    return figures.time(sum(cost.cost_us for cost in costs))


def _row(found: ProgramCosts) -> tuple[Value, ...]:
    window = found.window
    sums = [value for of in _KINDS for value in (len(of(found)), sum(cost.cost_us for cost in of(found)))]
    span = None if math.isnan(window.span_us) else window.span_us
    name = printable(found.program.key.name)
    return name, f"{window.steps_used} of {window.steps_seen}", len(window.devices), span, *sums


def _remarks(found: ProgramCosts) -> Iterator[str]:
    """How far compute differs over the ranks, and how much slower kernels run while a collective does."""
    if found.skew_us is not None:
        from pgle.report.costs.show import MIN_SKEW, skew_line

        span_us = found.window.span_us
        if found.skew_us > MIN_SKEW * span_us:
            yield f"per step, {skew_line(found.skew_us, span_us, most_skewed(found.costs))}; costs are typical ones"
    if found.contention is not None:
        kinds = (("matmuls", found.contention.product), ("other kernels", found.contention.other))
        slower = [f"{kind} {figures.factor(item.likely)} as long" for kind, item in kinds if item.samples]
        launches = sum(item.samples for _, item in kinds)
        if slower:
            yield f"while a collective runs, kernels take longer: {', '.join(slower)} ({launches} launches)"


def _left_out(result: Conversion) -> Iterator[str]:
    """One line: how much of what."""
    reasons = Counter(why.partition(":")[0] for item in result.measured.costs for why in item.window.dropped.values())
    parts = [f"{many(count, 'execution')} ({why})" for why, count in reasons.items()]
    parts += [f"{item.count:,} activities ({item.reason})" for item in result.measured.trace.unresolved]
    names = sum(len(found) for item in result.measured.costs for found in item.left_out.values())
    parts += [many(names, "name")] if names else []
    if result.other_modules:
        share = figures.share(sum(result.other_modules.values()))
        parts.append(f"{many(len(result.other_modules), 'other module')} ({share} of time)")
    if parts:
        yield f"left out: {', '.join(parts)}"


def _each_left_out(result: Conversion) -> Iterator[str]:
    for found in result.measured.costs:
        name = found.program.key.name
        yield from (f"execution {number} of {name}, {why}" for number, why in found.window.dropped.items())
        yield from (f"{many(len(names), 'name')}, {why}: {', '.join(names)}" for why, names in found.left_out.items())
    for item in result.measured.trace.unresolved:
        yield f"{item.count:,} activities, {item.reason} ({figures.time(item.duration_ns / 1e3)})"
    yield from (f"module {name}, {figures.share(part)} of GPU time" for name, part in result.other_modules.items())
    if result.other_modules:
        yield "--module all converts every module, --module REGEX some."


def document(result: Conversion) -> dict[str, object]:
    """``pgle.convert/1`` without its name."""
    return {
        "written": result.written,
        "modules": [
            {
                **text.picked(program, _RECORDED),
                "devices": len(program.window.devices),
                "costs": len(program.costs),
                "collectives": sum(cost.kind == CostKind.COLLECTIVE for cost in program.costs),
                "compute_us": sum(c.cost_us for c in program.costs if c.kind not in _NOT_COMPUTE),
                "contention": program.contention and text.picked(program.contention, "product other"),
                "skewed": [text.picked(cost, "name cost_us slowest_us") for cost in most_skewed(program.costs)],
                "collective_us": sum(c.cost_us for c in program.costs if c.kind == CostKind.COLLECTIVE),
            }
            for program in result.measured.costs
        ],
        "activities": len(result.measured.trace),
        **text.picked(result, "gpu_time_us measured.trace.unresolved other_modules warnings"),
    }
