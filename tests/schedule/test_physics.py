"""No step is below what the GPU can do, and what must be monotonic is: on 200 modules drawn at
random.

The bounds are counted from the shapes as they are drawn, with figures of the data sheet of NVIDIA's
H100 SXM, and not by the functions under test.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import pairwise
from random import Random

import pytest
from simulated import simulate

from pgle.costs.measure.contention import LaunchGaps
from pgle.costs.profile.value import Cost, Profile
from pgle.schedule.predict import Prediction, predict
from pgle.xla.hlo.module import Computation, Instruction, Module, Shape
from pgle.xla.targets import TABLE, Hardware
from tests.helpers.random_modules import RandomModule, Work

H100 = TABLE["h100-sxm"]
BF16_FLOPS, NVLINK_BYTES, PCIE_BYTES = (
    989e12,
    450e9,
    64e9,
)  # per second; of the links per direction
ROUNDING = 1e-6
SEEDS = range(200)


@cache
def drawn(seed: int) -> RandomModule:
    return RandomModule(seed)


@cache
def estimated(seed: int, gpu: str) -> Prediction:
    return predict(drawn(seed).module, None, TABLE[gpu])


def bound_us(work: Work) -> float:
    seconds = (
        work.operations / BF16_FLOPS,
        work.link_bytes
        / NVLINK_BYTES
        * (235 * 450)
        / (300 * 371),  # the product's bound is a twentieth lower
        work.out_bytes / PCIE_BYTES,
        work.in_bytes / PCIE_BYTES,
    )
    return max(seconds) * 1e6


def costs_of(module: Module, random: Random, most_us: float) -> dict[str, Cost]:
    names = [
        item.name
        for item in module.walk()
        if item.opcode not in ("parameter", "while", "conditional")
    ]
    return {name: Cost(name, random.uniform(0, most_us)) for name in names}


PRODUCT_US = 2 * 8192**3 / BF16_FLOPS * 1e6


def two_products() -> Module:
    """Two products of 8192³, of which XLA runs one asynchronously."""
    shape = Shape("bf16", (8192, 8192))
    x = Instruction("x", "parameter", shape, "e")
    inner = (
        Instruction("p", "parameter", shape, "b"),
        Instruction("inner", "dot", shape, "b", ("p", "p"), dot_lhs_contracting=(1,)),
    )
    entry = (
        x,
        Instruction(
            "start",
            "async-start",
            Shape("tuple", elements=(shape,)),
            "e",
            ("x",),
            called=("b",),
        ),
        Instruction("dot", "dot", shape, "e", ("x", "x"), dot_lhs_contracting=(1,)),
        Instruction("done", "async-done", shape, "e", ("start",), called=("b",)),
    )
    return Module(
        "m",
        1,
        "",
        "e",
        {"e": Computation("e", entry, "done"), "b": Computation("b", inner, "inner")},
        True,
    )


def test_two_products_at_once_share_the_gpu() -> None:
    found = predict(two_products(), None, H100)
    assert found.program.least_us == pytest.approx(2 * PRODUCT_US)
    assert found.interval_us[0] >= 2223


def test_costs_below_the_peak_are_named_with_what_to_check() -> None:
    found = predict(
        two_products(), Profile((Cost("start", 1.0), Cost("dot", 2.0))), H100
    )
    assert found.step_us == pytest.approx(2 * PRODUCT_US)
    (line,) = found.timeline.warnings
    assert (
        "a step of 6 µs, but the GPU needs at least 2,223 (start has 1 and needs 1,112)"
        in line
    )
    assert "--target" in line


def test_estimated_steps_and_their_ranges_do_not_beat_the_data_sheet() -> None:
    for seed in SEEDS:
        found = estimated(seed, "h100-sxm")
        assert found.interval_us[0] >= bound_us(drawn(seed).work) * (1 - ROUNDING), seed


def test_costs_that_are_too_small_do_not_either() -> None:
    raised = 0
    for seed in SEEDS:
        costs = costs_of(drawn(seed).module, Random(seed), 20.0)
        found = predict(drawn(seed).module, Profile(tuple(costs.values())), H100)
        assert found.step_us >= bound_us(drawn(seed).work) * (1 - ROUNDING), seed
        raised += any("needs at least" in line for line in found.timeline.warnings)
    assert raised > 100  # else the bound was not what was tried


def test_without_contention_more_cost_is_never_a_shorter_step() -> None:
    # Every start is the latest of some ends, and order and queues do not change: a system of maxima
    # and sums.
    launch = LaunchGaps()
    for seed in SEEDS:
        random, module = Random(seed), drawn(seed).module
        costs = costs_of(module, random, 300.0)
        before = simulate(module, costs, launch=launch).step_us
        name = random.choice(list(costs))
        more = {**costs, name: Cost(name, costs[name].cost_us + random.uniform(0, 200))}
        assert simulate(module, more, launch=launch).step_us >= before * (
            1 - ROUNDING
        ), seed


def test_a_step_is_no_shorter_than_any_of_its_queues() -> None:
    for seed in SEEDS:
        module = drawn(seed).module
        found = predict(
            module, Profile(tuple(costs_of(module, Random(seed), 300.0).values())), H100
        )
        lengths = [found.timeline.busy(stream).length for stream in (0, 1, 2)]
        assert max(lengths) <= found.step_us * (1 + ROUNDING), seed
        assert found.shortest_us <= found.step_us * (1 + ROUNDING), seed


def faster(gpu: Hardware, times: float) -> Hardware:
    return replace(
        gpu,
        tflops={dtype: peak * times for dtype, peak in gpu.tflops.items()},
        memory_gb_s=gpu.memory_gb_s * times,
        clock_ghz=gpu.clock_ghz * times,
        nvlink_gb_s=gpu.nvlink_gb_s * times,
        nic_gb_s=gpu.nic_gb_s * times,
        host_gb_s=gpu.host_gb_s * times,
    )


@pytest.mark.parametrize("times", [1.3])
def test_a_gpu_with_more_of_everything_is_never_slower(times: float) -> None:
    for seed in SEEDS:
        fast = predict(drawn(seed).module, None, faster(H100, times))
        assert fast.step_us <= estimated(seed, "h100-sxm").step_us * (1 + ROUNDING), (
            seed
        )


def test_each_gpu_of_nvidia_is_no_slower_than_the_one_before() -> None:
    names = [name for name, gpu in TABLE.items() if gpu.library == H100.library]
    for seed in SEEDS[::5]:  # all 200 hold, and take seconds for each GPU
        steps = [estimated(seed, name).step_us for name in names]
        assert all(
            after <= before * (1 + ROUNDING) for before, after in pairwise(steps)
        ), seed
