"""How much longer kernels take beside a collective: measured on a trace, kept in a sidecar, else a
model's range.
"""

from dataclasses import asdict, replace

import numpy as np
import pytest

from pgle.costs.measure.contention import (
    ASSUMED,
    Contention,
    Factors,
    Slowdown,
    as_if_alone,
    contention_of,
    measure_contention,
)
from pgle.costs.profile.lookup import Naming
from pgle.costs.profile.value import Cost, CostKind, Profile
from pgle.trace.table import Device, ModuleKey, Trace
from pgle.xla.hlo.module import Computation, Instruction, Module, Shape

SHAPE = Shape("f32", (1024, 1024))
DOTS, ADDS = (
    tuple(f"{kind}{number}" for number in range(12)) for kind in ("dot", "add")
)
NAMES = (*DOTS, *ADDS, "gather")
MODULE = Module(
    "jit_step", 1, "", "e", is_scheduled=True,
    computations={"e": Computation("e", (
        Instruction("x", "parameter", SHAPE, "e"),
        *(Instruction(name, "dot", SHAPE, "e", ("x", "x"), dot_lhs_contracting=(1,)) for name in DOTS),
        *(Instruction(name, "add", SHAPE, "e", ("x", "x")) for name in ADDS),
        Instruction("gather", "all-gather", SHAPE, "e", ("x",)),
    ), "gather")},
)  # fmt: skip
MEASURED = Contention(
    Slowdown(1.9, 1.8, 2.0, 60), Slowdown(1.3, 1.0, 1.6, 500), {"dot0": 1.0}
)


def trace(dots_us: float, adds_us: float, *, gather_us: float = 1e4) -> Trace:
    """Six of each run alone, 10 µs each, then the others beside a gather, in the times given."""
    rows = [(name, 10.0) for name in (*DOTS[:6], *ADDS[:6])]
    rows += [(name, dots_us) for name in DOTS[6:]] + [
        (name, adds_us) for name in ADDS[6:]
    ]
    start = np.cumsum([0.0, *(time + 1 for _, time in rows)])[:-1]
    found = [
        (when, name, time)
        for when, (name, time) in zip(start.tolist(), rows, strict=True)
    ]
    found = sorted([*found, (start[12] - 0.5, "gather", gather_us)])
    n = len(found)
    return Trace(
        start_ns=np.array([when * 1e3 for when, *_ in found], np.int64),
        duration_ns=np.array([time * 1e3 for *_, time in found], np.int64),
        kind=np.zeros(n, np.uint8),
        device=np.zeros(n, np.int32),
        stream=np.zeros(n, np.int32),
        module=np.zeros(n, np.int32),
        instruction=np.array([NAMES.index(name) for _, name, _ in found], np.int32),
        execution=np.zeros(n, np.int32),
        instance=np.arange(n, dtype=np.int32),
        modules=(ModuleKey("jit_step", 1),),
        instructions=NAMES,
        devices=(Device("h:1", 0),),
    )


def measured(of: Trace) -> Contention | None:
    kinds = {"gather": CostKind.COLLECTIVE}
    filed = tuple(
        Cost(name, 0.0, kind=kinds.get(name, CostKind.COMPUTE)) for name in NAMES
    )
    count = len(NAMES)
    naming = Naming(
        np.arange(count, dtype=np.int32),
        filed,
        tuple(NAMES),
        (0,) * count,
        ((),) * count,
    )
    return measure_contention(of, 0, np.array([True]), MODULE, naming)


def test_products_and_other_kernels_have_a_factor_each() -> None:
    found = measured(trace(dots_us=20, adds_us=13))
    assert found is not None
    assert found.likely == pytest.approx((2.0, 1.3))
    assert (found.product.samples, found.other.samples) == (6, 6)


def test_what_ran_beside_a_collective_is_known_by_name() -> None:
    found = measured(trace(dots_us=20, adds_us=13))
    assert found is not None
    assert found.beside == dict.fromkeys((*DOTS[6:], *ADDS[6:]), 1.0)


def test_a_launch_that_is_beside_a_collective_for_half_its_time_is_no_sample() -> None:
    found = measured(trace(dots_us=20, adds_us=13, gather_us=0.5 + 10))
    assert found is not None
    assert (found.product.samples, found.beside) == (0, {DOTS[6]: 0.5})


def test_without_overlap_nothing_is_measured() -> None:
    assert measured(trace(dots_us=20, adds_us=13, gather_us=0.1)) is None


def test_kernels_that_are_faster_beside_a_collective_are_not_sped_up() -> None:
    found = measured(trace(dots_us=8, adds_us=13))
    assert found is not None
    assert found.product.likely == 1.0


def sidecar(found: object) -> Profile:
    return Profile((), {"modules": [{"name": "jit_step", "contention": found}]})


def test_a_profile_keeps_what_was_measured() -> None:
    assert contention_of(sidecar(asdict(MEASURED)), "jit_step") == MEASURED


def test_of_another_module_nothing_was_measured() -> None:
    assert contention_of(sidecar(asdict(MEASURED)), "jit_init") == ASSUMED


def test_a_kind_without_samples_is_assumed() -> None:
    found = contention_of(
        sidecar({**asdict(MEASURED), "other": asdict(Slowdown(1, 1, 1))}), "jit_step"
    )
    assert (found.product, found.other) == (MEASURED.product, ASSUMED.other)


@pytest.mark.parametrize(
    "damaged",
    [None, 7, {}, {"product": 2.0}, {**asdict(MEASURED), "beside": 3}, {**asdict(MEASURED), "product": {"likely": "x"}},
     {**asdict(MEASURED), "product": {"likely": float("nan"), "low": 1, "high": 2, "samples": 9}},
     {**asdict(MEASURED), "product": {**asdict(MEASURED.product), "samples": "many"}},
     {**asdict(MEASURED), "product": {"likely": -1, "low": -1, "high": 2, "samples": 9}}],
)  # fmt: skip
def test_a_damaged_record_is_left_aside(damaged: object) -> None:
    assert contention_of(sidecar(damaged), "jit_step") == ASSUMED


def test_costs_measured_beside_a_collective_are_less_alone() -> None:
    costs = {"dot0": Cost("dot0", 190.0, slowest_us=380.0), "dot1": Cost("dot1", 190.0)}
    found = {
        name: MEASURED.alone(MODULE, cost, MEASURED.likely)
        for name, cost in costs.items()
    }
    assert (found["dot0"].cost_us, found["dot0"].slowest_us) == (
        pytest.approx(100.0),
        pytest.approx(200.0),
    )
    assert found["dot1"] == costs["dot1"]


def test_for_other_schedules_it_is_forgotten_what_ran_beside_collectives() -> None:
    profile = replace(
        sidecar(asdict(MEASURED)), costs=(Cost("dot0", 190.0), Cost("dot1", 190.0))
    )
    found = as_if_alone(profile, MODULE)
    assert [cost.cost_us for cost in found.costs] == [pytest.approx(100.0), 190.0]
    assert contention_of(found, "jit_step") == replace(MEASURED, beside={})


@pytest.mark.parametrize(("hlo", "beside"), [(True, {}), (False, None)])
def test_a_trace_without_overlap_is_known_to_have_none_if_hlo_told_the_collectives(
    hlo: bool, beside: object
) -> None:
    profile = Profile(
        (), {"modules": [{"name": "jit_step", "hlo": hlo, "contention": None}]}
    )
    assert contention_of(profile, "jit_step").beside == beside


@pytest.mark.parametrize(
    ("times", "product", "other"), [(0, 1.0, 1.0), (1, 1.9, 1.3), (2, 2.8, 1.6)]
)
def test_the_range_runs_from_no_contention_to_twice_the_slowdown(
    times: float, product: float, other: float
) -> None:
    assert MEASURED.at(times) == Factors(pytest.approx(product), pytest.approx(other))
