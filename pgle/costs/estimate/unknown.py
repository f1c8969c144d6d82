"""Ranges for what no estimate can tell: costs that depend on data, an assumed network, growth with
size.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from math import ceil, exp, log, log2, prod, sqrt
from statistics import fmean, stdev

from pgle.costs.estimate.attention import call_us
from pgle.costs.estimate.coalescing import SECTOR_BYTES
from pgle.costs.estimate.communication import LAUNCH_US, group_of, payload_bytes
from pgle.costs.estimate.estimate import uncoalesced_bytes
from pgle.costs.estimate.passes import fewest_fft_passes, fft_passes, is_radix_sort
from pgle.costs.estimate.products import attention_work, matmuls, operand_shape
from pgle.costs.estimate.scatters import extreme_us, plausible_us
from pgle.errors import UserError
from pgle.xla.collectives import collective_kind
from pgle.xla.hlo.module import BITS, Instruction, Module
from pgle.xla.host_copies import crosses_host_link
from pgle.xla.matrix_products import is_convolution
from pgle.xla.targets import (
    KERNEL_US,
    Hardware,
)
from pgle.xla.vendors import maker_of

RADIX_SHORT = 1.32
"""The factor from an estimate at 0.9 of the bandwidth to the measured time of a radix sort.

On an A100 of 1,555 GB/s, Onesweep sorts 29.4 billion 32-bit keys a second. It moves 36 bytes a key:
four passes read and write, and one only reads (Adinets and Merrill,
https://arxiv.org/abs/2206.01784).
"""

# factor by which Winograd's F(2×2, 3×3) reduces multiplications (Lavin and Gray, arXiv 1509.09308)
WINOGRAD = 2.25
# GPUs behind one PCIe switch: two in NVIDIA's DGX A100 (its user guide, system topology)
SHARED_LINK = 2.0


@dataclass(frozen=True, slots=True)
class Range:
    """The possible times of an instruction, in µs per execution, and why shapes do not determine
    the time.
    """

    least_us: float
    most_us: float
    why: str
    # extreme_us, extreme_why: the time for implausible data, and what this data is; outside the
    # range
    extreme_us: float | None = None
    extreme_why: str = ""

    @property
    def possible_us(self) -> float:
        """The longest time for any data, plausible or not."""
        return max(self.most_us, self.extreme_us or 0.0)


def range_of(
    module: Module, instruction: Instruction, hardware: Hardware, estimate_us: float
) -> Range | None:
    """Return the range of an estimate if data or a choice made on the GPU decides the time, else
    None.
    """
    if instruction.latency_ns is not None:
        return None
    kind = collective_kind(module, instruction)
    if kind is not None:
        return _of_collective(module, kind, instruction, hardware, estimate_us)
    if crosses_host_link(module, instruction):
        return Range(
            estimate_us,
            estimate_us * SHARED_LINK,
            "GPUs may share the link to the host",
        )
    inner = module.operation(instruction)
    found = [
        _of_one(module, item, inner, hardware, estimate_us)
        for item in module.parts(inner)
    ]
    found.append(_of_reads(module, inner, hardware, estimate_us))
    return max(
        filter(None, found),
        key=lambda item: item.most_us / max(item.least_us, 1e-9),
        default=None,
    )


def _of_reads(
    module: Module, instruction: Instruction, hardware: Hardware, us: float
) -> Range | None:
    """Return the range of a kernel that uses only parts of sectors. Caches keep the rest, or it is
    fetched again.
    """
    extra = uncoalesced_bytes(module, instruction)
    if extra.most <= 0:
        return None
    spared_us = hardware.memory_us(extra.likely - extra.least)
    least_us = max(us - spared_us, KERNEL_US)
    most_us = us + hardware.memory_us(extra.most - extra.likely)
    return Range(least_us, most_us, "reads across memory may be cached")


def _of_one(
    module: Module,
    item: Instruction,
    caller: Instruction,
    hardware: Hardware,
    us: float,
) -> Range | None:
    """Return the range of a single operation's cost, as part of its caller; None if it has none of
    its own.
    """
    if item.opcode == "scatter":
        return Range(
            us,
            us + plausible_us(module, item, caller),
            "rows of one index wait for each other; the most frequent index has 7 %, as in a text",
            us + extreme_us(module, item, caller),
            "all rows are equal, as tokens of synthetic data may be",
        )
    if item.opcode == "gather":
        apart = _sectors(module, item) * SECTOR_BYTES / (hardware.memory_gb_s * 1e3)
        return (
            Range(us, apart, "elements may be scattered, or in the cache")
            if apart > us
            else None
        )
    if is_radix_sort(item):
        return Range(
            us, us * RADIX_SHORT, "radix sorts reach 0.68 of the bandwidth or more"
        )
    if is_convolution(item):
        plain = sum(one.operations for one in matmuls(module, item)) / (
            hardware.tflops["f32"] * 1e6
        )
        maker = maker_of(hardware)
        why = f"{maker.convolutions} chooses the algorithm"
        most = max(plain, us)
        if maker.convolves_by_image:
            most = max(most, us + _by_image_us(module, item, hardware))
            why = f"{why}, at worst a product for each image"
        return Range(us / WINOGRAD, most, why)
    if item.opcode == "fft":
        fewest = fewest_fft_passes(module, item) / fft_passes(module, item)
        return (
            Range(us * fewest, us, "cuFFT chooses the passes") if fewest < 1 else None
        )
    attention = attention_work(module, item)
    if attention is not None and attention.operations:
        call = call_us(hardware, attention)
        why = "attention kernels of several releases differ"
        return Range(us * call.least / call.likely, us * call.most / call.likely, why)
    low, high = hardware.products_range
    if low < high and matmuls(module, item):
        why = "no matrix products were measured on this GPU"
        return Range(us * low, us * high, why)
    return None


def _of_collective(
    module: Module, kind: str, instruction: Instruction, hardware: Hardware, us: float
) -> Range | None:
    """Return the range of a permute inside a host, or of a collective between hosts without public
    measurements; else None.

    In XLA's table, permutes reach a fifth of the links' bandwidth. No job confirms the table or the
    links.
    """
    inner = module.operation(instruction)
    share = hardware.library.hosts_share
    if share < 1 and _crosses_hosts(module, inner, hardware):
        why = f"no measurement of {hardware.library.name} between hosts is public"
        return Range(us, us / share, why)
    if kind != "collective-permute":
        return None
    size = payload_bytes(module, kind, inner)
    at_links = LAUNCH_US + size / (hardware.nvlink_gb_s * 1e3)
    if not inner.source_target_pairs or at_links >= us:
        return None
    if _crosses_hosts(module, inner, hardware):
        return None
    return Range(
        at_links, us, "XLA's table of permutes is far below the links; measure it"
    )


def _by_image_us(module: Module, item: Instruction, hardware: Hardware) -> float:
    """Return the extra µs of a convolution if each image is multiplied separately.

    One kernel lays out the patches of an image as a matrix, another one multiplies it.
    """
    given = operand_shape(module, item, 0)
    if given is None or not given.dimensions:
        return 0.0
    laid_out = sum(
        2 * one.m * one.k * BITS.get(one.dtype, 32) / 8 for one in matmuls(module, item)
    )
    launches_us = 2 * KERNEL_US * given.dimensions[0]
    return launches_us + hardware.memory_us(laid_out)


def _crosses_hosts(
    module: Module, instruction: Instruction, hardware: Hardware
) -> bool:
    """Whether a collective connects devices of several hosts."""
    pairs = instruction.source_target_pairs
    if pairs:
        return any(hardware.host(a) != hardware.host(b) for a, b in pairs)
    return group_of(module, instruction, hardware).hosts > 1


def _sectors(module: Module, gather: Instruction) -> int:
    """Return the number of sectors that a gather reads if its rows are scattered. Each row is
    contiguous.
    """
    operand = operand_shape(module, gather, 0)
    indices = operand_shape(module, gather, 1)
    elements = gather.shape.count
    if operand is None or indices is None:
        return elements
    places = indices.dimensions
    is_vector = bool(places) and places[-1] <= len(operand.dimensions)
    rows = max(prod(places[:-1] if is_vector else places), 1)
    row_bytes = gather.shape.size_bytes / rows
    return rows * ceil(row_bytes / SECTOR_BYTES)


def assumed_warnings(
    module: Module, hardware: Hardware, *, is_named: bool
) -> list[str]:
    """Return one line on the assumed network if collectives cross hosts and the user named no
    network.
    """
    kinds = (
        (collective_kind(module, item), module.operation(item))
        for item in module.walk()
    )
    crossing = (
        group_of(module, item, hardware).hosts > 1
        for kind, item in kinds
        if kind is not None
    )
    if is_named or module.num_devices <= hardware.devices_per_host or not any(crossing):
        return []
    slow, fast = hardware.networks_gb_s
    held = f"; the range holds networks of {slow:g} to {fast:g} GB/s"
    if slow >= fast:
        held = ""
    return [
        f"collectives cross hosts of {hardware.devices_per_host} GPUs; a network of "
        f"{hardware.nic_gb_s:g} GB/s per "
        "GPU and direction is assumed: name yours with --network"
        f"{held}"
    ]


HELD = 0.9  # share of programs whose step a range is meant to hold


@dataclass(frozen=True, slots=True)
class Published:
    """A program's published step on some number of GPUs."""

    series: str  # program and precision
    devices: int
    step: float  # the step, in the unit of its series
    source: str  # public repository and commit, or issue


@cache
def published() -> tuple[Published, ...]:
    """Return the rows of `data/weak_scaling.tsv`. A published utilisation is inverted to a step."""
    text = (
        resources.files("pgle.xla")
        .joinpath("data/weak_scaling.tsv")
        .read_text(encoding="utf-8")
    )
    rows = []
    for line in text.splitlines()[1:]:
        program, precision, devices, step, unit, source = line.split("\t")
        value = 1 / float(step) if unit == "1/mfu" else float(step)
        rows.append(Published(f"{program} {precision}", int(devices), value, source))
    return tuple(rows)


def growth(
    without: Collection[str] = (),
) -> Mapping[str, tuple[tuple[float, float], ...]]:
    """Return, for each published program, a pair for each size after its smallest one.

    The pair holds the doublings of GPUs, and the logarithm of the factor by which the step grows.
    Both compare with the smallest size.

    Args:
        without: programs to leave out.
    """
    series: dict[str, list[Published]] = defaultdict(list)
    for row in published():
        if row.series not in without:
            series[row.series].append(row)
    return {
        name: tuple(
            (log2(row.devices / rows[0].devices), log(row.step / rows[0].step))
            for row in rows[1:]
        )
        for name, rows in series.items()
    }


def size_spread(
    devices_from: int, devices_to: int, *, without: Collection[str] = ()
) -> tuple[float, float]:
    """Return the factors from a step at one size to a step at another, for effects that no compiler
    knows.

    Growth is assumed to be a random walk over doublings of GPUs: independent disturbances, so it
    grows with the root of their number. Each published program has one rate. The factors are
    Student's prediction interval for the rate of one more program. docs/evidence/scale.md says how
    often the interval holds programs that were left out.

    Args:
        without: series of `published` to leave out.

    Returns:
        Factors (low, high) with low ≤ 1 ≤ high; (1, 1) at the same size.

    Raises:
        UserError: a number of devices is not positive.
    """
    if devices_from < 1 or devices_to < 1:
        raise UserError(
            "the number of devices must be positive",
            where=f"{devices_from}, {devices_to}",
        )
    # imported here because the import takes a tenth of a second
    from scipy.special import (
        stdtrit,
    )

    rates = [
        fmean(rise / sqrt(doublings) for doublings, rise in rows)
        for rows in growth(without).values()
    ]
    half = (
        float(stdtrit(len(rates) - 1, (1 + HELD) / 2))
        * stdev(rates)
        * sqrt(1 + 1 / len(rates))
    )
    far = sqrt(abs(log2(devices_to / devices_from)))
    low = exp(min(fmean(rates) - half, 0) * far)
    high = exp(max(fmean(rates) + half, 0) * far)
    return (low, high) if devices_to >= devices_from else (1 / high, 1 / low)
