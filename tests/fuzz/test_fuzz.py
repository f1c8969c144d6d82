"""Whatever an input holds, a command ends with a result or one line, and leaves the user's files
alone.

`make fuzz` runs 20,000 cases; FUZZ_SEED=N runs one again.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from fuzz import check

pytestmark = pytest.mark.slow

CASES = int(os.environ.get("FUZZ_CASES", "1000"))
FIRST = int(os.environ.get("FUZZ_FIRST", "0"))
TOGETHER = 50


@pytest.mark.parametrize("first", range(FIRST, FIRST + CASES, TOGETHER))
def test_damaged_inputs(first: int, tmp_path: Path) -> None:
    seeds = (
        [int(os.environ["FUZZ_SEED"])]
        if "FUZZ_SEED" in os.environ
        else range(first, first + TOGETHER)
    )
    failures = []
    for seed in seeds:
        try:
            check(seed, tmp_path / str(seed))
        except AssertionError as error:
            failures.append(ascii(str(error)))
    assert not failures, "\n\n".join(failures)
