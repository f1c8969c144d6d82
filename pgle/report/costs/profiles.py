"""What merging profiles and what filling the gaps of one gave, as pages and as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from pgle.costs.profile.carry import By
from pgle.costs.profile.value import Cost, CostKind, Origin
from pgle.errors import many, printable, some
from pgle.report import text
from pgle.report.costs.show import conversion_section
from pgle.report.page import figures
from pgle.report.page.value import Page, Section, Value, table

if TYPE_CHECKING:
    from pgle.costs.profile.carry import Carried
    from pgle.costs.profile.lookup import Completion
    from pgle.costs.profile.merge import Merged
    from pgle.run.convert import Written

_HOW = {Origin.SAME_SHAPE: "as instructions of the same shape", Origin.ESTIMATED: "estimated"}
_BY = {
    By.STRUCTURE: "structure: itself and its neighbours",
    By.NAME: "name, opcode, shape and content",
    By.SHAPE: "shapes and place",
    By.SCALED: "another size or kernel: scaled (estimated)",
}
MOSTLY = 0.95  # share of the time from which on a carried profile is as good as `pgle verify` asks for
_SUMS = "costs (count) | sum (time)"


def _sums(label: tuple[str, ...], costs: Iterable[Cost]) -> Iterator[tuple[Value, ...]]:
    """A row of a table with `_SUMS`, unless there are no costs."""
    if every := [cost.cost_us for cost in costs]:
        yield (*label, len(every), sum(every))


def _listed(key: str, heading: str, heads: str, rows: Sequence[Sequence[Value]]) -> tuple[Section, ...]:
    """A section of one table, if it has rows."""
    return (Section(key, heading, (table(heads, rows),)),) if rows else ()


def merge_page(merged: Merged, written: Written, following: Sequence[str] = ()) -> Page:
    """How much was merged and how, and what was left out."""
    rows: list[tuple[Value, ...]] = []
    for kind in (CostKind.COMPUTE, CostKind.COLLECTIVE, CostKind.COPY, CostKind.LOOP):
        of_kind = [cost for cost in merged.profile.costs if cost.likely_kind == kind]
        rows += _sums((kind.value + ("" if all(cost.kind for cost in of_kind) else "?"),), of_kind)
    notes = []
    if merged.partial:
        notes.append(
            f"{many(len(merged.partial), 'name')} not in all inputs: {some(map(printable, merged.partial), 3)}"
        )
    conflicts = tuple(
        (
            printable(conflict.name),
            printable("; ".join(f"{what} in {label}" for label, what in conflict.seen.items())),
        )
        for conflict in merged.conflicts
    )
    if conflicts:
        notes.append(f"{many(len(conflicts), 'name')} of other instructions in each input (--section conflicts).")
    return Page(
        title="pgle merge",
        identity=(many(len(merged.inputs), "profile"),),
        verdict=f"wrote {written.path}: {many(written.names, 'cost')}",
        tone="good" if merged.is_of_one else "warn",
        table=table(f"kind | {_SUMS}", rows),
        notes=tuple(notes),
        sections=_listed("conflicts", "Names of other instructions", "name | it is", conflicts),
        next=tuple(following),
        warnings=merged.profile.warnings,
        about=(("sha256", written.sha256),),
    )


def merge_document(merged: Merged, written: Written) -> dict[str, object]:
    """``pgle.merge/2``."""
    return {
        "written": written,
        **text.picked(merged, "inputs not_in_all_inputs=partial conflicts profile.warnings"),
    }


def complete_page(completions: Sequence[Completion], written: Written, following: Sequence[str] = ()) -> Page:
    """Per module how much was missing, and where it comes from now."""
    rows: list[tuple[Value, ...]] = []
    for item in completions:
        for origin, how in _HOW.items():
            target = f" for {item.target}" if origin is Origin.ESTIMATED else ""
            rows += _sums(
                (printable(item.module), how + target), (cost for cost in item.filled if cost.origin is origin)
            )
    filled = sorted((cost for item in completions for cost in item.filled), key=lambda cost: (-cost.cost_us, cost.name))
    costliest = [(printable(cost.name), printable(cost.opcode), cost.cost_us, cost.origin.value) for cost in filled]
    scales = [(scale.kind, scale.factor, scale.neighbours) for item in completions for scale in item.scales]
    scaled = "estimates of | scaled by (factor) | measured neighbours (count)"
    return Page(
        title="pgle complete",
        identity=tuple(
            f"{printable(item.module)}: {item.measured:,} of {item.wanted:,} had costs" for item in completions
        ),
        verdict=f"wrote {written.path}: {many(len(filled), 'gap')} filled, {many(written.names, 'cost')} in all",
        tone="good",
        table=table(f"module | filled | {_SUMS}", rows) if rows else None,
        sections=(
            *_listed(
                "filled", "Filled, the most expensive first", "instruction | what | cost (time) | origin", costliest
            ),
            *_listed("scales", "How estimates were scaled", scaled, scales),
            *conversion_section(completions[-1].profile.warnings),
        ),
        next=tuple(following),
        about=(("sha256", written.sha256),),
    )


def carry_page(carried: Carried, written: Written, following: Sequence[str] = ()) -> Page:
    """How much of the profile's time was carried, the evidence of each match, and the rest."""
    rows: list[tuple[Value, ...]] = []
    for by in By:
        rows += _sums((_BY[by],), (match.cost for match in carried.matches if match.by is by))
    left, unused = ([(printable(name),) for name in names] for names in (carried.left, carried.unused))
    notes = []
    if carried.left:
        notes.append(f"{many(len(carried.left), 'instruction')} without a counterpart (--section left).")
    return Page(
        title="pgle carry",
        identity=(
            f"{many(len(carried.matches), 'cost')} of {len(carried.matches) + len(carried.left):,} instructions",
        ),
        verdict=f"wrote {written.path}: {figures.share(carried.share)} of the profile's time carried over",
        tone="good" if carried.share >= MOSTLY else "warn",
        table=table(f"matched by | {_SUMS}", rows),
        notes=tuple(notes),
        sections=(
            Section("left", "Left without a cost", (table("instruction without a cost", left),)),
            Section("unused", "Costs without a place", (table("cost without a place", unused),)),
        ),
        next=tuple(following),
    )


def carry_document(carried: Carried, written: Written) -> dict[str, object]:
    """``pgle.carry/1``."""
    return {
        "written": written,
        "carried": len(carried.matches),
        "of": len(carried.matches) + len(carried.left),
        "time_share": carried.share,
        "by": {by.value: carried.count(by) for by in By},
        "left": carried.left,
        "unused": carried.unused,
    }


def complete_document(completions: Sequence[Completion], written: Written) -> dict[str, object]:
    """``pgle.complete/1``."""
    return {
        "written": written,
        "modules": [
            {
                "name": item.module,
                **text.picked(item, "target wanted measured scales"),
                "same_shape": item.count(Origin.SAME_SHAPE),
                "estimated": item.count(Origin.ESTIMATED),
                "filled": [{"name": cost.full_name, **text.picked(cost, "cost_us origin")} for cost in item.filled],
            }
            for item in completions
        ],
        "warnings": completions[-1].profile.warnings,
    }
