"""Products of f32 values. The GPU multiplies far faster if inputs have fewer bits."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import fsum
from typing import TYPE_CHECKING

from pgle.account.levers.flow import Flow
from pgle.account.levers.places import places, taken_us
from pgle.account.levers.savings import least_saved_us
from pgle.account.step_costs import StepCosts
from pgle.account.value import Basis, Opportunity, OpportunityKind, StepPart
from pgle.costs.estimate.estimate import estimator
from pgle.costs.estimate.products import Matmul, least_product_us, matmul_us
from pgle.errors import in_words, many
from pgle.xla.hlo.module import Instruction
from pgle.xla.vendors import NVIDIA, maker_of

if TYPE_CHECKING:
    from pgle.account.levers.narrowed import Narrowed

# rounds operands in f32 to bf16, as `Matmul.precision`
_ALGORITHM = "dot_bf16_bf16_f32"

# arithmetic of f32 products: full precision, and XLA's default
_SLOW = ("f32", "tf32")


@dataclass(frozen=True, slots=True)
class _Slow:
    """One kernel that multiplies f32 values."""

    kernel: str
    times: float  # executions in a step
    other_us: float  # estimated time with shorter inputs, per execution
    least_us: float  # the same time at the GPU's peak
    is_exact: bool  # whether the program asks for full precision

    @property
    def likely_us(self) -> float:
        """Estimated microseconds in a step with shorter inputs."""
        return self.times * self.other_us


@dataclass(frozen=True, slots=True)
class _Saving:
    """Saved microseconds of a step."""

    expected_us: float
    least_us: float
    most_us: float
    part: StepPart = StepPart.COMPUTE  # the part that gets shorter most


def _of_casts(casts: Narrowed, least_us: float, at_peak_us: float) -> _Saving:
    """The saving if parameters and activations are cast.

    The upper bound assumes that casts cost nothing, that kernels hide as much communication as
    before, and that products run at the GPU's peak.

    Args:
        least_us: the lower bound.
        at_peak_us: what products at the peak save beyond the expected saving.
    """
    kernels_us = fsum(casts.kernels_us.values())
    expected_us = kernels_us + casts.communication_us - casts.casts_us
    most_us = kernels_us + casts.most_communication_us + max(at_peak_us, 0.0)
    is_moved = casts.communication_us > kernels_us
    return _Saving(
        expected_us=min(max(expected_us, 0.0), most_us),
        least_us=least_us,
        most_us=most_us,
        part=StepPart.COMMUNICATION if is_moved else StepPart.COMPUTE,
    )


def find(step: StepCosts, flow: Flow) -> Opportunity | None:
    """What products save alone: as TF32 if most have full precision, else in bfloat16."""
    slow = _slow_products(step, flow)
    if not slow:
        return None
    if _are_exact(step, slow):
        return _as_tf32(step, slow)
    rounded = [item for item in slow if not item.is_exact]
    # XLA:GPU rounds the operands of a product on NVIDIA's GPUs only
    if maker_of(step.hardware) is not NVIDIA:
        return None
    return _rounded(step, flow, rounded)


def _as_tf32(step: StepCosts, slow: Sequence[_Slow]) -> Opportunity:
    likely = sum(item.likely_us for item in slow)
    least = sum(item.times * item.least_us for item in slow)
    return _of_products(
        step,
        slow,
        likely_us=likely,
        most_us=taken_us(step, _kernels(slow)) - least,
        title="Multiply as TF32",
        why=_why(step, slow, "f32 without Tensor Cores", "as TF32", likely),
        edit=_TF32,
    )


def _rounded(step: StepCosts, flow: Flow, every: Sequence[_Slow]) -> Opportunity | None:
    """The saving if operands are rounded: each kernel is priced again with other products. Kernels
    whose products lose the algorithm stay as they are.
    """
    # most programs need none of this
    from pgle.account.levers.algorithms import WITH_AXES, keeps_algorithm

    names = {name for name in _of_f32(flow) if keeps_algorithm(flow, name)}
    shares = _shares_of_rounded(step, flow, names)
    slow = [item for item in every if item.kernel in shares]
    if not slow:
        return None
    kernels = _kernels(slow)
    left = len(every) - len(slow)
    edit = f"{_ROUND} {WITH_AXES}" if left else _ROUND
    likely = fsum(step.us[name] * min(shares[name], 1.0) for name in kernels)
    least = fsum(item.times * item.least_us for item in slow)
    return _of_products(
        step,
        slow,
        likely_us=likely,
        most_us=taken_us(step, kernels) - least,
        title="Multiply in bfloat16",
        why=_why(step, slow, "f32", "with operands in bfloat16", likely) + _left(left),
        edit=edit,
        code=_ROUND_CODE,
    )


def _shares_of_rounded(
    step: StepCosts, flow: Flow, names: Collection[str]
) -> Mapping[str, float]:
    """By kernel with some of the named products, how much of its time it takes if XLA rounds their
    operands.
    """

    def rounded(item: Instruction) -> Instruction:
        is_product = item.name in names
        return replace(item, precision=_ALGORITHM) if is_product else item

    before = step.module
    computations = {
        name: replace(each, instructions=tuple(map(rounded, each.instructions)))
        for name, each in before.computations.items()
    }
    module = replace(before, computations=computations)
    now = estimator(before, step.hardware)
    then = estimator(module, step.hardware)
    found = {}
    for name in {flow.kernel[each] for each in names}:
        now_us = now(before.instructions[name])
        then_us = then(module.instructions[name])
        found[name] = then_us / now_us if now_us > 0 else 1.0
    return found


def _of_products(
    step: StepCosts,
    slow: Sequence[_Slow],
    *,
    likely_us: float,
    most_us: float,
    title: str,
    why: str,
    edit: str,
    code: str = "",
) -> Opportunity:
    kernels = _kernels(slow)
    now_us = taken_us(step, kernels)
    expected_us = max(now_us - likely_us, 0.0)
    return Opportunity(
        kind=OpportunityKind.PRECISION,
        expected_us=expected_us,
        least_us=least_saved_us(now_us, likely_us),
        most_us=max(most_us, expected_us),
        part=StepPart.COMPUTE,
        basis=Basis.ESTIMATED,
        title=title,
        why=why,
        edit=edit,
        code=code,
        where=places(step, kernels),
        instructions=frozenset(kernels),
    )


def find_cast(step: StepCosts, flow: Flow) -> Opportunity | None:
    """What a cast of parameters and activations to bfloat16 saves; None if most products have
    full precision.
    """
    slow = _slow_products(step, flow)
    if not slow or _are_exact(step, slow):
        return None
    # most programs need none of this
    from pgle.account.levers.carried import Carried
    from pgle.account.levers.narrowed import narrowed

    kernels = _kernels(slow)
    now_us = taken_us(step, kernels)
    least = sum(item.times * item.least_us for item in slow)
    carried = Carried(flow)
    casts = narrowed(step, flow, _of_f32(flow), carried)
    likely = now_us - _saved_us(casts, kernels)
    surely = min(least_saved_us(now_us, likely) - casts.casts_us, 0.0)
    saving = _of_casts(casts, surely, likely - least)
    if carried.loops:
        whole = narrowed(step, flow, _of_f32(flow))
        at_peak_us = now_us - _saved_us(whole, kernels) - least
        most_us = _of_casts(whole, surely, at_peak_us).most_us
        saving = replace(saving, most_us=max(saving.most_us, most_us))
    shortened = {name: us for name, us in casts.kernels_us.items() if us > 0}
    shortened[StepPart.COMMUNICATION] = max(casts.communication_us, 0.0)
    other_us = saving.expected_us - (now_us - likely)
    why = _why(step, slow, "f32", "in bfloat16", likely) + _elsewhere(other_us)
    return Opportunity(
        kind=OpportunityKind.CAST,
        expected_us=saving.expected_us,
        least_us=saving.least_us,
        most_us=saving.most_us,
        part=saving.part,
        basis=Basis.ESTIMATED,
        title="Cast to bfloat16",
        why=why,
        edit=_BF16 + _of_state(len(carried.loops)),
        where=places(step, kernels),
        instructions=frozenset(kernels),
        shortened=shortened,
    )


def _left(products: int) -> str:
    """Say how many products XLA does not round."""
    if not products:
        return ""
    return f"; XLA drops that of {many(products, 'other product')}"


def _saved_us(casts: Narrowed, kernels: Sequence[str]) -> float:
    """Microseconds of a step that a cast saves in some kernels."""
    return fsum(casts.kernels_us.get(name, 0.0) for name in kernels)


def _of_state(loops: int) -> str:
    """Say what to write if the state of loops would stay in f32."""
    if not loops:
        return ""
    return (
        f" {many(loops, 'loop')} may begin with an f32 array of the program's own, and then "
        "stay in f32: begin with the data's type, as in jnp.zeros(shape, x.dtype)."
    )


def _kernels(slow: Sequence[_Slow]) -> Sequence[str]:
    return [item.kernel for item in slow]


def _are_exact(step: StepCosts, slow: Sequence[_Slow]) -> bool:
    """Whether most of the time is of products in full precision."""
    exact = [item.kernel for item in slow if item.is_exact]
    return taken_us(step, exact) > taken_us(step, _kernels(slow)) / 2


def _why(
    step: StepCosts, slow: Sequence[_Slow], kind: str, other: str, likely: float
) -> str:
    now_us = taken_us(step, _kernels(slow))
    found = f"{many(len(slow), 'product')} in {kind}: {in_words(now_us)} a step"
    return f"{found}, {other} {in_words(likely)}"


def _elsewhere(saved_us: float) -> str:
    """Say what a cast saves or costs outside of the products, in microseconds, so that the words
    add up to the saving; empty if that is less than a microsecond.
    """
    if abs(saved_us) < 1:
        return ""
    if saved_us < 0:
        return f"; casts cost {in_words(-saved_us)} of that"
    return f"; other kernels and collectives, with half the bytes, {in_words(saved_us)} less"


_TF32 = (
    "Remove precision=HIGHEST and jax_default_matmul_precision from products that "
    "training does not need in full f32. TF32 rounds inputs to 10 bits: compare the loss."
)
_ROUND = (
    "Write this where the program begins. It rounds operands of products to 7 bits, adds in f32 "
    "and changes no type: compare the loss."
)
_ROUND_CODE = 'jax.config.update("jax_default_matmul_precision", "BF16_BF16_F32")'
_BF16 = (
    "Cast parameters and activations to bfloat16 before the layers, and keep f32 "
    "parameters in the optimizer (mixed precision). bfloat16 rounds to 7 bits: keep the "
    "softmax and the loss in f32, and compare the loss. The saving depends on what is cast: "
    "casts of parameters alone may cost it."
)


def _slow_products(step: StepCosts, flow: Flow) -> Sequence[_Slow]:
    """Kernels with f32 products that shorter inputs would make faster."""
    by_kernel: dict[str, list[Matmul]] = {}
    for name, size in (*flow.products.items(), *flow.convolutions.items()):
        if size.arithmetic.family in _SLOW and size.dtype in _SLOW:
            by_kernel.setdefault(flow.kernel[name], []).append(size)
    found = []
    for kernel, sizes in by_kernel.items():
        times = step.count.get(kernel, 0.0)
        now_us = step.us.get(kernel, 0.0)
        others = [_faster(size) for size in sizes]
        other_us = sum(matmul_us(size, step.hardware) for size in others)
        least = sum(least_product_us(size, step.hardware) for size in others)
        if times * other_us < now_us:
            is_exact = any(size.arithmetic.family == "f32" for size in sizes)
            found.append(
                _Slow(
                    kernel=kernel,
                    times=times,
                    other_us=other_us,
                    least_us=least,
                    is_exact=is_exact,
                )
            )
    return found


def _of_f32(flow: Flow) -> Iterator[str]:
    """Nodes of all f32 products that run as TF32 on Tensor Cores."""
    for name, size in (*flow.products.items(), *flow.convolutions.items()):
        if size.dtype in _SLOW and size.arithmetic.family == "tf32":
            yield name


def _faster(size: Matmul) -> Matmul:
    """The product in the next faster arithmetic: full f32 becomes TF32, and TF32 becomes bf16."""
    if size.arithmetic.family == "f32":
        return replace(size, precision="")
    return replace(size, dtype="bf16", precision="")
