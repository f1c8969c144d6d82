"""What a second compilation, with other kernels for products, says of fp8."""

from types import SimpleNamespace
from typing import Any

import pytest

from pgle.report.control import changes
from pgle.run.second_compilation import (
    CUBLAS_FP8,
    Control,
    Schedules,
    fp8_products,
    fp8_warning,
)
from pgle.xla.hlo.module import Computation, Instruction, Module, Shape


def module(*items: Instruction) -> Module:
    return Module(
        "jit_step",
        1,
        "",
        "main",
        {"main": Computation("main", items, items[-1].name)},
        is_scheduled=True,
    )


def item(
    name: str, opcode: str, dtype: str, *operands: str, **more: str
) -> Instruction:
    return Instruction(name, opcode, Shape(dtype, (8, 8)), "main", operands, **more)


def test_cublas_multiplies_fp8_where_triton_got_wider_arrays() -> None:
    small, wide = item("a", "parameter", "f8e4m3fn"), item("b", "convert", "bf16", "a")
    by_cublas = item(
        "c", "custom-call", "bf16", "a", "a", custom_call_target=CUBLAS_FP8
    )
    assert fp8_products(module(small, by_cublas)) == 1
    assert fp8_products(module(small, item("d", "dot", "bf16", "a", "a"))) == 1
    assert fp8_products(module(small, wide, item("d", "dot", "bf16", "b", "b"))) == 0


def schedules(step_us: float, products: int) -> Schedules:
    step: Any = SimpleNamespace(step_us=step_us)
    return Schedules(step, step, step, fp8_products=products)


def test_products_that_are_fp8_in_one_compilation_only_are_named_with_both_steps() -> (
    None
):
    line = fp8_warning(
        schedules(886.0, 0), Control("--flag=false", schedules(441.0, 4))
    )
    assert "4 products of fp8 arrays with --flag=false, 0 without" in line
    assert "0.44 ms with that flag, 0.89 without" in line


def test_equal_products_need_no_word() -> None:
    assert (
        fp8_warning(schedules(9.0, 2), Control("--flag=false", schedules(9.0, 2))) == ""
    )


def test_the_change_by_the_second_compilation_is_against_its_own_first_schedule() -> (
    None
):
    made: Any = SimpleNamespace
    second = Schedules(
        None,
        baseline=made(step_us=90.0),
        profiled=made(step_us=80.0),
        default=made(step_us=100.0),
    )
    found: Any = made(default=object(), control=made(schedules=second))
    assert changes(found) == (None, pytest.approx(-0.1), pytest.approx(-0.2))
    without: Any = made(default=None, control=made(schedules=second))
    assert changes(without) == (None, pytest.approx(80 / 90 - 1))
    assert changes(made(default=None, control=None)) == (None, None)
