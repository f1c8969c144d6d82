"""Efficiency, where a program breaks and what breaks it, ranges, a measured step: on rows a person
can read.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from pgle.scale.answer import Exposed, ScaleRow, answer


def row(
    devices: int, step_us: float, exposed_us: float = 0.0, **more: object
) -> ScaleRow:
    reduced = Exposed(
        "all-reduce",
        devices,
        max(devices // 8, 1),
        "network",
        exposed_us,
        exposed_us,
        1,
    )
    plain = ScaleRow(
        devices, step_us=step_us, least_us=0.95 * step_us, most_us=1.2 * step_us, compute_us=step_us - exposed_us,
        exposed_us=exposed_us, by_collective=(reduced,), operations=1e9, memory_bytes=10, limit_bytes=20,
    )  # fmt: skip
    return replace(plain, **more)


def test_it_breaks_where_a_tenth_of_the_work_is_lost_and_the_collective_is_named() -> (
    None
):
    found = answer([row(8, 100), row(64, 104, 4), row(512, 125, 25)])
    assert found.scales_to == 64
    assert found.breaks is not None
    assert (found.breaks.row.devices, found.breaks.efficiency) == (
        512,
        pytest.approx(0.8),
    )
    assert found.culprit is not None
    assert (found.culprit.kind, found.culprit.hosts, found.culprit_share) == (
        "all-reduce",
        64,
        pytest.approx(0.2),
    )


def test_the_collective_that_breaks_it_is_the_one_exposed_most_in_its_row() -> None:
    gathered = Exposed("all-gather", 64, 8, "network", 18.0, 18.0, 1)
    reduced = Exposed("reduce-scatter", 64, 8, "network", 7.0, 7.0, 1)
    before = Exposed("all-gather", 8, 1, "NVLink", 12.0, 12.0, 1)
    found = answer(
        [
            row(8, 100, 12, by_collective=(before,)),
            row(64, 125, 25, by_collective=(gathered, reduced)),
        ]
    )
    assert found.breaks is not None
    assert found.culprit == found.breaks.row.most_exposed == gathered
    assert found.culprit_share == pytest.approx(18 / 125)


def test_half_the_work_in_half_the_time_is_as_efficient() -> None:
    found = answer([row(8, 100), row(16, 50, operations=5e8)])
    assert [item.efficiency for item in found.rows] == [1, 1]
    assert found.breaks is None


def test_ranges_widen_with_size() -> None:
    found = answer([row(8, 100), row(64, 100), row(512, 100)])
    wide = [item.interval_us[1] - item.interval_us[0] for item in found.rows]
    assert wide == sorted(wide)
    assert found.rows[0].efficiency_range == (1, 1)
    assert found.rows[2].efficiency_range[0] < found.rows[1].efficiency_range[0] < 1


def test_a_measured_step_multiplies_and_the_range_holds_the_sum_too() -> None:
    found = answer([row(8, 100), row(64, 150)], {8: 120})
    assert [item.step_us for item in found.rows] == [
        pytest.approx(120),
        pytest.approx(180),
    ]
    assert found.rows[1].interval_us[0] < 150 + 20 < found.rows[1].interval_us[1]
    assert found.rows[0].interval_us == (pytest.approx(120), pytest.approx(120))


def test_a_step_measured_where_none_is_predicted_moves_nothing() -> None:
    found = answer([row(8, 100), ScaleRow(16, failure="no")], {16: 120})
    assert (found.anchor, found.rows[0].step_us) == (None, 100)


def test_the_smallest_size_is_compared_with_in_whatever_order_they_come() -> None:
    found = answer([row(64, 140, 40), row(8, 100)])
    assert [item.row.devices for item in found.rows] == [8, 64]
    assert found.scales_to == 8


def test_what_grew_most_is_not_always_communication() -> None:
    assert answer([row(8, 100), row(64, 125, 25)]).grows == "exposed communication"
    assert answer([row(8, 100, 1), row(64, 150, 2)]).grows == "compute"


def test_a_size_without_a_step_is_a_row_and_not_the_end() -> None:
    found = answer(
        [
            ScaleRow(3, failure="batch 8 is not divisible by 3"),
            row(8, 100),
            row(16, 101),
        ]
    )
    assert found.rows[0].efficiency is None
    assert found.first is found.rows[1]
    assert (found.good, found.scales_to) == (True, 16)


def test_nothing_that_fits_is_no_good() -> None:
    assert not answer([row(8, 100, memory_bytes=30)]).good
    assert not answer([ScaleRow(8, failure="no")]).good


def test_the_variant_that_does_most_work_at_the_largest_size_is_judged() -> None:
    rows = [row(8, 100, values={"mesh": "a"}), row(8, 101, values={"mesh": "b"}),
            row(64, 150, values={"mesh": "a"}), row(64, 105, values={"mesh": "b"})]  # fmt: skip
    found = answer(rows)
    assert [item.row.values["mesh"] for item in found.best] == ["b", "b"]
    assert found.breaks is None
