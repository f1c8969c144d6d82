"""Ranks and the Mann-Whitney test, against scipy's."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from pgle.steps.rank_test import mann_whitney_p, ranks

few_values = st.lists(st.integers(0, 30).map(float), min_size=1, max_size=30).map(np.array)


@given(few_values)
def test_ranks_are_scipys(values: np.ndarray) -> None:
    assert ranks(values).tolist() == stats.rankdata(values).tolist()


@given(few_values, few_values)
def test_p_is_scipys_with_ties(one: np.ndarray, two: np.ndarray) -> None:
    if len(np.unique(np.concatenate([one, two]))) > 1:
        assert mann_whitney_p(one, two) == pytest.approx(stats.mannwhitneyu(one, two).pvalue, rel=1e-9)


@pytest.mark.parametrize("sizes", [(1, 1), (2, 3), (4, 4), (8, 20), (20, 8), (3, 200), (9, 9), (40, 15)])
@pytest.mark.parametrize("shift", [0.0, 0.7, 3.0])
def test_p_is_scipys_without_ties(sizes: tuple[int, int], shift: float) -> None:
    random = np.random.default_rng(7)
    one, two = random.normal(size=sizes[0]), random.normal(shift, size=sizes[1])
    assert mann_whitney_p(one, two) == pytest.approx(stats.mannwhitneyu(one, two).pvalue, rel=1e-9)


def test_p_by_hand() -> None:
    # Of the 20 orders of three and three, one has U = 0 and one U = 9.
    assert mann_whitney_p(np.array([1.0, 2.0, 3.0]), np.array([4.0, 5.0, 6.0])) == pytest.approx(2 / 20)
