"""Step times of two sides compared, as a page, as JSON and for continuous integration."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from pgle.errors import UserError, one_line, printable
from pgle.next import Commands, to_way
from pgle.report.page import figures
from pgle.report.page.figures import Unit
from pgle.report.page.plain import markdown
from pgle.report.page.value import (
    Cell,
    Column,
    Page,
    Prose,
    Section,
    Table,
    Tone,
    Value,
    table,
)
from pgle.report.text import Document, flat
from pgle.steps.compare import (
    HOLDS_ALL,
    Comparison,
    IntervalKind,
    LimitCheck,
    LossChange,
    Outcome,
    overall,
)
from pgle.steps.estimate import SAME_PLACE, UNKNOWN_PLACE, LaunchSpread
from pgle.steps.series import LeftOut, Malformed, Side, StepTimes
from pgle.steps.verdict import Verdict

FINE = 0.01  # an interval narrower than this share of the step gets a second decimal
MOST_RANGES = 4  # ranges of step numbers that a line lists
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
    """Show the verdict, both sides and the limits. Sections hold left-out steps, statistics and
    footnotes.

    Args:
        found: the comparison.
        checks: the limits that the user set, with their outcomes.
        following: commands to type next.
    """
    base = printable(found.base.label)
    new = printable(found.new.label)
    identity = (f"{base} → {new}", *_counts(found), *_place(found))
    notes = (*check_lines(checks), *_assumed(found))
    others = [line for line in found.warnings if not _is_on_launches(line)]
    return Page(
        title=f"pgle compare: {base} and {new}",
        identity=identity,
        verdict=headline(found),
        tone=_tone(found, checks),
        table=sides_table(found),
        notes=notes,
        sections=(_runs_section(found), _statistics_section(found)),
        way=to_way(following),
        warnings=tuple(others),
    )


def _runs_section(found: Comparison) -> Section:
    """What each side recorded about its runs, in two columns."""
    heads = ["", printable(found.base.label), printable(found.new.label)]
    about = table(heads, _about(found), shown=99)
    return Section("runs", "What was compared", (about,), open=True)


def _statistics_section(found: Comparison) -> Section:
    """The method, and warnings that are about single launches."""
    on_launches = filter(_is_on_launches, found.warnings)
    lines = (*_method(found), *on_launches)
    return Section("statistics", "How it was decided", tuple(map(Prose, lines)))


def _is_on_launches(line: str) -> bool:
    """Whether a warning is about single launches. A note on the first screen already says that."""
    return line.startswith("one launch per side")


def _counts(found: Comparison) -> Iterator[str]:
    """Count the steps, and the runs if a side has several."""
    base = len(found.base.runs)
    new = len(found.new.runs)
    if max(base, new) > 1:
        yield f"{base:,} + {new:,} runs"
    yield f"{found.base.steps:,} + {found.new.steps:,} steps"


def _tone(found: Comparison, checks: Iterable[LimitCheck]) -> Tone:
    """The tone of the verdict. A limit that is not kept is worse than any verdict."""
    if any(check.failed for check in checks):
        return "bad"
    return "warn" if found.unlike else TONES.get(found.verdict, "")


def headline(found: Comparison) -> str:
    """Return the verdict in one line: ``2.8 % faster (0.1 … 5.4 %, 95 % CI)``; for simulated steps
    the range is the estimate's error. If the sides ran different things, it names the differences.
    """
    return printable("; ".join((_change(found), *found.unlike)))


def _change(found: Comparison) -> str:
    """The change and its range: ``2.8 % faster (0.1 … 5.4 %, 95 % CI)``."""
    digits = _digits(found)
    simulated = ", simulated" if found.simulated else ""
    low, high = (edge - 1 for edge in found.ci)
    level = found.interval_name
    if not math.isfinite(high):
        change = figures.signed(found.change, 2)
        return f"Undecided{simulated}: {change}, with no interval"
    if found.verdict in TONES:
        sizes = sorted((abs(low), abs(high)))
        nearer, farther = (figures.share(size, digits) for size in sizes)
        ends = figures.between(nearer, farther)
        size = figures.share(abs(found.change), digits)
        return f"{size} {found.verdict}{simulated} ({ends}, {level})"
    word = "The same" if found.verdict is Verdict.SAME else "Undecided"
    change = figures.signed(found.change, digits)
    lower, upper = (figures.signed(end, digits) for end in (low, high))
    ends = figures.between(lower, upper)
    return f"{word}{simulated}: {change} ({ends}, {level})"


def _digits(found: Comparison) -> int:
    """Return how many decimals the interval justifies."""
    low, high = found.ci
    return 2 if high - low < FINE else 1


def sides_table(found: Comparison) -> Table:
    """A row for each side, and one for the change; ``~`` marks a change within noise."""
    signed = figures.signed(found.change, _digits(found))
    change = Cell(f"~ {signed}")
    if found.verdict in TONES:
        change = Cell(signed, TONES[found.verdict])
    of_change: list[Value] = ["change", change, ""]
    rows = [_side_row(found.base), _side_row(found.new), of_change]
    heads: list[str | Column] = ["", Column("step", Unit.TIME), Column("±", Unit.SHARE)]
    if found.loss is not None and not math.isnan(found.loss.base):
        heads.append(Column("loss", Unit.RATE))
        for row, value in zip(rows, _loss_cells(found.loss), strict=True):
            row.append(value)
    return table(heads, rows)


def _side_row(side: Side) -> list[Value]:
    """The label of a side, its median step in microseconds, and the spread of its steps."""
    return [printable(side.label), side.median_s * 1e6, side.spread]


def _loss_cells(loss: LossChange) -> tuple[Value, Value, Value]:
    """The loss of both sides, and its change."""
    change: Value = Cell("not finite", "bad")
    if math.isfinite(loss.change):
        change = figures.change(loss.change, 2)
    return _loss_text(loss.base), _loss_text(loss.new), change


def _loss_text(value: float) -> str:
    return f"{value:.5g}" if math.isfinite(value) else "not finite"


def check_lines(checks: Iterable[LimitCheck]) -> Iterator[Cell]:
    """Yield the outcome of each limit, with advice if no command explains it."""
    for check in checks:
        if check.found:
            word, tone = MARKS[check.outcome]
            line = f"{word} {check.name}: {check.found}{_advice(check)}"
            yield Cell(line.rstrip(" ."), tone)


def _advice(check: LimitCheck) -> str:
    """Return the advice after a check's finding, with a full stop; empty if a command explains
    it.
    """
    if check.command:
        return ""
    stop = "" if check.found.endswith("?") else "."
    return f"{stop} {check.advice}"


def _assumed(found: Comparison) -> Iterator[Cell]:
    """Yield the spread between launches that pgle assumed, if it did."""
    spread = found.estimate.spread
    if spread is UNKNOWN_PLACE or spread is SAME_PLACE:
        half = figures.share(spread.half_width(found.assumptions.confidence), 2)
        assumed = f"launches are assumed to differ by up to ±{half}"
        yield Cell(f"One launch per side: {assumed} (--abba measures it)", "soft")


def _method(found: Comparison) -> Iterator[str]:
    """Yield how the figures were computed, and the smallest change they can detect."""
    design = found.estimate.design
    p = found.estimate.p
    base, new = found.estimate.n
    yield f"unit: {design.unit} ({base:,} of base, {new:,} of new); {design.text}"
    if found.simulated:
        yield f"Simulated: the {found.interval_kind} {HOLDS_ALL}."
        return
    if p is not None:
        value = "<0.001" if p < 0.001 else f"{p:.3f}"
        yield f"p ({design.test}): {value}"
    if not math.isinf(found.minimum_detectable):
        least = figures.share(found.minimum_detectable, 2)
        yield f"These runs detect {least} with 80 % probability."


def _place(found: Comparison) -> Iterator[str]:
    """Describe the GPUs and versions that all runs share, the newest date, and whether a GPU was
    measured.
    """
    known = [run.series.about for run in _runs(found)]
    for name in ("hardware", "jax", "jaxlib"):
        values = {item.get(name, "") for item in known}
        if len(values) == 1 and (value := values.pop()):
            yield value if name == "hardware" else f"{name} {value}"
    yield max((item.get("started", "") for item in known), default="")[:10]
    yield "simulated" if found.simulated else "measured"


def _runs(found: Comparison) -> tuple[StepTimes, ...]:
    """The runs of both sides."""
    return (*found.base.runs, *found.new.runs)


def _about(found: Comparison) -> Iterator[tuple[str, ...]]:
    """Yield rows (name, base, new) about the origin of the runs."""
    sides = (found.base, found.new)
    yield "runs", *(str(len(side.runs)) for side in sides)
    yield "steady steps", *(figures.count(side.steps) for side in sides)
    yield "left out", *map(left_out_text, sides)
    yield "read from", *map(_sources, sides)
    names: dict[str, None] = {}
    for run in _runs(found):
        names |= dict.fromkeys(run.series.about)
    for name in names:
        yield name, *(_recorded(side, name) for side in sides)


def _sources(side: Side) -> str:
    """The files that the steps of a side were read from, each once."""
    return ", ".join(dict.fromkeys(run.series.source for run in side.runs))


def _recorded(side: Side, name: str) -> str:
    """What the runs of a side recorded under a name, each value once."""
    values = (run.series.about.get(name, "not recorded") for run in side.runs)
    return ", ".join(dict.fromkeys(values))


def left_out_text(side: Side) -> str:
    """What was left out of a side, by rule: ``12 warm-up, 3 profiled (5–7)``."""
    by_rule: dict[str, list[int]] = {}
    for run in side.runs:
        for item in run.left_out:
            by_rule.setdefault(item.rule, []).extend(item.steps)
    texts: list[str] = []
    for rule, steps in by_rule.items():
        text = f"{len(steps)} {rule}"
        if len(side.runs) == 1:
            text = f"{text} ({_ranges(sorted(steps))})"
        texts.append(text)
    return ", ".join(texts) or "nothing"


def _ranges(steps: Sequence[int]) -> str:
    """Step numbers as ranges, ``0–3, 7``."""
    texts: list[str] = []
    for first, last in figures.runs(steps):
        texts.append(str(first) if first == last else f"{first}–{last}")
    more = ", …" if len(texts) > MOST_RANGES else ""
    return f"{', '.join(texts[:MOST_RANGES])}{more}"


class PairOfUnits(Document):
    """How many units each side has."""

    base: int
    new: int


class ModelReach(Document):
    """By how much the model of simulated runs may be wrong, lower and higher."""

    below: float
    above: float


class StatisticsDocument(Document):
    """A comparison in numbers. Shares are fractions, ``ci`` is of the ratio."""

    verdict: Verdict
    ratio: float
    # ends of the interval of the ratio; `interval_kind` names its kind
    ci: tuple[float, float]
    interval_kind: IntervalKind
    p: float | None
    n: PairOfUnits
    minimum_detectable: float
    confidence: float | None  # null: it is not a confidence interval
    design: str
    method: str
    test: str
    run_noise: float | None
    launch_spread: LaunchSpread | None
    simulated: bool
    model_reach: ModelReach


class ComparedRun(Document):
    """Where a run's steps come from, and how many count."""

    source: str
    format: str
    malformed: tuple[Malformed, ...]
    median_s: float
    left_out: tuple[LeftOut, ...]
    steps: int


class SideDocument(Document):
    """One side of a comparison; times are in seconds."""

    label: str
    median_s: float
    spread: float
    steps: int
    stall_share: float
    runs: tuple[ComparedRun, ...]


class LossGuard(Document):
    """The loss of both sides."""

    name: str
    base: float
    new: float
    basis: str
    change: float


class CheckedLimit(Document):
    """A limit and its outcome."""

    name: str
    outcome: Outcome
    message: str
    ok: bool | None


class CompareDocument(Document):
    """``pgle.compare/1``."""

    statistics: StatisticsDocument = flat()
    base: SideDocument
    new: SideDocument
    guards: tuple[LossGuard, ...]  # the loss, if both sides have one
    ok: bool | None  # None: undecided
    outcome: Outcome
    checks: tuple[CheckedLimit, ...]
    footnotes: tuple[str, ...]


def document(found: Comparison, checks: Sequence[LimitCheck]) -> CompareDocument:
    """The comparison, and the outcome of its limits."""
    outcome = overall(checks)
    is_ok = None if outcome is Outcome.CANNOT_TELL else outcome is Outcome.OK
    guards: tuple[LossGuard, ...] = ()
    if found.loss:
        guards = (LossGuard.of_value(found.loss, name="loss"),)
    return CompareDocument(
        statistics=_statistics(found),
        base=_side(found.base),
        new=_side(found.new),
        guards=guards,
        ok=is_ok,
        outcome=outcome,
        checks=tuple(map(CheckedLimit.of_value, checks)),
        footnotes=found.warnings,
    )


def _statistics(found: Comparison) -> StatisticsDocument:
    """The comparison in numbers, with its design and what the model may be wrong by."""
    estimate = found.estimate
    design = estimate.design
    spread = estimate.spread
    return StatisticsDocument.of_value(
        found,
        estimate,
        design,
        n=PairOfUnits(*estimate.n),
        confidence=None if found.simulated else found.assumptions.confidence,
        design=design.unit,
        method=design.text,
        run_noise=None if spread is None else spread.share,
        launch_spread=spread,
        model_reach=ModelReach(*estimate.model),
    )


def _side(side: Side) -> SideDocument:
    return SideDocument.of_value(side, runs=tuple(map(_compared_run, side.runs)))


def _compared_run(run: StepTimes) -> ComparedRun:
    return ComparedRun.of_value(run, run.series, steps=len(run))


ICONS = {
    Verdict.FASTER: "🟢",
    Verdict.SLOWER: "🔴",
    Verdict.SAME: "⚪",
    Verdict.UNDECIDED: "🟡",
}


def summary(found: Comparison, checks: Sequence[LimitCheck]) -> str:
    """The page as the job summary of GitHub Actions."""
    page = comparison_page(found, checks)
    verdict = f"{ICONS[found.verdict]} pgle compare: {page.verdict}"
    return markdown(replace(page, verdict=verdict))


def outputs(found: Comparison, checks: Sequence[LimitCheck]) -> dict[str, str]:
    """The outputs of the step: verdict, ok, ratio, change, ci-low, ci-high, p, minimum-detectable,
    message. ``ok`` is true, false or cannot-tell.
    """
    outcome = overall(checks)
    ok = {Outcome.OK: "true", Outcome.FAIL: "false"}.get(outcome, outcome.value)
    low, high = map(_number, found.ci)
    p = found.estimate.p
    p_text = "" if p is None else f"{p:.6g}"
    unmet = [check for check in checks if check.ok is not True]
    short = "; ".join(f"{check.name}: {check.message}" for check in unmet)
    message = one_line(short or headline(found))
    return {
        "verdict": found.verdict.value,
        "ok": ok,
        "ratio": f"{found.ratio:.6f}",
        "change": f"{found.change:+.2%}",
        "ci-low": low,
        "ci-high": high,
        "p": p_text,
        "minimum-detectable": _number(found.minimum_detectable),
        "message": message,
    }


def _number(value: float) -> str:
    """A number for a shell; empty if it is not finite."""
    return f"{value:.6f}" if math.isfinite(value) else ""


def append(
    found: Comparison,
    checks: Sequence[LimitCheck],
    environ: Mapping[str, str] = os.environ,
) -> None:
    """Append the summary to the file $GITHUB_STEP_SUMMARY, and the outputs to the file
    $GITHUB_OUTPUT.
    """
    lines = [f"{name}={value}\n" for name, value in outputs(found, checks).items()]
    texts = {
        "GITHUB_STEP_SUMMARY": summary(found, checks),
        "GITHUB_OUTPUT": "".join(lines),
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
