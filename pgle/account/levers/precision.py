"""Products of f32 values. The GPU multiplies far faster if inputs have fewer bits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import fsum

from pgle.account.levers.flow import Flow
from pgle.account.levers.narrowed import Narrowed, narrowed
from pgle.account.levers.places import places, taken_us
from pgle.account.levers.savings import least_saved_us
from pgle.account.step_costs import StepCosts
from pgle.account.value import Basis, Opportunity, OpportunityKind, StepPart
from pgle.costs.estimate.products import Matmul, least_product_us, matmul_us
from pgle.errors import in_words, many

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
    """The saving by TF32 if most products have full precision, else by bfloat16."""
    slow = _slow_products(step, flow)
    if not slow:
        return None
    kernels = [item.kernel for item in slow]
    now_us = taken_us(step, kernels)
    least = sum(item.times * item.least_us for item in slow)
    exact = [item.kernel for item in slow if item.is_exact]
    is_exact = taken_us(step, exact) > now_us / 2
    if is_exact:
        likely = sum(item.likely_us for item in slow)
        saving = _Saving(
            now_us - likely, least_saved_us(now_us, likely), now_us - least
        )
    else:
        casts = narrowed(step, flow, _of_f32(flow))
        likely = now_us - fsum(casts.kernels_us.get(name, 0.0) for name in kernels)
        surely = min(least_saved_us(now_us, likely) - casts.casts_us, 0.0)
        saving = _of_casts(casts, surely, likely - least)
    why = _why(len(slow), now_us, likely, is_exact)
    return Opportunity(
        kind=OpportunityKind.PRECISION,
        expected_us=saving.expected_us,
        least_us=saving.least_us,
        most_us=saving.most_us,
        part=saving.part,
        basis=Basis.ESTIMATED,
        title="Multiply as TF32" if is_exact else "Multiply in bfloat16",
        why=why,
        edit=_TF32 if is_exact else _BF16,
        where=places(step, kernels),
        instructions=frozenset(kernels),
    )


def _why(count: int, now_us: float, likely: float, is_exact: bool) -> str:
    kind = "f32 without Tensor Cores" if is_exact else "f32"
    other = "as TF32" if is_exact else "in bfloat16"
    found = f"{many(count, 'product')} in {kind}: {in_words(now_us)} a step"
    return f"{found}, {other} {in_words(likely)}"


_TF32 = (
    "Remove precision=HIGHEST and jax_default_matmul_precision from products that "
    "training does not need in full f32. TF32 rounds inputs to 10 bits: compare the loss."
)
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
