"""Contention: what a collective costs the kernels that it hides behind.

While a collective runs, its channels hold multiprocessors and its bytes pass through device memory. A matrix product
that is laid out for all multiprocessors then takes a second wave: about twice as long. Anything else is bound by memory
and gets the bandwidth that is left. Two parameters from elsewhere, chosen with the
figures below in view, so that those are no test of it on other jobs:

- a product beside a collective nearly doubles (a 132-block product beside a 24-block all-gather: NVIDIA developer
  forum, thread 337991);
- each byte on the bus is read from and written to device memory once (two), or read, added and written (three).

Measured on twins of equal shape, beside a collective and alone (`benchmarks/contention.py`): products 1.85 on 4 × A100,
2.08 on 4 × H100, the rest 1.37 and 1.33; the model says 2, and 1.43 and 1.28.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pgle.schedule.intervals import covered
from pgle.schedule.timeline import Stream, Timeline
from pgle.xla.hardware import Hardware

PRODUCT_SLOWDOWN = 2.0
MEMORY_BYTES_PER_BUS_BYTE = 2.0


@dataclass(frozen=True, slots=True)
class Contention:
    """How many times as long a kernel takes beside a collective.

    Attributes:
        product: matrix products and attention.
        other: every other kernel.
    """

    product: float
    other: float


def contention_on(hardware: Hardware) -> Contention:
    """The model's slowdowns on a GPU."""
    share = MEMORY_BYTES_PER_BUS_BYTE * hardware.nvlink_gb_s / hardware.memory_gb_s
    return Contention(PRODUCT_SLOWDOWN, 1.0 / (1.0 - min(share, 0.75)))


def contended_us(timeline: Timeline, contention: Contention) -> float:
    """How much compute a schedule loses to the collectives that it hides.

    Args:
        timeline: whose kernels take what they take alone.
        contention: how much longer they take beside a collective.

    Returns:
        Microseconds of a step: in the time that a kernel shares with a collective it gets done a part of its work, and
        the rest comes after.
    """
    compute = timeline.stream == Stream.COMPUTE
    start, end = timeline.start_us[compute], timeline.end_us[compute]
    beside = covered(timeline.busy(Stream.COMMUNICATION), start, end)
    is_product = np.array([kind == "matmul" for kind in timeline.kinds] or [False])
    slower = np.where(is_product[timeline.instruction[compute]], contention.product, contention.other)
    return float((beside * (1.0 - 1.0 / slower)).sum())
