"""A comparison of step times as text and JSON."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from pgle.report import json
from pgle.report.text import console, duration, printable, table
from pgle.steps.compare import Comparison, Verdict
from pgle.steps.gate import Check, Outcome, describe, overall
from pgle.steps.series import Floats
from pgle.steps.side import Guard, Side
from pgle.steps.steady import LeftOut

BARS = "▁▂▃▄▅▆▇█"
MOST_BINS = 48
SCHEMA = "pgle.compare/1"
MARKS = {Outcome.OK: ("ok  ", ""), Outcome.FAIL: ("FAIL", "red"), Outcome.CANNOT_TELL: ("cannot tell", "yellow")}
"""The word of an outcome, and its style on a terminal."""


def show_text(found: Comparison, checks: Sequence[Check]) -> None:
    """Verdict, table, picture, what was left out, footnotes."""
    out = console()
    style = {Verdict.FASTER: "bold green", Verdict.SLOWER: "bold red"}.get(found.verdict, "bold")
    out.print(headline(found), style=style, soft_wrap=True)
    out.print()
    names = columns(found)
    out.print(table(names, figures(found), right="|".join(names[1:])))
    out.print()
    for line in picture(found):
        out.print(line, soft_wrap=True)
    out.print()
    out.print(table(("side", "runs", "steps", "left out"), sides(found)))
    out.print(f"\n{method_line(found)}", style="dim")
    for number, line in enumerate(found.warnings, 1):
        out.print(f"[{number}] {line}", style="dim")
    for check in checks:
        if check.message == describe(found):  # no limit was asked for
            continue
        mark, style = MARKS[check.outcome]
        out.print(f"{mark} {check.name}: {check.message}", style=style)


def headline(found: Comparison) -> str:
    """The verdict in one line."""
    label = " (simulated)" if found.simulated else ""
    return f"{found.verdict}{label}: {describe(found)}"


def method_line(found: Comparison) -> str:
    """How the figures were made and what they can see."""
    design = found.estimate.design
    seen = found.minimum_detectable
    detects = "" if math.isinf(seen) else f"; detects {seen:.2%} with 80% probability"
    return f"unit: {design.unit}; {design.text}{detects}" + (f" (p: {design.test})" if design.test else "")


def columns(found: Comparison) -> tuple[str, ...]:
    """The heads of `figures`: with p only if a rank test of whole runs was made."""
    sides = (printable(side.label) for side in (found.base, found.new))
    p = () if found.estimate.p is None else ("p",)
    return ("", *sides, "change", f"{found.assumptions.confidence:.0%} CI", *p, "n")


def figures(found: Comparison) -> list[tuple[str, ...]]:
    """Rows (figure, base, new, change, interval, p, n) of the table, as benchstat has them: ``~`` where undecided."""
    known = found.verdict in (Verdict.FASTER, Verdict.SLOWER)
    p = found.estimate.p
    interval = f"{found.ci[0] - 1:+.2%} … {found.ci[1] - 1:+.2%}" if math.isfinite(found.ci[1]) else "–"
    first = (
        "step time",
        *(f"{duration(side.median_s * 1e6)} ± {_percent(side.spread)}" for side in (found.base, found.new)),
        f"{found.change:+.2%}" if known else f"~ {found.change:+.2%}",
        interval,
        *(() if p is None else ("<0.001" if p < 0.001 else f"{p:.3f}",)),
        f"{found.estimate.n[0]}+{found.estimate.n[1]}",
    )
    blank = ("",) * (len(first) - 4)
    return [first, *((*_guard_row(guard), *blank) for guard in found.guards)]


def _guard_row(guard: Guard) -> tuple[str, ...]:
    change = f"{guard.change:+.2%}" if math.isfinite(guard.change) else "!"
    return guard.name, _quantity(guard, guard.base), _quantity(guard, guard.new), change


def _quantity(guard: Guard, value: float) -> str:
    if math.isnan(value):
        return "–"
    if math.isinf(value):
        return "not finite"
    if guard.unit == "bytes":
        return f"{value / 2**30:.3f} GiB"
    return duration(value * 1e6) if guard.unit == "s" else f"{value:.5g}"


def _percent(share: float) -> str:
    return f"{share:.1%}" if share < 0.1 else f"{share:.0%}"


def picture(found: Comparison) -> list[str]:
    """Both distributions of steady step times as bars of one scale, for a terminal."""
    values = [pooled(side) for side in (found.base, found.new)]
    low, high = (float(np.quantile(np.concatenate(values), q)) for q in (0.005, 0.995))
    if low == high:
        return [f"every step takes {duration(low * 1e6)}"]
    width = max(len(found.base.label), len(found.new.label))
    bins = min(MOST_BINS, max(12, min(map(len, values)) // 4))
    lines = []
    for side, times in zip((found.base, found.new), values, strict=True):
        counts = np.histogram(np.clip(times, low, high), bins, (low, high))[0]
        heights = np.ceil(counts / counts.max() * len(BARS)).astype(int)
        bars = "".join(" " if height == 0 else BARS[height - 1] for height in heights)
        lines.append(f"{printable(side.label):<{width}} ┤{bars}├")
    left, right = duration(low * 1e6), duration(high * 1e6)
    lines.append(f"{'':<{width}}  {left}{right.rjust(max(bins - len(left), len(right) + 1))}")
    return lines


def pooled(side: Side) -> Floats:
    """Steady step times of all runs of a side, in seconds."""
    return np.concatenate([run.step_time_s for run in side.runs])


def sides(found: Comparison) -> tuple[tuple[str, ...], ...]:
    """Rows (side, runs, steps, left out)."""
    return tuple((printable(side.label), str(len(side.runs)), str(side.steps), left_out_text(side))
                 for side in (found.base, found.new))  # fmt: skip


def left_out_text(side: Side) -> str:
    """What was left out of a side, by rule: ``12 warm-up, 3 profiled (5–7)``."""
    by_rule: dict[str, list[LeftOut]] = {}
    for run in side.runs:
        for item in run.left_out:
            by_rule.setdefault(item.rule, []).append(item)
    texts = []
    for rule, items in by_rule.items():
        steps = sorted(step for item in items for step in item.steps)
        where = f" ({_ranges(steps)})" if len(side.runs) == 1 else ""
        texts.append(f"{len(steps)} {rule}{where}")
    return ", ".join(texts) or "nothing"


def _ranges(steps: Sequence[int]) -> str:
    """Step numbers as ranges, ``0–3, 7``."""
    parts: list[list[int]] = []
    for step in steps:
        if parts and step == parts[-1][1] + 1:
            parts[-1][1] = step
        else:
            parts.append([step, step])
    texts = [str(a) if a == b else f"{a}–{b}" for a, b in parts]
    return ", ".join(texts[:4]) + (", …" if len(texts) > 4 else "")


def document(found: Comparison, checks: Sequence[Check]) -> dict[str, Any]:
    """The fields of ``pgle.compare/1``. Shares are fractions, ``ci`` is of the ratio, times are in seconds."""
    design, spread, outcome = found.estimate.design, found.estimate.spread, overall(checks)
    return {
        **json.picked(found, "verdict ratio ci"),
        "p": found.estimate.p,
        "n": dict(zip(("base", "new"), found.estimate.n, strict=True)),
        "minimum_detectable": found.minimum_detectable,
        "confidence": found.assumptions.confidence,
        "design": design.unit,
        "method": design.text,
        "test": design.test,
        "run_noise": None if spread is None else spread.share,
        "launch_spread": spread,
        "simulated": found.simulated,
        "base": _side(found.base),
        "new": _side(found.new),
        "guards": [json.whole(item, "change") for item in found.guards],
        "ok": None if outcome is Outcome.CANNOT_TELL else outcome is Outcome.OK,
        "outcome": outcome,
        "checks": [json.whole(check, "ok") for check in checks],
        "footnotes": found.warnings,
    }


def _side(side: Side) -> dict[str, Any]:
    return {
        **json.picked(side, "label median_s spread steps stall_share"),
        "runs": [
            {
                **json.picked(run.series, "source format malformed"),
                **json.picked(run, "median_s left_out"),
                "steps": len(run),
            }
            for run in side.runs
        ],
    }


def show_json(found: Comparison, checks: Sequence[Check]) -> None:
    """``pgle.compare/1`` on stdout."""
    json.show(SCHEMA, document(found, checks))
