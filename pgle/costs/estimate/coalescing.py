"""How the threads of a fusion's kernel read memory: whole sectors, or one element of each sector.

The 32 threads of a warp compute neighbouring elements, and their reads become transactions of whole
sectors (NVIDIA, "CUDA C++ Best Practices Guide", coalesced access). XLA's loop emitter gives each
thread an element of the result. Its emitters of reductions and of tiled transpositions read
operands in the operands' order, through shared memory (openxla/xla
`xla/backends/gpu/codegen/emitters`, `xla/service/gpu/ir_emission_utils.cc`). pgle computes the
addresses of a few warps: it follows the elements back through the fusion, and counts the sectors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from math import prod
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from pgle.xla.hlo.module import BITS, Computation, Instruction, Module, Shape

_Places: TypeAlias = npt.NDArray[np.int64]
_Layout: TypeAlias = tuple[int, ...]  # like `Shape.minor_to_major`

WARP = 32  # threads
SECTOR_BYTES = 32
"""The smallest transaction (NVIDIA, "CUDA C++ Best Practices Guide", coalesced access)."""
FETCH_BYTES = 64
"""The bytes that device memory sends to the second-level cache at once
(``dram_to_l2_transaction_size_bytes`` in openxla/xla `xla/stream_executor/device_description.h`;
XLA prices uncoalesced reads by it).
"""
LINE_BYTES = 128
"""A cache line (the same guide): the most bytes that one element can fetch."""
# second-level cache of an A100 (its data sheet), the smallest of the GPUs in the tables
L2_BYTES = 40 << 20
L2_SPEED = 2.5
"""Bandwidth of the second-level cache divided by that of device memory (``kL2CacheSpeedup`` in
openxla/xla `xla/service/gpu/model/gpu_performance_model_base.cc`).
"""

LEAST_TILED = 16
"""XLA transposes through shared memory if both swapped dimensions have at least this size
(``kMinDimensionToTransposeTiled`` in openxla/xla `xla/service/gpu/ir_emission_utils.h`).
"""

_SAMPLES = 8  # warps to follow
_MOST_STEPS = 2_000  # most instructions to follow
_STOPS = frozenset(
    (
        "call",
        "convolution",
        "custom-call",
        "dot",
        "fusion",
        "gather",
        "get-tuple-element",
        "reduce-window",
        "scatter",
        "sort",
        "tuple",
        "while",
    )
)
"""Opcodes whose reads are not followed: they have their own models, or data decides."""


_NO_PATH = _STOPS | {
    "broadcast",
    "concatenate",
    "dynamic-slice",
    "pad",
    "slice",
    "transpose",
}
"""XLA does not look through these opcodes for the instruction that decides the emitter."""


class Reads(NamedTuple):
    """Bytes that reads of one operand fetch, as multiples of the needed bytes; 1 is coalesced."""

    # if a cache still holds the rest of a fetched sector when it is needed
    sectors: float = 1.0
    fetches: float = 1.0  # if nothing is reused
    lines: float = 1.0  # if nothing is reused, and whole lines are fetched


COALESCED = Reads()


def reads_of(module: Module, instruction: Instruction) -> Mapping[int, Reads]:
    """Return how each operand is read, by its number. Coalesced operands are left out."""
    fused = module.fused(instruction)
    if fused is not None:
        is_looping = instruction.fusion_kind in ("kLoop", "kInput")
        return _reads_of_fusion(fused, _layouts(fused)) if is_looping else {}
    if instruction.opcode not in ("copy", "transpose", "slice"):
        return {}
    operand = module.instructions.get(instruction.operands[0])
    if operand is None or _is_tiled(instruction, operand.shape):
        return {}
    parameter = Instruction(
        "operand", "parameter", operand.shape, "", parameter_number=0
    )
    walk = _Walk({"operand": parameter})
    walk.operand(instruction, 0, "operand", _threads(instruction.shape))
    return walk.found()


def _layouts(fused: Computation) -> tuple[_Layout, ...]:
    """Return the layouts of a fusion's instructions."""
    return tuple(item.shape.minor_to_major for item in fused.instructions)


@lru_cache(maxsize=4096)  # an estimate and its range ask for the same fusion
def _reads_of_fusion(
    fused: Computation, layouts: tuple[_Layout, ...]
) -> Mapping[int, Reads]:
    """Do the same as `reads_of` for a fusion. The cache needs `layouts` in its key, because equal
    shapes may differ in layout.
    """
    items = {item.name: item for item in fused.instructions}
    walk = _Walk(items)
    root = items[fused.root]
    for name in root.operands if root.opcode == "tuple" else (root.name,):
        walk.start(items[name])
    return walk.found()


@dataclass
class _Walk:
    """Follows the elements of a few warps from results to parameters."""

    items: Mapping[str, Instruction]  # the instructions of the fused computation
    # the worst reads of each parameter
    reads: dict[int, Reads] = field(default_factory=dict)
    steps: int = 0
    # places by instruction and identities of the places, because a fusion often uses a value twice
    followed: dict[tuple[str, tuple[int, ...]], Sequence[_Places]] = field(
        default_factory=dict
    )

    def found(self) -> Mapping[int, Reads]:
        """Return the reads by parameter, without coalesced ones."""
        worst = self.reads.items()
        return {number: reads for number, reads in worst if reads != COALESCED}

    def start(self, root: Instruction) -> None:
        """Follow one result in the order in which the threads of its emitter take elements."""
        if root.opcode == "dynamic-update-slice" and root.operands[1] in self.items:
            root = self.items[root.operands[1]]  # an update in place
        hero = self.hero(root)
        first = root if hero is None else self.items[hero.operands[0]]
        self.follow(first, _threads(first.shape))

    def hero(self, root: Instruction) -> Instruction | None:
        """Return the instruction whose operand XLA reads in the operand's order, or None.

        It is a reduction or a tiled transposition, with only element-wise instructions between it
        and the root.
        """
        found: list[Instruction] = []
        todo = [root]
        seen = {root.name}
        while todo:
            item = todo.pop()
            operands = [
                self.items[name] for name in item.operands if name in self.items
            ]
            if not operands:
                continue
            if item.opcode == "reduce" or _is_tiled(item, operands[0].shape):
                found.append(item)
                continue
            if item.opcode in _NO_PATH:
                continue
            for operand in operands:
                is_same = operand.shape.count == item.shape.count
                if is_same and operand.name not in seen:
                    seen.add(operand.name)
                    todo.append(operand)
        return found[0] if len(found) == 1 else None

    def follow(self, item: Instruction, places: Sequence[_Places]) -> None:
        """Follow elements of an instruction.

        Args:
            places: for each dimension, the indices of the elements.
        """
        key = item.name, tuple(map(id, places))
        if key in self.followed:
            return
        self.followed[key] = places
        self.steps += 1
        if self.steps > _MOST_STEPS or item.opcode in _STOPS:
            return
        if item.opcode == "parameter" and item.parameter_number is not None:
            found = _counted(item.shape, places)
            before = self.reads.get(item.parameter_number, COALESCED)
            self.reads[item.parameter_number] = max(before, found)
            return
        for number, name in enumerate(item.operands):
            if name in self.items:
                self.operand(item, number, name, places)

    def operand(
        self, item: Instruction, number: int, name: str, places: Sequence[_Places]
    ) -> None:
        """Follow elements of the result of `item` into its operand number `number`."""
        operand = self.items[name]
        found = _places_in(item, number, operand.shape, places)
        if found is not None:
            self.follow(operand, found)


def _threads(shape: Shape) -> Sequence[_Places]:
    """Return the indices of the elements that a few warps take, in the order of memory."""
    return _warps(shape.dimensions, shape.minor_to_major)


@lru_cache(maxsize=256)  # results of one shape start from the same places
def _warps(dimensions: tuple[int, ...], layout: _Layout) -> Sequence[_Places]:
    """Return the indices of a few warps' elements, spread evenly over a shape."""
    shape = Shape("", dimensions, minor_to_major=layout)
    count = shape.count
    warps = max(count // WARP, 1)
    chosen = np.linspace(0, warps - 1, _SAMPLES).astype(np.int64)
    first = np.unique(chosen) * WARP
    linear = (first[:, None] + np.arange(WARP)).ravel()
    return _unravelled(shape, np.minimum(linear, max(count - 1, 0)))


def _order(shape: Shape) -> list[int]:
    """Return the dimensions from the slowest to the one whose elements are adjacent in memory."""
    rank = len(shape.dimensions)
    if sorted(shape.minor_to_major) == list(range(rank)):
        return list(reversed(shape.minor_to_major))
    return list(range(rank))


def _unravelled(shape: Shape, linear: _Places) -> list[_Places]:
    """Convert places in memory to indices in each dimension."""
    found: dict[int, _Places] = {}
    for dimension in reversed(_order(shape)):
        size = max(shape.dimensions[dimension], 1)
        found[dimension] = linear % size
        linear = linear // size
    return [found[dimension] for dimension in range(len(shape.dimensions))]


def _ravelled(shape: Shape, places: Sequence[_Places]) -> _Places:
    """Convert indices in each dimension to places in memory."""
    linear = np.zeros(len(places[0]) if places else 1, np.int64)
    for dimension in _order(shape):
        linear = linear * shape.dimensions[dimension] + places[dimension]
    return linear


def _places_in(
    item: Instruction, number: int, operand: Shape, places: Sequence[_Places]
) -> list[_Places] | None:
    """Return the indices in an operand of the elements that a result's elements come from.

    None if data decides them, or the shapes do not tell.
    """
    opcode = item.opcode
    if opcode in ("bitcast", "reshape"):
        return _reshaped(item, operand, places)
    if opcode == "transpose":
        back = {of: places[at] for at, of in enumerate(item.dimensions)}
        if sorted(back) != list(range(len(operand.dimensions))):
            return None
        return [back[at] for at in range(len(back))]
    if opcode == "broadcast":
        if len(item.dimensions) != len(operand.dimensions):
            return None
        return [places[at] for at in item.dimensions]
    if opcode == "slice" and len(item.slices) == len(places):
        slices = zip(places, item.slices, strict=True)
        return [start + at * stride for at, (start, _, stride) in slices]
    if opcode in ("dynamic-slice", "dynamic-update-slice", "pad"):
        if number or len(operand.dimensions) != len(places):
            return None
        inside = zip(places, operand.dimensions, strict=True)
        return [np.minimum(at, max(size - 1, 0)) for at, size in inside]
    if opcode == "concatenate":
        inside = zip(places, operand.dimensions, strict=True)
        return [at % max(size, 1) for at, size in inside]
    if opcode == "reduce":
        return None  # each thread reads along its own row, so it uses each sector whole
    if operand.dimensions != item.shape.dimensions:
        return None
    return list(places)


def _reshaped(
    item: Instruction, operand: Shape, places: Sequence[_Places]
) -> list[_Places] | None:
    """Return the indices in the operand of a bitcast or a reshape, as `_places_in` does.

    A bitcast keeps the order in memory; a reshape keeps the order of the indices.
    """
    result = item.shape
    if result.count != operand.count:
        return None
    if item.opcode == "reshape":
        result = Shape("", result.dimensions)
        operand = Shape("", operand.dimensions)
    return _unravelled(operand, _ravelled(result, places))


def _counted(shape: Shape, places: Sequence[_Places]) -> Reads:
    """Return the bytes of sectors, fetches and lines that the warps touch, divided by the bytes
    that they need.
    """
    bits = max(BITS.get(shape.dtype, 0), 8)
    size = bits // 8
    addresses = _ravelled(shape, places) * size
    if len(addresses) % WARP:
        return COALESCED
    warps = np.sort(addresses.reshape(-1, WARP), axis=1)
    sectors, fetches, lines = (
        int(_distinct(warps // unit).sum())
        for unit in (SECTOR_BYTES, FETCH_BYTES, LINE_BYTES)
    )
    needed_by_warp = _distinct(warps) * size
    fewest = int((-(-needed_by_warp // SECTOR_BYTES)).sum())
    if sectors < 2 * fewest:
        # These are ends of rows, or elements that do not begin at a sector.
        return COALESCED
    needed = int(needed_by_warp.sum())
    return Reads(
        sectors=sectors * SECTOR_BYTES / needed,
        fetches=fetches * FETCH_BYTES / needed,
        lines=lines * LINE_BYTES / needed,
    )


def _distinct(rows: _Places) -> _Places:
    """Return int64[rows]: the number of distinct values in each sorted row."""
    changes = np.diff(rows, axis=1) != 0
    found: _Places = 1 + changes.sum(axis=1)
    return found


def _is_tiled(item: Instruction, operand: Shape) -> bool:
    """Whether XLA transposes through shared memory, so that reads and writes are coalesced.

    XLA does so if two dimensions swap places, or three are reversed. Neighbouring dimensions that
    stay together count as one.
    """
    if item.opcode not in ("copy", "transpose"):
        return False
    permutation, sizes = _permutation(item, operand)
    if permutation not in ([1, 0], [0, 2, 1], [2, 1, 0]):
        return False
    return min(sizes[-1], sizes[permutation[-1]]) >= LEAST_TILED


def _permutation(item: Instruction, operand: Shape) -> tuple[list[int], list[int]]:
    """Return the operand's dimension at each place of the result, slowest first, and the sizes by
    operand dimension.

    Neighbours that stay together count as one dimension. Dimensions of size 1 do not count.
    """
    dimensions = operand.dimensions
    every = tuple(range(len(dimensions)))
    of = item.dimensions if item.opcode == "transpose" else every
    if sorted(of) != list(every) or len(of) != len(item.shape.dimensions):
        return [], []
    known = [at for at in _order(operand) if dimensions[at] > 1]
    in_result = [of[at] for at in _order(item.shape)]
    moved = [known.index(at) for at in in_result if dimensions[at] > 1]
    runs: list[list[int]] = []
    for at in moved:
        if runs and at == runs[-1][-1] + 1:
            runs[-1].append(at)
        else:
            runs.append([at])
    by_place = sorted(runs)  # as in the operand
    sizes = [prod(dimensions[known[at]] for at in run) for run in by_place]
    return [by_place.index(run) for run in runs], sizes
