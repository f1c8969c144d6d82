"""Scatters: how often they write to one place, and how long the writers wait for each other."""

from __future__ import annotations

from math import prod

from pgle.costs.estimate.passes import is_radix_sort
from pgle.costs.estimate.products import first_array, operand_shape
from pgle.xla.hlo.module import Instruction, Module

SWAPPED_US, ADDED_US = 0.18, 0.0096
"""µs of one addition to a place that gets a tenth of all additions: by compare and swap, and by the
GPU's own atomic add.

A million additions to ten places in each of ten rows took 18.2 ms in bf16 and 0.96 ms in f32
(openxla/xla issue 26371, GH200).
"""

SAME_SWAPPED_US, SAME_ADDED_US = 12.2, 0.0244
"""The same if all additions go to one row. 40,960 rows took 500 ms and 1 ms (openxla/xla issue
46225, RTX 3080 Ti).
"""

FREQUENT = 0.07
"""Share of the most frequent index in plausible data: that of the most frequent word in a text.
"the" is 69,971 of the 1,014,312 words of the Brown corpus (Kučera and Francis, "Computational
Analysis of Present-Day American English", 1967; https://en.wikipedia.org/wiki/Zipf%27s_law has the
count of "the").
"""


def even_us(module: Module, scatter: Instruction) -> float:
    """Return the µs that additions wait for each other if the scatter writes to all places equally
    often.
    """
    repeats = rows_of(module, scatter) / places_of(module, scatter)
    return (
        0.0
        if repeats <= 1 or overwrites(module, scatter)
        else repeats * _added_us(scatter)
    )


def plausible_us(module: Module, scatter: Instruction, caller: Instruction) -> float:
    """Do the same if the most frequent place is as frequent as the most frequent word of a text."""
    if overwrites(module, scatter):
        return 0.0
    share = max(FREQUENT, 1 / places_of(module, scatter))
    frequent = share * rows_of(module, scatter)
    return min(frequent, _most_repeats(module, scatter, caller)) * _added_us(scatter)


def extreme_us(module: Module, scatter: Instruction, caller: Instruction) -> float:
    """Do the same if all rows that can be equal are equal.

    jaxlib 0.10.2 and 0.11.0 compare and swap in f32, too (jax-ml/jax issue 38806).
    """
    if overwrites(module, scatter):
        return 0.0
    adds = _dtype(scatter)[:1] in "su" or _dtype(scatter) in ("f16", "f64")
    repeats = _most_repeats(module, scatter, caller)
    return repeats * (SAME_ADDED_US if adds else SAME_SWAPPED_US)


def _added_us(scatter: Instruction) -> float:
    """Return the µs of one addition.

    GPUs have atomic adds for f32, f64, f16 and integers. XLA computes bf16 in f32, so it compares
    and swaps (openxla/xla pull request 44428).
    """
    dtype = _dtype(scatter)
    return SWAPPED_US if dtype == "bf16" or dtype.startswith("f8") else ADDED_US


def _dtype(scatter: Instruction) -> str:
    """Return the type of the values that a scatter writes."""
    return (first_array(scatter.shape) or scatter.shape).dtype


def overwrites(module: Module, scatter: Instruction) -> bool:
    """Whether a scatter writes without reading, so nothing waits."""
    combiner = module.called_instructions(scatter)
    return {item.opcode for item in combiner} == {"parameter"}


def places_of(module: Module, scatter: Instruction) -> int:
    """Return the number of rows of the operand, each as long as an update; at least 1."""
    updates = operand_shape(module, scatter, len(scatter.operands) // 2 + 1)
    result = first_array(scatter.shape)
    if updates is None or result is None:
        return 1
    places = result.count * rows_of(module, scatter) // max(updates.count, 1)
    return max(places, 1)


def width_of(module: Module, scatter: Instruction) -> int:
    """Return the number of elements in a row of the operand; at least 1."""
    shape = first_array(scatter.shape) or scatter.shape
    return max(shape.count // places_of(module, scatter), 1)


def _most_repeats(module: Module, scatter: Instruction, caller: Instruction) -> int:
    """Return how often one row can repeat: all rows can be equal, unless the indices are a divided
    permutation or places that windows selected.

    A mixture of experts sends each token to k experts. The indices are an argsort of tokens × k
    entries, divided by k, so each row of the operand occurs k times. The gradient of max pooling
    adds one value for each window, to a place in it.
    """
    rows = rows_of(module, scatter)
    if _OF_POOLING in scatter.op_name:
        return min(rows, _windows_over_a_place(module, rows) or rows)
    arrays = len(scatter.operands) // 2
    permuted = _permuted(module, scatter.operands[arrays], caller) if arrays else 0
    if not permuted:
        return rows
    return min(rows, -(-permuted // places_of(module, scatter)))


_OF_POOLING = "select_and_scatter"
"""In JAX's names of the gradient of max pooling."""


def _windows_over_a_place(module: Module, count: int) -> int:
    """Return how many windows cover one place at most, if there are `count` windows; 0 if the
    module selects places in no windows of this number.

    XLA finds the places by a reduce-window of positions next to the values.
    """
    found = [0]
    for item in module.instructions.values():
        if item.opcode != "reduce-window" or len(item.shape.arrays) < 2:
            continue
        if item.shape.arrays[0].count == count:
            covering = [-(-size // max(stride, 1)) for size, stride in item.windows]
            found.append(prod(covering))
    return max(found)


def _permuted(module: Module, indices: str, caller: Instruction) -> int:
    """Return the length of the one argsort from which arithmetic alone makes the indices; 0 if
    anything else contributes.
    """
    lengths = set[int]()
    names = [indices]
    seen = set[str]()
    while names:
        item = module.instructions.get(name := names.pop())
        if item is None or name in seen:
            continue
        seen.add(name)
        if item.parameter_number is not None and item.computation in caller.called:
            names.append(caller.operands[item.parameter_number])
        elif item.opcode == "get-tuple-element" and (
            length := _argsorted(module, item)
        ):
            lengths.add(length)
        elif item.opcode in _ARITHMETIC:
            names += item.operands
        elif item.shape.count > 1 and item.opcode not in (
            "constant",
            "iota",
        ):
            return 0
    return lengths.pop() if len(lengths) == 1 else 0


_ARITHMETIC = frozenset(
    (
        "abs",
        "add",
        "and",
        "bitcast",
        "broadcast",
        "clamp",
        "compare",
        "convert",
        "copy",
        "divide",
        "dynamic-slice",
        "fusion",
        "maximum",
        "minimum",
        "multiply",
        "negate",
        "not",
        "or",
        "remainder",
        "reshape",
        "select",
        "shift-right-arithmetic",
        "shift-right-logical",
        "sign",
        "slice",
        "subtract",
    )
)


def _argsorted(module: Module, item: Instruction) -> int:
    """Return the length of a permutation if a sort makes it from a counting sequence; 0 for any
    other result.
    """
    sort = module.instructions.get(item.operands[0])
    if sort is None or not (sort.opcode == "sort" or is_radix_sort(sort)):
        return 0
    given = (
        None
        if item.tuple_index is None
        else sort.operands[item.tuple_index : item.tuple_index + 1]
    )
    sorted_ = module.instructions.get(given[0]) if given else None
    if sorted_ is None:
        return 0
    fused = module.fused(sorted_)
    root = sorted_ if fused is None else module.instructions[fused.root]
    return item.shape.count if root.opcode == "iota" else 0


def rows_of(module: Module, scatter: Instruction) -> int:
    """Return the number of rows that a scatter writes.

    It is the number of indices. If the last dimension of the indices is short enough to hold
    coordinates, it does not count.
    """
    indices = operand_shape(module, scatter, len(scatter.operands) // 2)
    dimensions = indices.dimensions if indices is not None else ()
    return prod(
        dimensions[:-1]
        if dimensions and dimensions[-1] <= len(scatter.shape.dimensions)
        else dimensions
    )
