"""Is PGLE worth a job? One sentence with its reason, from two predicted schedules."""

from __future__ import annotations

from collections.abc import Sequence

from pgle.schedule.moves import NOTHING_INDEPENDENT, Move, Placement
from pgle.schedule.predict import Gain, Prediction, gain

LEAST_GAIN = 0.005
"""Gains below half a per cent of the step are called not worth a job: controlled PGLE gains that users report on tuned
models are 1 to 2 %, and null results are common (see docs)."""


MOSTLY = 0.5  # of the exposed time, from which on what has nothing to hide behind is the answer


def judge_gain(baseline: Prediction, profiled: Prediction, moves: Sequence[Move], costs_are: str) -> str:
    """The sentence; it says where the costs are not measured.

    Args:
        baseline, profiled: predictions with one cost table.
        moves: collectives of both.
        costs_are: ``measured``, ``estimated`` or ``mixed``.
    """
    step = baseline.step_us
    gained = gain(baseline, profiled)
    copies = baseline.timeline.breakdown.exposed_copy_us
    exposed = _exposed(baseline)
    what = "exposed communication" if copies == 0 else "exposed communication and host copies"
    by = "" if costs_are == "measured" else f" ({costs_are} costs)"
    if baseline.lower_bound or profiled.lower_bound:
        return f"Cannot tell: the program has a loop of unknown length, of which one iteration is counted{by}."
    change = in_percent(gained)
    if gained.share >= LEAST_GAIN and gained.idle_share > gained.share / 2:
        return (
            f"Cannot tell: the step gets {change} shorter, but {gained.idle_share:.1%} are time in which nothing runs, "
            f"the model's noise; exposed time goes from {exposed:.1%} to {_exposed(profiled):.1%} of the step{by}."
        )
    if gained.share >= LEAST_GAIN and gained.low < 0:
        return f"Cannot tell: the step gets {change} shorter, and the range reaches below zero{by}."
    if gained.share >= LEAST_GAIN:
        reason = _moved(moves, copies - profiled.timeline.breakdown.exposed_copy_us)
        return f"Yes: {reason} and the step gets {change} shorter{by}."
    if gained.share <= -LEAST_GAIN:
        return (
            f"No: with true costs the greedy scheduler does worse here, the step gets {-gained.share:.1%} longer{by}."
        )
    if not moves and not baseline.timeline.breakdown.copy_us:
        return "No: the program has no collective that could be hidden."
    if exposed < LEAST_GAIN:
        return f"No: only {exposed:.2%} of the step is {what} without a profile{by}."
    before = [move.before for move in moves if move.before is not None]
    kept = _share([item for item in before if item.kept_by], baseline)
    if kept > 0.5:
        flag = next(item.kept_by for item in before if item.kept_by)
        return f"No: {flag} keeps {kept:.0%} of the {what} synchronous, whatever the profile says{by}."
    stuck = stuck_share(baseline, before)
    if stuck > MOSTLY:
        return (
            f"No: {exposed:.1%} of the step is {what}, but {stuck:.0%} of it has nothing independent to hide behind, "
            f"so no profile hides it{by}."
        )
    room = max(0.0, (step - baseline.ceiling.step_us) / step)
    return (
        f"No: {exposed:.1%} of the step is {what}; perfect overlap would save {room:.1%}, "
        f"but {_change(gained.share)}{by}."
    )


def stuck_share(prediction: Prediction, placed: Sequence[Placement]) -> float:
    """The part of a schedule's exposed time, of its placements, that no other order of its instructions hides."""
    return _share([item for item in placed if item.reason == NOTHING_INDEPENDENT], prediction)


def _exposed(prediction: Prediction) -> float:
    """The share of the step in which only collectives or copies run."""
    found = prediction.timeline.breakdown
    return (found.exposed_communication_us + found.exposed_copy_us) / max(found.step_us, 1e-9)


def in_percent(gained: Gain) -> str:
    """A gain and its range: ``3.1% (1.6 … 3.1%)``."""
    if gained.high - gained.low < 5e-4:
        return f"{gained.share:.1%}"
    known = f"as measured on {gained.samples} launches" if gained.samples else "as on two other jobs"
    low, high = f"{100 * gained.low:.1f}", f"{gained.high:.1%}"
    return f"{gained.share:.1%} (range {low} … {high}; kernels that hide collectives run slower, {known})"


def _moved(moves: Sequence[Move], copies_us: float) -> str:
    moved = sum(move.moved for move in moves)
    if not moved and copies_us > 0:
        return f"{copies_us:.0f} µs more of the host copies hide"
    if not moved:
        return "no collective moves, but other instructions do,"
    return f"the profile moves {moved} of {len(moves)} collectives"


def _share(placements: Sequence[Placement], baseline: Prediction) -> float:
    """The part of the exposed time that is theirs; no more than all, where collectives overlap each other."""
    exposed = baseline.exposed_us + baseline.timeline.breakdown.exposed_copy_us
    return min(sum(item.exposed_us for item in placements) / max(exposed, 1e-9), 1.0)


def _change(gain: float) -> str:
    if abs(gain) < 5e-5:
        return "the profile does not change the step time"
    return f"the profile {'shortens the step by only' if gain > 0 else 'lengthens the step by'} {abs(gain):.2%}"
