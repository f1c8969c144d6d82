"""Compute which keys a mask shows to a query, from the operations that make the mask of positions.

A fused kernel skips blocks of keys that a causal mask or a sliding window hides from all queries of
the block. A mask of other data skips nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pgle.account.levers.flow import RESHAPED, Flow

Array = NDArray[Any]

QUERIES, KEYS, OTHER = "q", "k", ""  # what an axis of a mask counts

_ROWS = 9  # queries whose keys are computed, evenly spaced
_DEEPEST = 60  # most operations between a mask and its counting sequences

_COMPARED: Mapping[str, Callable[..., Array]] = {
    "EQ": np.equal,
    "NE": np.not_equal,
    "LT": np.less,
    "LE": np.less_equal,
    "GT": np.greater,
    "GE": np.greater_equal,
}
_COMPUTED: Mapping[str, Callable[..., Array]] = {
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "negate": np.negative,
    "abs": np.abs,
    "and": np.logical_and,
    "or": np.logical_or,
    "not": np.logical_not,
    "select": np.where,
}
"""Opcodes that are computed element by element."""


@dataclass(frozen=True, slots=True)
class Shown:
    """The keys that a mask of positions shows."""

    is_causal: bool  # no query sees a later key
    # most keys that a query sees in a causal window; None: all earlier ones
    window: int | None


class Positions:
    """Computes masks for some queries and all keys.

    Args:
        axes: what each axis of the scores counts.
        sizes: numbers of queries and keys.
    """

    def __init__(self, flow: Flow, axes: Sequence[str], sizes: tuple[int, int]) -> None:
        queries, keys = sizes
        self._flow = flow
        self._axes = tuple(axes)
        self.rows = np.unique(np.linspace(0, queries - 1, _ROWS, dtype=np.int64))
        self.keys = np.arange(keys)
        self._known: dict[tuple[str, tuple[str, ...]], Array | None] = {}

    def mask(self, name: str) -> Array | None:
        """Truth values of a mask, a row for each of the queries; None if it is not computed from
        positions alone.
        """
        found = self._value(name, self._axes, 0)
        if found is None:
            return None
        return np.broadcast_to(found, (len(self.rows), len(self.keys))).astype(bool)

    def _value(self, name: str, axes: tuple[str, ...], depth: int) -> Array | None:
        key = name, axes
        if key not in self._known:
            known = None if depth > _DEEPEST else self._computed(name, axes, depth)
            self._known[key] = known
        return self._known[key]

    def _computed(self, name: str, axes: tuple[str, ...], depth: int) -> Array | None:
        flow = self._flow
        node = flow.nodes.get(name)
        if node is None:
            before = flow.before_loop(name)
            return self._value(before, axes, depth + 1) if before else None
        if node.opcode == "constant":
            return None if node.constant is None else np.asarray(node.constant)
        if node.opcode == "iota":
            return self._counted(axes[node.dimensions[0]])
        inner = self._axes_before(name, axes)
        if inner is not None:
            return self._value(flow.inputs[name][0], inner, depth + 1)
        if node.opcode == "compare":
            compute = _COMPARED.get(node.direction)
        else:
            compute = _COMPUTED.get(node.opcode)
        if compute is None:
            return None
        taken = []
        for given in flow.inputs[name]:
            is_scalar = not flow.shape(given).dimensions
            found = self._value(given, () if is_scalar else axes, depth + 1)
            if found is None:
                return None
            taken.append(found)
        return compute(*taken)

    def _counted(self, axis: str) -> Array | None:
        if axis == OTHER:
            return None
        return self.rows[:, None] if axis == QUERIES else self.keys[None, :]

    def _axes_before(self, name: str, axes: tuple[str, ...]) -> tuple[str, ...] | None:
        """The axes of a node's operand, if the node only moves or repeats it; else None."""
        node = self._flow.nodes[name]
        if node.opcode == "broadcast":
            return tuple(axes[axis] for axis in node.dimensions)
        if node.opcode == "transpose":
            marks = dict(zip(node.dimensions, axes, strict=True))
            return tuple(marks[axis] for axis in range(len(axes)))
        if node.opcode == "slice":
            is_first = all(start == 0 and by == 1 for start, _, by in node.slices)
            return axes if is_first else None
        if node.opcode not in RESHAPED:
            return None
        return self._reshaped(name, axes)

    def _reshaped(self, name: str, axes: tuple[str, ...]) -> tuple[str, ...] | None:
        """The axes before a reshape that adds or drops axes of one element; None for another."""
        before = self._flow.shape(self._flow.inputs[name][0]).dimensions
        after = self._flow.shape(name).dimensions
        long = [size for size in before if size > 1]
        if [size for size in after if size > 1] != long:
            return None
        of_long = [axis for size, axis in zip(after, axes, strict=True) if size > 1]
        found = [OTHER] * len(before)
        for at, size in enumerate(before):
            if size > 1:
                found[at] = of_long.pop(0)
        return tuple(found)

    def shown(self, mask: Array) -> Shown:
        """What a mask shows, given for the queries of `rows`."""
        rows = self.rows[:, None]
        keys = self.keys[None, :]
        is_causal = not bool((mask & (keys > rows)).any())
        count = int(mask[-1].sum())
        window = (keys <= rows) & (keys > rows - count)
        is_window = count < len(self.keys) and np.array_equal(mask, window)
        return Shown(is_causal, count if is_causal and is_window else None)
