"""Execution numbers of profiles, by what each keeps of when its collectives ended."""

import pytest

from pgle.costs.profile.align import align_profiles
from pgle.costs.profile.cost_table import collect
from pgle.costs.profile.merge import MergeOptions, Of, merge_profiles
from pgle.costs.profile.value import Cost, CostKind, Ends, Profile

STEPS_MS = (0, 131, 257, 391, 510, 652, 789)
"""When steps of a job begin."""

WITHIN_MS = (5, 40, 77, 120)
"""When the collectives of a step end."""

NAMES = ("all-gather", "reduce-scatter", "all-reduce", "all-reduce.1")
FIRST, SECOND = "a" * 32, "b" * 32


def ends(first, last, *, clock_ms=0, columns=tuple((name, 0) for name in NAMES), number=0):
    """What a rank that recorded the steps from `first` on keeps, its first execution having that number."""
    rows = [[(step + clock_ms + end) * 1_000_000 for end in WITHIN_MS] for step in STEPS_MS[first:last]]
    return Ends("jit_step", columns, tuple(tuple(row[: len(columns)]) for row in rows), first=number)


def profile(*windows, fingerprint="", cost_us=10.0, executions=4):
    """A rank on which the gather takes `cost_us` and its number in the window more, in µs."""
    cost = Cost("all-gather", cost_us, fingerprint=fingerprint, kind=CostKind.COLLECTIVE, samples=executions)
    table = {f"{number}.0": cost_us + number for number in range(executions)}
    return Profile((cost,), {}, (), {cost.full_name: table}, {fingerprint: windows} if windows else {})


def aligned(*profiles):
    return align_profiles(collect([(f"rank{number}", one) for number, one in enumerate(profiles)])[1])


def executions(found, count=4):
    """What the first executions of each input are called in all."""
    return [[number + by.get("", 0) for number in range(count)] for by in found.shifts]


def test_numbers_move_to_where_ends_are_apart_by_one_constant():
    found = aligned(profile(ends(0, 4)), profile(ends(2, 6, clock_ms=7000)), profile(ends(1, 5, clock_ms=30)))
    assert executions(found) == [[0, 1, 2, 3], [2, 3, 4, 5], [1, 2, 3, 4]]
    assert found.warnings == (
        "jit_step: ranks begin up to 2 apart, matched by when their collectives end; trace the same steps on all",
    )


def test_the_first_input_may_have_begun_last():
    found = aligned(profile(ends(2, 6)), profile(ends(0, 4)))
    assert executions(found) == [[2, 3, 4, 5], [0, 1, 2, 3]]


def test_windows_that_begin_together_need_no_word():
    found = aligned(profile(ends(1, 5)), profile(ends(1, 5, clock_ms=90)))
    assert (executions(found), found.warnings) == ([[0, 1, 2, 3]] * 2, ())


def test_numbers_of_an_earlier_merge_are_taken_as_they_are():
    found = aligned(profile(ends(2, 6, number=1)), profile(ends(1, 5)))
    assert executions(found) == [[0, 1, 2, 3], [0, 1, 2, 3]]
    found = aligned(profile(ends(1, 5, number=2)), profile(ends(1, 5)))
    assert executions(found) == [[0, 1, 2, 3], [2, 3, 4, 5]]
    assert found.warnings == ()


def test_each_module_is_matched_by_itself():
    found = aligned(
        profile(ends(0, 4), fingerprint=FIRST),
        profile(ends(0, 4), fingerprint=SECOND),
        profile(ends(1, 5), fingerprint=FIRST),
        profile(ends(0, 4), fingerprint=SECOND),
    )
    assert list(map(dict, found.shifts)) == [{FIRST: 0}, {SECOND: 0}, {FIRST: 1}, {SECOND: 0}]


def test_only_common_replica_groups_are_compared():
    other_group = (*((name, 1) for name in NAMES[:3]), (NAMES[3], 0))
    found = aligned(profile(ends(0, 5)), profile(ends(1, 6, columns=other_group)))
    assert executions(found) == [[0, 1, 2, 3], [1, 2, 3, 4]]


def test_one_process_speaks_for_all_that_take_part_in_the_same_collectives():
    other_group = tuple((name, 1) for name in NAMES)
    found = aligned(*(profile(ends(0, 4)) for _ in range(3)), profile(ends(0, 4, columns=other_group)))
    assert [len({group for _, group in one.columns}) for one in found.ends[""]] == [1, 1]


@pytest.mark.parametrize("known", [0, 1])
def test_inputs_that_do_not_say_when_collectives_ended_are_matched_by_order_with_a_word(known):
    found = aligned(*(profile(ends(0, 4)) for _ in range(known)), *(profile() for _ in range(2)))
    assert executions(found) == [[0, 1, 2, 3]] * (known + 2)
    (line,) = found.warnings
    assert line.startswith(f"2 of {known + 2} inputs do not say when their collectives ended (first rank{known})")


def test_a_lone_input_is_compared_with_none():
    assert aligned(profile()).warnings == ()
    assert aligned(profile(fingerprint=FIRST), profile(fingerprint=SECOND)).warnings == ()


def test_windows_of_steps_that_nothing_tells_apart_are_said():
    alike = [Ends("jit_step", (("all-gather", 0),), tuple((at * 1000,) for at in range(size))) for size in (5, 4)]
    found = aligned(*(profile(one) for one in alike))
    assert found.warnings == (
        "jit_step: ranks recorded 4 to 5 executions, nothing tells with which execution rank1 began, taken to begin "
        "with the same one; trace the same steps on all",
    )


def test_runs_are_not_laid_on_each_other():
    inputs = [("monday", profile(ends(0, 4))), ("tuesday", profile(ends(1, 5)))]
    merged = merge_profiles(inputs, MergeOptions(of=Of.RUNS))
    assert not merged.profile.ends
    assert not any("begin" in line for line in merged.warnings)


def test_a_merged_profile_can_be_merged_again():
    ranks = [profile(ends(first, first + 4), cost_us=cost) for first, cost in ((1, 30.0), (0, 50.0), (2, 20.0))]
    both = merge_profiles([("a", ranks[0]), ("b", ranks[1])]).profile
    assert both.occurrences == {"all-gather": {"1.0": 30.0, "2.0": 31.0, "3.0": 32.0}}
    in_turn, at_once = (
        merge_profiles(inputs).profile.occurrences
        for inputs in ([("ab", both), ("c", ranks[2])], list(zip("abc", ranks, strict=True)))
    )
    assert in_turn == at_once == {"all-gather": {"2.0": 20.0, "3.0": 21.0}}
