"""Attention that writes its scores to memory, where one fused kernel would keep them on the chip.

It is found by what it computes, not by names: a product whose result, the scores, goes through an
exponential and a reduction into a second product. Kernels that read or write as many elements on
the way belong to it, forward and backward.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from itertools import chain

from pgle.account.levers.flow import RESHAPED, Flow
from pgle.account.levers.places import places, taken_us
from pgle.account.levers.savings import bound_alone
from pgle.account.levers.softmax import Key, Scores, followed, joined, touching
from pgle.account.step_costs import StepCosts
from pgle.account.value import Basis, Opportunity, OpportunityKind, StepPart
from pgle.costs.estimate.attention import (
    AttentionWork,
    Speed,
    fused_us,
    has_figures,
    largest_head,
)
from pgle.errors import in_words, many

_SIDES = frozenset(("LT", "LE", "GT", "GE"))
_MASKS = RESHAPED.union(
    ("select", "compare", "and", "or", "not", "broadcast", "minimum", "maximum"),
    ("add", "subtract", "multiply", "slice", "dynamic-slice", "negate"),
)
"""Opcodes between positions of queries and keys and the mask that is made of them."""

_MASKING = ("select", "add", "minimum")  # opcodes that apply a mask to scores

_COUNTED = RESHAPED.union(("broadcast", "add", "subtract", "clamp"))
"""Opcodes between a counting sequence and positions."""

_LAYOUTS = RESHAPED.union(("slice", "concatenate", "pad", "broadcast", "constant"))
"""Opcodes that only place values elsewhere."""

Variable = tuple[str, int]  # a loop, and the place in its state


def find(step: StepCosts, flow: Flow) -> Opportunity | None:
    """What fused attention would save; None if there is none to fuse, or it saves nothing."""
    scores = _unfused(flow, largest_head(step.hardware))
    if not scores:
        return None
    kernels = _kernels(flow, scores) & step.us.keys()
    now_us = taken_us(step, kernels)
    forward = [item for item in scores if item.exponential]
    causal = {item.key for item in forward if _is_causal(flow, item)}
    fused = Speed(0.0, 0.0, 0.0)
    for item in scores:
        times = step.count.get(flow.kernel[item.product], 0.0)
        fused = fused.plus(_fused_us(step, item, causal), times)
    if fused.likely >= now_us:
        return None
    sizes = " × ".join(f"{each:,}" for each in forward[0].key)
    product = places(step, [flow.kernel[forward[0].product]])[0]
    line = product.source.rpartition("/")[2]
    about = f"{sizes}, {line}" if line else sizes
    why = (
        f"{many(len(kernels), 'kernel')} with its scores ({about}) in memory: "
        f"{in_words(now_us)} a step, fused {in_words(fused.likely)}"
    )
    layouts_us = taken_us(step, _layouts(flow, scores, kernels))
    is_published = has_figures(step.hardware)
    edit = _edit(flow, forward, bool(causal)) if is_published else _KERNEL
    known = Opportunity(
        kind=OpportunityKind.ATTENTION,
        expected_us=now_us - fused.likely,
        least_us=max(now_us - fused.most, 0.0),
        most_us=now_us - fused.least + layouts_us,
        part=StepPart.COMPUTE,
        basis=Basis.ESTIMATED,
        title="Fuse the attention",
        why=why,
        edit=edit,
        source=line,
        where=places(step, kernels),
        instructions=frozenset(kernels),
    )
    return known if is_published else bound_alone(known)


_KERNEL = (
    "Call a fused kernel that your GPU has (Pallas, Triton) in place of the products "
    "and the softmax."
)


def _edit(flow: Flow, forward: Sequence[Scores], causal: bool) -> str:
    """What to write; JAX's function has no soft cap."""
    before = chain.from_iterable(item.before for item in forward)
    if any(flow.opcode(name) == "tanh" for name in before):
        return (
            "Call a fused kernel that caps scores (Pallas, Transformer Engine) "
            "in place of the products and the softmax."
        )
    mask = ", is_causal=True" if causal else ""
    call = f'jax.nn.dot_product_attention(q, k, v{mask}, implementation="cudnn")'
    return f"Call {call} on bfloat16 in place of the products and the softmax."


def _fused_us(step: StepCosts, item: Scores, causal: set[Key]) -> Speed:
    """One fused kernel in place of what surrounds these scores."""
    size = item.size
    work = AttentionWork(
        heads=size.batch,
        queries=size.m,
        keys=size.n,
        depth=size.k,
        causal=item.key in causal,
        back=not item.exponential,
    )
    return fused_us(step.hardware, work)


def _unfused(flow: Flow, largest: int) -> list[Scores]:
    """Scores of attention, and their gradients, that go through memory."""
    found = [
        followed(flow, name, size)
        for name, size in flow.products.items()
        if size.k <= largest
    ]
    attention = {item.key for item in found if _is_attention(flow, item)}
    alike = [item for item in found if item.key in attention and item.products]
    return [item for item in alike if not _is_one_kernel(flow, item)]


def _is_attention(flow: Flow, item: Scores) -> bool:
    """Whether it is the forward pass of attention.

    The softmax of a loss over a vocabulary has a second product only in its gradient.
    """
    if not (item.exponential and item.reduced) or flow.is_gradient(item.product):
        return False
    values = item.values(flow)
    return bool(values) and not _takes_weights(flow, item, values[0])


def _takes_weights(flow: Flow, item: Scores, values: str) -> bool:
    """Whether some of queries, keys and values are weights, as in a layer with a softmax in it.

    Attention of several heads has a batch dimension in all of them.
    """
    if item.size.batch > 1:
        return False
    taken = [*flow.inputs[item.product][:2], *flow.inputs[values][:2]]
    return any(flow.is_weight(name) for name in taken)


def _is_one_kernel(flow: Flow, item: Scores) -> bool:
    """Whether the product and all that takes its result are fused already."""
    kernel = flow.kernel[item.product]
    return all(flow.kernel[name] == kernel for name in item.products)


def _is_causal(flow: Flow, item: Scores) -> bool:
    """Whether the scores are masked by comparing positions of queries and keys."""
    masked = (name for name in item.before if flow.nodes[name].opcode in _MASKING)
    return any(_has_causal_mask(flow, name) for name in masked)


def _has_causal_mask(flow: Flow, name: str) -> bool:
    """Whether an operand of a node is computed from the order of two positions."""
    seen = (flow.looked_at(given, _MASKS) for given in flow.inputs[name])
    return any(_compares(flow, each) for each in chain.from_iterable(seen))


def _compares(flow: Flow, name: str) -> bool:
    """Whether a value says which of two positions is larger."""
    node = flow.nodes.get(name)
    if node is None or node.opcode != "compare" or node.direction not in _SIDES:
        return False
    return all(_counts(flow, given) for given in flow.inputs[name])


def _counts(flow: Flow, name: str) -> bool:
    """Whether a value is a position: a counting sequence, perhaps moved."""
    seen = flow.looked_at(name, _COUNTED)
    return any(flow.opcode(each) == "iota" for each in seen)


def _kernels(flow: Flow, scores: Sequence[Scores]) -> set[str]:
    """The instructions that a fused attention replaces."""
    products = [item.product for item in scores]
    forward = joined(flow, products)
    kept = _kept(flow, forward)
    found = {flow.kernel[name] for name in _fills(flow, kept)}
    loaded = _loaded(flow, kept, {flow.elements(name) for name in products})
    region = joined(flow, [*products, *loaded])
    return found | touching(flow, region, ("reduce", "dynamic-update-slice"))


def _layouts(flow: Flow, scores: Sequence[Scores], kernels: set[str]) -> Iterator[str]:
    """Kernels that only put queries, keys, values or results in another order: a fused kernel may
    take them as they are.
    """
    near: set[str] = set()
    for item in scores:
        for product in (item.product, *item.products):
            moved = filter(flow.kernel.__contains__, _moved(flow, product))
            near |= {flow.kernel[name] for name in moved}
    for kernel in sorted(near - kernels):
        if all(opcode in _LAYOUTS for opcode in flow.opcodes_of(kernel)):
            yield kernel


def _moved(flow: Flow, product: str) -> Iterator[str]:
    """What a product's inputs are copies of, and the copies of its result."""
    for given in flow.inputs[product][:2]:
        yield from flow.looked_at(given, _LAYOUTS)
    todo = [product]
    for name in todo:
        users = [
            user
            for user in flow.users.get(name, ())
            if flow.opcode(user) in _LAYOUTS and user not in todo
        ]
        yield from users
        todo += users


def _kept(flow: Flow, region: Sequence[str]) -> dict[Variable, str]:
    """The variables of loops that keep scores for the backward pass, with one of their names."""
    found: dict[Variable, str] = {}
    for name in region:
        for user in flow.users.get(name, ()):
            if flow.nodes[user].opcode == "dynamic-update-slice":
                memory = flow.inputs[user][0]
                variable = _variable(flow, memory)
                if variable is not None:
                    found[variable] = memory
    return found


def _variable(flow: Flow, name: str) -> Variable | None:
    found = flow.variable(name)
    return None if found is None else (found[0].name, found[1])


def _fills(flow: Flow, kept: Mapping[Variable, str]) -> Iterator[str]:
    """The nodes that fill the memory of such variables before the loop."""
    for memory in kept.values():
        before = flow.before_loop(memory)
        if flow.opcode(before) == "broadcast":
            yield before


def _loaded(
    flow: Flow, kept: Mapping[Variable, str], sizes: Container[int]
) -> Iterator[str]:
    """The nodes that load scores which a loop has kept."""
    for name, node in flow.nodes.items():
        if node.opcode != "dynamic-slice" or flow.elements(name) not in sizes:
            continue
        memory = flow.inputs[name][0]
        if any(
            _variable(flow, each) in kept for each in flow.looked_at(memory, RESHAPED)
        ):
            yield name
