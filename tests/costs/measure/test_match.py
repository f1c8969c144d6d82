"""Two windows laid on each other by when collectives in them ended."""

import numpy as np
import pytest

from pgle.costs.measure.alignment import MatchedBy, match

STEP_NS, JITTER_NS, SPREAD_NS = 130e6, 500e3, 5e3


def job(steps, collectives=8, seed=0):
    """When each collective of each step ended, on a job's own clock."""
    random = np.random.default_rng(seed)
    begin = np.cumsum(random.normal(STEP_NS, JITTER_NS, steps))
    within = np.linspace(0.1, 0.9, collectives) * STEP_NS
    return begin[:, None] + within + random.normal(0, 50e3, (steps, collectives))


def rank(ends, first, last, *, clock_ns=0.0, seed=1):
    """What a rank whose window is [first, last) and whose clock is ahead saw of it."""
    return (
        ends[first:last]
        + clock_ns
        + np.random.default_rng(seed).normal(0, SPREAD_NS, ends[first:last].shape)
    )


@pytest.mark.parametrize("shift", range(-2, 3))
@pytest.mark.parametrize("seed", range(5))
def test_shifted_windows_are_matched_without_any_clock(shift, seed):
    ends = job(16, seed=seed)
    one, other = (
        rank(ends, 5, 10, seed=8),
        rank(ends, 5 + shift, 10 + shift, clock_ns=-3e11, seed=9),
    )
    assert match(one, other) == (shift, MatchedBy.ENDS)


@pytest.mark.parametrize("shift", range(-4, 5))
@pytest.mark.parametrize("seed", range(5))
def test_shifted_windows_are_matched_with_clocks_that_differ_by_some_ms(shift, seed):
    ends = job(16, seed=seed)
    by, _ = match(
        rank(ends, 5, 10),
        rank(ends, 5 + shift, 10 + shift, clock_ns=8e6, seed=9),
        ahead_ns=0,
    )
    assert by == shift


@pytest.mark.parametrize("seed", range(20))
def test_windows_that_clocks_tell_apart_are_not_matched(seed):
    ends = job(16, seed=seed)
    assert match(
        rank(ends, 0, 5), rank(ends, 8, 13, clock_ns=8e6, seed=9), ahead_ns=0
    ) == (
        0,
        MatchedBy.APART,
    )


@pytest.mark.parametrize(("first", "last"), [(3, 6), (5, 8), (7, 10)])
def test_windows_of_other_lengths_are_matched(first, last):
    ends = job(12)
    assert match(rank(ends, 4, 9), rank(ends, first, last, clock_ns=7e9, seed=2)) == (
        first - 4,
        MatchedBy.ENDS,
    )


def test_one_collective_in_each_of_many_steps_is_enough():
    ends = job(20, collectives=1)
    assert match(rank(ends, 0, 15), rank(ends, 2, 17, clock_ns=1e9, seed=2)) == (
        2,
        MatchedBy.ENDS,
    )


def test_collectives_that_did_not_run_do_not_matter():
    ends = job(12)
    one, other = rank(ends, 0, 6), rank(ends, 1, 7, seed=2)
    other[3, 2:5] = np.nan
    assert match(one, other) == (1, MatchedBy.ENDS)


def regular(first, last, clock_ns=0.0):
    """Steps that are all alike: when their collectives end tells nothing."""
    return (
        np.arange(first, last)[:, None] * STEP_NS
        + np.linspace(0.1, 0.9, 8) * STEP_NS
        + clock_ns
    )


def test_where_all_steps_are_alike_wall_clocks_tell():
    assert match(regular(0, 5), regular(2, 7, clock_ns=4e6), ahead_ns=0) == (
        2,
        MatchedBy.WALL_CLOCKS,
    )


def test_wall_clocks_that_are_off_by_much_of_a_step_tell_nothing():
    assert match(regular(0, 5), regular(2, 6, clock_ns=0.4 * STEP_NS), ahead_ns=0) == (
        0,
        MatchedBy.NONE,
    )


def test_when_collectives_end_tells_more_than_wall_clocks():
    ends = job(16)
    one, other = rank(ends, 5, 10), rank(ends, 6, 11, clock_ns=2 * STEP_NS, seed=2)
    assert match(one, other, ahead_ns=0) == (1, MatchedBy.ENDS)


def test_devices_of_one_process_share_a_clock():
    assert match(regular(0, 5), regular(1, 6), ahead_ns=0, same_clock=True) == (
        1,
        MatchedBy.CLOCK,
    )


def test_on_one_clock_windows_are_not_moved_to_where_ends_do_not_coincide():
    other = regular(0, 5) * 0.43
    assert match(regular(0, 5), other, ahead_ns=0, same_clock=True) == (
        0,
        MatchedBy.ORDER,
    )


def test_equally_many_steps_that_are_all_alike_are_taken_to_begin_together():
    assert match(regular(0, 5), regular(0, 5)) == (0, MatchedBy.ORDER)


def test_different_numbers_of_steps_that_are_all_alike_cannot_be_matched():
    assert match(regular(0, 5), regular(0, 4)) == (0, MatchedBy.NONE)


def test_one_common_step_is_too_little_without_clocks():
    ends = job(16)
    assert match(rank(ends, 0, 4), rank(ends, 3, 7, seed=2)) == (0, MatchedBy.NONE)


def test_one_common_step_is_enough_with_clocks():
    ends = job(16)
    by, _ = match(
        rank(ends, 0, 4), rank(ends, 3, 7, clock_ns=0.05 * STEP_NS, seed=2), ahead_ns=0
    )
    assert by == 3


def test_windows_without_a_common_step_are_not_matched():
    ends = job(16)
    assert match(rank(ends, 0, 5), rank(ends, 8, 13, seed=2)) == (0, MatchedBy.NONE)


def test_ranks_that_do_not_communicate_need_no_match():
    assert match(np.empty((5, 0)), np.empty((4, 0))) == (0, MatchedBy.ORDER)
