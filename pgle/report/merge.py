"""What merging profiles gave, as text and JSON."""

from __future__ import annotations

from pgle.costs.profile.value import CostKind
from pgle.errors import many, some
from pgle.report import json
from pgle.report.text import console, duration, printable, show_rest, table, warn, wrote
from pgle.run.profiles import MergeResult

CONFLICTS_SHOWN = 5  # names listed that are another instruction in each input; ``--json`` has all


def show_text(result: MergeResult) -> None:
    """How much was merged and how, what was left out, the file; warnings on stderr."""
    merged = result.merged
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
    out.print(wrote(result.written), soft_wrap=True)
    warn(merged.warnings)


def show_json(result: MergeResult) -> None:
    """``pgle.merge/1``."""
    merged = result.merged
    json.show(
        "pgle.merge/1",
        {
            "written": result.written,
            "inputs": merged.inputs,
            "collectives_by_occurrence": merged.exact,
            "collectives_by_statistic": merged.inexact,
            "not_in_all_inputs": merged.partial,
            "conflicts": merged.conflicts,
            "warnings": merged.warnings,
        },
    )
