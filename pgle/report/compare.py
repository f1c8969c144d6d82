"""Step times: two sides compared, as a page, as JSON and for continuous integration; and a history
of them.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pgle.errors import UserError, many, one_line, printable
from pgle.next import Commands, to_way
from pgle.report import text
from pgle.report.page import figures
from pgle.report.page.plain import markdown
from pgle.report.page.value import Cell, Page, Prose, Section, Table, Tone, Value, table
from pgle.steps.compare import Comparison, LimitCheck, Outcome, Verdict, overall
from pgle.steps.estimate import SAME_PLACE, UNKNOWN_PLACE, Entry, Trend
from pgle.steps.series import Side

FINE = 0.01  # an interval narrower than this share of the step gets a second decimal
TONES: dict[Verdict, Tone] = {Verdict.FASTER: "good", Verdict.SLOWER: "bad"}
MARKS: dict[Outcome, tuple[str, Tone]] = {
    Outcome.OK: ("ok", "good"),
    Outcome.FAIL: ("FAIL", "bad"),
    Outcome.CANNOT_TELL: ("cannot tell", "warn"),
}
"""The word of an outcome, and its tone."""


def comparison_page(
    found: Comparison, checks: Sequence[LimitCheck], following: Commands = ()
) -> Page:
    """Verdict, both sides, limits; what was left out, statistics and footnotes in sections.

    Args:
        found: the comparison.
        checks: the limits; of one that was not asked for nothing is shown.
        following: commands to type next.
    """
    base, new = printable(found.base.label), printable(found.new.label)
    runs = (len(found.base.runs), len(found.new.runs))
    several = f"{runs[0]:,} + {runs[1]:,} runs" if max(runs) > 1 else ""
    steps = f"{found.base.steps:,} + {found.new.steps:,} steps"
    broken = any(check.failed for check in checks)
    on_launches = [
        line for line in found.warnings if line.startswith("one launch per side")
    ]
    return Page(
        title=f"pgle compare: {base} and {new}",
        identity=(f"{base} → {new}", several, steps, *_place(found)),
        verdict=headline(found),
        tone="bad"
        if broken
        else "warn"
        if found.unlike
        else TONES.get(found.verdict, ""),
        table=sides_table(found),
        notes=(*check_lines(checks), *_assumed(found)),
        sections=(
            Section(
                "runs",
                "What was compared",
                (table(["", base, new], _about(found), shown=99),),
                open=True,
            ),
            Section(
                "statistics",
                "How it was decided",
                tuple(map(Prose, (*_method(found), *on_launches))),
            ),
        ),
        way=to_way(following),
        warnings=tuple(line for line in found.warnings if line not in on_launches),
    )


def headline(found: Comparison) -> str:
    """The verdict in one line: ``2.8 % faster (0.1 … 5.4 %, 95 % CI)``; and if the sides were not
    the same thing.
    """
    return printable("; ".join((_change(found), *found.unlike)))


def _change(found: Comparison) -> str:
    digits, simulated = _digits(found), ", simulated" if found.simulated else ""
    low, high = (edge - 1 for edge in found.ci)
    level = f"{found.assumptions.confidence * 100:g} % CI"
    if not math.isfinite(high):
        return f"Undecided{simulated}: {_signed(found.change, 2)}, with no interval"
    if found.verdict in TONES:
        size, *edges = (
            figures.share(abs(value), digits)
            for value in (found.change, *sorted((low, high), key=abs))
        )
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
    loss = (
        found.loss
        if found.loss is not None and not math.isnan(found.loss.base)
        else None
    )
    rows: list[list[Value]] = [
        [printable(side.label), side.median_s * 1e6, side.spread]
        for side in (found.base, found.new)
    ]
    change = f"{'' if found.verdict in TONES else '~ '}{_signed(found.change, _digits(found))}"
    rows.append(["change", Cell(change, TONES.get(found.verdict, "")), ""])
    if loss is not None:
        known = [
            f"{value:.5g}" if math.isfinite(value) else "not finite"
            for value in (loss.base, loss.new)
        ]
        grown = (
            figures.change(loss.change, 2)
            if math.isfinite(loss.change)
            else Cell("not finite", "bad")
        )
        rows = [[*row, value] for row, value in zip(rows, (*known, grown), strict=True)]
    return table(
        ["", "step (time)", "± (share)", *["loss (rate)"] * (loss is not None)], rows
    )


def check_lines(checks: Iterable[LimitCheck]) -> Iterator[Cell]:
    """What was limited: the outcome, and what to do if no command says more."""
    for check in checks:
        if check.found:
            word, tone = MARKS[check.outcome]
            advice = (
                ""
                if check.command
                else f"{'' if check.found.endswith('?') else '.'} {check.advice}"
            )
            yield Cell(f"{word} {check.name}: {check.found}{advice}".rstrip(" ."), tone)


def _assumed(found: Comparison) -> Iterator[Cell]:
    """That pgle assumed how much launches differ, if it did."""
    spread = found.estimate.spread
    if spread is UNKNOWN_PLACE or spread is SAME_PLACE:
        half = figures.share(spread.half_width(found.assumptions.confidence), 2)
        yield Cell(
            f"One launch per side: launches are assumed to differ by up to ±{half} (--abba measures it)",
            "soft",
        )


def _method(found: Comparison) -> Iterator[str]:
    """How the figures were made, and what they can see."""
    design, (base, new), p = found.estimate.design, found.estimate.n, found.estimate.p
    yield f"unit: {design.unit} ({base:,} of base, {new:,} of new); {design.text}"
    if p is not None:
        yield f"p ({design.test}): {'<0.001' if p < 0.001 else f'{p:.3f}'}"
    if not math.isinf(found.minimum_detectable):
        yield f"These runs detect {figures.share(found.minimum_detectable, 2)} with 80 % probability."


def _place(found: Comparison) -> Iterator[str]:
    """GPUs and versions that all runs have in common, the date of the newest, and whether a GPU was
    measured.
    """
    known = [run.series.about for side in (found.base, found.new) for run in side.runs]
    for name in ("hardware", "jax", "jaxlib"):
        values = {item.get(name, "") for item in known}
        if len(values) == 1 and (value := values.pop()):
            yield value if name == "hardware" else f"{name} {value}"
    yield max((item.get("started", "") for item in known), default="")[:10]
    yield "simulated" if found.simulated else "measured"


def _about(found: Comparison) -> Iterator[tuple[str, ...]]:
    """Rows (name, of base, of new) on where the runs come from."""
    sides = (found.base, found.new)
    yield "runs", *(str(len(side.runs)) for side in sides)
    yield "steady steps", *(figures.count(side.steps) for side in sides)
    yield "left out", *map(left_out_text, sides)
    yield (
        "read from",
        *(
            ", ".join(dict.fromkeys(run.series.source for run in side.runs))
            for side in sides
        ),
    )
    for name in dict.fromkeys(
        name for side in sides for run in side.runs for name in run.series.about
    ):
        known = (
            (run.series.about.get(name, "not recorded") for run in side.runs)
            for side in sides
        )
        yield name, *(", ".join(dict.fromkeys(values)) for values in known)


def left_out_text(side: Side) -> str:
    """What was left out of a side, by rule: ``12 warm-up, 3 profiled (5–7)``."""
    by_rule: dict[str, list[int]] = {}
    for run in side.runs:
        for item in run.left_out:
            by_rule.setdefault(item.rule, []).extend(item.steps)
    texts = []
    for rule, steps in by_rule.items():
        where = f" ({_ranges(sorted(steps))})" if len(side.runs) == 1 else ""
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


def document(found: Comparison, checks: Sequence[LimitCheck]) -> dict[str, Any]:
    """The fields of ``pgle.compare/1``. Shares are fractions, ``ci`` is of the ratio, times are in
    seconds.
    """
    outcome = overall(checks)
    return {
        **text.picked(found, "verdict ratio ci estimate.p"),
        "n": dict(zip(("base", "new"), found.estimate.n, strict=True)),
        **text.picked(found, "minimum_detectable assumptions.confidence"),
        **text.picked(
            found.estimate,
            "design=design.unit method=design.text test=design.test run_noise=spread.share",
        ),
        **text.picked(found, "launch_spread=estimate.spread simulated"),
        "model_reach": dict(zip(("below", "above"), found.estimate.model, strict=True)),
        "base": _side(found.base),
        "new": _side(found.new),
        "guards": [{"name": "loss", **text.whole(found.loss, "change")}]
        if found.loss
        else [],
        "ok": None if outcome is Outcome.CANNOT_TELL else outcome is Outcome.OK,
        "outcome": outcome,
        "checks": [text.picked(check, "name outcome message ok") for check in checks],
        "footnotes": found.warnings,
    }


def _side(side: Side) -> dict[str, Any]:
    names = "series.source series.format series.malformed median_s left_out"
    runs = [text.picked(run, names) | {"steps": len(run)} for run in side.runs]
    return {
        **text.picked(side, "label median_s spread steps stall_share"),
        "runs": runs,
    }


ICONS = {
    Verdict.FASTER: "🟢",
    Verdict.SLOWER: "🔴",
    Verdict.SAME: "⚪",
    Verdict.UNDECIDED: "🟡",
}


def summary(found: Comparison, checks: Sequence[LimitCheck]) -> str:
    """The page as the summary of a job of GitHub Actions."""
    page = comparison_page(found, checks)
    return markdown(
        replace(page, verdict=f"{ICONS[found.verdict]} pgle compare: {page.verdict}")
    )


def outputs(found: Comparison, checks: Sequence[LimitCheck]) -> dict[str, str]:
    """The outputs of the step: verdict, ok, ratio, change, ci-low, ci-high, p, minimum-detectable,
    message.

    ``ok`` is true, false or cannot-tell.
    """
    outcome = overall(checks)
    short = (
        f"{check.name}: {check.message}" for check in checks if check.ok is not True
    )
    return {
        "verdict": found.verdict.value,
        "ok": {Outcome.OK: "true", Outcome.FAIL: "false"}.get(outcome, outcome.value),
        "ratio": f"{found.ratio:.6f}",
        "change": f"{found.change:+.2%}",
        "ci-low": _number(found.ci[0]),
        "ci-high": _number(found.ci[1]),
        "p": "" if found.estimate.p is None else f"{found.estimate.p:.6g}",
        "minimum-detectable": _number(found.minimum_detectable),
        "message": one_line("; ".join(short) or headline(found)),
    }


def _number(value: float) -> str:
    return f"{value:.6f}" if math.isfinite(value) else ""


def append(
    found: Comparison,
    checks: Sequence[LimitCheck],
    environ: Mapping[str, str] = os.environ,
) -> None:
    """Append the summary to the file in $GITHUB_STEP_SUMMARY and the outputs to that in
    $GITHUB_OUTPUT.
    """
    texts = {
        "GITHUB_STEP_SUMMARY": summary(found, checks),
        "GITHUB_OUTPUT": "".join(
            f"{name}={value}\n" for name, value in outputs(found, checks).items()
        ),
    }
    if not any(environ.get(name) for name in texts):
        remedy = "--github is for GitHub Actions; elsewhere use --json or --html"
        raise UserError(
            "neither GITHUB_STEP_SUMMARY nor GITHUB_OUTPUT is set",
            where="--github",
            remedy=remedy,
        )
    for name, content in texts.items():
        if not environ.get(name):
            continue
        try:
            with Path(environ[name]).open("a", encoding="utf-8") as file:
                file.write(content)
        except OSError as error:
            remedy = "name a file that can be written, or leave --github out"
            raise UserError(
                f"cannot be written ({error.strerror})", where=f"${name}", remedy=remedy
            ) from None


NEWEST = 5  # entries of a history on the first screen


def history_page(
    path: object,
    added: Entry,
    trend: Trend,
    *,
    warnings: Sequence[str] = (),
    following: Commands = (),
) -> Page:
    """A page on an entry that was added, and on its trend: the newest entries first."""
    time = f"{figures.time(added.median_s * 1e6)} ± {figures.share(added.spread)}"
    return Page(
        title=f"{path} · pgle history add",
        identity=(_named(trend), _entry_count(trend), str(path)),
        verdict=f"Added: {time}, {many(added.steps, 'steady step')}",
        tone="good",
        table=_entries(trend),
        notes=(_noise(trend),),
        way=to_way(following),
        warnings=tuple(warnings),
    )


def _entries(trend: Trend) -> Table:
    """The newest first."""
    rows = (
        (
            entry.time[:16],
            printable(entry.commit),
            entry.median_s * 1e6,
            entry.median_s / trend.level_s - 1,
            entry.spread,
            entry.steps,
            printable(entry.note),
        )
        for entry in reversed(trend.entries)
    )
    heads = "time | commit | step (time) | against now (change) | ± (share) | steps (count) | note"
    return table(heads, rows, shown=NEWEST)


def _entry_count(trend: Trend) -> str:
    count = len(trend.entries)
    return "1 entry" if count == 1 else f"{count:,} entries"


def _named(trend: Trend) -> str:
    kind = " (simulated)" if any(entry.simulated for entry in trend.entries) else ""
    return f"{printable(trend.name)} on {printable(trend.hardware)}{kind}"


def _noise(trend: Trend) -> str:
    """How much launches differ, and from how many entries that is known."""
    if trend.noise is None:
        return "One entry at this level. Add more runs to measure how much launches differ."
    is_all = len(trend.present) == len(trend.entries)
    since = (
        "" if is_all else f" since {trend.present[0].time[:16]}, when the level changed"
    )
    entries = f"{len(trend.present)} entries{since}"
    return f"Launches differ by {figures.share(trend.noise, 2)} (standard deviation of {entries})."


def history_document(
    path: object, trend: Trend, warnings: Iterable[str]
) -> dict[str, Any]:
    """``pgle.history/1``: the trend with its entries, present level and noise."""
    return {
        "file": str(path),
        "trend": text.whole(trend, "level_s noise"),
        "warnings": list(warnings),
    }
