"""What a program does to the scores of attention, and to their softmax, that a fused call has to do
as well.
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
"""Opcodes between positions of queries and keys and the mask that is made of them."""

_ORDER = RESHAPED.union(
    ("compare", "iota", "constant", "not", "broadcast", "slice", "select")
)
"""Opcodes of a mask that is the order of positions and nothing else: no offset, no window."""

_TOTALS = _MASKS.union(("divide", "all-reduce", "all-reduce-start", "all-reduce-done"))
"""Opcodes between the sum of exponentials and what they are divided by."""

_MASKING = ("select", "minimum")  # opcodes that apply a mask to scores
_ADDING = ("add", "subtract")  # opcodes that apply a mask or a bias

_COUNTED = RESHAPED.union(("broadcast", "add", "subtract", "clamp"))
"""Opcodes between a counting sequence and positions."""


@dataclass(frozen=True, slots=True)
class Terms:
    """What a program does between both products, but for the softmax and a scale."""

    is_causal: bool  # a mask compares positions
    is_only_causal: bool  # and does nothing else, wherever one does
    is_masked: bool  # some mask is not proven to be the causal one alone
    is_biased: bool
    is_capped: bool
    drops: bool  # weights are dropped or scaled after the softmax


def terms(flow: Flow, forward: Sequence[Scores]) -> Terms:
    """What all attentions of a program do, taken together."""
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
    """Whether the scores are masked by comparing positions of queries and keys, so that no query
    is known to see later keys alone.
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
    """The nodes of that way before the exponential, each with the whole way."""
    for name in item.before:
        if name in way:
            yield name, way


def _orders(flow: Flow, masking: Iterable[tuple[str, set[str]]]) -> Iterator[str]:
    """What nodes apply that is computed from the order of positions."""
    for name, way in masking:
        if flow.opcode(name) in (*_MASKING, *_ADDING):
            for given in flow.inputs[name]:
                is_order = given not in way and _order(flow, given)
                if is_order and _hides_later(flow, name, given, way) is not False:
                    yield given


def _masks(flow: Flow, name: str, way: set[str]) -> bool:
    """Whether a node applies a mask that may be another than the causal one."""
    if flow.opcode(name) not in _MASKING:
        return False
    others = [each for each in flow.inputs[name] if each not in way]
    is_plain = all(_is_plain(flow, each) for each in others)
    return not is_plain or any(
        _hides_later(flow, name, each, way) is False for each in others
    )


def _hides_later(flow: Flow, name: str, mask: str, way: set[str]) -> bool | None:
    """Whether a node hides later keys by a mask, not earlier ones; None if that is not known.

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
    """The axis that the softmax is taken over, of scores with so many axes; None: not known."""
    users = chain.from_iterable(flow.users.get(name, ()) for name in way)
    for user in users:
        axes = flow.nodes[user].dimensions
        if flow.opcode(user) == "reduce" and len(axes) == 1:
            given = flow.shape(flow.inputs[user][0]).dimensions
            return axes[0] if len(given) == count else None
    return None


def _is_later(flow: Flow, name: str, are_keys: tuple[bool, ...]) -> bool | None:
    """Whether truth values are true where the key is later than the query; None: not known.

    Args:
        are_keys: of each axis of the value, whether it counts keys.
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
    """Whether a counting sequence counts keys, not queries; None: not known."""
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
    """What a value is made of, and the same of its axes; None if its axes are others."""
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
    """Whether a node adds to scores; a library's product may do so by itself."""
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
    """Whether a value is one constant, or says nothing but which of two positions is larger."""
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
    """Whether a value comes from a largest score, or a sum of exponentials."""
    return any(flow.opcode(each) == "reduce" for each in flow.looked_at(name, _TOTALS))


def _order(flow: Flow, name: str) -> bool:
    """Whether a value is computed from the order of two positions."""
    return any(_compares(flow, each) for each in flow.looked_at(name, _MASKS))


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
