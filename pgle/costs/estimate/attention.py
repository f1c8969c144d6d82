"""Estimate one fused attention kernel from published measurements: for a compiled call, or for a
call that an edit of the program would make.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil

from pgle.xla.hardware import KERNEL_US, NCCL, Hardware

_LENGTHS = (512, 1024, 2048, 4096, 8192, 16384)

_H100_PEAK = 989.0  # TFLOP/s of H100 and H200 in bf16

_FORWARD: Mapping[tuple[int, bool], tuple[int, ...]] = {
    (64, False): (335, 373, 395, 408, 412, 413),
    (64, True): (225, 288, 334, 363, 379, 388),
    (128, False): (532, 614, 660, 687, 701, 640),
    (128, True): (348, 452, 534, 616, 655, 633),
    (256, False): (470, 546, 580, 581, 580, 581),
    (256, True): (308, 391, 450, 483, 497, 509),
}
"""TFLOP/s of cuDNN by (head size, causal), at the lengths of `_LENGTHS`.

Heads of 64 and 256: an H100 SXM (Shah et al., "FlashAttention-3", https://arxiv.org/abs/2407.08608,
figure 5). Heads of 128 from length 2048: cuDNN 9.27 on an H200, whose Tensor Cores are those of the
H100 (NVIDIA/cudnn-frontend at 816ea4573a68,
`benchmark/attention_training/results/llama3.1/h200/llama3.1_20260928_130009.csv`, batch 2, 64
heads, 8 of keys). Shorter ones follow the paper's proportions.
"""

_BACKWARD: Mapping[tuple[int, bool], tuple[int, ...]] = {
    (64, False): (266, 348, 395, 417, 432, 433),
    (64, True): (179, 269, 334, 371, 397, 407),
    (128, False): (340, 455, 519, 576, 562, 549),
    (128, True): (213, 321, 402, 495, 526, 539),
}
"""The same for the backward pass. The paper (figure 6) has no masked backward pass. For heads of
64, and below length 2048, pgle assumes that a mask slows it as much as the forward pass.
"""

_SLOWER = 0.55
_FASTER = 1.3
"""The range for a kernel that is not chosen yet. In the paper, FlashAttention-2 reaches 0.55 to
0.98 of cuDNN's figures, and FlashAttention-3 0.85 to 1.31 (lengths from 1024).
"""

_CALL_SLOWER = 0.78
_CALL_FASTER = 1.2
"""The range for a call of cuDNN. At heads of 128, the releases in the paper reach 0.78 to 0.94 of
release 9.27. The best kernel in the same table reaches 1.2 times its figures.
"""

_A100_FORWARD = (0.5, 0.615, 0.73)
"""Shares of the A100's peak, least, middle, most: "50-73%" (Dao, "FlashAttention-2",
https://arxiv.org/abs/2307.08691).
"""

_A100_BACKWARD = 0.63 / 0.73
"""Backward share divided by forward share: the paper's best backward pass reaches 63 % of the
peak.
"""

_UNPUBLISHED = (0.5, 0.6, 0.75)
"""Shares of the peak on GPUs of other vendors, for which no measurement is public: NVIDIA's
shares.
"""

BACKWARD_WORK = 2.5
"""The backward pass has five products, the forward pass two (both papers)."""

TILE = 128
"""Queries that a thread block handles, and keys that it takes at a time: 64 or 128
(FlashAttention-2, section 3.3).
"""

BYTES_PER_CLOCK = 32
"""A streaming multiprocessor issues at most one memory transaction of 32 bytes a clock
(``AdjustBandwidth`` in openxla/xla `xla/service/gpu/model/gpu_performance_model_base.cc`).
"""

LARGEST_HEAD = {False: 128, True: 256}
"""The largest head size that cuDNN supports: before Hopper (False), and since Hopper (True) (jax
`_src/cudnn/fused_attention_stablehlo.py`, ``check_is_flash_attention``).
"""


@dataclass(frozen=True, slots=True)
class AttentionWork:
    """The work of one fused kernel."""

    heads: float  # query heads, over all sequences
    queries: float  # queries of each head
    keys: float
    depth: float  # head size
    causal: bool
    back: bool  # True for the backward pass
    # keys that a query sees in a sliding window; None if it sees all
    window: float | None = None
    is_f8: bool = False

    @property
    def operations(self) -> float:
        """Number of multiplications and additions; a causal mask leaves half."""
        seen = self.keys if self.window is None else self.window
        return self._operations(self.queries, seen)

    @property
    def executed(self) -> float:
        """`operations`, plus what a kernel computes in excess because it works on whole tiles of
        queries.
        """
        tiles = ceil(self.queries / TILE)
        return self._operations(tiles * TILE, self.inner_length)

    @property
    def blocks(self) -> float:
        """Number of thread blocks: one per tile of queries; in the backward pass one per tile of
        keys.
        """
        side = self.keys if self.back else self.queries
        return self.heads * ceil(side / TILE)

    @property
    def inner_length(self) -> float:
        """Number of keys that a block reads."""
        if self.window is None:
            return self.keys
        return min(self.keys, self.window + TILE)

    @property
    def bytes_moved(self) -> float:
        """Bytes of queries, keys, values and results, each read or written once; in the backward
        pass also their gradients.
        """
        elements = 2.0 * self.heads * (self.queries + self.keys) * self.depth
        size = 1.0 if self.is_f8 else 2.0
        return elements * size * (2.0 if self.back else 1.0)

    def _operations(self, queries: float, keys: float) -> float:
        """Return the operations of attention between some queries and keys, for all heads."""
        forward = 4.0 * self.heads * queries * keys * self.depth
        if self.causal:
            forward /= 2
        return forward * BACKWARD_WORK if self.back else forward


@dataclass(frozen=True, slots=True)
class Speed:
    """A figure and the range of published values."""

    least: float
    likely: float
    most: float

    def plus(self, other: Speed, times: float) -> Speed:
        """Add another figure, multiplied by `times`."""
        return Speed(
            self.least + times * other.least,
            self.likely + times * other.likely,
            self.most + times * other.most,
        )


def fused_us(hardware: Hardware, work: AttentionWork) -> Speed:
    """Return the µs of a fused kernel that is not chosen yet. `least` is the time of the fastest
    published kernel.
    """
    return _times_us(hardware, work, _SLOWER, _FASTER)


def call_us(hardware: Hardware, work: AttentionWork) -> Speed:
    """Return the µs of a compiled call of cuDNN, or of Transformer Engine, which uses cuDNN's
    kernels.
    """
    return _times_us(hardware, work, _CALL_SLOWER, _CALL_FASTER)


def has_figures(hardware: Hardware) -> bool:
    """Whether the published figures are for GPUs of this vendor. Otherwise they only bound a
    saving.
    """
    return hardware.library.name == NCCL.name


def largest_head(hardware: Hardware) -> int:
    """Return the largest head size that a fused kernel supports."""
    return LARGEST_HEAD["f8" in hardware.tflops]


def _times_us(
    hardware: Hardware, work: AttentionWork, slower: float, faster: float
) -> Speed:
    """Return the µs of a kernel.

    The fastest kernel splits the keys between blocks if there are few blocks.
    """
    share = _share(hardware, work, slower, faster)
    filled = min(work.blocks / hardware.cores, 1.0)
    per_block = BYTES_PER_CLOCK * hardware.clock_ghz * 1e3  # bytes a microsecond
    few_us = work.bytes_moved / (work.blocks * per_block)
    memory_us = hardware.memory_us(work.bytes_moved)
    slow_us = max(memory_us, few_us)
    return Speed(
        least=_kernel_us(hardware, work, share.most, memory_us),
        likely=_kernel_us(hardware, work, share.likely * filled, slow_us),
        most=_kernel_us(hardware, work, share.least * filled, slow_us),
    )


def _kernel_us(
    hardware: Hardware, work: AttentionWork, share: float, memory_us: float
) -> float:
    """Return the µs of a kernel: the longer of memory time, and arithmetic at `share` of the
    peak.
    """
    dtype = "f8" if work.is_f8 and "f8" in hardware.tflops else "f16"
    peak = hardware.tflops[dtype] * 1e6
    return max(KERNEL_US + memory_us, work.executed / (peak * share))


def _share(
    hardware: Hardware, work: AttentionWork, slower: float, faster: float
) -> Speed:
    """Return the share of the peak that a fused kernel reaches."""
    # proportional to the length below the shortest measured one
    short = min(work.inner_length / _LENGTHS[0], 1.0)
    if not has_figures(hardware):
        return _scaled(_UNPUBLISHED, short)
    if "f8" not in hardware.tflops:
        return _scaled(_A100_FORWARD, short * (_A100_BACKWARD if work.back else 1.0))
    row = max(bisect_right(_LENGTHS, work.inner_length) - 1, 0)
    size = next((each for each in (64, 128) if work.depth <= each), 256)
    reached = _FORWARD[size, work.causal][row]
    if work.back:
        reached = _BACKWARD[min(size, 128), work.causal][row]
    likely = short * reached / _H100_PEAK
    return Speed(likely * slower, likely, likely * faster)


def _scaled(shares: tuple[float, float, float], factor: float) -> Speed:
    """Return a speed from its least, likely and largest share of a peak."""
    least, likely, most = shares
    return Speed(least * factor, likely * factor, most * factor)
