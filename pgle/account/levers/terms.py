"""Masks, biases, caps and dropout in a program's attention. A fused call has to apply them as
well.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain

from pgle.account.levers.flow import RESHAPED, Flow
from pgle.account.levers.positions import KEYS, OTHER, QUERIES, Positions, Shown
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
    # most keys that a query sees; None: all, or a call takes no window
    window: int | None


def terms(flow: Flow, forward: Sequence[Scores]) -> Terms:
    """The terms of all attentions of a program together.

    Args:
        forward: their scores in the forward pass.
    """
    ways = [_Way(flow, item, _between(flow, item)) for item in forward]
    orders = list(chain.from_iterable(way.orders() for way in ways))
    is_masked = any(way.is_masked for way in ways)
    is_biased = any(way.is_biased for way in ways)
    is_capped = any(way.is_capped for way in ways)
    windows = {way.window for way in ways}
    # cuDNN takes a window only without a mask or a bias, and all layers get one text
    is_window = len(windows) == 1 and not (is_masked or is_biased)
    is_masked |= windows != {None} and not is_window
    return Terms(
        window=windows.pop() if is_window else None,
        is_causal=bool(orders) or any(way.is_causal for way in ways),
        is_only_causal=all(_is_plain(flow, name) for name in orders),
        is_masked=is_masked,
        is_biased=is_biased,
        is_capped=is_capped,
        drops=any(way.drops for way in ways),
    )


def is_causal(flow: Flow, item: Scores) -> bool:
    """Whether a mask hides later keys, as far as positions tell. A mask that surely hides earlier
    keys does not count.
    """
    known = _Way(flow, item, _between(flow, item))
    way = _Way(flow, item, frozenset((*item.before, *item.after)))
    masking = [name for name in item.before if flow.opcode(name) in (*_MASKING, "add")]
    left = [name for name in masking if name not in known.computed]
    orders = (way.orders_among(flow.inputs[name], name) for name in left)
    return known.is_causal or any(chain.from_iterable(orders))


def _between(flow: Flow, item: Scores) -> frozenset[str]:
    """The nodes on the way from the scores to the product that takes their softmax."""
    left = {*item.before, *item.after}
    todo = item.values(flow)
    found: set[str] = set()
    for name in todo:
        new = left.intersection(flow.inputs[name])
        left -= new
        found |= new
        todo += new
    return frozenset(found)


@dataclass(frozen=True)
class _Way:
    """The way from scores through their softmax."""

    flow: Flow
    scores: Scores
    nodes: frozenset[str]  # nodes on the way

    @property
    def _before(self) -> list[str]:
        """The nodes before the exponential."""
        return [name for name in self.scores.before if name in self.nodes]

    def _others(self, name: str) -> list[str]:
        """The inputs of a node that are not on the way."""
        return [each for each in self.flow.inputs[name] if each not in self.nodes]

    def orders(self) -> Iterator[str]:
        """The masks that are computed from the order of positions, and that may hide later keys."""
        for name in self._before:
            is_applied = self.flow.opcode(name) in (*_MASKING, *_ADDING)
            if is_applied and name not in self.computed:
                yield from self.orders_among(self._others(name), name)

    def orders_among(self, masks: Iterable[str], name: str) -> Iterator[str]:
        """Those of the masks that `orders` lists, if a node applies them.

        Args:
            name: the node.
        """
        for mask in masks:
            is_order = _order(self.flow, mask)
            if is_order and self._hides_later(name, mask) is not False:
                yield mask

    @cached_property
    def computed(self) -> Mapping[str, Shown]:
        """What masks show that are computed from positions alone, by the node that applies them."""
        found = {}
        for name in self._before:
            inputs = self.flow.inputs[name]
            if self.flow.opcode(name) != "select" or inputs[0] in self.nodes:
                continue
            positions = self._positions(name)
            mask = None if positions is None else positions.mask(inputs[0])
            if positions is not None and mask is not None:
                shows = inputs[1] in self.nodes
                found[name] = positions.shown(mask if shows else ~mask)
        return found

    def _positions(self, name: str) -> Positions | None:
        """The positions of queries and keys of scores; None if their axes are unknown."""
        sizes = self.flow.shape(name).dimensions
        keys = self._axis_of_keys(len(sizes))
        if keys is None or len(sizes) < 2:
            return None
        others = [axis for axis in range(len(sizes)) if axis != keys]
        queries = max(others, key=lambda axis: (sizes[axis], -abs(axis - keys)))
        axes = [OTHER] * len(sizes)
        axes[queries], axes[keys] = QUERIES, KEYS
        return Positions(self.flow, axes, (sizes[queries], sizes[keys]))

    @property
    def is_causal(self) -> bool:
        """Whether a computed mask hides later keys."""
        return any(one.is_causal for one in self.computed.values())

    @property
    def window(self) -> int | None:
        """The most keys that a query sees in a causal window; None if it sees all earlier ones."""
        windows = (one.window for one in self.computed.values())
        return min((one for one in windows if one is not None), default=None)

    @property
    def is_masked(self) -> bool:
        """Whether a node applies a mask that may differ from the causal one."""
        return any(map(self._masks, self._before))

    def _masks(self, name: str) -> bool:
        if name in self.computed:
            return not self.computed[name].is_causal
        if self.flow.opcode(name) not in _MASKING:
            return False
        others = self._others(name)
        if not all(_is_plain(self.flow, each) for each in others):
            return True
        return any(self._hides_later(name, each) is False for each in others)

    def _hides_later(self, name: str, mask: str) -> bool | None:
        """Whether a node hides later keys by a mask, and not earlier ones; None if unknown."""
        flow = self.flow
        inputs = flow.inputs[name]
        count = len(flow.shape(name).dimensions)
        keys = self._axis_of_keys(count)
        if flow.opcode(name) != "select" or inputs[0] != mask or keys is None:
            return None
        are_keys = tuple(axis == keys for axis in range(count))
        is_later = _is_later(flow, mask, are_keys)
        shows = inputs[1] in self.nodes
        return None if is_later is None else is_later != shows

    def _axis_of_keys(self, count: int) -> int | None:
        """The axis of the scores over which the softmax is taken; None if unknown.

        Args:
            count: number of axes of the scores.
        """
        flow = self.flow
        users = (flow.users.get(name, ()) for name in self.nodes)
        for user in chain.from_iterable(users):
            axes = flow.nodes[user].dimensions
            if flow.opcode(user) == "reduce" and len(axes) == 1:
                given = flow.shape(flow.inputs[user][0]).dimensions
                return axes[0] if len(given) == count else None
        return None

    @property
    def is_capped(self) -> bool:
        """Whether a tanh limits the scores."""
        return any(self.flow.opcode(name) == "tanh" for name in self._before)

    @property
    def is_biased(self) -> bool:
        """Whether a node adds something to the scores."""
        return any(map(self._biases, self._before))

    def _biases(self, name: str) -> bool:
        """Whether a node adds something. A library's product may do so by itself."""
        flow = self.flow
        node = flow.nodes[name]
        if name in flow.products:
            is_fp8 = "f8" in node.custom_call_target
            is_library = node.opcode == "custom-call" and not is_fp8
            return is_library and len(flow.inputs[name]) > 2
        if node.opcode not in _ADDING:
            return False
        others = self._others(name)
        return not all(_is_plain(flow, one) or _is_reduced(flow, one) for one in others)

    @property
    def drops(self) -> bool:
        """Whether weights are dropped or scaled after the softmax."""
        return any(map(self._scales, self.nodes.intersection(self.scores.after)))

    def _scales(self, name: str) -> bool:
        opcode = self.flow.opcode(name)
        if opcode not in ("multiply", "divide"):
            return opcode == "select"
        return not all(_is_reduced(self.flow, each) for each in self._others(name))


def _is_later(flow: Flow, name: str, are_keys: tuple[bool, ...]) -> bool | None:
    """Whether a mask is true if the key is later than the query; None if unknown.

    Args:
        are_keys: for each axis of the mask, whether it counts keys.
    """
    is_negated = False
    while name in flow.nodes and flow.opcode(name) != "compare":
        is_negated ^= flow.opcode(name) == "not"
        before = _before_moved(flow, name, are_keys)
        if before is None:
            return None
        name, are_keys = before
    if not _compares(flow, name):
        return None
    left, right = (_counts_keys(flow, each, are_keys) for each in flow.inputs[name])
    if left is None or right is None or left == right:
        return None
    is_larger = flow.nodes[name].direction in ("GT", "GE")
    return (left == is_larger) != is_negated


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


def _is_plain(flow: Flow, name: str) -> bool:
    """Whether a value is a single constant, or only the comparison of two positions."""
    seen: dict[str, list[str]] = {}  # by opcode
    for each in flow.looked_at(name, _MASKS):
        if not flow.before_loop(each):
            seen.setdefault(flow.opcode(each), []).append(each)
    compared = seen.get("compare", [])
    if compared:
        is_order = len(compared) == 1 and _compares(flow, compared[0])
        return is_order and seen.keys() <= _ORDER
    constants = seen.get("constant", [])
    is_one = all(flow.elements(each) == 1 for each in constants)
    return is_one and seen.keys() <= {"constant", "broadcast", *RESHAPED}


def _is_reduced(flow: Flow, name: str) -> bool:
    """Whether a value comes from a reduction: the largest score, or the sum of exponentials."""
    return flow.comes_from(name, ("reduce",), _TOTALS)


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
    return flow.comes_from(name, ("iota",), _COUNTED)
