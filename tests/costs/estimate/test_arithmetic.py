"""Products take the peak of the arithmetic that their precision allows; transforms and solvers
count what they do.

Peaks are those of NVIDIA's data sheet of the H100 SXM: FP32 67 TFLOP/s, TF32 494, bf16 989, FP64 67
on tensor cores.
"""

import json
from dataclasses import replace

import pytest

from pgle.costs.estimate.estimate import compute_us, least_us
from pgle.costs.estimate.passes import fft_passes
from pgle.xla.hlo.module import Computation, Instruction, Module, Shape
from pgle.xla.hlo.text import module_from_text
from pgle.xla.targets import TABLE

H100 = TABLE["h100-sxm"]
N = 8192
FLOPS = 2 * N**3


def module(*items: Instruction) -> Module:
    return Module("m", 1, "", "e", {"e": Computation("e", items, items[-1].name)}, True)


def given(name: str, dtype: str, *dimensions: int) -> Instruction:
    return Instruction(name, "parameter", Shape(dtype, dimensions), "e")


def product(dtype: str, precision: str) -> tuple[Module, Instruction]:
    shape = Shape(dtype, (N, N))
    dot = Instruction(
        "d",
        "dot",
        shape,
        "e",
        ("x", "y"),
        dot_lhs_contracting=(1,),
        precision=precision,
    )
    return module(given("x", dtype, N, N), given("y", dtype, N, N), dot), dot


@pytest.mark.parametrize(
    ("dtype", "precision", "tflops"),
    [
        ("f32", "", 494),
        ("f32", "high", 494),
        ("f32", "highest", 67),
        ("f32", "dot_bf16_bf16_f32", 989),
        ("f32", "dot_bf16_bf16_f32_x3", 989 / 3),
        ("f32", "dot_tf32_tf32_f32_x3", 494 / 3),
        ("bf16", "highest", 989),
        ("f64", "", 67),
        ("c64", "highest", 67 / 3),
    ],
)
def test_no_product_is_faster_than_the_arithmetic_that_it_asks_for(
    dtype: str, precision: str, tflops: float
) -> None:
    of, dot = product(dtype, precision)
    needed_us = FLOPS / (tflops * 1e6)
    assert least_us(of, dot, H100) == pytest.approx(needed_us)
    assert compute_us(of, dot, H100) >= needed_us


def test_a_cublas_call_keeps_its_precision_in_its_configuration() -> None:
    numbers = {"lhs_contracting_dimensions": ["1"]}
    precision = {"operand_precision": ["HIGHEST", "HIGHEST"], "algorithm": "ALG_UNSET"}
    config = {
        "gemm_backend_config": {
            "dot_dimension_numbers": numbers,
            "precision_config": precision,
        }
    }
    shape = Shape("tuple", elements=(Shape("f32", (N, N)), Shape("s8", (1 << 25,))))
    call = Instruction(
        "c",
        "custom-call",
        shape,
        "e",
        ("x", "y"),
        custom_call_target="__cublas$gemm",
        backend_config=json.dumps(config),
    )
    of = module(given("x", "f32", N, N), given("y", "f32", N, N), call)
    assert least_us(of, call, H100) == pytest.approx(FLOPS / 67e6)


def test_the_workspace_of_a_library_is_not_moved() -> None:
    shape = Shape(
        "tuple", elements=(Shape("bf16", (256, 256)), Shape("s8", (1 << 25,)))
    )
    items = given("x", "bf16", 256, 256), given("y", "bf16", 256, 256)
    call = Instruction(
        "c", "custom-call", shape, "e", ("x", "y"), custom_call_target="__cublas$gemm"
    )
    dot = Instruction(
        "d", "dot", shape.elements[0], "e", ("x", "y"), dot_lhs_contracting=(1,)
    )
    assert compute_us(module(*items, call), call, H100) == pytest.approx(
        compute_us(module(*items, dot), dot, H100)
    )


TEXT = b"""HloModule m, is_scheduled=true

ENTRY %e (x: f32[8,8], z: c64[4,8]) -> c64[4,8] {
  %x = f32[8,8]{1,0} parameter(0)
  %z = c64[4,8]{1,0} parameter(1)
  %a = f32[8,8]{1,0} dot(%x, %x), lhs_contracting_dims={1}, rhs_contracting_dims={0}, operand_precision={high,highest}
  %b = f32[8,8]{1,0} dot(%x, %x), lhs_contracting_dims={1}, rhs_contracting_dims={0}, algorithm=dot_bf16_bf16_f32_x3
  ROOT %f = c64[4,8]{1,0} fft(%z), fft_type=FFT, fft_length={4,8}
}
"""


def test_text_states_precision_and_lengths() -> None:
    items = module_from_text(TEXT, "m.txt").instructions
    assert items["a"].precision == "highest"
    assert items["b"].precision == "dot_bf16_bf16_f32_x3"
    assert items["f"].fft_length == (4, 8)


def transform(
    *lengths: int, dtype: str = "c64", batch: int = 1
) -> tuple[Module, Instruction]:
    shape = Shape(dtype, (batch, *lengths))
    fft = Instruction("f", "fft", shape, "e", ("x",), fft_length=lengths)
    return module(given("x", dtype, batch, *lengths), fft), fft


@pytest.mark.parametrize(
    ("lengths", "passes"),
    [
        ((1024,), 1),
        ((128, 128), 1),
        ((4096, 4096), 2),
        ((1 << 26,), 2),
        ((512, 512, 512), 3),
    ],
)
def test_a_transform_passes_over_memory_once_for_what_fits_into_shared_memory(
    lengths: tuple[int, ...], passes: int
) -> None:
    assert fft_passes(*transform(*lengths)) == passes


def test_a_long_prime_length_takes_two_transforms_of_twice_its_length() -> None:
    assert fft_passes(*transform(4099)) == 4


def test_a_plane_of_transforms_takes_at_least_two_passes_at_the_peak() -> None:
    of, fft = transform(4096, 4096, batch=16)
    two_passes_us = 2 * 2 * fft.shape.size_bytes / 3352e3
    assert compute_us(of, fft, H100) > two_passes_us


def solver(
    target: str, *dimensions: int, dtype: str = "f32"
) -> tuple[Module, Instruction]:
    call = Instruction(
        "c",
        "custom-call",
        Shape(dtype, dimensions),
        "e",
        ("a", "b"),
        custom_call_target=target,
    )
    return module(
        given("a", dtype, *dimensions), given("b", dtype, *dimensions), call
    ), call


@pytest.mark.parametrize(
    ("target", "operations"),
    [
        ("cusolver_potrf_ffi", N**3 / 3),
        ("cusolver_getrf_ffi", N**3 * 2 / 3),
        ("cusolver_geqrf_ffi", N**3 * 4 / 3),
        ("cusolver_orgqr_ffi", N**3 * 4 / 3),
        ("cusolver_syevd_ffi", N**3 * 4 / 3),
        ("cusolver_gesvdj_ffi", N**3 * 8 / 3),
        ("__cublas$triangularSolve", N**3),
    ],
)
def test_a_solver_takes_its_least_operations_without_tensor_cores(
    target: str, operations: float
) -> None:
    of, call = solver(target, N, N)
    assert least_us(of, call, H100) == pytest.approx(operations / 67e6)


def test_q_applied_to_one_vector_takes_four_operations_for_each_number_of_a_reflector() -> (
    None
):
    call = Instruction(
        "c",
        "custom-call",
        Shape("f32", (N, 1)),
        "e",
        operands=("a", "tau", "b"),
        custom_call_target="cusolver_ormqr_ffi",
    )
    reflectors = given("a", "f32", N, 64)
    vector = given("b", "f32", N, 1)
    of = module(reflectors, given("tau", "f32", 64), vector, call)
    assert least_us(of, call, H100) == pytest.approx(2 * 64 * (2 * N - 64) / 67e6)


def test_a_sort_inside_a_fusion_passes_over_memory_as_often_as_alone() -> None:
    count = 1 << 20
    keys = given("x", "f32", count)
    sort = Instruction("s", "sort", keys.shape, "e", ("x",))
    inner = (
        replace(given("p", "f32", count), parameter_number=0),
        Instruction("s", "sort", keys.shape, "f", ("p",)),
    )
    fusion = Instruction("fusion", "fusion", keys.shape, "e", ("x",), called=("f",))
    alone = compute_us(module(keys, sort), sort, H100)
    computations = {
        "e": Computation("e", (keys, fusion), "fusion"),
        "f": Computation("f", inner, "s", True),
    }
    of = Module("m", 1, "", "e", computations, True)
    assert compute_us(of, fusion, H100) == pytest.approx(alone)
