"""Profiles that were written, as pages and as JSON: converted, merged, filled, carried; and tables for XLA."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from pgle.costs.profile.value import Cost, CostKind, Origin, most_skewed
from pgle.errors import many, printable, some
from pgle.next import CONVERT, typed
from pgle.report import text
from pgle.report.page import figures
from pgle.report.page.value import Cell, Page, Section, Value, table
from pgle.report.show import conversion_section, skew_line

if TYPE_CHECKING:
    from pgle.costs.measure.measured import ProgramCosts
    from pgle.costs.profile.carry import Carried
    from pgle.costs.profile.coverage import Completion
    from pgle.costs.profile.merge import MergedProfile
    from pgle.run.convert import Conversion, Written
    from pgle.run.perf_table import PerfTable

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
    several, name = len(programs) > 1, programs[0].program.key.name
    heads = (
        "module | executions | devices (count) | span (time) | compute costs (count) | compute (time) | "
        "collective costs (count) | collectives (time)"
    )
    modules = table(heads, map(_program_row, programs), shown=MOST_MODULES)
    where = str(result.written[0].path)
    if len(result.written) > 1:
        where = f"{many(len(result.written), 'profile')}, the first {where}"
    return Page(
        title="pgle convert",
        identity=(many(len(programs), "module"),) if several else _identity(programs[0]),
        verdict=f"wrote {printable(where)}: {costs_line(result)}",
        tone="good",
        table=modules if several else None,
        notes=(_left_out(result), *(() if several else _remarks(programs[0]))),
        sections=(Section("modules", "Converted modules (span: from the first start to the last end)", (modules,)),),
        next=tuple(following),
        warnings=result.warnings if several else tuple(line.removeprefix(f"{name}: ") for line in result.warnings),
        about=tuple((str(item.path), f"sha256 {item.sha256}") for item in result.written),
    )


def _identity(found: ProgramCosts) -> tuple[str, ...]:
    window = found.window
    span = "" if math.isnan(window.span_us) else f", {figures.time(window.span_us)} each"
    used = f"{window.steps_used} of {many(window.steps_seen, 'execution')}{span}"
    return printable(found.program.key.name), many(len(window.devices), "device"), used


def costs_line(result: Conversion) -> str:
    """How many costs there are, and of what: ``2,514 costs (2,491 compute 120.3 ms, 23 collectives 7.64 ms)``."""
    (compute, compute_us), (collectives, collectives_us) = _sums_of(*result.measured.costs)
    parts = [f"{compute:,} compute {figures.time(compute_us)}"] if compute else []
    parts += [f"{many(collectives, 'collective')} {figures.time(collectives_us)}"] if collectives else []
    return f"{many(sum(item.names for item in result.written), 'cost')} ({', '.join(parts)})"


def _sums_of(*programs: ProgramCosts) -> tuple[tuple[int, float], tuple[int, float]]:
    """Number and sum of the costs of compute, and of collectives."""
    costs = [cost for program in programs for cost in program.costs]
    compute = [cost.cost_us for cost in costs if cost.kind not in _NOT_COMPUTE]
    collectives = [cost.cost_us for cost in costs if cost.kind is CostKind.COLLECTIVE]
    return (len(compute), sum(compute)), (len(collectives), sum(collectives))


def _program_row(found: ProgramCosts) -> tuple[Value, ...]:
    window, (compute, collectives) = found.window, _sums_of(found)
    span = None if math.isnan(window.span_us) else window.span_us
    executions = f"{window.steps_used} of {window.steps_seen}"
    return printable(found.program.key.name), executions, len(window.devices), span, *compute, *collectives


def _remarks(found: ProgramCosts) -> Iterator[str]:
    """How far compute differs over the ranks, and how much slower kernels run while a collective does."""
    if skewed := skew_line(found.skew_us, found.window.span_us, most_skewed(found.costs)):
        yield f"per step, {skewed}; costs are typical ones"
    if found.contention is not None:
        kinds = (("matmuls", found.contention.product), ("other kernels", found.contention.other))
        slower = [f"{kind} take {figures.factor(item.likely)} as long" for kind, item in kinds if item.samples]
        launches = sum(item.samples for _, item in kinds)
        if slower:
            yield f"contention: while a collective runs, {', '.join(slower)} ({launches} launches)"


def _left_out(result: Conversion) -> str:
    """One line: how much of what."""
    reasons = Counter(why.partition(":")[0] for item in result.measured.costs for why in item.window.dropped.values())
    parts = [f"{many(count, 'execution')} ({why})" for why, count in reasons.items()]
    parts += [f"{item.count:,} activities ({item.reason})" for item in result.measured.trace.unresolved]
    names = sum(len(found) for item in result.measured.costs for found in item.left_out.values())
    parts += [many(names, "name")] if names else []
    if result.other_modules:
        share = figures.share(sum(result.other_modules.values()))
        parts.append(f"{many(len(result.other_modules), 'other module')} ({share} of time)")
    return f"left out: {', '.join(parts)}" if parts else ""


def convert_document(result: Conversion) -> dict[str, object]:
    """``pgle.convert/1`` without its name."""
    modules = []
    for program in result.measured.costs:
        (_, compute_us), (collectives, collective_us) = _sums_of(program)
        modules.append({
            **text.picked(program, _RECORDED),
            "devices": len(program.window.devices),
            "costs": len(program.costs),
            "collectives": collectives,
            "compute_us": compute_us,
            "contention": program.contention and text.picked(program.contention, "product other"),
            "skewed": [text.picked(cost, "name cost_us slowest_us") for cost in most_skewed(program.costs)],
            "collective_us": collective_us,
        })  # fmt: skip
    return {
        "written": result.written,
        "modules": modules,
        "activities": len(result.measured.trace),
        **text.picked(result, "gpu_time_us measured.trace.unresolved other_modules warnings"),
    }


_HOW = {Origin.SAME_SHAPE: "as instructions of the same shape", Origin.ESTIMATED: "estimated"}
_BY = {
    "structure": "structure: itself and its neighbours",
    "name": "name, opcode, shape and content",
    "shape": "shapes and place",
    "scaled": "another size or kernel: scaled (estimated)",
}
"""By `By`, whose file imports the estimates, which `convert` does without."""
MOSTLY = 0.95  # share of the time from which on a carried profile is as good as `pgle verify` asks for
_SUMS = "costs (count) | sum (time)"


def _sums(label: tuple[str, ...], costs: Iterable[Cost]) -> Iterator[tuple[Value, ...]]:
    """A row of a table with `_SUMS`, unless there are no costs."""
    if every := [cost.cost_us for cost in costs]:
        yield (*label, len(every), sum(every))


def merge_page(merged: MergedProfile, written: Written, following: Sequence[str] = ()) -> Page:
    """How much was merged and how, and what was left out."""
    rows: list[tuple[Value, ...]] = []
    for kind in (CostKind.COMPUTE, CostKind.COLLECTIVE, CostKind.COPY, CostKind.LOOP):
        of_kind = [cost for cost in merged.profile.costs if cost.likely_kind == kind]
        rows += _sums((kind.value + ("" if all(cost.kind for cost in of_kind) else "?"),), of_kind)
    partial = f"{many(len(merged.partial), 'name')} not in all inputs: {_first(merged.partial)}"
    others = f"{many(len(merged.conflicts), 'name')} of other instructions in each input: {_first(merged.conflicts)}"
    return Page(
        title="pgle merge",
        identity=(many(len(merged.inputs), "profile"),),
        verdict=f"wrote {written.path}: {many(written.names, 'cost')}",
        tone="good" if merged.is_of_one else "warn",
        table=table(f"kind | {_SUMS}", rows),
        notes=(partial if merged.partial else "", others if merged.conflicts else ""),
        next=tuple(following),
        warnings=merged.profile.warnings,
        about=(("sha256", written.sha256),),
    )


def _first(names: Sequence[str]) -> str:
    return some(map(printable, names), 3)


def merge_document(merged: MergedProfile, written: Written) -> dict[str, object]:
    """``pgle.merge/2``."""
    conflicts = [{"name": name} for name in merged.conflicts]
    return {
        "written": written,
        **text.picked(merged, "inputs not_in_all_inputs=partial"),
        "conflicts": conflicts,
        "warnings": merged.profile.warnings,
    }


def complete_page(completions: Sequence[Completion], written: Written, following: Sequence[str] = ()) -> Page:
    """Per module how much was missing, and where it comes from now."""
    rows: list[tuple[Value, ...]] = []
    for item in completions:
        for origin, how in _HOW.items():
            target = f" for {item.target}" if origin is Origin.ESTIMATED else ""
            of_origin = (cost for cost in item.filled if cost.origin is origin)
            rows += _sums((printable(item.module), how + target), of_origin)
    filled = sorted((cost for item in completions for cost in item.filled), key=lambda cost: (-cost.cost_us, cost.name))
    costliest = ((printable(cost.name), printable(cost.opcode), cost.cost_us, cost.origin.value) for cost in filled)
    return Page(
        title="pgle complete",
        identity=tuple(
            f"{printable(item.module)}: {item.measured:,} of {item.wanted:,} had costs" for item in completions
        ),
        verdict=f"wrote {written.path}: {many(len(filled), 'gap')} filled, {many(written.names, 'cost')} in all",
        tone="good",
        table=table(f"module | filled | {_SUMS}", rows),
        sections=(
            Section("filled", "Filled, the most expensive first", (
                table("instruction | what | cost (time) | origin", costliest),
            )),
            conversion_section(completions[-1].profile.warnings),
        ),
        next=tuple(following),
        about=(("sha256", written.sha256),),
    )  # fmt: skip


def complete_document(completions: Sequence[Completion], written: Written) -> dict[str, object]:
    """``pgle.complete/1``."""
    return {
        "written": written,
        "modules": [
            {
                **text.picked(item, "name=module target wanted measured"),
                "same_shape": item.count(Origin.SAME_SHAPE),
                "estimated": item.count(Origin.ESTIMATED),
                "filled": [text.picked(cost, "name=full_name cost_us origin") for cost in item.filled],
            }
            for item in completions
        ],
        "warnings": completions[-1].profile.warnings,
    }


def carry_page(carried: Carried, written: Written, following: Sequence[str] = ()) -> Page:
    """How much of the profile's time was carried, how each cost was matched, and the rest."""
    rows: list[tuple[Value, ...]] = []
    for by, how in _BY.items():
        rows += _sums((how,), (match.cost for match in carried.matches if match.by == by))
    of = len(carried.matches) + len(carried.left)
    left = f"{many(len(carried.left), 'instruction')} without a counterpart (--section left)."
    lists = (
        ("left", "Left without a cost", "instruction without a cost", carried.left),
        ("unused", "Costs without a place", "cost without a place", carried.unused),
    )
    return Page(
        title="pgle carry",
        identity=(f"{many(len(carried.matches), 'cost')} of {of:,} instructions",),
        verdict=f"wrote {written.path}: {figures.share(carried.share)} of the profile's time carried over",
        tone="good" if carried.share >= MOSTLY else "warn",
        table=table(f"matched by | {_SUMS}", rows),
        notes=(left if carried.left else "",),
        sections=tuple(
            Section(key, heading, (table(head, ((printable(name),) for name in names)),))
            for key, heading, head, names in lists
        ),
        next=tuple(following),
    )


def carry_document(carried: Carried, written: Written) -> dict[str, object]:
    """``pgle.carry/1``."""
    from pgle.costs.profile.carry import By

    return {
        "written": written,
        "carried": len(carried.matches),
        "of": len(carried.matches) + len(carried.left),
        "by": {by.value: carried.count(by) for by in By},
        **text.picked(carried, "time_share=share left unused"),
    }


SHOWN = 5  # transfers on the first screen


def perf_table_page(found: PerfTable) -> Page:
    """What the table gives on the measured program, else what was measured; each point in a section."""
    measured = (
        (f"{item.kind}, {item.group} devices", item.size_bytes, us, item.size_bytes / us / 1e3,
         Cell("no", "warn") if item in found.ignored else "yes")
        for item, us in found.transfers.items()
    )  # fmt: skip
    heads = "measured collective | size (size) | time (time) | GB/s (rate) | XLA uses it"
    transfers = table(heads, measured, shown=SHOWN)
    return Page(
        title="pgle perf-table",
        identity=(found.key, f"jaxlib {found.jaxlib}" if found.jaxlib else ""),
        verdict=_advice(found).partition(". ")[0],
        tone="good" if found.key else "warn",
        table=transfers,
        notes=tuple(_notes(found)),
        sections=(Section("collectives", "Measured collectives", (transfers,)),),
        next=_next(found) if found.key else (str(CONVERT),),
        warnings=found.warnings,
    )


def _notes(found: PerfTable) -> Iterator[str]:
    measured = many(len(found.transfers), "collective")
    yield f"measured: {measured}; {many(found.filled, 'point')} of other sizes from XLA's own table"
    if found.network_gb_s is not None:
        by = many(len(found.networks_gb_s), "collective")
        yield f"network: {found.network_gb_s:.3g} GB/s per GPU, by {by} across hosts; give it with --network"
    yield f"wrote {found.written}"
    if found.key:
        yield "add to XLA_FLAGS:"
        yield _flag(found)


def _next(found: PerfTable) -> tuple[str, ...]:
    """Predict what it gives."""
    from pgle.run.inputs.next_command import UNKNOWN

    return (typed("pgle", "rehearse", f"--flag={_flag(found)}", "--", *UNKNOWN),)


def _flag(found: PerfTable) -> str:
    from pgle.run.perf_table import COLLECTIVES_FLAG

    return f"{COLLECTIVES_FLAG}={found.written}"


def _advice(found: PerfTable) -> str:
    """What to do next."""
    if not found.key:
        return "XLA would ignore this table. Give it a cost profile instead: 'pgle convert'."
    return f"XLA uses this table. Set XLA_FLAGS='{_flag(found)}'; pgle rehearse predicts the gain first."


def perf_table_document(found: PerfTable) -> dict[str, object]:
    """``pgle.perf-table/1``."""
    return {
        **text.picked(found, "key jaxlib"),
        "collectives": [
            {**text.plain(item), "time_us": us, "taken": item not in found.ignored}
            for item, us in found.transfers.items()
        ],
        **text.picked(found, "filled network_gb_s"),
        "written": [found.written],
        "next": _advice(found),
        "warnings": found.warnings,
    }
