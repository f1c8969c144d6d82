"""What merging profiles and what filling the gaps of one gave, as pages and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pgle.costs.profile.carry import By
from pgle.costs.profile.value import CostKind, Origin
from pgle.errors import many, printable, some
from pgle.report import text
from pgle.report.costs.show import conversion_section
from pgle.report.page import figures
from pgle.report.page.figures import Unit
from pgle.report.page.value import Column, Page, Section, Table

if TYPE_CHECKING:
    from pgle.costs.lookup.complete import Completion
    from pgle.costs.profile.carry import Carried
    from pgle.costs.profile.merge import Merged
    from pgle.run.profiles import Written

_HOW = {Origin.SAME_SHAPE: "as instructions of the same shape", Origin.ESTIMATED: "estimated"}
_BY = {
    By.STRUCTURE: "structure: itself and its neighbours",
    By.NAME: "name, opcode, shape and content",
    By.SHAPE: "shapes and place",
    By.SCALED: "another size or kernel: scaled (estimated)",
}
MOSTLY = 0.95  # share of the time from which on a carried profile is as good as `pgle verify` asks for
_SUMS = (Column("costs", Unit.COUNT), Column("sum", Unit.TIME))


def merge_page(merged: Merged, written: Written, following: Sequence[str] = ()) -> Page:
    """How much was merged and how, and what was left out."""
    rows = []
    for kind in (CostKind.COMPUTE, CostKind.COLLECTIVE, CostKind.COPY, CostKind.LOOP):
        of_kind = [cost for cost in merged.profile.costs if cost.likely_kind == kind]
        guess = "" if all(cost.kind for cost in of_kind) else "?"
        if of_kind:
            rows.append((kind.value + guess, len(of_kind), sum(cost.cost_us for cost in of_kind)))
    notes = []
    if merged.exact:
        notes.append(f"{many(merged.exact, 'collective')} merged by occurrence: the least time over the ranks.")
    if merged.partial:
        notes.append(
            f"{many(len(merged.partial), 'name')} not in all inputs: {some(map(printable, merged.partial), 3)}"
        )
    conflicts = tuple(
        (
            printable(conflict.name),
            "kept per module" if conflict.kept else "left out",
            printable("; ".join(f"{what} in {label}" for label, what in conflict.seen.items())),
        )
        for conflict in merged.conflicts
    )
    table = Table((Column("name"), Column("what became of it"), Column("it is")), conflicts)
    if conflicts:
        notes.append(f"{many(len(conflicts), 'name')} of other instructions in each input (--section conflicts).")
    return Page(
        title="pgle merge",
        identity=(many(len(merged.inputs), "profile"),),
        verdict=f"wrote {written.path}: {many(written.names, 'cost')}",
        tone="good",
        table=Table((Column("kind"), *_SUMS), tuple(rows)),
        notes=tuple(notes),
        sections=(Section("conflicts", "Names of other instructions", (table,)),) if conflicts else (),
        next=tuple(following),
        warnings=tuple(merged.warnings),
        about=(("sha256", written.sha256),),
    )


def merge_json(merged: Merged, written: Written) -> None:
    """``pgle.merge/1``."""
    text.show(
        "pgle.merge/1",
        {
            "written": written,
            "inputs": merged.inputs,
            "collectives_by_occurrence": merged.exact,
            "collectives_by_statistic": merged.inexact,
            "not_in_all_inputs": merged.partial,
            **text.picked(merged, "conflicts warnings"),
        },
    )


def complete_page(completions: Sequence[Completion], written: Written, following: Sequence[str] = ()) -> Page:
    """Per module how much was missing, and where it comes from now."""
    rows = []
    for item in completions:
        for origin, how in _HOW.items():
            of_origin = [cost for cost in item.filled if cost.origin is origin]
            target = f" for {item.target}" if origin is Origin.ESTIMATED else ""
            if of_origin:
                rows.append(
                    (printable(item.module), how + target, len(of_origin), sum(cost.cost_us for cost in of_origin))
                )
    filled = sorted((cost for item in completions for cost in item.filled), key=lambda cost: (-cost.cost_us, cost.name))
    columns = (Column("instruction"), Column("what"), Column("cost", Unit.TIME), Column("origin"))
    costliest = Table(
        columns,
        tuple((printable(cost.name), printable(cost.opcode), cost.cost_us, cost.origin.value) for cost in filled),
    )
    scales = Table(
        (Column("estimates of"), Column("scaled by", Unit.FACTOR), Column("measured neighbours", Unit.COUNT)),
        tuple((scale.kind, scale.factor, scale.neighbours) for item in completions for scale in item.scales),
    )
    return Page(
        title="pgle complete",
        identity=tuple(
            f"{printable(item.module)}: {item.measured:,} of {item.wanted:,} had costs" for item in completions
        ),
        verdict=f"wrote {written.path}: {many(len(filled), 'gap')} filled, {many(written.names, 'cost')} in all",
        tone="good",
        table=Table((Column("module"), Column("filled"), *_SUMS), tuple(rows)) if rows else None,
        sections=(
            *([Section("filled", "Filled, the most expensive first", (costliest,))] if filled else []),
            *([Section("scales", "How estimates were scaled", (scales,))] if scales.rows else []),
            *conversion_section(completions[-1].profile.warnings),
        ),
        next=tuple(following),
        about=(("sha256", written.sha256),),
    )


def carry_page(carried: Carried, written: Written, following: Sequence[str] = ()) -> Page:
    """How much of the profile's time was carried, what each match stands on, and what is left."""
    rows = []
    for by in By:
        of_kind = [match for match in carried.matches if match.by is by]
        if of_kind:
            rows.append((_BY[by], len(of_kind), sum(match.cost.cost_us for match in of_kind)))
    left = Table((Column("instruction without a cost"),), tuple((printable(name),) for name in carried.left))
    unused = Table((Column("cost without a place"),), tuple((printable(name),) for name in carried.unused))
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
        table=Table((Column("matched by"), *_SUMS), tuple(rows)),
        notes=tuple(notes),
        sections=(
            Section("left", "Left without a cost", (left,)),
            Section("unused", "Costs without a place", (unused,)),
        ),
        next=tuple(following),
    )


def carry_json(carried: Carried, written: Written) -> None:
    """``pgle.carry/1``."""
    text.show(
        "pgle.carry/1",
        {
            "written": written,
            "carried": len(carried.matches),
            "of": len(carried.matches) + len(carried.left),
            "time_share": carried.share,
            "by": {by.value: carried.count(by) for by in By},
            "left": carried.left,
            "unused": carried.unused,
        },
    )


def complete_json(completions: Sequence[Completion], written: Written) -> None:
    """``pgle.complete/1``."""
    text.show(
        "pgle.complete/1",
        {
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
        },
    )
