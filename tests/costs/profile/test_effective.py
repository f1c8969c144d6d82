"""What XLA takes from a profile; `test_profile_against_xla.py` holds the same rules against the
compiler.
"""

from pathlib import Path

import pytest

from pgle.costs.profile.files import decode_profile, read_profile
from pgle.costs.profile.value import (
    Fault,
    Profile,
    effective_costs,
    effective_entries,
    profile_findings,
)

FP = "0123456789abcdef0123456789abcdef"


def profile_of(*entries: tuple[str, float]) -> Profile:
    text = "".join(
        f'costs {{ name: "{name}" cost_us: {cost_us} }}\n' for name, cost_us in entries
    )
    return decode_profile(text.encode(), Path("x.pbtxt"))


def table(profile: Profile, fingerprint: str = "") -> dict[str, float]:
    return {
        name: cost.cost_us
        for name, cost in effective_costs(profile, fingerprint).items()
    }


def found(
    profile: Profile, fault: Fault
) -> list[tuple[str, tuple[float, ...], float | None]]:
    return [
        (f.name, f.values_us, f.effective_us)
        for f in profile_findings(profile)
        if f.fault == fault
    ]


@pytest.mark.parametrize(
    "entries, effective",
    [
        ([("a", 1), ("b", 5), ("a", 3)], {"a": 3, "b": 5}),
        ([("a", 10), ("a.remat", 20), ("a.remat3", 60)], {"a": 30}),
        ([("a", 1), ("a", 3), ("b.remat", 9)], {"a": 2, "b": 9}),
        (
            [("a.remat.1", 1), ("b.rematX", 2), ("c.remat2.remat", 3)],
            {"a.remat.1": 1, "b.rematX": 2, "c.remat2": 3},
        ),
        ([(f"{FP}::a", 9), ("b", 1)], {"a": 9, "b": 1}),
        ([(f"{FP}::a", 9), ("a", 7)], {"a": 7}),
        ([("f" * 32 + "::a", 9)], {}),
        ([(f"{FP}::x::a", 9)], {}),
    ],
)
def test_costs_of_a_module(entries, effective):
    assert table(profile_of(*entries), FP) == effective


def test_without_fingerprint_only_bare_names_count():
    assert table(profile_of((f"{FP}::a", 9), ("b", 1))) == {"b": 1}


def test_a_remat_name_of_another_module_does_not_make_xla_average():
    assert table(profile_of(("a", 1), ("a", 3), (f"{FP}::b.remat", 9))) == {"a": 3}


def test_entries_hold_each_usable_cost_once():
    costs = effective_entries(
        profile_of(("a", 1), (f"{FP}::a", 2), ("a", 3), ("x::y::z", 4))
    )
    assert [(cost.full_name, cost.cost_us) for cost in costs] == [
        ("a", 3),
        (f"{FP}::a", 2),
    ]


def test_duplicates_are_found_with_the_effective_value():
    assert found(profile_of(("a", 1), ("a", 3), ("b", 1)), Fault.DUPLICATE) == [
        ("a", (1, 3), 3)
    ]


def test_a_bare_and_a_prefixed_cost_are_duplicates_for_that_module():
    assert found(profile_of((f"{FP}::a", 9), ("a", 7)), Fault.DUPLICATE) == [
        (f"{FP}::a", (9, 7), 7)
    ]


def test_what_remat_averages_is_found():
    named = [
        item
        for item in found(profile_of(("a", 10), ("a.remat", 30), ("b", 1)), Fault.REMAT)
        if item[0]
    ]
    assert named == [("a", (10, 30), 20)]


@pytest.mark.parametrize(
    "name, cost_us, fault",
    [
        ("a", "nan", Fault.NOT_FINITE),
        ("a", "inf", Fault.NOT_FINITE),
        ("a", -5, Fault.NEGATIVE),
        ("a", 0, Fault.ZERO),
        ("%a", 1, Fault.NAME),
        (" a", 1, Fault.NAME),
        ("", 1, Fault.NAME),
        ("a::b::c", 1, Fault.NAME),
        ("all-gather-done.1", 1, Fault.DONE),
        ("while.3", 1, Fault.LOOP),
    ],
)
def test_odd_costs_and_names_are_found(name, cost_us, fault):
    assert [item.fault for item in profile_findings(profile_of((name, cost_us)))] == [
        fault
    ]


def test_a_sound_profile_has_no_findings():
    assert (
        profile_findings(
            profile_of(
                ("all-gather-start", 3), ("loop_fusion", 500), ("gemm_fusion_dot.1", 4)
            )
        )
        == ()
    )


def test_the_loop_of_a_published_profile_costs_xla_a_microsecond(testdata):
    # 62 costs of one loop, from 1 µs to 16 ms, of which XLA takes the last: what a converter
    # without module and thunk ranges makes of a loop whose body it also lists
    profile = read_profile(testdata / "maxtext_pgle/llama2_70b_bf16_pgle_128vm.pbtxt")
    duplicates = {
        item.name: item
        for item in profile_findings(profile)
        if item.fault == Fault.DUPLICATE
    }
    assert len(duplicates) == 19
    assert len(duplicates["while.6.0"].values_us) == 62
    assert (
        duplicates["while.6.0"].effective_us
        == effective_costs(profile)["while.6.0"].cost_us
        == 1.056
    )
