"""The search for flags, on schedules that are made up: what is tried, what is kept, what is
accepted.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from pgle.costs.profile.value import Cost, Profile
from pgle.schedule.predict import Prediction, predict
from pgle.tune.search import (
    MIB,
    Axis,
    Flags,
    Trial,
    axes,
    best,
    by_exposure,
    exposed_by_kind,
    holds_up,
    judge,
    nothing_to_gain,
    search,
    without_one,
)
from pgle.xla.flags.presets import preset
from pgle.xla.hlo.module import Computation, Instruction, Module, Shape

THRESHOLD = "xla_gpu_reduce_scatter_combine_threshold_bytes"
AXIS = Axis(
    "reduce-scatter combined to",
    "reduce-scatter",
    ({THRESHOLD: str(8 * MIB)},),
    THRESHOLD,
)


def step(exposed_us: float) -> Prediction:
    """A product of 1 ms and a gather beside nothing."""
    shape = Shape("bf16", (64, 64))
    x = Instruction("x", "parameter", shape, "e")
    gather = Instruction("g", "all-gather", shape, "e", ("x",))
    gemm = Instruction("d", "dot", shape, "e", ("x", "x"))
    module = Module(
        "m",
        1,
        "",
        "e",
        {"e": Computation("e", (x, gather, gemm), "d")},
        True,
        num_partitions=4,
    )
    return predict(module, Profile((Cost("d", 1000.0), Cost("g", exposed_us))), "h100")


def trial(
    flags: Flags, mean_us: float, temp_bytes: int = 1, exposed_us: float = 300.0
) -> Trial:
    made = step(exposed_us)
    worlds = tuple(mean_us + number for number in range(10))
    return Trial(
        flags,
        str(dict(flags)),
        made.step_us,
        made.exposed_us,
        exposed_by_kind(made),
        worlds,
        temp_bytes,
    )


PGLE = trial({}, 1300.0)
CEILING_US = 1000.0


def bench(
    cost: Callable[[int], float], seen: list[int]
) -> Callable[[Sequence[tuple[Flags, str]]], list[Trial]]:
    def attempt(settings: Sequence[tuple[Flags, str]]) -> list[Trial]:
        found = []
        for flags, _ in settings:
            value = int(flags[THRESHOLD]) // MIB
            seen.append(value)
            found.append(trial(flags, cost(value)))
        return found

    return attempt


def test_a_threshold_is_halved_and_doubled_while_that_helps_then_taken_at_three_quarters() -> (
    None
):
    seen: list[int] = []
    found = search(
        PGLE,
        CEILING_US,
        [AXIS],
        bench(lambda mib: 1000 + 50 * abs(mib - 2), seen),
        budget=20,
    )
    assert seen[:3] == [8, 16, 4]
    assert 2 in seen
    assert best(PGLE, found).flags == {THRESHOLD: str(2 * MIB)}


def test_no_setting_is_tried_twice_and_the_budget_holds() -> None:
    seen: list[int] = []
    search(PGLE, CEILING_US, [AXIS], bench(lambda mib: 1300 - mib, seen), budget=5)
    assert len(seen) == len(set(seen)) == 5


@pytest.mark.parametrize(("shortest_us", "goes_on"), [(1299.0, False), (2000.0, True)])
def test_the_search_ends_at_the_shortest_step_and_not_below_it(
    shortest_us: float, goes_on: bool
) -> None:
    seen: list[Flags] = []

    def attempt(settings: Sequence[tuple[Flags, str]]) -> list[Trial]:
        seen.extend(flags for flags, _ in settings)
        return [
            trial(flags, 1200.0) for flags, _ in settings
        ]  # each takes 1300 µs as costs stand

    two = [Axis(name, "", ({name: "on"},)) for name in "ab"]
    search(PGLE, shortest_us, two, attempt, budget=20)
    assert any("b" in flags for flags in seen) == goes_on


def test_what_a_start_of_several_flags_brought_is_left_out_where_it_does_harm() -> None:
    def attempt(settings: Sequence[tuple[Flags, str]]) -> list[Trial]:
        return [
            trial(flags, 1250.0 - 100 * ("a" in flags) + 50 * ("b" in flags))
            for flags, _ in settings
        ]

    start = Axis("both", "all", ({"a": "on", "b": "on"},))
    alone = [Axis(name, "", ({name: "off"},)) for name in "ab"]
    found = search(PGLE, 100.0, [start, *alone], attempt, budget=20)
    assert best(PGLE, found).flags.keys() == {"a"}


def test_what_does_not_help_is_not_kept() -> None:
    found = search(PGLE, CEILING_US, [AXIS], bench(lambda mib: 1400.0, []), budget=20)
    assert best(PGLE, found) is PGLE


def test_a_setting_that_does_not_compile_is_passed_over() -> None:
    assert best(PGLE, [Trial({"a": "1"}, "a", failure="unknown flag")]) is PGLE


@pytest.mark.parametrize(
    ("after", "accepted"),
    [([90.0] * 20, True), ([90.0] * 17 + [101.0] * 3, False), ([99.7] * 20, False)],
)
def test_accepted_is_what_wins_in_nine_of_ten_worlds_and_by_half_a_per_cent(
    after: list[float], accepted: bool
) -> None:
    assert judge(after, [100.0] * 20).accepted is accepted


@pytest.mark.parametrize(
    ("nominal_us", "accepted"),
    [(1200.0, True), (1293.4, True), (1294.0, False), (1310.0, False)],
)
def test_half_a_per_cent_is_asked_for_by_the_likely_costs_too(
    nominal_us: float, accepted: bool
) -> None:
    before, after = (
        replace(PGLE, step_us=1300.0),
        replace(trial({"a": "1"}, 1200.0), step_us=nominal_us),
    )
    assert holds_up(after, before) is accepted


def test_what_wins_by_the_likely_costs_and_loses_in_the_worlds_is_not_accepted() -> (
    None
):
    after = replace(trial({"a": "1"}, 1200.0), step_us=1000.0)
    assert holds_up(after, PGLE)
    assert not holds_up(
        replace(after, worlds_us=tuple(us + 200 for us in after.worlds_us)), PGLE
    )


def test_a_lower_bound_is_never_accepted() -> None:
    after = replace(trial({"a": "1"}, 1200.0), step_us=1000.0)
    assert holds_up(after, PGLE)
    assert not holds_up(replace(after, lower_bound=True), PGLE)
    assert not holds_up(after, replace(PGLE, lower_bound=True))


def test_a_shortest_step_has_nothing_to_gain() -> None:
    assert nothing_to_gain(step(0.0))
    assert not nothing_to_gain(step(300.0))


def test_what_each_of_two_flags_gives_is_seen_without_it() -> None:
    assert [
        dict(flags)
        for flags, _ in without_one(trial({"a": "1", "b": "2"}, 1.0)).values()
    ] == [
        {"b": "2"},
        {"a": "1"},
    ]
    assert without_one(trial({"a": "1"}, 1.0)) == {}


def test_a_judgement_without_worlds_accepts_nothing() -> None:
    assert not judge((), ()).accepted


def program(*kinds: str, looped: bool = False, size: int = 64) -> Module:
    shape = Shape("bf16", (size, size))
    items = [Instruction("x", "parameter", shape, "b" if looped else "e")]
    items += [
        Instruction(f"c{n}", kind, shape, items[0].computation, ("x",))
        for n, kind in enumerate(kinds)
    ]
    if not looped:
        return Module(
            "m",
            1,
            "",
            "e",
            {"e": Computation("e", tuple(items), items[-1].name)},
            True,
            num_partitions=8,
        )
    given = Instruction("y", "parameter", shape, "e")
    loop = Instruction("w", "while", shape, "e", ("y",), called=("b",))
    body, entry = (
        Computation("b", tuple(items), items[-1].name),
        Computation("e", (given, loop), "w"),
    )
    return Module("m", 1, "", "e", {"e": entry, "b": body}, True, num_partitions=8)


def flags_of(found: Sequence[Axis]) -> set[str]:
    return {flag for axis in found for setting in axis.settings for flag in setting}


def test_thresholds_are_those_of_the_kinds_that_the_program_has_more_than_one_of() -> (
    None
):
    found = flags_of(
        axes(
            program("all-gather", "all-gather", "reduce-scatter", "all-to-all"),
            "0.10.2",
            (),
        )
    )
    assert "xla_gpu_all_gather_combine_threshold_bytes" in found
    assert THRESHOLD not in found


def test_collectives_that_wait_for_each_other_have_no_threshold() -> None:
    shape = Shape("bf16", (64, 64))
    items = [Instruction("c0", "parameter", shape, "e")]
    items += [
        Instruction(f"c{n}", "reduce-scatter", shape, "e", (f"c{n - 1}",))
        for n in (1, 2, 3)
    ]
    chain = Module(
        "m",
        1,
        "",
        "e",
        {"e": Computation("e", tuple(items), "c3")},
        True,
        num_partitions=8,
    )
    assert THRESHOLD not in flags_of(axes(chain, "0.10.2", ()))


def test_a_threshold_starts_where_it_joins_two_of_the_smallest() -> None:
    (axis,) = [
        a
        for a in axes(program("all-gather", "all-gather", size=4096), "0.10.2", ())
        if a.number
    ]
    assert axis.settings == (
        {"xla_gpu_all_gather_combine_threshold_bytes": str(64 * MIB)},
    )


def test_a_threshold_starts_at_its_usual_size_where_tensors_travel_in_one_buffer() -> (
    None
):
    part, whole = Shape("bf16", (4096, 4096)), Shape("bf16", (8192, 4096))
    inside = [Instruction(name, "parameter", part, "f") for name in "pq"]
    items = [Instruction(name, "parameter", part, "e") for name in "xy"]
    items.append(Instruction("j", "fusion", whole, "e", ("x", "y"), called=("f",)))
    items += [Instruction(name, "all-reduce", whole, "e", ("j",)) for name in "ab"]
    computations = {
        "e": Computation("e", tuple(items), "a"),
        "f": Computation(
            "f",
            (*inside, Instruction("c", "concatenate", whole, "f", ("p", "q"))),
            "c",
            is_fusion=True,
        ),
    }
    joined = Module("m", 1, "", "e", computations, True, num_partitions=8)
    (axis,) = [a for a in axes(joined, "0.10.2", ()) if a.number]
    assert axis.settings == (
        {"xla_gpu_all_reduce_combine_threshold_bytes": str(8 * MIB)},
    )


def test_a_program_that_fills_the_memory_is_tried_with_a_larger_limit_of_the_scheduler() -> (
    None
):
    settings = [
        dict(s)
        for a in axes(program("all-gather"), "0.10.2", (), 0.9)
        for s in a.settings
    ]
    values = [
        s["xla_gpu_memory_limit_slop_factor"]
        for s in settings
        if "xla_gpu_memory_limit_slop_factor" in s
    ]
    assert values == [
        "200",
        "300",
    ]  # Llama 3.1 405B in bf16 needs 300: 49.2 s, 48.8 and 40.2 (predicted)


def test_collectives_are_pipelined_only_where_a_loop_holds_them() -> None:
    assert not [
        flag
        for flag in flags_of(axes(program("all-gather"), "0.10.2", ()))
        if "pipeline" in flag
    ]
    assert "xla_gpu_enable_pipelined_all_gather" in flags_of(
        axes(program("all-gather", looped=True), "0.10.2", ())
    )


def test_reduce_scatters_of_a_loop_are_pipelined_as_the_all_reduces_that_they_come_from() -> (
    None
):
    found = axes(program("reduce-scatter", looped=True), "0.10.2", ())
    assert {"xla_gpu_enable_pipelined_all_reduce": "true"} in [
        dict(s) for axis in found for s in axis.settings
    ]
    assert "xla_gpu_enable_pipelined_all_reduce" in found[0].settings[0]


def test_flags_are_spelled_as_the_release_knows_them() -> None:
    found = flags_of(axes(program("all-gather", looped=True), "0.12.0.1", ()))
    assert "xla_gpu_pipeline_all_gather" in found
    assert "xla_gpu_enable_pipelined_all_gather" not in found


def test_what_a_release_does_by_default_is_tried_the_other_way() -> None:
    settings = [
        s
        for a in axes(program("reduce-scatter", looped=True), "0.12.0.1", ())
        for s in a.settings
    ]
    assert {"xla_gpu_pipeline_reduce_scatter": "off"} in settings
    assert {"xla_gpu_pipeline_reduce_scatter": "on"} not in settings


def test_pipelining_is_tried_together_with_two_copies_of_the_loop_body() -> None:
    found = axes(program("all-gather", "all-reduce", looped=True), "0.12.0.1", ())
    assert {
        "xla_gpu_pipeline_all_gather": "on",
        "xla_gpu_pipeline_all_reduce": "on",
        "xla_gpu_enable_while_loop_double_buffering": "true",
    } in [dict(setting) for axis in found for setting in axis.settings]


def test_matmuls_are_split_on_one_stream_which_needs_no_gpu_to_compile() -> None:
    splits = "xla_gpu_threshold_for_windowed_einsum_mib"
    found = [
        s
        for a in axes(program("all-gather"), "0.12.0.1", ())
        for s in a.settings
        if splits in s
    ]
    assert found == [{splits: "0", "xla_gpu_multi_streamed_windowed_einsum": "false"}]


def test_what_the_user_has_set_stays() -> None:
    two = program("reduce-scatter", "reduce-scatter")
    assert THRESHOLD in flags_of(axes(two, "0.10.2", ()))
    assert THRESHOLD not in flags_of(axes(two, "0.10.2", (THRESHOLD,)))


def test_what_the_user_has_set_by_its_older_name_stays() -> None:
    older = ("xla_gpu_enable_pipelined_all_gather",)
    found = flags_of(axes(program("all-gather", looped=True), "0.12.0.1", older))
    assert not [
        flag
        for flag in found
        if flag.endswith(("pipelined_all_gather", "pipeline_all_gather"))
    ]


@pytest.mark.parametrize(
    "given", ["xla_gpu_enable_latency_hiding_scheduler", "xla_gpu_unknown_to_pgle"]
)
def test_a_flag_of_the_user_leaves_what_it_does_not_set_to_the_search(
    given: str,
) -> None:
    looped = program("all-gather", "reduce-scatter", looped=True)
    assert axes(looped, "0.12.0.1", (given,)) == axes(looped, "0.12.0.1", ())


def test_the_preset_leaves_out_what_the_user_has_set() -> None:
    double = "xla_gpu_enable_while_loop_double_buffering"
    looped = program("all-gather", "reduce-scatter", looped=True)
    without, whole = (
        dict(axes(looped, "0.12.0.1", given)[0].settings[0])
        for given in ((double,), ())
    )
    assert {**without, double: "true"} == whole
    assert double not in without


def test_where_a_loop_holds_collectives_a_preset_comes_first() -> None:
    found = axes(program("all-gather", looped=True), "0.12.0.1", ())
    first = by_exposure(found, {"all-gather": 10.0, "all-reduce": 5.0})[0]
    assert first.name == "preset fsdp"
    assert first.settings[0]["xla_gpu_pipeline_all_gather"] == "on"
    assert not [
        axis
        for axis in axes(program("all-gather"), "0.12.0.1", ())
        if axis.name == "preset fsdp"
    ]


@pytest.mark.parametrize("version", ["0.4.38", "0.10.2", "0.11.2", "0.12.0.1"])
def test_the_preset_that_is_tried_is_the_one_that_is_printed_but_for_lhs(
    version: str,
) -> None:
    (first,) = [
        axis
        for axis in axes(
            program("all-gather", "reduce-scatter", "all-reduce", looped=True),
            version,
            (),
        )
        if axis.name == "preset fsdp"
    ]
    printed = {flag.name: flag.value for flag in preset("fsdp", version).flags}
    del printed["xla_gpu_enable_latency_hiding_scheduler"]
    assert list(first.settings[0].items()) == list(printed.items())


def test_two_copies_of_a_loop_body_are_tried_before_flags_of_a_single_kind() -> None:
    names = [
        axis.name
        for axis in by_exposure(
            axes(program("all-gather", looped=True), "0.10.2", ()), {"all-gather": 10.0}
        )
    ]
    assert names.index("enable_while_loop_double_buffering") < names.index(
        "enable_pipelined_all_gather"
    )


def test_a_preset_is_tried_without_flags_of_kinds_that_the_program_lacks() -> None:
    (first,) = [
        a
        for a in axes(program("all-reduce", looped=True), "0.12.0.1", ())
        if a.name == "preset fsdp"
    ]
    assert "xla_gpu_pipeline_all_reduce" in first.settings[0]
    assert not [
        flag
        for flag in first.settings[0]
        if "all_gather" in flag or "reduce_scatter" in flag
    ]


def test_a_number_between_two_that_made_the_same_program_is_not_tried() -> None:
    seen: list[int] = []
    known = bench(lambda mib: 1000.0 if mib >= 4 else 1400.0, seen)

    def attempt(settings: Sequence[tuple[Flags, str]]) -> list[Trial]:
        return [replace(made, program=f"{made.mean_us:g}") for made in known(settings)]

    search(PGLE, CEILING_US, [AXIS], attempt, budget=20)
    assert seen == [8, 16, 4]


@pytest.mark.parametrize(
    ("exposed", "first"), [(20.0, "all-reduce"), (5.0, "all-gather")]
)
def test_combined_collectives_are_taken_apart_first_where_a_good_part_of_the_exposed_time_is_theirs(
    exposed: float, first: str
) -> None:
    joins, parts = (
        Axis(kind, kind, ({kind: "8"},), kind, kind == "all-reduce")
        for kind in ("all-gather", "all-reduce")
    )
    assert (
        by_exposure([joins, parts], {"all-gather": 80.0, "all-reduce": exposed})[0].kind
        == first
    )
