"""A comparison of step times as a page and as JSON."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from pgle.errors import printable
from pgle.report import text
from pgle.report.page import figures
from pgle.report.page.value import Bar, Cell, Chart, Page, Prose, Section, Table, Tile, Tone, Value, table
from pgle.steps.compare import Check, Comparison, Guard, Outcome, Verdict, overall
from pgle.steps.history import SAME_PLACE, UNKNOWN_PLACE
from pgle.steps.series import Floats, LeftOut, Side

BARS = "▁▂▃▄▅▆▇█"
MOST_BINS = 48
SCHEMA = "pgle.compare/1"
FINE = 0.01  # an interval narrower than this share of the step gets a second decimal
TONES: dict[Verdict, Tone] = {Verdict.FASTER: "good", Verdict.SLOWER: "bad"}
MARKS: dict[Outcome, tuple[str, Tone]] = {
    Outcome.OK: ("ok", "good"), Outcome.FAIL: ("FAIL", "bad"), Outcome.CANNOT_TELL: ("cannot tell", "warn"),
}  # fmt: skip
"""The word of an outcome, and its tone."""


def comparison_page(
    found: Comparison, checks: Sequence[Check], following: Sequence[str] = (), charts: Sequence[Chart] = ()
) -> Page:
    """Verdict, both sides, limits; what was left out, statistics and footnotes in sections.

    Args:
        found: the comparison.
        checks: the limits; of one that was not asked for nothing is shown.
        following: commands to type next.
        charts: for a page; without, the distributions are drawn as text.
    """
    base, new = printable(found.base.label), printable(found.new.label)
    runs = (len(found.base.runs), len(found.new.runs))
    several = (f"{runs[0]:,} + {runs[1]:,} runs",) if max(runs) > 1 else ()
    steps = f"{found.base.steps:,} + {found.new.steps:,} steps"
    broken = any(check.failed for check in checks)
    return Page(
        title=f"pgle compare: {base} and {new}",
        identity=(f"{base} → {new}", *several, steps, *_place(found)),
        verdict=headline(found),
        tone="bad" if broken else "warn" if found.unlike else TONES.get(found.verdict, ""),
        table=sides_table(found),
        notes=(*check_lines(checks), *_assumed(found)),
        sections=tuple(sections(found, charts)),
        next=tuple(following),
        warnings=other_warnings(found),
        tiles=tuple(_tiles(found)),
    )


def sections(found: Comparison, charts: Sequence[Chart] = ()) -> Iterable[Section]:
    """Charts, what was compared, and how sure the verdict is."""
    heads = ["", *(printable(side.label) for side in (found.base, found.new))]
    yield Section("steps", "Step times", tuple(charts) or (Chart("", "\n".join(picture(found))),), open=True)
    rows = ((name, *values) for name, values in about(found))
    yield Section("runs", "What was compared", (table(heads, rows, shown=99),))
    launches = tuple(Prose(line) for line in found.warnings if _is_on_launches(line))
    yield Section("statistics", "How it was decided", (Prose(method_line(found)), _statistics(found), *launches))


def other_warnings(found: Comparison) -> tuple[str, ...]:
    """The rest, which `sections` does not have."""
    return tuple(line for line in found.warnings if not _is_on_launches(line))


def _is_on_launches(line: str) -> bool:
    return line.startswith("one launch per side")


def headline(found: Comparison) -> str:
    """The verdict in one line: ``2.8 % faster (0.1 … 5.4 %, 95 % CI)``; and if the sides were not the same thing."""
    return printable("; ".join((_change(found), *found.unlike)))


def _change(found: Comparison) -> str:
    digits, simulated = _digits(found), ", simulated" if found.simulated else ""
    low, high = (edge - 1 for edge in found.ci)
    level = f"{found.assumptions.confidence * 100:g} % CI"
    if not math.isfinite(high):
        return f"Undecided{simulated}: {_signed(found.change, 2)}, with no interval"
    if found.verdict is Verdict.FASTER or found.verdict is Verdict.SLOWER:
        size, *edges = (figures.share(abs(value), digits) for value in (found.change, *sorted((low, high), key=abs)))
        return f"{size} {found.verdict}{simulated} ({figures.between(*edges)}, {level})"
    word = "The same" if found.verdict is Verdict.SAME else "Undecided"
    between = figures.between(_signed(low, digits), _signed(high, digits))
    return f"{word}{simulated}: {_signed(found.change, digits)} ({between}, {level})"


def _digits(found: Comparison) -> int:
    """Decimals of the per cents: as many as the interval can tell."""
    return 2 if found.ci[1] - found.ci[0] < FINE else 1


def _signed(value: float, digits: int) -> str:
    text = figures.change(value, digits)
    return figures.share(0.0, digits) if text == figures.NONE else text


def sides_table(found: Comparison) -> Table:
    """A row for each side, and one for the change; ``~`` marks a change within noise."""
    shown = [guard for guard in found.guards if not math.isnan(guard.base)]
    units = {"bytes": ("size", 1.0), "s": ("time", 1e6), "": ("rate", 1.0)}
    heads = ["", "step (time)", "± (share)", *(f"{guard.name} ({units[guard.unit][0]})" for guard in shown)]
    known = found.verdict in (Verdict.FASTER, Verdict.SLOWER)
    change = f"{'' if known else '~ '}{_signed(found.change, _digits(found))}"
    rows: list[tuple[Value, ...]] = [
        (printable(side.label), side.median_s * 1e6, side.spread,
         *(_quantity(getattr(guard, name), units[guard.unit][1], guard.unit) for guard in shown))
        for name, side in (("base", found.base), ("new", found.new))
    ]  # fmt: skip
    return table(heads, (*rows, ("change", Cell(change, TONES.get(found.verdict, "")), "", *map(_grown, shown))))


def _quantity(value: float, scale: float, unit: str) -> Value:
    if not math.isfinite(value):
        return "not finite"
    return value * scale if unit else f"{value:.5g}"


def _grown(guard: Guard) -> Value:
    return figures.change(guard.change, 2) if math.isfinite(guard.change) else Cell("not finite", "bad")


def check_lines(checks: Iterable[Check]) -> Iterable[Cell]:
    """What was limited: the outcome, and what to do if no command says more."""
    for check in checks:
        if check.found:
            word, tone = MARKS[check.outcome]
            advice = "" if check.command else f"{'' if check.found.endswith('?') else '.'} {check.advice}"
            yield Cell(f"{word} {check.name}: {check.found}{advice}".rstrip(" ."), tone)


def _assumed(found: Comparison) -> Iterable[Cell]:
    """That pgle assumed how much launches differ, if it did."""
    spread = found.estimate.spread
    if spread is UNKNOWN_PLACE or spread is SAME_PLACE:
        share = figures.share(spread.share, 2)
        yield Cell(f"One launch per side: launches are assumed to differ by {share} (--abba measures it)", "soft")


def method_line(found: Comparison) -> str:
    """How the figures were made and what they can see."""
    design = found.estimate.design
    seen = found.minimum_detectable
    detects = "" if math.isinf(seen) else f"; detects {figures.share(seen, 2)} with 80 % probability"
    return f"unit: {design.unit}; {design.text}{detects}"


def _statistics(found: Comparison) -> Table:
    """Units of both sides, and p if a rank test of whole runs was made."""
    p, test = found.estimate.p, found.estimate.design.test
    heads = f"units of base (count) | units of new (count) | p ({test})"
    return table(heads, ((*found.estimate.n, "" if p is None else "<0.001" if p < 0.001 else f"{p:.3f}"),))


def _tiles(found: Comparison) -> Iterable[Tile]:
    """Step time and guards, before and after."""
    sides = (found.base, found.new)
    times = [side.median_s for side in sides]
    bars = tuple(
        Bar(printable(side.label), f"{figures.time(time * 1e6)} ± {figures.share(side.spread)}",
            (("compute", time / max(times)),))
        for side, time in zip(sides, times, strict=True)
    )  # fmt: skip
    yield Tile("step", " → ".join(figures.time(time * 1e6) for time in times), bars)
    for guard in found.guards:
        values = [_worded(guard, value) for value in (guard.base, guard.new)]
        yield Tile(guard.name, " → ".join(values), note=guard.basis)


def _worded(guard: Guard, value: float) -> str:
    if not math.isfinite(value):
        return figures.NONE if math.isnan(value) else "not finite"
    return figures.size(value) if guard.unit == "bytes" else figures.time(value * 1e6) if guard.unit else f"{value:.5g}"


def _place(found: Comparison) -> Iterable[str]:
    """GPUs and versions that all runs have in common, the date of the newest, and whether a GPU was measured."""
    known = [run.series.about for side in (found.base, found.new) for run in side.runs]
    for name in ("hardware", "jax", "jaxlib"):
        values = {item.get(name, "") for item in known}
        if len(values) == 1 and (value := values.pop()):
            yield value if name == "hardware" else f"{name} {value}"
    yield max((item.get("started", "") for item in known), default="")[:10]
    yield "simulated" if found.simulated else "measured"


def about(found: Comparison) -> list[tuple[str, list[str]]]:
    """Rows (name, of base, of new) on where the runs come from; a row without a value on either side is left out."""
    sides = (found.base, found.new)
    rows = {
        "runs": [str(len(side.runs)) for side in sides],
        "steady steps": [figures.count(side.steps) for side in sides],
        "left out": [left_out_text(side) for side in sides],
        "read from": [_listed(run.series.source for run in side.runs) for side in sides],
    }
    for name in dict.fromkeys(name for side in sides for run in side.runs for name in run.series.about):
        rows[name] = [_listed(run.series.about.get(name, "not recorded") for run in side.runs) for side in sides]
    return list(rows.items())


def _listed(values: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(values))


def picture(found: Comparison) -> list[str]:
    """Both distributions of steady step times as bars of one scale, for a terminal."""
    values = [pooled(side) for side in (found.base, found.new)]
    low, high = (float(np.quantile(np.concatenate(values), q)) for q in (0.005, 0.995))
    if low == high:
        return [f"every step takes {figures.time(low * 1e6)}"]
    width = max(len(found.base.label), len(found.new.label))
    bins = min(MOST_BINS, max(12, min(map(len, values)) // 4))
    lines = []
    for side, times in zip((found.base, found.new), values, strict=True):
        counts = np.histogram(np.clip(times, low, high), bins, (low, high))[0]
        heights = np.ceil(counts / counts.max() * len(BARS)).astype(int)
        bars = "".join(" " if height == 0 else BARS[height - 1] for height in heights)
        lines.append(f"{printable(side.label):<{width}} ┤{bars}├")
    left, right = figures.time(low * 1e6), figures.time(high * 1e6)
    lines.append(f"{'':<{width}}  {left}{right.rjust(max(bins - len(left), len(right) + 1))}")
    return lines


def pooled(side: Side) -> Floats:
    """Steady step times of all runs of a side, in seconds."""
    return np.concatenate([run.step_time_s for run in side.runs])


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
    outcome = overall(checks)
    return {
        **text.picked(found, "verdict ratio ci estimate.p"),
        "n": dict(zip(("base", "new"), found.estimate.n, strict=True)),
        **text.picked(found, "minimum_detectable assumptions.confidence"),
        **text.picked(found.estimate, "design=design.unit method=design.text test=design.test run_noise=spread.share"),
        **text.picked(found, "launch_spread=estimate.spread simulated"),
        "base": _side(found.base),
        "new": _side(found.new),
        "guards": [text.whole(item, "change") for item in found.guards],
        "ok": None if outcome is Outcome.CANNOT_TELL else outcome is Outcome.OK,
        "outcome": outcome,
        "checks": [text.picked(check, "name outcome message ok") for check in checks],
        "footnotes": found.warnings,
    }


def _side(side: Side) -> dict[str, Any]:
    names = "series.source series.format series.malformed median_s left_out"
    runs = [text.picked(run, names) | {"steps": len(run)} for run in side.runs]
    return {**text.picked(side, "label median_s spread steps stall_share"), "runs": runs}
