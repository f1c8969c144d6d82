"""A second compilation, with other kernels for matrix products, that checks a verdict made without
a GPU.
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

FOLDER = "control"  # folder name inside a rehearsal's folder
CUBLAS_FP8 = "__cublas$lt$matmul$f8"
"""Custom call of a product of fp8 arrays (openxla/xla `xla/service/gpu/cublas_cudnn.h`)."""


@dataclass(frozen=True)
class Schedules:
    """Predictions of one program's schedules, compiled with equal flags."""

    compiled: CompileResult  # the compilation with LHS and no profile
    baseline: Prediction  # the prediction with LHS and no profile
    profiled: Prediction  # the prediction with LHS and the profile
    default: Prediction | None = None  # XLA's default schedule; None: it uses LHS too
    fp8_products: int = 0  # instructions that multiply fp8 arrays


@dataclass(frozen=True)
class Control:
    """The same program with the other kernels for its products."""

    flag: str  # the flag that selects these kernels
    schedules: Schedules | None  # None: the flag does not change the program
    failure: str = ""  # why there is no second compilation, in one line


def unchecked(error: UserError) -> str:
    """Say in a line why one compilation decides."""
    return f"not checked by a second compilation: {error}"


def control(
    session: Session, flags: Sequence[str], flag: str, make: Callable[[], Schedules]
) -> Control:
    """Compile a program again with one more flag. Schedule it if the flag changes the program.

    If there is no second opinion, one compilation decides, and the failure says so.
    """
    try:
        return _control(session, flags, flag, make)
    except UserError as error:
        return Control(flag, None, unchecked(error))


def _control(
    session: Session, flags: Sequence[str], flag: str, make: Callable[[], Schedules]
) -> Control:
    again = session.with_other_kernels(f"{FOLDER}/baseline", flags)
    first = session.without_profile("baseline", flags).result()
    other = session.without_profile(f"{FOLDER}/baseline", again).result()
    program = session.program(first)
    if program and program == session.program(other):
        return Control(flag, None)
    return Control(flag, make())


def both_schedules(first: Schedules, found: Control | None) -> tuple[Schedules, ...]:
    """Return the schedules of the first compilation, and of the second one unless it failed. If the
    flag does not change the program, the first schedules count twice.
    """
    if found is None or found.failure:
        return (first,)
    return first, found.schedules or first


def profile_gain(first: Schedules, found: Control | None) -> Controlled:
    """Return the gain from the profile, by both compilations."""
    other = None if found is None else found.schedules
    return Controlled(
        gain(first.baseline, first.profiled),
        None if other is None else gain(other.baseline, other.profiled),
    )


def lhs_gain(first: Schedules, found: Control | None) -> Controlled | None:
    """Return the gain of LHS over XLA's default schedule; None if the default uses LHS too."""
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

    products: int  # instructions that multiply fp8 arrays without widening them
    step_us: float


def fp8_warning(first: Schedules, found: Control | None) -> str:
    """Return a warning if one of two compilations multiplies fp8 arrays and the other widens them
    first.
    """
    other = None if found is None else found.schedules
    if found is None or other is None:
        return ""
    sides = (
        Fp8Step(side.fp8_products, side.baseline.step_us) for side in (first, other)
    )
    return fp8_words(found.flag, *sides)


def fp8_choice_warning(session: Session, made: CompileResult) -> str:
    """Return the warning of `fp8_warning` for a schedule without a profile. Schedules a program
    with fp8 arrays again.
    """
    dtypes = {item.shape.dtype for item in made.scheduled.walk()}
    if not any(dtype.startswith("f8") for dtype in dtypes):
        return ""
    name = f"{FOLDER}-fp8"
    try:
        again = session.with_other_kernels(name, session.base.flags)
        other = session.schedule(name, again)
    except UserError:  # the search does not depend on this check
        return ""
    sides = (
        Fp8Step(fp8_products(side.scheduled), session.predicted(side).step_us)
        for side in (made, other)
    )
    return fp8_words(other_choice(session.base.flags), *sides)


def fp8_words(flag: str, without: Fp8Step, with_flag: Fp8Step) -> str:
    """Return a text if two compilations, without and with a flag, multiply fp8 arrays differently;
    else empty.

    Observed with jaxlib 0.10.2: for a scaled product, Triton gets bf16 arrays and cuBLAS gets fp8
    arrays.
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
    """Return how many instructions multiply fp8 arrays, in a fusion or by cuBLASLt."""
    return sum(_is_fp8_product(module, item) for item in module.walk())


def _is_fp8_product(module: Module, item: Instruction) -> bool:
    if item.opcode == "custom-call":
        return item.custom_call_target == CUBLAS_FP8
    if item.opcode != "dot":
        return False
    operands = (module.instructions.get(name) for name in item.operands[:2])
    return all(one is not None and one.shape.dtype.startswith("f8") for one in operands)
