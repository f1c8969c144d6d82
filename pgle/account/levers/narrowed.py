"""How casting parameters and activations to 16 bits changes a step. Its kernels and collectives are
priced again with the new types.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import fsum

from pgle.account.levers.carried import Carried
from pgle.account.levers.flow import Flow
from pgle.account.levers.retyped import Retyped
from pgle.account.levers.savings import between_kernels_us
from pgle.account.step_costs import StepCosts
from pgle.costs.estimate.estimate import estimator
from pgle.xla.hardware import KERNEL_US
from pgle.xla.hlo.module import Instruction


@dataclass(frozen=True, slots=True)
class Narrowed:
    """Microseconds of a step that casting saves and costs."""

    kernels_us: Mapping[str, float]  # saved time by kernel
    communication_us: float  # saved exposed time if the shorter kernels hide less
    most_communication_us: float  # saved exposed time if they hide as much as before
    casts_us: float  # cost of casting parameters, and of casting them back, in kernels of their own


def narrowed(
    step: StepCosts,
    flow: Flow,
    products: Iterable[str],
    carried: Carried | None = None,
) -> Narrowed:
    """Price a step in which the values around some products are half as wide.

    Args:
        products: nodes of the f32 products that get 16-bit inputs.
        carried: what keeps its width all the same; None: nothing.
    """
    retyped = Retyped(flow, products, carried)
    shares = _shares(step, retyped)
    us = step.whole_us
    saved = {
        name: us[name] * (1 - share) for name, share in shares.items() if name in us
    }
    all_us = fsum(us.values())
    left = 1 - fsum(saved.values()) / all_us if all_us > 0 else 1.0
    casts = [_cast_us(step, item) for item in retyped.cast_whole]
    for product, item in retyped.promotions:
        casts.append(step.count.get(product, 0.0) * _cast_us(step, item))
    return Narrowed(
        kernels_us=saved,
        communication_us=_unexposed_us(step, shares, left),
        most_communication_us=_unexposed_us(step, shares, 1.0),
        casts_us=fsum(casts),
    )


def _cast_us(step: StepCosts, wide: Instruction) -> float:
    """Microseconds of a kernel that casts an f32 array to 16 bits, or back."""
    return KERNEL_US + step.hardware.memory_us(1.5 * wide.shape.size_bytes)


def _shares(step: StepCosts, retyped: Retyped) -> Mapping[str, float]:
    """Estimated time with the new types as a share of the time now, by kernel."""
    now = estimator(step.module, step.hardware)
    then = estimator(retyped.module, step.hardware)
    found = {}
    for name, item in retyped.kernels.items():
        now_us = now(step.module.instructions[name])
        if now_us > 0:
            found[name] = then(item) / now_us
    return found


def _unexposed_us(step: StepCosts, shares: Mapping[str, float], hidden: float) -> float:
    """Microseconds of exposed time that collectives save, at most all that is exposed.

    Args:
        shares: new time of each collective as a share of its time now.
        hidden: the share of the overlapping compute that is left.
    """
    saved = []
    for name, exposed_us in step.exposed_us.items():
        if name in step.us:  # it runs on the compute stream and counts as a kernel
            continue
        all_us = step.communication_us.get(name, exposed_us)
        covered_us = hidden * (all_us - exposed_us)
        then_us = max(shares.get(name, 1.0) * all_us - covered_us, 0.0)
        saved.append(exposed_us - then_us)
    # if collectives run at the same time, each has all of their exposed time, so scale the sum
    exposed = fsum(step.exposed_us.values())
    most = between_kernels_us(step)
    return fsum(saved) * min(most / exposed, 1.0) if exposed > 0 else 0.0
