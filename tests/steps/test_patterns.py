"""Steps that grow, change level, or take turns; and shuffled steps, which do not."""

import numpy as np
import pytest

from pgle.steps.patterns import PatternKind, StepPattern, _fitted, find_patterns


def noisy(count: int, seed: int = 0, deviation: float = 0.002) -> np.ndarray:
    return np.exp(np.random.default_rng(seed).normal(0, deviation, count))


def only(times: np.ndarray) -> StepPattern:
    (found,) = find_patterns(times)
    return found


@pytest.mark.parametrize("count", [9, 12, 40, 500])
def test_growth_is_found_by_its_size(count: int) -> None:
    found = only(1.2 ** (np.arange(count) / (count - 1)) * noisy(count))
    assert found.kind == PatternKind.GROWTH
    assert found.change * (count - 1) == pytest.approx(np.log(1.2), rel=0.05)


@pytest.mark.parametrize("count", [12, 40, 500])
def test_a_jump_is_found_where_it_is(count: int) -> None:
    times = noisy(count)
    times[count // 2 :] *= 1.05
    found = only(times)
    assert (found.kind, found.first) == (PatternKind.LEVEL, count // 2)
    assert found.change == pytest.approx(np.log(1.05), rel=0.1)
    assert found.lost == pytest.approx(0.05 / 2 / 1.025, rel=0.1)


@pytest.mark.parametrize(("period", "first"), [(2, 0), (2, 1), (3, 2), (4, 1)])
def test_steps_that_take_turns_are_found(period: int, first: int) -> None:
    times = noisy(24)
    times[first::period] *= 1.08
    found = only(times)
    assert (found.kind, found.period, found.first) == (
        PatternKind.PERIOD,
        period,
        first,
    )
    assert found.change == pytest.approx(np.log(1.08), rel=0.1)


def test_levels_that_take_turns_while_steps_grow_are_two_patterns() -> None:
    times = 1.01 ** np.arange(12) * noisy(12)
    times[1::2] *= 1.08
    assert {item.kind for item in find_patterns(times)} == {
        PatternKind.GROWTH,
        PatternKind.PERIOD,
    }


def test_one_slow_step_is_no_pattern() -> None:
    times = noisy(24)
    times[12] *= 1.4
    assert find_patterns(times) == ()


def test_a_change_within_half_a_per_cent_is_none() -> None:
    times = noisy(24, deviation=0.0001)
    times[12:] *= 1.005
    assert find_patterns(times) == ()


@pytest.mark.parametrize("deviation", [0.002, 0.02, 0.1])
def test_shuffled_steps_seldom_show_a_pattern(deviation: float) -> None:
    found = [find_patterns(noisy(12, seed, deviation)) for seed in range(100)]
    assert (
        sum(map(bool, found)) <= 4
    )  # 1 % by design: five of a hundred would come once in 300 trials


def test_a_pattern_in_words() -> None:
    times = np.ones(12)
    times[7:] = 1.05
    assert (
        only(times).describe(range(100, 112))
        == "steps are 5.0 % longer from step 107 on"
    )


def test_a_guessed_span_covers_its_steps_in_a_run_of_long_blocks() -> None:
    # 119 blocks of 121 steps, and 120 steps before them
    first = 120 + 50 * 121
    last = 120 + 60 * 121
    logs = np.log(noisy(14_519, deviation=1e-4))
    logs[first:last] += 0.1
    fitted = np.flatnonzero(_fitted(logs, is_periodic=False))
    assert (fitted[0], fitted[-1]) == (first, last - 1)
