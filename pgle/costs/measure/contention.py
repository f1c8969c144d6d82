"""Costs that belong to no instruction: the gaps between kernels, and how much collectives slow
kernels.

A kernel starts a little after the previous one on its stream ends. If it waited for another stream,
it starts later still. A cost profile does not hold these gaps, yet a step of thousands of kernels
spends a few per cent of its time in them.

A collective occupies multiprocessors, and its bytes pass through device memory. A trace shows the
effect: of kernels that do the same work, some run during a collective and some alone. Without such
a trace pgle assumes the figures of two real jobs (`ASSUMED`; `benchmarks/contention.py` prints them
for any trace). In both cases the range is wide: from no contention to twice the slowdown.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, NamedTuple, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from pgle.costs.profile.value import (
    Cost,
    CostKind,
    Origin,
    Profile,
    Time,
    module_records,
)
from pgle.trace.columns import EARLIEST, changes, heads, median, run_lengths
from pgle.trace.intervals import covered, union
from pgle.xla.hlo.module import Module
from pgle.xla.matrix_products import is_product

if TYPE_CHECKING:
    from pgle.costs.profile.lookup import Naming
    from pgle.trace.table import Trace

Floats = npt.NDArray[np.float64]
Rows: TypeAlias = Sequence[npt.NDArray[np.int64]]

# A gap longer than this many medians is not a launch gap: the host was late, or the stream waited
# for a transfer.
INTERRUPTION = 10.0
# Launches may wait for the host if they start at most this many times `LaunchGaps.host_us` apart.
HOST_BOUND = 1.01
MIN_GAPS = 20  # fewer gaps than this give no figure
# most executions to measure, because gaps do not change from step to step
MAX_GAP_EXECUTIONS = 8


@dataclass(frozen=True)
class LaunchGaps:
    """How long the device waits before a kernel starts."""

    # from the end of a kernel to the start of the next one on the same stream
    gap_us: Time = 1.0
    # from an event on one stream to the start of a kernel on another stream that waited for it
    switch_us: Time = 5.0
    # the host's time to issue one launch; a step of short kernels is bound by it
    host_us: Time = 3.8
    # from the start of a step on its first rank to its start on the last one, which all ranks wait
    # for
    begin_us: Time = 0.0
    # launches per run of an instruction, for instructions with more than one
    kernels: Mapping[str, Time] = field(default_factory=dict)
    # `Origin.MEASURED` on a trace, or `Origin.ESTIMATED` for the public figures below
    origin: Origin = Origin.ESTIMATED
    gaps: int = 0  # number of measured gaps


DEFAULT = LaunchGaps()
"""Public figures. XLA's own are 1 µs per kernel and 5 µs per NCCL kernel (`kKernelLaunchOverhead`
and `kNcclKernelLaunchOverhead` in openxla/xla
`xla/service/gpu/model/gpu_performance_model_base.h`). The host takes 3.8 µs per launch if launches
follow each other without waiting ("Getting Started with CUDA Graphs", NVIDIA technical blog, 2019).
"""


def launch_of(profile: Profile, module: str = "") -> LaunchGaps | None:
    """Return the launch gaps that a profile's provenance records for a module; None if there are
    none.

    Args:
        module: the module's name; empty takes the first record with launch gaps.
    """
    for item in module_records(profile.provenance):
        if item.get("launch") and module in ("", item.get("name")):
            try:
                return msgspec.convert(item["launch"], LaunchGaps)
            except msgspec.ValidationError:
                return None
    return None


def measure_launch(
    trace: Trace, module: int, kept: npt.NDArray[np.bool_], naming: Naming
) -> LaunchGaps | None:
    """Measure the launch gaps of one program on its compute stream.

    Its first `MAX_GAP_EXECUTIONS` kept executions are measured.

    Returns:
        None if there are fewer than `MIN_GAPS` gaps and all ranks begin together. If there are
        fewer gaps and ranks begin apart, the gaps are those of `DEFAULT`.
    """
    collective = naming.collective_instructions
    parts = execution_rows(trace, module, kept, MAX_GAP_EXECUTIONS)
    found = [_gaps(trace, part, collective) for part in parts]
    gaps_ns = _joined(gaps for gaps, _ in found)
    waits_ns = _joined(waits for _, waits in found)
    more = execution_rows(trace, module, kept, MAX_EXECUTIONS)
    begin_us = _begin_us(trace, collective, more)
    if len(gaps_ns) < MIN_GAPS:
        return replace(DEFAULT, begin_us=begin_us) if begin_us else None
    undisturbed_ns = gaps_ns[gaps_ns <= INTERRUPTION * median(gaps_ns)]
    rows = np.concatenate(parts)
    return LaunchGaps(
        begin_us=begin_us,
        # the mean without interruptions: what a launch adds to the step
        gap_us=float(undisturbed_ns.mean()) / 1e3,
        switch_us=median(waits_ns) / 1e3 if len(waits_ns) else DEFAULT.switch_us,
        kernels=_kernels(trace, rows, naming.instruction_iterations),
        origin=Origin.MEASURED,
        gaps=len(gaps_ns),
    )


def _joined(arrays: Iterable[Floats]) -> Floats:
    """Several arrays as one, which is empty if there is none."""
    return np.concatenate([np.empty(0), *arrays])


def execution_rows(
    trace: Trace, module: int, kept: npt.NDArray[np.bool_], at_most: int
) -> list[npt.NDArray[np.int64]]:
    """Return the row numbers of each kept execution of a module on each device: the first
    executions, `at_most` arrays in total.
    """
    last = int(np.flatnonzero(kept)[:at_most].max(initial=-1))
    rows = np.flatnonzero(
        (trace.module == module) & (trace.execution >= 0) & (trace.execution <= last)
    )
    rows = rows[kept[trace.execution[rows]]]
    if len(rows) == 0:
        return []
    first = heads(trace.device[rows], trace.execution[rows])
    return np.split(rows, first[1:])[:at_most]


def _begin_us(trace: Trace, collective: npt.NDArray[np.bool_], parts: Rows) -> float:
    """Return the µs from the first to the last rank's start of a step; 0 on one device, or without
    collectives.

    The last collective of a step ends on all ranks together. So ranks differ in the time from start
    to this end by as much as they differ in their starts. No shared clock is needed.

    Args:
        parts: row numbers, an array for each execution on each device.

    Returns:
        The median over executions that all devices recorded.
    """
    spans_us: dict[int, list[float]] = {}
    for rows in parts:
        communicates = rows[collective[trace.instruction[rows]]]
        if len(communicates):
            ends = trace.start_ns[communicates] + trace.duration_ns[communicates]
            span_ns = int(ends.max()) - int(trace.start_ns[rows].min())
            spans_us.setdefault(int(trace.execution[rows[0]]), []).append(span_ns / 1e3)
    most = max(map(len, spans_us.values()), default=0)
    apart = [
        max(spans) - min(spans) for spans in spans_us.values() if len(spans) == most
    ]
    return median(np.array(apart)) if apart else 0.0


def _gaps(
    trace: Trace, rows: npt.NDArray[np.int64], collective: npt.NDArray[np.bool_]
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return two kinds of gaps in ns of one execution: between launches on the compute stream, and
    from the end of compute to the start of a collective that waited for it.

    The first kind leaves out gaps in which another stream was busy: there the stream waited for a
    collective. It also leaves out gaps next to kernels shorter than the host's launch time, if
    enough others remain: there the GPU waited for the host. A synchronous collective runs on the
    compute stream, so the second kind leaves it out.
    """
    stream = trace.stream[rows]
    compute = ~collective[trace.instruction[rows]]
    if not compute.any():
        return np.empty(0), np.empty(0)
    streams, activities = np.unique(stream[compute], return_counts=True)
    main = streams[activities.argmax()]
    on_main = compute & (stream == main)
    start = trace.start_ns[rows]
    end = start + trace.duration_ns[rows]
    main_start = start[on_main]
    main_end = end[on_main]
    other_start = start[~on_main]
    # the latest end on other streams so far; long ago before the first one
    other_end = np.maximum.accumulate(np.append(EARLIEST, end[~on_main]))

    begins, ends = (
        main_start[1:],
        main_end[:-1],
    )  # the kernels after and before each gap
    gap_ns = (begins - ends).astype(np.float64)
    is_busy = other_end[np.searchsorted(other_start, begins)] > ends
    launch = trace.instance[rows][on_main]
    is_new_launch = (changes(launch) | (launch < 0))[1:]
    is_plain = (gap_ns >= 0) & ~is_busy & is_new_launch
    between_launches_ns = begins - main_start[:-1]
    is_of_gpu = is_plain & (between_launches_ns > HOST_BOUND * DEFAULT.host_us * 1e3)
    if is_of_gpu.sum() >= MIN_GAPS:
        is_plain = is_of_gpu

    before = (
        np.searchsorted(main_end, other_start) - 1
    )  # the last kernel that has ended
    is_idle = other_start >= other_end[:-1]
    is_wait = (before >= 0) & is_idle & (stream[~on_main] != main)
    waits_ns = (other_start - main_end[before])[is_wait]
    is_switch = waits_ns <= INTERRUPTION * DEFAULT.switch_us * 1e3
    return gap_ns[is_plain], waits_ns[is_switch].astype(np.float64)


def _kernels(
    trace: Trace, rows: npt.NDArray[np.int64], iterations: npt.NDArray[np.int64]
) -> dict[str, float]:
    """Return the launches per run of instructions with more than one, as a mean over executions.

    Launches are distinct instances. In a loop, an instruction runs once per iteration. If the trip
    count is unknown, launches and runs cannot be separated, and the instruction is left out.
    """
    if len(rows) == 0 or (trace.instance[rows] < 0).any():
        return {}
    columns = (trace.device, trace.execution, trace.instruction, trace.instance)
    order = np.lexsort([column[rows] for column in reversed(columns)])
    device, execution, instruction, instance = (
        column[rows[order]] for column in columns
    )
    is_first = changes(
        device, execution, instruction
    )  # of its instruction in an execution
    is_new_launch = is_first | changes(instance)
    instructions = len(trace.instructions)
    launches = np.bincount(instruction[is_new_launch], minlength=instructions)
    executions = np.bincount(instruction[is_first], minlength=instructions)
    runs = executions * iterations
    # if there are fewer launches, rematerialised copies share a name
    several = np.flatnonzero((runs > 0) & (launches > runs))
    return {
        trace.instructions[code]: float(launches[code] / runs[code])
        for code in several.tolist()
    }


BESIDE = 0.9
"""A launch counts as overlapped if collectives overlap this share of its time, and as alone without
any overlap.
"""

MIN_ALONE, MIN_SAMPLES = 3, 5
"""Nothing is derived from fewer launches of the same work alone, or from fewer overlapped launches
of a kind.
"""

LEAST_OVERLAP = 0.01  # instructions with a smaller overlapped share count as alone
# most executions to measure, over all devices; more add little to thousands of launches
MAX_EXECUTIONS = 64


class Factors(NamedTuple):
    """How many times as long a kernel takes while a collective runs."""

    product: float  # matrix products, convolutions and attention
    other: float  # every other kernel

    def of(self, *, product: bool) -> float:
        """Return the factor for one kind of kernel."""
        return self.product if product else self.other


NONE = Factors(1.0, 1.0)


@dataclass(frozen=True, slots=True)
class Slowdown:
    """How many times as long kernels take while collectives run: best guess and quartiles."""

    likely: float  # best guess
    # lower quartile of the launches; if assumed, the lower figure of the two jobs
    low: float
    high: float
    samples: int = 0  # measured launches during collectives; 0 if assumed

    def __post_init__(self) -> None:
        if not 1 <= self.low <= self.likely <= self.high < math.inf or self.samples < 0:
            raise ValueError(f"no slowdown: {self}")


UNMEASURED = Slowdown(1.0, 1.0, 1.0)


@dataclass(frozen=True)
class Contention:
    """How much collectives slow kernels."""

    product: Slowdown  # matrix products, convolutions and attention
    other: Slowdown  # every other kernel
    # By instruction, the share of its measured cost during which collectives ran. None if unknown.
    beside: Mapping[str, Annotated[float, msgspec.Meta(ge=0, le=1)]] | None = None

    @property
    def samples(self) -> int:
        """Measured launches; 0 if assumed."""
        return self.product.samples + self.other.samples

    @property
    def likely(self) -> Factors:
        """The best guess."""
        return self.at(1)

    def at(self, times: float) -> Factors:
        """Return the factors if the slowdown is `times` the likely one: 0 for no contention, 2 for
        the end of the range.
        """
        return Factors(
            1 + times * (self.product.likely - 1), 1 + times * (self.other.likely - 1)
        )

    def alone(self, module: Module, cost: Cost, factors: Factors) -> Cost:
        """Return the cost that the instruction would have if no collective ran.

        A cost without a known share in `beside` is returned unchanged, and so is a copy: copy
        engines execute it, not multiprocessors.
        """
        share = None if self.beside is None else self.beside.get(cost.name)
        item = module.instructions.get(cost.name)
        if share is None or item is None or cost.kind == CostKind.COPY:
            return cost
        part = 1 - share * (1 - 1 / factors.of(product=is_product(module, item)))
        slowest_us = None if cost.slowest_us is None else cost.slowest_us * part
        return cost._replace(cost_us=cost.cost_us * part, slowest_us=slowest_us)


ASSUMED = Contention(
    product=Slowdown(1.96, 1.85, 2.08), other=Slowdown(1.34, 1.34, 1.35)
)
"""The figures for every GPU: the mean of two real jobs. 4 × A100 (Pax, testdata/pax_fsdp4) has 1.85
and 1.35, 4 × H100 (MaxText) has 2.08 and 1.34. Each job's figures predict the other's step in
docs/evidence/simulator.md. No third job has been measured.
"""


def contention_of(profile: Profile, module: str) -> Contention:
    """Return the contention that a profile's sidecar records for a module, with `ASSUMED` for
    missing factors.
    """
    for item in module_records(profile.provenance):
        if item.get("name") != module or "contention" not in item:
            continue
        found = item["contention"]
        if found is None:
            # With HLO, None means that no kernel ran during a collective. Without HLO, pgle cannot
            # tell which activity is a collective.
            return replace(ASSUMED, beside={} if item.get("hlo") else None)
        try:
            known = msgspec.convert(found, Contention)
        except msgspec.ValidationError:  # written by another release
            return ASSUMED
        return with_assumed(known)
    return ASSUMED


def with_assumed(found: Contention) -> Contention:
    """Replace unmeasured factors by those of `ASSUMED`."""
    assumed = {
        kind: getattr(ASSUMED, kind)
        for kind in ("product", "other")
        if not getattr(found, kind).samples
    }
    return replace(found, **assumed)


def lost_us(
    overlapped_us: Floats, is_product: npt.NDArray[np.bool_], slower: Factors
) -> float:
    """Return the time in µs that kernels lose to contention.

    While a collective runs, a kernel completes only a part of the work that it would complete
    alone.

    Args:
        overlapped_us: float64[n], the time that each kernel shares with collectives.
        is_product: bool[n], True for kernels that multiply matrices.
    """
    factor = np.where(is_product, slower.product, slower.other)
    return float((overlapped_us * (1.0 - 1.0 / factor)).sum())


def as_if_alone(profile: Profile, module: Module) -> Profile:
    """Return a profile for schedules with other names: its costs are the times of kernels alone, if
    known.
    """
    found = contention_of(profile, module.name)
    known = {"hlo": True, "contention": asdict(replace(found, beside={}))}
    records = [
        {**item, **known}
        for item in module_records(profile.provenance)
        if item.get("name") == module.name
    ]
    return replace(
        profile,
        costs=tuple(found.alone(module, cost, found.likely) for cost in profile.costs),
        provenance={
            **profile.provenance,
            "modules": records or [{"name": module.name, **known}],
        },
    )


def measure_contention(
    trace: Trace,
    index: int,
    kept: npt.NDArray[np.bool_],
    module: Module,
    naming: Naming,
) -> Contention | None:
    """Compare kernels during collectives with the same work alone, in a program's kept executions.

    Returns:
        None if no collective overlapped a kernel. A kind with fewer than `MIN_SAMPLES` launches is
        `UNMEASURED`.
    """
    executions = execution_rows(trace, index, kept, MAX_EXECUTIONS)
    parts = [_launches(trace, rows, naming) for rows in executions]
    if not parts:
        return None
    code, time_us, share = (
        np.concatenate(column) for column in zip(*parts, strict=True)
    )
    if not (share > 0).any():
        return None
    items = [module.instructions.get(name) for name in naming.owners]
    total_us = np.bincount(code, weights=time_us, minlength=len(items))
    overlapped_us = np.bincount(code, weights=time_us * share, minlength=len(items))
    overlapped = overlapped_us / np.maximum(total_us, 1e-9)  # share, by instruction
    works: dict[Hashable, int] = {}
    work = np.full(len(items), -1)  # equal numbers for equal work
    multiplies = np.zeros(len(items), np.bool_)
    for at, item in enumerate(items):
        if item is not None:
            work[at] = works.setdefault(module.work(item), len(works))
            multiplies[at] = is_product(module, item)
    alone_us = _alone_us(work[code], time_us, share)
    is_compared = (share >= BESIDE) & (alone_us > 0)
    products = is_compared & multiplies[code]
    others = is_compared & ~multiplies[code]
    beside = {
        naming.filed[at].name: round(float(overlapped[at]), 4)
        for at in np.flatnonzero(overlapped >= LEAST_OVERLAP).tolist()
    }
    return Contention(
        product=_slowdown(time_us[products], alone_us[products]),
        other=_slowdown(time_us[others], alone_us[others]),
        beside=beside,
    )


def _launches(
    trace: Trace, rows: npt.NDArray[np.int64], naming: Naming
) -> tuple[npt.NDArray[np.int64], Floats, Floats]:
    """Return the compute kernels of one execution on one device: filed name, time in µs, and share
    that collectives overlap.

    Asynchronous copies are not kernels.
    """
    rows = rows[naming.target[trace.instruction[rows]] >= 0]
    code = naming.target[trace.instruction[rows]].astype(np.int64)
    start = trace.start_ns[rows]
    instance = trace.instance[rows].astype(np.int64)
    end = start + trace.duration_ns[rows]
    communicates = naming.communicates[code]
    overlapped = covered(union(start[communicates], end[communicates]), start, end)
    is_compute = [item.kind == CostKind.COMPUTE for item in naming.filed]
    kernels = np.flatnonzero(np.array(is_compute, np.bool_)[code])
    order = kernels[np.lexsort((instance[kernels], code[kernels]))]
    code, instance = code[order], instance[order]
    time = (end - start)[order].astype(np.float64)
    if not len(code):
        return code, time, time
    first = np.flatnonzero(changes(code, instance) | (instance < 0))
    time = np.add.reduceat(time, first)
    overlapped = np.add.reduceat(overlapped[order], first)
    return code[first], time / 1e3, overlapped / np.maximum(time, 1.0)


def _alone_us(work: npt.NDArray[np.int64], time_us: Floats, share: Floats) -> Floats:
    """Return, for each launch, the typical time in µs of the same work without a collective; NaN if
    too few launches show it.
    """
    order = np.flatnonzero((share == 0) & (work >= 0))
    order = order[np.lexsort((time_us[order], work[order]))]
    first = np.searchsorted(work[order], np.arange(work.max(initial=-1) + 1))
    count = run_lengths(first, len(order))
    # The last entry is for launches without a work number.
    typical = np.full(len(first) + 1, np.nan)
    many = np.flatnonzero(count >= MIN_ALONE)
    typical[many] = time_us[order][first[many] + count[many] // 2]
    return typical[work]


def _slowdown(time_us: Floats, alone_us: Floats) -> Slowdown:
    """Return how many times as long launches take during collectives as alone; at least 1. Each
    launch counts by its time alone.
    """
    if len(time_us) < MIN_SAMPLES:
        return UNMEASURED
    ratio = time_us / alone_us
    order = np.argsort(ratio)
    weight = np.cumsum(alone_us[order]) / alone_us.sum()
    quartiles = np.searchsorted(weight, (0.25, 0.75)).clip(max=len(order) - 1)
    low, high = np.maximum(ratio[order[quartiles]], 1.0).tolist()
    likely = max(float(time_us.sum() / alone_us.sum()), 1.0)
    return Slowdown(likely, min(low, likely), max(high, likely), len(time_us))
