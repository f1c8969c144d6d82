"""Two profiles compared, as a page and as JSON."""

from __future__ import annotations

import math
from collections.abc import Sequence

from pgle.costs.profile.diff import Change, Difference, ProfileDiff
from pgle.costs.profile.value import CostKind
from pgle.errors import printable
from pgle.report import text
from pgle.report.page import figures
from pgle.report.page.value import Page, Section, Table, Value, table

ROWS = 12  # changes on the first screen
_WORDS = {
    Change.CHANGED: "changed",
    Change.NOISE: "within noise",
    Change.REPLACED: "another instruction of the same name",
    Change.ADDED: "added",
    Change.REMOVED: "removed",
    Change.SAME: "the same",
}
_NOTED = (Change.ADDED, Change.REMOVED, Change.NOISE)


def diff_page(old: str, new: str, diff: ProfileDiff, following: Sequence[str] = ()) -> Page:
    """The largest changes in time first; sums by kind in a section."""
    counted = [total for total in diff.totals if total.kind is not CostKind.LOOP]
    before, after = sum(total.old_us for total in counted), sum(total.new_us for total in counted)
    changed = [item for item in diff.differences if item.change is not Change.SAME]
    heads = "instruction | kind | old (time) | new (time) | change (change-time) | (change) | note"
    share = f" ({figures.change(after / before - 1)})" if before > 0 else ""
    same = not any(item.change is not Change.NOISE for item in changed)
    verdict = (
        "No change beyond noise" if same else f"Sum of costs {figures.time(before)} → {figures.time(after)}{share}"
    )
    return Page(
        title=f"pgle diff {old} {new}",
        identity=(f"{old} → {new}",),
        verdict=verdict,
        table=table(heads, map(_row, changed), shown=ROWS) if changed else None,
        notes=(_counts(diff),),
        sections=(Section("kinds", "By kind", (_kinds(diff),)),),
        next=tuple(following),
        warnings=tuple(diff.warnings),
    )


def _kinds(diff: ProfileDiff) -> Table:
    rows = (
        (
            total.kind.value, total.old_count, total.new_count, total.old_us, total.new_us,
            total.new_us / total.old_us - 1 if total.old_us > 0 else None,
        )
        for total in diff.totals
    )  # fmt: skip
    return table("kind | old names (count) | new names (count) | old (time) | new (time) | change (change)", rows)


def _row(item: Difference) -> tuple[Value, ...]:
    note = _WORDS[item.change] if item.change in _NOTED else f"was {item.was}, is {item.now}" if item.was else ""
    ratio = item.ratio
    change = ratio - 1 if ratio is not None and math.isfinite(ratio) else None
    kind = item.kind.value + ("?" if item.kind_is_guess else "")
    return printable(item.name), kind, item.old_us, item.new_us, item.delta_us, change, printable(note)


def _counts(diff: ProfileDiff) -> str:
    counts = [f"{diff.count(change):,} {word}" for change, word in _WORDS.items() if diff.count(change)]
    moved = "" if math.isnan(diff.moved) else f". Changes add up to {figures.share(diff.moved)} of the old sum."
    return ", ".join(counts) + moved


def document(old: str, new: str, diff: ProfileDiff) -> dict[str, object]:
    """``pgle.diff/1``: every name that is not the same in both."""
    return {
        "old": old,
        "new": new,
        "counts": {change: diff.count(change) for change in Change},
        **text.picked(diff, "totals moved"),
        "differences": [text.whole(item, "delta_us ratio") for item in diff.differences if item.change != Change.SAME],
        "warnings": diff.warnings,
    }
