"""What one compute instruction takes: matrix products as XLA measured them, the rest by a roofline of its shapes."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import ceil, prod

from pgle.costs.fit import perf_tables
from pgle.costs.fit.perf_tables import GRID_B, GRID_K
from pgle.xla.hardware import (
    ATTENTION_EFFICIENCY,
    KERNEL_US,
    MATMUL_EFFICIENCY,
    MEMORY_EFFICIENCY,
    PCIE_EFFICIENCY,
    TABLE,
    Hardware,
    dtype_family,
)
from pgle.xla.hlo.module import BITS, HOST_MEMORY_SPACE, Computation, Instruction, Module, Shape

TILE = 128
"""Rows and columns of the output tile that one streaming multiprocessor computes (NVIDIA, "Matrix Multiplication
Background User's Guide": tile and wave quantization)."""

SPLIT_K = 1024
"""Depth at which a matmul with few tiles is split over more multiprocessors."""

_CAUSAL = re.compile(r"mask_type\W+(?:[2-6]\b|\w*CAUSAL)")
"""cuDNN writes ``CAUSAL``; Transformer Engine a number, of which 0 and 1 are no causal mask (`NVTE_Mask_Type`)."""

_SLICES = ("dynamic-slice", "slice", "gather")
_MOVES = frozenset(
    ("parameter", "constant", "broadcast", "bitcast", "reshape", "transpose", "copy", "tuple", "get-tuple-element",
     "iota", "slice", "dynamic-slice", "dynamic-update-slice", "concatenate", "pad", "gather", "dot", "convolution",
     "fusion")
)  # fmt: skip


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


def compute_us(module: Module, instruction: Instruction, hardware: Hardware) -> float:
    """Microseconds of one execution of a compute instruction: the larger of arithmetic and memory time.

    Args:
        module: holds it; fused computations are looked into.
        instruction: a fusion, dot, custom call, copy or any other op with a kernel.
    """
    products = sum(matmul_us(item, hardware) for item in matmuls(module, instruction))
    products += attention_operations(module, instruction) / (hardware.tflops["f16"] * ATTENTION_EFFICIENCY * 1e6)
    pointwise = pointwise_operations(module, instruction) / (hardware.tflops["f32"] / 2 * 1e6)
    device, host = bytes_accessed(module, instruction)
    memory = device / (hardware.memory_gb_s * MEMORY_EFFICIENCY * 1e3)
    link = host / (hardware.pcie_gb_s * PCIE_EFFICIENCY * 1e3)
    return max(products + pointwise, KERNEL_US + max(pointwise, memory, link))


def pointwise_operations(module: Module, instruction: Instruction) -> int:
    """Elements that the ops of a fusion compute one by one; each counts as one operation, transcendental or not."""
    fused = _fused(module, instruction)
    return sum(
        prod(_widest(module, item)) for item in (fused.instructions if fused else ()) if item.opcode not in _MOVES
    )


def _widest(module: Module, item: Instruction) -> tuple[int, ...]:
    """The dimensions that an op loops over: of a reduction those of what it reduces."""
    shape = _operand_shape(module, item, 0) if item.opcode in ("reduce", "reduce-window") else None
    return (shape or item.shape).dimensions


def matmul_us(item: Matmul, hardware: Hardware) -> float:
    """Microseconds of matrix products: as XLA measured them, outside its table by the ratio of two rooflines.

    The table's own GPU takes the measured time; another, or a product larger, smaller or in another type, that of the
    nearest product of the table times how much longer its roofline is.
    """
    base = TABLE[hardware.measured_as]
    family = {"f16": "bf16", "f8": "f8", "tf32": "f32"}.get(dtype_family(item.dtype), "bf16")
    m, n, k = (min(max(side, GRID_K[0]), GRID_K[-1]) for side in (item.m, item.n, item.k))
    near = Matmul(min(item.batch, GRID_B[-1]), m, n, k, {"f8": "f8e4m3fn"}.get(family, family))
    measured = perf_tables.matmul_us(base.name, family, near.batch, near.m, near.n, near.k)
    if measured is None:
        return _roofline_us(item, hardware)
    if near == item and base.name == hardware.name:
        return measured
    return measured * _roofline_us(item, hardware) / _roofline_us(near, base)


def _roofline_us(item: Matmul, hardware: Hardware) -> float:
    """The larger of memory time and arithmetic, with the multiprocessors that the last wave of tiles leaves idle."""
    tiles = item.batch * ceil(item.m / TILE) * ceil(item.n / TILE)
    if tiles < hardware.cores:
        tiles = min(hardware.cores, tiles * max(1, item.k // SPLIT_K))
    filled = tiles / (ceil(tiles / hardware.cores) * hardware.cores)
    arithmetic = item.operations / (hardware.peak_tflops(item.dtype) * MATMUL_EFFICIENCY * filled * 1e6)
    moved = item.batch * (item.m * item.k + item.k * item.n + item.m * item.n) * item.item_bytes
    return KERNEL_US + max(arithmetic, moved / (hardware.memory_gb_s * MEMORY_EFFICIENCY * 1e3))


def matmuls(module: Module, instruction: Instruction) -> Iterator[Matmul]:
    """The matrix products that an instruction computes: dots, fused too, cuBLAS calls, convolutions."""
    if instruction.opcode == "dot":
        yield from _dot(module, instruction, instruction.dot_lhs_contracting)
    elif instruction.opcode in ("convolution",) or "$conv" in instruction.custom_call_target:
        yield from _convolution(module, instruction)
    elif instruction.opcode == "custom-call":
        target = instruction.custom_call_target
        if "cublas" in target or "matmul" in target or "gemm" in target:
            yield from _dot(module, instruction, _contracting(instruction.backend_config))
    else:
        for name in instruction.called:
            computation = module.computations.get(name)
            if computation is not None and instruction.opcode in ("fusion", "async-start", "call"):
                for inner in computation.instructions:
                    yield from matmuls(module, inner)


def _dot(module: Module, instruction: Instruction, contracting: Sequence[int]) -> Iterator[Matmul]:
    lhs = _operand_shape(module, instruction, 0)
    result = _first_array(instruction.shape)
    if lhs is None or result is None or not lhs.dimensions:
        return
    contracting = [index for index in contracting if index < len(lhs.dimensions)] or [len(lhs.dimensions) - 1]
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


def _contracting(backend_config: str) -> list[int]:
    """Contracting dimensions of the left operand in the configuration of a cuBLAS call."""
    try:
        config = json.loads(backend_config) if backend_config else {}
    except ValueError:
        return []
    gemm = config.get("gemm_backend_config", config)
    numbers = gemm.get("dot_dimension_numbers", {}) if isinstance(gemm, dict) else {}
    return [int(item) for item in numbers.get("lhs_contracting_dimensions", [])]


def is_product(module: Module, instruction: Instruction) -> bool:
    """Whether an instruction mostly multiplies matrices: dots, fused too, library calls, convolutions, attention."""
    return is_attention(instruction) or next(matmuls(module, instruction), None) is not None


def is_attention(instruction: Instruction) -> bool:
    """Whether it is a fused attention call: of cuDNN, Transformer Engine or a kernel that is called so."""
    target = instruction.custom_call_target.lower()
    return "fmha" in target or "attn" in target or "flash_attention" in target


def attention_operations(module: Module, instruction: Instruction) -> float:
    """Multiplications and additions of a fused attention call (cuDNN, Transformer Engine); 0 for anything else.

    Two products per head, queries with keys and weights with values; backward five, two of them again. A causal mask
    leaves half.
    """
    if not is_attention(instruction):
        return 0.0
    target = instruction.custom_call_target.lower()
    query, key = _operand_shape(module, instruction, 0), _operand_shape(module, instruction, 1)
    if query is None or key is None or len(query.dimensions) != 4 or len(key.dimensions) != 4:
        return 0.0
    batch, a, b, depth = query.dimensions
    length, heads = (a, b) if a >= b else (b, a)
    keys = max(key.dimensions[1:3])
    causal = _CAUSAL.search(instruction.backend_config) is not None
    products = 5 if "backward" in target or "bwd" in target else 2
    return products * 2.0 * batch * heads * length * keys * depth * (0.5 if causal else 1.0)


def _convolution(module: Module, instruction: Instruction) -> Iterator[Matmul]:
    """As a matrix product; the output features are the largest dimension that kernel and result share."""
    kernel, result = _operand_shape(module, instruction, 1), _first_array(instruction.shape)
    if kernel is None or result is None:
        return
    features = max((size for size in kernel.dimensions if size in result.dimensions), default=1)
    rows = prod(result.dimensions) // max(features, 1)
    yield Matmul(1, max(rows, 1), features, prod(kernel.dimensions) // max(features, 1), kernel.dtype)


def _first_array(shape: Shape) -> Shape | None:
    """The result of a call that returns a tuple with a workspace."""
    if shape.dtype != "tuple":
        return shape
    return next((found for element in shape.elements if (found := _first_array(element)) is not None), None)


def _operand_shape(module: Module, instruction: Instruction, index: int) -> Shape | None:
    if index >= len(instruction.operands):
        return None
    operand = module.instructions.get(instruction.operands[index])
    return None if operand is None else _first_array(operand.shape)


def bytes_accessed(module: Module, instruction: Instruction) -> tuple[int, int]:
    """Bytes that an instruction must move: (device memory, host memory).

    Operands count once, those of which only slices are read by the slices; an update in place counts by the update.
    """
    fused = _fused(module, instruction)
    partly = _read_in_part(fused) if fused is not None else {}
    sizes: list[tuple[int, Shape]] = []
    if instruction.opcode in _SLICES:
        sizes += [(2 * instruction.shape.size_bytes, instruction.shape)]
    elif instruction.opcode == "dynamic-update-slice":
        update = _operand_shape(module, instruction, 1)
        sizes += [(2 * update.size_bytes, instruction.shape)] if update is not None else []
    else:
        sizes += [(_written(fused, instruction), _first_array(instruction.shape) or instruction.shape)]
        seen: set[str] = set()
        for index, name in enumerate(instruction.operands):
            operand = module.instructions.get(name)
            if operand is None or name in seen or operand.shape.dtype in ("token", "tuple"):
                continue
            seen.add(name)
            whole = operand.shape.size_bytes
            sizes.append((min(partly.get(index, whole), whole), operand.shape))
    device = sum(size for size, shape in sizes if shape.memory_space != HOST_MEMORY_SPACE)
    host = sum(size for size, shape in sizes if shape.memory_space == HOST_MEMORY_SPACE)
    return device, host


def _fused(module: Module, instruction: Instruction) -> Computation | None:
    if instruction.opcode != "fusion" or not instruction.called:
        return None
    return module.computations.get(instruction.called[0])


def _read_in_part(fused: Computation) -> dict[int, int]:
    """Bytes read of the parameters of a fusion that only slices and updates in place touch, by parameter number."""
    numbers = {item.name: item.parameter_number for item in fused.instructions if item.opcode == "parameter"}
    read = {number: 0 for number in numbers.values() if number is not None}
    for item in fused.instructions:
        for position, name in enumerate(item.operands):
            number = numbers.get(name)
            if number is None or number not in read:
                continue
            if position == 0 and item.opcode in _SLICES:
                read[number] += item.shape.size_bytes
            elif position != 0 or item.opcode != "dynamic-update-slice":
                del read[number]
    return read


def _written(fused: Computation | None, instruction: Instruction) -> int:
    """Bytes written: of a fusion that updates its operand in place only the update."""
    if fused is None:
        return instruction.shape.size_bytes
    by_name = {item.name: item for item in fused.instructions}
    roots = [by_name[fused.root]] if fused.root in by_name else []
    if roots and roots[0].opcode == "tuple":
        roots = [by_name[name] for name in roots[0].operands if name in by_name]
    if not roots:
        return instruction.shape.size_bytes
    written = 0
    for root in roots:
        while root.opcode == "bitcast" and root.operands[0] in by_name:
            root = by_name[root.operands[0]]
        update = by_name.get(root.operands[1]) if root.opcode == "dynamic-update-slice" else None
        written += (update or root).shape.size_bytes
    return written
