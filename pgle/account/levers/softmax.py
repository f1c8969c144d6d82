"""Follow the result of a product through a softmax into further products.

Such results are the scores of attention, and the logits of a loss over a vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from pgle.account.levers.flow import Flow
from pgle.costs.estimate.products import Matmul

Key = tuple[int, int, int]


@dataclass
class Scores:
    """A product that makes scores or, in the backward pass, their gradient."""

    product: str  # its node
    size: Matmul
    reduced: bool = False  # whether a reduction takes them
    exponential: bool = False  # whether they go through an exponential
    before: list[str] = field(default_factory=list)  # nodes before the exponential
    # the exponential, and nodes after it
    after: list[str] = field(default_factory=list)
    products: list[str] = field(default_factory=list)  # further products
    weighted: list[str] = field(default_factory=list)  # those after the exponential

    def values(self, flow: Flow) -> list[str]:
        """The products of the forward pass that take the softmax."""
        return [name for name in self.weighted if not flow.is_gradient(name)]

    @property
    def key(self) -> Key:
        """(batches × heads, shorter length, longer length). Scores and their gradients have the
        same key.
        """
        size = self.size
        return size.batch, min(size.m, size.n), max(size.m, size.n)


def followed(flow: Flow, product: str, size: Matmul) -> Scores:
    """Follow the result of a product through nodes that keep its number of elements."""
    found = Scores(product, size)
    elements = flow.elements(product)
    todo = [(product, False)]
    seen = set(todo)
    for name, after in todo:
        (found.after if after else found.before).append(name)
        for user in flow.users.get(name, ()):
            opcode = flow.nodes[user].opcode
            if user in flow.products:
                found.products.append(user)
                if after:
                    found.weighted.append(user)
            elif opcode == "reduce":
                found.reduced = True
            elif flow.elements(user) == elements:
                is_exponential = opcode == "exponential"
                found.exponential |= is_exponential
                following = (user, after or is_exponential)
                if following not in seen:
                    seen.add(following)
                    todo.append(following)
    return found


def joined(flow: Flow, seeds: Sequence[str]) -> list[str]:
    """These nodes, and all nodes with as many elements that are connected to them."""
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


def touching(flow: Flow, region: Iterable[str], opcodes: Sequence[str]) -> set[str]:
    """The kernels of some nodes, and of their users that are products or have such opcodes."""
    found: set[str] = set()
    for name in region:
        found.add(flow.kernel[name])
        for user in flow.users.get(name, ()):
            if user in flow.products or flow.opcode(user) in opcodes:
                found.add(flow.kernel[user])
    return found
