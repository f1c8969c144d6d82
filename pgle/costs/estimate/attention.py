"""What one fused attention kernel takes, by published measurements: of a compiled call, and of one
that an edit of the program would make.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil

from pgle.xla.hardware import KERNEL_US, NCCL, Hardware

_LENGTHS = (512, 1024, 2048, 4096, 8192, 16384)

_H100_PEAK = 989.0  # TFLOP/s of these GPUs, H100 and H200, in bf16

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
figure 5). Heads of 128 from length 2048 on: cuDNN 9.27 on an H200, whose Tensor Cores are those of
the H100 (NVIDIA/cudnn-frontend at 816ea4573a68, `benchmark/attention_training/results/llama3.1/
h200/llama3.1_20260928_130009.csv`, batch 2, 64 heads, 8 of keys); below, in the proportion that
the paper has.
"""

_BACKWARD: Mapping[tuple[int, bool], tuple[int, ...]] = {
    (64, False): (266, 348, 395, 417, 432, 433),
    (64, True): (179, 269, 334, 371, 397, 407),
    (128, False): (340, 455, 519, 576, 562, 549),
    (128, True): (213, 321, 402, 495, 526, 539),
}
"""The same of the backward pass. The paper (figure 6) has none with a mask: for heads of 64, and
below length 2048, it is slowed like the forward pass.
"""

_SLOWER = 0.55
_FASTER = 1.3
"""A kernel that is not chosen yet: FlashAttention-2 reaches 0.55 to 0.98 of cuDNN's figures in the
paper, FlashAttention-3 0.85 to 1.31 (lengths from 1024).
"""

_CALL_SLOWER = 0.78
_CALL_FASTER = 1.2
"""A call of cuDNN: the releases of the paper reach 0.78 to 0.94 of 9.27 at heads of 128; the best
kernel of the same table reaches 1.2 times its figures.
"""

_A100_FORWARD = (0.5, 0.615, 0.73)
"""Shares of the A100's peak, least, middle, most: "50-73%" (Dao, "FlashAttention-2",
https://arxiv.org/abs/2307.08691).
"""

_A100_BACKWARD = 0.63 / 0.73
"""Of the forward share: the paper's best backward pass reaches 63 % of the peak."""

_UNPUBLISHED = (0.5, 0.6, 0.75)
"""Shares of the peak on GPUs of other vendors, of which no measurement is public: NVIDIA's."""

BACKWARD_WORK = 2.5
"""Five products backward for two forward (both papers)."""

TILE = 128
"""Queries that a thread block handles, and keys that it takes at a time: 64 or 128
(FlashAttention-2, section 3.3).
"""

BYTES_PER_CLOCK = 32
"""A streaming multiprocessor issues at most one memory transaction of 32 bytes a clock
(``AdjustBandwidth`` in openxla/xla `xla/service/gpu/model/gpu_performance_model_base.cc`).
"""

LARGEST_HEAD = {False: 128, True: 256}
"""Head sizes that cuDNN has kernels for, before and since Hopper (jax `_src/cudnn/
fused_attention_stablehlo.py`, ``check_is_flash_attention``).
"""


@dataclass(frozen=True, slots=True)
class AttentionWork:
    """One fused kernel's work."""

    heads: float  # of queries, over all sequences
    queries: float  # of a head
    keys: float
    depth: float  # head size
    causal: bool
    back: bool  # the backward pass
    # keys that a query sees of a sliding window; None: of all
    window: float | None = None
    is_f8: bool = False

    @property
    def operations(self) -> float:
        """Multiplications and additions; a causal mask leaves half."""
        seen = self.keys if self.window is None else self.window
        return self._operations(self.queries, seen)

    @property
    def executed(self) -> float:
        """The same with what whole tiles of queries compute beyond."""
        tiles = ceil(self.queries / TILE)
        return self._operations(tiles * TILE, self.inner_length)

    @property
    def blocks(self) -> float:
        """Thread blocks: one for a tile of queries, backward of keys."""
        side = self.keys if self.back else self.queries
        return self.heads * ceil(side / TILE)

    @property
    def inner_length(self) -> float:
        """Keys that a block goes through."""
        if self.window is None:
            return self.keys
        return min(self.keys, self.window + TILE)

    @property
    def bytes_moved(self) -> float:
        """Queries, keys, values and results, which are read or written once; backward their
        gradients too.
        """
        elements = 2.0 * self.heads * (self.queries + self.keys) * self.depth
        size = 1.0 if self.is_f8 else 2.0
        return elements * size * (2.0 if self.back else 1.0)

    def _operations(self, queries: float, keys: float) -> float:
        forward = 4.0 * self.heads * queries * keys * self.depth
        if self.causal:
            forward /= 2
        return forward * BACKWARD_WORK if self.back else forward


@dataclass(frozen=True, slots=True)
class Speed:
    """A figure and the range of what is published for it."""

    least: float
    likely: float
    most: float

    def plus(self, other: Speed, times: float) -> Speed:
        """The sum with another, taken so many times."""
        return Speed(
            self.least + times * other.least,
            self.likely + times * other.likely,
            self.most + times * other.most,
        )


def fused_us(hardware: Hardware, work: AttentionWork) -> Speed:
    """Microseconds of a fused kernel that is yet to be chosen; `least` is of the fastest published
    one.
    """
    return _times_us(hardware, work, _SLOWER, _FASTER)


def call_us(hardware: Hardware, work: AttentionWork) -> Speed:
    """Microseconds of a compiled call of cuDNN or Transformer Engine, whose kernels are cuDNN's."""
    return _times_us(hardware, work, _CALL_SLOWER, _CALL_FASTER)


def has_figures(hardware: Hardware) -> bool:
    """Whether the published figures are of GPUs of this vendor; else they only bound a saving."""
    return hardware.library.name == NCCL.name


def largest_head(hardware: Hardware) -> int:
    """The largest head that a fused kernel takes."""
    return LARGEST_HEAD["f8" in hardware.tflops]


def _times_us(
    hardware: Hardware, work: AttentionWork, slower: float, faster: float
) -> Speed:
    """Microseconds of a kernel. The fastest splits the keys between blocks where there are few."""
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
    """The longer of arithmetic, at a share of the peak, and memory."""
    dtype = "f8" if work.is_f8 and "f8" in hardware.tflops else "f16"
    peak = hardware.tflops[dtype] * 1e6
    return max(KERNEL_US + memory_us, work.executed / (peak * share))


def _share(
    hardware: Hardware, work: AttentionWork, slower: float, faster: float
) -> Speed:
    """Of the peak, what a fused kernel reaches."""
    # below the measured lengths in proportion
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
    least, likely, most = shares
    return Speed(least * factor, likely * factor, most * factor)
