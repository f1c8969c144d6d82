"""Two profiles compared, as text and JSON."""

from __future__ import annotations

import math

from pgle.costs.profile.diff import Change, Difference, ProfileDiff, Total
from pgle.costs.profile.value import CostKind
from pgle.report import json
from pgle.report.text import console, duration, printable, table, warn


def show_text(old: str, new: str, diff: ProfileDiff, top: int) -> None:
    """Totals by kind, the `top` largest changes (0: all), counts; warnings on stderr."""
    out = console()
    out.print(f"{printable(old)} → {printable(new)}", style="bold", soft_wrap=True)
    rows = [_total_row(total) for total in diff.totals]
    counted = [total for total in diff.totals if total.kind != CostKind.LOOP]
    if len(counted) > 1:
        rows.append(_total_row(_sum(counted), "all but loops" if len(counted) < len(diff.totals) else "all"))
    out.print(table(("", "old", "new", "change", "", "names"), rows, right="old|new|change"))
    out.print()
    changed = [item for item in diff.differences if item.change != Change.SAME]
    if changed:
        shown = changed[: top or None]
        columns = ("instruction", "kind", "old", "new", "change", "%", "")
        out.print(table(columns, [_row(item) for item in shown], right="old|new|change|%"))
        if len(shown) < len(changed):
            out.print(f"… and {len(changed) - len(shown)} more (--top 0 lists all)", style="dim")
        out.print()
    out.print(_verdict(diff))
    warn(diff.warnings)


def _total_row(total: Total, label: str = "") -> tuple[str, ...]:
    names = " → ".join(dict.fromkeys(f"{count:,}" for count in (total.old_count, total.new_count)))
    return (
        label or total.kind.value,
        duration(total.old_us),
        duration(total.new_us),
        _signed(total.new_us - total.old_us),
        _percent(total.new_us / total.old_us if total.old_us > 0 else None),
        names,
    )


def _sum(totals: list[Total]) -> Total:
    old_us, new_us = sum(total.old_us for total in totals), sum(total.new_us for total in totals)
    counts = sum(total.old_count for total in totals), sum(total.new_count for total in totals)
    return Total(CostKind.UNKNOWN, old_us, new_us, *counts)


def _row(item: Difference) -> tuple[str, ...]:
    note = {
        Change.ADDED: "added",
        Change.REMOVED: "removed",
        Change.REPLACED: f"was {item.was}, is {item.now}",
        Change.NOISE: "within noise",
    }.get(item.change, "")
    return (
        printable(item.name),
        item.kind.value + ("?" if item.kind_is_guess else ""),
        "–" if item.old_us is None else duration(item.old_us),
        "–" if item.new_us is None else duration(item.new_us),
        _signed(item.delta_us),
        _percent(item.ratio),
        printable(note),
    )


def _signed(delta_us: float) -> str:
    return f"{'+' if delta_us > 0 else ''}{duration(delta_us)}"


def _percent(ratio: float | None) -> str:
    if ratio is None or not math.isfinite(ratio):
        return ""
    return f"×{ratio:.3g}" if ratio >= 10 else f"{ratio - 1:+.1%}"


def _verdict(diff: ProfileDiff) -> str:
    counts = [
        f"{diff.count(change):,} {word}"
        for change, word in (
            (Change.CHANGED, "changed"),
            (Change.NOISE, "within noise"),
            (Change.REPLACED, "another instruction of the same name"),
            (Change.ADDED, "added"),
            (Change.REMOVED, "removed"),
            (Change.SAME, "the same"),
        )
        if diff.count(change)
    ]
    moved = "" if math.isnan(diff.moved) else f"; changes add up to {diff.moved:.1%} of the old total"
    return ", ".join(counts) + moved


def show_json(old: str, new: str, diff: ProfileDiff) -> None:
    """``pgle.diff/1``: every name that is not the same in both."""
    json.show(
        "pgle.diff/1",
        {
            "old": old,
            "new": new,
            "counts": {change: diff.count(change) for change in Change},
            **json.picked(diff, "totals moved"),
            "differences": [
                json.whole(item, "delta_us ratio") for item in diff.differences if item.change != Change.SAME
            ],
            "warnings": diff.warnings,
        },
    )
