"""Our distributions against scipy's."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from pgle.steps.methods.distributions import mann_whitney, normal_scores, signed_rank, t_quantile, t_tail

FREEDOM = st.floats(1, 1000) | st.just(math.inf)


@given(st.floats(0.51, 0.99999), FREEDOM)
def test_quantiles_of_t(probability: float, freedom: float) -> None:
    # scipy itself is only so exact between whole degrees of freedom
    assert t_quantile(probability, freedom) == pytest.approx(stats.t.ppf(probability, freedom), rel=1e-12)


@pytest.mark.parametrize("freedom", [1, 2, 3, 5, 9, 10, 18])
@pytest.mark.parametrize("probability", [0.8, 0.95, 0.975, 0.995])
def test_quantiles_of_t_that_tables_have(probability: float, freedom: int) -> None:
    assert t_quantile(probability, freedom) == pytest.approx(stats.t.ppf(probability, freedom), rel=2e-15)


@given(st.just(0.0) | st.floats(0.01, 50), FREEDOM)
def test_tails_of_t(t: float, freedom: float) -> None:
    # scipy loses digits near 0: at 1e-6 and one degree of freedom it is 1.4e-11 off
    assert t_tail(t, freedom) == pytest.approx(stats.t.sf(t, freedom), rel=1e-12)


def test_the_tail_of_one_degree_of_freedom_is_the_arc_tangent() -> None:
    for t in (1e-6, 0.003, 3.0):
        assert t_tail(t, 1) == pytest.approx(0.5 - math.atan(t) / math.pi, rel=1e-15)


@given(st.lists(st.integers(-9, 9), min_size=2, max_size=20), st.lists(st.integers(-9, 9), min_size=2, max_size=20))
def test_mann_whitney(base: list[int], new: list[int]) -> None:
    one, two = np.array(base, float), np.array(new, float)
    if np.ptp(np.concatenate([one, two])):
        assert mann_whitney(one, two)[0] == pytest.approx(stats.mannwhitneyu(one, two).pvalue, abs=3e-16)


@pytest.mark.parametrize(("n", "m"), [(2, 2), (4, 4), (8, 8), (3, 30), (10, 10), (40, 9)])
def test_mann_whitney_without_ties(n: int, m: int) -> None:
    one, two = np.random.default_rng(n).normal(0, 1, n), np.random.default_rng(m + 1).normal(0.5, 1, m)
    assert mann_whitney(one, two)[0] == pytest.approx(stats.mannwhitneyu(one, two).pvalue, rel=1e-15)


def test_mann_whitney_is_exact_for_few() -> None:
    assert mann_whitney(np.array([1.0, 2, 3, 4]), np.array([5.0, 6, 7, 8])) == (pytest.approx(2 / 70), 2 / 70)


@pytest.mark.parametrize("count", [2, 3, 6, 12, 30, 50])
def test_signed_ranks(count: int) -> None:
    differences = np.random.default_rng(count).normal(0.3, 1, count)
    assert signed_rank(differences)[0] == pytest.approx(stats.wilcoxon(differences).pvalue, abs=2e-16)


def test_signed_ranks_with_ties_are_counted_out_as_scipys_permutations() -> None:
    differences = np.array([0.1, 0.1, -0.2, 0.3, 0.3, 0.3, -0.1])
    assert signed_rank(differences)[0] == pytest.approx(stats.wilcoxon(differences).pvalue, abs=2e-16)


def test_normal_scores() -> None:
    values = np.array([3.0, 1.0, 1.0, 2.0, -5.0])
    reference = stats.norm.ppf((stats.rankdata(values) - 0.5) / len(values))
    assert normal_scores(values) == pytest.approx(reference, abs=1e-15)
