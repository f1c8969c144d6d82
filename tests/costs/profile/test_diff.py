"""Two profiles compared."""

import pytest

from pgle.costs.profile.value import Cost, CostChange, CostKind, Profile, diff_profiles


def profile_of(*costs: Cost) -> Profile:
    return Profile(costs)


def changes(old: Profile, new: Profile) -> dict[str, CostChange]:
    return {item.name: item.change for item in diff_profiles(old, new).differences}


def test_what_came_went_and_changed():
    old = profile_of(Cost("gone", 1), Cost("kept", 2), Cost("moved", 3))
    new = profile_of(Cost("kept", 2), Cost("moved", 4), Cost("came", 5))
    assert changes(old, new) == {
        "came": CostChange.ADDED,
        "gone": CostChange.REMOVED,
        "kept": CostChange.SAME,
        "moved": CostChange.CHANGED,
    }


def test_the_largest_change_in_time_comes_first():
    old = profile_of(Cost("small", 1), Cost("large", 1000), Cost("gone", 20))
    new = profile_of(Cost("small", 3), Cost("large", 900))
    assert [item.name for item in diff_profiles(old, new).differences] == [
        "large",
        "gone",
        "small",
    ]


@pytest.mark.parametrize(
    "new_us, change", [(103.0, CostChange.NOISE), (110.0, CostChange.CHANGED)]
)
def test_a_change_within_the_dispersion_of_the_samples_is_noise(new_us, change):
    # p10 to p90 is 4 and about 6 µs wide: medians 5 µs apart say nothing
    old = profile_of(Cost("x", 100.0, samples=9, spread=0.04))
    new = profile_of(Cost("x", new_us, samples=9, spread=0.06))
    assert changes(old, new) == {"x": change}


def test_one_sample_knows_no_noise():
    one = profile_of(Cost("x", 100.0, samples=1))
    item = diff_profiles(
        one, profile_of(Cost("x", 101.0, samples=9, spread=0.5))
    ).differences[0]
    assert (item.noise_us, item.change) == (None, CostChange.CHANGED)


def test_another_shape_is_another_instruction():
    old = profile_of(Cost("all-gather-start", 5, opcode="all-gather", shape="f32[8]"))
    item = diff_profiles(
        old,
        profile_of(Cost("all-gather-start", 5, opcode="all-gather", shape="f32[16]")),
    )
    assert item.differences[0].change == CostChange.REPLACED
    assert item.differences[0].was == "all-gather f32[8]"


def test_only_what_xla_takes_is_compared():
    old = profile_of(Cost("x", 1), Cost("x", 5))
    assert changes(old, profile_of(Cost("x", 5))) == {"x": CostChange.SAME}


def test_bare_and_prefixed_names_of_one_module_are_compared_by_name():
    diff = diff_profiles(
        profile_of(Cost("x", 1)), profile_of(Cost("x", 1, fingerprint="f" * 32))
    )
    assert diff.differences[0].change == CostChange.SAME
    assert "by name alone" in diff.warnings[0]


def test_totals_are_by_kind():
    old = profile_of(
        Cost("all-gather-start", 10), Cost("fusion", 20), Cost("while", 30)
    )
    totals = {
        total.kind: (total.old_us, total.new_us)
        for total in diff_profiles(old, profile_of(*old.costs)).totals
    }
    assert totals == {
        CostKind.COMPUTE: (20, 20),
        CostKind.COLLECTIVE: (10, 10),
        CostKind.LOOP: (30, 30),
    }


def test_a_cost_that_is_not_a_number_comes_first():
    old = profile_of(Cost("a", 60), Cost("b", float("nan")))
    assert (
        diff_profiles(old, profile_of(Cost("a", 1e9), Cost("b", 4))).differences[0].name
        == "b"
    )
