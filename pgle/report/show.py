"""What a profile or a trace holds, and how two profiles differ, as pages and as JSON."""

from __future__ import annotations

import math
import re
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
)
from pgle.errors import many, printable, shown, some
from pgle.report import text
from pgle.report.page import figures
from pgle.report.page.value import Page, Prose, Section, Table, Value, table

if TYPE_CHECKING:
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


def profile_page(name: str, summary: Summary, following: Sequence[str] = ()) -> Page:
    """Costs, the most expensive first; sums by kind; names that XLA takes otherwise than it reads."""
    of = f" (of {summary.entries:,} entries)" if summary.entries != summary.names else ""
    faults, rows = _faults(summary.findings)
    heads = "name | costs | it has | what XLA does"
    return Page(
        title=f"pgle show {name}",
        identity=(name, *_modules(summary), *_origin(summary), ranks_given(summary.warnings)),
        verdict=f"{many(summary.names, 'cost')}{of}, {figures.time(summary.total_us)} if each instruction runs once",
        tone="warn" if faults else "",
        table=_instructions(summary),
        notes=(*_kinds(summary), skew_line(summary.skew_us, summary.total_us, summary.skewed)),
        sections=(
            Section("findings", "Names that XLA takes otherwise", (table(heads, rows),)),
            Section("origin", "Where this comes from", tuple(map(Prose, _provenance(summary.provenance)))),
            conversion_section(summary.warnings),
        ),
        next=tuple(following),
        warnings=tuple(faults),
    )


def ranks_given(warnings: Iterable[str]) -> str:
    """``2 of 4 ranks``: what later answers keep of the warnings of a conversion; empty if it had all ranks."""
    return next((found[0] for line in warnings if (found := _RANKS.search(line))), "")


_RANKS = re.compile(r"\d+ of (\d+|several) ranks")


def conversion_section(warnings: Sequence[str]) -> Section:
    """The warnings that the conversion of a profile gave; later answers fold them away."""
    return Section("conversion", "Warnings of the conversion", tuple(Prose(shown(line)) for line in warnings))


def _modules(summary: Summary) -> Iterator[str]:
    if records := list(module_records(summary.provenance)):
        yield some([str(record.get("name")) for record in records], 1)
    elif summary.modules:
        yield f"fingerprint {some([module[:12] for module in summary.modules], 2)}"


def _origin(summary: Summary) -> Iterator[str]:
    if not summary.described:
        yield "no sidecar: kinds are guessed from names"
        return
    yield ", ".join(f"{summary.origins[origin]:,} {origin}" for origin in Origin if summary.origins.get(origin))


def _kinds(summary: Summary) -> Iterator[str]:
    """``compute 2,491 costs, 120.3 ms (94.0 %) · …``; a loop's time is in the costs of its body already."""
    parts = []
    for total in summary.kinds:
        share = "in its body's costs already" if total.kind is CostKind.LOOP else figures.share(total.share)
        name = total.kind.value + ("?" if total.guessed else "")
        parts.append(f"{name} {many(total.count, 'cost')}, {figures.time(total.total_us)} ({share})")
    yield " · ".join(parts)
    if any(total.guessed for total in summary.kinds) and summary.described:
        yield "Kinds marked ? are guessed from names: give the HLO (pgle convert --hlo DUMP)."


def skew_line(skew_us: float | None, of_us: float, skewed: Sequence[Cost]) -> str:
    """Compute takes longer on the slowest rank, and in which instruction most; empty if it is not worth a line."""
    if skew_us is None or skew_us <= MIN_SKEW * of_us:
        return ""
    share = f" ({figures.share(skew_us / of_us)})" if of_us > 0 else ""
    most = ""
    if skewed:
        times = f"{figures.time(skewed[0].cost_us)}, there {figures.time(skewed[0].slowest_us or 0.0)}"
        most = f", most in {shown(skewed[0].full_name)} ({times})"
    return f"compute takes {figures.time(skew_us)}{share} longer on the slowest rank{most}"


def _provenance(provenance: Mapping[str, object]) -> Iterator[str]:
    """A profile's provenance in a few lines, as far as it has what `pgle` writes."""
    inputs = [str(item.get("name")) for item in cast(Iterable[Mapping[str, object]], provenance.get("inputs", ()))]
    if inputs:
        stats = [f"{key} {provenance[key]}" for key in ("stat", "collective_stat") if provenance.get(key)]
        how = f" ({', '.join(stats)})".replace("_", " ") if stats else ""
        yield shown(f"from {some(inputs, 4)}{how}, by {provenance.get('tool', 'unknown')}")
    for module in module_records(provenance)[:4]:
        prints = [name[:12] for name in module.get("fingerprints", ())]
        used = module.get("executions_used")
        steps = f", {used} of {module.get('executions_seen')} executions" if used is not None else ""
        devices = f" over {module.get('devices')} devices" if module.get("devices") else ""
        known = f", fingerprint {' '.join(prints)}" if prints else ""
        yield shown(f"module {module.get('name')}{steps}{devices}{known}")


def _instructions(summary: Summary) -> Table:
    heads = "instruction | cost (time) | share (share) | kind | samples (count) | spread (share) | origin"
    has_origins = summary.described and any(cost.origin is not Origin.MEASURED for cost in summary.costs)
    sampled = any(cost.samples for cost in summary.costs)
    rows = (
        (
            cost.full_name,
            cost.cost_us if math.isfinite(cost.cost_us) else str(cost.cost_us),
            _share(cost, summary),
            cost.likely_kind.value + ("" if cost.kind else "?"),
            (cost.samples or None) if sampled else "",
            (cost.spread if cost.samples > 1 else None) if sampled else "",
            cost.origin.value if has_origins else "",
        )
        for cost in summary.costs
    )
    return replace(table(heads, rows, shown=ROWS), more=summary.names - len(summary.costs))


def _share(cost: Cost, summary: Summary) -> float | None:
    """A cost's share of the total; None for loops and for costs that count as 0 in it."""
    valid = math.isfinite(cost.cost_us) and cost.cost_us >= 0 and summary.total_us > 0
    return cost.cost_us / summary.total_us if valid and cost.likely_kind is not CostKind.LOOP else None


def _faults(findings: Sequence[Oddity]) -> tuple[list[str], list[tuple[Value, ...]]]:
    """A line on each kind of fault, with what XLA does if it does the same with all names; and a row for each name."""
    lines, rows = [], list[tuple[Value, ...]]()
    for fault in Fault:
        mine = sorted((item for item in findings if item.fault is fault), key=_importance, reverse=True)
        effects = [item.message for item in mine if not item.values_us]
        effects = effects or list(dict.fromkeys(item.message.split("; ", 1)[-1] for item in mine))
        if named := sum(bool(item.values_us) for item in mine):
            lines.append(f"{_TITLES[fault]} ({named}){f': {effects[0]}' if len(effects) == 1 else ''}")
        elif mine:
            lines.append(f"{_TITLES[fault]}: {effects[0]}")
        for item in mine:
            effect = item.message if len(effects) > 1 else ""
            rows.append((item.name or "(no name)", _costs(item), _TITLES[fault], effect))
    return lines, rows


def _costs(finding: Oddity) -> str:
    """``62: 1 µs to 15.85 ms → 1 µs``: the costs of a name, and the one that XLA takes."""
    values = finding.values_us
    listed = ", ".join(map(_cost, values))
    if len(values) > 2:
        listed = f"{len(values)}: {_cost(min(values))} to {_cost(max(values))}"
    return listed if finding.effective_us is None or len(values) == 1 else f"{listed} → {_cost(finding.effective_us)}"


def _cost(value_us: float) -> str:
    return figures.time(value_us) if math.isfinite(value_us) else str(value_us)


def _importance(finding: Oddity) -> float:
    """How far the costs of a name are apart, or the cost itself."""
    finite = [value for value in finding.values_us if math.isfinite(value)] or [0.0]
    return max(finite) - min(finite) if len(finite) > 1 else abs(finite[0])


def profile_document(name: str, summary: Summary) -> dict[str, object]:
    """``pgle.show/1`` of a profile."""
    names = "name=full_name cost_us kind=likely_kind opcode shape samples min_us max_us spread slowest_us trace_name"
    return {
        "profile": name,
        **text.picked(summary, "entries names total_us skew_us kinds origins modules provenance"),
        "instructions": [
            {
                **text.picked(cost, f"{names} origin"),
                "share": _share(cost, summary),
                "kind_is_guess": not cost.kind,
            }
            for cost in summary.costs
        ],
        **text.picked(summary, "findings warnings"),
    }


_NAMES = {"kernel": "kernels", "memcpy": "copies", "memset": "memsets", "host": "thunks on the CPU"}


def trace_page(path: str, summary: TraceSummary, following: str) -> Page:
    """Modules with their executions first; instructions, devices and what was left out in sections."""
    kinds = ", ".join(f"{count:,} {_NAMES[kind]}" for kind, count in summary.kinds.items())
    formats = dict.fromkeys(f"{source.format} {source.version}".strip() for source in summary.trace.sources)
    left = [
        Prose(printable(f"execution {execution.number} of {item.module.name}: {execution.left_out}"))
        for item in summary.modules
        for execution in item.executions
        if execution.left_out
    ]
    modules = (
        (
            printable(item.module.name) + ("" if item.module.program_id is None else f" ({item.module.program_id})"),
            f"{item.steady} of {len(item.executions)}",
            max((execution.devices for execution in item.executions), default=0),
            None if math.isnan(item.step_us) else item.step_us,
            item.gpu_time_us,
            item.share,
        )
        for item in summary.modules
    )
    instructions = (
        (printable(item.name), f"{item.kind}?", item.launches, item.gpu_time_us, item.share)
        for item in summary.instructions
    )
    devices = (
        (f"{printable(item.device.process)} {item.device.ordinal}", item.device.global_id, item.streams,
         item.activities, item.busy_us, item.span_us)
        for item in summary.devices
    )  # fmt: skip
    unresolved = (
        (item.count, item.duration_ns / 1e3, summary.meanings.get(item.reason) or item.reason)
        for item in summary.trace.unresolved
    )
    of_module = "module | steady | devices (count) | median span (time) | time (time) | share (share)"
    of_instruction = "instruction | kind | launches (count) | time (time) | share (share)"
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
        notes=(f"{counted}, {figures.time(summary.gpu_time_us)} of device time{skipped} (--all)",),
        sections=(
            Section("instructions", "Instructions", (table(of_instruction, instructions),)),
            Section("devices", "Devices", (table(of_device, devices),)),
            Section("left-out", "Left out", (*left, lost)),
            Section("flags", "XLA_FLAGS", (Prose(summary.trace.xla_flags, code=True),)),
        ),
        next=(following.removeprefix("next: "),),
        warnings=tuple(map(printable, summary.trace.warnings)),
    )


def trace_document(path: str, summary: TraceSummary, following: str) -> dict[str, object]:
    """``pgle.show/1`` of a trace."""
    found = {
        **text.picked(summary.trace, "sources recordings unresolved simulated xla_flags warnings"),
        **text.plain(text.picked(summary, "kinds span_us gpu_time_us devices modules meanings instructions")),
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


def diff_page(old: str, new: str, diff: ProfileDiff, following: Sequence[str] = ()) -> Page:
    """The largest changes in time first; sums by kind in a section."""
    counted = [total for total in diff.totals if total.kind is not CostKind.LOOP]
    before, after = sum(total.old_us for total in counted), sum(total.new_us for total in counted)
    changed = [item for item in diff.differences if item.change is not CostChange.SAME]
    heads = "instruction | kind | old (time) | new (time) | change (change-time) | (change) | note"
    share = f" ({figures.change(after / before - 1)})" if before > 0 else ""
    verdict = f"Sum of costs {figures.time(before)} → {figures.time(after)}{share}"
    if all(item.change is CostChange.NOISE for item in changed):
        verdict = "No change beyond noise"
    counts = ", ".join(f"{diff.count(change):,} {word}" for change, word in _WORDS.items() if diff.count(change))
    kinds = (
        (total.kind.value, total.old_count, total.new_count, total.old_us, total.new_us,
         total.new_us / total.old_us - 1 if total.old_us > 0 else None)
        for total in diff.totals
    )  # fmt: skip
    of_kind = "kind | old names (count) | new names (count) | old (time) | new (time) | change (change)"
    return Page(
        title=f"pgle diff {old} {new}",
        identity=(f"{old} → {new}",),
        verdict=verdict,
        table=table(heads, map(_difference, changed), shown=CHANGES),
        notes=(counts,),
        sections=(Section("kinds", "By kind", (table(of_kind, kinds),)),),
        next=tuple(following),
        warnings=tuple(diff.warnings),
    )


def _difference(item: Difference) -> tuple[Value, ...]:
    note = _WORDS[item.change] if item.change in _NOTED else f"was {item.was}, is {item.now}" if item.was else ""
    change = item.ratio - 1 if item.ratio is not None and math.isfinite(item.ratio) else None
    kind = item.kind.value + ("?" if item.kind_is_guess else "")
    return printable(item.name), kind, item.old_us, item.new_us, item.delta_us, change, printable(note)


def diff_document(old: str, new: str, diff: ProfileDiff) -> dict[str, object]:
    """``pgle.diff/1``: every name that is not the same in both."""
    return {
        "old": old,
        "new": new,
        "counts": {change: diff.count(change) for change in CostChange},
        **text.picked(diff, "totals"),
        "differences": [
            text.whole(item, "delta_us ratio") for item in diff.differences if item.change != CostChange.SAME
        ],
        "warnings": diff.warnings,
    }
