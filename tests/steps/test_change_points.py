"""Change points of known series."""

import numpy as np
import pytest

from pgle.steps.change_points import change_points, level_shift, robust_noise


def levels(*parts: tuple[int, float], noise: float = 0.01, seed: int = 0) -> np.ndarray:
    values = np.concatenate([np.full(count, level) for count, level in parts])
    return values + np.random.default_rng(seed).normal(0, noise, len(values))


def test_known_changes_are_found_where_they_are() -> None:
    assert change_points(levels((20, 0.0), (15, 0.05), (25, -0.02))) == (20, 35)


@pytest.mark.parametrize("seed", range(10))
def test_noise_alone_has_none(seed: int) -> None:
    assert change_points(levels((60, 1.0), seed=seed)) == ()


def test_a_single_outlier_is_no_change() -> None:
    values = levels((40, 0.0))
    values[20] = 1.0
    assert change_points(values) == ()


def test_too_few_values_have_none() -> None:
    assert change_points(np.array([0.0, 0.0, 9.0, 9.0])) == ()


def test_exhaustive_search_finds_no_better_segmentation() -> None:
    values = levels((5, 0.0), (5, 0.03), noise=0.01, seed=3)
    noise = robust_noise(values)
    penalty = 3.0 * noise**2 * np.log(len(values))

    def cost(points: tuple[int, ...]) -> float:
        return sum(((part - part.mean()) ** 2).sum() for part in np.split(values, points)) + penalty * len(points)

    one = [(a,) for a in range(3, 8)]
    two = [(a, b) for a in range(3, 5) for b in range(a + 3, 8)]
    assert cost(change_points(values)) == pytest.approx(min(map(cost, [(), *one, *two])))


def test_the_largest_shift_of_a_long_series() -> None:
    found = level_shift(levels((3000, 0.0), (3000, 0.1)), 0.03)
    assert found is not None
    assert found[0] == pytest.approx(3000, abs=5)
    assert found[1] == pytest.approx(0.1, abs=0.002)


def test_skewed_noise_is_hardly_ever_taken_for_another_level() -> None:
    random = np.random.default_rng(1)
    alarms = [level_shift(random.exponential(0.05, 40), 0.03) is not None for _ in range(200)]
    assert sum(alarms) < 12


def test_a_small_shift_is_found_in_little_noise() -> None:
    assert level_shift(levels((10, 0.0), (10, 0.04), noise=0.005), 0.03) is not None
