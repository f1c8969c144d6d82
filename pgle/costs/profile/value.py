"""A cost profile as a value: what each instruction costs, how well that is known, and what XLA takes of it.

A name is ``FINGERPRINT::NAME`` or a bare name; a name with any other ``::`` matches nothing. XLA filters by
fingerprint, merges equal names and cuts ``.remat`` off. Source: ``FilterWithFingerprint`` in openxla/xla
``xla/service/gpu/gpu_hlo_schedule.cc`` and the table of ``xla/service/profile_guided_latency_estimator.cc``; checked
against the compiler in `tests/costs/test_profile_against_xla.py`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache
from itertools import islice
from typing import Any, NamedTuple, cast

from pgle.errors import some
from pgle.xla.collectives import guess_kind

Entry = tuple[str, float]  # name as written in a file, with any ``fingerprint::``, and µs
_REMAT_SUFFIX = re.compile(r"\.remat[0-9]*\Z")


def split_name(written: str) -> tuple[str, str]:
    """Fingerprint (empty: every module) and instruction name; any other ``::`` than one in the middle stays in it."""
    if "::" not in written:
        return "", written
    fingerprint, between, name = written.partition("::")
    return (fingerprint, name) if between and fingerprint and "::" not in name else ("", written)


def join_name(fingerprint: str, name: str) -> str:
    """The inverse of `split_name`."""
    return f"{fingerprint}::{name}" if fingerprint else name


def strip_remat(name: str) -> str:
    """The name without a ``.remat`` or ``.remat7`` at its end, which marks a copy made by rematerialisation."""
    return _REMAT_SUFFIX.sub("", name) if has_remat(name) else name


def has_remat(name: str) -> bool:
    """Whether a name of a profile makes XLA strip all its names and average equal ones: it need not be at the end."""
    return ".remat" in name


MAX_COST_US = 1e15  # thirty years; a longer cost is no measurement, and sums of such costs are no numbers.


class Origin(StrEnum):
    """Where a cost comes from; anything but `MEASURED` is labelled in every output."""

    MEASURED = "measured"
    UNKNOWN = "unknown"  # read from a profile without sidecar
    SAME_SHAPE = "same-shape"  # taken from measured instructions of the same opcode and shapes
    ESTIMATED = "estimated"  # from the roofline and the communication model of a target
    SIMULATED = "simulated"  # measured on the simulated GPU


class CostKind(StrEnum):
    """What the scheduler does with a cost."""

    COMPUTE = "compute"
    COLLECTIVE = "collective"
    COPY = "copy"
    LOOP = "loop"
    UNKNOWN = ""


@lru_cache(maxsize=1 << 14)
def _guessed(name: str) -> CostKind:
    return CostKind(guess_kind(name))


DIGITS = "0123456789"  # the number behind the last dot of a name says nothing of the kind; without it few names remain


def likely_kind(name: str) -> CostKind:
    """What an instruction of this name does, by the usual names."""
    stem = name.rstrip(DIGITS)
    return _guessed(f"{stem}1" if stem.endswith(".") else name)


class Cost(NamedTuple):
    """The cost of one instruction. A tuple: the million of a large profile are made in a quarter of the time."""

    name: str  # the instruction's name when LHS ran, without a fingerprint
    cost_us: float  # microseconds per execution of the instruction
    fingerprint: str = ""  # the module it is meant for; empty: every module
    kind: CostKind = CostKind.UNKNOWN  # compute, collective, copy or loop
    opcode: str = ""  # HLO opcode (of a collective: the wrapped one, ``all-gather``); empty where unknown
    shape: str = ""  # result shape as text (of a collective: of the wrapped op); empty where unknown
    samples: int = 0  # executions in the statistic; 0 if unknown
    min_us: float = 0.0  # smallest sample
    max_us: float = 0.0  # largest sample
    spread: float = 0.0  # (p90 - p10) / median of the samples; 0 where there is one
    # of compute, on the rank for which the others wait: the cost and what `rank_skew_us` adds; None where ranks were
    # not compared. The cost given to XLA stays the typical one.
    slowest_us: float | None = None
    trace_name: str = ""  # the name in the trace where it differs from `name`; empty where it does not
    origin: Origin = Origin.MEASURED  # measured or filled in

    @property
    def full_name(self) -> str:
        """The name as a profile file spells it: ``fingerprint::name``, or the bare name."""
        return join_name(self.fingerprint, self.name)

    @property
    def traced(self) -> str:
        """The name in the trace."""
        return self.trace_name or self.name

    @property
    def is_valid(self) -> bool:
        """Whether the cost is a time: 0 to `MAX_COST_US`. XLA takes any number, and its schedule then means nothing."""
        return 0 <= self.cost_us <= MAX_COST_US  # NaN is neither

    @property
    def skew_us(self) -> float | None:
        """How much longer it takes on the slowest rank than the cost says; None where that is unknown."""
        return None if self.slowest_us is None else self.slowest_us - self.cost_us

    @property
    def likely_kind(self) -> CostKind:
        """The kind; where it is unknown, a guess by name."""
        return self.kind or likely_kind(self.name)


def most_skewed(costs: Sequence[Cost]) -> tuple[Cost, ...]:
    """The five costs that take most longer on the slowest rank, the largest first."""
    slower = [cost for cost in costs if cost.skew_us is not None and cost.skew_us > 0]
    return tuple(sorted(slower, key=lambda cost: (-(cost.skew_us or 0.0), cost.full_name))[:5])


@dataclass(frozen=True)
class Profile:
    """Costs of one or several modules."""

    costs: tuple[Cost, ...]  # in file order. XLA takes the last of equal names (`effective` says which).
    # what the sidecar records: inputs, statistics, versions, flags
    provenance: Mapping[str, object] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()  # what the user should know, one line each

    def __len__(self) -> int:
        return len(self.costs)


def module_records(provenance: Mapping[str, object]) -> tuple[Mapping[str, Any], ...]:
    """What the provenance of a profile says of each of its modules, as far as it does."""
    return tuple(cast(Iterable[Mapping[str, Any]], provenance.get("modules", ())))


def effective_costs(profile: Profile, fingerprint: str = "") -> Mapping[str, Cost]:
    """The costs that XLA uses for a module, by instruction name.

    Names with a prefix count only for the module of that fingerprint. Of equal names the last wins; but if any name
    that counts holds ``.remat``, all lose a trailing ``.remat`` or ``.rematN`` and equal ones are averaged.
    """
    return _used([cost for cost in profile.costs if "::" not in cost.name and cost.fingerprint in ("", fingerprint)])


def _used(kept: Sequence[Cost]) -> Mapping[str, Cost]:
    if not _averages(kept):
        return {cost.name: cost for cost in kept}
    return {name: _merged(name, costs, True) for name, costs in _grouped(kept, True).items()}


def effective_entries(profile: Profile) -> tuple[Cost, ...]:
    """Each cost that XLA can use, once: by fingerprint (bare names first), in file order; what it never uses is gone.

    Entries of one fingerprint are merged among themselves; a module uses entries with its fingerprint before bare ones.
    """
    by_module = _by_module(profile.costs)
    return tuple(cost for key in sorted(by_module) for cost in _used(by_module[key]).values())


def _by_module(costs: Iterable[Cost]) -> dict[str, list[Cost]]:
    """The costs that XLA keeps for some module, by fingerprint."""
    kept = [cost for cost in costs if "::" not in cost.name]
    by_module: dict[str, list[Cost]] = {fingerprint: [] for fingerprint in {cost.fingerprint for cost in kept}}
    if len(by_module) == 1:
        return dict.fromkeys(by_module, kept)
    for cost in kept:
        by_module[cost.fingerprint].append(cost)
    return by_module


def _averages(costs: Iterable[Cost]) -> bool:
    return has_remat("\n".join([cost.name for cost in costs]))


def _grouped(costs: Sequence[Cost], averages: bool) -> dict[str, Sequence[Cost]]:
    """Costs by the name that XLA gives them."""
    names = [strip_remat(cost.name) if averages else cost.name for cost in costs]
    alone: dict[str, Sequence[Cost]] = dict(zip(names, zip(costs, strict=True), strict=True))
    if len(alone) == len(names):
        return alone
    groups: dict[str, list[Cost]] = {name: [] for name in alone}
    for name, cost in zip(names, costs, strict=True):
        groups[name].append(cost)
    return {**groups}


def _merged(name: str, costs: Sequence[Cost], averages: bool) -> Cost:
    if len(costs) == 1 or not averages:
        return costs[-1] if costs[-1].name == name else costs[-1]._replace(name=name)
    return costs[-1]._replace(
        name=name,
        cost_us=sum(cost.cost_us for cost in costs) / len(costs),
        samples=sum(cost.samples for cost in costs),
        min_us=min(cost.min_us for cost in costs),
        max_us=max(cost.max_us for cost in costs),
    )


class Fault(StrEnum):
    """What can be odd about a profile that XLA accepts without a word."""

    DUPLICATE = "duplicate"
    REMAT = "remat"
    NOT_FINITE = "not-finite"
    NEGATIVE = "negative"
    HUGE = "huge"
    ZERO = "zero"
    NAME = "name"
    DONE = "done"
    LOOP = "loop"


@dataclass(frozen=True, slots=True)
class Finding:
    """Something in a profile that does not do what it seems to."""

    fault: Fault  # which kind
    name: str  # as the profile spells it
    message: str  # what XLA does with it, one clause
    values_us: tuple[float, ...] = ()  # the costs concerned, in file order; none where it is about the whole profile
    effective_us: float | None = None  # what XLA takes; None where it takes nothing


def profile_findings(profile: Profile) -> tuple[Finding, ...]:
    """What a user should know about a profile before giving it to XLA, in file order within each kind."""
    by_module = _by_module(profile.costs)
    bare = by_module.pop("", [])
    position = {id(cost): number for number, cost in enumerate(profile.costs)} if by_module else {}
    bare_groups: dict[bool, dict[str, Sequence[Cost]]] = {}
    findings: list[Finding] = []
    for fingerprint, own in [("", bare), *sorted(by_module.items())]:
        averages = _averages(own) or _averages(bare)
        if averages not in bare_groups:
            bare_groups[averages] = _grouped(bare, averages)
        groups = _grouped(own, averages) if fingerprint else bare_groups[averages]
        if fingerprint:  # bare names count for the module too, in file order
            for name, costs in groups.items():
                shared = bare_groups[averages].get(name, [])
                groups[name] = sorted([*shared, *costs], key=lambda cost: position[id(cost)])
        findings += _merges(fingerprint, groups, averages)
    for cost in profile.costs:
        if not 0 < cost.cost_us <= MAX_COST_US:
            findings += _value(cost)
    stems = {cost.name.rstrip(DIGITS) for cost in profile.costs}
    usual = {stem for stem in stems if stem.endswith(".") and not [*_name(Cost(f"{stem}1", 0.0))]}
    odd = [cost for cost in profile.costs if cost.name.rstrip(DIGITS) not in usual] if usual != stems else []
    for cost in {cost.full_name: cost for cost in odd}.values():
        findings += _name(cost)
    return tuple(findings)


def _merges(fingerprint: str, groups: Mapping[str, Sequence[Cost]], averages: bool) -> Iterator[Finding]:
    """Several costs that become one for a module; for no fingerprint: the ones that do so for every module."""
    rule = "some name holds .remat, so XLA averages equal names" if averages else "XLA takes the last"
    for name, costs in groups.items():
        if len(costs) == 1:
            continue
        spellings = dict.fromkeys(cost.name for cost in costs)
        same = len(spellings) == 1
        message = f"{len(costs)} costs; {rule}" if same else f"XLA averages {some(spellings, 4)}"
        values = tuple(cost.cost_us for cost in costs)
        spelled = join_name(fingerprint, name)
        effective_us = _merged(name, costs, averages).cost_us
        yield Finding(Fault.DUPLICATE if same else Fault.REMAT, spelled, message, values, effective_us)
    if not averages:
        return
    count = sum(has_remat(cost.name) and cost.fingerprint == fingerprint for costs in groups.values() for cost in costs)
    if count:
        what = f".remat in {count} of the names: XLA cuts a trailing .remat or .rematN off all and averages equal ones"
        yield Finding(Fault.REMAT, "", what)


_VALUES: tuple[tuple[Callable[[float], bool], Fault, str], ...] = (
    (lambda us: not math.isfinite(us), Fault.NOT_FINITE, "cost is {}; XLA uses it, and its schedule means nothing"),
    (lambda us: us < 0, Fault.NEGATIVE, "negative cost; XLA uses it as it is"),
    (lambda us: us == 0, Fault.ZERO, "cost is 0; XLA takes it for free, not for unknown"),
    (lambda us: us > MAX_COST_US, Fault.HUGE, "longer than 30 years; XLA uses it, and its schedule means nothing"),
)
_NAMES: tuple[tuple[Callable[[Cost], object], Fault, str], ...] = (
    (lambda cost: "::" in cost.name, Fault.NAME, "not FINGERPRINT::NAME; XLA drops it"),
    (lambda cost: not cost.name, Fault.NAME, "has no name; matches nothing"),
    (
        lambda cost: re.search(r"^%|\s", cost.name),
        Fault.NAME,
        "has % or a blank, which instruction names never have; matches nothing",
    ),
    (
        lambda cost: re.fullmatch(r".+-done(\.\d+)*", cost.name),
        Fault.DONE,
        "cost of a -done; XLA looks up only the start of a collective, and takes other dones for that long besides",
    ),
    (
        lambda cost: not cost.kind and cost.likely_kind == CostKind.LOOP,  # what was measured as one is as it should be
        Fault.LOOP,
        "whole loop; XLA uses it for the loop, and adds the costs in its body",
    ),
)
"""Oddities of a value and of a name: the first that holds counts."""


def _value(cost: Cost) -> Iterator[Finding]:
    found = (item for item in _VALUES if "::" not in cost.name and item[0](cost.cost_us))
    for _, fault, what in islice(found, 1):
        yield Finding(fault, cost.full_name, what.format(cost.cost_us), (cost.cost_us,), cost.cost_us)


def _name(cost: Cost) -> Iterator[Finding]:
    for _, fault, what in islice((item for item in _NAMES if item[0](cost)), 1):
        effective = cost.cost_us if fault is Fault.LOOP else None
        yield Finding(fault, cost.full_name, what, (cost.cost_us,), effective)
