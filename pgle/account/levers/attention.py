"""Attention that writes its scores to memory. One fused kernel would keep them on the chip.

pgle finds it by its computation, not by names: the result of a product (the scores) goes through an
exponential and a reduction into a second product. Kernels on the way that read or write as many
elements belong to it, forward and backward.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence

from pgle.account.levers.flow import RESHAPED, Flow
from pgle.account.levers.places import places, taken_us
from pgle.account.levers.savings import bound_alone
from pgle.account.levers.softmax import Key, Scores, followed, joined, touching
from pgle.account.levers.terms import Terms, is_causal, terms
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
from pgle.xla.hlo.frames import in_package

_LAYOUTS = RESHAPED.union(("slice", "concatenate", "pad", "broadcast", "constant"))
"""Opcodes that only move values to other places."""

Variable = tuple[str, int]  # a loop, and the place in its state


def find(step: StepCosts, flow: Flow) -> Opportunity | None:
    """The saving by fused attention; None if there is none to fuse, or if it saves nothing."""
    scores = _unfused(flow, largest_head(step.hardware))
    if not scores:
        return None
    kernels = _kernels(flow, scores) & step.us.keys()
    now_us = taken_us(step, kernels)
    forward = [item for item in scores if item.exponential]
    causal = {item.key for item in forward if is_causal(flow, item)}
    windows = _windows(flow, forward)
    fused = Speed(0.0, 0.0, 0.0)
    for item in scores:
        times = step.count.get(flow.kernel[item.product], 0.0)
        fused = fused.plus(_fused_us(step, item, causal, windows), times)
    if fused.likely >= now_us:
        return None
    sizes = " × ".join(f"{each:,}" for each in forward[0].key)
    # the line that computes the attention's result; `pgle advise` names the same line
    result = forward[0].values(flow)[0]
    node = flow.nodes[result]
    of_kernel = places(step, [flow.kernel[result]])[0].source
    source = node.line or of_kernel
    line = in_package(source)
    about = f"{sizes}, {line}" if line else sizes
    why = (
        f"{many(len(kernels), 'kernel')} with its scores ({about}) in memory: "
        f"{in_words(now_us)} a step, fused {in_words(fused.likely)}"
    )
    layouts_us = taken_us(step, _layouts(flow, scores, kernels))
    is_published = has_figures(step.hardware)
    own = terms(flow, forward)
    title = _WITHOUT if own.drops else _TITLE
    edit, code = _edit(own, is_published)
    known = Opportunity(
        kind=OpportunityKind.ATTENTION,
        expected_us=now_us - fused.likely,
        least_us=max(now_us - fused.most, 0.0),
        most_us=now_us - fused.least + layouts_us,
        part=StepPart.COMPUTE,
        basis=Basis.ESTIMATED,
        title=title,
        why=why,
        edit=edit,
        code=code,
        source=source,
        where=places(step, kernels),
        instructions=frozenset(kernels),
    )
    return known if is_published else bound_alone(known)


_TITLE = "Fuse the attention"
_WITHOUT = f"{_TITLE}, without its dropout"

_KERNEL = (
    "Call a fused kernel that your GPU has (Pallas, Triton), with the order of heads that "
    "it takes and the program's own scale, in place of the products and the softmax"
)
_CAP = (
    "Call a fused kernel that caps scores (Pallas, Transformer Engine), with the order of "
    "heads that it takes and the program's own scale, in place of the products and the softmax"
)
_NO_CAP = "cuDNN's call in jax.nn has no soft cap."
_GIVEN = "Call this on bf16 q, k, v (batch, length, heads, features), with your scale of the scores"
_DROPS = (
    "The program drops or scales weights after the softmax (dropout), which {call}: the "
    "saving holds only with attention's dropout off, or in a fused kernel that has it."
)


def _edit(known: Terms, is_published: bool) -> tuple[str, str]:
    """The edit in words, with everything that the call needs to compute the same model; and the
    call, if jax has one.
    """
    code = ""
    own = [
        name
        for name, has in (("mask", known.is_masked), ("bias", known.is_biased))
        if has
    ]
    kept = f", with the program's own {' and '.join(own)}" if own else ""
    if known.is_capped:
        said = [f"{_CAP}{kept}. {_NO_CAP}"]
    elif not is_published:
        said = [f"{_KERNEL}{kept}."]
    else:
        words, code = _call(known, own)
        said = [words]
    if known.drops:
        is_call = is_published and not known.is_capped
        call = "cuDNN's call in jax.nn has not" if is_call else "not every kernel has"
        said.append(_DROPS.format(call=call))
    return " ".join(said), code


def _call(known: Terms, own: Sequence[str]) -> tuple[str, str]:
    """Words for JAX's call of cuDNN, and the call. It is plainly causal only if no causal mask does
    anything else.
    """
    kept = (*own, "scale")
    given = "".join(f", {name}={name}" for name in kept)
    if known.window is not None:
        given += f", local_window_size=({known.window - 1}, 0)"
    also = ""
    if known.is_causal and known.is_only_causal:
        given += ", is_causal=True"
    elif known.is_causal:
        also = ". Add is_causal=True if the mask is causal"
    call = f'jax.nn.dot_product_attention(q, k, v{given}, implementation="cudnn")'
    return f"{_GIVEN}{also}.", call


def _windows(flow: Flow, forward: Iterable[Scores]) -> Mapping[Key, int | None]:
    """The window that a fused call can take for each key of scores; None without one. The largest
    counts if scores of several layers have the same key.
    """
    found: dict[Key, int | None] = {}
    for item in forward:
        window = terms(flow, [item]).window
        known = found.get(item.key, window)
        largest = None
        if known is not None and window is not None:
            largest = max(known, window)
        found[item.key] = largest
    return found


def _fused_us(
    step: StepCosts,
    item: Scores,
    causal: set[Key],
    windows: Mapping[Key, int | None],
) -> Speed:
    """The speed of one fused kernel that replaces the kernels around these scores."""
    size = item.size
    window = windows.get(item.key)
    work = AttentionWork(
        heads=size.batch,
        queries=size.m,
        keys=size.n,
        depth=size.k,
        causal=item.key in causal and window is None,
        window=window,
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
    """Whether queries, keys or values are weights, as in a layer that contains a softmax.

    Attention of several heads has a batch dimension in all of them.
    """
    if item.size.batch > 1:
        return False
    taken = [*flow.inputs[item.product][:2], *flow.inputs[values][:2]]
    return any(flow.is_weight(name) for name in taken)


def _is_one_kernel(flow: Flow, item: Scores) -> bool:
    """Whether one kernel holds the product and all products that take its result."""
    kernel = flow.kernel[item.product]
    return all(flow.kernel[name] == kernel for name in item.products)


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
    """Kernels that only change the layout of queries, keys, values or results. A fused kernel may
    not need them.
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
    """The values that a product's inputs are copies of, and the copies of its result."""
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
    """The loop variables that keep scores for the backward pass, each with one of its names."""
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
    """The nodes that fill the buffers of such variables before the loop."""
    for memory in kept.values():
        before = flow.before_loop(memory)
        if flow.opcode(before) == "broadcast":
            yield before


def _loaded(
    flow: Flow, kept: Mapping[Variable, str], sizes: Container[int]
) -> Iterator[str]:
    """The nodes that load scores from a loop variable that kept them.

    Args:
        kept: the variables.
        sizes: numbers of elements that scores have.
    """
    for name, node in flow.nodes.items():
        if node.opcode != "dynamic-slice" or flow.elements(name) not in sizes:
            continue
        memory = flow.inputs[name][0]
        if any(
            _variable(flow, each) in kept for each in flow.looked_at(memory, RESHAPED)
        ):
            yield name
