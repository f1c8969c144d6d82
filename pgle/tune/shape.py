"""Cost shaping: costs for the scheduler that are not the true ones, where these lead it to a better schedule.

The scheduler starts a collective early enough to be hidden by its cost. One that stays exposed all the same is given a
larger cost, so that it starts earlier, or a smaller one, so that another goes before it; the step is simulated with the
honest costs. That helps a little where a step has very many collectives (96 of them: 1 % shorter, simulated), and it is
a lie: the honest profile stays beside.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from pgle.costs.profile.value import Profile
from pgle.tune.search import best
from pgle.tune.trial import Trial

FACTORS = (0.5, 2.0, 4.0)  # by which the cost of an exposed collective is multiplied

Shape = Mapping[str, float]  # factors by the name that a collective had when LHS ran
Attempt = Callable[[Sequence[tuple[Shape, str]]], Sequence[Trial]]  # schedules shapes, each with its label


def shaped(profile: Profile, shape: Shape) -> Profile:
    """A profile with some costs multiplied."""
    if not shape:
        return profile
    return replace(
        profile,
        costs=tuple(
            cost._replace(cost_us=cost.cost_us * shape[cost.name]) if cost.name in shape else cost
            for cost in profile.costs
        ),
    )


def descend(start: Trial, attempt: Attempt, *, budget: int, memory_limit: int | None) -> list[Trial]:
    """Directed descent: all exposed collectives at once, then one by one, the most exposed first; all trials.

    Args:
        start: the best setting of the flags, with the honest costs.
        attempt: schedules under its flags.
        budget: trials at most.
        memory_limit: of temporary memory in bytes; None: no limit.
    """
    trials: list[Trial] = []
    current = start
    progress = bool(start.most_exposed)
    while progress and len(trials) < budget:
        progress = False
        for names in (current.most_exposed, *((name,) for name in current.most_exposed)):
            settings = [(_times(current.shape, names, factor), f"{_words(names)} × {factor:g}") for factor in FACTORS]
            known = [trial.shape for trial in trials]
            new = [item for item in settings if item[0] not in known][: budget - len(trials)]
            trials.extend(attempt(new) if new else ())
            found = best(current, trials, memory_limit)
            progress = progress or found is not current
            current = found
    return trials


def _times(shape: Shape, names: Sequence[str], factor: float) -> Shape:
    return {**shape, **{name: shape.get(name, 1.0) * factor for name in names}}


def _words(names: Sequence[str]) -> str:
    return f"cost of {names[0]}" if len(names) == 1 else f"costs of {len(names)} exposed collectives"
