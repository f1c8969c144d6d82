"""Measured where there is a measurement, estimated elsewhere, and said so."""

import math

import numpy as np
import pytest

from pgle.costs.measure.contention import DEFAULT
from pgle.costs.profile.value import Cost, Origin, Profile
from pgle.errors import UserError
from pgle.schedule.predict import predict
from pgle.xla.hlo.module import Computation, Instruction, Module, Shape

ENTRY = tuple(
    Instruction(name, "fusion", Shape("f32", (1 << 20,)), "e", fusion_kind="kLoop")
    for name in ("a", "b")
)
MODULE = Module(
    "jit_step", 1, "f" * 32, "e", {"e": Computation("e", ENTRY, "b")}, is_scheduled=True
)
RECORDED = {
    "gap_us": 7.0,
    "switch_us": 9.0,
    "host_us": 0.0,
    "kernels": {},
    "origin": "measured",
    "gaps": 50,
}


def test_costs_of_a_profile_are_measured() -> None:
    found = predict(MODULE, Profile((Cost("a", 3.0), Cost("b", 4.0))), "a100")
    assert (found.costs_are, found.estimated_share) == ("measured", 0.0)
    assert found.step_us == 3 + 1 + 4


def test_what_the_profile_lacks_is_estimated() -> None:
    found = predict(MODULE, Profile((Cost("a", 3.0),)), "a100")
    assert found.costs_are == "measured and estimated"
    assert 0 < found.estimated_share < 1


@pytest.mark.parametrize(
    ("names", "words"), [("ab", "simulated"), ("a", "simulated and estimated")]
)
def test_costs_of_the_simulated_gpu_are_simulated(names: str, words: str) -> None:
    costs = tuple(Cost(name, 3.0, origin=Origin.SIMULATED) for name in names)
    assert predict(MODULE, Profile(costs), "a100").costs_are == words


def test_without_a_profile_everything_is_estimated() -> None:
    assert predict(MODULE, None, "h100").costs_are == "estimated"


def test_costs_of_another_fingerprint_do_not_count() -> None:
    other = Profile(
        (Cost("a", 3.0, fingerprint="0" * 32), Cost("b", 3.0, fingerprint="0" * 32))
    )
    assert predict(MODULE, other, "h100").costs_are == "estimated"


@pytest.mark.parametrize("cost_us", [-1.0, float("nan"), 1e308])
def test_a_cost_that_is_no_time_counts_as_a_gap(cost_us: float) -> None:
    found = predict(MODULE, Profile((Cost("a", cost_us), Cost("b", 4.0))), "a100")
    assert found.step_us == predict(MODULE, Profile((Cost("b", 4.0),)), "a100").step_us


def test_launch_gaps_come_from_the_sidecar_of_the_profile() -> None:
    provenance = {
        "modules": [
            {"name": "jit_init", "launch": None},
            {"name": "jit_step", "launch": RECORDED},
        ]
    }
    found = predict(
        MODULE, Profile((Cost("a", 3.0), Cost("b", 4.0)), provenance), "a100"
    )
    assert found.launch.origin is Origin.MEASURED
    assert found.step_us == 3 + 7 + 4


def test_damaged_launch_gaps_are_left_aside() -> None:
    provenance = {
        "modules": [
            {"name": "jit_step", "launch": {"gap_us": "7 µs", "origin": "measured"}}
        ]
    }
    assert (
        predict(MODULE, Profile((Cost("a", 3.0),), provenance), "a100").launch
        == DEFAULT
    )


def test_an_unknown_target_is_a_user_error() -> None:
    with pytest.raises(UserError, match="no target called"):
        predict(MODULE, None, "tpu")


def test_a_profile_without_sidecar_is_taken_at_its_word() -> None:
    given = Profile(
        (Cost("a", 3.0, origin=Origin.UNKNOWN), Cost("b", 4.0, origin=Origin.UNKNOWN))
    )
    assert predict(MODULE, given, "a100").costs_are == "measured"


def test_costs_of_other_shapes_are_left_out_and_said() -> None:
    found = predict(
        MODULE,
        Profile((Cost("a", 3.0, opcode="fusion", shape="f32[7]"), Cost("b", 4.0))),
        "a100",
    )
    assert found.costs_are == "measured and estimated"
    assert "another opcode or shape here: 1 (first a)" in found.timeline.warnings[0]


def test_a_step_with_a_loop_of_unknown_length_is_a_lower_bound_without_an_upper_end() -> (
    None
):
    loop = Instruction("w", "while", Shape("tuple"), "e", called=("body",))
    body = Computation(
        "body", (Instruction("x", "add", Shape("f32", (8,)), "body"),), "x"
    )
    module = Module(
        "jit_step",
        1,
        "",
        "e",
        {"e": Computation("e", (loop,), "w"), "body": body},
        is_scheduled=True,
    )
    found = predict(module, Profile((Cost("x", 500.0),)), "h100")
    assert found.lower_bound
    assert (found.step_us, found.interval_us[1]) == (500, math.inf)
    assert found.not_modelled == (
        "all but one iteration of loops of unknown length (w)",
    )
    assert found.lower_bound


def test_what_could_change_the_answer_is_listed() -> None:
    found = predict(MODULE, Profile((Cost("a", 30.0), Cost("b", 40.0))), "a100")
    assert found.not_modelled == (
        "CUDA graphs (XLA's command buffers): they may save up to 1 µs of launch gaps",
    )


SCATTER = Module(
    "jit_step", 1, "", "e", is_scheduled=True,
    computations={"e": Computation("e", (
        *(Instruction(name, "parameter", Shape(dtype, (1000, 8)), "e") for name, dtype in (("x", "f32"), ("i", "s32"))),
        Instruction("s", "scatter", Shape("f32", (1000, 8)), "e", ("x", "i", "x")),
    ), "s")},
)  # fmt: skip


@pytest.mark.parametrize("count", [4, 50])
def test_the_range_of_a_measured_cost_that_data_decides_holds_nine_of_ten_further_executions(
    count: int,
) -> None:
    held, random = 0, np.random.default_rng(count)
    for further, *samples in random.normal(1000.0, 200.0, (200, count + 1)):
        low, middle, high = np.percentile(samples, [10, 50, 90])
        cost = Cost(
            "s",
            middle,
            samples=count,
            min_us=min(samples),
            max_us=max(samples),
            spread=(high - low) / middle,
        )
        least, most = predict(SCATTER, Profile((cost,)), "h100").interval_us
        held += least < further < most
    assert held == pytest.approx(0.9 * 200, abs=12)


def test_a_measured_cost_whose_samples_agree_has_none() -> None:
    cost = Cost("s", 50.0, samples=9, min_us=49.0, max_us=51.0, spread=0.02)
    assert predict(SCATTER, Profile((cost,)), "h100").uncertain == ()
