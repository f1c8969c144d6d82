"""What a search for flags could reach."""

from __future__ import annotations

from pgle.account.parts_and_bounds import (
    PlacedCollective,
    reach_of_flags_us,
    search_for_flags,
)
from pgle.account.value import Basis


def stuck(kind: str, us: float, count: float = 1.0) -> PlacedCollective:
    return PlacedCollective(kind, us, count, is_stuck=True)


def free(kind: str, us: float) -> PlacedCollective:
    return PlacedCollective(kind, us, 1.0, is_stuck=False)


def test_flags_cannot_hide_the_only_collective_of_its_kind_that_all_compute_waits_for() -> (
    None
):
    found = [stuck("all-reduce", 50.0), free("all-gather", 20.0)]
    assert reach_of_flags_us(found) == 20.0


def test_flags_combine_collectives_of_a_kind_even_with_one_that_is_hidden() -> None:
    found = [stuck("all-reduce", 50.0), stuck("all-reduce", 0.0)]
    assert reach_of_flags_us(found) == 50.0


def test_flags_split_a_collective_that_xla_has_combined() -> None:
    combined = PlacedCollective("all-reduce", 50.0, 1.0, is_stuck=True, arrays=3)
    assert reach_of_flags_us([combined]) == 50.0


def test_flags_pipeline_a_collective_of_a_loop() -> None:
    assert reach_of_flags_us([stuck("all-reduce", 50.0, count=4.0)]) == 50.0


def test_no_search_is_proposed_where_flags_reach_nothing() -> None:
    assert search_for_flags(0.0, 50.0, Basis.ESTIMATED, None) == ()


def test_a_search_saves_no_more_than_what_is_exposed() -> None:
    (found,) = search_for_flags(70.0, 50.0, Basis.ESTIMATED, None)
    assert found.most_us == 50.0


def test_what_no_flag_can_hide_is_the_rest_of_the_exposed_communication() -> None:
    (found,) = search_for_flags(30.0, 50.0, Basis.ESTIMATED, None)
    assert "the rest of the exposed communication runs once" in found.why


def test_a_sum_in_whole_nanoseconds_is_the_same_reach() -> None:
    exact, traced = (
        search_for_flags(us, 72.9816, Basis.ESTIMATED, None)
        for us in (72.9815999999, 72.981)
    )
    assert exact[0].why == traced[0].why


def test_waits_for_other_ranks_are_exposed_and_no_flag_hides_them() -> None:
    (found,) = search_for_flags(
        50.0, 50.0, Basis.MEASURED, None, has_waits=True
    )  # of 60.0 exposed
    assert "without waits" in found.why
