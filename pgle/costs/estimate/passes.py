"""Kernels that read and write all their data more than once: sorts and Fourier transforms."""

from __future__ import annotations

from math import ceil, log2

from pgle.costs.estimate.products import COMPLEX, first_array
from pgle.xla.hlo.module import BITS, Instruction, Module, Shape

BLOCK_STAGES = 11  # two elements for each of the 1,024 threads of a block

SHARED_BYTES = 163 << 10
"""Shared memory of one block: 163 KB of an A100; 227 KB of Hopper and Blackwell hold the same power
of two (NVIDIA, "CUDA C++ Programming Guide", technical specifications per compute capability).
"""

LARGEST_FACTOR = 127
"""The largest prime factor for which cuFFT has a Cooley-Tukey kernel; beyond it takes Bluestein's
algorithm (https://docs.nvidia.com/cuda/cufft/#accuracy-and-performance).
"""

BLUESTEIN = 4
"""Passes of Bluestein's algorithm over those of a length that factors: two transforms of at least
twice the length.
"""


def device_bytes_of_passes(
    module: Module, instruction: Instruction, once: int
) -> float:
    """Bytes of device memory with all passes.

    Args:
        once: bytes that one pass reads and writes.
    """
    if instruction.opcode == "fft":
        # of a pass that neither begins nor ends
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
    """How often a Fourier transform reads and writes all.

    One kernel transforms what fits into the shared memory of a block: some of the last dimensions
    together, or a part of a long one, whose length is then split into factors that fit (NVIDIA,
    "cuFFT"; Govindaraju et al., "High performance discrete Fourier transforms on graphics
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
    """As few passes as shared memory allows, whichever way all lengths are split; 1 of anything but
    a transform.
    """
    points = log2(_points(module, instruction))
    stages = sum(map(log2, filter(None, instruction.fft_length)))
    return max(ceil(stages / points - 1e-9), 1)


def has_workspace(instruction: Instruction) -> bool:
    """Whether the last result of a library's call is memory that it works in."""
    if instruction.opcode != "custom-call" or len(instruction.shape.elements) < 2:
        return False
    last = instruction.shape.elements[-1]
    is_library = instruction.custom_call_target.startswith(("__cublas", "__cudnn"))
    is_bytes = last.dtype in ("u8", "s8") and len(last.dimensions) == 1
    return is_bytes and (is_library or is_radix_sort(instruction))


def _points(module: Module, instruction: Instruction) -> int:
    """Complex numbers, a power of two, that fit into the shared memory of a block."""
    dtypes = {shape.dtype for shape in _arrays(module, instruction)}
    size = 8 if dtypes.isdisjoint(("c128", "f64")) else 16
    return 1 << int(log2(SHARED_BYTES // size))


def _arrays(module: Module, instruction: Instruction) -> list[Shape]:
    """Shapes of the result and the operands."""
    return [instruction.shape, *module.operand_shapes(instruction)]


def _complex_bytes(module: Module, instruction: Instruction) -> int:
    """Bytes of the data between two passes: of a real transform those of its complex side."""
    arrays = _arrays(module, instruction)
    return max((item.size_bytes for item in arrays if item.dtype in COMPLEX), default=0)


def _largest_factor(length: int) -> int:
    """The largest prime factor; for lengths that have none up to `LARGEST_FACTOR` left, what
    remains.
    """
    rest = max(length, 1)
    largest = 1
    for factor in range(2, LARGEST_FACTOR + 1):
        while rest % factor == 0:
            rest, largest = rest // factor, factor
    return max(rest, largest)


def is_radix_sort(instruction: Instruction) -> bool:
    """Whether it sorts by bits with CUB: ``__cub$DeviceRadixSort``, from jaxlib 0.10
    ``xla.gpu.ext.cub_sort_pairs``.
    """
    return any(
        name in instruction.custom_call_target
        for name in ("cub$DeviceRadixSort", "cub_sort")
    )


def sort_passes(instruction: Instruction) -> tuple[int, int]:
    """How often a sort reads and writes all: by bits, eight a pass, and by comparing pairs, as
    XLA's own kernels do.

    Bitonic: of k = log2(n) stages those within a block's shared memory are one pass, a later stage
    has one for each of its distances beyond it (Batcher, 1968).
    """
    key = first_array(instruction.shape) or instruction.shape
    stages = ceil(log2(max(*key.dimensions, 2))) if key.dimensions else 1
    beyond = max(stages - BLOCK_STAGES, 0)
    return max(BITS.get(key.dtype, 32) // 8, 1), 1 + beyond * (beyond + 3) // 2
