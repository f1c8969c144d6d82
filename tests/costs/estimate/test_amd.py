"""AMD's GPUs: XLA's table of gfx950 where it holds, and a range that says what nobody measured."""

from dataclasses import replace

import pytest

from pgle.costs.estimate.communication import DeviceGroup, group_us
from pgle.costs.estimate.estimate import estimator
from pgle.costs.estimate.products import Matmul, matmul_us
from pgle.costs.estimate.unknown import Range, range_of
from pgle.schedule.predict import predict
from pgle.xla.hlo.module import Computation, Instruction, Module, Shape
from pgle.xla.targets import TABLE, Hardware

MI350X, MI300X, H100 = TABLE["mi350x"], TABLE["mi300x"], TABLE["h100-sxm"]


def module(*items: Instruction, devices: int = 1) -> Module:
    made = Module("m", 1, "", "e", {"e": Computation("e", items, items[-1].name)}, True)
    return replace(made, num_partitions=devices)


def parameter(name: str, *dimensions: int) -> Instruction:
    return Instruction(name, "parameter", Shape("bf16", dimensions), "e")


def range_on(hardware: Hardware, of: Module) -> Range | None:
    root = of.instructions[of.entry_computation.root]
    return range_of(of, root, hardware, estimator(of, hardware)(root))


A, B = parameter("a", 4096, 4096), parameter("b", 4096, 4096)
DOT = Instruction(
    "dot",
    "dot",
    Shape("bf16", (4096, 4096)),
    "e",
    operands=("a", "b"),
    dot_lhs_contracting=(1,),
)
IMAGES, KERNEL = parameter("x", 32, 256, 14, 14), parameter("w", 256, 256, 3, 3)
CONVOLUTION = Instruction(
    "conv",
    "custom-call",
    Shape("bf16", (32, 256, 14, 14)),
    "e",
    operands=("x", "w"),
    custom_call_target="__cudnn$convForward",
)


def test_a_product_takes_what_xla_measured() -> None:
    """1,240 TF in XLA's table: 2 x 4096^3 operations in 111 microseconds."""
    product = Matmul(batch=1, m=4096, n=4096, k=4096, dtype="bf16")
    assert matmul_us(product, MI350X) == pytest.approx(2 * 4096**3 / 1240e6, rel=0.02)


def test_a_gather_inside_a_host_takes_what_xla_measured() -> None:
    us = group_us("all-gather", DeviceGroup(8, 1), 1 << 30, MI350X)
    assert us == pytest.approx(2206, rel=0.01)


@pytest.mark.parametrize(
    ("hardware", "has_range"),
    [(H100, False), (MI350X, False), (MI300X, True)],
    ids=lambda item: getattr(item, "name", ""),
)
def test_products_of_a_gpu_without_a_table_have_a_range(
    hardware: Hardware, has_range: bool
) -> None:
    found = range_on(hardware, module(A, B, DOT))
    assert (found is not None) == has_range


def test_convolutions_of_amd_may_run_image_by_image() -> None:
    found = range_on(MI350X, module(IMAGES, KERNEL, CONVOLUTION))
    assert found is not None and "MIOpen" in found.why
    assert found.most_us > 32 * 2 * 1.8  # two kernels for each image


def test_a_step_of_convolutions_says_what_is_not_modelled() -> None:
    of = module(IMAGES, KERNEL, CONVOLUTION)
    (line,) = predict(of, None, MI350X).timeline.warnings
    assert line.startswith("1 convolution of MIOpen: ")
    assert predict(of, None, H100).timeline.warnings == ()


def test_a_collective_between_hosts_has_a_range_where_nobody_measured_it() -> None:
    gather = Instruction(
        "ag", "all-gather", Shape("bf16", (16, 4096, 4096)), "e", operands=("a",)
    )
    of = module(A, gather, devices=16)
    found = range_on(MI350X, of)
    assert found is not None and "RCCL" in found.why
    assert range_on(H100, of) is None


def chain(length: int) -> Module:
    """Kernels that take next to nothing, one after the other."""
    items = [parameter("x0", 8)]
    for number in range(length):
        given = items[-1].name
        items.append(
            Instruction(
                f"copy.{number}", "copy", Shape("bf16", (8,)), "e", operands=(given,)
            )
        )
    return module(*items)


def test_a_step_of_launches_is_a_lower_bound_where_no_launch_is_known() -> None:
    assert predict(chain(50), None, MI350X).lower_bound
    assert not predict(chain(50), None, H100).lower_bound
