"""Coordinate descent over flags, guided by exposed time: deterministic, one axis at a time, the best so far kept."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pgle.schedule.predict import Prediction
from pgle.tune.moves import Axis, Flags, between, by_exposure, neighbours

LITTLE = 0.005
"""Less than half a per cent is not worth a re-profile: it is what a job's own noise hides."""
ROOM = 0.01
"""Within so much of the ceiling there is nothing left to look for."""
PROGRESS = 0.001
WON_SHARE = 0.9


@dataclass(frozen=True)
class Trial:
    """One setting, compiled and simulated.

    Attributes:
        flags: what differs from the user's own flags.
        label: what was tried, in words.
        prediction: of the step by the costs as they stand; None where it did not compile.
        worlds_us: steps in the worlds.
        temp_bytes: temporary memory that XLA plans for; None where it left no report.
        failure: why it did not compile; empty where it did.
    """

    flags: Flags
    label: str
    prediction: Prediction | None
    worlds_us: tuple[float, ...] = ()
    temp_bytes: int | None = None
    failure: str = ""

    @property
    def mean_us(self) -> float:
        """Mean step over the worlds; infinite where it did not compile."""
        return sum(self.worlds_us) / len(self.worlds_us) if self.worlds_us else float("inf")


@dataclass(frozen=True, slots=True)
class Judged:
    """A trial against the schedule that PGLE gives with the user's own flags.

    Attributes:
        won: worlds in which its step is shorter.
        of: worlds.
        mean: mean change of the step over worlds, as a share; negative is shorter.
        worst: the worst change.
    """

    won: int
    of: int
    mean: float
    worst: float

    @property
    def accepted(self) -> bool:
        """Whether it wins in nine of ten worlds and by enough."""
        return self.won >= WON_SHARE * self.of and self.mean <= -LITTLE


def judge(trial: Trial, pgle: Trial) -> Judged:
    """How a trial does over the worlds."""
    changes = [after / before - 1 for after, before in zip(trial.worlds_us, pgle.worlds_us, strict=True)]
    if not changes:
        return Judged(0, 0, 0.0, 0.0)
    return Judged(sum(change < 0 for change in changes), len(changes), sum(changes) / len(changes), max(changes))


Attempt = Callable[[Sequence[tuple[Flags, str]]], Sequence[Trial]]
"""Compiles and simulates settings, each with its label, at once where there are several."""


def no_room(pgle: Trial) -> bool:
    """Whether nothing can be gained: at the ceiling, or next to nothing is exposed."""
    assert pgle.prediction is not None
    step = max(pgle.prediction.step_us, 1e-9)
    breakdown = pgle.prediction.timeline.breakdown
    exposed = (breakdown.exposed_communication_us + breakdown.exposed_copy_us) / step
    return exposed < LITTLE or 1 - pgle.prediction.ceiling.step_us / step < ROOM


def search(
    pgle: Trial, found: Sequence[Axis], attempt: Attempt, *, budget: int, memory_limit: int | None
) -> list[Trial]:
    """All trials, in order; `best` picks from them.

    Args:
        pgle: the user's own flags with the profile.
        found: the axes.
        attempt: compiles and simulates.
        budget: trials at most.
        memory_limit: of temporary memory in bytes; None: no limit.
    """
    assert pgle.prediction is not None
    trials: list[Trial] = []
    current = pgle

    def tried(settings: Sequence[tuple[Flags, str]]) -> Trial:
        """The best of the current setting and these."""
        nonlocal current
        known = [trial.flags for trial in (pgle, *trials)]
        new = [(flags, label) for flags, label in settings if flags not in known][: max(budget - len(trials), 0)]
        trials.extend(attempt(new) if new else ())
        current = best(current, trials, memory_limit)
        return current

    while len(trials) < budget:
        before = current
        for axis in by_exposure(found, (current.prediction or pgle.prediction).timeline):
            settings = [*axis.settings, *_beside(axis, axis.settings[0])]
            tried([({**current.flags, **setting}, _label(axis, setting)) for setting in settings])
            if axis.number and axis.number in current.flags:
                _walk(axis, lambda: current, tried)
            if len(trials) >= budget or _at_ceiling(current, pgle):
                return trials
        if current.mean_us > before.mean_us * (1 - PROGRESS):
            break
    return trials


def _walk(axis: Axis, current: Callable[[], Trial], tried: Callable[[Sequence[tuple[Flags, str]]], Trial]) -> None:
    """Halve and double a number as long as that helps, then try three quarters of it."""
    while True:
        before = current()
        beside = _beside(axis, before.flags)
        if tried([({**before.flags, **setting}, _label(axis, setting)) for setting in beside]) is before:
            setting = {axis.number: str(between(int(before.flags[axis.number])))}
            tried([({**before.flags, **setting}, _label(axis, setting))])
            return


def _beside(axis: Axis, flags: Flags) -> list[Flags]:
    """Half and twice the number of an axis; none where it has no number."""
    if not axis.number:
        return []
    return [{axis.number: str(value)} for value in neighbours(int(flags[axis.number])) if value > 0]


def best(current: Trial, trials: Sequence[Trial], memory_limit: int | None) -> Trial:
    """The shortest mean step within the memory limit; one that is hardly shorter does not replace `current`."""
    fits = [item for item in trials if item.worlds_us and _fits(item, memory_limit)]
    shortest = min(fits, key=lambda item: item.mean_us, default=current)
    return shortest if shortest.mean_us < current.mean_us * (1 - PROGRESS) else current


def _fits(trial: Trial, memory_limit: int | None) -> bool:
    return memory_limit is None or trial.temp_bytes is None or trial.temp_bytes <= memory_limit


def _at_ceiling(trial: Trial, pgle: Trial) -> bool:
    assert pgle.prediction is not None
    found = trial.prediction
    return found is not None and found.step_us <= pgle.prediction.ceiling.step_us * (1 + ROOM)


def _label(axis: Axis, setting: Flags) -> str:
    value = int(setting[axis.number]) if axis.number else 0
    return f"{axis.name} {value / (1 << 20):g} MiB" if axis.number else axis.name
