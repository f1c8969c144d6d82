"""A verdict that two compilations must share."""

import pytest

from pgle.schedule.control import Controlled, other_choice
from pgle.schedule.predict import Gain


def gain(share: float) -> Gain:
    return Gain(share, share - 0.001, share + 0.001, 0.0)


@pytest.mark.parametrize(
    ("first", "other", "answer", "depends"),
    [
        (0.010, 0.013, 0.010, False),
        (0.059, 0.003, 0.003, False),
        (-0.020, -0.008, -0.008, False),
        (-0.010, 0.014, 0.0, True),
        (0.035, 0.0, 0.0, False),
        (0.003, -0.002, 0.0, False),  # either is too small to matter
    ],
)
def test_the_smaller_change_counts_and_opposite_ones_are_no_answer(
    first: float, other: float, answer: float, depends: bool
) -> None:
    found = Controlled(gain(first), gain(other))
    assert (found.answer.share, found.depends) == (answer, depends)


def test_the_answer_has_the_range_of_both() -> None:
    answer = Controlled(gain(0.010), gain(0.013)).answer
    assert (answer.low, answer.high) == (pytest.approx(0.009), pytest.approx(0.014))


def test_one_compilation_is_its_own_answer() -> None:
    assert Controlled(gain(0.01)).answer == gain(0.01)


@pytest.mark.parametrize(
    ("flags", "other"),
    [
        ((), "--xla_gpu_enable_triton_gemm=false"),
        (("--xla_gpu_enable_triton_gemm=true",), "--xla_gpu_enable_triton_gemm=false"),
        (("--xla_gpu_enable_triton_gemm=false",), "--xla_gpu_enable_triton_gemm=true"),
    ],
)
def test_the_second_compilation_takes_the_other_kernels(
    flags: tuple[str, ...], other: str
) -> None:
    assert other_choice(flags) == other
