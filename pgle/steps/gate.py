"""The gate: limits that a comparison must keep, each with a message that says what to do."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import PurePath

from pgle.errors import UserError
from pgle.next import Next
from pgle.steps.compare import Comparison, Verdict
from pgle.steps.methods.blocks import FEW_STEPS


@dataclass(frozen=True, slots=True)
class Limits:
    """What NEW must keep; None: not asked."""

    # fail where NEW is shown to be slower by more than this share: the whole interval lies above it
    fail_slower: float | None = None
    # fail unless a slowdown of this share is ruled out: the whole interval lies below it
    fail_unless_ruled_out: float | None = None
    require_faster: bool = False  # fail unless NEW is faster
    max_loss_change: float | None = None  # band of the relative difference of losses, both directions
    max_memory_growth: float | None = None  # of the peak memory, relative
    max_compile_growth: float | None = None  # of the compile time, relative


@dataclass(frozen=True, slots=True)
class Check:
    """One limit and how it went."""

    name: str  # ``step time``, ``loss``, ``peak memory`` or ``compile time``
    ok: bool  # whether it was kept
    message: str  # what was found and what to do, one line


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
                checks.append(Check(name, False, f"not recorded on both sides, cannot be checked; {RECORD[name]}"))
            continue
        if math.isinf(guard.new):
            checks.append(Check(name, False, f"{guard.basis}; do not use this profile before that is understood"))
        elif bound is not None:
            size = abs(guard.change) if name == "loss" else guard.change
            word = "within" if size <= bound else "outside"
            advice = "" if size <= bound else f"; {ADVICE[name]}"
            message = f"{guard.change:+.2%} ({guard.basis}), {word} the bound of {bound:.2%}{advice}"
            checks.append(Check(name, size <= bound, message))
    return tuple(checks)


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
        raise UserError(f"'{text}' is not a share", where=where, remedy="write it as 2%") from None
    if not 0 <= value < math.inf:
        raise UserError(f"'{text}' is not a share", where=where, remedy="write it as 2%")
    if not percent and value >= 1:
        raise UserError(f"'{text}' is not a share", where=where, remedy=f"write {stripped}% if per cent are meant")
    return value


def _step_time(found: Comparison, limits: Limits) -> Check:
    text = describe(found)
    bounds = [bound for bound in (limits.fail_slower, limits.fail_unless_ruled_out) if bound is not None]
    if limits.require_faster and found.verdict is not Verdict.FASTER:
        return Check("step time", False, f"not shown to be faster: {text}. {_more(found, None)}")
    few = min((run for side in (found.base, found.new) for run in side.runs), key=len)
    if bounds and math.isinf(found.ci[1]) and len(few) < FEW_STEPS:
        steps = f"{len(few)} steady {'step' if len(few) == 1 else 'steps'}"
        what = f"cannot be judged, {few.series.source} has {steps}: did the run end early? Record {FEW_STEPS} or more"
        return Check("step time", False, what)
    bound = limits.fail_slower
    if bound is not None and found.verdict is Verdict.SLOWER and found.ci[0] > 1 + bound:
        message = f"slower by more than {bound:.2%} (--fail-slower): {text}. {SLOWER} {_what_changed(found)}"
        return Check("step time", False, message)
    bound = limits.fail_unless_ruled_out
    if bound is not None and found.ci[1] >= (1 + bound) * (1 - 1e-12):
        slower = found.verdict is Verdict.SLOWER and found.change >= bound
        message = f"a slowdown of {bound:.2%} is not ruled out (--fail-unless-ruled-out): {text}. "
        advice = f"{SLOWER} {_what_changed(found)}" if slower else _more(found, bound)
        return Check("step time", False, message + advice)
    if not bounds:
        return Check("step time", True, text)
    if found.ci[1] < 1 + min(bounds):
        return Check("step time", True, f"a slowdown of {min(bounds):.2%} is ruled out: {text}")
    message = f"no proof that it is slower by more than {bounds[0]:.2%} (--fail-slower): {text}. "
    rest = f"It may be, and --fail-unless-ruled-out would fail. {_more(found, bounds[0])}"
    return Check("step time", True, message + (rest if found.ci[1] >= 1 + bounds[0] else ""))


SLOWER = (
    "Was the profile used ('pgle confirm LOG'), does it fit the module ('pgle verify PROFILE --hlo DUMP'), "
    "and is anything but the profile different?"
)


def _what_changed(found: Comparison) -> str:
    return f"With a trace of each: {explanation(found)}"


def explanation(found: Comparison) -> str:
    """The command that explains a slowdown, by instruction; a console log has no trace that could be named."""
    words = []
    for side, name in ((found.new, "NEW_TRACE"), (found.base, "BASE_TRACE")):
        source = side.runs[0].series.source
        words.append(PurePath(_STEPS.sub("", source)) if _TRACED.search(source) else PurePath(name))
    return str(Next.of("analyze", words[0], "--against", words[1]))


_STEPS = re.compile(r"/steps[^/]*\.jsonl$")  # of a stage of a run directory, which stands for its trace too

_TRACED = re.compile(rf"{_STEPS.pattern}|\.xplane\.pb(\.gz|\.xz)?$|\.(nsys-rep|sqlite|parquet)$")


def describe(found: Comparison) -> str:
    """The finding in one clause."""
    level = f"{found.assumptions.confidence:.0%}"
    if math.isinf(found.ci[1]):
        return f"{found.change:+.2%}, with no interval"
    return f"{found.change:+.2%} ({level} CI {found.ci[0] - 1:+.2%} … {found.ci[1] - 1:+.2%})"


def _more(found: Comparison, bound: float | None) -> str:
    """How much more would have to be recorded to see `bound` (or the change found)."""
    detectable = found.minimum_detectable
    target = bound if bound is not None else abs(found.change)
    if math.isinf(detectable):
        return "Record more steps, or several runs per side (--abba)"
    seen = f"This comparison detects {detectable:.2%}"
    if target < 5e-4 or detectable <= target:
        return seen
    if not found.method.more:
        return f"{seen}; several runs per side (--abba 3) detect less"
    runs = math.ceil(max(found.estimate.n) * (detectable / target) ** 2)
    return f"{seen}; about {runs} {found.method.more} would detect {target:.2%}"
