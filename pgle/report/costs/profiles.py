"""What merging profiles and what filling the gaps of one gave, as text and JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pgle.costs.profile.value import Cost, CostKind, Origin
from pgle.errors import many, some
from pgle.report import json
from pgle.report.text import console, duration, printable, show_rest, table, warn, wrote

if TYPE_CHECKING:
    from pgle.costs.fit.complete import Completion
    from pgle.costs.profile.merge import Merged
    from pgle.run.profiles import Written

CONFLICTS_SHOWN = 5  # names listed that are another instruction in each input; ``--json`` has all
FILLED_SHOWN = 8  # the costliest filled instructions; ``--json`` has all

_HOW = {Origin.SAME_SHAPE: "as instructions of the same shape", Origin.ESTIMATED: "estimated"}


def merge_text(merged: Merged, written: Written) -> None:
    """How much was merged and how, what was left out, the file; warnings on stderr."""
    costs = merged.profile.costs
    out = console()
    rows = []
    for kind in (CostKind.COMPUTE, CostKind.COLLECTIVE, CostKind.COPY, CostKind.LOOP):
        of_kind = [cost for cost in costs if cost.likely_kind == kind]
        if of_kind:
            guess = "" if all(cost.kind for cost in of_kind) else "?"
            rows.append((kind.value + guess, f"{len(of_kind):,}", duration(sum(cost.cost_us for cost in of_kind))))
    out.print(table((many(len(merged.inputs), "profile"), "names", "total"), rows, right="names|total"))
    if merged.exact:
        out.print(f"{merged.exact} collectives merged occurrence by occurrence: the least time over the ranks")
    if merged.partial:
        out.print(
            f"{len(merged.partial)} names are not in all inputs ({some(map(printable, merged.partial), 3)})",
            style="dim",
        )
    for conflict in merged.conflicts[:CONFLICTS_SHOWN]:
        seen = "; ".join(f"{what} in {label}" for label, what in list(conflict.seen.items())[:4])
        fate = "kept per module" if conflict.kept else "left out"
        out.print(f"{fate}: {printable(conflict.name)} is {printable(seen)}", style="dim")
    show_rest(out, len(merged.conflicts) - CONFLICTS_SHOWN, "more such names")
    out.print(wrote(written), soft_wrap=True)
    warn(merged.warnings)


def merge_json(merged: Merged, written: Written) -> None:
    """``pgle.merge/1``."""
    json.show(
        "pgle.merge/1",
        {
            "written": written,
            "inputs": merged.inputs,
            "collectives_by_occurrence": merged.exact,
            "collectives_by_statistic": merged.inexact,
            "not_in_all_inputs": merged.partial,
            **json.picked(merged, "conflicts warnings"),
        },
    )


def complete_text(completions: Sequence[Completion], written: Written) -> None:
    """Per module: how much was missing and where it comes from now; the file; warnings on stderr."""
    out = console()
    for item in completions:
        out.print(
            f"{printable(item.module)}: {item.measured:,} of {item.wanted:,} had costs, {len(item.filled):,} filled",
            style="bold",
            soft_wrap=True,
        )
        rows = []
        for origin, how in _HOW.items():
            of_origin = [cost for cost in item.filled if cost.origin is origin]
            if of_origin:
                target = f" for {item.target}" if origin is Origin.ESTIMATED else ""
                rows.append((how + target, f"{len(of_origin):,}", duration(sum(cost.cost_us for cost in of_origin))))
        if rows:
            out.print(table(("filled", "names", "total"), rows, right="names|total"))
        if item.scales:
            factors = ", ".join(
                f"{scale.kind} × {scale.factor:.2f} ({scale.neighbours} measured)" for scale in item.scales[:5]
            )
            out.print(f"estimates scaled: {factors}", style="dim")
        if item.filled:
            out.print()
            out.print(_costliest(item.filled))
    out.print(wrote(written), soft_wrap=True)
    warn(completions[-1].profile.warnings)


def _costliest(filled: Sequence[Cost]) -> object:
    ordered = sorted(filled, key=lambda cost: (-cost.cost_us, cost.name))[:FILLED_SHOWN]
    return table(
        ("instruction", "what", "cost", "origin"),
        [(printable(cost.name), printable(cost.opcode), duration(cost.cost_us), cost.origin.value) for cost in ordered],
        right="cost",
    )


def complete_json(completions: Sequence[Completion], written: Written) -> None:
    """``pgle.complete/1``."""
    json.show(
        "pgle.complete/1",
        {
            "written": written,
            "modules": [
                {
                    "name": item.module,
                    **json.picked(item, "target wanted measured scales"),
                    "same_shape": item.count(Origin.SAME_SHAPE),
                    "estimated": item.count(Origin.ESTIMATED),
                    "filled": [{"name": cost.full_name, **json.picked(cost, "cost_us origin")} for cost in item.filled],
                }
                for item in completions
            ],
            "warnings": completions[-1].profile.warnings,
        },
    )
