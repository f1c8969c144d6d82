"""Profiles and traces as pages and as JSON: what one holds, how two differ, and what was converted,
merged, filled, carried.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, cast

from msgspec.structs import replace

from pgle.costs.profile.value import (
    Cost,
    CostChange,
    CostKind,
    Difference,
    Fault,
    Oddity,
    Origin,
    ProfileDiff,
    Summary,
    module_records,
    most_skewed,
)
from pgle.errors import many, printable, shown, some
from pgle.next import Commands, Next, to_way
from pgle.report import text
from pgle.report.page import figures
from pgle.report.page.value import Page, Prose, Section, Table, Value, table

if TYPE_CHECKING:
    from pgle.costs.measure.measured import ProgramCosts
    from pgle.costs.profile.carry import Carried
    from pgle.costs.profile.coverage import Completion
    from pgle.run.convert import Conversion, Written
    from pgle.trace.summary import TraceSummary

MIN_SKEW = 0.01  # share of the time from which on the wait for the slowest rank is worth a line
ROWS, MODULES, CHANGES = 10, 8, 12  # costs, modules and changes on the first screen

_TITLES = {
    Fault.DUPLICATE: "names with several costs",
    Fault.REMAT: "effects of .remat in names",
    Fault.NOT_FINITE: "costs that are not finite",
    Fault.NEGATIVE: "negative costs",
    Fault.HUGE: "costs that are no time",
    Fault.ZERO: "costs of 0",
    Fault.NAME: "names that match nothing",
    Fault.DONE: "costs of a -done",
    Fault.LOOP: "costs of whole loops",
}


def profile_page(name: str, summary: Summary, following: Commands = ()) -> Page:
    """Costs, the most expensive first; sums by kind; names that XLA takes otherwise than it
    reads.
    """
    of = (
        f" (of {summary.entries:,} entries)" if summary.entries != summary.names else ""
    )
    faults, rows = _faults(summary.findings)
    heads = "name | costs | it has | what XLA does"
    return Page(
        title=f"pgle show {name}",
        identity=(name, *_about(summary), ranks_given(summary.warnings)),
        verdict=f"{many(summary.names, 'cost')}{of}, {figures.time(summary.total_us)} if each instruction runs once",
        tone="warn" if faults else "",
        table=_instructions(summary),
        notes=(
            *_kinds(summary),
            skew_line(summary.skew_us, summary.total_us, summary.skewed),
        ),
        sections=(
            Section(
                "findings", "Names that XLA takes otherwise", (table(heads, rows),)
            ),
            Section(
                "origin",
                "Where this comes from",
                tuple(map(Prose, _provenance(summary.provenance))),
            ),
            conversion_section(summary.warnings),
        ),
        way=to_way(following),
        warnings=tuple(faults),
    )


def ranks_given(warnings: Iterable[str]) -> str:
    """``2 of 4 ranks``: what later answers keep of the warnings of a conversion; empty if it had
    all ranks.
    """
    return next((found[0] for line in warnings if (found := _RANKS.search(line))), "")


_RANKS = re.compile(r"\d+ of (\d+|several) ranks")


def conversion_section(warnings: Sequence[str]) -> Section:
    """The warnings that the conversion of a profile gave; later answers fold them away."""
    return Section(
        "conversion",
        "Warnings of the conversion",
        tuple(Prose(shown(line)) for line in warnings),
    )


def _about(summary: Summary) -> Iterator[str]:
    """Modules, and where the costs come from."""
    if records := list(module_records(summary.provenance)):
        yield some([str(record.get("name")) for record in records], 1)
    elif summary.modules:
        yield f"fingerprint {some([module[:12] for module in summary.modules], 2)}"
    origins = (
        f"{summary.origins[origin]:,} {origin}"
        for origin in Origin
        if summary.origins.get(origin)
    )
    yield (
        ", ".join(origins)
        if summary.described
        else "no sidecar: kinds are guessed from names"
    )


def _kinds(summary: Summary) -> Iterator[str]:
    """``compute 2,491 costs, 120.3 ms (94.0 %) · …``; a loop's time is in the costs of its body
    already.
    """
    parts = []
    for total in summary.kinds:
        share = (
            "in its body's costs already"
            if total.kind is CostKind.LOOP
            else figures.share(total.share)
        )
        name = total.kind.value + ("?" if total.guessed else "")
        parts.append(
            f"{name} {many(total.count, 'cost')}, {figures.time(total.total_us)} ({share})"
        )
    yield " · ".join(parts)
    if any(total.guessed for total in summary.kinds) and summary.described:
        yield "Kinds marked ? are guessed from names: give the HLO (pgle convert --hlo DUMP)."


def skew_line(skew_us: float | None, of_us: float, skewed: Sequence[Cost]) -> str:
    """Compute takes longer on the slowest rank, and in which instruction most; empty if it is not
    worth a line.
    """
    if skew_us is None or skew_us <= MIN_SKEW * of_us:
        return ""
    share = f" ({figures.share(skew_us / of_us)})" if of_us > 0 else ""
    most = ""
    if skewed:
        times = f"{figures.time(skewed[0].cost_us)}, there {figures.time(skewed[0].slowest_us or 0.0)}"
        most = f", most in {shown(skewed[0].full_name)} ({times})"
    return (
        f"compute takes {figures.time(skew_us)}{share} longer on the slowest rank{most}"
    )


def _provenance(provenance: Mapping[str, object]) -> Iterator[str]:
    """A profile's provenance in a few lines, as far as it has what `pgle` writes."""
    inputs = [
        str(item.get("name"))
        for item in cast(Iterable[Mapping[str, object]], provenance.get("inputs", ()))
    ]
    if inputs:
        stats = [
            f"{key} {provenance[key]}"
            for key in ("stat", "collective_stat")
            if provenance.get(key)
        ]
        how = f" ({', '.join(stats)})".replace("_", " ") if stats else ""
        yield shown(
            f"from {some(inputs, 4)}{how}, by {provenance.get('tool', 'unknown')}"
        )
    for module in module_records(provenance)[:4]:
        prints = [name[:12] for name in module.get("fingerprints", ())]
        used = module.get("executions_used")
        steps = (
            f", {used} of {module.get('executions_seen')} executions"
            if used is not None
            else ""
        )
        devices = (
            f" over {module.get('devices')} devices" if module.get("devices") else ""
        )
        known = f", fingerprint {' '.join(prints)}" if prints else ""
        yield shown(f"module {module.get('name')}{steps}{devices}{known}")


def _instructions(summary: Summary) -> Table:
    heads = "instruction | cost (time) | share (share) | kind | samples (count) | spread (share) | origin"
    has_origins = summary.described and any(
        cost.origin is not Origin.MEASURED for cost in summary.costs
    )
    rows = (
        (
            cost.full_name,
            cost.cost_us if math.isfinite(cost.cost_us) else str(cost.cost_us),
            _share(cost, summary),
            cost.likely_kind.value + ("" if cost.kind else "?"),
            cost.samples or None,
            cost.spread if cost.samples > 1 else None,
            cost.origin.value if has_origins else "",
        )
        for cost in summary.costs
    )
    return replace(
        table(heads, rows, shown=ROWS), more=summary.names - len(summary.costs)
    )


def _share(cost: Cost, summary: Summary) -> float | None:
    """A cost's share of the total; None for loops and for costs that count as 0 in it."""
    valid = math.isfinite(cost.cost_us) and cost.cost_us >= 0 and summary.total_us > 0
    return (
        cost.cost_us / summary.total_us
        if valid and cost.likely_kind is not CostKind.LOOP
        else None
    )


def _faults(findings: Sequence[Oddity]) -> tuple[list[str], list[tuple[Value, ...]]]:
    """A line on each kind of fault, with what XLA does if it does the same with all names; and a
    row for each name.
    """
    lines, rows = [], list[tuple[Value, ...]]()
    for fault in Fault:
        mine = sorted(
            (item for item in findings if item.fault is fault),
            key=_importance,
            reverse=True,
        )
        effects = [item.message for item in mine if not item.values_us]
        effects = effects or list(
            dict.fromkeys(item.message.split("; ", 1)[-1] for item in mine)
        )
        if named := sum(bool(item.values_us) for item in mine):
            lines.append(
                f"{_TITLES[fault]} ({named}){f': {effects[0]}' if len(effects) == 1 else ''}"
            )
        elif mine:
            lines.append(f"{_TITLES[fault]}: {effects[0]}")
        for item in mine:
            effect = item.message if len(effects) > 1 else ""
            rows.append(
                (item.name or "(no name)", _costs(item), _TITLES[fault], effect)
            )
    return lines, rows


def _costs(finding: Oddity) -> str:
    """``62: 1 µs to 15.85 ms → 1 µs``: the costs of a name, and the one that XLA takes."""

    def cost(us: float) -> str:
        return figures.time(us) if math.isfinite(us) else str(us)

    values = finding.values_us
    listed = ", ".join(map(cost, values))
    if len(values) > 2:
        listed = f"{len(values)}: {cost(min(values))} to {cost(max(values))}"
    return (
        listed
        if finding.effective_us is None or len(values) == 1
        else f"{listed} → {cost(finding.effective_us)}"
    )


def _importance(finding: Oddity) -> float:
    """How far the costs of a name are apart, or the cost itself."""
    finite = [value for value in finding.values_us if math.isfinite(value)] or [0.0]
    return max(finite) - min(finite) if len(finite) > 1 else abs(finite[0])


def profile_document(name: str, summary: Summary) -> dict[str, object]:
    """``pgle.show/1`` of a profile."""
    names = "name=full_name cost_us kind=likely_kind opcode shape samples min_us max_us spread slowest_us trace_name origin"
    return {
        "profile": name,
        **text.picked(
            summary, "entries names total_us skew_us kinds origins modules provenance"
        ),
        "instructions": [
            {
                **text.picked(cost, names),
                "share": _share(cost, summary),
                "kind_is_guess": not cost.kind,
            }
            for cost in summary.costs
        ],
        **text.picked(summary, "findings warnings"),
    }


def trace_page(path: str, summary: TraceSummary, following: Next) -> Page:
    """Modules with their executions first; instructions, devices and what was left out in
    sections.
    """
    kinds = ", ".join(
        f"{count:,} {kind.words}" for kind, count in summary.kinds.items()
    )
    formats = dict.fromkeys(
        f"{source.format} {source.version}".strip() for source in summary.trace.sources
    )
    left = [
        Prose(
            printable(
                f"execution {execution.number} of {item.module.name}: {execution.left_out}"
            )
        )
        for item in summary.modules
        for execution in item.executions
        if execution.left_out
    ]
    modules = (
        (
            printable(item.module.name)
            + (
                "" if item.module.program_id is None else f" ({item.module.program_id})"
            ),
            f"{item.steady} of {len(item.executions)}",
            max((execution.devices for execution in item.executions), default=0),
            None if math.isnan(item.step_us) else item.step_us,
            item.gpu_time_us,
            item.share,
        )
        for item in summary.modules
    )
    instructions = (
        (
            printable(item.name),
            f"{item.kind}?",
            item.launches,
            item.gpu_time_us,
            item.share,
        )
        for item in summary.instructions
    )
    devices = (
        (
            f"{printable(item.device.process)} {item.device.ordinal}",
            item.device.global_id,
            item.streams,
            item.activities,
            item.busy_us,
            item.span_us,
        )
        for item in summary.devices
    )
    unresolved = (
        (
            item.count,
            item.duration_ns / 1e3,
            summary.meanings.get(item.reason) or item.reason,
        )
        for item in summary.trace.unresolved
    )
    of_module = "module | steady | devices (count) | median span (time) | time (time) | share (share)"
    of_instruction = (
        "instruction | kind | launches (count) | time (time) | share (share)"
    )
    of_device = "device | JAX id (count) | streams (count) | activities (count) | busy (time) | span (time)"
    lost = table("activities (count) | time (time) | why", unresolved)
    skipped = f", {many(len(left), 'execution')} left out" if left else ""
    counted = f"{many(len(summary.modules), 'module')}, {many(len(summary.instructions), 'instruction')}"
    origin = "simulated" if summary.trace.simulated else "measured"
    return Page(
        title=f"pgle show {path}",
        identity=(path, *formats, many(len(summary.devices), "device"), origin),
        verdict=f"{kinds} in {figures.time(summary.span_us)}",
        table=table(of_module, modules, shown=MODULES),
        notes=(
            f"{counted}, {figures.time(summary.gpu_time_us)} of device time{skipped} (--all)",
        ),
        sections=(
            Section(
                "instructions", "Instructions", (table(of_instruction, instructions),)
            ),
            Section("devices", "Devices", (table(of_device, devices),)),
            Section("left-out", "Left out", (*left, lost)),
            Section("flags", "XLA_FLAGS", (Prose(summary.trace.xla_flags, code=True),)),
        ),
        way=to_way([following]),
        warnings=tuple(map(printable, summary.trace.warnings)),
    )


def trace_document(
    path: str, summary: TraceSummary, following: Next
) -> dict[str, object]:
    """``pgle.show/1`` of a trace."""
    found = {
        **text.picked(
            summary.trace, "sources recordings unresolved simulated xla_flags warnings"
        ),
        **text.plain(
            text.picked(
                summary, "span_us gpu_time_us devices modules meanings instructions"
            )
        ),
        "kinds": {kind.name.lower(): count for kind, count in summary.kinds.items()},
    }
    for record, module in zip(found["modules"], summary.modules, strict=True):
        record["steady"] = module.steady
    return {"path": path, "trace": found, "next": following}


_WORDS = {
    CostChange.CHANGED: "changed",
    CostChange.NOISE: "within noise",
    CostChange.REPLACED: "another instruction of the same name",
    CostChange.ADDED: "added",
    CostChange.REMOVED: "removed",
    CostChange.SAME: "the same",
}
_NOTED = (CostChange.ADDED, CostChange.REMOVED, CostChange.NOISE)


def diff_page(old: str, new: str, diff: ProfileDiff, following: Commands = ()) -> Page:
    """The largest changes in time first; sums by kind in a section."""
    counted = [total for total in diff.totals if total.kind is not CostKind.LOOP]
    before, after = (
        sum(total.old_us for total in counted),
        sum(total.new_us for total in counted),
    )
    changed = [item for item in diff.differences if item.change is not CostChange.SAME]
    heads = "instruction | kind | old (time) | new (time) | change (change-time) | (change) | note"
    share = f" ({figures.change(after / before - 1)})" if before > 0 else ""
    is_noise = all(item.change is CostChange.NOISE for item in changed)
    sums = f"Sum of costs {figures.time(before)} → {figures.time(after)}{share}"
    counts = ", ".join(
        f"{diff.count(change):,} {word}"
        for change, word in _WORDS.items()
        if diff.count(change)
    )
    kinds = (
        (
            total.kind.value,
            total.old_count,
            total.new_count,
            total.old_us,
            total.new_us,
            total.new_us / total.old_us - 1 if total.old_us > 0 else None,
        )
        for total in diff.totals
    )
    of_kind = "kind | old names (count) | new names (count) | old (time) | new (time) | change (change)"
    return Page(
        title=f"pgle diff {old} {new}",
        identity=(f"{old} → {new}",),
        verdict="No change beyond noise" if is_noise else sums,
        table=table(heads, map(_difference, changed), shown=CHANGES),
        notes=(counts,),
        sections=(Section("kinds", "By kind", (table(of_kind, kinds),)),),
        way=to_way(following),
        warnings=tuple(diff.warnings),
    )


def _difference(item: Difference) -> tuple[Value, ...]:
    note = (
        _WORDS[item.change]
        if item.change in _NOTED
        else f"was {item.was}, is {item.now}"
        if item.was
        else ""
    )
    change = (
        item.ratio - 1 if item.ratio is not None and math.isfinite(item.ratio) else None
    )
    kind = item.kind.value + ("?" if item.kind_is_guess else "")
    return (
        printable(item.name),
        kind,
        item.old_us,
        item.new_us,
        item.delta_us,
        change,
        printable(note),
    )


def diff_document(old: str, new: str, diff: ProfileDiff) -> dict[str, object]:
    """``pgle.diff/1``: every name that is not the same in both."""
    return {
        "old": old,
        "new": new,
        "counts": {change: diff.count(change) for change in CostChange},
        "totals": diff.totals,
        "differences": [
            text.whole(item, "delta_us ratio")
            for item in diff.differences
            if item.change != CostChange.SAME
        ],
        "warnings": diff.warnings,
    }


MOST_MODULES = 6
_RECORDED = (
    "program.key.name program.key.program_id program.fingerprints executions_used=window.used "
    "executions_seen=window.seen window.steps_used window.steps_seen executions_dropped=window.dropped "
    "step_us=window.span_us skew_us left_out"
)
_NOT_COMPUTE = (
    CostKind.COLLECTIVE,
    CostKind.LOOP,
)  # a loop's cost sums its instructions, which are listed too


def convert_page(result: Conversion, following: Commands = ()) -> Page:
    """What was written and how much was left out; the modules and everything that was left out in
    sections.
    """
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
        identity=(many(len(programs), "module"),)
        if several
        else _identity(programs[0]),
        verdict=f"wrote {printable(where)}: {costs_line(result)}",
        tone="good",
        table=modules if several else None,
        notes=(_left_out(result), *(() if several else _remarks(programs[0]))),
        sections=(
            Section(
                "modules",
                "Converted modules (span: from the first start to the last end)",
                (modules,),
            ),
        ),
        way=to_way(following),
        warnings=result.warnings
        if several
        else tuple(line.removeprefix(f"{name}: ") for line in result.warnings),
        about=tuple(
            (str(item.path), f"sha256 {item.sha256}") for item in result.written
        ),
    )


def _identity(found: ProgramCosts) -> tuple[str, ...]:
    window = found.window
    span = (
        "" if math.isnan(window.span_us) else f", {figures.time(window.span_us)} each"
    )
    used = f"{window.steps_used} of {many(window.steps_seen, 'execution')}{span}"
    return printable(found.program.key.name), many(len(window.devices), "device"), used


def costs_line(result: Conversion) -> str:
    """How many costs there are, and of what: ``2,514 costs (2,491 compute 120.3 ms, 23 collectives
    7.64 ms)``.
    """
    (compute, compute_us), (collectives, collectives_us) = _sums_of(
        *result.measured.costs
    )
    parts = [f"{compute:,} compute {figures.time(compute_us)}"] if compute else []
    parts += (
        [f"{many(collectives, 'collective')} {figures.time(collectives_us)}"]
        if collectives
        else []
    )
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
    return (
        printable(found.program.key.name),
        executions,
        len(window.devices),
        span,
        *compute,
        *collectives,
    )


def _remarks(found: ProgramCosts) -> Iterator[str]:
    """How far compute differs over the ranks, and how much slower kernels run while a collective
    does.
    """
    if skewed := skew_line(
        found.skew_us, found.window.span_us, most_skewed(found.costs)
    ):
        yield f"per step, {skewed}; costs are typical ones"
    if found.contention is not None:
        kinds = (
            ("matmuls", found.contention.product),
            ("other kernels", found.contention.other),
        )
        slower = [
            f"{kind} take {figures.factor(item.likely)} as long"
            for kind, item in kinds
            if item.samples
        ]
        launches = sum(item.samples for _, item in kinds)
        if slower:
            yield f"contention: while a collective runs, {', '.join(slower)} ({launches} launches)"


def _left_out(result: Conversion) -> str:
    """One line: how much of what."""
    reasons = Counter(
        why.partition(":")[0]
        for item in result.measured.costs
        for why in item.window.dropped.values()
    )
    parts = [f"{many(count, 'execution')} ({why})" for why, count in reasons.items()]
    parts += [
        f"{item.count:,} activities ({item.reason})"
        for item in result.measured.trace.unresolved
    ]
    names = sum(
        len(found) for item in result.measured.costs for found in item.left_out.values()
    )
    parts += [many(names, "name")] if names else []
    if result.other_modules:
        share = figures.share(sum(result.other_modules.values()))
        parts.append(
            f"{many(len(result.other_modules), 'other module')} ({share} of time)"
        )
    return f"left out: {', '.join(parts)}" if parts else ""


def convert_document(result: Conversion) -> dict[str, object]:
    """``pgle.convert/1`` without its name."""
    modules = []
    for program in result.measured.costs:
        (_, compute_us), (collectives, collective_us) = _sums_of(program)
        modules.append(
            {
                **text.picked(program, _RECORDED),
                "devices": len(program.window.devices),
                "costs": len(program.costs),
                "collectives": collectives,
                "compute_us": compute_us,
                "contention": program.contention
                and text.picked(program.contention, "product other"),
                "skewed": [
                    text.picked(cost, "name cost_us slowest_us")
                    for cost in most_skewed(program.costs)
                ],
                "collective_us": collective_us,
            }
        )
    return {
        "written": result.written,
        "modules": modules,
        "activities": len(result.measured.trace),
        **text.picked(
            result, "gpu_time_us measured.trace.unresolved other_modules warnings"
        ),
    }


_HOW = {
    Origin.SAME_SHAPE: "as instructions of the same shape",
    Origin.ESTIMATED: "estimated",
}
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


def complete_page(
    completions: Sequence[Completion], written: Written, following: Commands = ()
) -> Page:
    """Per module how much was missing, and where it comes from now."""
    rows: list[tuple[Value, ...]] = []
    for item in completions:
        for origin, how in _HOW.items():
            target = f" for {item.target}" if origin is Origin.ESTIMATED else ""
            of_origin = (cost for cost in item.filled if cost.origin is origin)
            rows += _sums((printable(item.module), how + target), of_origin)
    filled = sorted(
        (cost for item in completions for cost in item.filled),
        key=lambda cost: (-cost.cost_us, cost.name),
    )
    costliest = (
        (printable(cost.name), printable(cost.opcode), cost.cost_us, cost.origin.value)
        for cost in filled
    )
    return Page(
        title="pgle complete",
        identity=tuple(
            f"{printable(item.module)}: {item.measured:,} of {item.wanted:,} had costs"
            for item in completions
        ),
        verdict=f"wrote {written.path}: {many(len(filled), 'gap')} filled, {many(written.names, 'cost')} in all",
        tone="good",
        table=table(f"module | filled | {_SUMS}", rows),
        sections=(
            Section(
                "filled",
                "Filled, the most expensive first",
                (table("instruction | what | cost (time) | origin", costliest),),
            ),
            conversion_section(completions[-1].profile.warnings),
        ),
        way=to_way(following),
        about=(("sha256", written.sha256),),
    )


def complete_document(
    completions: Sequence[Completion], written: Written
) -> dict[str, object]:
    """``pgle.complete/1``."""
    return {
        "written": written,
        "modules": [
            {
                **text.picked(item, "name=module target wanted measured"),
                "same_shape": item.count(Origin.SAME_SHAPE),
                "estimated": item.count(Origin.ESTIMATED),
                "filled": [
                    text.picked(cost, "name=full_name cost_us origin")
                    for cost in item.filled
                ],
            }
            for item in completions
        ],
        "warnings": completions[-1].profile.warnings,
    }


def carry_page(carried: Carried, written: Written, following: Commands = ()) -> Page:
    """How much of the profile's time was carried, how each cost was matched, and the rest."""
    rows: list[tuple[Value, ...]] = []
    for by, how in _BY.items():
        rows += _sums(
            (how,), (match.cost for match in carried.matches if match.by == by)
        )
    of = len(carried.matches) + len(carried.left)
    left = f"{many(len(carried.left), 'instruction')} without a counterpart (--section left)."

    def listed(head: str, names: Iterable[str]) -> tuple[Table]:
        return (table(head, ((printable(name),) for name in names)),)

    return Page(
        title="pgle carry",
        identity=(f"{many(len(carried.matches), 'cost')} of {of:,} instructions",),
        verdict=f"wrote {written.path}: {figures.share(carried.share)} of the profile's time carried over",
        tone="good" if carried.share >= MOSTLY else "warn",
        table=table(f"matched by | {_SUMS}", rows),
        notes=(left if carried.left else "",),
        sections=(
            Section(
                "left",
                "Left without a cost",
                listed("instruction without a cost", carried.left),
            ),
            Section(
                "unused",
                "Costs without a place",
                listed("cost without a place", carried.unused),
            ),
        ),
        way=to_way(following),
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
