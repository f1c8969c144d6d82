"""Tell the state of a step from its data, and its batch from its other data: random keys,
positions, frozen weights.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

_INTEGER = frozenset(("s16", "s32", "s64", "u16", "u32", "u64"))
"""Types of tokens, labels and positions. Arrays of 8 bits are as often images or weights."""

_KEY = "u32"
_WORDS_OF_KEY = (2, 4)
"""Length of one random key: threefry has two words, and rbg has four (`jax.random`)."""


@dataclass(frozen=True, slots=True)
class DataArray:
    """An array that a step takes and does not return."""

    name: str
    dtype: str  # as HLO names it
    sizes: tuple[int, ...]
    axis: int = 0  # of its rows; loops take the axes before it apart

    @property
    def rows(self) -> int:
        """Length of the axis of its rows; 0 if loops take all of its axes apart."""
        return next(iter(self.sizes[self.axis :]), 0)

    @property
    def count(self) -> int:
        """Number of its elements."""
        return math.prod(self.sizes)

    @property
    def is_key(self) -> bool:
        """Whether it may be one random key."""
        is_row = len(self.sizes) == self.axis + 1 and self.rows in _WORDS_OF_KEY
        return is_row and self.dtype == _KEY

    @property
    def is_integer(self) -> bool:
        """Whether it may hold tokens, labels or positions."""
        return self.dtype in _INTEGER and not self.is_key


def state_among(
    arguments: Mapping[str, Iterable[str]], results: Iterable[str]
) -> list[str]:
    """Names of the arguments of a step whose arrays all come back as results: its state. Each
    result counts for one array.

    Args:
        arguments: types of the arrays of each argument, by its name.
        results: types of the results, in the same words.
    """
    left = Counter(results)
    found = []
    for name, types in arguments.items():
        needed = Counter(types)
        if needed <= left:
            left -= needed
            found.append(name)
    return found


def batch_among(arrays: Iterable[DataArray]) -> DataArray | None:
    """The array that shows the batch; None if nothing tells it from the other arrays.

    Integers with two axes or more are tokens, which have the batch first, or after the axes that
    loops take apart. A row of integers holds
    labels if other arrays are as long, else perhaps positions. If there are neither, all arrays
    must be equally long, since one may be a frozen weight.
    """
    found = [one for one in arrays if one.rows and not one.is_key]
    integers = [one for one in found if one.is_integer]
    tokens = [one for one in integers if len(one.sizes) > 1]
    lengths = {one.rows for one in found if not one.is_integer}
    labels = [one for one in integers if one.rows in lengths]
    shown = tokens or labels
    if not shown and len({one.rows for one in found}) == 1:
        shown = found
    return max(shown, key=lambda one: one.count, default=None)


def axis_among(arrays: Iterable[DataArray], rows: int) -> int:
    """The axis of a batch's rows in its largest array."""
    alike = [one for one in arrays if one.rows == rows]
    return max(alike, key=lambda one: one.count).axis


def keeps_leading(sizes: Sequence[int], leading: Sequence[int]) -> bool:
    """Whether an array begins with the first two axes of another one, perhaps joined."""
    first = tuple(leading[:2])
    return tuple(sizes[: len(first)]) == first or tuple(sizes[:1]) == (
        math.prod(first),
    )
