"""Compare two sides: whether steps of NEW are faster than steps of BASE, how sure that is, and
which limits are kept.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import PurePath

import numpy as np

from pgle.checks import SHARE
from pgle.errors import UserError, as_change, in_percent, many
from pgle.next import CONFIRM, VERIFY, Next
from pgle.steps.estimate import FEW_STEPS, Assumptions, Estimate, estimate
from pgle.steps.series import Side, StepTimes, check_runs
from pgle.steps.verdict import Verdict

DEFAULTS = Assumptions()
# means of steady steps disagree with medians if they differ by more standard errors
TAIL_ERRORS = 4.0
GRAIN_SHOWN = 0.001  # share of a step; step times rounded more coarsely get a warning
# sides whose shares of time in stalls differ by more get a warning
STALL_DIFFERENCE = 0.01
LEAST_STALLS = 0.0005  # the warning leaves out smaller shares: they show as 0.0 %


class IntervalKind(StrEnum):
    """The meaning of a comparison's interval."""

    CONFIDENCE = "confidence interval"  # for measured steps
    ESTIMATE = "range of the estimate"  # for simulated steps, which a model made


HOLDS_ALL = (
    "holds simulated noise, and what contention, data and the network can change"
)
"""What the range of an estimate is made of: one range with one name in every line."""

UNLIKE = {"hardware": "other GPUs", "module": "another program"}
"""Facts that both sides must share, by name in `Series.about`, with words for a difference."""


@dataclass(frozen=True)
class Comparison:
    """The result of a comparison."""

    verdict: Verdict
    estimate: Estimate  # the difference, its interval, and the design
    assumptions: Assumptions  # as given
    base: Side
    new: Side
    loss: LossChange | None  # None if a side recorded no loss
    warnings: tuple[str, ...]  # one line each

    @property
    def unlike(self) -> tuple[str, ...]:
        """Recorded facts that differ between sides although they should be the same, in words."""
        found = []
        for name, what in UNLIKE.items():
            one, two = (
                {run.series.about.get(name, "") for run in side.runs}
                for side in (self.base, self.new)
            )
            if "" not in one | two and one != two:
                found.append(
                    f"{what}: {', '.join(sorted(one))} and {', '.join(sorted(two))}"
                )
        return tuple(found)

    @property
    def ratio(self) -> float:
        """Step time of NEW over step time of BASE."""
        return math.exp(self.estimate.difference)

    @property
    def ci(self) -> tuple[float, float]:
        """Interval of the ratio; (0, inf) if nothing is known. See `interval_kind`."""
        low, high = self.estimate.ends
        return math.exp(low), _exp(high)

    @property
    def interval_kind(self) -> IntervalKind:
        """The meaning of `ci`. No sample of simulated steps tells how sure a change is on a GPU."""
        return IntervalKind.ESTIMATE if self.simulated else IntervalKind.CONFIDENCE

    @property
    def interval_name(self) -> str:
        """Name of the interval in an answer: ``95 % CI``, or ``range of the estimate``."""
        if self.interval_kind is IntervalKind.ESTIMATE:
            return str(self.interval_kind)
        return f"{self.assumptions.confidence * 100:g} % CI"

    @property
    def minimum_detectable(self) -> float:
        """The smallest relative change that would be found with 80 % probability at this noise."""
        return _exp(self.estimate.detectable) - 1

    @property
    def change(self) -> float:
        """Ratio - 1: positive is slower."""
        return self.ratio - 1

    @property
    def simulated(self) -> bool:
        """Whether a side is simulated."""
        return self.base.simulated or self.new.simulated


def compare(base: Side, new: Side, assumptions: Assumptions = DEFAULTS) -> Comparison:
    """Compare two sides.

    Raises:
        UserError: a run has no steady steps, or the sides have other units or forms.
    """
    runs = (*base.runs, *new.runs)
    check_runs(runs)
    from_traces = [run.series.format == "trace" for run in runs]
    if any(from_traces) and not all(from_traces):
        what = (
            "a profiler trace (time on the device) cannot be compared with a log (time of the "
            "host's loop)"
        )
        raise UserError(
            what,
            where=f"{base.label}, {new.label}",
            remedy="give both sides in the same form",
        )
    found = _with_means(estimate(base, new, assumptions), base, new, assumptions)
    found = _with_model(_with_grain(found, base, new), base, new)
    return Comparison(
        verdict=_verdict(found, assumptions),
        estimate=found,
        assumptions=assumptions,
        base=base,
        new=new,
        loss=_loss(base.runs, new.runs),
        warnings=tuple(dict.fromkeys(_warnings(base, new, found))),
    )


def _with_means(
    found: Estimate, base: Side, new: Side, assumptions: Assumptions
) -> Estimate:
    """Widen the interval to span the change of means, if it differs from the change of medians. The
    length of a run depends on its mean step.
    """
    # for each side: the logarithm of a run's mean over its median, and the relative standard errors
    # of means, as if steps were independent
    tails = [
        np.mean([np.log(run.step_time_s.mean() / run.median_s) for run in side.runs])
        for side in (base, new)
    ]
    apart = float(tails[1] - tails[0])
    errors = [
        [run.step_time_s.std() / run.median_s / np.sqrt(len(run)) for run in side.runs]
        for side in (base, new)
    ]
    error = math.hypot(
        *(float(np.linalg.norm(values)) / len(values) for values in errors)
    )
    if abs(apart) <= max(assumptions.margin, TAIL_ERRORS * error):
        return found
    mean, median = (
        math.expm1(value) for value in (found.difference + apart, found.difference)
    )
    note = (
        f"the mean of the steady steps changes by {as_change(mean)}, their median by "
        f"{as_change(median)}; "
        "the interval spans both"
    )
    return found.widened(abs(apart), note)


def _with_grain(found: Estimate, base: Side, new: Side) -> Estimate:
    """Widen the interval by the rounding of step times: half of the last written digit, on each
    side.
    """
    grains = [max(run.grain for run in side.runs) for side in (base, new)]
    notes = [
        f"{side.label}: step times are rounded to {in_percent(grain)}, which the interval "
        "includes; write more digits"
        for side, grain in zip((base, new), grains, strict=True)
        if grain > GRAIN_SHOWN
    ]
    return found.widened(sum(grains) / 2, *notes)


def _with_model(found: Estimate, base: Side, new: Side) -> Estimate:
    """Widen the interval of simulated runs to hold the range of their model. If the model has no
    range, the interval holds the model's change.
    """
    befores = [run.series.modelled_us for run in base.runs]
    afters = [run.series.modelled_us for run in new.runs]
    lengths = set(map(len, (*befores, *afters)))
    if lengths == {0} or len(lengths) != 1:
        return found
    # all simulations of one program have the same range, so take the first of each side
    changes = [
        math.log(after / before)
        for before, after in zip(befores[0], afters[0], strict=True)
    ]
    likely = changes[0]
    low = min(changes)
    high = max(changes)
    if low == high:
        return _with_change_of_model(found, likely)
    note = f"the {IntervalKind.ESTIMATE} {HOLDS_ALL}; it is no confidence interval"
    return found.modelled(likely - low, high - likely, note)


def _with_change_of_model(found: Estimate, likely: float) -> Estimate:
    """Widen the interval to hold the one change that a model predicts.

    Args:
        likely: the logarithm of that change.
    """
    missed = found.difference - likely
    if abs(missed) <= found.half_width:
        return found
    note = (
        f"the {IntervalKind.ESTIMATE} holds the change that the model predicts; the rest is "
        "simulated noise, which is the same in each launch"
    )
    return found.modelled(max(missed, 0.0), max(-missed, 0.0), note)


def _verdict(found: Estimate, assumptions: Assumptions) -> Verdict:
    """The verdict by the interval. If there are enough units for a rank test, it must agree."""
    low, high = found.ends
    if (
        found.p is None
        or found.least_p > assumptions.alpha
        or found.p <= assumptions.alpha
    ):
        if high < 0:
            return Verdict.FASTER
        if low > 0:
            return Verdict.SLOWER
    margin = math.log1p(assumptions.margin)
    return Verdict.SAME if -margin <= low and high <= margin else Verdict.UNDECIDED


def _warnings(base: Side, new: Side, found: Estimate) -> Iterator[str]:
    """Yield what makes a comparison of step times doubtful."""
    if base.simulated or new.simulated:
        yield "simulated: step times come from the simulated GPU, no hardware was measured"
        if found.half_width == 0 and len(base.runs) + len(new.runs) > 2:
            yield "repeated simulations are identical: their spread shows no noise"
    if base.runs[0].series.format == "trace":
        yield "times come from profiler traces, which inflate them by some per cent"
    yield from found.warnings
    for side in (base, new):
        short = [run for run in side.runs if len(run) < FEW_STEPS]
        if short:
            steps = many(len(short[0]), "steady step")
            where = f" in {short[0].series.source}" if len(side.runs) > 1 else ""
            yield f"{side.label}: only {steps}{where}; record more"
    if abs(new.stall_share - base.stall_share) > STALL_DIFFERENCE:
        shares = (("base", base.stall_share), ("new", new.stall_share))
        some = [
            f"{in_percent(share)} of {name}'s time"
            for name, share in shares
            if share >= LEAST_STALLS
        ]
        yield f"stalls take {' and '.join(some)}; medians ignore them"
    for side in (base, new):
        for run in side.runs:
            yield from run.warnings


def _exp(value: float) -> float:
    """Return the exponential; infinity if it is too large for a double."""
    return math.exp(value) if value < 700 else math.inf


@dataclass(frozen=True, slots=True)
class LossChange:
    """The loss of both sides."""

    base: float  # of BASE
    new: float  # of NEW; infinite if a loss is not a finite number
    basis: str  # which losses were compared, in words

    @property
    def change(self) -> float:
        """Relative change. It is infinite if a side is not finite, or if only BASE is zero."""
        if not math.isfinite(self.new) or not math.isfinite(self.base):
            return math.inf
        if self.base == 0:
            return 0.0 if self.new == 0 else math.inf
        return (self.new - self.base) / abs(self.base)


def _loss(base: Sequence[StepTimes], new: Sequence[StepTimes]) -> LossChange | None:
    """Compare the mean loss over the later half of the steps that all runs share. Every recorded
    step counts, steady or not.

    If any loss of NEW is not finite, the result is that step, even if BASE lacks it. None if the
    runs share no step with a loss.
    """
    one = _losses(base)
    two = _losses(new)
    common = sorted(set(one) & set(two))
    later = common[len(common) // 2 :]
    means = [math.nan, math.nan]
    if later:
        means = [float(np.mean([side[step] for step in later])) for side in (one, two)]
    broken = [_first_infinite(side) for side in (base, new)]
    if broken[1] is not None:
        as_base = "" if broken[0] is None else f" (of BASE, in step {broken[0]})"
        return LossChange(
            means[0], math.inf, f"not a finite number in step {broken[1]}{as_base}"
        )
    if not common:
        return None
    return LossChange(means[0], means[1], f"mean of steps {later[0]} to {later[-1]}")


def _first_infinite(runs: Sequence[StepTimes]) -> int | None:
    """Return the first step with an infinite loss in any run; None if there is none."""
    found = [run.series.step[np.isinf(run.series.loss)] for run in runs]
    return min((int(steps.min()) for steps in found if len(steps)), default=None)


def _losses(runs: Sequence[StepTimes]) -> dict[int, float]:
    """Mean loss of the runs by step, for steps that every run has."""
    by_run = []
    for run in runs:
        known = ~np.isnan(run.series.loss)
        by_run.append(
            dict(
                zip(
                    run.series.step[known].tolist(),
                    run.series.loss[known].tolist(),
                    strict=True,
                )
            )
        )
    shared = set.intersection(*(set(item) for item in by_run)) if by_run else set()
    return {step: float(np.mean([item[step] for item in by_run])) for step in shared}


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits that NEW must keep. None means no limit."""

    # share; fail if the whole interval shows a larger slowdown
    fail_slower: float | None = None
    fail_undecided: bool = False  # fail also if the interval holds that bound
    require_faster: bool = False  # fail unless NEW is faster
    # largest relative difference of the losses, in either direction
    max_loss_change: float | None = None


class Outcome(StrEnum):
    """The outcome of a check."""

    OK = "ok"
    FAIL = "fail"
    CANNOT_TELL = "cannot-tell"  # neither is shown; the command does not fail


@dataclass(frozen=True, slots=True)
class LimitCheck:
    """One limit and its outcome."""

    name: str  # ``step time`` or ``loss``
    outcome: Outcome
    found: str = ""  # the finding in one clause; empty if there is no limit
    figure: str = ""  # the change of step times in one clause
    advice: str = ""  # what to do, in sentences
    command: Next | None = None  # the command that explains the finding

    @property
    def message(self) -> str:
        """Finding, figure and advice in one line."""
        what = ": ".join(filter(None, (self.found, self.figure)))
        why = self.advice
        if self.command:
            why = f"{why} With a trace of each: {self.command}"
        if not why:
            return what
        end = "" if what.endswith("?") else "."
        return f"{what}{end} {why}"

    @property
    def ok(self) -> bool | None:
        """Whether the limit was kept; None if these runs cannot show it."""
        if self.outcome is Outcome.CANNOT_TELL:
            return None
        return self.outcome is Outcome.OK

    @property
    def failed(self) -> bool:
        """Whether the command fails because of it."""
        return self.outcome is Outcome.FAIL


def gate(comparison: Comparison, limits: Limits) -> tuple[LimitCheck, ...]:
    """Check every limit that the user gave. A loss that is not finite always fails."""
    checks = [_step_time(comparison, limits)]
    loss, bound = comparison.loss, limits.max_loss_change
    if loss is None:
        if bound is not None:
            what = "not recorded on both sides, cannot be checked"
            checks.append(
                LimitCheck("loss", Outcome.FAIL, what, advice='Record "loss" per step.')
            )
    elif math.isinf(loss.new):
        checks.append(
            LimitCheck(
                "loss",
                Outcome.FAIL,
                loss.basis,
                advice="Do not use this profile until you know why.",
            )
        )
    elif bound is not None:
        kept = abs(loss.change) <= bound
        place = "within" if kept else "outside"
        what = (
            f"{change(loss.change)} ({loss.basis}), {place} the bound of {share(bound)}"
        )
        advice = (
            "Use the same seed and data on both sides; else the program changed, not only "
            "its schedule."
        )
        checks.append(
            LimitCheck(
                "loss",
                Outcome.OK if kept else Outcome.FAIL,
                what,
                advice="" if kept else advice,
            )
        )
    return tuple(checks)


def overall(checks: Iterable[LimitCheck]) -> Outcome:
    """The worst outcome of all checks."""
    outcomes = {check.outcome for check in checks}
    return next(
        (worst for worst in (Outcome.FAIL, Outcome.CANNOT_TELL) if worst in outcomes),
        Outcome.OK,
    )


def parse_share(text: str, where: str) -> float:
    """Read a share such as ``2%`` or ``0.02``.

    Args:
        where: the option, for the error.

    Raises:
        UserError: the text is not a share, or a number of 1 and more without ``%``.
    """
    stripped = text.strip()
    percent = stripped.endswith("%")
    try:
        value = float(stripped.rstrip("% ")) / (100 if percent else 1)
    except ValueError:
        value = math.nan
    if not SHARE.least <= value < math.inf:
        raise UserError(
            f"'{text}' is not a share", where=where, remedy="write it as 2%"
        )
    if not percent and value >= SHARE.most:
        raise UserError(
            f"'{text}' is not a share",
            where=where,
            remedy=f"write {stripped}% if per cent are meant",
        )
    return value


def _step_time(found: Comparison, limits: Limits) -> LimitCheck:
    """Check the limits of the step time. An interval above the bound fails, one below it passes,
    and one that holds the bound cannot tell.
    """
    name = "step time"
    text = describe(found)
    bound = limits.fail_slower
    if limits.require_faster and found.verdict is not Verdict.FASTER:
        return LimitCheck(
            name,
            Outcome.FAIL,
            "not shown to be faster",
            text,
            _rounds(found, abs(found.change)),
        )
    if bound is None:
        return LimitCheck(name, Outcome.OK, figure=text)
    if found.unlike:
        what = f"not the same thing on both sides: {'; '.join(found.unlike)}"
        return LimitCheck(
            name,
            _undecided(limits),
            what,
            text,
            "Run the same program on the same GPUs on both sides.",
        )
    few = min((*found.base.runs, *found.new.runs), key=len)
    if math.isinf(found.ci[1]) and len(few) < FEW_STEPS:
        steps = many(len(few), "steady step")
        what = (
            f"cannot be judged, {few.series.source} has {steps}: did the run end early?"
        )
        return LimitCheck(
            name, Outcome.FAIL, what, advice=f"Record {FEW_STEPS} or more."
        )
    if found.ci[1] < (1 + bound) * (1 - 1e-12):
        return LimitCheck(
            name, Outcome.OK, f"a slowdown of {share(bound)} is ruled out", text
        )
    if found.verdict is Verdict.SLOWER and found.ci[0] > 1 + bound:
        what = f"slower by more than {share(bound)} (--fail-slower)"
        advice = (
            f"Was the profile used ('{CONFIRM}'), does it fit the module ('{VERIFY}'), "
            "and is anything but the profile different?"
        )
        return LimitCheck(
            name=name,
            outcome=Outcome.FAIL,
            found=what,
            figure=text,
            advice=advice,
            command=explanation(found),
        )
    more = _rounds(found, abs(found.change - bound))
    if math.isfinite(found.ci[1]):  # below this measured slowdown the gate cannot fail
        least = (1 + bound) * found.ci[1] / found.ratio - 1
        more = f"These runs can show a slowdown from {in_percent(least)} on. {more}"
    what = f"a slowdown of {share(bound)} is neither shown nor ruled out"
    what = f"{what} (--fail-undecided)" if limits.fail_undecided else what
    return LimitCheck(name, _undecided(limits), what, text, more)


def _undecided(limits: Limits) -> Outcome:
    """Return the outcome of a gate that cannot decide."""
    return Outcome.FAIL if limits.fail_undecided else Outcome.CANNOT_TELL


def _rounds(found: Comparison, distance: float) -> str:
    """Advise how to decide a difference of this size."""
    rounds = found.estimate.rounds_for(math.log1p(distance), found.assumptions.alpha)
    if rounds is not None:
        return f"`--abba {rounds}` could decide."
    if math.isinf(found.estimate.pair_variance):
        return "Record more steps, or several runs per side (--abba)."
    return (
        "No reasonable number of runs can decide: the change is too near to the bound for this "
        "noise."
    )


def explanation(found: Comparison) -> Next:
    """The command that explains a slowdown by instruction. If a side has no trace (a console log),
    the command has a placeholder.
    """
    words = []
    for side, name in ((found.new, "NEW_TRACE"), (found.base, "BASE_TRACE")):
        source = side.runs[0].series.source
        words.append(
            PurePath(stage_path(source)) if _TRACED.search(source) else PurePath(name)
        )
    return Next.of("analyze", words[0], "--against", words[1])


def stage_path(source: str) -> str:
    """The stage's folder in a run directory from which a series was read; it holds the trace, too.
    For other series, their source.
    """
    return _STEPS.sub("", source)


_STEPS = re.compile(r"/steps[^/]*\.jsonl( and \d+ more ranks)?$")

_TRACED = re.compile(
    rf"{_STEPS.pattern}|\.xplane\.pb(\.gz|\.xz)?$|\.(nsys-rep|sqlite)$"
)


def describe(found: Comparison) -> str:
    """Describe the change of the step time in one clause."""
    if math.isinf(found.ci[1]):
        return f"{change(found.change)}, with no interval"
    low, high = (change(edge - 1) for edge in found.ci)
    return (
        f"{change(found.change)} ({found.interval_name} "
        f"{low.removesuffix(' %')} … {high})"
    )


def change(value: float) -> str:
    """A signed share as ``−2.77 %``."""
    return as_change(value, 2)


def share(value: float) -> str:
    """A bound in per cent, without needless digits: ``1 %``, ``0.25 %``."""
    return f"{value * 100:.4g} %"
