"""Interval sets against a bitmap of whole numbers, where every operation is obvious."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgle.trace.intervals import (
    Intervals,
    complement,
    covered,
    join,
    overlap,
    union,
    without,
)

SIZE = 40
PAIRS = st.lists(st.tuples(st.integers(0, SIZE), st.integers(0, SIZE)), max_size=12)


def make(pairs: list[tuple[int, int]]) -> Intervals:
    return union([a for a, _ in pairs], [b for _, b in pairs])


def bitmap(pairs: list[tuple[int, int]]) -> np.ndarray:
    bits = np.zeros(SIZE, dtype=bool)
    for a, b in pairs:
        bits[a:b] = True
    return bits


@given(PAIRS)
def test_a_union_measures_what_the_bitmap_counts(pairs: list[tuple[int, int]]) -> None:
    assert make(pairs).length == bitmap(pairs).sum()


@given(PAIRS)
def test_a_union_is_ordered_and_disjoint(pairs: list[tuple[int, int]]) -> None:
    found = make(pairs)
    assert (found.end > found.start).all()
    assert (found.start[1:] > found.end[:-1]).all()


@given(PAIRS, PAIRS)
def test_overlap_and_join_count_the_same_bits(
    a: list[tuple[int, int]], b: list[tuple[int, int]]
) -> None:
    assert overlap(make(a), make(b)) == (bitmap(a) & bitmap(b)).sum()
    assert join(make(a), make(b)).length == (bitmap(a) | bitmap(b)).sum()


@given(PAIRS, PAIRS)
def test_covered_is_per_interval(
    cover: list[tuple[int, int]], some: list[tuple[int, int]]
) -> None:
    some = [(a, b) for a, b in some if a <= b]
    expected = [bitmap(cover)[a:b].sum() for a, b in some]
    assert (
        covered(make(cover), [a for a, _ in some], [b for _, b in some]).tolist()
        == expected
    )


@given(PAIRS, PAIRS)
def test_without_takes_bits_away(
    a: list[tuple[int, int]], b: list[tuple[int, int]]
) -> None:
    rest = without(make(a), make(b))
    assert rest.length == (bitmap(a) & ~bitmap(b)).sum()
    assert overlap(rest, make(b)) == 0


@given(PAIRS)
def test_a_set_and_its_complement_fill_the_window(pairs: list[tuple[int, int]]) -> None:
    inside = make(pairs)
    rest = complement(inside, 0, SIZE)
    assert rest.length + inside.length == SIZE
    assert overlap(inside, rest) == 0


def test_touching_intervals_become_one() -> None:
    assert len(union([0.0, 1.0], [1.0, 2.0])) == 1
    assert union([0.0, 1.0], [1.0, 2.0]).length == pytest.approx(2.0)
