"""Masks, biases, caps and dropout in a program's attention. A fused call has to apply them as
well.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

from pgle.account.levers.flow import RESHAPED, Flow
from pgle.account.levers.softmax import Scores

_SIDES = frozenset(("LT", "LE", "GT", "GE"))
_MASKS = RESHAPED.union(
    ("select", "compare", "and", "or", "not", "broadcast", "minimum", "maximum"),
    ("add", "subtract", "multiply", "slice", "dynamic-slice", "negate"),
)
"""Opcodes between positions of queries and keys and the mask that is computed from them."""

_ORDER = RESHAPED.union(
    ("compare", "iota", "constant", "not", "broadcast", "slice", "select")
)
"""Opcodes of a mask that only compares positions, without an offset or a window."""

_TOTALS = _MASKS.union(("divide", "all-reduce", "all-reduce-start", "all-reduce-done"))
"""Opcodes between the sum of exponentials and the divisor of the softmax."""

_MASKING = ("select", "minimum")  # opcodes that apply a mask to scores
_ADDING = ("add", "subtract")  # opcodes that apply a mask or a bias

_COUNTED = RESHAPED.union(("broadcast", "add", "subtract", "clamp"))
"""Opcodes between a counting sequence (``iota``) and positions."""


@dataclass(frozen=True, slots=True)
class Terms:
    """What a program does between the two products of attention, besides softmax and scale."""

    is_causal: bool  # a mask compares positions of queries and keys
    is_only_causal: bool  # every such mask does nothing else
    is_masked: bool  # some mask may do more than the causal one
    is_biased: bool  # something is added to the scores
    is_capped: bool  # a tanh limits the scores
    drops: bool  # weights are dropped or scaled after the softmax


def terms(flow: Flow, forward: Sequence[Scores]) -> Terms:
    """The terms of all attentions of a program together.

    Args:
        forward: their scores in the forward pass.
    """
    ways = [(item, _between(flow, item)) for item in forward]
    masking = list(chain.from_iterable(_before(*each) for each in ways))
    orders = list(_orders(flow, masking))
    is_masked = any(_masks(flow, name, way) for name, way in masking)
    is_biased = any(_biases(flow, name, way) for name, way in masking)
    drops = any(_drops(flow, item, way) for item, way in ways)
    return Terms(
        is_causal=bool(orders),
        is_only_causal=all(_is_plain(flow, name) for name in orders),
        is_masked=is_masked,
        is_biased=is_biased,
        is_capped=any(flow.opcode(name) == "tanh" for name, _ in masking),
        drops=drops,
    )


def is_causal(flow: Flow, item: Scores) -> bool:
    """Whether a mask compares positions of queries and keys. A mask that surely hides earlier keys
    does not count.
    """
    opcodes = (*_MASKING, "add")
    way = {*item.before, *item.after}
    for name in item.before:
        if flow.nodes[name].opcode in opcodes and any(
            _order(flow, each) and _hides_later(flow, name, each, way) is not False
            for each in flow.inputs[name]
        ):
            return True
    return False


def _between(flow: Flow, item: Scores) -> set[str]:
    """The nodes on the way from the scores to the product that takes their softmax."""
    reached = {*item.before, *item.after}
    todo = item.values(flow)
    found: set[str] = set()
    for name in todo:
        left = reached - found
        new = [each for each in flow.inputs[name] if each in left]
        found.update(new)
        todo += new
    return found


def _before(item: Scores, way: set[str]) -> Iterator[tuple[str, set[str]]]:
    """The nodes of `way` before the exponential, each with the whole way."""
    for name in item.before:
        if name in way:
            yield name, way


def _orders(flow: Flow, masking: Iterable[tuple[str, set[str]]]) -> Iterator[str]:
    """The masks that some nodes apply and that are computed from the order of positions."""
    for name, way in masking:
        if flow.opcode(name) in (*_MASKING, *_ADDING):
            for given in flow.inputs[name]:
                is_order = given not in way and _order(flow, given)
                if is_order and _hides_later(flow, name, given, way) is not False:
                    yield given


def _masks(flow: Flow, name: str, way: set[str]) -> bool:
    """Whether a node applies a mask that may differ from the causal one."""
    if flow.opcode(name) not in _MASKING:
        return False
    others = [each for each in flow.inputs[name] if each not in way]
    is_plain = all(_is_plain(flow, each) for each in others)
    return not is_plain or any(
        _hides_later(flow, name, each, way) is False for each in others
    )


def _hides_later(flow: Flow, name: str, mask: str, way: set[str]) -> bool | None:
    """Whether a node hides later keys by a mask, and not earlier ones; None if unknown.

    Args:
        way: the nodes from the scores to the product that takes their softmax.
    """
    inputs = flow.inputs[name]
    axes = flow.shape(name).dimensions
    keys = _axis_of_keys(flow, way, len(axes))
    if flow.opcode(name) != "select" or inputs[0] != mask or keys is None:
        return None
    are_keys = tuple(axis == keys for axis in range(len(axes)))
    is_later = _is_later(flow, mask, are_keys)
    shows = inputs[1] in way
    return None if is_later is None else is_later != shows


def _axis_of_keys(flow: Flow, way: Iterable[str], count: int) -> int | None:
    """The axis of the scores over which the softmax is taken; None if unknown.

    Args:
        count: number of axes of the scores.
    """
    users = chain.from_iterable(flow.users.get(name, ()) for name in way)
    for user in users:
        axes = flow.nodes[user].dimensions
        if flow.opcode(user) == "reduce" and len(axes) == 1:
            given = flow.shape(flow.inputs[user][0]).dimensions
            return axes[0] if len(given) == count else None
    return None


def _is_later(flow: Flow, name: str, are_keys: tuple[bool, ...]) -> bool | None:
    """Whether a mask is true if the key is later than the query; None if unknown.

    Args:
        are_keys: for each axis of the mask, whether it counts keys.
    """
    flips = False
    while name in flow.nodes and flow.opcode(name) != "compare":
        flips ^= flow.opcode(name) == "not"
        before = _before_moved(flow, name, are_keys)
        if before is None:
            return None
        name, are_keys = before
    if not _compares(flow, name):
        return None
    sides = [_counts_keys(flow, each, are_keys) for each in flow.inputs[name]]
    if None in sides or sides[0] == sides[1]:
        return None
    is_larger = flow.nodes[name].direction in ("GT", "GE")
    return (sides[0] == is_larger) != flips


def _counts_keys(flow: Flow, name: str, are_keys: tuple[bool, ...]) -> bool | None:
    """Whether a counting sequence counts keys and not queries; None if unknown."""
    while name in flow.nodes:
        node = flow.nodes[name]
        if node.opcode == "iota":
            return are_keys[node.dimensions[0]] if node.dimensions else None
        before = _before_moved(flow, name, are_keys)
        if before is None:
            return None
        name, are_keys = before
    return None


def _before_moved(
    flow: Flow, name: str, are_keys: tuple[bool, ...]
) -> tuple[str, tuple[bool, ...]] | None:
    """The input of a node, with `are_keys` for the input's axes; None if axes do not match."""
    node = flow.nodes[name]
    if not flow.inputs[name]:
        return None
    given = flow.inputs[name][0]
    sizes = flow.shape(given).dimensions
    if node.opcode == "broadcast":
        return given, tuple(are_keys[axis] for axis in node.dimensions)
    if node.opcode == "transpose":
        marks = dict(zip(node.dimensions, are_keys, strict=True))
        return given, tuple(marks[axis] for axis in range(len(sizes)))
    if node.opcode in (*RESHAPED, *_ADDING, "not", "slice"):
        return (given, are_keys) if len(sizes) == len(are_keys) else None
    return None


def _biases(flow: Flow, name: str, way: set[str]) -> bool:
    """Whether a node adds something to scores. A library's product may do so by itself."""
    node = flow.nodes[name]
    if name in flow.products:
        is_library = (
            node.opcode == "custom-call" and "f8" not in node.custom_call_target
        )
        return is_library and len(flow.inputs[name]) > 2
    if node.opcode not in _ADDING:
        return False
    others = [each for each in flow.inputs[name] if each not in way]
    return not all(_is_plain(flow, each) or _is_reduced(flow, each) for each in others)


def _drops(flow: Flow, item: Scores, way: set[str]) -> bool:
    """Whether weights are dropped or scaled after the softmax."""
    for name in way.intersection(item.after):
        opcode = flow.opcode(name)
        others = [each for each in flow.inputs[name] if each not in way]
        is_scaled = opcode in ("multiply", "divide")
        if opcode == "select":
            return True
        if is_scaled and any(not _is_reduced(flow, each) for each in others):
            return True
    return False


def _is_plain(flow: Flow, name: str) -> bool:
    """Whether a value is a single constant, or only the comparison of two positions."""
    found = flow.looked_at(name, _MASKS)
    seen = [each for each in found if not flow.before_loop(each)]
    opcodes = set(map(flow.opcode, seen))
    compared = [each for each in seen if flow.opcode(each) == "compare"]
    if not compared:
        return opcodes <= {"constant", "broadcast", *RESHAPED} and _is_one(flow, seen)
    return opcodes <= _ORDER and len(compared) == 1 and _compares(flow, compared[0])


def _is_one(flow: Flow, names: Iterable[str]) -> bool:
    """Whether all constants among these have one element."""
    constants = (name for name in names if flow.opcode(name) == "constant")
    return all(flow.elements(name) == 1 for name in constants)


def _is_reduced(flow: Flow, name: str) -> bool:
    """Whether a value comes from a reduction: the largest score, or the sum of exponentials."""
    return any(flow.opcode(each) == "reduce" for each in flow.looked_at(name, _TOTALS))


def _order(flow: Flow, name: str) -> bool:
    """Whether a value is computed from the order of two positions."""
    return any(_compares(flow, each) for each in flow.looked_at(name, _MASKS))


def _compares(flow: Flow, name: str) -> bool:
    """Whether a value is the comparison of two positions."""
    node = flow.nodes.get(name)
    if node is None or node.opcode != "compare" or node.direction not in _SIDES:
        return False
    return all(_counts(flow, given) for given in flow.inputs[name])


def _counts(flow: Flow, name: str) -> bool:
    """Whether a value is a position: a counting sequence, perhaps shifted or reshaped."""
    seen = flow.looked_at(name, _COUNTED)
    return any(flow.opcode(each) == "iota" for each in seen)
