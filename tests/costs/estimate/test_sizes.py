"""The range of a step at another number of devices, from published programs."""

from math import exp

import pytest

from pgle.costs.estimate.unknown import growth, published, size_spread
from pgle.errors import UserError


def test_the_same_size_has_no_spread() -> None:
    assert size_spread(64, 64) == (1, 1)


def test_a_range_widens_with_the_distance_and_holds_one() -> None:
    ranges = [size_spread(8, devices) for devices in (16, 64, 512, 2048)]
    assert all(low < 1 < high for low, high in ranges)
    assert ranges == sorted(ranges, key=lambda ends: ends[1] - ends[0])


def test_there_and_back_are_inverse() -> None:
    low, high = size_spread(8, 128)
    assert size_spread(128, 8) == pytest.approx((1 / high, 1 / low))


def test_each_held_out_series_but_fp8_llama2_lies_in_the_range_of_the_others() -> None:
    missed = {
        name
        for name, rows in growth().items()
        for doublings, rise in rows
        if not size_spread(1, 2 ** int(doublings), without=[name])[0]
        <= exp(rise)
        <= size_spread(1, 2 ** int(doublings), without=[name])[1]
    }
    assert missed == {"MaxText llama2-70b fp8"}


def test_every_row_names_its_source() -> None:
    assert len(published()) == 31
    assert all("/" in row.source for row in published())


def test_no_devices_are_refused() -> None:
    with pytest.raises(UserError, match="positive"):
        size_spread(0, 8)
