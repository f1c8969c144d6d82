"""The gate: limits that a comparison must keep, each with a message that says what to do."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import PurePath

from pgle.errors import UserError
from pgle.next import CONFIRM, VERIFY, Next
from pgle.steps.compare import Comparison, Verdict
from pgle.steps.estimate import FEW_STEPS


@dataclass(frozen=True, slots=True)
class Limits:
    """What NEW must keep; None: no limit."""

    fail_slower: float | None = None  # fail if NEW is shown to be slower by more: the whole interval is above
    fail_undecided: bool = False  # fail too if the interval holds that bound
    require_faster: bool = False  # fail unless NEW is faster
    max_loss_change: float | None = None  # band of the relative difference of losses, both directions
    max_memory_growth: float | None = None  # of the peak memory, relative


class Outcome(StrEnum):
    """How a check went."""

    OK = "ok"
    FAIL = "fail"
    CANNOT_TELL = "cannot-tell"  # neither is shown; does not fail the command


@dataclass(frozen=True, slots=True)
class Check:
    """One limit and how it went."""

    name: str  # ``step time``, ``loss`` or ``peak memory``
    outcome: Outcome
    found: str = ""  # one clause; empty: nothing was limited
    figure: str = ""  # the step times in one clause
    advice: str = ""  # what to do, in sentences
    command: str = ""  # that explains it

    @property
    def message(self) -> str:
        """All of it in one line."""
        what = ": ".join(filter(None, (self.found, self.figure)))
        why = f"{self.advice} With a trace of each: {self.command}" if self.command else self.advice
        return f"{what}{'' if what.endswith('?') else '.'} {why}" if why else what

    @property
    def ok(self) -> bool | None:
        """Whether the limit was kept; None if these runs cannot show it."""
        return None if self.outcome is Outcome.CANNOT_TELL else self.outcome is Outcome.OK

    @property
    def failed(self) -> bool:
        """Whether it fails the command."""
        return self.outcome is Outcome.FAIL


def gate(comparison: Comparison, limits: Limits) -> tuple[Check, ...]:
    """Every limit that was asked for, and a loss that is no finite number, which always fails."""
    checks = [_step_time(comparison, limits)]
    bounds = {"loss": limits.max_loss_change, "peak memory": limits.max_memory_growth}
    guards = {guard.name: guard for guard in comparison.guards}
    for name, bound in bounds.items():
        guard = guards.get(name)
        if guard is None:
            if bound is not None:
                what = "not recorded on both sides, cannot be checked"
                checks.append(Check(name, Outcome.FAIL, what, advice=RECORD[name]))
        elif math.isinf(guard.new):
            checks.append(Check(name, Outcome.FAIL, guard.basis, advice="Do not use this profile until you know why."))
        elif bound is not None:
            kept = (abs(guard.change) if name == "loss" else guard.change) <= bound
            what = (
                f"{change(guard.change)} ({guard.basis}), {'within' if kept else 'outside'} the bound of {share(bound)}"
            )
            outcome, advice = (Outcome.OK, "") if kept else (Outcome.FAIL, ADVICE[name])
            checks.append(Check(name, outcome, what, advice=advice))
    return tuple(checks)


def overall(checks: Iterable[Check]) -> Outcome:
    """The worst outcome: a failure, else an undecided limit."""
    outcomes = {check.outcome for check in checks}
    return next((worst for worst in (Outcome.FAIL, Outcome.CANNOT_TELL) if worst in outcomes), Outcome.OK)


RECORD = {
    "loss": 'Record "loss" per step.',
    "peak memory": 'Record "peak_memory_bytes" per step.',
}
ADVICE = {
    "loss": "Use the same seed and data on both sides; else the program changed, not only its schedule.",
    "peak memory": "LHS holds buffers longer: lower --xla_gpu_memory_limit_slop_factor or the overlap limit.",
}


def parse_share(text: str, where: str) -> float:
    """A share such as ``2%`` or ``0.02``.

    Raises:
        UserError: it is neither, or a number of 1 and more without the per cent sign.
    """
    stripped = text.strip()
    percent = stripped.endswith("%")
    try:
        value = float(stripped.rstrip("% ")) / (100 if percent else 1)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise UserError(f"'{text}' is not a share", where=where, remedy="write it as 2%")
    if not percent and value >= 1:
        raise UserError(f"'{text}' is not a share", where=where, remedy=f"write {stripped}% if per cent are meant")
    return value


def _step_time(found: Comparison, limits: Limits) -> Check:
    """The gate of the step time: fails above the bound, is kept below it, cannot tell if the interval holds it."""
    name, text, bound = "step time", describe(found), limits.fail_slower
    if limits.require_faster and found.verdict is not Verdict.FASTER:
        return Check(name, Outcome.FAIL, "not shown to be faster", text, _rounds(found, abs(found.change)))
    if bound is None:
        return Check(name, Outcome.OK, figure=text)
    if found.unlike:
        what = f"not the same thing on both sides: {'; '.join(found.unlike)}"
        return Check(name, _undecided(limits), what, text, "Run the same program on the same GPUs on both sides.")
    few = min((run for side in (found.base, found.new) for run in side.runs), key=len)
    if math.isinf(found.ci[1]) and len(few) < FEW_STEPS:
        steps = f"{len(few)} steady {'step' if len(few) == 1 else 'steps'}"
        what = f"cannot be judged, {few.series.source} has {steps}: did the run end early?"
        return Check(name, Outcome.FAIL, what, advice=f"Record {FEW_STEPS} or more.")
    if found.ci[1] < (1 + bound) * (1 - 1e-12):
        return Check(name, Outcome.OK, f"a slowdown of {share(bound)} is ruled out", text)
    if found.verdict is Verdict.SLOWER and found.ci[0] > 1 + bound:
        what = f"slower by more than {share(bound)} (--fail-slower)"
        return Check(name, Outcome.FAIL, what, text, SLOWER, explanation(found))
    more = _rounds(found, abs(found.change - bound))
    if math.isfinite(found.ci[1]):  # below this measured slowdown the gate cannot fail
        least = (1 + bound) * found.ci[1] / found.ratio - 1
        more = f"These runs can show a slowdown from {least * 100:.1f} % on. {more}"
    what = f"a slowdown of {share(bound)} is neither shown nor ruled out"
    what = f"{what} (--fail-undecided)" if limits.fail_undecided else what
    return Check(name, _undecided(limits), what, text, more)


def _undecided(limits: Limits) -> Outcome:
    return Outcome.FAIL if limits.fail_undecided else Outcome.CANNOT_TELL


def _rounds(found: Comparison, distance: float) -> str:
    """What would decide a difference of this size."""
    rounds = found.estimate.rounds_for(math.log1p(distance), found.assumptions.alpha)
    if rounds is not None:
        return f"`--abba {rounds}` could decide."
    if math.isinf(found.estimate.pair_variance):
        return "Record more steps, or several runs per side (--abba)."
    return "No reasonable number of runs can decide: the change is too near to the bound for this noise."


SLOWER = (
    f"Was the profile used ('{CONFIRM}'), does it fit the module ('{VERIFY}'), "
    "and is anything but the profile different?"
)


def explanation(found: Comparison) -> str:
    """The command that explains a slowdown, by instruction; a console log has no trace that could be named."""
    words = []
    for side, name in ((found.new, "NEW_TRACE"), (found.base, "BASE_TRACE")):
        source = side.runs[0].series.source
        words.append(PurePath(_STEPS.sub("", source)) if _TRACED.search(source) else PurePath(name))
    return str(Next.of("analyze", words[0], "--against", words[1]))


_STEPS = re.compile(r"/steps[^/]*\.jsonl$")  # of a stage of a run directory; that holds the trace too

_TRACED = re.compile(rf"{_STEPS.pattern}|\.xplane\.pb(\.gz|\.xz)?$|\.(nsys-rep|sqlite|parquet)$")


def describe(found: Comparison) -> str:
    """The change of the step time in one clause."""
    if math.isinf(found.ci[1]):
        return f"{change(found.change)}, with no interval"
    low, high = (change(edge - 1) for edge in found.ci)
    return f"{change(found.change)} ({found.assumptions.confidence * 100:g} % CI {low.removesuffix(' %')} … {high})"


def change(value: float) -> str:
    """A signed share as ``−2.77 %``."""
    return f"{value * 100:+.2f} %".replace("-", "−")


def share(value: float) -> str:
    """A bound as it was typed: ``1 %``, ``0.25 %``."""
    return f"{value * 100:.4g} %"
