"""Collectives in groups: a few sums hold what a list of a hundred instances hides."""

from __future__ import annotations

from pgle.report.schedules import exposed_notes
from pgle.schedule.placements import (
    NOTHING_INDEPENDENT,
    Move,
    Placement,
    groups,
    in_one,
)


def placed(
    name: str,
    kind: str,
    exposed_us: float,
    *,
    sync: bool = True,
    independent_us: float = 1e3,
) -> Placement:
    return Placement(name, kind, sync, 0, 0.0, 200.0, exposed_us, independent_us)


GATHERS = [placed(f"all-gather.{n}", "all-gather", 158.0) for n in range(72)]
SCATTERS = [
    placed(f"reduce-scatter.{n}", "reduce-scatter", 190.0, independent_us=0.0)
    for n in range(48)
]
HIDDEN = [placed(f"all-reduce.{n}", "all-reduce", 2.0, sync=False) for n in range(8)]
STEP = [*GATHERS, *SCATTERS, *HIDDEN]


def test_a_step_of_128_collectives_has_two_lines() -> None:
    lines = exposed_notes(in_one(STEP), 55_990.0)
    assert lines == (
        "exposed (the GPU waits, nothing computes); others (8): 16 µs:",
        "  all-gather ×72: 11.38 ms (20.3 %); nothing is scheduled next to it",
        f"  reduce-scatter ×48: 9.12 ms (16.3 %); {NOTHING_INDEPENDENT}",
    )


def test_two_groups_hold_the_exposed_time_of_all() -> None:
    found = in_one(STEP)
    assert sum(group.exposed_us for group in STEP) == sum(
        group.after_us for group in found
    )
    assert sum(group.count for group in found) == len(STEP)
    assert sum(group.after_us for group in found[:2]) > 0.95 * sum(
        item.exposed_us for item in STEP
    )


def test_what_the_second_schedule_hides_keeps_the_reason_of_the_first() -> None:
    before, after = (
        placed("a", "all-gather", 190.0),
        placed("a", "all-gather", 0.0, sync=False),
    )
    (group,) = groups([Move("a", before, after)])
    assert (group.why, group.is_left) == ("nothing is scheduled next to it", False)
    assert exposed_notes([group], 1000.0)[1:] == (
        "  all-gather ×1: 190 µs → – (19.0 %); was: nothing is scheduled next to it",
    )


def test_a_collective_that_a_schedule_does_not_have_counts_nothing_there() -> None:
    (group,) = groups([Move("new", None, placed("new", "all-gather", 50.0))])
    assert (group.before_us, group.after_us, group.count) == (0.0, 50.0, 1)
