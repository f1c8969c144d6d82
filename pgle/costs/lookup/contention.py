"""Contention: how much longer a kernel takes while a collective runs.

A collective's channels hold multiprocessors, and its bytes pass through device memory. A trace shows what that costs:
of kernels that do the same work, some run during a collective and some alone. Without such a trace the figures of two
real jobs are assumed (`ASSUMED`; `benchmarks/contention.py` prints them for any trace). Either way the range is wide:
from no contention to twice the slowdown.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pgle.costs.estimate.products import is_product
from pgle.costs.lookup.launch import execution_rows
from pgle.costs.profile.value import Cost, Profile, module_records
from pgle.trace.intervals import covered, union
from pgle.trace.table import Trace
from pgle.xla.hlo.module import Instruction, Module

BESIDE = 0.9
"""A launch that overlaps collectives for this share of its time counts as overlapped; without any overlap, as alone."""

MIN_ALONE, MIN_SAMPLES = 3, 5
"""With fewer launches of the same work alone, or fewer overlapped launches of a kind, nothing is derived."""

LITTLE = 0.01  # instructions with less overlap than this count as alone
MAX_EXECUTIONS = 64  # executions looked at, over all devices; more add nothing to thousands of launches


class Factors(NamedTuple):
    """How many times as long a kernel takes while a collective runs."""

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
    low: float  # quartile of the launches; of an assumed one the lower of the two jobs
    high: float
    samples: int = 0  # launches during collectives that it was measured on; 0: assumed


UNMEASURED = Slowdown(1.0, 1.0, 1.0)


@dataclass(frozen=True)
class Contention:
    """How collectives slow kernels."""

    product: Slowdown  # matrix products, convolutions and attention
    other: Slowdown  # every other kernel
    # By instruction, the share of its time that it ran during collectives when its cost was measured. None: unknown.
    beside: Mapping[str, float] | None = None

    @property
    def samples(self) -> int:
        """Launches that it was measured on; 0: assumed."""
        return self.product.samples + self.other.samples

    @property
    def likely(self) -> Factors:
        """The best guess."""
        return self.at(1)

    def at(self, times: float) -> Factors:
        """The factors at so many times the likely slowdown: 0 is no contention, 2 the end of its range."""
        return Factors(1 + times * (self.product.likely - 1), 1 + times * (self.other.likely - 1))

    def alone(self, module: Module, costs: Mapping[str, Cost], factors: Factors) -> Mapping[str, Cost]:
        """Costs without any collective running; costs that are not in `beside` stay."""
        return {name: self.alone_cost(module, cost, name, factors) for name, cost in costs.items()}

    def alone_cost(self, module: Module, cost: Cost, name: str, factors: Factors) -> Cost:
        """One of `alone`."""
        share, item = (self.beside or {}).get(name), module.instructions.get(name)
        if share is None or item is None:
            return cost
        part = 1 - share * (1 - 1 / factors.of(product=is_product(module, item)))
        slowest_us = None if cost.slowest_us is None else cost.slowest_us * part
        return cost._replace(cost_us=cost.cost_us * part, slowest_us=slowest_us)


ASSUMED = Contention(product=Slowdown(1.96, 1.85, 2.08), other=Slowdown(1.34, 1.34, 1.35))
"""The mean of two real jobs, for every GPU: 4 × A100 (Pax, testdata/pax_fsdp4) 1.85 and 1.35, 4 × H100 (MaxText) 2.08
and 1.34. Each predicts the other's step in docs/evidence/simulator.md; no third job has been measured."""


def contention_of(profile: Profile, module: str) -> Contention:
    """What the sidecar of a profile says of a module; factors that it lacks are `ASSUMED`."""
    for item in module_records(profile.provenance):
        if item.get("name") != module or "contention" not in item:
            continue
        found = item["contention"]
        if found is None:  # no kernel ran during a collective, if HLO says which activity is a collective
            return replace(ASSUMED, beside={} if item.get("hlo") else None)
        try:
            product, other = (_slowdown(found[kind]) for kind in ("product", "other"))
            shares = {str(name): min(max(float(share), 0.0), 1.0) for name, share in found["beside"].items()}
        except (KeyError, TypeError, ValueError, AttributeError):  # of another release
            return ASSUMED
        return Contention(product or ASSUMED.product, other or ASSUMED.other, shares)
    return ASSUMED


def as_if_alone(profile: Profile, module: Module) -> Profile:
    """A profile for schedules of other names. Its costs are times of kernels alone, as far as known.

    Args:
        profile: of `module`.
        module: the instructions that were measured.
    """
    found = contention_of(profile, module.name)
    known = {"hlo": True, "contention": asdict(replace(found, beside={}))}
    records = [item for item in module_records(profile.provenance) if item.get("name") == module.name] or [{}]
    return replace(
        profile,
        costs=tuple(found.alone_cost(module, cost, cost.name, found.likely) for cost in profile.costs),
        provenance={**profile.provenance, "modules": [{**item, "name": module.name, **known} for item in records]},
    )


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
    """How much longer kernels took while a collective ran than the same work alone, in a program's kept executions.

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
        None if no collective overlapped a kernel. A kind with fewer than `MIN_SAMPLES` samples has none.
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
    """Every launch except collectives, in one execution on one device: owner, microseconds, share overlapped by one."""
    rows = rows[target[trace.instruction[rows]] >= 0]
    code = target[trace.instruction[rows]].astype(np.int64)
    start, instance = trace.start_ns[rows], trace.instance[rows].astype(np.int64)
    end = start + trace.duration_ns[rows]
    communicates = collective[code]
    overlapped = covered(union(start[communicates], end[communicates]), start, end)
    code, instance, overlapped = code[~communicates], instance[~communicates], overlapped[~communicates]
    time = (end - start)[~communicates].astype(np.float64)
    if not len(code):
        return code, time, time
    order = np.lexsort((instance, code))
    code, instance, overlapped, time = code[order], instance[order], overlapped[order], time[order]
    new = np.append(True, (np.diff(code) != 0) | (np.diff(instance) != 0) | (instance[1:] < 0))
    first = np.flatnonzero(new)
    time, overlapped = np.add.reduceat(time, first), np.add.reduceat(overlapped, first)
    return code[first], time / 1e3, overlapped / np.maximum(time, 1.0)


class _Twins:
    """Launches that overlap collectives, with the time of the same work alone."""

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
        overlapped = (share >= BESIDE) & (of[code] >= 0)
        overlapped[overlapped] &= typical[of[code[overlapped]]] > 0
        self.code, self.time_us, self.alone_us = code[overlapped], time_us[overlapped], typical[of[code[overlapped]]]

    def slowdown(self, chosen: Sequence[bool]) -> Slowdown:
        """Overlapped time over time alone, of all launches of some instructions together; at least 1."""
        here = np.array(chosen or [False], dtype=bool)[self.code]
        time, alone = self.time_us[here], self.alone_us[here]
        if len(time) < MIN_SAMPLES:
            return UNMEASURED
        ratio = time / alone
        order = np.argsort(ratio)
        at = np.searchsorted(np.cumsum(alone[order]) / alone.sum(), (0.25, 0.75))
        low, high = (max(float(ratio[order[min(place, len(order) - 1)]]), 1.0) for place in at)
        likely = max(float(time.sum() / alone.sum()), 1.0)
        return Slowdown(likely, min(low, likely), max(high, likely), len(time))
