"""Profiles of ranks and runs become one."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pgle.costs.profile.cost_table import collect, joined
from pgle.costs.profile.files import decode_profile, encode_profile, profile_files, profile_of, read_file, read_profile
from pgle.costs.profile.merge import MergeOptions, Of, merge_collected, merge_profiles
from pgle.costs.profile.value import Cost, CostKind, Origin, Profile
from pgle.costs.statistic import parse_statistic
from pgle.errors import UserError
from pgle.files import write_files

STATS = st.sampled_from(["median", "mean", "min", "max", "p10", "p90", "p99.9"])
WEIGHTED = st.lists(st.tuples(st.floats(0, 1e6), st.integers(1, 20)), min_size=1, max_size=6)


def compute(name: str, cost_us: float, samples: int = 1, **more: object) -> Cost:
    return Cost(name, cost_us, kind=CostKind.COMPUTE, samples=samples, min_us=cost_us, max_us=cost_us, **more)


def rank(*costs: Cost, fingerprint: str = "", **occurrences: dict[str, float]) -> Profile:
    provenance = {"modules": [{"name": "jit_step", "fingerprints": [fingerprint]}]} if fingerprint else {}
    tables = {name.replace("_", "-"): table for name, table in occurrences.items()}
    return Profile(costs, provenance, occurrences=tables)


def merged(*profiles: Profile, **options: object) -> Profile:
    inputs = [(f"rank{number}", profile) for number, profile in enumerate(profiles)]
    return merge_profiles(inputs, MergeOptions(**options)).profile


def costs_of(profile: Profile) -> dict[str, float]:
    return {cost.full_name: cost.cost_us for cost in profile.costs}


GATHER = Cost("all-gather-start", 30.0, kind=CostKind.COLLECTIVE, opcode="all-gather", samples=3)


@settings(deadline=None)  # machines differ
@given(WEIGHTED, STATS)
def test_weights_count_like_repetition_in_numpy(pairs, name):
    stat = parse_statistic(name)
    repeated = np.repeat([value for value, _ in pairs], [weight for _, weight in pairs])
    reference = np.mean(repeated) if stat.percentile is None else np.percentile(repeated, stat.percentile)
    values, weights = (np.array(column) for column in zip(*pairs, strict=True))
    (ours,) = stat.over_groups(values, np.zeros(len(pairs), np.int64), 1, weights)
    assert math.isclose(ours, reference, rel_tol=1e-9, abs_tol=1e-9)


@pytest.mark.parametrize("percentile", [0, 50, 90, 99, 100])
def test_jaxlib_takes_the_element_below_where_we_interpolate(percentile):
    profiler = pytest.importorskip("jax._src.lib")._profiler
    values = [1.0, 2.0, 3.0, 10.0]
    encoded = [encode_profile(Profile((Cost("x", value),)), ".pb") for value in values]
    file = decode_profile(profiler.aggregate_profiled_instructions(encoded, percentile), Path("x.pb"))
    theirs = profile_of(file)
    assert theirs.costs[0].cost_us == values[int(percentile / 100 * 3)]
    ours = merged(*(rank(compute("x", value)) for value in values), stat=parse_statistic(f"p{percentile}"))
    assert ours.costs[0].cost_us == pytest.approx(np.percentile(values, percentile))
    assert theirs.costs[0].cost_us <= ours.costs[0].cost_us + 1e-12


def test_compute_is_weighted_by_samples():
    profiles = rank(compute("x", 10.0, samples=3)), rank(compute("x", 30.0, samples=1))
    assert costs_of(merged(*profiles, stat=parse_statistic("mean"))) == {"x": 15.0}
    assert costs_of(merged(*profiles)) == {"x": 10.0}


def test_inputs_without_sidecar_count_once_each():
    profiles = [Profile((Cost("x", value, origin=Origin.UNKNOWN),)) for value in (1.0, 2.0, 9.0)]
    result = merged(*profiles)
    assert costs_of(result) == {"x": 2.0}
    assert result.costs[0].origin == Origin.UNKNOWN


def test_each_occurrence_of_a_collective_takes_the_least_over_ranks():
    # rank 0 waits in execution 2, rank 1 in execution 3: the medians (30, 32) both hold waiting, the truth is 10
    result = merged(
        rank(GATHER, all_gather_start={"2.0": 50.0, "3.0": 10.0, "4.0": 30.0}),
        rank(GATHER, all_gather_start={"2.0": 9.0, "3.0": 80.0, "4.0": 32.0}),
    )
    assert result.costs[0].cost_us == 10.0
    assert (result.costs[0].samples, result.costs[0].min_us, result.costs[0].max_us) == (3, 9.0, 30.0)
    assert result.occurrences == {"all-gather-start": {"2.0": 9.0, "3.0": 10.0, "4.0": 30.0}}


def test_merging_in_two_steps_is_merging_at_once():
    tables = [{"0.0": 5.0, "1.0": 7.0}, {"0.0": 9.0, "1.0": 3.0}, {"0.0": 4.0, "1.0": 8.0}]
    ranks = [rank(GATHER, all_gather_start=table) for table in tables]
    assert merged(merged(*ranks[:2]), ranks[2]).costs == merged(*ranks).costs


def test_replica_groups_are_merged_apart_and_the_slowest_counts():
    result = merged(rank(GATHER, all_gather_start={"0.0": 5.0}), rank(GATHER, all_gather_start={"0.0.1": 8.0}))
    assert result.costs[0].cost_us == 8.0


def test_only_executions_that_all_ranks_saw_count():
    tables = {"1.0": 5.0, "2.0": 6.0}, {"2.0": 7.0, "3.0": 1.0}
    result = merged(*(rank(GATHER, all_gather_start=table) for table in tables))
    assert result.occurrences == {"all-gather-start": {"2.0": 6.0}}


def test_windows_without_a_common_execution_leave_the_statistic():
    first = rank(GATHER, all_gather_start={"1.0": 5.0})
    second = rank(Cost("all-gather-start", 20.0, kind=CostKind.COLLECTIVE, samples=3), all_gather_start={"7.0": 6.0})
    result = merge_profiles([("a", first), ("b", second)])
    assert result.profile.costs[0].cost_us == 20.0  # the least of ranks
    assert (result.exact, result.inexact) == (0, 1)
    assert "convert all traces together" in result.warnings[0]


def test_occurrences_of_independent_runs_are_not_matched():
    first = rank(GATHER, all_gather_start={"1.0": 30.0})
    second = rank(Cost("all-gather-start", 40.0, kind=CostKind.COLLECTIVE, samples=3), all_gather_start={"1.0": 40.0})
    assert merged(first, second, of=Of.RUNS, stat=parse_statistic("max")).costs[0].cost_us == 40.0


def test_a_name_of_two_shapes_is_left_out_and_reported():
    profiles = rank(compute("x", 1, shape="f32[8]"), compute("y", 1)), rank(compute("x", 2, shape="f32[16]"))
    result = merge_profiles([("a", profiles[0]), ("b", profiles[1])])
    assert costs_of(result.profile) == {"y": 1}
    assert result.conflicts[0].seen == {"a": "f32[8]", "b": "f32[16]"}
    assert "left out" in result.warnings[0]


def test_a_name_of_two_shapes_is_kept_per_module_where_fingerprints_are_known():
    first = rank(compute("x", 1, shape="f32[8]"), fingerprint="a" * 32)
    second = rank(compute("x", 2, shape="f32[16]"), fingerprint="b" * 32)
    assert costs_of(merged(first, second)) == {f"{'a' * 32}::x": 1, f"{'b' * 32}::x": 2}


def test_a_measured_cost_beats_an_estimated_one():
    estimated = rank(compute("x", 99, origin=Origin.ESTIMATED))
    result = merged(estimated, rank(compute("x", 2)))
    assert (result.costs[0].cost_us, result.costs[0].origin) == (2, Origin.MEASURED)


def test_duplicates_count_as_xla_takes_them():
    result = merge_profiles([("a", rank(compute("x", 1), compute("x", 5))), ("b", rank(compute("x", 7)))])
    assert costs_of(result.profile) == {"x": 6}
    assert "1 of 2 costs do not count" in result.warnings[0]


def test_costs_that_mean_nothing_are_left_out():
    result = merge_profiles([("a", rank(compute("x", math.nan), compute("y", 1)))])
    assert costs_of(result.profile) == {"y": 1}
    assert "not finite (x: nan)" in result.warnings[0]


def test_nothing_left_is_an_error():
    with pytest.raises(UserError, match="no cost is left"):
        merge_profiles([("a", rank(compute("x", -1)))])


def test_the_order_of_inputs_does_not_matter_for_costs():
    profiles = [rank(compute("x", value, samples=number + 1)) for number, value in enumerate((0.1, 0.2, 0.3))]
    stat = parse_statistic("mean")
    assert merged(*profiles, stat=stat).costs == merged(*reversed(profiles), stat=stat).costs


def test_names_that_some_inputs_lack_are_kept_and_told():
    result = merge_profiles([("a", rank(compute("x", 1), compute("y", 1))), ("b", rank(compute("x", 1)))])
    assert result.partial == ("y",)
    assert costs_of(result.profile) == {"x": 1, "y": 1}


def test_a_cost_without_a_name_is_left_out_with_a_line():
    result = merge_profiles([("a", rank(compute("", 3), compute("y", 1)))])
    assert costs_of(result.profile) == {"y": 1}
    assert "a: 1 cost left out, without a name" in result.warnings


def test_costs_that_would_add_up_to_infinity_are_left_out():
    result = merge_profiles([("a", rank(compute("x", 1e308), compute("z", 1e308), compute("y", 1)))])
    assert costs_of(result.profile) == {"y": 1}
    assert "a: 2 costs left out, negative, over 30 years or not finite (x: 1e+308)" in result.warnings


@pytest.fixture
def files(tmp_path):
    """Profiles of two ranks as files."""
    paths = [tmp_path / "a.pbtxt", tmp_path / "b.pbtxt"]
    for number, path in enumerate(paths):
        profile = rank(GATHER, compute("x", 2.0 + number), all_gather_start={"1.0": 5.0 + number, "2.0": 9.0})
        write_files(profile_files(path, profile))
    return paths


def test_files_are_merged_as_the_profiles_in_them(files):
    as_files = merge_profiles([(path.name, read_file(path)) for path in files])
    assert as_files == merge_profiles([(path.name, read_profile(path)) for path in files])


def test_inputs_collected_apart_are_merged_as_together():
    other = compute("x", 3.0)._replace(shape="f32[8]")
    ranks = [
        ("a", rank(GATHER, compute("x", 2.0), all_gather_start={"1.0": 5.0, "2.0": 9.0})),
        ("b", rank(compute("y", 4.0), other, GATHER, all_gather_start={"1.0": 4.0, "2.0": 9.5})),
        ("c", rank(compute("y", 6.0), compute("x", 1.0))),
    ]
    apart = joined([collect(ranks[:1]), collect(ranks[1:])])
    assert merge_collected(*apart, MergeOptions()) == merge_profiles(ranks)


@pytest.mark.parametrize(
    ("field", "value"),
    [("samples", "many"), ("samples", 1 << 80), ("kind", "gemm"), ("origin", 5), ("min_us", []), ("occurrences", 7)],
)
def test_a_damaged_record_costs_its_file_the_sidecar_and_is_said(files, field, value):
    beside = files[0].with_name("a.pbtxt.json")
    content = json.loads(beside.read_text())
    content["costs"][0][field] = value
    beside.write_text(json.dumps(content))
    result = merge_profiles([(path.name, read_file(path)) for path in files])
    assert [line for line in result.warnings if "damaged; its details are left aside" in line]
    assert costs_of(result.profile) == costs_of(
        merge_profiles([(path.name, read_profile(path)) for path in files]).profile
    )


def test_of_ranks_the_input_with_the_slowest_rank_says_what_the_slowest_takes():
    hosts = [
        rank(compute("x", 10, slowest_us=15.0), compute("y", 10, slowest_us=11.0)),
        rank(compute("x", 10, slowest_us=12.0), compute("y", 10, slowest_us=30.0)),
    ]
    assert [cost.slowest_us for cost in merged(*hosts).costs] == [12.0, 30.0]


def test_of_runs_it_is_the_mean():
    runs = [rank(compute("x", 10, slowest_us=value)) for value in (15.0, 12.0)]
    assert merged(*runs, of=Of.RUNS).costs[0].slowest_us == 13.5
