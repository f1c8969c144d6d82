"""What a fused attention kernel takes, by published measurements."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass

from pgle.xla.hardware import NCCL
from pgle.xla.targets import KERNEL_US, Hardware

_LENGTHS = (512, 1024, 2048, 4096, 8192, 16384)

_H100_PEAK = 989.0  # TFLOP/s of the H100 SXM of these measurements

_FORWARD: Mapping[tuple[int, bool], tuple[int, ...]] = {
    (64, False): (335, 373, 395, 408, 412, 413),
    (64, True): (225, 288, 334, 363, 379, 388),
    (128, False): (497, 574, 617, 609, 600, 595),
    (128, True): (315, 410, 484, 518, 529, 539),
    (256, False): (470, 546, 580, 581, 580, 581),
    (256, True): (308, 391, 450, 483, 497, 509),
}
"""TFLOP/s of cuDNN on an H100 SXM by (head size, causal), at the lengths of `_LENGTHS` (Shah et
al., "FlashAttention-3", https://arxiv.org/abs/2407.08608, figure 5).
"""

_BACKWARD: Mapping[int, tuple[int, ...]] = {
    64: (266, 348, 395, 417, 432, 433),
    128: (305, 408, 465, 499, 518, 516),
}
"""The same of the backward pass without a mask (figure 6)."""

_SLOWER = 0.55
_FASTER = 1.3
"""FlashAttention-2 reaches 0.55 to 0.98 of cuDNN's figures, FlashAttention-3 0.85 to 1.31 (the same
figures, lengths from 1024).
"""

_A100_FORWARD = (0.5, 0.615, 0.73)
"""Shares of the A100's peak, least, middle, most: "50-73%" (Dao, "FlashAttention-2",
https://arxiv.org/abs/2307.08691).
"""

_A100_BACKWARD = 0.63 / 0.73
"""Of the forward share: the paper's best backward pass reaches 63 % of the peak."""

BACKWARD_WORK = 2.5
"""Five products backward for two forward (both papers)."""

LARGEST_HEAD = {False: 128, True: 256}
"""Head sizes that cuDNN has kernels for, before and since Hopper (jax `_src/cudnn/
fused_attention_stablehlo.py`, ``check_is_flash_attention``).
"""


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


def fused_us(
    hardware: Hardware, scores: float, depth: int, length: int, causal: bool, back: bool
) -> Speed:
    """Microseconds of one fused kernel.

    Args:
        scores: queries times keys, over all batches and heads.
        depth: head size.
        length: keys, or queries if they are fewer.
        back: the backward pass.

    Returns:
        `least` is of the fastest published kernel.
    """
    work = 4.0 * scores * depth
    if causal:
        work /= 2
    if back:
        work *= BACKWARD_WORK
    share = _share(hardware, depth, length, causal, back)
    peak = hardware.tflops["f16"] * 1e6
    # queries, keys, values and results, which are read or written once
    moved = 4 * 2.0 * scores / length * depth
    floor = KERNEL_US + hardware.memory_us(moved)
    least, likely, most = (
        max(floor, work / (peak * each))
        for each in (share.most, share.likely, share.least)
    )
    return Speed(least, likely, most)


def has_figures(hardware: Hardware) -> bool:
    """Whether the published figures are of GPUs of this vendor; else they only bound a saving."""
    return hardware.library.name == NCCL.name


def largest_head(hardware: Hardware) -> int:
    """The largest head that a fused kernel takes."""
    return LARGEST_HEAD["f8" in hardware.tflops]


def _share(
    hardware: Hardware, depth: int, length: int, causal: bool, back: bool
) -> Speed:
    """Of the peak, what a fused kernel reaches."""
    short = min(length / _LENGTHS[0], 1.0)  # below the measured lengths in proportion
    if "f8" not in hardware.tflops:
        factor = short * (_A100_BACKWARD if back else 1.0)
        least, likely, most = (factor * each for each in _A100_FORWARD)
        return Speed(least, likely, most)
    row = max(bisect_right(_LENGTHS, length) - 1, 0)
    size = next((each for each in (64, 128) if depth <= each), 256)
    forward = _FORWARD[size, causal][row]
    reached = float(forward)
    if back:
        open_ = _FORWARD[size, False][row]
        reached = _BACKWARD[min(size, 128)][row] * forward / open_
    likely = short * reached / _H100_PEAK
    return Speed(likely * _SLOWER, likely, likely * _FASTER)
