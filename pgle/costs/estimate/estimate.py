"""Costs that nobody measured: what an instruction takes on a given GPU, and the least that is possible.

Collectives (`communication`) and matrix products come from XLA's measured tables, scaled for a GPU that has no table,
or a fabric; the rest is a roofline of shapes. All that comes out is `Origin.ESTIMATED`. How far it is from two real
jobs: docs/evidence/rehearse.md and `benchmarks/estimate.py`.

The least is a bound and no estimate, so it leaves out what a cache or another algorithm may save: bytes of device
memory, convolutions (Winograd), attention (masks) and transfers whose size data decides.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from math import ceil, exp, inf, log2, prod
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from pgle.costs.estimate.communication import (
    LAUNCH_US,
    collective_us,
    group_of,
    payload_bytes,
    rows,
)
from pgle.xla.collectives import (
    FREE_TARGETS,
    collective_kind,
    is_attention,
    is_convolution,
    is_gemm,
    is_host_copy,
    result_shape,
)
from pgle.xla.hlo.module import (
    BITS,
    HOST_MEMORY_SPACE,
    Computation,
    Instruction,
    Module,
    Shape,
    backend_config,
)
from pgle.xla.targets import (
    ATTENTION_EFFICIENCY,
    HOST_LINK_EFFICIENCY,
    KERNEL_US,
    MEMORY_EFFICIENCY,
    TABLE,
    Hardware,
    by_capability,
    dtype_family,
    weaker,
)

_Array: TypeAlias = npt.NDArray[np.float64]

NVLINK_OVER_NCCL = 300 / 235
"""The data sheets' bandwidth per direction over what NCCL's tuner assumes, the largest ratio of the table's GPUs: A100
300 GB/s over 235 (H100 450 over 371, B200 900 over 722)."""

_FASTER = ("f8", "f4", "s8")  # families whose products can beat the peak of 16-bit floats


def least_us(
    module: Module, instruction: Instruction, hardware: Hardware, *, hosts: bool = True
) -> float:
    """Microseconds below which no execution of an instruction can be; 0 if nothing is known.

    Args:
        instruction: of any kind; of an asynchronous operation its start.
        hosts: bytes between hosts take the network; without, NVLink.
    """
    if instruction.latency_ns is not None:  # the program states its cost
        return 0.0
    kind = collective_kind(module, instruction)
    inner = module.wrapped(instruction) or instruction
    if kind is not None:
        return _transfer_us(module, kind, inner, hardware, hosts=hosts)
    if is_host_copy(module, instruction) or instruction.is_host_transfer:
        return transferred_bytes(module, instruction) / (hardware.host_gb_s * 1e3)
    if is_convolution(inner) or (
        inner.opcode == "custom-call" and "__cublas" not in inner.custom_call_target
    ):
        return 0.0
    return sum(
        item.operations / (peak_tflops(item.dtype, hardware) * 1e6)
        for item in matmuls(module, instruction)
    )


def peak_tflops(dtype: str, hardware: Hardware) -> float:
    """The fastest way to multiply matrices of a type: XLA may compute wider ones from 16-bit parts."""
    family, half = dtype_family(dtype), hardware.tflops["f16"]
    return max(hardware.tflops.get(family, half), half) if family in _FASTER else half


def _transfer_us(
    module: Module, kind: str, inner: Instruction, hardware: Hardware, *, hosts: bool
) -> float:
    """What has to enter a device, or a host, at the links' peak; a switch may reduce and copy on the way."""
    if kind == "ragged-all-to-all":
        return 0.0
    nvlink = hardware.nvlink_gb_s * NVLINK_OVER_NCCL * 1e3
    if kind in ("send", "recv"):
        return result_shape(module, inner).size_bytes / nvlink
    size = payload_bytes(module, kind, inner)
    if kind == "collective-permute":
        return (
            size / nvlink
            if any(source != target for source, target in inner.source_target_pairs)
            else 0.0
        )
    group = group_of(module, inner, hardware)
    inside = size * (1 - 1 / group.size) / nvlink
    if not hosts or group.hosts <= 1:
        return inside
    # Of an all-to-all each device has bytes of its own for the other hosts; of the rest a host needs each byte once.
    senders = group.per_host if kind == "all-to-all" else 1
    return max(
        inside, size * senders * (1 - 1 / group.hosts) / (hardware.nic_gb_s * group.per_host * 1e3)
    )


def hardware_of(module: Module) -> Hardware:
    """The GPU that a module was compiled for, by the file name of its dump; an H100 where that does not tell."""
    return by_capability(module.compute_capability)


def estimator(module: Module, hardware: Hardware) -> Callable[[Instruction], float]:
    """A function from an instruction of `module` to its microseconds per execution on `hardware`."""

    def estimate(instruction: Instruction) -> float:
        if instruction.custom_call_target in FREE_TARGETS:
            return 0.0
        if instruction.latency_ns is not None:
            return instruction.latency_ns / 1e3
        wrapped = module.wrapped(instruction)
        kind = collective_kind(module, instruction)
        if kind is not None:
            return collective_us(module, kind, wrapped or instruction, hardware)
        if is_host_copy(module, instruction) or instruction.is_host_transfer:
            size = transferred_bytes(module, instruction)
            return LAUNCH_US + size / (hardware.host_gb_s * HOST_LINK_EFFICIENCY * 1e3)
        return compute_us(module, wrapped or instruction, hardware)

    return estimate


def transferred_bytes(module: Module, instruction: Instruction) -> int:
    """What a copy between device and host memory moves: of an update in place, the update alone."""
    inner = module.wrapped(instruction) or instruction
    computation = module.fused(inner)
    root = inner if computation is None else module.instructions[computation.root]
    if root.opcode == "dynamic-update-slice":
        return module.instructions[root.operands[1]].shape.size_bytes
    return result_shape(module, instruction).size_bytes


GRID_K = (256, 512, 1024, 2048, 4096)
GRID_B = (1, 2, 4)
MATMULS_OF = {"h100-sxm": "h100-sxm", "b200": "b200", "gb200": "b200", "gb300": "b200"}
"""By `Hardware.measured_as`: the GPU with the nearest table of matrix products."""

TILE = 128
"""Rows and columns of the output tile that one streaming multiprocessor computes (NVIDIA, "Matrix Multiplication
Background User's Guide": tile and wave quantization)."""

SPLIT_K = 1024  # depth at which a matmul with few tiles is split over more multiprocessors


@cache
def measured_products(gpu: str, dtype: str) -> npt.NDArray[np.float64]:
    """Microseconds of matrix products, over `GRID_B` and three times `GRID_K` (m, n, k); nan where none was kept.

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


_TABLE_BYTES = {"bf16": 2.0, "f8": 1.0, "f32": 4.0}  # of an element
_BATCHES, _SIDES = (
    13,
    21,
)  # powers of two at which products are worked out: up to 4,096 products, sides up to 2^20


def _place(value: int, points: int) -> tuple[int, float]:
    """The power of two below a value, and how far it is to the next; beyond the last by more than one."""
    place = log2(max(value, 1))
    index = min(int(place), points - 2)
    return index, place - index


def _between(surface: npt.NDArray[np.float64], x: Sequence[tuple[int, float]]) -> float:
    """A value between the 16 points around it, on logarithmic scales; beyond the last as between the last two."""
    corner = surface[tuple(slice(index, index + 2) for index, _ in x)]
    for _, part in x:
        corner = corner[0] * (1 - part) + corner[1] * part
    return exp(float(corner))


@lru_cache(maxsize=64)
def _surface(family: str, item_bytes: float, hardware: Hardware) -> npt.NDArray[np.float64]:
    """Logarithms of microseconds over logarithms of batch, m, n and k.

    The table's own GPU takes the measured time. Another GPU, size or type takes the time of the nearest product of the
    table, times how much longer its roofline is. What falls with a larger product is levelled:
    half way, on a logarithmic scale, between the most of all that are smaller and the least of all that are larger.
    """
    base = TABLE[MATMULS_OF[hardware.measured_as]]
    table = {"f16": "bf16", "f8": "f8", "tf32": "f32"}.get(family, "bf16")
    sides = 2.0 ** np.arange(_SIDES)
    b, m, n, k = np.meshgrid(
        2.0 ** np.arange(_BATCHES), sides, sides, sides, indexing="ij", sparse=True
    )
    batch = np.minimum(np.arange(_BATCHES), len(GRID_B) - 1)
    side = np.clip(np.arange(_SIDES) - int(log2(GRID_K[0])), 0, len(GRID_K) - 1)
    of_table = _Roofline(base.peak_tflops(table), _TABLE_BYTES[table], base)
    near = [
        np.minimum(b, GRID_B[-1]),
        *(np.clip(each, GRID_K[0], GRID_K[-1]) for each in (m, n, k)),
    ]
    own = _Roofline(hardware.peak_of(family), item_bytes, hardware)
    roofline, nearest = own.us(b, m, n, k), of_table.us(*near)
    measured = measured_products(base.name, table)[np.ix_(batch, side, side, side)]
    times = np.log(np.where(np.isnan(measured), nearest, measured) * roofline / nearest)
    most, least = times, times[::-1, ::-1, ::-1, ::-1]
    for axis in range(times.ndim):
        most, least = np.maximum.accumulate(most, axis), np.minimum.accumulate(least, axis)
    middle = (most + least[::-1, ::-1, ::-1, ::-1]) / 2
    return np.maximum(middle, np.log(own.least_us(b, m, n, k)))


@dataclass(frozen=True, slots=True)
class _Roofline:
    """The larger of memory time and arithmetic of matrix products of one type."""

    peak_tflops: float
    item_bytes: float
    hardware: Hardware

    def us(self, b: _Array, m: _Array, n: _Array, k: _Array) -> _Array:
        """With the multiprocessors that too few tiles leave idle; few deep tiles are split over more.

        A last wave of tiles that leaves some idle does not count: libraries choose other tiles then.
        """
        cores, tiles = self.hardware.cores, b * np.ceil(m / TILE) * np.ceil(n / TILE)
        depth = np.maximum(np.minimum(k, SPLIT_K), tiles * k / cores)
        operations = 2.0 * np.minimum(m, TILE) * np.minimum(n, TILE) * depth
        arithmetic = operations * cores / (self.peak_tflops * self.hardware.matmul_efficiency * 1e6)
        return KERNEL_US + np.maximum(arithmetic, self._memory_us(b, m, n, k) / MEMORY_EFFICIENCY)

    def least_us(self, b: _Array, m: _Array, n: _Array, k: _Array) -> _Array:
        """At the peaks of the data sheet."""
        return np.maximum(
            2.0 * b * m * n * k / (self.peak_tflops * 1e6), self._memory_us(b, m, n, k)
        )

    def _memory_us(self, b: _Array, m: _Array, n: _Array, k: _Array) -> _Array:
        return b * (m * k + k * n + m * n) * self.item_bytes / (self.hardware.memory_gb_s * 1e3)


_CAUSAL = re.compile(r"mask_type\W+(?:[2-6]\b|\w*CAUSAL)")
"""cuDNN writes ``CAUSAL``; Transformer Engine a number, of which 0 and 1 are no causal mask (`NVTE_Mask_Type`)."""


_STATED = re.compile(r"(\w+) = (-?\d{1,18}) : i64")
"""Transformer Engine's attributes: sizes, whatever the layout of queries, keys and values."""

_SCORES = re.compile(
    r'"intermediate_tensor_shape":\s*\{.*?"dimensions":\s*\["(\d{1,18})",\s*"(\d{1,18})",\s*"(\d{1,18})",\s*"(\d{1,18})"\]'
)
"""In cuDNN's configuration: batch, heads, queries, keys (jax `_src/cudnn/fused_attention_stablehlo.py`)."""

_WINDOW = re.compile(r'(?:window_size_left = |"sliding_window_length":\s*)([1-9]\d{0,17})')


@dataclass(frozen=True, slots=True)
class Matmul:
    """Matrix products of one kernel: `batch` of m x k times k x n."""

    batch: int
    m: int
    n: int
    k: int
    dtype: str

    @property
    def operations(self) -> float:
        """Multiplications and additions."""
        return 2.0 * self.batch * self.m * self.n * self.k

    @property
    def item_bytes(self) -> float:
        """Bytes of one element."""
        return BITS.get(self.dtype, 16) / 8


def matmul_us(item: Matmul, hardware: Hardware) -> float:
    """Microseconds of matrix products: as XLA measured them, outside its table by the ratio of two rooflines.

    Three rules hold: more rows, columns, depth or products never take less, nothing is faster than the peak of the
    arithmetic or of the memory, and no GPU is slower than a weaker one (`weaker`) of less peak in this type.
    """
    known = [
        each
        for each in weaker(hardware)
        if each.peak_tflops(item.dtype) <= hardware.peak_tflops(item.dtype)
        and each.memory_gb_s <= hardware.memory_gb_s
    ]
    place = [
        _place(item.batch, _BATCHES),
        *(_place(side, _SIDES) for side in (item.m, item.n, item.k)),
    ]
    family = dtype_family(item.dtype)
    return min(
        _between(_surface(family, item.item_bytes, each), place) for each in (*known, hardware)
    )


def matmuls(module: Module, instruction: Instruction) -> Iterator[Matmul]:
    """The matrix products that an instruction computes: dots, fused too, cuBLAS calls, convolutions."""
    if instruction.opcode == "dot":
        yield from _dot(module, instruction, instruction.dot_lhs_contracting)
    elif is_convolution(instruction):
        yield from _convolution(module, instruction)
    elif is_gemm(instruction):
        yield from _dot(module, instruction, _contracting(instruction))
    else:
        for name in instruction.called:
            computation = module.computations.get(name)
            if computation is not None and instruction.opcode in ("fusion", "async-start", "call"):
                for inner in computation.instructions:
                    yield from matmuls(module, inner)


def _dot(module: Module, instruction: Instruction, contracting: Sequence[int]) -> Iterator[Matmul]:
    lhs = operand_shape(module, instruction, 0)
    result = first_array(instruction.shape)
    if lhs is None or result is None or not lhs.dimensions:
        return
    contracting = [index for index in contracting if index < len(lhs.dimensions)] or [
        len(lhs.dimensions) - 1
    ]
    depth = prod(lhs.dimensions[index] for index in contracting)
    rows = prod(lhs.dimensions) // max(depth, 1)
    # Batch dimensions stand in both, so with rows = batch * m and result = batch * m * n: n follows, batch does not.
    columns = max(prod(result.dimensions) // max(rows, 1), 1)
    batch = _shared_leading(lhs.dimensions, result.dimensions, contracting)
    yield Matmul(batch, max(rows // batch, 1), columns, depth, lhs.dtype)


def _shared_leading(lhs: Sequence[int], result: Sequence[int], contracting: Sequence[int]) -> int:
    """Product of the leading dimensions that can be batch dimensions: equal in both, at least two left over."""
    batch = 1
    for index in range(min(len(lhs), len(result)) - 2):
        if index in contracting or lhs[index] != result[index]:
            break
        batch *= lhs[index]
    return max(batch, 1)


def _contracting(instruction: Instruction) -> list[int]:
    """Contracting dimensions of the left operand in the configuration of a cuBLAS call."""
    config = backend_config(instruction)
    gemm = config.get("gemm_backend_config", config)
    numbers = gemm.get("dot_dimension_numbers", {}) if isinstance(gemm, dict) else {}
    found = numbers.get("lhs_contracting_dimensions", []) if isinstance(numbers, dict) else []
    return (
        [int(item) for item in found if re.fullmatch(r"\d{1,3}", str(item))]
        if isinstance(found, list)
        else []
    )


def attention_operations(module: Module, instruction: Instruction) -> float:
    """Multiplications and additions of a fused attention call (cuDNN, Transformer Engine); 0 for anything else.

    Two products per head, queries with keys and weights with values; backward five, two of them again. A causal mask
    leaves half, a sliding window the keys in it.
    """
    if not is_attention(instruction):
        return 0.0
    target, config = instruction.custom_call_target.lower(), instruction.backend_config
    sizes = _attention_sizes(module, instruction)
    if sizes is None:
        return 0.0
    batch, heads, queries, keys, depth = sizes
    window = _WINDOW.search(config)
    if window is not None and int(window[1]) < keys:
        keys = int(window[1]) + 1
    elif _CAUSAL.search(config) is not None:
        keys /= 2
    products = 5 if "backward" in target or "bwd" in target else 2
    return products * 2.0 * batch * heads * queries * keys * depth


def _attention_sizes(
    module: Module, instruction: Instruction
) -> tuple[float, float, float, float, float] | None:
    """Batch, heads, queries, keys and depth: as the call states them, else by the shapes of queries and keys."""
    stated: dict[str, str] = dict(_STATED.findall(instruction.backend_config))
    if {
        "input_batch",
        "attn_heads",
        "q_max_seqlen",
        "kv_max_seqlen",
        "qk_head_dim",
    } <= stated.keys():
        depth = (
            int(stated["qk_head_dim"]) + int(stated.get("v_head_dim", stated["qk_head_dim"]))
        ) / 2
        batch, heads = int(stated["input_batch"]), int(stated["attn_heads"])
        return batch, heads, int(stated["q_max_seqlen"]), int(stated["kv_max_seqlen"]), depth
    query, key = operand_shape(module, instruction, 0), operand_shape(module, instruction, 1)
    if query is None or key is None or len(query.dimensions) != 4 or len(key.dimensions) != 4:
        return None
    scores = _SCORES.search(instruction.backend_config)
    if scores is not None:
        batch, heads, queries, keys = (int(scores[number]) for number in range(1, 5))
        return batch, heads, queries, keys, query.dimensions[-1]
    batch, a, b, depth = query.dimensions
    return batch, min(a, b), max(a, b), max(key.dimensions[1:3]), depth


def _convolution(module: Module, instruction: Instruction) -> Iterator[Matmul]:
    """As a matrix product; the output features are the largest dimension that kernel and result share."""
    kernel, result = operand_shape(module, instruction, 1), first_array(instruction.shape)
    if kernel is None or result is None:
        return
    features = max((size for size in kernel.dimensions if size in result.dimensions), default=1)
    rows = prod(result.dimensions) // max(features, 1)
    yield Matmul(
        1, max(rows, 1), features, prod(kernel.dimensions) // max(features, 1), kernel.dtype
    )


def first_array(shape: Shape) -> Shape | None:
    """The result of a call that returns a tuple with a workspace."""
    if shape.dtype != "tuple":
        return shape
    return next(
        (found for element in shape.elements if (found := first_array(element)) is not None), None
    )


def operand_shape(module: Module, instruction: Instruction, index: int) -> Shape | None:
    """The shape of an operand, of a tuple its first array; None where there is no such operand."""
    if index >= len(instruction.operands):
        return None
    operand = module.instructions.get(instruction.operands[index])
    return None if operand is None else first_array(operand.shape)


ELEMENTS_PER_CLOCK = 1.0
"""Elements that a streaming multiprocessor finishes per clock if each thread computes the place of one: some hundred
instructions, of which it issues 128 lanes a clock. Two jobs have 1.10 and 0.82 (docs/evidence/rehearse.md)."""

BLOCK_STAGES = 11  # two elements for each of the 1,024 threads of a block

_SLICES = ("dynamic-slice", "slice", "gather")
_WHOLE = ("dot", "convolution", "fusion", "custom-call", "sort", "scatter", "reduce-window")
_MOVES = frozenset(
    (
        "parameter",
        "constant",
        "broadcast",
        "bitcast",
        "reshape",
        "transpose",
        "copy",
        "tuple",
        "get-tuple-element",
        "iota",
        "slice",
        "dynamic-slice",
        "dynamic-update-slice",
        "concatenate",
        "pad",
        "gather",
        "dot",
        "convolution",
        "fusion",
    )
)


def compute_us(module: Module, instruction: Instruction, hardware: Hardware) -> float:
    """Microseconds of one execution of a compute instruction: the larger of arithmetic and memory time."""
    products = sum(matmul_us(item, hardware) for item in matmuls(module, instruction))
    if attention := attention_operations(module, instruction):
        eight = instruction.custom_call_target.upper().endswith("F8")
        peak = hardware.tflops.get("f8" if eight else "f16", hardware.tflops["f16"])
        products += attention / (peak * ATTENTION_EFFICIENCY * 1e6)
    pointwise = pointwise_operations(module, instruction) / (hardware.tflops["f32"] / 2 * 1e6)
    needed = _needed(module, instruction)
    device, host = _bytes(module, instruction, needed)
    radix, bitonic = sort_passes(instruction)
    passes = radix if is_radix_sort(instruction) else bitonic if instruction.opcode == "sort" else 1
    memory = device * passes / (hardware.memory_gb_s * MEMORY_EFFICIENCY * 1e3)
    link = host / (hardware.host_gb_s * HOST_LINK_EFFICIENCY * 1e3)
    threads = _unvectorized(instruction, needed) / (
        hardware.cores * hardware.clock_ghz * ELEMENTS_PER_CLOCK * 1e3
    )
    return max(products + pointwise, KERNEL_US + max(pointwise, memory, link, threads))


def is_radix_sort(instruction: Instruction) -> bool:
    """Whether it sorts by bits with CUB: ``__cub$DeviceRadixSort``, from jaxlib 0.10 ``xla.gpu.ext.cub_sort_pairs``."""
    return any(
        name in instruction.custom_call_target for name in ("cub$DeviceRadixSort", "cub_sort")
    )


def sort_passes(instruction: Instruction) -> tuple[int, int]:
    """How often a sort reads and writes all: by bits, eight a pass, and by comparing pairs, as XLA's own kernels do.

    Bitonic: of k = log2(n) stages those within a block's shared memory are one pass, a later stage has one for each of
    its distances beyond it (Batcher, 1968).
    """
    key = first_array(instruction.shape) or instruction.shape
    stages = ceil(log2(max(*key.dimensions, 2))) if key.dimensions else 1
    beyond = max(stages - BLOCK_STAGES, 0)
    return max(BITS.get(key.dtype, 32) // 8, 1), 1 + beyond * (beyond + 3) // 2


def pointwise_operations(module: Module, instruction: Instruction) -> int:
    """Elements that the ops of a fusion compute one by one; each counts as one operation, transcendental or not."""
    fused = module.fused(instruction)
    return sum(
        prod(_widest(module, item))
        for item in (fused.instructions if fused else ())
        if item.opcode not in _MOVES
    )


def _widest(module: Module, item: Instruction) -> tuple[int, ...]:
    """The dimensions that an op loops over; of a reduction, its operand's dimensions."""
    shape = operand_shape(module, item, 0) if item.opcode in ("reduce", "reduce-window") else None
    return (shape or item.shape).dimensions


def bytes_accessed(module: Module, instruction: Instruction) -> tuple[int, int]:
    """Bytes that an instruction must move: (device memory, host memory).

    Each operand counts once. If only slices of it are read, the slices count; an update in place counts the update.
    """
    return _bytes(module, instruction, _needed(module, instruction))


def _bytes(module: Module, instruction: Instruction, needed: _Needed | None) -> tuple[int, int]:
    sizes: list[tuple[int, Shape]] = []
    if instruction.opcode in _SLICES:
        sizes += [(2 * instruction.shape.size_bytes, instruction.shape)]
    elif instruction.opcode == "dynamic-update-slice":
        update = operand_shape(module, instruction, 1)
        sizes += [(2 * update.size_bytes, instruction.shape)] if update is not None else []
    else:
        written = needed.written_bytes if needed is not None else instruction.shape.size_bytes
        sizes += [(written, first_array(instruction.shape) or instruction.shape)]
        read: dict[str, int] = {}
        for index, name in enumerate(instruction.operands):
            operand = module.instructions.get(name)
            if operand is not None and operand.shape.dtype not in ("token", "tuple"):
                whole = operand.shape.size_bytes
                part = whole if needed is None else needed.read_bytes(index, whole)
                read[name] = min(read.get(name, 0) + part, whole)
        sizes += [(size, module.instructions[name].shape) for name, size in read.items()]
    device = sum(size for size, shape in sizes if shape.memory_space != HOST_MEMORY_SPACE)
    host = sum(size for size, shape in sizes if shape.memory_space == HOST_MEMORY_SPACE)
    return device, host


def _unvectorized(instruction: Instruction, needed: _Needed | None) -> int:
    """Elements that a kernel works on one thread each: updates in place, gathers, transpositions in a loop fusion."""
    if needed is None:
        return prod(instruction.shape.dimensions) if instruction.opcode == "gather" else 0
    opcodes = {item.opcode for item in needed.items.values()}
    loop = instruction.fusion_kind == "kLoop" and not opcodes.isdisjoint(("transpose", "gather"))
    return sum(
        needed.elements[root] for root in needed.roots if loop or needed.update_of(root) is not None
    )


def _needed(module: Module, instruction: Instruction) -> _Needed | None:
    fused = module.fused(instruction)
    return None if fused is None else _Needed(module, fused)


class _Needed:
    """How many elements of each instruction of a fusion its results need: only the slices of a sliced operand."""

    def __init__(self, module: Module, fused: Computation) -> None:
        self.module = module
        self.items = {item.name: item for item in fused.instructions}
        self.numbers = {
            item.parameter_number: item.name
            for item in fused.instructions
            if item.opcode == "parameter"
        }
        self.elements = dict.fromkeys(self.items, 0)
        root = self.items.get(fused.root)
        self.roots = (
            () if root is None else root.operands if root.opcode == "tuple" else (root.name,)
        )
        for name in self.roots:
            self._need(name, prod((self.update_of(name) or self.items[name]).shape.dimensions))
        for item in reversed(fused.instructions):
            if self.elements[item.name] and item.operands and item.opcode != "tuple":
                self._operands(item, self.elements[item.name])

    @property
    def written_bytes(self) -> int:
        """Bytes of the results; of an update in place only the update."""
        return sum(
            (self.update_of(name) or self.items[name]).shape.size_bytes for name in self.roots
        )

    def read_bytes(self, number: int, whole: int) -> int:
        """Bytes read of a parameter, of so many."""
        name = self.numbers.get(number, "")
        total = prod(self.items[name].shape.dimensions) if name in self.items else 0
        return ceil(whole * self.elements[name] / total) if total else 0

    def update_of(self, name: str) -> Instruction | None:
        """What a root writes into an operand in place; None of any other root."""
        item = self.items[name]
        while item.opcode == "bitcast" and item.operands[0] in self.items:
            item = self.items[item.operands[0]]
        if item.opcode != "dynamic-update-slice" or len(item.operands) < 2:
            return None
        return self.items.get(item.operands[1])

    def _need(self, name: str, count: float) -> None:
        if name in self.items:
            self.elements[name] = ceil(
                min(self.elements[name] + count, prod(self.items[name].shape.dimensions))
            )

    def _operands(self, item: Instruction, count: int) -> None:
        """Elements of the operands that so many of the result need."""
        first, *rest = item.operands
        share = count / max(prod(item.shape.dimensions), 1)
        if item.opcode in _SLICES:
            self._need(first, count)
            for name in rest:
                self._need(name, inf)
        elif item.opcode == "dynamic-update-slice":
            update = (
                prod(self.items[rest[0]].shape.dimensions) if rest and rest[0] in self.items else 0
            )
            self._need(first, max(count - update, 0))
            for name in rest:
                self._need(name, count)
        elif (nested := _needed(self.module, item)) is not None:
            for number, name in enumerate(item.operands):
                self._need(name, nested.elements.get(nested.numbers.get(number, ""), inf))
        elif item.opcode in _WHOLE:
            for name in item.operands:
                self._need(name, inf)
        elif item.opcode in ("reduce", "concatenate"):
            for name in item.operands:
                self._need(
                    name,
                    share * prod(self.items[name].shape.dimensions) if name in self.items else 0,
                )
        else:
            for name in item.operands:
                self._need(name, count)
