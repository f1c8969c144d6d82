from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgle.trace import column
from pgle.trace.column import Column, distinct, median


@given(st.lists(st.lists(st.integers(-(2**31), 2**31 - 1))))
def test_a_column_is_its_batches_one_after_the_other(batches: list[list[int]]) -> None:
    with pytest.MonkeyPatch.context() as patch:  # blocks of four values, so that batches cross them
        patch.setattr(column, "BLOCK_BYTES", 16)
        patch.setattr(column, "MANY", 3)
        grown = Column(np.int32)
        for batch in batches:
            grown.append(np.array(batch, np.int64))
        assert len(grown) == sum(map(len, batches))
        joined = grown.join()
    assert joined.dtype == np.int32
    assert joined.tolist() == [value for batch in batches for value in batch]
    assert len(grown) == 0


@pytest.mark.parametrize("values", [[], [3], [2, 1, 2, -5], [1.5, 0.25]])
def test_distinct_values_are_those_of_numpy(values: list[float]) -> None:
    assert distinct(np.array(values)).tolist() == np.unique(np.array(values)).tolist()


@pytest.mark.parametrize("values", [[3], [4, 1], [9, 2, 5], [0.1, 0.2, 0.7, 0.3]])
def test_the_median_is_that_of_numpy(values: list[float]) -> None:
    assert median(np.array(values)) == np.median(values)
