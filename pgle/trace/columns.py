"""Columns of numbers: growing while a file is read, runs of equal values, typical values."""

from __future__ import annotations

from typing import Any, Generic, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

Number = TypeVar("Number", bound=np.generic)

Ints: TypeAlias = npt.NDArray[np.int64]
# integers, stored in as few bytes as the values need
Codes: TypeAlias = npt.NDArray[np.integer[Any]]
Floats: TypeAlias = npt.NDArray[np.float64]
Flags: TypeAlias = npt.NDArray[np.bool_]

EARLIEST = np.iinfo(np.int64).min
LATEST = np.iinfo(np.int64).max
NO_ROWS = np.empty(0, np.int64)

# glibc maps a block of this size and more by itself (M_MMAP_THRESHOLD in `mallopt(3)`)
BLOCK_BYTES = 32 << 20

# rows that are processed together; it bounds the working memory for a trace of any length
BLOCK_ROWS = 1 << 18

MANY = 1 << 17
"""A column with this many values is likely to become long. A shorter one starts small, because the
kernel zeroes new memory 2 MiB at a time.
"""


def narrow(
    values: npt.NDArray[Any], least: npt.DTypeLike = np.int16
) -> npt.NDArray[Any]:
    """Return signed integers in the fewest bytes that hold them all, but no fewer than `least`.

    Other types are returned unchanged.
    """
    if values.dtype.kind != "i":
        return values
    low = int(values.min(initial=0))
    high = int(values.max(initial=0))
    sizes = [
        size
        for size in (2, 4)
        if size >= np.dtype(least).itemsize and -(2 ** (8 * size - 1)) <= low
    ]
    fewest = next(
        (size for size in sizes if high < 2 ** (8 * size - 1)), values.itemsize
    )
    return values.astype(f"i{fewest}", copy=False)


class GrowingColumn(Generic[Number]):
    """A column that grows by whole batches and is joined once.

    Batches are copied into large blocks. The C library returns the memory of such a block to the
    system when the block is freed. Small pieces would leave holes of up to a third of a long
    trace's memory.

    Args:
        dtype: the type of the values. A signed integer type gets wider if a value needs more bytes.
        most: the largest possible number of values, if known. The column is then one block that is
            never copied. The unfilled part takes no memory.
    """

    def __init__(self, dtype: type[Number], most: int = 0) -> None:
        self._dtype = np.dtype(dtype)
        self._most = most
        self._full: list[npt.NDArray[Number]] = []
        self._block = np.empty(most, dtype)
        self._used = 0

    def __len__(self) -> int:
        return sum(map(len, self._full)) + self._used

    def append(self, values: npt.NDArray[np.generic]) -> None:
        """Append values, converted to this column's type."""
        values = narrow(values, self._dtype)
        is_wider = (
            self._dtype.kind == "i" and values.dtype.itemsize > self._dtype.itemsize
        )
        if is_wider:
            self._dtype = values.dtype
        while len(values):
            if is_wider or self._used == len(self._block):
                usual = 2 * self._used
                if len(self) >= MANY:
                    usual = BLOCK_BYTES // self._dtype.itemsize
                size = max(len(values), usual, self._most - len(self))
                if self._used:
                    self._full.append(self._block[: self._used])
                self._block = np.empty(size, self._dtype)
                self._used = 0
                is_wider = False
            count = min(len(values), len(self._block) - self._used)
            self._block[self._used : self._used + count] = values[:count]
            self._used += count
            values = values[count:]

    def join(self) -> npt.NDArray[Number]:
        """Return the whole column and leave this object empty. Each block is freed once it is
        copied.
        """
        parts = [*self._full, self._block[: self._used]]
        self._full = []
        self._block = np.empty(0, self._dtype)
        self._used = 0
        self._most = 0
        if len(parts) == 1:
            return parts[0]
        joined = np.empty(sum(map(len, parts)), self._dtype)
        end = 0
        while parts:
            part = parts.pop(0)
            joined[end : end + len(part)] = part
            end += len(part)
        return joined


def totals(
    codes: npt.NDArray[np.integer], values: npt.NDArray[np.integer], count: int
) -> npt.NDArray[np.float64]:
    """Return float64[count]: the sum of the values of each code.

    Rows are added block by block, because `np.bincount` converts all of its input to doubles.
    """
    found = np.zeros(count)
    for at in range(0, len(codes), BLOCK_ROWS):
        found += np.bincount(
            codes[at : at + BLOCK_ROWS],
            weights=values[at : at + BLOCK_ROWS],
            minlength=count,
        )
    return found


def changes(*columns: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Return bool[n]: whether a row of these n-row columns differs from the row before."""
    new = np.ones(len(columns[0]), np.bool_)
    new[1:] = columns[0][1:] != columns[0][:-1]
    for column in columns[1:]:
        new[1:] |= column[1:] != column[:-1]
    return new


def heads(*columns: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """Return int64[k]: the rows at which the combination of values changes, with row 0."""
    return np.flatnonzero(changes(*columns)).astype(np.int64)


def run_lengths(first: npt.NDArray[np.integer], count: int) -> Ints:
    """Return int64[k]: the length of each run, when `count` rows form k runs that begin at
    `first`.
    """
    return np.diff(np.append(first, count))


def run_medians(ordered: Floats, first: Ints, sizes: Ints) -> Floats:
    """Return float64[k]: the median of each run of values.

    Args:
        ordered: float64[n], the values. Those of a run ascend.
        first, sizes: int64[k], first row and length of each run.
    """
    low = ordered[first + (sizes - 1) // 2]
    high = ordered[first + sizes // 2]
    medians: Floats = (low + high) / 2
    return medians


def occurrences(*columns: npt.NDArray[Any]) -> Ints:
    """Return int64[n]: how many earlier rows hold the same values as each row of n-row columns."""
    order = np.lexsort(columns)
    first = heads(*(column[order] for column in columns))
    sizes = run_lengths(first, len(order))
    found = np.empty(len(order), np.int64)
    found[order] = np.arange(len(order)) - np.repeat(first, sizes)
    return found


def running_numbers(group: Codes, item: Codes) -> npt.NDArray[np.int32]:
    """Return int32[n]: the number of each row's item within its group.

    Items of a group are numbered from 0 in the order of their first rows.
    """
    _, item = np.unique(item, return_inverse=True)
    width = len(item) + 1
    pairs, first, inverse = np.unique(
        group.astype(np.int64) * width + item, return_index=True, return_inverse=True
    )
    of_group = pairs // width
    order = np.lexsort((first, of_group))
    number = np.empty(len(pairs), np.int32)
    number[order] = np.arange(len(pairs)) - np.searchsorted(
        of_group[order], of_group[order]
    )
    return number[inverse]


def distinct(values: npt.NDArray[Number]) -> npt.NDArray[Number]:
    """Return the distinct values in ascending order.

    It replaces `np.unique`, which imports `numpy.ma` (as `np.median` does). That import takes a
    tenth of the start-up of a small conversion.
    """
    ordered = np.sort(values)
    return ordered[changes(ordered)]


def median(values: npt.NDArray[np.number]) -> float:
    """Return the median of at least one value."""
    ordered = np.sort(values)
    return float((ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2)


# A test by ranks or signs is beyond chance from this many standard deviations on: 1 %, two-sided.
BEYOND_CHANCE = 2.576
# A value this many standard deviations from the median still counts as usual.
DEVIATIONS = 3.0
# ratio of the standard deviation to the median absolute deviation, for a normal distribution
MAD_TO_DEVIATION = 1.4826
# A value within this share of the median is usual: few values do not show their real spread.
UNUSUAL = 0.25


def noise_of(apart: Floats) -> float:
    """Return how far values may be from their median by noise alone.

    Args:
        apart: the distance of each value from the median.
    """
    return DEVIATIONS * MAD_TO_DEVIATION * median(apart)


def usual_values(values: Floats) -> Flags:
    """Return bool[n]: whether each value is close enough to the median to count as usual.

    The limit is `noise_of` or the share `UNUSUAL` of the median, if that is more. Fewer than three
    values are all usual.
    """
    if len(values) < 3:
        return np.ones(len(values), np.bool_)
    middle = median(values)
    apart = np.abs(values - middle)
    return np.asarray(apart <= max(noise_of(apart), UNUSUAL * abs(middle)))
