"""Cost shaping: costs for the scheduler alone, raised where collectives stay exposed."""

from collections.abc import Sequence
from dataclasses import replace

from pgle.costs.profile.value import Cost, Profile
from pgle.tune.shape import Shape, descend, shaped
from pgle.tune.trial import Trial

START = Trial({"f": "1"}, "start", 100.0, worlds_us=(100.0,) * 4, harder_us=(100.0,) * 4, most_exposed=("a", "b"))


def steps(shape: Shape) -> float:
    """A schedule that gets better where `b` starts earlier, and worse where `a` does."""
    return 100.0 + 2.0 * shape.get("a", 1.0) - 3.0 * min(shape.get("b", 1.0), 8.0)


def attempt(settings: Sequence[tuple[Shape, str]]) -> list[Trial]:
    return [
        replace(START, shape=shape, label=label, worlds_us=(steps(shape),) * 4, harder_us=(steps(shape),) * 4)
        for shape, label in settings
    ]


def test_costs_of_a_shape_are_multiplied_and_others_stay() -> None:
    profile = Profile((Cost("a", 10.0), Cost("c", 5.0)))
    assert [cost.cost_us for cost in shaped(profile, {"a": 2.0}).costs] == [20.0, 5.0]
    assert shaped(profile, {}) is profile


def test_the_descent_finds_the_collective_whose_cost_matters() -> None:
    found = descend(START, attempt, budget=40, memory_limit=None)
    best = min(found, key=lambda trial: trial.mean_us)
    assert best.shape["b"] >= 8.0
    assert best.shape.get("a", 1.0) < best.shape["b"]


def test_no_shape_is_tried_twice_and_the_budget_holds() -> None:
    found = descend(START, attempt, budget=7, memory_limit=None)
    assert len(found) == 7
    assert all(one.shape != other.shape for n, one in enumerate(found) for other in found[n + 1 :])


def test_a_step_without_exposed_collectives_is_left_alone() -> None:
    assert descend(replace(START, most_exposed=()), attempt, budget=9, memory_limit=None) == []
