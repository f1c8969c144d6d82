"""What filling the gaps of a profile gave, as text and JSON."""

from __future__ import annotations

from collections.abc import Sequence

from pgle.costs.profile.value import Cost, Origin
from pgle.report import json
from pgle.report.text import console, duration, printable, table, warn, wrote
from pgle.run.coverage import CompleteResult

SHOWN = 8  # the costliest filled instructions; ``--json`` has all

_HOW = {Origin.SAME_SHAPE: "as instructions of the same shape", Origin.ESTIMATED: "estimated"}


def show_text(result: CompleteResult) -> None:
    """Per module: how much was missing and where it comes from now; the file; warnings on stderr."""
    out = console()
    for item in result.completions:
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
    out.print(wrote(result.written), soft_wrap=True)
    warn(result.completions[-1].profile.warnings)


def _costliest(filled: Sequence[Cost]) -> object:
    ordered = sorted(filled, key=lambda cost: (-cost.cost_us, cost.name))[:SHOWN]
    return table(
        ("instruction", "what", "cost", "origin"),
        [(printable(cost.name), printable(cost.opcode), duration(cost.cost_us), cost.origin.value) for cost in ordered],
        right="cost",
    )


def show_json(result: CompleteResult) -> None:
    """``pgle.complete/1``."""
    json.show(
        "pgle.complete/1",
        {
            "written": result.written,
            "modules": [
                {
                    "name": item.module,
                    **json.picked(item, "target wanted measured scales"),
                    "same_shape": item.count(Origin.SAME_SHAPE),
                    "estimated": item.count(Origin.ESTIMATED),
                    "filled": [
                        {"name": cost.full_name, "cost_us": cost.cost_us, "origin": cost.origin} for cost in item.filled
                    ],
                }
                for item in result.completions
            ],
            "warnings": result.completions[-1].profile.warnings,
        },
    )
