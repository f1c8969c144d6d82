"""What a profile holds, as a page and as JSON."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import cast

from msgspec.structs import replace

from pgle.costs.profile.diff import Summary
from pgle.costs.profile.value import Cost, CostKind, Fault, Finding, Origin, module_records
from pgle.errors import many, shown, some
from pgle.report import text
from pgle.report.page import figures
from pgle.report.page.value import Page, Prose, Section, Table, table

MIN_SKEW = 0.01  # share of the time from which on the wait for the slowest rank is worth a line
ROWS = 10  # costs on the first screen

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
    Fault.MASKED: "costs hidden by the cost of a start",
}


def show_page(name: str, summary: Summary, following: Sequence[str] = ()) -> Page:
    """Costs, the most expensive first; sums by kind; names that XLA takes otherwise than it reads."""
    unused = summary.entries - summary.names
    counted = (
        f"{summary.entries:,} entries, of which {summary.names:,} count" if unused else many(summary.names, "cost")
    )
    faults = list(_faults(summary.findings))
    ranks = list(_rank_lines(summary))
    return Page(
        title=f"pgle show {name}",
        identity=(name, *_modules(summary), *_origin(summary), ranks_given(summary.warnings)),
        verdict=f"{counted}, {figures.time(summary.total_us)} with each executed once",
        tone="warn" if faults else "",
        table=_instructions(summary),
        notes=(*_kinds(summary), *ranks),
        sections=(
            *(
                [Section("findings", "Names that XLA takes otherwise", tuple(_finding_parts(summary.findings)))]
                if faults
                else []
            ),
            Section(
                "origin", "Where this comes from", tuple(Prose(line) for line in provenance_lines(summary.provenance))
            ),
            *conversion_section(summary.warnings),
        ),
        next=tuple(following),
        warnings=tuple(faults),
    )


def ranks_given(warnings: Iterable[str]) -> str:
    """``2 of 4 ranks``: what later answers keep of the warnings of a conversion; empty if it had all ranks."""
    return next((found[0] for line in warnings if (found := _RANKS.search(line))), "")


_RANKS = re.compile(r"\d+ of (\d+|several) ranks")


def conversion_section(warnings: Sequence[str]) -> tuple[Section, ...]:
    """The warnings that the conversion of a profile gave; later answers fold them away."""
    lines = tuple(Prose(shown(line)) for line in warnings)
    return (Section("conversion", "Warnings of the conversion", lines),) if lines else ()


def _modules(summary: Summary) -> Iterator[str]:
    records = list(module_records(summary.provenance))
    if records:
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
    if parts:
        yield " · ".join(parts)
    if any(total.guessed for total in summary.kinds) and summary.described:
        yield "Kinds marked ? are guessed from names: give the HLO (pgle convert --hlo DUMP)."


def _rank_lines(summary: Summary) -> Iterator[str]:
    if summary.skew_us is not None and summary.skew_us > MIN_SKEW * summary.total_us:
        yield skew_line(summary.skew_us, summary.total_us, summary.skewed)


def skew_line(skew_us: float, of_us: float, skewed: Sequence[Cost]) -> str:
    """Compute takes longer on the slowest rank, and in which instruction most; XLA gets typical costs all the same."""
    share = f" ({figures.share(skew_us / of_us)})" if of_us > 0 else ""
    most = f", most in {shown(skewed[0].full_name)} ({figures.time(skewed[0].cost_us)}" if skewed else ""
    most += f", there {figures.time(skewed[0].slowest_us or 0.0)})" if skewed else ""
    return f"compute takes {figures.time(skew_us)}{share} longer on the slowest rank{most}"


def provenance_lines(provenance: Mapping[str, object]) -> Iterator[str]:
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


def _instructions(summary: Summary) -> Table | None:
    if not summary.costs:
        return None
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
    return replace(table(heads, rows, shown=ROWS), more=summary.listed - len(summary.costs))


def _share(cost: Cost, summary: Summary) -> float | None:
    """A cost's share of the total; None for loops and for costs that count as 0 in it."""
    valid = math.isfinite(cost.cost_us) and cost.cost_us >= 0 and summary.total_us > 0
    return cost.cost_us / summary.total_us if valid and cost.likely_kind is not CostKind.LOOP else None


def _by_fault(findings: Sequence[Finding]) -> Iterator[tuple[Fault, list[Finding], str]]:
    """Each kind of fault, its findings with the weightiest first, and what they have in common in words."""
    for fault in Fault:
        mine = [finding for finding in findings if finding.fault is fault]
        named = sorted((item for item in mine if item.values_us), key=_importance, reverse=True)
        about = next((item.message for item in mine if not item.values_us), "")
        shared = {item.message.split("; ", 1)[-1] for item in named}
        if mine:
            yield fault, named, about or (shared.pop() if len(shared) == 1 else "")


def _faults(findings: Sequence[Finding]) -> Iterator[str]:
    for fault, named, about in _by_fault(findings):
        title = f"{_TITLES[fault]} ({len(named)})" if named else _TITLES[fault]
        yield f"{title}: {about}" if about else title


def _finding_parts(findings: Sequence[Finding]) -> Iterator[Prose | Table]:
    for fault, named, about in _by_fault(findings):
        yield Prose(_TITLES[fault], tone="head")
        if about:
            yield Prose(about)
        if named:
            yield table("name | costs | ", (_finding_row(row, about) for row in named))


def _finding_row(finding: Finding, about: str) -> tuple[str, str, str]:
    values = finding.values_us
    listed = ", ".join(map(_cost, values))
    if len(values) > 2:
        listed = f"{len(values)}: {_cost(min(values))} to {_cost(max(values))}"
    took = "" if finding.effective_us is None or len(values) == 1 else f" → {_cost(finding.effective_us)}"
    message = "" if about and finding.message.endswith(about) else finding.message
    return finding.name or "(no name)", listed + took, message


def _cost(value_us: float) -> str:
    return figures.time(value_us) if math.isfinite(value_us) else str(value_us)


def _importance(finding: Finding) -> float:
    """How far the costs of a name are apart, or the cost itself."""
    finite = [value for value in finding.values_us if math.isfinite(value)] or [0.0]
    return max(finite) - min(finite) if len(finite) > 1 else abs(finite[0])


def document(name: str, summary: Summary) -> dict[str, object]:
    """``pgle.show/1``."""
    return {
        "profile": name,
        **text.picked(summary, "entries names total_us skew_us kinds origins modules provenance"),
        "instructions": [_record(cost, _share(cost, summary)) for cost in summary.costs],
        "findings": summary.findings,
        "warnings": summary.warnings,
    }


def _record(cost: Cost, share: float | None) -> dict[str, object]:
    return {
        "name": cost.full_name,
        "cost_us": cost.cost_us,
        "share": share,
        "kind": cost.likely_kind,
        "kind_is_guess": not cost.kind,
        **text.picked(cost, "opcode shape samples min_us max_us spread slowest_us trace_name origin"),
    }
