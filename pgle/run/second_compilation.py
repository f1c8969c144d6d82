"""The second compilation that a verdict without a device is checked by, with other kernels for
matrix products.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pgle.errors import UserError, many
from pgle.run.compiler.compile import CompileResult
from pgle.run.compiler.session import Session
from pgle.schedule.control import Controlled, other_choice
from pgle.schedule.predict import Prediction, gain
from pgle.xla.hlo.module import Instruction, Module

FOLDER = "control"  # in the folder of a rehearsal
CUBLAS_FP8 = "__cublas$lt$matmul$f8"
"""Custom call of a product of fp8 arrays (openxla/xla `xla/service/gpu/cublas_cudnn.h`)."""


@dataclass(frozen=True)
class Schedules:
    """Predictions of the schedules of one program, compiled with the same flags."""

    compiled: CompileResult  # LHS without the profile
    baseline: Prediction  # the same
    profiled: Prediction  # LHS with the profile
    default: Prediction | None = None  # XLA's own schedule; None where that has LHS too
    fp8_products: int = 0  # instructions that multiply fp8 arrays


@dataclass(frozen=True)
class Control:
    """The same program with the other kernels for its products."""

    flag: str  # by which XLA takes them
    schedules: Schedules | None  # None: it is the same program
    failure: str = ""  # why there is none, in one line


def control(
    session: Session, flags: Sequence[str], flag: str, make: Callable[[], Schedules]
) -> Control:
    """Compile a program again with one more flag, and schedule it if that makes another program."""
    first = session.without_profile("baseline", flags).result()
    other = session.without_profile(f"{FOLDER}/baseline", (*flags, flag)).result()
    program = session.program(first)
    if program and program == session.program(other):
        return Control(flag, None)
    return Control(flag, make())


def both_schedules(first: Schedules, found: Control | None) -> tuple[Schedules, ...]:
    """The schedules of the first compilation, and of the second one if it did not fail: the same
    ones if it makes the same program.
    """
    if found is None or found.failure:
        return (first,)
    return first, found.schedules or first


def profile_gain(first: Schedules, found: Control | None) -> Controlled:
    """What the profile gains."""
    other = None if found is None else found.schedules
    return Controlled(
        gain(first.baseline, first.profiled),
        None if other is None else gain(other.baseline, other.profiled),
    )


def lhs_gain(first: Schedules, found: Control | None) -> Controlled | None:
    """What LHS alone gains over XLA's own schedule; None where that has LHS too."""
    if first.default is None:
        return None
    alone = gain(first.default, first.baseline)
    other = None if found is None else found.schedules
    if other is None or other.default is None:
        return Controlled(alone)
    return Controlled(alone, gain(other.default, other.baseline))


@dataclass(frozen=True, slots=True)
class Fp8Step:
    """How one compilation multiplies fp8 arrays."""

    products: int  # instructions that multiply them as they are
    step_us: float


def fp8_warning(first: Schedules, found: Control | None) -> str:
    """Whether one of two compilations multiplies fp8 arrays where the other widens them first."""
    other = None if found is None else found.schedules
    if found is None or other is None:
        return ""
    sides = (
        Fp8Step(side.fp8_products, side.baseline.step_us) for side in (first, other)
    )
    return fp8_words(found.flag, *sides)


def fp8_choice_warning(session: Session, made: CompileResult) -> str:
    """As `fp8_warning`, of a schedule without a profile, for a program with fp8 arrays; it is
    scheduled again.
    """
    dtypes = {item.shape.dtype for item in made.scheduled.walk()}
    if not any(dtype.startswith("f8") for dtype in dtypes):
        return ""
    flag = other_choice(session.base.flags)
    try:
        other = session.schedule(f"{FOLDER}-fp8", (*session.base.flags, flag))
    except UserError:  # the verdict of the search hangs on none of it
        return ""
    sides = (
        Fp8Step(fp8_products(side.scheduled), session.predicted(side).step_us)
        for side in (made, other)
    )
    return fp8_words(flag, *sides)


def fp8_words(flag: str, without: Fp8Step, with_flag: Fp8Step) -> str:
    """That two compilations, without a flag and with it, multiply fp8 arrays in other ways; empty
    if they do not.

    Observed with jaxlib 0.10.2: Triton gets bf16 arrays of a scaled product, and cuBLAS the fp8
    ones.
    """
    if without.products == with_flag.products:
        return ""
    return (
        f"{many(with_flag.products, 'product')} of fp8 arrays with {flag}, {without.products:,} "
        "without: the others are kernels of a wider type. A step takes "
        f"{with_flag.step_us / 1e3:,.2f} ms with that flag, {without.step_us / 1e3:,.2f} without; "
        "autotuning on a GPU decides"
    )


def fp8_products(module: Module) -> int:
    """How many instructions multiply fp8 arrays: in a fusion, or by cuBLASLt."""
    return sum(_is_fp8_product(module, item) for item in module.walk())


def _is_fp8_product(module: Module, item: Instruction) -> bool:
    if item.opcode == "custom-call":
        return item.custom_call_target == CUBLAS_FP8
    if item.opcode != "dot":
        return False
    operands = (module.instructions.get(name) for name in item.operands[:2])
    return all(one is not None and one.shape.dtype.startswith("f8") for one in operands)
