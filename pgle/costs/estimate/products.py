"""What matrix products take: as XLA measured them; convolutions and attention by their operations."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod

from pgle.xla.hardware import Hardware, dtype_family, weaker
from pgle.xla.hlo.module import BITS, Instruction, Module, Shape, backend_config

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
    from pgle.costs.estimate.surface import product_us  # numpy, which commands that estimate nothing do without

    known = [
        each
        for each in weaker(hardware)
        if each.peak_tflops(item.dtype) <= hardware.peak_tflops(item.dtype) and each.memory_gb_s <= hardware.memory_gb_s
    ]
    sides, family = (item.m, item.n, item.k), dtype_family(item.dtype)
    return min(product_us(item.batch, sides, family, item.item_bytes, each) for each in (*known, hardware))


def matmuls(module: Module, instruction: Instruction) -> Iterator[Matmul]:
    """The matrix products that an instruction computes: dots, fused too, cuBLAS calls, convolutions."""
    if instruction.opcode == "dot":
        yield from _dot(module, instruction, instruction.dot_lhs_contracting)
    elif is_convolution(instruction):
        yield from _convolution(module, instruction)
    elif instruction.opcode == "custom-call":
        target = instruction.custom_call_target
        if "cublas" in target or "matmul" in target or "gemm" in target:
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


def _contracting(instruction: Instruction) -> list[int]:
    """Contracting dimensions of the left operand in the configuration of a cuBLAS call."""
    config = backend_config(instruction)
    gemm = config.get("gemm_backend_config", config)
    numbers = gemm.get("dot_dimension_numbers", {}) if isinstance(gemm, dict) else {}
    found = numbers.get("lhs_contracting_dimensions", []) if isinstance(numbers, dict) else []
    return [int(item) for item in found if re.fullmatch(r"\d{1,3}", str(item))] if isinstance(found, list) else []


def is_product(module: Module, instruction: Instruction) -> bool:
    """Whether an instruction mostly multiplies matrices: dots, fused too, library calls, convolutions, attention."""
    return is_attention(instruction) or next(matmuls(module, instruction), None) is not None


def is_convolution(instruction: Instruction) -> bool:
    """Whether it is a convolution, cuDNN's too."""
    return instruction.opcode == "convolution" or "$conv" in instruction.custom_call_target


def is_attention(instruction: Instruction) -> bool:
    """Whether it is a fused attention call: of cuDNN, Transformer Engine or a kernel that is called so."""
    target = instruction.custom_call_target.lower()
    return "fmha" in target or "attn" in target or "flash_attention" in target


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


def _attention_sizes(module: Module, instruction: Instruction) -> tuple[float, float, float, float, float] | None:
    """Batch, heads, queries, keys and depth: as the call states them, else by the shapes of queries and keys."""
    stated: dict[str, str] = dict(_STATED.findall(instruction.backend_config))
    if {"input_batch", "attn_heads", "q_max_seqlen", "kv_max_seqlen", "qk_head_dim"} <= stated.keys():
        depth = (int(stated["qk_head_dim"]) + int(stated.get("v_head_dim", stated["qk_head_dim"]))) / 2
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
    yield Matmul(1, max(rows, 1), features, prod(kernel.dimensions) // max(features, 1), kernel.dtype)


def first_array(shape: Shape) -> Shape | None:
    """The result of a call that returns a tuple with a workspace."""
    if shape.dtype != "tuple":
        return shape
    return next((found for element in shape.elements if (found := first_array(element)) is not None), None)


def operand_shape(module: Module, instruction: Instruction, index: int) -> Shape | None:
    """The shape of an operand, of a tuple its first array; None where there is no such operand."""
    if index >= len(instruction.operands):
        return None
    operand = module.instructions.get(instruction.operands[index])
    return None if operand is None else first_array(operand.shape)
