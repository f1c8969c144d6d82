"""The last value that fits, found by bisection."""

from __future__ import annotations

from collections.abc import Generator

import pytest

from pgle.scale.answer import ScaleRow
from pgle.scale.plan import SizeTrial, fitting, trials

BATCHES = ["1", "2", "4", "8", "16"]


def tried(
    group: Generator[SizeTrial, ScaleRow, ScaleRow], most: int
) -> tuple[list[str], ScaleRow]:
    """The values that are tried, and the row at the end, if `most` is the last that fits into 20
    bytes.
    """
    asked, trial = [], next(group)
    while True:
        value = dict(trial.values)["batch"]
        asked.append(value)
        need = 20 if int(value) <= most else 21
        try:
            trial = group.send(
                ScaleRow(
                    8, {"batch": value}, step_us=1, memory_bytes=need, limit_bytes=20
                )
            )
        except StopIteration as end:
            return asked, end.value


@pytest.mark.parametrize("most", [1, 2, 4, 8, 16])
def test_the_last_that_fits_is_found(most: int) -> None:
    asked, row = tried(fitting(trials([8], 8, {"batch": BATCHES}), "batch")[0], most)
    assert row.values == {"batch": str(most)}
    assert row.fits
    assert set(asked) == set(row.tried)


def test_most_programs_fit_so_the_last_value_comes_first() -> None:
    assert tried(fitting(trials([8], 8, {"batch": BATCHES}), "batch")[0], 16)[0] == [
        "16"
    ]


def test_where_nothing_fits_the_first_value_is_shown() -> None:
    asked, row = tried(fitting(trials([8], 8, {"batch": BATCHES}), "batch")[0], 0)
    assert (row.values, row.fits, len(asked)) == ({"batch": "1"}, False, 4)


def test_a_value_that_the_program_refuses_does_not_fit() -> None:
    group = fitting(trials([8], 8, {"batch": ["1", "3"]}), "batch")[0]
    assert dict(next(group).values) == {"batch": "3"}
    assert dict(group.send(ScaleRow(8, failure="indivisible")).values) == {"batch": "1"}
    with pytest.raises(StopIteration) as end:
        group.send(ScaleRow(8, {"batch": "1"}, step_us=1, memory_bytes=1))
    assert end.value.value.values == {"batch": "1"}


def test_every_size_and_other_value_is_a_group_of_its_own() -> None:
    assert (
        len(
            fitting(trials([8, 64], 8, {"mesh": ["a", "b"], "batch": BATCHES}), "batch")
        )
        == 4
    )
