"""What casting parameters and activations to 16 bits does to a step: its kernels and collectives
are priced again with the other types.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import fsum

from pgle.account.levers.flow import Flow
from pgle.account.levers.retyped import Retyped
from pgle.account.levers.savings import between_kernels_us
from pgle.account.step_costs import StepCosts
from pgle.costs.estimate.estimate import estimator
from pgle.xla.hardware import KERNEL_US


@dataclass(frozen=True, slots=True)
class Narrowed:
    """Microseconds of a step that casting saves and costs."""

    kernels_us: Mapping[str, float]  # saved, by kernel
    communication_us: float  # exposed time saved if kernels hide less than before
    most_communication_us: float  # if they hide as much
    casts_us: float  # of parameters, if each is a kernel


def narrowed(step: StepCosts, flow: Flow, products: Iterable[str]) -> Narrowed:
    """What follows if the values around some products become half as wide.

    Args:
        products: nodes of f32 products that take 16 bits then.
    """
    retyped = Retyped(flow, products)
    shares = _shares(step, retyped)
    us = step.whole_us
    saved = {
        name: us[name] * (1 - share) for name, share in shares.items() if name in us
    }
    all_us = fsum(us.values())
    left = 1 - fsum(saved.values()) / all_us if all_us > 0 else 1.0
    hardware = step.hardware
    casts = [
        KERNEL_US + hardware.memory_us(1.5 * item.shape.size_bytes)
        for item in retyped.cast_whole
    ]
    return Narrowed(
        kernels_us=saved,
        communication_us=_unexposed_us(step, shares, left),
        most_communication_us=_unexposed_us(step, shares, 1.0),
        casts_us=fsum(casts),
    )


def _shares(step: StepCosts, retyped: Retyped) -> Mapping[str, float]:
    """By kernel, how much of its time it takes with the other types."""
    now = estimator(step.module, step.hardware)
    then = estimator(retyped.module, step.hardware)
    found = {}
    for name, item in retyped.kernels.items():
        now_us = now(step.module.instructions[name])
        if now_us > 0:
            found[name] = then(item) / now_us
    return found


def _unexposed_us(step: StepCosts, shares: Mapping[str, float], hidden: float) -> float:
    """Exposed time that collectives lose, never more than there is.

    Args:
        shares: by collective, how much of its time it takes.
        hidden: how much of what they overlap with is left.
    """
    saved = []
    for name, exposed_us in step.exposed_us.items():
        if name in step.us:  # it runs in turn with kernels
            continue
        all_us = step.communication_us.get(name, exposed_us)
        covered_us = hidden * (all_us - exposed_us)
        then_us = max(shares.get(name, 1.0) * all_us - covered_us, 0.0)
        saved.append(exposed_us - then_us)
    # of collectives at the same time, each has all that is exposed
    exposed = fsum(step.exposed_us.values())
    most = between_kernels_us(step)
    return fsum(saved) * min(most / exposed, 1.0) if exposed > 0 else 0.0
