"""What no estimate can say: costs that data decides, calls of unknown cost, an assumed network, growth with size."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from math import exp, log, log2, prod, sqrt
from statistics import fmean, stdev

from pgle.costs.estimate.communication import group_of
from pgle.costs.estimate.passes import is_radix_sort, sort_passes
from pgle.costs.estimate.products import attention_operations, first_array, matmuls, operand_shape
from pgle.errors import UserError
from pgle.xla.collectives import (
    collective_kind,
    is_convolution,
    is_host_copy,
)
from pgle.xla.hlo.module import Instruction, Module
from pgle.xla.targets import ATTENTION_EFFICIENCY, ATTENTION_RANGE, Hardware

SWAPPED_ROW_US, ADDED_ROW_US = 12.2, 0.0244
"""A row added to one that others add to at the same time: by compare and swap, and where the GPU adds by itself. Of
40,960 rows into the same one, each took 500 ms and 1 ms (openxla/xla issue 46225, RTX 3080 Ti)."""

SECTOR_BYTES = 32  # what device memory reads at least (NVIDIA, "CUDA C++ Best Practices Guide", coalesced access)
WINOGRAD = (
    2.25  # multiplications that Winograd's F(2×2, 3×3) saves (Lavin and Gray, arXiv 1509.09308)
)
SHARED_LINK = (
    2.0  # GPUs behind one PCIe switch: two in NVIDIA's DGX A100 (its user guide, system topology)
)


@dataclass(frozen=True, slots=True)
class Range:
    """What an instruction may take, microseconds per execution, and why shapes do not say."""

    least_us: float
    most_us: float
    why: str


def range_of(
    module: Module, instruction: Instruction, hardware: Hardware, estimate_us: float
) -> Range | None:
    """The range of an estimate that data, or a choice made on the GPU, decides; None of any other."""
    if instruction.latency_ns is not None or collective_kind(module, instruction) is not None:
        return None
    if is_host_copy(module, instruction) or instruction.is_host_transfer:
        return Range(estimate_us, estimate_us * SHARED_LINK, "GPUs may share the link to the host")
    inner = module.wrapped(instruction) or instruction
    fused = module.fused(inner)
    items = (inner,) if fused is None else fused.instructions
    found = (_of_one(module, item, inner, hardware, estimate_us) for item in items)
    return max(
        filter(None, found), key=lambda item: item.most_us / max(item.least_us, 1e-9), default=None
    )


def _of_one(
    module: Module, item: Instruction, caller: Instruction, hardware: Hardware, us: float
) -> Range | None:
    if item.opcode == "scatter":
        return Range(
            us,
            us + _repeated_us(module, item, caller),
            "rows that repeat are added one after the other",
        )
    if item.opcode == "gather":
        apart = prod(item.shape.dimensions) * SECTOR_BYTES / (hardware.memory_gb_s * 1e3)
        return Range(us, apart, "elements may lie apart or in the cache") if apart > us else None
    if item.opcode == "sort" or is_radix_sort(item):
        radix, bitonic = sort_passes(item)
        own = bitonic if item.opcode == "sort" else radix
        return Range(
            us * min(radix, bitonic) / own,
            us * max(radix, bitonic) / own,
            "by bits or by comparisons",
        )
    if is_convolution(item):
        plain = sum(one.operations for one in matmuls(module, item)) / (
            hardware.tflops["f32"] * 1e6
        )
        return Range(us / WINOGRAD, max(plain, us), "cuDNN chooses the algorithm")
    if attention_operations(module, item):
        low, high = (us * ATTENTION_EFFICIENCY / share for share in reversed(ATTENTION_RANGE))
        return Range(low, high, "attention reaches half to three quarters of the peak")
    return None


def _repeated_us(module: Module, scatter: Instruction, caller: Instruction) -> float:
    """What a scatter takes more if the row that repeats most is added one after the other: nothing if it overwrites.

    GPUs add f32, f64, f16 and integers by themselves. XLA computes bf16 in f32, so it compares and swaps (openxla/xla
    pull request 44428); on an H100, too, such a scatter took 3.3 µs a row (docs/evidence/estimates.md).
    """
    combiner = [module.computations[name] for name in scatter.called if name in module.computations]
    if combiner and all(
        item.opcode == "parameter" for one in combiner for item in one.instructions
    ):
        return 0.0
    dtype = (first_array(scatter.shape) or scatter.shape).dtype
    is_swapped = dtype == "bf16" or dtype.startswith("f8")
    return _most_repeats(module, scatter, caller) * (SWAPPED_ROW_US if is_swapped else ADDED_ROW_US)


def _most_repeats(module: Module, scatter: Instruction, caller: Instruction) -> int:
    """How often one row can repeat: all of them can, unless the indices are a permutation divided.

    A mixture of experts sends each token to k experts: the indices are an argsort of tokens times k, divided by k, so
    that each of the operand's rows comes k times.
    """
    rows, arrays = _rows(module, scatter), len(scatter.operands) // 2
    updates = operand_shape(module, scatter, arrays + 1)
    permuted = _permuted(module, scatter.operands[arrays], caller) if arrays else 0
    result = first_array(scatter.shape)
    if not permuted or updates is None or result is None:
        return rows
    places = prod(result.dimensions) * rows // max(prod(updates.dimensions), 1)
    return min(rows, -(-permuted // max(places, 1)))


def _permuted(module: Module, indices: str, caller: Instruction) -> int:
    """The length of the one argsort that indices follow from by arithmetic alone; 0 if from anything else, too."""
    lengths, names, seen = set[int](), [indices], set[str]()
    while names:
        item = module.instructions.get(name := names.pop())
        if item is None or name in seen:
            continue
        seen.add(name)
        if item.parameter_number is not None and item.computation in caller.called:
            names.append(caller.operands[item.parameter_number])
        elif item.opcode == "get-tuple-element" and (length := _argsorted(module, item)):
            lengths.add(length)
        elif item.opcode in _ARITHMETIC:
            names += item.operands
        elif prod(item.shape.dimensions) > 1 and item.opcode not in ("constant", "iota"):
            return 0
    return lengths.pop() if len(lengths) == 1 else 0


_ARITHMETIC = frozenset(
    (
        "abs",
        "add",
        "and",
        "bitcast",
        "broadcast",
        "clamp",
        "compare",
        "convert",
        "copy",
        "divide",
        "dynamic-slice",
        "fusion",
        "maximum",
        "minimum",
        "multiply",
        "negate",
        "not",
        "or",
        "remainder",
        "reshape",
        "select",
        "shift-right-arithmetic",
        "shift-right-logical",
        "sign",
        "slice",
        "subtract",
    )
)


def _argsorted(module: Module, item: Instruction) -> int:
    """The length of a permutation: what a sort makes of a counting sequence; 0 for any other result."""
    sort = module.instructions.get(item.operands[0])
    if sort is None or not (sort.opcode == "sort" or is_radix_sort(sort)):
        return 0
    given = (
        None if item.tuple_index is None else sort.operands[item.tuple_index : item.tuple_index + 1]
    )
    sorted_ = module.instructions.get(given[0]) if given else None
    if sorted_ is None:
        return 0
    fused = module.fused(sorted_)
    root = sorted_ if fused is None else module.instructions[fused.root]
    return prod(item.shape.dimensions) if root.opcode == "iota" else 0


def _rows(module: Module, scatter: Instruction) -> int:
    """Places that a scatter writes to: its indices, whose last dimension says where where it is short."""
    indices = operand_shape(module, scatter, len(scatter.operands) // 2)
    dimensions = indices.dimensions if indices is not None else ()
    return prod(
        dimensions[:-1]
        if dimensions and dimensions[-1] <= len(scatter.shape.dimensions)
        else dimensions
    )


def assumed_warnings(module: Module, hardware: Hardware, *, is_named: bool) -> list[str]:
    """That a network is assumed, if collectives cross hosts and the user has named none: one line, else none."""
    kinds = (
        (collective_kind(module, item), module.wrapped(item) or item) for item in module.walk()
    )
    crossing = (
        group_of(module, item, hardware).hosts > 1 for kind, item in kinds if kind is not None
    )
    if is_named or module.num_devices <= hardware.devices_per_host or not any(crossing):
        return []
    return [
        f"collectives cross hosts of {hardware.devices_per_host} GPUs; a network of {hardware.nic_gb_s:g} GB/s per "
        "GPU and direction is assumed: name yours with --network"
    ]


HELD = 0.9  # share of programs whose step a range is meant to hold


@dataclass(frozen=True, slots=True)
class Published:
    """A program's step on some number of GPUs, as others published it."""

    series: str  # program and precision
    devices: int
    step: float  # in the unit of its series
    source: str  # public repository and commit, or issue


@cache
def published() -> tuple[Published, ...]:
    """The rows of `data/weak_scaling.tsv`; a published utilisation counts as its inverse."""
    text = resources.files("pgle.xla").joinpath("data/weak_scaling.tsv").read_text(encoding="utf-8")
    rows = []
    for line in text.splitlines()[1:]:
        program, precision, devices, step, unit, source = line.split("\t")
        value = 1 / float(step) if unit == "1/mfu" else float(step)
        rows.append(Published(f"{program} {precision}", int(devices), value, source))
    return tuple(rows)


def growth(without: Collection[str] = ()) -> Mapping[str, tuple[tuple[float, float], ...]]:
    """Doublings of GPUs and the logarithm of how much longer the step is, both from the series' smallest size."""
    series: dict[str, list[Published]] = defaultdict(list)
    for row in published():
        if row.series not in without:
            series[row.series].append(row)
    return {
        name: tuple(
            (log2(row.devices / rows[0].devices), log(row.step / rows[0].step)) for row in rows[1:]
        )
        for name, rows in series.items()
    }


def size_spread(
    devices_from: int, devices_to: int, *, without: Collection[str] = ()
) -> tuple[float, float]:
    """What a step, known at one size, may be multiplied by at another for what no compiler knows.

    Growth is taken as a random walk over doublings of GPUs: independent disturbances, so that it goes with the root of
    their number. Each published program has one rate, and a further one is in Student's prediction interval of them.
    How often programs that are left out lie in it: docs/evidence/scale.md.

    Args:
        without: series of `published` that are left out.

    Returns:
        Factors (low, high), low ≤ 1 ≤ high; (1, 1) at the same size.

    Raises:
        UserError: a number of devices is not positive.
    """
    if devices_from < 1 or devices_to < 1:
        raise UserError(
            "the number of devices must be positive", where=f"{devices_from}, {devices_to}"
        )
    from scipy.special import stdtrit  # only here, since its import takes a tenth of a second

    rates = [
        fmean(rise / sqrt(doublings) for doublings, rise in rows)
        for rows in growth(without).values()
    ]
    half = float(stdtrit(len(rates) - 1, (1 + HELD) / 2)) * stdev(rates) * sqrt(1 + 1 / len(rates))
    far = sqrt(abs(log2(devices_to / devices_from)))
    low, high = exp(min(fmean(rates) - half, 0) * far), exp(max(fmean(rates) + half, 0) * far)
    return (low, high) if devices_to >= devices_from else (1 / high, 1 / low)
