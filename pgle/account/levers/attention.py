"""Attention that writes its scores to memory, where one fused kernel would keep them on the chip.

It is found by what it computes, not by names: a product whose result, the scores, goes through an
exponential and a reduction into a second product. Kernels that read or write as many elements on
the way belong to it, forward and backward.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice

from pgle.account.levers.attention_speed import (
    Speed,
    fused_us,
    has_figures,
    largest_head,
)
from pgle.account.levers.flow import RESHAPED, Flow
from pgle.account.levers.places import places, taken_us
from pgle.account.step_costs import StepCosts
from pgle.account.value import Basis, Opportunity, OpportunityKind, StepPart
from pgle.costs.estimate.products import Matmul
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

_WEIGHTS = RESHAPED.union(
    ("slice", "dynamic-slice", "all-gather", "all-gather-start", "all-gather-done"),
    ("async-start", "async-done", "opt-barrier"),
)
"""Opcodes between a parameter of the program and the weights that a product takes."""

_MOST_STEPS = 200  # values looked at to find out where one comes from

_GRADIENT = "transpose("  # in the framework's name of what a gradient computes

Key = tuple[int, int, int]
Variable = tuple[str, int]  # a loop, and the place in its state


@dataclass
class _Scores:
    """A product that makes scores or, in the backward pass, their gradient."""

    product: str  # its node
    size: Matmul
    reduced: bool = False
    exponential: bool = False
    before: list[str] = field(default_factory=list)  # nodes before the exponential
    products: list[str] = field(default_factory=list)  # that take what becomes of them
    weighted: list[str] = field(default_factory=list)  # of these, after the exponential

    @property
    def key(self) -> Key:
        """Batches times heads, and the two lengths; equal for scores and their gradients."""
        size = self.size
        return size.batch, min(size.m, size.n), max(size.m, size.n)


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
    why = (
        f"{many(len(kernels), 'kernel')} with its scores ({sizes}) in memory take "
        f"{in_words(now_us)}; fused, attention takes {in_words(fused.likely)}"
    )
    is_published = has_figures(step.hardware)
    edit = _edit(flow, forward, bool(causal)) if is_published else _KERNEL
    return Opportunity(
        kind=OpportunityKind.ATTENTION,
        expected_us=now_us - fused.likely if is_published else None,
        least_us=max(now_us - fused.most, 0.0) if is_published else 0.0,
        most_us=now_us - fused.least,
        part=StepPart.COMPUTE,
        basis=Basis.ESTIMATED,
        title="Fuse the attention",
        why=why,
        edit=edit,
        where=places(step, kernels),
        instructions=frozenset(kernels),
    )


_KERNEL = (
    "Call a fused kernel that your GPU has (Pallas, Triton) in place of the products "
    "and the softmax."
)


def _edit(flow: Flow, forward: Sequence[_Scores], causal: bool) -> str:
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


def _fused_us(step: StepCosts, item: _Scores, causal: set[Key]) -> Speed:
    """One fused kernel in place of what surrounds these scores."""
    size = item.size
    return fused_us(
        step.hardware,
        scores=size.batch * size.m * size.n,
        depth=size.k,
        length=min(size.m, size.n),
        causal=item.key in causal,
        back=not item.exponential,
    )


def _unfused(flow: Flow, largest: int) -> list[_Scores]:
    """Scores of attention, and their gradients, that go through memory."""
    found = [
        _followed(flow, name, size)
        for name, size in flow.products.items()
        if size.k <= largest
    ]
    attention = {item.key for item in found if _is_attention(flow, item)}
    alike = [item for item in found if item.key in attention and item.products]
    return [item for item in alike if not _is_one_kernel(flow, item)]


def _followed(flow: Flow, product: str, size: Matmul) -> _Scores:
    """Follow the result of a product as long as it keeps its number of elements."""
    found = _Scores(product, size)
    elements = flow.elements(product)
    todo = [(product, False)]
    seen = set(todo)
    for name, after in todo:
        if not after:
            found.before.append(name)
        for user in flow.users.get(name, ()):
            opcode = flow.nodes[user].opcode
            if user in flow.products:
                found.products.append(user)
                found.weighted += [user] if after else []
            elif opcode == "reduce":
                found.reduced = True
            elif flow.elements(user) == elements:
                found.exponential |= opcode == "exponential"
                following = (user, after or opcode == "exponential")
                todo += [] if following in seen else [following]
                seen.add(following)
    return found


def _is_attention(flow: Flow, item: _Scores) -> bool:
    """Whether it is the forward pass of attention.

    The softmax of a loss over a vocabulary has a second product only in its gradient.
    """
    if not (item.exponential and item.reduced):
        return False
    if _GRADIENT in flow.nodes[item.product].op_name:
        return False
    values = [
        name for name in item.weighted if _GRADIENT not in flow.nodes[name].op_name
    ]
    return bool(values) and not _takes_weights(flow, item, values[0])


def _takes_weights(flow: Flow, item: _Scores, values: str) -> bool:
    """Whether some of queries, keys and values are weights, as in a layer with a softmax in it.

    Attention of several heads has a batch dimension in all of them.
    """
    if item.size.batch > 1:
        return False
    taken = [*flow.inputs[item.product][:2], *flow.inputs[values][:2]]
    return any(_is_weight(flow, name) for name in taken)


def _is_weight(flow: Flow, name: str) -> bool:
    for each in _looked_at(flow, name, _WEIGHTS):
        item = flow.module.instructions[each]
        if item.opcode == "parameter" and item.computation == flow.module.entry:
            return True
    return False


def _looked_at(flow: Flow, name: str, through: frozenset[str]) -> Iterator[str]:
    return islice(flow.upstream((name,), through), _MOST_STEPS)


def _is_one_kernel(flow: Flow, item: _Scores) -> bool:
    """Whether the product and all that takes its result are fused already."""
    kernel = flow.kernel[item.product]
    return all(flow.kernel[name] == kernel for name in item.products)


def _is_causal(flow: Flow, item: _Scores) -> bool:
    """Whether the scores are masked by comparing positions of queries and keys."""
    masked = (name for name in item.before if flow.nodes[name].opcode in _MASKING)
    return any(_has_causal_mask(flow, name) for name in masked)


def _has_causal_mask(flow: Flow, name: str) -> bool:
    """Whether an operand of a node is computed from the order of two positions."""
    seen = (_looked_at(flow, given, _MASKS) for given in flow.inputs[name])
    return any(_compares(flow, each) for each in chain.from_iterable(seen))


def _compares(flow: Flow, name: str) -> bool:
    """Whether a value says which of two positions is larger."""
    node = flow.nodes.get(name)
    if node is None or node.opcode != "compare" or node.direction not in _SIDES:
        return False
    return all(_counts(flow, given) for given in flow.inputs[name])


def _counts(flow: Flow, name: str) -> bool:
    """Whether a value is a position: a counting sequence, perhaps moved."""
    seen = _looked_at(flow, name, _COUNTED)
    return any(flow.opcode(each) == "iota" for each in seen)


def _kernels(flow: Flow, scores: Sequence[_Scores]) -> set[str]:
    """The instructions that a fused attention replaces."""
    products = [item.product for item in scores]
    forward = _region(flow, products)
    kept = _kept(flow, forward)
    found = {flow.kernel[name] for name in _fills(flow, kept)}
    loaded = _loaded(flow, kept, {flow.elements(name) for name in products})
    for name in _region(flow, [*products, *loaded]):
        found.add(flow.kernel[name])
        for user in flow.users.get(name, ()):
            opcode = flow.nodes[user].opcode
            if user in flow.products or opcode in ("reduce", "dynamic-update-slice"):
                found.add(flow.kernel[user])
    return found


def _region(flow: Flow, seeds: Sequence[str]) -> list[str]:
    """These nodes and all with as many elements that are joined to them."""
    todo = list(seeds)
    seen = set(todo)
    for name in todo:
        elements = flow.elements(name)
        near = list(flow.users.get(name, ()))
        if name not in flow.products:
            near += flow.inputs[name]
        for each in near:
            node = each if each in flow.nodes else flow.before_loop(each)
            is_new = node in flow.nodes and node not in seen
            if is_new and flow.elements(node) == elements:
                seen.add(node)
                todo.append(node)
    return todo


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
            _variable(flow, each) in kept for each in _looked_at(flow, memory, RESHAPED)
        ):
            yield name
