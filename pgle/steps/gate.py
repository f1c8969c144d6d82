"""The gate: limits that a comparison must keep, each with a message that says what to do."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import PurePath

from pgle.errors import UserError
from pgle.next import Next
from pgle.steps.compare import Comparison, Verdict
from pgle.steps.estimate import FEW_STEPS


@dataclass(frozen=True, slots=True)
class Limits:
    """What NEW must keep; None: no limit."""

    fail_slower: float | None = None  # fail if NEW is shown to be slower by more: the whole interval lies above
    fail_undecided: bool = False  # fail too if the interval holds that bound
    require_faster: bool = False  # fail unless NEW is faster
    max_loss_change: float | None = None  # band of the relative difference of losses, both directions
    max_memory_growth: float | None = None  # of the peak memory, relative
    max_compile_growth: float | None = None  # of the compile time, relative


class Outcome(StrEnum):
    """How a check went."""

    OK = "ok"
    FAIL = "fail"
    CANNOT_TELL = "cannot-tell"  # neither is shown; does not fail the command


@dataclass(frozen=True, slots=True)
class Check:
    """One limit and how it went."""

    name: str  # ``step time``, ``loss``, ``peak memory`` or ``compile time``
    outcome: Outcome
    message: str  # what was found and what to do, one line

    @property
    def ok(self) -> bool | None:
        """Whether the limit was kept; None: it cannot be told."""
        return None if self.outcome is Outcome.CANNOT_TELL else self.outcome is Outcome.OK

    @property
    def failed(self) -> bool:
        """Whether it fails the command."""
        return self.outcome is Outcome.FAIL


def gate(comparison: Comparison, limits: Limits) -> tuple[Check, ...]:
    """Every limit that was asked for, and a loss that is no finite number, which always fails."""
    checks = [_step_time(comparison, limits)]
    bounds = {
        "loss": limits.max_loss_change,
        "peak memory": limits.max_memory_growth,
        "compile time": limits.max_compile_growth,
    }
    found = {guard.name: guard for guard in comparison.guards}
    for name, bound in bounds.items():
        guard = found.get(name)
        if guard is None:
            if bound is not None:
                message = f"not recorded on both sides, cannot be checked; {RECORD[name]}"
                checks.append(Check(name, Outcome.FAIL, message))
        elif math.isinf(guard.new):
            message = f"{guard.basis}; do not use this profile before that is understood"
            checks.append(Check(name, Outcome.FAIL, message))
        elif bound is not None:
            kept = (abs(guard.change) if name == "loss" else guard.change) <= bound
            where, advice = ("within", "") if kept else ("outside", f"; {ADVICE[name]}")
            message = f"{guard.change:+.2%} ({guard.basis}), {where} the bound of {bound:.2%}{advice}"
            checks.append(Check(name, Outcome.OK if kept else Outcome.FAIL, message))
    return tuple(checks)


def overall(checks: Iterable[Check]) -> Outcome:
    """The worst outcome: a failure, else what cannot be told."""
    outcomes = {check.outcome for check in checks}
    return next((worst for worst in (Outcome.FAIL, Outcome.CANNOT_TELL) if worst in outcomes), Outcome.OK)


RECORD = {
    "loss": 'record "loss" per step',
    "peak memory": 'record "peak_memory_bytes" per step',
    "compile time": 'record a line {"compile_time_s": …}',
}
ADVICE = {
    "loss": "same seed and data on both sides? else the program changed, not only its schedule",
    "peak memory": "LHS holds buffers longer: lower --xla_gpu_memory_limit_slop_factor or the overlap limit",
    "compile time": "compare with a warm autotuning cache on both sides",
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
    text, bound = describe(found), limits.fail_slower
    if limits.require_faster and found.verdict is not Verdict.FASTER:
        return Check("step time", Outcome.FAIL, f"not shown to be faster: {text}. {_rounds(found, abs(found.change))}")
    if bound is None:
        return Check("step time", Outcome.OK, text)
    few = min((run for side in (found.base, found.new) for run in side.runs), key=len)
    if math.isinf(found.ci[1]) and len(few) < FEW_STEPS:
        steps = f"{len(few)} steady {'step' if len(few) == 1 else 'steps'}"
        what = f"cannot be judged, {few.series.source} has {steps}: did the run end early? Record {FEW_STEPS} or more"
        return Check("step time", Outcome.FAIL, what)
    if found.ci[1] < (1 + bound) * (1 - 1e-12):
        return Check("step time", Outcome.OK, f"a slowdown of {bound:.2%} is ruled out: {text}")
    if found.verdict is Verdict.SLOWER and found.ci[0] > 1 + bound:
        message = f"slower by more than {bound:.2%} (--fail-slower): {text}. {SLOWER} With a trace of each: "
        return Check("step time", Outcome.FAIL, message + explanation(found))
    distance = abs(found.change - bound)
    more = _rounds(found, distance)
    if math.isfinite(found.ci[1]):  # below this measured slowdown the gate cannot fail
        least = (1 + bound) * found.ci[1] / found.ratio - 1
        more = f"These runs cannot tell below {least:.1%}; {more}"
    message = f"{text}. The bound of {bound:.2%} (--fail-slower) is neither exceeded nor ruled out. {more}"
    if limits.fail_undecided:
        return Check("step time", Outcome.FAIL, f"not decided (--fail-undecided): {message}")
    return Check("step time", Outcome.CANNOT_TELL, message)


def _rounds(found: Comparison, distance: float) -> str:
    """What would decide a difference of this size."""
    rounds = found.estimate.rounds_for(math.log1p(distance), found.assumptions.alpha)
    if rounds is not None:
        return f"`--abba {rounds}` could"
    if math.isinf(found.estimate.pair_variance):
        return "Record more steps, or several runs per side (--abba)"
    return "no reasonable number of runs could: the change is too near to the bound for this noise"


SLOWER = (
    "Was the profile used ('pgle confirm LOG'), does it fit the module ('pgle verify PROFILE --hlo DUMP'), "
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
    """The finding in one clause."""
    level = f"{found.assumptions.confidence:.0%}"
    if math.isinf(found.ci[1]):
        return f"{found.change:+.2%}, with no interval"
    return f"{found.change:+.2%} ({level} CI {found.ci[0] - 1:+.2%} … {found.ci[1] - 1:+.2%})"
