"""Logits over a large vocabulary that a loss writes and reads more often than necessary."""

from __future__ import annotations

from collections.abc import Iterator

from pgle.account.levers.flow import Flow
from pgle.account.levers.places import places, taken_us
from pgle.account.levers.savings import least_saved_us
from pgle.account.levers.softmax import Scores, followed, joined, touching
from pgle.account.step_costs import StepCosts
from pgle.account.value import Basis, Opportunity, OpportunityKind, StepPart
from pgle.costs.estimate.products import Matmul
from pgle.errors import in_words, many
from pgle.xla.hlo.module import BITS
from pgle.xla.targets import KERNEL_US

_VOCABULARY = 4096  # least number of words of a large vocabulary

_PASSES = 2
"""A loss that XLA compiles reads the logits twice: for the maximum, and for the sum of
exponentials. A kernel that keeps both needs one read (Milakov and Gimelshein, "Online normalizer
calculation for softmax", https://arxiv.org/abs/1805.02867).
"""

_BACKWARD_PASSES = 2  # one read of the logits, one write of their gradient


def find(step: StepCosts, flow: Flow) -> Opportunity | None:
    """The saving if the loss passes over its logits as few times as it can."""
    found = list(_logits(step, flow))
    if not found:
        return None
    kernels: set[str] = set()
    for item in found:
        kernels |= _kernels(flow, item)
    kernels &= step.us.keys()
    now_us = taken_us(step, kernels)
    likely = sum(_passes_us(step, flow, item, _PASSES) for item in found)
    least = sum(_passes_us(step, flow, item, 1) for item in found)
    if likely >= now_us:
        return None
    shape = flow.shape(found[0].product)
    why = (
        f"{many(len(kernels), 'kernel')} of the loss with logits {shape}: "
        f"{in_words(now_us)} a step, {in_words(likely)} with as few passes as it needs"
    )
    return Opportunity(
        kind=OpportunityKind.LOGITS,
        expected_us=now_us - likely,
        least_us=least_saved_us(now_us, likely),
        most_us=now_us - least,
        part=StepPart.COMPUTE,
        basis=Basis.ESTIMATED,
        title="Pass over the logits less often",
        why=why,
        edit=_EDIT,
        where=places(step, kernels),
        instructions=frozenset(kernels),
    )


_EDIT = (
    "Write the loss as logsumexp(logits) - logits[label] under jax.custom_vjp, with "
    "(exp(logits - logsumexp) - one_hot) times the incoming gradient as gradient, or take "
    "a fused cross-entropy. Soft labels, label smoothing and a z-loss need their own terms in "
    "both."
)


def _logits(step: StepCosts, flow: Flow) -> Iterator[Scores]:
    """The products that make logits, except those that another edit removes."""
    for name, size in flow.products.items():
        if flow.kernel[name] not in step.us or _words(flow, name, size) < _VOCABULARY:
            continue
        item = followed(flow, name, size)
        if item.exponential and item.reduced and not item.values(flow):
            yield item


def _words(flow: Flow, name: str, size: Matmul) -> int:
    """Number of columns of a product's weights; 0 if no operand is a weight."""
    left, right = flow.inputs[name][:2]
    if flow.is_weight(right):
        return size.n
    return size.m if flow.is_weight(left) else 0


def _kernels(flow: Flow, item: Scores) -> set[str]:
    """Kernels that read or write logits, without products."""
    region = joined(flow, [item.product])
    found = touching(flow, region, ("reduce", "gather", "scatter"))
    return found - {flow.kernel[name] for name in flow.products}


def _passes_us(step: StepCosts, flow: Flow, item: Scores, forward: int) -> float:
    """Microseconds of a loss in a step if the forward pass reads the logits `forward` times."""
    passes = forward + (_BACKWARD_PASSES if item.products else 0)
    width = BITS.get(flow.shape(item.product).dtype, 16) / 8
    size = passes * flow.elements(item.product) * width
    size += (2 if item.products else 1) * _given_bytes(flow, item)
    one = KERNEL_US + step.hardware.memory_us(size)
    return one * step.count.get(flow.kernel[item.product], 1.0)


def _given_bytes(flow: Flow, item: Scores) -> float:
    """Bytes of what a loss is given for each of its logits, such as soft labels. Each pass over
    the loss reads them.
    """
    elements = flow.elements(item.product)
    size = 0.0
    taken: set[str] = set()
    for node in joined(flow, [item.product]):
        if node not in flow.products:
            taken.update(flow.inputs[node])
    for name in taken.difference(flow.nodes):
        if flow.elements(name) == elements:
            size += BITS.get(flow.shape(name).dtype, 16) / 8 * elements
    return size
