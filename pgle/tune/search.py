"""Coordinate descent over flags: one axis at a time, the best so far kept; a trial as a value, and how it is judged."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pgle.schedule.predict import Prediction
from pgle.tune.moves import ALL, Axis, by_exposure
from pgle.tune.trial import LITTLE, Flags, Trial

ROOM = 0.01  # within so much of the ceiling there is nothing left to look for
PROGRESS = 0.001
SAME = 2  # compilations, in budgets, after which the search ends though most changed nothing

Attempt = Callable[[Sequence[tuple[Flags, str]]], Sequence[Trial]]
"""Compiles and simulates settings, each with its label, at once where there are several."""


def no_room(pgle: Prediction) -> bool:
    """Whether nothing can be gained: at the ceiling, or next to nothing is exposed."""
    step = max(pgle.step_us, 1e-9)
    breakdown = pgle.timeline.breakdown
    exposed = (breakdown.exposed_communication_us + breakdown.exposed_copy_us) / step
    return exposed < LITTLE or 1 - pgle.ceiling.step_us / step < ROOM


def search(
    pgle: Trial, ceiling_us: float, found: Sequence[Axis], attempt: Attempt, *, budget: int, memory_limit: int | None
) -> list[Trial]:
    """All trials, in order; `best` picks from them.

    Args:
        pgle: the user's own flags with the profile.
        ceiling_us: of its program.
        found: the axes.
        attempt: compiles and simulates.
        budget: trials at most; flags that leave the program and its scheduling as they were are none.
        memory_limit: of temporary memory in bytes; None: no limit.
    """
    trials: list[Trial] = []
    current = pgle

    def left() -> int:
        return min(budget - sum(not trial.same_as for trial in trials), SAME * budget - len(trials))

    def tried(settings: Sequence[tuple[Flags, str]], number: str) -> Trial:
        """The best of the current setting and these."""
        nonlocal current
        made = (pgle, *trials)
        known = [trial.flags for trial in made]
        unknown = [item for item in settings if item[0] not in known and not _is_between_alike(item[0], number, made)]
        new = unknown[: max(left(), 0)]
        trials.extend(attempt(new) if new else ())
        current = best(current, trials, memory_limit)
        return current

    while left() > 0:
        before = current
        for axis in by_exposure(found, current.exposed_by_kind):
            settings = [*axis.settings, *_beside(axis, axis.settings[0])]
            start = pgle if axis.kind == ALL else current  # presets and the like are starts of their own
            added = [({**start.flags, **setting}, _label(axis, setting, start)) for setting in settings]
            tried([*_without(axis, current.flags), *added], axis.number)
            if axis.number and axis.number in current.flags:
                _walk(axis, lambda: current, tried)
            if left() <= 0 or _is_at_ceiling(current, ceiling_us):
                return trials
        if current.mean_us > before.mean_us * (1 - PROGRESS):
            break
    return trials


def _is_at_ceiling(trial: Trial, ceiling_us: float) -> bool:
    """Whether nothing is left to hide. A step below the ceiling is of another program, whose ceiling is not known."""
    step_us = trial.step_us or 0.0
    return ceiling_us <= step_us <= ceiling_us * (1 + ROOM) or trial.exposed_us < LITTLE * step_us


def _is_between_alike(flags: Flags, number: str, made: Sequence[Trial]) -> bool:
    """If two thresholds give the same program, with the same other flags, so does every value between them."""
    if number not in flags:
        return False
    others = {name: value for name, value in flags.items() if name != number}
    values: dict[str, list[int]] = {}
    for trial in made:
        if trial.program and number in trial.flags and trial.flags == {**others, number: trial.flags[number]}:
            values.setdefault(trial.program, []).append(int(trial.flags[number]))
    return any(min(alike) <= int(flags[number]) <= max(alike) for alike in values.values())


def _walk(axis: Axis, current: Callable[[], Trial], tried: Callable[[Sequence[tuple[Flags, str]], str], Trial]) -> None:
    """Halve and double a number as long as that helps, then try three quarters of it."""
    while True:
        before = current()
        near = _beside(axis, before.flags)
        settings = [({**before.flags, **setting}, _label(axis, setting, before)) for setting in near]
        if tried(settings, axis.number) is before:
            setting = {axis.number: str(int(before.flags[axis.number]) * 3 // 4)}
            tried([({**before.flags, **setting}, _label(axis, setting, before))], axis.number)
            return


def _beside(axis: Axis, flags: Flags) -> list[Flags]:
    """Half and twice the number of an axis; none where it has no number."""
    if not axis.number:
        return []
    value = int(flags[axis.number])
    return [{axis.number: str(near)} for near in (value * 2, value // 2) if near > 0]


def best(current: Trial, trials: Sequence[Trial], memory_limit: int | None) -> Trial:
    """The shortest mean step within the memory limit; one that is hardly shorter does not replace `current`."""
    fitting = [item for item in trials if item.worlds_us and fits(item, memory_limit)]
    shortest = min(fitting, key=lambda item: item.mean_us, default=current)
    return shortest if shortest.mean_us < current.mean_us * (1 - PROGRESS) else current


def fits(trial: Trial, memory_limit: int | None) -> bool:
    """Whether a trial needs no more temporary memory than that."""
    return memory_limit is None or trial.temp_bytes is None or trial.temp_bytes <= memory_limit


def without_one(accepted: Trial) -> list[tuple[Flags, str]]:
    """The accepted setting without each of its flags, to see what each gives; none where it has only one."""
    flags = accepted.flags
    if len(flags) < 2:
        return []
    return [({name: flags[name] for name in flags if name != left}, f"without {left}") for left in flags]


def _without(axis: Axis, flags: Flags) -> list[tuple[Flags, str]]:
    """The setting without what a start of several flags brought it of an axis; none where it has nothing else."""
    rest = {name: value for name, value in flags.items() if all(name not in setting for setting in axis.settings)}
    return (
        [(rest, f"left out: {axis.name.removesuffix(' to')}")]
        if axis.kind != ALL and 0 < len(rest) < len(flags)
        else []
    )


def _label(axis: Axis, setting: Flags, current: Trial) -> str:
    """What is tried, with a plus where it comes on top of flags of other axes."""
    value = next(iter(setting.values()))
    text = f"{axis.name} {int(value) / (1 << 20):g} MiB" if axis.number else axis.name
    text = f"{text}={value}" if not axis.number and axis.kind != ALL and len(setting) == 1 else text
    return f"+ {text}" if any(flag not in setting for flag in current.flags) else text
