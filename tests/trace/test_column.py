from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgle.trace import column
from pgle.trace.column import Column


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
