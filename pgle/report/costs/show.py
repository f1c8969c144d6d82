"""A profile's summary as text and JSON."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import cast

from pgle.costs.profile.effective import Fault, Finding
from pgle.costs.profile.summary import Summary
from pgle.costs.profile.value import Cost, CostKind, Origin, module_records
from pgle.errors import cut, many, printable, shown, some
from pgle.report import json
from pgle.report.text import Console, Table, bar, console, duration, show_rest, table, warn

FINDINGS_SHOWN = 6  # findings of each kind that are listed; ``--json`` has all
MIN_SKEW = 0.01  # share of the time from which on it is said that ranks wait for the slowest one
NARROW = 80  # columns of a terminal below which samples and spread give way to the names

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
    Fault.MASKED: "costs behind that of a start",
}


def show_text(name: str, summary: Summary) -> None:
    """Totals by kind, instructions, findings; warnings on stderr."""
    out = console()
    _head(out, name, summary)
    out.print()
    if summary.costs:
        out.print(_instructions(summary, out.width))
    else:
        out.print("no instruction of that kind")
    if len(summary.costs) < summary.listed:
        out.print(f"… and {summary.listed - len(summary.costs)} more (--top 0 lists all)", style="dim")
    _findings(out, summary.findings)
    warn(summary.warnings)


def _head(out: Console, name: str, summary: Summary) -> None:
    unused = summary.entries - summary.names
    counted = f"{summary.entries:,} entries, {summary.names:,} of them count"
    entries = counted if unused else many(summary.names, "cost")
    out.print(
        f"{printable(name)}: {entries}, {duration(summary.total_us)} with each executed once",
        style="bold",
        soft_wrap=True,
    )
    for line in (*_origin_lines(summary), *provenance_lines(summary.provenance)):
        out.print(line, style="dim")
    if summary.skew_us is not None and summary.skew_us > MIN_SKEW * summary.total_us:
        line = skew_line(summary.skew_us, summary.total_us, summary.skewed)
        out.print(f"{line}, with each executed once", style="yellow", soft_wrap=True)
    rows = [
        (
            total.kind.value + ("?" if total.guessed else ""),
            f"{total.count:,}",
            duration(total.total_us),
            f"{total.share:.1%}" if total.kind != CostKind.LOOP else "–",
            bar(total.share, 20) if total.kind != CostKind.LOOP else "in the bodies' costs already",
        )
        for total in summary.kinds
    ]
    out.print()
    out.print(table(("kind", "names", "total", "share", ""), rows, right="names|total|share"))


def _origin_lines(summary: Summary) -> Iterator[str]:
    if not summary.described:
        why = "" if summary.provenance else "no sidecar: "
        yield f"{why}kinds are guessed from names (marked ?); samples, shapes and origins are unknown"
        return
    counts = ", ".join(f"{summary.origins[origin]:,} {origin}" for origin in Origin if summary.origins.get(origin))
    yield f"origin: {counts}"
    if any(total.guessed for total in summary.kinds):
        yield "kinds marked ? are guessed from names: the HLO was not given (pgle convert --hlo DUMP_DIR)"
    if summary.modules:
        yield f"for modules {', '.join(module[:12] for module in summary.modules[:6])}"


def skew_line(skew_us: float, of_us: float, skewed: Sequence[Cost]) -> str:
    """That ranks wait for the slowest one, and where; XLA is given typical costs all the same."""
    share = f" ({skew_us / of_us:.1%})" if of_us > 0 else ""
    most = f", most in {shown(skewed[0].full_name)} ({duration(skewed[0].cost_us)}" if skewed else ""
    most += f", there {duration(skewed[0].slowest_us or 0.0)})" if skewed else ""
    return f"compute takes {duration(skew_us)}{share} longer on the slowest rank{most}"


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


_WIDTHS = {"cost": 10, "share": 7, "": 10, "kind": 13, "samples": 9, "spread": 8, "origin": 12, "shape": 12}
"""Columns of the table of instructions, with the two blanks between them; `shape` at least."""


def _instructions(summary: Summary, width: int) -> Table:
    """The table; columns that no row fills are left out, and those that matter least where there is no room."""
    costs = summary.costs
    largest = max((cost.cost_us for cost in costs if math.isfinite(cost.cost_us)), default=0.0)
    filled = {
        "samples": any(cost.samples for cost in costs),
        "spread": any(cost.samples for cost in costs),
        "origin": summary.described and any(cost.origin != Origin.MEASURED for cost in costs),
        "shape": any(cost.shape for cost in costs),
    }
    columns = [column for column in _WIDTHS if filled.get(column, True)]
    room = width - 2 - max(len("instruction"), *(len(shown(cost.full_name)) for cost in costs))
    for dropped in ("shape", "", *(("samples", "spread") if width < NARROW else ())):
        if dropped in columns and sum(_WIDTHS[column] for column in columns) > room:
            columns.remove(dropped)
    shape_room = room - sum(_WIDTHS[column] for column in columns) + _WIDTHS["shape"]

    def row(cost: Cost) -> list[str]:
        share = _share(cost, summary)
        counts = math.isfinite(cost.cost_us) and largest > 0
        cells = {
            "cost": duration(cost.cost_us),
            "share": "–" if share is None else f"{share:.1%}",
            "": bar(cost.cost_us / largest if counts else 0.0, 8),
            "kind": cost.likely_kind.value + ("" if cost.kind else "?"),
            "samples": f"{cost.samples:,}" if cost.samples else "–",
            "spread": f"{cost.spread:.0%}" if cost.samples > 1 else "–",
            "origin": cost.origin.value,
            "shape": cut(cost.shape, shape_room),
        }
        return [cost.full_name, *(cells[column] for column in columns)]

    return table(("instruction", *columns), map(row, costs), right="cost|share|samples|spread")


def _share(cost: Cost, summary: Summary) -> float | None:
    """A cost's share of the total; None for loops and for costs that count as 0 in it."""
    sound = math.isfinite(cost.cost_us) and cost.cost_us >= 0 and summary.total_us > 0
    return cost.cost_us / summary.total_us if sound and cost.likely_kind != CostKind.LOOP else None


def _findings(out: Console, findings: Sequence[Finding]) -> None:
    by_fault: dict[Fault, list[Finding]] = {}
    for finding in findings:
        by_fault.setdefault(finding.fault, []).append(finding)
    for fault in Fault:
        of_fault = by_fault.get(fault, [])
        if not of_fault:
            continue
        named = sorted((item for item in of_fault if item.values_us), key=_importance, reverse=True)
        out.print()
        about = next((item.message for item in of_fault if not item.values_us), "")
        shared = {item.message.split("; ", 1)[-1] for item in named}
        about = about or (shared.pop() if len(shared) == 1 else "")
        title = f"{_TITLES[fault]} ({len(named)})" if named else _TITLES[fault]
        out.print(f"{title}: {about}" if about else title, style="yellow")
        rows = [_finding_row(item, about) for item in named[:FINDINGS_SHOWN]]
        out.print(table(("name", "costs", "what"), rows, header=False))
        show_rest(out, len(named) - FINDINGS_SHOWN)


def _finding_row(finding: Finding, about: str) -> tuple[str, str, str]:
    values = finding.values_us
    listed = ", ".join(map(duration, values))
    if len(values) > 2:
        listed = f"{len(values)}: {duration(min(values))} to {duration(max(values))}"
    took = "" if finding.effective_us is None or len(values) == 1 else f" → {duration(finding.effective_us)}"
    message = "" if about and finding.message.endswith(about) else finding.message
    return f"  {finding.name or '(no name)'}", listed + took, message


def _importance(finding: Finding) -> float:
    """How far the costs of a name are apart, or the cost itself."""
    finite = [value for value in finding.values_us if math.isfinite(value)] or [0.0]
    return max(finite) - min(finite) if len(finite) > 1 else abs(finite[0])


def show_json(name: str, summary: Summary) -> None:
    """``pgle.show/1``."""
    json.show(
        "pgle.show/1",
        {
            "profile": name,
            **json.picked(summary, "entries names total_us skew_us kinds origins modules provenance"),
            "instructions": [_record(cost, _share(cost, summary)) for cost in summary.costs],
            "findings": summary.findings,
            "warnings": summary.warnings,
        },
    )


def _record(cost: Cost, share: float | None) -> dict[str, object]:
    return {
        "name": cost.full_name,
        "cost_us": cost.cost_us,
        "share": share,
        "kind": cost.likely_kind,
        "kind_is_guess": not cost.kind,
        **json.picked(cost, "opcode shape samples min_us max_us spread slowest_us trace_name origin"),
    }
