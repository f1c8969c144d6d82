"""Matrix products: which ones an instruction computes, in which arithmetic, and how long they take
on a GPU.

Times come from XLA's measured table of products. For another GPU, size or type, pgle takes the
nearest product in the table, and multiplies its time by the ratio of the two rooflines.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from math import exp, log2, prod
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from pgle.costs.estimate.attention import AttentionWork
from pgle.costs.estimate.communication import rows
from pgle.xla.hlo.module import BITS, Instruction, Module, Shape, backend_config
from pgle.xla.matrix_products import is_attention, is_convolution, is_gemm
from pgle.xla.targets import (
    KERNEL_US,
    MEMORY_EFFICIENCY,
    TABLE,
    Hardware,
    dtype_family,
    weaker,
)

_Array: TypeAlias = npt.NDArray[np.float64]

# families whose products can be faster than the peak of 16-bit floats
_FASTER = ("f8", "f4", "s8")

GRID_K = (256, 512, 1024, 2048, 4096)
GRID_B = (1, 2, 4)
MATMULS_OF = {
    "h100-sxm": "h100-sxm",
    "b200": "b200",
    "gb200": "b200",
    "gb300": "b200",
    "mi350x": "mi350x",
}
"""By `Hardware.measured_as`: the GPU whose table of matrix products is nearest."""

TILE = 128
"""Rows and columns of the output tile that one streaming multiprocessor computes (NVIDIA, "Matrix
Multiplication Background User's Guide": tile and wave quantization).
"""

# depth from which a product with few tiles is split over more multiprocessors
SPLIT_K = 1024


@cache
def measured_products(gpu: str, dtype: str) -> npt.NDArray[np.float64]:
    """Return measured µs of matrix products over `GRID_B` and three times `GRID_K` (m, n, k); NaN
    if the table lacks one.

    Args:
        dtype: ``bf16``, ``f32`` (on TF32 tensor cores) or ``f8``.
    """
    grid = np.full((len(GRID_B), *[len(GRID_K)] * 3), np.nan)
    for name, of, *dimensions, tflops in rows("matmuls.tsv"):
        if (name, of) == (gpu, dtype):
            b, m, n, k = map(int, dimensions)
            place = GRID_B.index(b), GRID_K.index(m), GRID_K.index(n), GRID_K.index(k)
            grid[place] = 2.0 * b * m * n * k / (float(tflops) * 1e6)
    return grid


_TABLE_BYTES = {"bf16": 2.0, "f8": 1.0, "f32": 4.0}  # bytes of an element
# numbers of powers of two in the surface: up to 4,096 products, sides up to 2^20
_BATCHES, _SIDES = 13, 21


def _place(value: int, points: int) -> tuple[int, float]:
    """Return the index of the largest power of two up to a value, and the distance to the next one
    on a logarithmic scale.

    Beyond the last power of two the distance exceeds 1.
    """
    place = log2(max(value, 1))
    index = min(int(place), points - 2)
    return index, place - index


def _between(
    surface: npt.NDArray[np.float64], places: Sequence[tuple[int, float]]
) -> float:
    """Return a value interpolated between the 16 points around it on logarithmic scales; beyond the
    last point it is extrapolated.

    Args:
        places: `_place` of batch, m, n and k.
    """
    corners = surface[tuple(slice(index, index + 2) for index, _ in places)]
    for _, part in places:  # each axis in turn
        corners = corners[0] * (1 - part) + corners[1] * part
    return exp(float(corners))


@lru_cache(maxsize=64)
def _surface(
    family: str, item_bytes: float, hardware: Hardware
) -> npt.NDArray[np.float64]:
    """Return logarithms of µs over logarithms of batch, m, n and k.

    The table's own GPU takes the measured time. Another GPU, size or type takes the time of the
    nearest product in the table, multiplied by the ratio of the two rooflines.

    A larger product must not take less time. So times that fall are levelled, half way on a
    logarithmic scale between two bounds: the most of all smaller products, and the least of all
    larger ones.
    """
    base = TABLE[MATMULS_OF[hardware.measured_as]]
    table = {"f16": "bf16", "f8": "f8", "tf32": "f32"}.get(family, "bf16")
    sides = 2.0 ** np.arange(_SIDES)
    b, m, n, k = np.meshgrid(
        2.0 ** np.arange(_BATCHES), sides, sides, sides, indexing="ij", sparse=True
    )
    # which entry of the table's grids is nearest to each power of two
    batch = np.minimum(np.arange(_BATCHES), len(GRID_B) - 1)
    first_side = int(log2(GRID_K[0]))
    side = np.clip(np.arange(_SIDES) - first_side, 0, len(GRID_K) - 1)
    of_table = _Roofline(base.peak_tflops(table), _TABLE_BYTES[table], base)
    near = [
        np.minimum(b, GRID_B[-1]),
        *(np.clip(each, GRID_K[0], GRID_K[-1]) for each in (m, n, k)),
    ]
    own = _Roofline(hardware.peak_of(family), item_bytes, hardware)
    roofline = own.us(b, m, n, k)
    nearest = of_table.us(*near)
    measured = measured_products(base.name, table)[np.ix_(batch, side, side, side)]
    times = np.log(np.where(np.isnan(measured), nearest, measured) * roofline / nearest)
    most_of_smaller = times
    least_of_larger = np.flip(times)  # from the largest product to the smallest
    for axis in range(times.ndim):
        most_of_smaller = np.maximum.accumulate(most_of_smaller, axis)
        least_of_larger = np.minimum.accumulate(least_of_larger, axis)
    middle = (most_of_smaller + np.flip(least_of_larger)) / 2
    return np.maximum(middle, np.log(own.least_us(b, m, n, k)))


@dataclass(frozen=True, slots=True)
class _Roofline:
    """The larger of memory time and arithmetic time for matrix products of one type."""

    peak_tflops: float
    item_bytes: float
    hardware: Hardware

    def us(self, b: _Array, m: _Array, n: _Array, k: _Array) -> _Array:
        """Return the µs at reachable speed, with the multiprocessors that too few tiles leave idle.

        Few deep tiles are split over more multiprocessors. A last wave of tiles that leaves some
        idle does not count: libraries then choose other tiles.
        """
        cores = self.hardware.cores
        tiles = b * np.ceil(m / TILE) * np.ceil(n / TILE)
        # of all that one multiprocessor computes: a part of a tile, or several tiles
        depth = np.maximum(np.minimum(k, SPLIT_K), tiles * k / cores)
        operations = 2.0 * np.minimum(m, TILE) * np.minimum(n, TILE) * depth
        arithmetic = (
            operations
            * cores
            / (self.peak_tflops * self.hardware.matmul_efficiency * 1e6)
        )
        return KERNEL_US + np.maximum(
            arithmetic, self._memory_us(b, m, n, k) / MEMORY_EFFICIENCY
        )

    def least_us(self, b: _Array, m: _Array, n: _Array, k: _Array) -> _Array:
        """Return the µs at the peaks of the data sheet."""
        return np.maximum(
            2.0 * b * m * n * k / (self.peak_tflops * 1e6), self._memory_us(b, m, n, k)
        )

    def _memory_us(self, b: _Array, m: _Array, n: _Array, k: _Array) -> _Array:
        """Return the time that device memory needs for operands and result of batched products."""
        return (
            b
            * (m * k + k * n + m * n)
            * self.item_bytes
            / (self.hardware.memory_gb_s * 1e3)
        )


_CAUSAL = re.compile(r"mask_type\W+(?:[2-6]\b|\w*CAUSAL)")
"""cuDNN writes ``CAUSAL``. Transformer Engine writes a number; 0 and 1 are not causal masks
(`NVTE_Mask_Type`).
"""


_STATED = re.compile(r"(\w+) = (-?\d{1,18}) : i64")
"""Transformer Engine's attributes state the sizes, for any layout of queries, keys and values."""

_SCORES = re.compile(
    r'"intermediate_tensor_shape":\s*\{.*?"dimensions":\s*'
    r'\["(\d{1,18})",\s*"(\d{1,18})",\s*"(\d{1,18})",\s*"(\d{1,18})"\]'
)
"""cuDNN's configuration states batch, heads, queries and keys (jax
`_src/cudnn/fused_attention_stablehlo.py`).
"""

_WINDOW = re.compile(
    r'(?:window_size_left = |"sliding_window_length":\s*)([1-9]\d{0,17})'
)


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """The type in which a GPU multiplies, and how many products in this type one product takes."""

    family: str  # key of `Hardware.tflops`
    products: int = 1  # products of `family` per product
    least_products: int = 1  # the same for the best known algorithm


_ALGORITHMS: Mapping[str, Arithmetic] = {
    "dot_any_f8_any_f8_f32": Arithmetic("f8"),
    "dot_any_f8_any_f8_f32_fast_accum": Arithmetic("f8"),
    "dot_f16_f16_f16": Arithmetic("f16"),
    "dot_f16_f16_f32": Arithmetic("f16"),
    "dot_bf16_bf16_bf16": Arithmetic("f16"),
    "dot_bf16_bf16_f32": Arithmetic("f16"),
    "dot_bf16_bf16_f32_x3": Arithmetic("f16", 3, 3),
    "dot_bf16_bf16_f32_x6": Arithmetic("f16", 6, 6),
    "dot_bf16_bf16_f32_x9": Arithmetic("f16", 9, 9),
    "dot_tf32_tf32_f32": Arithmetic("tf32"),
    "dot_tf32_tf32_f32_x3": Arithmetic("tf32", 3, 3),
    "dot_f32_f32_f32": Arithmetic("f32"),
    "dot_f64_f64_f64": Arithmetic("f64"),
}
"""By the algorithm that a program requests (`PrecisionConfig.Algorithm` of openxla/xla
`xla_data.proto`). ``x3`` means three products of parts.
"""

COMPLEX = {"c64": "f32", "c128": "f64"}
"""The type of real and imaginary parts. A complex product takes four real ones, or three by Gauss's
method (cuBLAS: ``gemm3m``).
"""


def arithmetic_of(dtype: str, precision: str = "") -> Arithmetic:
    """Return the arithmetic of a product.

    XLA:GPU uses TF32 for f32 unless an operand's precision is ``highest``; then it uses FP32
    without tensor cores. Sources: openxla/xla `algorithm_util.cc`, ``IsTf32Allowed``, and for
    convolutions `conv_algorithm_picker.cc`.
    """
    if precision in _ALGORITHMS:
        return _ALGORITHMS[precision]
    family = dtype_family(COMPLEX.get(dtype, dtype))
    if family == "tf32" and precision == "highest":
        family = "f32"
    return Arithmetic(family, 4, 3) if dtype in COMPLEX else Arithmetic(family)


@dataclass(frozen=True, slots=True)
class Matmul:
    """Matrix products of one kernel: `batch` products of m × k by k × n."""

    batch: int
    m: int
    n: int
    k: int
    dtype: str
    precision: str = ""  # as `Instruction.precision`

    @property
    def operations(self) -> float:
        """Number of multiplications and additions."""
        return 2.0 * self.batch * self.m * self.n * self.k

    @property
    def arithmetic(self) -> Arithmetic:
        """The arithmetic that computes it."""
        return arithmetic_of(self.dtype, self.precision)

    @property
    def item_bytes(self) -> float:
        """Bytes of one element."""
        return BITS.get(self.dtype, 16) / 8


def matmul_us(item: Matmul, hardware: Hardware) -> float:
    """Return the µs of matrix products: measured by XLA, or outside its table scaled by the ratio
    of two rooflines.

    Three rules hold. More rows, columns, depth or products never take less time. Nothing is faster
    than the peak of arithmetic or memory. No GPU is slower than a weaker one (`weaker`) with less
    peak in this type.
    """
    arithmetic = item.arithmetic
    family = arithmetic.family
    slower = [
        each
        for each in weaker(hardware)
        if each.peak_of(family) <= hardware.peak_of(family)
        and each.memory_gb_s <= hardware.memory_gb_s
    ]
    depth = item.k * arithmetic.products
    places = [
        _place(item.batch, _BATCHES),
        *(_place(side, _SIDES) for side in (item.m, item.n, depth)),
    ]
    return min(
        _between(_surface(family, item.item_bytes, each), places)
        for each in (*slower, hardware)
    )


def matmuls(module: Module, instruction: Instruction) -> Iterator[Matmul]:
    """Yield the matrix products that an instruction computes: dots, also fused ones, cuBLAS calls
    and convolutions.
    """
    if is_triangular_solve(instruction):
        return
    if instruction.opcode == "dot":
        yield from _dot(module, instruction, instruction.dot_lhs_contracting)
    elif is_convolution(instruction):
        yield from _convolution(module, instruction)
    elif is_gemm(instruction):
        yield from _dot(module, instruction, _contracting(instruction))
    elif instruction.opcode in ("fusion", "async-start", "call"):
        for inner in module.called_instructions(instruction):
            yield from matmuls(module, inner)


def multiplies_as(
    module: Module, instruction: Instruction
) -> tuple[tuple[str, Arithmetic], ...]:
    """Return the types of an instruction's matrix products with the arithmetic of each, sorted.
    Empty if it has none.

    Shapes do not tell the arithmetic: a product of f32 arrays may round its operands to bf16.
    """
    found = {(item.dtype, item.arithmetic) for item in matmuls(module, instruction)}
    return tuple(sorted(found, key=str))


def least_product_us(item: Matmul, hardware: Hardware) -> float:
    """Return the µs of a product at the data sheet's peak.

    XLA may compute 8-bit types in 16 bits if that is faster.
    """
    arithmetic = item.arithmetic
    peak = hardware.peak_of(arithmetic.family)
    if arithmetic.family in _FASTER:
        peak = max(peak, hardware.tflops["f16"])
    return item.operations * arithmetic.least_products / (peak * 1e6)


def is_triangular_solve(instruction: Instruction) -> bool:
    """Whether the instruction solves triangular systems: a cuBLAS call, or HLO's own
    ``triangular-solve``.
    """
    target = instruction.custom_call_target
    return instruction.opcode == "triangular-solve" or "triangularSolve" in target


def _dot(
    module: Module, instruction: Instruction, contracting: Sequence[int]
) -> Iterator[Matmul]:
    """Yield the matrix product of a dot, given the contracted dimensions of its left operand."""
    lhs = operand_shape(module, instruction, 0)
    result = first_array(instruction.shape)
    if lhs is None or result is None or not lhs.dimensions:
        return
    last = len(lhs.dimensions) - 1
    contracting = [index for index in contracting if index <= last] or [last]
    depth = prod(lhs.dimensions[index] for index in contracting)
    # Batch dimensions are in both shapes: this is batch * m, and result.count is batch * m * n. So
    # n follows, but batch does not.
    left_rows = lhs.count // max(depth, 1)
    batch = _shared_leading(lhs.dimensions, result.dimensions, contracting)
    yield Matmul(
        batch=batch,
        m=max(left_rows // batch, 1),
        n=max(result.count // max(left_rows, 1), 1),
        k=depth,
        dtype=lhs.dtype,
        precision=_precision(instruction),
    )


def _shared_leading(
    lhs: Sequence[int], result: Sequence[int], contracting: Sequence[int]
) -> int:
    """Return the product of the leading dimensions that can be batch dimensions.

    They are equal in both shapes and not contracted, and at least two dimensions must remain.
    """
    batch = 1
    for index in range(min(len(lhs), len(result)) - 2):
        if index in contracting or lhs[index] != result[index]:
            break
        batch *= lhs[index]
    return max(batch, 1)


def _gemm_config(instruction: Instruction) -> Mapping[str, object]:
    """Return the configuration of a cuBLAS call; empty for any other instruction."""
    config = backend_config(instruction)
    return _object(config.get("gemm_backend_config", config))


def _object(value: object) -> Mapping[str, object]:
    """Return a value of a configuration if it is an object, else an empty one."""
    return value if isinstance(value, dict) else {}


def _precision(instruction: Instruction) -> str:
    """Return the precision of a product, from its cuBLAS call or from the instruction."""
    stated: Mapping[str, object] = {}
    if is_gemm(instruction):
        stated = _object(_gemm_config(instruction).get("precision_config"))
    algorithm = str(stated.get("algorithm", "ALG_UNSET")).removeprefix("ALG_").lower()
    if algorithm != "unset":
        return algorithm
    operands = stated.get("operand_precision", [])
    highest = isinstance(operands, list) and "HIGHEST" in operands
    return "highest" if highest else instruction.precision


def _contracting(instruction: Instruction) -> list[int]:
    """Return the contracting dimensions of the left operand, from the configuration of a cuBLAS
    call.
    """
    numbers = _object(_gemm_config(instruction).get("dot_dimension_numbers"))
    found = numbers.get("lhs_contracting_dimensions")
    if not isinstance(found, list):
        return []
    return [int(item) for item in found if re.fullmatch(r"\d{1,3}", str(item))]


def attention_operations(module: Module, instruction: Instruction) -> float:
    """Return the multiplications and additions of a fused attention call (cuDNN, Transformer
    Engine); 0 for anything else.
    """
    work = attention_work(module, instruction)
    return 0.0 if work is None else work.operations


def attention_work(module: Module, instruction: Instruction) -> AttentionWork | None:
    """Return the work of a fused attention call (cuDNN, Transformer Engine); None for anything
    else.

    Each head takes two products: queries with keys, and weights with values. The backward pass
    takes five, two of which repeat the forward ones. A causal mask leaves half of the work, a
    sliding window only the keys in it.
    """
    if not is_attention(instruction):
        return None
    target = instruction.custom_call_target.lower()
    config = instruction.backend_config
    sizes = _attention_sizes(module, instruction)
    if sizes is None:
        return None
    batch, heads, queries, keys, depth = sizes
    window = _window(config, keys)
    is_causal = window is None and _CAUSAL.search(config) is not None
    return AttentionWork(
        heads=batch * heads,
        queries=queries,
        keys=keys,
        depth=depth,
        causal=is_causal,
        back="backward" in target or "bwd" in target,
        window=window,
        is_f8=target.endswith("f8"),
    )


def _window(config: str, keys: float) -> float | None:
    """Return the number of keys that a query sees in a sliding window; None if it sees all."""
    found = _WINDOW.search(config)
    if found is None or int(found[1]) >= keys:
        return None
    return int(found[1]) + 1


def _attention_sizes(
    module: Module, instruction: Instruction
) -> tuple[float, float, float, float, float] | None:
    """Return batch, heads, queries, keys and depth, as the call states them, else from the shapes
    of queries and keys.
    """
    words = _STATED.findall(instruction.backend_config)
    stated = {name: int(size) for name, size in words}
    names = ("input_batch", "attn_heads", "q_max_seqlen", "kv_max_seqlen")
    if {*names, "qk_head_dim"} <= stated.keys():
        batch, heads, queries, keys = (stated[name] for name in names)
        depth = stated["qk_head_dim"]
        mean_depth = (depth + stated.get("v_head_dim", depth)) / 2
        return batch, heads, queries, keys, mean_depth
    query = operand_shape(module, instruction, 0)
    key = operand_shape(module, instruction, 1)
    if query is None or key is None:
        return None
    if len(query.dimensions) != 4 or len(key.dimensions) != 4:
        return None
    scores = _SCORES.search(instruction.backend_config)
    if scores is not None:
        batch, heads, queries, keys = (int(scores[number]) for number in range(1, 5))
        return batch, heads, queries, keys, query.dimensions[-1]
    # the layout is unknown: a head's queries and keys are taken to outnumber the heads
    batch, one, other, depth = query.dimensions
    heads, queries = sorted((one, other))
    return batch, heads, queries, max(key.dimensions[1:3]), depth


def _convolution(module: Module, instruction: Instruction) -> Iterator[Matmul]:
    """Yield a convolution as a matrix product.

    Its output features are assumed to be the largest dimension that kernel and result share.
    """
    kernel = operand_shape(module, instruction, 1)
    result = first_array(instruction.shape)
    if kernel is None or result is None:
        return
    features = max(
        (size for size in kernel.dimensions if size in result.dimensions), default=1
    )
    pixels = result.count // max(features, 1)
    depth = kernel.count // max(features, 1)
    yield Matmul(
        batch=1,
        m=max(pixels, 1),
        n=features,
        k=depth,
        dtype=kernel.dtype,
        precision=_precision(instruction),
    )


def first_array(shape: Shape) -> Shape | None:
    """Return the first array of a shape; None if a tuple holds none. A call may return its result
    with a workspace.
    """
    if shape.dtype != "tuple":
        return shape
    arrays = filter(None, map(first_array, shape.elements))
    return next(arrays, None)


def operand_shape(module: Module, instruction: Instruction, index: int) -> Shape | None:
    """Return the shape of an operand; for a tuple, its first array. None if there is no such
    operand.
    """
    if index >= len(instruction.operands):
        return None
    operand = module.instructions.get(instruction.operands[index])
    return None if operand is None else first_array(operand.shape)
