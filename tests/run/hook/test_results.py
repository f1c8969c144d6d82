"""What is kept of a large array tells it from another one as the whole array does."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.usefixtures("hook_here")

MANY = 200_001


def apart(one: Any, other: Any) -> float:
    """How far both are apart by what is kept of them."""
    results = importlib.import_module("pgle_hook.results")
    first, second = (results.Result(results.kept(array)) for array in (one, other))
    found: float = first.apart(second)
    return found


@pytest.mark.parametrize("kind", ["random", "constant", "one number"])
def test_a_large_array_differs_as_much_by_its_sums(kind: str) -> None:
    random = np.random.default_rng(0)
    one = random.normal(size=MANY)
    other = one.copy()
    if kind == "random":
        other += 1e-6 * random.normal(size=MANY)
    elif kind == "constant":
        other += 1e-6
    else:
        other[777] += 1e-3
    expected = np.linalg.norm(one - other) / np.linalg.norm(one)
    assert 0.4 * expected < apart(one, other) < 2 * expected


def test_little_is_kept_of_a_large_array() -> None:
    results = importlib.import_module("pgle_hook.results")
    assert results.kept(np.ones(MANY)).size < 5_000
    assert results.kept(np.ones(1_000)).size == 1_000
