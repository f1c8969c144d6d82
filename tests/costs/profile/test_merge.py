"""Profiles of ranks and runs become one."""

import json
import math
from collections.abc import Iterable
from itertools import starmap
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pgle.costs.measure.samples import parse_statistic
from pgle.costs.profile import merge as merging
from pgle.costs.profile.files import decode_profile, encode_profile, profile_files, read_profile
from pgle.costs.profile.merge import (
    MergedProfile,
    MergeOf,
    MergeOptions,
    merge,
    merge_input,
    united_modules,
)
from pgle.costs.profile.value import Cost, CostKind, Origin, Profile
from pgle.errors import UserError
from pgle.files import write_files

STATS = st.sampled_from(["median", "mean", "min", "max", "p10", "p90", "p99.9"])
WEIGHTED = st.lists(st.tuples(st.floats(0, 1e6), st.integers(1, 20)), min_size=1, max_size=6)


def compute(name: str, cost_us: float, samples: int = 1, **more: object) -> Cost:
    return Cost(
        name,
        cost_us,
        kind=CostKind.COMPUTE,
        samples=samples,
        min_us=cost_us,
        max_us=cost_us,
        **more,
    )


def rank(*costs: Cost) -> Profile:
    return Profile(costs)


def merge_labelled(
    inputs: Iterable[tuple[str, Profile]], options: MergeOptions | None = None
) -> MergedProfile:
    return merge(starmap(merge_input, inputs), options)


def merged(*profiles: Profile, **options: object) -> Profile:
    inputs = [(f"rank{number}", profile) for number, profile in enumerate(profiles)]
    return merge_labelled(inputs, MergeOptions(**options)).profile


def costs_of(profile: Profile) -> dict[str, float]:
    return {cost.full_name: cost.cost_us for cost in profile.costs}


GATHER = Cost("all-gather-start", 30.0, kind=CostKind.COLLECTIVE, opcode="all-gather", samples=3)


@settings(deadline=None)  # machines differ
@given(WEIGHTED, STATS)
def test_weights_count_like_repetition_in_numpy(pairs, name):
    stat = parse_statistic(name)
    repeated = np.repeat([value for value, _ in pairs], [weight for _, weight in pairs])
    reference = (
        np.mean(repeated) if stat.percentile is None else np.percentile(repeated, stat.percentile)
    )
    values, weights = (np.array(column) for column in zip(*pairs, strict=True))
    (ours,) = stat.over_groups(values, np.zeros(len(pairs), np.int64), 1, weights)
    assert math.isclose(ours, reference, rel_tol=1e-9, abs_tol=1e-9)


@pytest.mark.parametrize("percentile", [0, 50, 90, 99, 100])
def test_jaxlib_takes_the_element_below_where_we_interpolate(percentile):
    profiler = pytest.importorskip("jax._src.lib")._profiler
    values = [1.0, 2.0, 3.0, 10.0]
    encoded = [encode_profile(Profile((Cost("x", value),)), ".pb") for value in values]
    theirs = decode_profile(
        profiler.aggregate_profiled_instructions(encoded, percentile), Path("x.pb")
    )
    assert theirs.costs[0].cost_us == values[int(percentile / 100 * 3)]
    ours = merged(
        *(rank(compute("x", value)) for value in values), stat=parse_statistic(f"p{percentile}")
    )
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


def gather(cost_us: float) -> Cost:
    return GATHER._replace(cost_us=cost_us, min_us=cost_us - 1, max_us=cost_us + 1)


def test_of_ranks_a_collective_takes_the_least_and_waiting_is_told():
    result = merge_labelled([("a", rank(gather(30.0))), ("b", rank(gather(20.0)))])
    (cost,) = result.profile.costs
    assert (cost.cost_us, cost.samples, cost.min_us, cost.max_us) == (20.0, 6, 19.0, 31.0)
    assert "1 collectives merged by the min of the inputs" in result.profile.warnings[0]
    assert "convert all traces together" in result.profile.warnings[0]


def test_merging_the_least_in_two_steps_is_merging_at_once():
    ranks = [rank(gather(value)) for value in (30.0, 20.0, 25.0)]
    in_two, at_once = merged(merged(*ranks[:2]), ranks[2]), merged(*ranks)
    assert costs_of(in_two) == costs_of(at_once) == {"all-gather-start": 20.0}


def test_of_runs_collectives_take_the_statistic_of_compute():
    runs = rank(gather(30.0)), rank(gather(40.0))
    assert merged(*runs, of=MergeOf.RUNS, stat=parse_statistic("max")).costs[0].cost_us == 40.0
    assert (
        merged(*runs, of=MergeOf.RUNS, collective_stat=parse_statistic("min")).costs[0].cost_us
        == 30.0
    )


def test_a_name_of_two_shapes_is_left_out_and_reported():
    profiles = (
        rank(compute("x", 1, shape="f32[8]"), compute("y", 1)),
        rank(compute("x", 2, shape="f32[16]")),
    )
    result = merge_labelled([("a", profiles[0]), ("b", profiles[1])])
    assert costs_of(result.profile) == {"y": 1}
    assert result.conflicts == ("x",)
    assert "left out" in result.profile.warnings[0]


def test_a_measured_cost_beats_an_estimated_one():
    estimated = rank(compute("x", 99, origin=Origin.ESTIMATED))
    result = merged(estimated, rank(compute("x", 2)))
    assert (result.costs[0].cost_us, result.costs[0].origin) == (2, Origin.MEASURED)


def test_duplicates_count_as_xla_takes_them():
    result = merge_labelled(
        [("a", rank(compute("x", 1), compute("x", 5))), ("b", rank(compute("x", 7)))]
    )
    assert costs_of(result.profile) == {"x": 6}
    assert "1 of 2 costs do not count" in result.profile.warnings[0]


def test_costs_that_mean_nothing_are_left_out():
    result = merge_labelled([("a", rank(compute("x", math.nan), compute("y", 1)))])
    assert costs_of(result.profile) == {"y": 1}
    assert result.profile.warnings[0].startswith("a: 1 of 2 costs do not count")


def test_nothing_left_is_an_error():
    with pytest.raises(UserError, match="no cost is left"):
        merge_labelled([("a", rank(compute("x", -1)))])


def test_the_order_of_inputs_does_not_matter_for_costs():
    profiles = [
        rank(compute("x", value, samples=number + 1))
        for number, value in enumerate((0.1, 0.2, 0.3))
    ]
    stat = parse_statistic("mean")
    assert merged(*profiles, stat=stat).costs == merged(*reversed(profiles), stat=stat).costs


def test_names_that_some_inputs_lack_are_kept_and_told():
    result = merge_labelled(
        [("a", rank(compute("x", 1), compute("y", 1))), ("b", rank(compute("x", 1)))]
    )
    assert result.partial == ("y",)
    assert costs_of(result.profile) == {"x": 1, "y": 1}


def test_a_cost_without_a_name_is_left_out_with_a_line():
    result = merge_labelled([("a", rank(compute("", 3), compute("y", 1)))])
    assert costs_of(result.profile) == {"y": 1}
    assert any(line.startswith("a: 1 of 2 costs do not count") for line in result.profile.warnings)


def test_costs_that_would_add_up_to_infinity_are_left_out():
    result = merge_labelled(
        [("a", rank(compute("x", 1e308), compute("z", 1e308), compute("y", 1)))]
    )
    assert costs_of(result.profile) == {"y": 1}
    assert any(line.startswith("a: 2 of 3 costs do not count") for line in result.profile.warnings)


@pytest.fixture
def files(tmp_path):
    """Profiles of two ranks as files."""
    paths = [tmp_path / "a.pbtxt", tmp_path / "b.pbtxt"]
    for number, path in enumerate(paths):
        profile = rank(GATHER, compute("x", 2.0 + number))
        write_files(profile_files(path, profile))
    return paths


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("samples", "many"),
        ("samples", 1 << 80),
        ("kind", "gemm"),
        ("origin", 5),
        ("min_us", []),
        ("slowest_us", -1),
    ],
)
def test_a_damaged_record_costs_its_file_the_sidecar_and_is_said(files, field, value):
    beside = files[0].with_name("a.pbtxt.json")
    content = json.loads(beside.read_text())
    content["costs"][0][field] = value
    beside.write_text(json.dumps(content))
    result = merge(merge_input(path.name, read_profile(path)) for path in files).profile
    assert [line for line in result.warnings if "damaged; its details are left aside" in line]
    assert costs_of(result) == {"all-gather-start": 30.0, "x": 2.5}


def test_the_result_does_not_depend_on_how_many_rows_are_worked_on_together(monkeypatch):
    names = [f"fusion.{number}" for number in range(7)]
    ranks = [
        rank(
            *(compute(name, 10.0 * at + number, samples=1 + at, shape=f"f32[{name[-1]}]", opcode="fusion" if at else "")
              for number, name in enumerate(names[at % 3 :])),
            GATHER._replace(cost_us=20.0 + at),
        )
        for at in range(5)
    ]  # fmt: skip
    wide = [merged(*ranks, stat=parse_statistic(stat)) for stat in ("median", "mean", "p90")]
    monkeypatch.setattr("pgle.costs.profile.merge.BLOCK_ROWS", 3)
    assert [
        merged(*ranks, stat=parse_statistic(stat)) for stat in ("median", "mean", "p90")
    ] == wide
    assert len(wide[0]) > 3


def test_names_that_one_input_has_are_worked_on_together_too(monkeypatch):
    # each block of names looks at all rows: ranks that compiled programs of other fingerprints have a million names
    blocks = []
    statistics = merging._statistics
    monkeypatch.setattr(merging, "_statistics", lambda *of: blocks.append(of) or statistics(*of))
    monkeypatch.setattr(merging, "BLOCK_ROWS", 40)
    ranks = [
        rank(*(compute(f"fusion.{number}", 1.0, fingerprint=f"{at}") for number in range(20)))
        for at in range(20)
    ]
    assert len(merged(*ranks)) == 400
    assert len(blocks) == 10


def test_of_ranks_the_input_with_the_slowest_rank_says_what_the_slowest_takes():
    hosts = [
        rank(compute("x", 10, slowest_us=15.0), compute("y", 10, slowest_us=11.0)),
        rank(compute("x", 10, slowest_us=12.0), compute("y", 10, slowest_us=30.0)),
    ]
    assert [cost.slowest_us for cost in merged(*hosts).costs] == [12.0, 30.0]


def test_of_runs_it_is_the_mean():
    runs = [rank(compute("x", 10, slowest_us=value)) for value in (15.0, 12.0)]
    assert merged(*runs, of=MergeOf.RUNS).costs[0].slowest_us == 13.5


def test_records_of_one_module_add_up():
    record = {
        "name": "a",
        "fingerprints": ["x"],
        "executions_used": 3,
        "devices": None,
        "executions_dropped": {"0": ""},
    }
    (found,) = united_modules(
        [{"modules": [record]}, {"modules": [{**record, "fingerprints": ["y"], "devices": 2}]}]
    )
    assert (found["fingerprints"], found["executions_used"], found["devices"]) == (["x", "y"], 6, 2)
    assert "executions_dropped" not in found


def test_inputs_that_lack_many_names_may_be_of_other_programs() -> None:
    whole = Profile(tuple(Cost(f"fusion.{number}", 5.0) for number in range(20)))
    for left_out, is_of_one in ((2, True), (3, False)):
        merged = merge_labelled([("whole", whole), ("cut", Profile(whole.costs[left_out:]))])
        assert merged.is_of_one is is_of_one
        assert (
            any("are they of one program?" in line for line in merged.profile.warnings)
            is not is_of_one
        )
