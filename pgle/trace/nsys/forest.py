"""How ranges of one thread nest, found for all of them at once.

Push/pop ranges of a thread nest. Ordered by start, the depth of the i-th range is therefore i less the number of ranges
that ended by its start, and the range around it is the last one before it that is one less deep.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt

from pgle.errors import UserError
from pgle.trace.nsys.lookup import Codes
from pgle.trace.nsys.tables import Ints

Rows = npt.NDArray[np.intp]

BLOCK = 1 << 18
"""Ranges that are worked on at once; memory is bounded by it."""

MAX_DEPTH = 1000
"""Deeper nesting is damage: XLA nests about ten ranges."""


def nesting_order(thread: Codes, start: Ints, end: Ints) -> Rows | None:
    """The rows by (thread, start, longest first); None where they are in this order already."""
    if _is_ordered(thread, start, end):
        return None
    if len(thread) and int(thread.max()) < 2**15:
        # mostly, each thread's rows are in order and only the threads are mixed; two bytes are sorted by counting
        order = np.argsort(thread.astype(np.int16), kind="stable")
        if _is_ordered(thread[order], start[order], end[order]):
            return order
    return np.lexsort((-end, start, thread))


def _is_ordered(thread: Codes, start: Ints, end: Ints) -> bool:
    for at in range(0, len(start) - 1, BLOCK):
        part = slice(at, at + BLOCK + 1)
        number, begin, stop = np.diff(thread[part]), np.diff(start[part]), np.diff(end[part])
        good = (number > 0) | ((number == 0) & ((begin > 0) | ((begin == 0) & (stop <= 0))))
        if not good.all():
            return False
    return True


def levels(start: Ints, end: Ints, path: Path) -> Iterator[tuple[Rows, Rows]]:
    """Pairs of ranges and the ranges around them; those around come first, as inner ones of an earlier pair.

    Args:
        start: of one thread's ranges, ascending, longest first.
        end: of the same, greater than `start`.
        path: for the error.

    Raises:
        UserError: they are nested deeper than `MAX_DEPTH`.
    """
    depth = _depths(start, end, path)
    for first, last in pairwise(_blocks(depth)):
        block = depth[first:last]
        above = np.flatnonzero(block == 0)
        for level in range(1, int(block.max(initial=0)) + 1):
            here = np.flatnonzero(block == level)
            yield here + first, above[np.searchsorted(above, here) - 1] + first
            above = here


def _depths(start: Ints, end: Ints, path: Path) -> npt.NDArray[np.int16]:
    ends = np.sort(end)
    depth = np.empty(len(start), np.int16)
    for first in range(0, len(start), BLOCK):
        part = slice(first, min(first + BLOCK, len(start)))
        deep = np.arange(part.start, part.stop) - np.searchsorted(ends, start[part], side="right")
        deepest = int(deep.max(initial=0))
        if deepest > MAX_DEPTH:
            raise UserError(f"ranges nested {deepest:,} deep: damaged", where=path, remedy="record again")
        depth[part] = deep
    return depth


def _blocks(depth: npt.NDArray[np.int16]) -> list[int]:
    """Where to cut: before ranges that nothing is around, about every `BLOCK` ranges."""
    tops = np.flatnonzero(depth == 0)
    near = np.searchsorted(tops, np.arange(0, len(depth), BLOCK))
    return [*dict.fromkeys(tops[near[near < len(tops)]].tolist()), len(depth)]
