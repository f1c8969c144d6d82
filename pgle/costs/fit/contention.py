"""Contention: how much longer a kernel takes beside a collective; measured on a trace, or by a model.

While a collective runs, its channels hold multiprocessors and its bytes pass through device memory. A matrix product
that is laid out for all multiprocessors then takes a second wave; anything else is bound by memory and gets the
bandwidth that is left. A trace shows both: of kernels that do the same work some run beside a collective and some
alone. Where there is no such trace, all that is said is a range, from no contention to that of a model with two
parameters:

- a product beside a collective nearly doubles (a 132-block product beside a 24-block all-gather: NVIDIA developer
  forum, thread 337991);
- each byte on the bus is read from and written to device memory once (two), or read, added and written (three).

The form of the model was chosen with the measurements of two jobs in view (`benchmarks/contention.py`): products 1.85
on 4 × A100, 2.08 on 4 × H100, the rest 1.37 and 1.33; it says 2, and 1.43 and 1.28.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pgle.costs.estimate.products import is_product
from pgle.costs.fit.launch import execution_rows
from pgle.costs.profile.value import Cost, Profile, module_records
from pgle.trace.intervals import covered, union
from pgle.trace.table import Trace
from pgle.xla.hardware import Hardware
from pgle.xla.hlo.module import Instruction, Module

PRODUCT_SLOWDOWN = 2.0
MEMORY_BYTES_PER_BUS_BYTE = 2.0

BESIDE = 0.9
"""A launch that spends this share of its time beside collectives counts as beside them; one that spends none, alone."""

MIN_ALONE, MIN_SAMPLES = 3, 5
"""Fewer launches of the same work alone, or fewer beside collectives of all work of a kind, say nothing."""

LITTLE = 0.01  # instructions less than this beside collectives are taken as alone
MAX_EXECUTIONS = 64  # executions looked at, over all devices; more add nothing to thousands of launches


class Factors(NamedTuple):
    """How many times as long a kernel takes beside a collective."""

    product: float  # matrix products, convolutions and attention
    other: float  # every other kernel

    def of(self, *, product: bool) -> float:
        """That of one kind."""
        return self.product if product else self.other


NONE = Factors(1.0, 1.0)


@dataclass(frozen=True, slots=True)
class Slowdown:
    """What is known of one factor."""

    likely: float  # best guess
    # low, high: its range; of a measured one half of the time lies within
    low: float
    high: float
    samples: int = 0  # launches beside collectives that it stands on; 0: it is the model's


@dataclass(frozen=True)
class Contention:
    """How kernels and collectives slow each other."""

    product: Slowdown  # matrix products, convolutions and attention
    other: Slowdown  # every other kernel
    # by instruction, the share of its time that it ran beside collectives where its cost was measured
    beside: Mapping[str, float] = field(default_factory=dict)

    @property
    def samples(self) -> int:
        """Launches that it stands on; 0: the model alone."""
        return self.product.samples + self.other.samples

    @property
    def likely(self) -> Factors:
        """The best guess."""
        return Factors(self.product.likely, self.other.likely)

    def at(self, share: float) -> Factors:
        """The factors that far up their ranges, 0 to 1."""
        product, other = (item.low + share * (item.high - item.low) for item in (self.product, self.other))
        return Factors(product, other)

    def alone(self, module: Module, costs: Mapping[str, Cost], factors: Factors) -> Mapping[str, Cost]:
        """Costs as they are with no collective beside them; those not known to have been beside one stay."""
        found = dict(costs)
        for name, share in self.beside.items():
            cost, item = costs.get(name), module.instructions.get(name)
            if cost is None or item is None:
                continue
            part = 1 - share * (1 - 1 / factors.of(product=is_product(module, item)))
            slowest_us = None if cost.slowest_us is None else cost.slowest_us * part
            found[name] = cost._replace(cost_us=cost.cost_us * part, slowest_us=slowest_us)
        return found


def contention_on(hardware: Hardware) -> Contention:
    """The model's on a GPU: from none to all of it, none being the guess."""
    share = MEMORY_BYTES_PER_BUS_BYTE * hardware.nvlink_gb_s / hardware.memory_gb_s
    other = 1.0 / (1.0 - min(share, 0.75))
    return Contention(Slowdown(1.0, 1.0, PRODUCT_SLOWDOWN), Slowdown(1.0, 1.0, other))


def contention_of(profile: Profile, module: str, hardware: Hardware) -> Contention:
    """What the sidecar of a profile says was measured of a module; where it says nothing, the model's."""
    model = contention_on(hardware)
    for item in module_records(profile.provenance):
        found = item.get("contention") if item.get("name") == module else None
        if found:
            try:
                product, other = (_slowdown(found[kind]) for kind in ("product", "other"))
                shares = {str(name): min(max(float(share), 0.0), 1.0) for name, share in found["beside"].items()}
            except (KeyError, TypeError, ValueError, AttributeError):  # of another release
                return model
            return Contention(product or model.product, other or model.other, shares)
    return model


def as_if_alone(profile: Profile) -> Profile:
    """A profile whose costs are good for schedules of any names: nothing is known to have run beside collectives."""
    records = [
        {**item, "contention": {**item["contention"], "beside": {}}} if item.get("contention") else item
        for item in module_records(profile.provenance)
    ]
    return replace(profile, provenance={**profile.provenance, "modules": records}) if records else profile


def _slowdown(record: Mapping[str, float]) -> Slowdown | None:
    """From a sidecar; None where nothing was measured."""
    likely, low, high = (float(record[name]) for name in ("likely", "low", "high"))
    found = Slowdown(likely, low, high, int(record["samples"]))
    if found.samples == 0:
        return None
    if not 1 <= found.low <= found.likely <= found.high < math.inf or found.samples < 0:
        raise ValueError(f"no slowdown: {found}")
    return found


def measure_contention(
    trace: Trace,
    index: int,
    kept: npt.NDArray[np.bool_],
    module: Module,
    names: Sequence[str],
    owners: Sequence[str],
    target: npt.NDArray[np.int32],
    collective: npt.NDArray[np.bool_],
) -> Contention | None:
    """How much longer kernels took beside a collective than the same work alone, in the kept executions of a program.

    Args:
        trace: n activities ordered by (device, start).
        index: of the program, into `trace.modules`.
        kept: bool[executions], True for the executions to use.
        module: the program's HLO, which says what is the same work.
        names: under which costs are filed.
        owners: by name, the instruction of `module` whose time it is.
        target: int32[len(trace.instructions)], index into `names`; -1: no cost of this program.
        collective: bool[len(names)].

    Returns:
        None where no collective ran beside anything. A kind with fewer than `MIN_SAMPLES` samples has none.
    """
    executions = execution_rows(trace, index, kept, MAX_EXECUTIONS)
    parts = [_launches(trace, rows, target, collective) for rows in executions]
    if not parts:
        return None
    code, time_us, share = (np.concatenate(column) for column in zip(*parts, strict=True))
    if not (share > 0).any():
        return None
    items = [module.instructions.get(name) for name in owners]
    total = np.bincount(code, weights=time_us, minlength=len(owners))
    together = np.bincount(code, weights=time_us * share, minlength=len(owners)) / np.maximum(total, 1e-9)
    kinds = [item is not None and is_product(module, item) for item in items]
    factors = _Twins(module, items, code, time_us, share)
    return Contention(
        product=factors.slowdown(kinds),
        other=factors.slowdown([not kind for kind in kinds]),
        beside={names[at]: round(float(together[at]), 2) for at in np.flatnonzero(together >= LITTLE).tolist()},
    )


def _launches(
    trace: Trace, rows: npt.NDArray[np.int64], target: npt.NDArray[np.int32], collective: npt.NDArray[np.bool_]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Every launch but those of collectives, in one execution on one device: owner, microseconds, share beside one."""
    rows = rows[target[trace.instruction[rows]] >= 0]
    code = target[trace.instruction[rows]].astype(np.int64)
    start, instance = trace.start_ns[rows], trace.instance[rows].astype(np.int64)
    end = start + trace.duration_ns[rows]
    communicates = collective[code]
    beside = covered(union(start[communicates], end[communicates]), start, end)
    code, instance, beside = code[~communicates], instance[~communicates], beside[~communicates]
    time = (end - start)[~communicates].astype(np.float64)
    if not len(code):
        return code, time, time
    order = np.lexsort((instance, code))
    code, instance, beside, time = code[order], instance[order], beside[order], time[order]
    new = np.append(True, (np.diff(code) != 0) | (np.diff(instance) != 0) | (instance[1:] < 0))
    first = np.flatnonzero(new)
    time, beside = np.add.reduceat(time, first), np.add.reduceat(beside, first)
    return code[first], time / 1e3, beside / np.maximum(time, 1.0)


class _Twins:
    """Launches beside collectives with what the same work takes alone."""

    def __init__(
        self,
        module: Module,
        items: Sequence[Instruction | None],
        code: npt.NDArray[np.int64],
        time_us: npt.NDArray[np.float64],
        share: npt.NDArray[np.float64],
    ) -> None:
        works: dict[Hashable, int] = {}
        of = np.array(
            [-1 if item is None else works.setdefault(module.work(item), len(works)) for item in items] or [-1]
        )
        alone: dict[int, list[float]] = defaultdict(list)
        is_alone = (share == 0) & (of[code] >= 0)
        for work, time in zip(of[code[is_alone]].tolist(), time_us[is_alone].tolist(), strict=True):
            alone[work].append(time)
        typical = np.full(max(len(works), 1), np.nan)
        for work, times in alone.items():
            if len(times) >= MIN_ALONE:
                typical[work] = np.sort(times)[len(times) // 2]
        beside = (share >= BESIDE) & (of[code] >= 0)
        beside[beside] &= typical[of[code[beside]]] > 0
        self.code, self.time_us, self.alone_us = code[beside], time_us[beside], typical[of[code[beside]]]

    def slowdown(self, chosen: Sequence[bool]) -> Slowdown:
        """Time beside over time alone, of all launches of some instructions together; no less than 1."""
        here = np.array(chosen or [False], dtype=bool)[self.code]
        time, alone = self.time_us[here], self.alone_us[here]
        if len(time) < MIN_SAMPLES:
            return Slowdown(1.0, 1.0, 1.0)
        ratio = time / alone
        order = np.argsort(ratio)
        at = np.searchsorted(np.cumsum(alone[order]) / alone.sum(), (0.25, 0.75))
        low, high = (max(float(ratio[order[min(place, len(order) - 1)]]), 1.0) for place in at)
        likely = max(float(time.sum() / alone.sum()), 1.0)
        return Slowdown(likely, min(low, likely), max(high, likely), len(time))
