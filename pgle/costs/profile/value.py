"""A cost profile as a value: the cost of each instruction, the costs that XLA uses, sums, and
differences.

A name is ``FINGERPRINT::NAME`` or a bare name. A name with any other ``::`` matches nothing. XLA
filters by fingerprint, merges equal names and removes ``.remat``. Sources:
``FilterWithFingerprint`` in openxla/xla ``xla/service/gpu/gpu_hlo_schedule.cc`` and the table of
``xla/service/profile_guided_latency_estimator.cc``. `tests/costs/test_profile_against_xla.py`
compares them with the compiler.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache
from heapq import nsmallest
from itertools import chain
from typing import Annotated, NamedTuple, cast

from msgspec import Meta

from pgle.errors import some
from pgle.files import Json
from pgle.next import SHOW

# name as written in a file, with its ``fingerprint::`` if any, and µs
Entry = tuple[str, float]
_REMAT_SUFFIX = re.compile(r"\.remat[0-9]*\Z")


def split_name(written: str) -> tuple[str, str]:
    """Split a name into fingerprint and instruction name. The fingerprint is empty if the cost is
    for every module.

    A name splits only if it is ``FINGERPRINT::NAME`` and has no other ``::``.
    """
    if "::" not in written:
        return "", written
    fingerprint, between, name = written.partition("::")
    return (
        (fingerprint, name)
        if between and fingerprint and "::" not in name
        else ("", written)
    )


def join_name(fingerprint: str, name: str) -> str:
    """The inverse of `split_name`."""
    return f"{fingerprint}::{name}" if fingerprint else name


def strip_remat(name: str) -> str:
    """Remove a final ``.remat`` or ``.remat7``, which marks a copy made by rematerialisation."""
    return _REMAT_SUFFIX.sub("", name) if has_remat(name) else name


def has_remat(name: str) -> bool:
    """Whether a name, if it is in a profile, makes XLA strip all names and average equal ones.

    ``.remat`` has this effect anywhere in the name.
    """
    return ".remat" in name


# Thirty years. A longer cost cannot be measured, and sums of such costs mean nothing.
MAX_COST_US = 1e15
# microseconds, in the range that msgspec accepts
Time = Annotated[float, Meta(ge=0, le=MAX_COST_US)]


class Origin(StrEnum):
    """Where a cost comes from. Every output labels all origins except `MEASURED`."""

    MEASURED = "measured"
    UNKNOWN = "unknown"  # read from a profile without a sidecar
    # taken from measured instructions of the same opcode and shapes
    SAME_SHAPE = "same-shape"
    ESTIMATED = "estimated"  # from the roofline and the communication model of a target
    SIMULATED = "simulated"  # measured on the simulated GPU

    @property
    def word(self) -> str:
        """The word for costs of this origin: ``measured``, ``simulated`` or ``estimated``.

        Costs of a profile without a sidecar are called measured.
        """
        if self in (Origin.MEASURED, Origin.UNKNOWN):
            return "measured"
        return "simulated" if self is Origin.SIMULATED else "estimated"


def costs_are(words: Iterable[str]) -> str:
    """Return the words for costs of several origins together, such as ``simulated and estimated``.

    Args:
        words: results of `Origin.word` or of this function.
    """
    found = " and ".join(words).split(" and ")
    named = ("measured", "simulated", "estimated")
    return " and ".join(word for word in named if word in found)


class CostKind(StrEnum):
    """What the scheduler does with a cost."""

    COMPUTE = "compute"
    COLLECTIVE = "collective"
    COPY = "copy"
    LOOP = "loop"
    UNKNOWN = ""


@lru_cache(maxsize=1 << 14)
def _guessed(name: str) -> CostKind:
    # not needed if a sidecar states the kinds
    from pgle.xla.guessed_kinds import guess_kind

    return CostKind(guess_kind(name))


# The number after the last dot does not tell the kind. Without it few distinct names remain to
# cache.
DIGITS = "0123456789"


def likely_kind(name: str) -> CostKind:
    """Guess from a name what the instruction does."""
    stem = name.rstrip(DIGITS)
    return _guessed(f"{stem}1" if stem.endswith(".") else name)


class Cost(NamedTuple):
    """The cost of one instruction. A tuple, because a large profile has a million, and tuples take
    a quarter of the time to make.
    """

    name: str  # name of the instruction when LHS ran, without a fingerprint
    cost_us: float  # microseconds per execution of the instruction
    # fingerprint of the module that it is for; empty means every module
    fingerprint: str = ""
    kind: CostKind = CostKind.UNKNOWN  # compute, collective, copy or loop
    # HLO opcode (for a collective, the wrapped one: ``all-gather``); empty if unknown
    opcode: str = ""
    # result shape as text (for a collective, of the wrapped operation); empty if unknown
    shape: str = ""
    samples: int = 0  # number of samples in the statistic; 0 if unknown
    min_us: float = 0.0  # smallest sample, in µs
    max_us: float = 0.0  # largest sample, in µs
    spread: float = 0.0  # (p90 - p10) / median of the samples; 0 for one sample
    # for compute, the cost on the rank that the others wait for: `cost_us` plus what `rank_skew_us`
    # adds. None if ranks were not compared. XLA still gets the typical cost.
    slowest_us: float | None = None
    trace_name: str = ""  # name in the trace if it differs from `name`, else empty
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
        """Whether the cost is a time, 0 to `MAX_COST_US`. XLA uses any number, and its schedule
        then means nothing.
        """
        return 0 <= self.cost_us <= MAX_COST_US  # False for NaN

    @property
    def skew_us(self) -> float | None:
        """Extra µs on the slowest rank, compared with the cost; None if unknown."""
        return None if self.slowest_us is None else self.slowest_us - self.cost_us

    @property
    def likely_kind(self) -> CostKind:
        """The kind; a guess from the name if it is unknown."""
        return self.kind or likely_kind(self.name)


def most_skewed(costs: Sequence[Cost]) -> tuple[Cost, ...]:
    """Return the five costs with the most extra time on the slowest rank, the largest first."""
    slower = [cost for cost in costs if cost.skew_us is not None and cost.skew_us > 0]
    return tuple(
        sorted(slower, key=lambda cost: (-(cost.skew_us or 0.0), cost.full_name))[:5]
    )


@dataclass(frozen=True)
class Profile:
    """Costs of one or several modules."""

    # in file order. Of equal names XLA takes the last, or averages them (see `effective_costs`).
    costs: tuple[Cost, ...]
    # what the sidecar records: inputs, statistics, versions, flags
    provenance: Mapping[str, object] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()  # warnings for the user, one line each

    def __len__(self) -> int:
        return len(self.costs)


def module_records(provenance: Mapping[str, object]) -> tuple[Json, ...]:
    """Return the provenance records of a profile's modules; empty if there are none."""
    return tuple(cast(Iterable[Json], provenance.get("modules", ())))


def effective_costs(profile: Profile, fingerprint: str = "") -> Mapping[str, Cost]:
    """Return the costs that XLA uses for a module, by instruction name.

    A name with a fingerprint counts only for the module of that fingerprint. XLA takes the last of
    equal names. But if any name that counts holds ``.remat``, XLA removes a final ``.remat`` or
    ``.rematN`` from all names, and averages equal ones.
    """
    return _used(
        [
            cost
            for cost in profile.costs
            if "::" not in cost.name and cost.fingerprint in ("", fingerprint)
        ]
    )


def _used(kept: Sequence[Cost]) -> Mapping[str, Cost]:
    if not _averages(kept):
        return {cost.name: cost for cost in kept}
    return {
        name: _merged(name, costs, True) for name, costs in _grouped(kept, True).items()
    }


def effective_entries(profile: Profile) -> tuple[Cost, ...]:
    """Return each cost that XLA can use, once: bare names first, then by fingerprint, in file
    order.

    Costs that XLA never uses are left out. Entries of one fingerprint are merged among themselves.
    A module uses entries with its fingerprint as well as bare ones.
    """
    found: list[Cost] = []
    for _, costs in sorted(_by_module(profile.costs).items()):
        found += _used(costs).values()
    return tuple(found)


def _by_module(costs: Iterable[Cost]) -> dict[str, list[Cost]]:
    """Return the costs that XLA can use for some module, by fingerprint."""
    kept = [cost for cost in costs if "::" not in cost.name]
    by_module: dict[str, list[Cost]] = {
        fingerprint: [] for fingerprint in {cost.fingerprint for cost in kept}
    }
    if len(by_module) == 1:
        return dict.fromkeys(by_module, kept)
    for cost in kept:
        by_module[cost.fingerprint].append(cost)
    return by_module


def _averages(costs: Iterable[Cost]) -> bool:
    return has_remat("\n".join([cost.name for cost in costs]))


def _grouped(costs: Sequence[Cost], averages: bool) -> dict[str, Sequence[Cost]]:
    """Group costs by the name under which XLA stores them."""
    names = [cost.name for cost in costs]
    if averages:
        names = list(map(strip_remat, names))
    each_alone = zip(costs, strict=True)
    alone: dict[str, Sequence[Cost]] = dict(zip(names, each_alone, strict=True))
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
    """A kind of oddity in a profile that XLA accepts without a message."""

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
class Oddity:
    """An entry or a property of a profile with an effect that its reader does not expect."""

    fault: Fault  # which kind
    # the name as the profile spells it; empty if the whole profile is concerned
    name: str
    message: str  # what XLA does, one clause
    # the costs concerned, in file order; empty if the whole profile is concerned
    values_us: tuple[float, ...] = ()
    # the cost that XLA uses; None if it uses none
    effective_us: float | None = None


def profile_findings(profile: Profile) -> tuple[Oddity, ...]:
    """Return the oddities that a user should know before giving a profile to XLA.

    Within each kind they are in file order.
    """
    by_module = _by_module(profile.costs)
    bare = by_module.pop("", [])
    position = (
        {id(cost): number for number, cost in enumerate(profile.costs)}
        if by_module
        else {}
    )
    bare_groups: dict[bool, dict[str, Sequence[Cost]]] = {}
    findings: list[Oddity] = []
    for fingerprint, own in [("", bare), *sorted(by_module.items())]:
        averages = _averages(own) or _averages(bare)
        if averages not in bare_groups:
            bare_groups[averages] = _grouped(bare, averages)
        groups = _grouped(own, averages) if fingerprint else bare_groups[averages]
        if fingerprint:  # bare names count for the module, too, in file order
            for name, costs in groups.items():
                shared = bare_groups[averages].get(name, [])
                groups[name] = sorted(
                    [*shared, *costs], key=lambda cost: position[id(cost)]
                )
        findings += _merges(fingerprint, groups, averages)
    for cost in profile.costs:
        if not 0 < cost.cost_us <= MAX_COST_US:
            findings += _value(cost)
    stems = {cost.name.rstrip(DIGITS) for cost in profile.costs}
    usual = {
        stem
        for stem in stems
        if stem.endswith(".") and not [*_name(Cost(f"{stem}1", 0.0))]
    }
    if usual != stems:
        odd = (cost for cost in profile.costs if cost.name.rstrip(DIGITS) not in usual)
        for cost in {cost.full_name: cost for cost in odd}.values():
            findings += _name(cost)
    return tuple(findings)


def _merges(
    fingerprint: str, groups: Mapping[str, Sequence[Cost]], averages: bool
) -> Iterator[Oddity]:
    """Yield the names for which XLA makes one cost of several.

    An empty fingerprint selects the bare names, which count for every module.
    """
    rule = "XLA takes the last"
    if averages:
        rule = "some name holds .remat, so XLA averages equal names"
    for name, costs in groups.items():
        if len(costs) == 1:
            continue
        spellings = dict.fromkeys(cost.name for cost in costs)
        if len(spellings) == 1:
            fault = Fault.DUPLICATE
            message = f"{len(costs)} costs; {rule}"
        else:
            fault = Fault.REMAT
            message = f"XLA averages {some(spellings, 4)}"
        yield Oddity(
            fault,
            join_name(fingerprint, name),
            message,
            values_us=tuple(cost.cost_us for cost in costs),
            effective_us=_merged(name, costs, averages).cost_us,
        )
    if not averages:
        return
    count = 0
    for costs in groups.values():
        own = (cost for cost in costs if cost.fingerprint == fingerprint)
        count += sum(has_remat(cost.name) for cost in own)
    if count:
        what = (
            f".remat in {count} of the names: XLA cuts a trailing .remat or .rematN off all and "
            "averages equal ones"
        )
        yield Oddity(Fault.REMAT, "", what)


_VALUES: tuple[tuple[Callable[[float], bool], Fault, str], ...] = (
    (
        lambda us: not math.isfinite(us),
        Fault.NOT_FINITE,
        "cost is {}; XLA uses it, and its schedule means nothing",
    ),
    (lambda us: us < 0, Fault.NEGATIVE, "negative cost; XLA uses it unchanged"),
    (
        lambda us: us == 0,
        Fault.ZERO,
        "cost is 0; XLA treats the instruction as free, not as unknown",
    ),
    (
        lambda us: us > MAX_COST_US,
        Fault.HUGE,
        "longer than 30 years; XLA uses it, and its schedule means nothing",
    ),
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
        "cost of a -done; of a collective XLA looks up only the start, and it adds the cost of any "
        "other done",
    ),
    (
        lambda cost: (
            not cost.kind and cost.likely_kind == CostKind.LOOP
        ),  # a cost that was measured as a loop is no oddity
        Fault.LOOP,
        "whole loop; XLA uses it for the loop, and adds the costs in its body",
    ),
)
"""Oddities of a value, and of a name. The first one that holds counts."""


def _value(cost: Cost) -> Iterator[Oddity]:
    us = cost.cost_us
    for is_odd, fault, what in _VALUES if "::" not in cost.name else ():
        if is_odd(us):
            yield Oddity(fault, cost.full_name, what.format(us), (us,), us)
            return


def _name(cost: Cost) -> Iterator[Oddity]:
    for is_odd, fault, what in _NAMES:
        if is_odd(cost):
            effective = cost.cost_us if fault is Fault.LOOP else None
            yield Oddity(fault, cost.full_name, what, (cost.cost_us,), effective)
            return


@dataclass(frozen=True, slots=True)
class KindTotal:
    """The sum of the costs of one kind, each instruction executed once."""

    kind: CostKind  # compute, collective, copy or loop
    count: int  # number of instructions
    guessed: int  # how many of `count` have this kind only by a guess from the name
    total_us: float  # sum of the costs
    share: float  # share of the sum over all kinds except loops; 0 for loops


@dataclass(frozen=True)
class Summary:
    """The contents of a profile, as XLA would use it."""

    entries: int  # number of entries in the profile file
    # the usable costs, each once, costliest first, at most as many as requested
    costs: tuple[Cost, ...]
    kinds: tuple[KindTotal, ...]  # totals, costliest first, loops last
    total_us: float  # sum without loops, whose bodies count already
    names: int  # number of usable costs
    origins: Mapping[Origin, int]  # number of usable costs by origin
    modules: tuple[str, ...]  # fingerprints that prefix names
    provenance: Mapping[str, object]  # provenance in the sidecar
    findings: tuple[Oddity, ...]  # oddities: entries that XLA uses in an unexpected way
    warnings: tuple[str, ...]  # one line each
    described: bool  # False if no sidecar states kinds, samples and origins
    # extra µs of compute on the slowest rank, each instruction executed once; None if unknown
    skew_us: float | None = None
    # the costs with the most extra time on the slowest rank
    skewed: tuple[Cost, ...] = ()


def summarise(profile: Profile, *, top: int = 0) -> Summary:
    """Summarise a profile.

    Args:
        top: number of costs to list, the costliest; 0 lists all.
    """
    usable = effective_entries(profile)
    by_kind: dict[CostKind, list[Cost]] = {}
    for cost in usable:
        by_kind.setdefault(cost.likely_kind, []).append(cost)
    not_loops = [costs for kind, costs in by_kind.items() if kind != CostKind.LOOP]
    total_us = math.fsum(map(_known, chain.from_iterable(not_loops)))
    kinds = [_kind_total(kind, costs, total_us) for kind, costs in by_kind.items()]
    kinds.sort(key=lambda item: (item.kind == CostKind.LOOP, -item.total_us))
    costliest = nsmallest(
        top or len(usable), usable, key=lambda cost: (-_known(cost), cost.full_name)
    )
    origins = Counter(cost.origin for cost in usable)
    compared = [cost for cost in usable if cost.slowest_us is not None]
    skew_us = None
    if compared:
        skew_us = math.fsum(cost.skew_us or 0.0 for cost in compared)
    fingerprints = {cost.fingerprint for cost in usable} - {""}
    described = any(cost.kind or cost.origin != Origin.UNKNOWN for cost in usable)
    return Summary(
        entries=len(profile.costs),
        costs=tuple(costliest),
        kinds=tuple(kinds),
        total_us=total_us,
        names=len(usable),
        origins=origins,
        modules=tuple(sorted(fingerprints)),
        provenance=profile.provenance,
        findings=profile_findings(profile),
        warnings=profile.warnings,
        described=described,
        skew_us=skew_us,
        skewed=most_skewed(compared),
    )


def _kind_total(kind: CostKind, costs: Sequence[Cost], total_us: float) -> KindTotal:
    """Sum the costs of one kind.

    Args:
        total_us: the sum over all kinds except loops.
    """
    of_kind_us = math.fsum(map(_known, costs))
    has_share = total_us > 0 and kind != CostKind.LOOP
    return KindTotal(
        kind=kind,
        count=len(costs),
        guessed=sum(not cost.kind for cost in costs),
        total_us=of_kind_us,
        share=of_kind_us / total_us if has_share else 0.0,
    )


def _known(cost: Cost) -> float:
    """Return the cost in µs; 0 if it is not a time. The findings name such costs."""
    return cost.cost_us if cost.is_valid else 0.0


class CostChange(StrEnum):
    """How the cost of a name changed between two profiles."""

    ADDED = "added"
    REMOVED = "removed"
    REPLACED = "replaced"  # another instruction: same name, but another opcode or shape
    CHANGED = "changed"
    NOISE = "noise"  # the cost changed, but within the dispersion of the samples
    SAME = "same"


@dataclass(frozen=True, slots=True)
class Difference:
    """The costs of one name in two profiles."""

    # the name as the newer profile spells it, or the older if the newer lacks it
    name: str
    change: CostChange  # how it changed
    # compute, collective, copy or loop, from the newer profile if it has the name
    kind: CostKind
    kind_is_guess: bool  # True if no sidecar states the kind
    old_us: float | None  # cost in the older profile; None if absent
    new_us: float | None  # cost in the newer profile; None if absent
    # largest change in µs that the dispersion of the samples explains; None if unknown
    noise_us: float | None = None
    was: str = ""  # opcode and shape in the older profile; empty unless replaced
    now: str = ""  # opcode and shape in the newer profile; empty if unknown

    @property
    def delta_us(self) -> float:
        """New minus old, in µs; an absent cost counts as 0."""
        return (self.new_us or 0.0) - (self.old_us or 0.0)

    @property
    def ratio(self) -> float | None:
        """New divided by old; None if either is absent or the old cost is 0."""
        return (
            self.new_us / self.old_us
            if self.old_us and self.new_us is not None
            else None
        )


@dataclass(frozen=True, slots=True)
class Total:
    """The sums of the costs of one kind in two profiles, each instruction executed once."""

    kind: CostKind
    old_us: float
    new_us: float
    old_count: int
    new_count: int


@dataclass(frozen=True)
class ProfileDiff:
    """Two profiles compared."""

    differences: tuple[Difference, ...]  # every name, the largest absolute change first
    # a total per kind that occurs; loops, whose bodies count already, come last
    totals: tuple[Total, ...]
    warnings: tuple[str, ...]  # one line each

    def count(self, change: CostChange) -> int:
        """Return how many names changed in this way."""
        return sum(item.change == change for item in self.differences)


def diff_profiles(old: Profile, new: Profile) -> ProfileDiff:
    """Compare the costs that XLA uses of `old` and of `new`.

    Duplicates are merged. Entries that XLA never uses are left out.
    """
    old_costs, new_costs, warnings = _aligned(
        effective_entries(old), effective_entries(new)
    )
    keys = dict.fromkeys([*new_costs, *old_costs])
    found = [_difference(old_costs.get(key), new_costs.get(key)) for key in keys]
    found.sort(key=_largest_first)
    costs = [*old_costs.values(), *new_costs.values()]
    odd = sum(not _is_time(cost.cost_us) for cost in costs)
    if odd:
        warnings.append(
            f"the totals leave out {odd} costs that are over 30 years or no number; see `{SHOW}`"
        )
    return ProfileDiff(tuple(found), _totals(found), tuple(warnings))


def _largest_first(item: Difference) -> tuple[float, str]:
    """Return a sort key: NaN, which can hide anything, first, then the largest change."""
    change = math.inf if math.isnan(item.delta_us) else abs(item.delta_us)
    return -change, item.name


def _aligned(
    old: Sequence[Cost], new: Sequence[Cost]
) -> tuple[Mapping[tuple[str, str], Cost], Mapping[tuple[str, str], Cost], list[str]]:
    """Return both sides' costs by (fingerprint, name), with warnings.

    If each side is for one module, and the modules differ, costs are matched by name alone.
    """
    sides = (old, new)
    old_modules, new_modules = ({cost.fingerprint for cost in side} for side in sides)
    if old_modules != new_modules and len(old_modules) == len(new_modules) == 1:
        line = (
            "the profiles are for different modules (bare or other fingerprint); compared by "
            "name alone"
        )
        before, after = ({("", cost.name): cost for cost in side} for side in sides)
        return before, after, [line]
    lines = []
    if old_modules != new_modules:
        lines.append(
            "the profiles are not for the same modules; names are compared per fingerprint"
        )
    before, after = (
        {(cost.fingerprint, cost.name): cost for cost in side} for side in sides
    )
    return before, after, lines


def _difference(old: Cost | None, new: Cost | None) -> Difference:
    known = new or old
    assert known is not None
    noise = _noise_us(old, new)
    change = _change(old, new, noise)
    return Difference(
        name=known.full_name,
        change=change,
        kind=known.likely_kind,
        kind_is_guess=not known.kind,
        old_us=old.cost_us if old else None,
        new_us=new.cost_us if new else None,
        noise_us=noise,
        was=_what(old) if old and change is CostChange.REPLACED else "",
        now=_what(new) if new else "",
    )


def _change(old: Cost | None, new: Cost | None, noise_us: float | None) -> CostChange:
    if old is None:
        return CostChange.ADDED
    if new is None:
        return CostChange.REMOVED
    if _replaced(old, new):
        return CostChange.REPLACED
    both_nan = math.isnan(old.cost_us) and math.isnan(new.cost_us)
    if both_nan or old.cost_us == new.cost_us:
        return CostChange.SAME
    if noise_us is not None and abs(new.cost_us - old.cost_us) <= noise_us:
        return CostChange.NOISE
    return CostChange.CHANGED


def _replaced(old: Cost, new: Cost) -> bool:
    return any(
        a and b and a != b
        for a, b in ((old.opcode, new.opcode), (old.shape, new.shape))
    )


def _noise_us(old: Cost | None, new: Cost | None) -> float | None:
    """Return half the sum of the two ranges from p10 to p90, in µs; None if a cost has fewer than
    two samples.
    """
    if old is None or new is None or min(old.samples, new.samples) < 2:
        return None
    return (old.spread * old.cost_us + new.spread * new.cost_us) / 2


def _what(cost: Cost) -> str:
    return f"{cost.opcode} {cost.shape}".strip()


def _totals(found: Sequence[Difference]) -> tuple[Total, ...]:
    totals = []
    for kind in (CostKind.COMPUTE, CostKind.COLLECTIVE, CostKind.COPY, CostKind.LOOP):
        of_kind = [item for item in found if item.kind == kind]
        old = [item.old_us for item in of_kind if item.old_us is not None]
        new = [item.new_us for item in of_kind if item.new_us is not None]
        if of_kind:
            old_us = math.fsum(us for us in old if _is_time(us))
            new_us = math.fsum(us for us in new if _is_time(us))
            totals.append(Total(kind, old_us, new_us, len(old), len(new)))
    return tuple(totals)


def _is_time(cost_us: float) -> bool:
    """Whether a cost is finite and small enough to be summed."""
    return abs(cost_us) <= MAX_COST_US
