from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgle.trace import columns
from pgle.trace.columns import GrowingColumn, distinct, median, narrow, occurrences


@given(
    st.lists(st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(-(2**16), 2**16)))
)
def test_a_column_is_its_batches_one_after_the_other(batches: list[list[int]]) -> None:
    with (
        pytest.MonkeyPatch.context() as patch
    ):  # blocks of four values, so that batches cross them
        patch.setattr(columns, "BLOCK_BYTES", 16)
        patch.setattr(columns, "MANY", 3)
        grown = GrowingColumn(np.int16)
        for batch in batches:
            grown.append(np.array(batch, np.int64))
        assert len(grown) == sum(map(len, batches))
        joined = grown.join()
    assert joined.dtype == narrow(np.array([0, *joined.tolist()])).dtype
    assert joined.tolist() == [value for batch in batches for value in batch]
    assert len(grown) == 0


@pytest.mark.parametrize(
    ("value", "size"), [(32767, 2), (-32768, 2), (32768, 4), (-(2**31), 4), (2**31, 8)]
)
def test_integers_are_kept_in_as_few_bytes_as_hold_them(value: int, size: int) -> None:
    found = narrow(np.array([0, value]))
    assert (found.itemsize, found.tolist()) == (size, [0, value])


@pytest.mark.parametrize("values", [[], [3], [2, 1, 2, -5], [1.5, 0.25]])
def test_distinct_values_are_those_of_numpy(values: list[float]) -> None:
    assert distinct(np.array(values)).tolist() == np.unique(np.array(values)).tolist()


@pytest.mark.parametrize("values", [[3], [4, 1], [9, 2, 5], [0.1, 0.2, 0.7, 0.3]])
def test_the_median_is_that_of_numpy(values: list[float]) -> None:
    assert median(np.array(values)) == np.median(values)


def test_occurrences_count_equal_rows_before_each_one() -> None:
    execution = np.array([1, 0, 1, 1, 0, 1])
    instruction = np.array([7, 7, 7, 3, 7, 7])
    assert occurrences(execution, instruction).tolist() == [0, 0, 1, 0, 1, 2]
    assert occurrences(execution[:0], instruction[:0]).tolist() == []
