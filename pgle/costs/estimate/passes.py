"""Kernels that read and write all their data more than once: sorts and Fourier transforms."""

from __future__ import annotations

from math import ceil, log2

from pgle.costs.estimate.products import COMPLEX, first_array
from pgle.xla.hlo.module import BITS, Instruction, Module, Shape

BLOCK_STAGES = 11  # two elements for each of the 1,024 threads of a block

SHARED_BYTES = 163 << 10
"""Shared memory of one block: 163 KB of an A100. The 227 KB of Hopper and Blackwell hold the same
power of two (NVIDIA, "CUDA C++ Programming Guide", technical specifications per compute
capability).
"""

LARGEST_FACTOR = 127
"""The largest prime factor for which cuFFT has a Cooley-Tukey kernel. Lengths with larger factors
take Bluestein's algorithm (https://docs.nvidia.com/cuda/cufft/#accuracy-and-performance).
"""

BLUESTEIN = 4
"""Passes of Bluestein's algorithm, relative to a length with small factors: two transforms of at
least twice the length.
"""


def device_bytes_of_passes(
    module: Module, instruction: Instruction, once: int
) -> float:
    """Return the bytes of device memory that all passes of a kernel move.

    Args:
        once: bytes that one pass reads and writes.
    """
    if instruction.opcode == "fft":
        # bytes of a pass between the first and the last
        between = 2 * _complex_bytes(module, instruction)
        return once + between * (fft_passes(module, instruction) - 1)
    if is_radix_sort(instruction):
        return once * sort_passes(instruction)[0]
    later = 0
    for item in module.parts(instruction):
        if item.opcode == "sort":
            later += 2 * item.shape.size_bytes * (sort_passes(item)[1] - 1)
    return once + later


def fft_passes(module: Module, instruction: Instruction) -> int:
    """Return how often a Fourier transform reads and writes all its data.

    One kernel transforms what fits into the shared memory of a block: several of the last
    dimensions together, or a part of a long one. A long dimension is split into factors that fit
    (NVIDIA, "cuFFT"; Govindaraju et al., "High performance discrete Fourier transforms on graphics
    processors", 2008). Each further kernel is a pass.
    """
    points = _points(module, instruction)
    passes = 0
    together = points + 1
    for length in reversed(instruction.fft_length):
        if together * length <= points:
            together *= length
            continue
        split = ceil(log2(max(length, 2)) / log2(points))
        passes += split
        together = length if split == 1 else points + 1
    longest = max(map(_largest_factor, instruction.fft_length), default=1)
    return max(passes, 1) * (BLUESTEIN if longest > LARGEST_FACTOR else 1)


def fewest_fft_passes(module: Module, instruction: Instruction) -> int:
    """Return the fewest passes that shared memory allows, however the lengths are split; 1 for any
    other instruction.
    """
    points = log2(_points(module, instruction))
    stages = sum(map(log2, filter(None, instruction.fft_length)))
    return max(ceil(stages / points - 1e-9), 1)


def has_workspace(instruction: Instruction) -> bool:
    """Whether the last result of a library call is its workspace."""
    if instruction.opcode != "custom-call" or len(instruction.shape.elements) < 2:
        return False
    last = instruction.shape.elements[-1]
    is_library = instruction.custom_call_target.startswith(("__cublas", "__cudnn"))
    is_bytes = last.dtype in ("u8", "s8") and len(last.dimensions) == 1
    return is_bytes and (is_library or is_radix_sort(instruction))


def _points(module: Module, instruction: Instruction) -> int:
    """Return how many complex numbers fit into the shared memory of a block, rounded down to a
    power of two.
    """
    dtypes = {shape.dtype for shape in _arrays(module, instruction)}
    size = 8 if dtypes.isdisjoint(("c128", "f64")) else 16
    return 1 << int(log2(SHARED_BYTES // size))


def _arrays(module: Module, instruction: Instruction) -> list[Shape]:
    """Return the shapes of the result and the operands."""
    return [instruction.shape, *module.operand_shapes(instruction)]


def _complex_bytes(module: Module, instruction: Instruction) -> int:
    """Return the bytes of the data between two passes; for a real transform, the bytes of its
    complex side.
    """
    arrays = _arrays(module, instruction)
    return max((item.size_bytes for item in arrays if item.dtype in COMPLEX), default=0)


def _largest_factor(length: int) -> int:
    """Return the largest prime factor.

    If factors above `LARGEST_FACTOR` remain, return their product if it is larger.
    """
    rest = max(length, 1)
    largest = 1
    for factor in range(2, LARGEST_FACTOR + 1):
        while rest % factor == 0:
            rest, largest = rest // factor, factor
    return max(rest, largest)


def is_radix_sort(instruction: Instruction) -> bool:
    """Whether the instruction sorts by bits with CUB: ``__cub$DeviceRadixSort``, or since jaxlib
    0.10 ``xla.gpu.ext.cub_sort_pairs``.
    """
    return any(
        name in instruction.custom_call_target
        for name in ("cub$DeviceRadixSort", "cub_sort")
    )


def sort_passes(instruction: Instruction) -> tuple[int, int]:
    """Return how often a sort reads and writes all its data: by bits, eight a pass, and by
    comparing pairs, as XLA's own kernels do.

    The second is a bitonic sort (Batcher, 1968) of k = log2(n) stages. Stages within a block's
    shared memory take one pass together. A later stage takes one pass for each of its distances
    beyond shared memory.
    """
    key = first_array(instruction.shape) or instruction.shape
    stages = ceil(log2(max(*key.dimensions, 2))) if key.dimensions else 1
    beyond = max(stages - BLOCK_STAGES, 0)
    return max(BITS.get(key.dtype, 32) // 8, 1), 1 + beyond * (beyond + 3) // 2
