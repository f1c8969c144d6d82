"""A cost profile as a value: what each instruction costs, and what XLA takes of it; its sums, and
how two differ.

A name is ``FINGERPRINT::NAME`` or a bare name; a name with any other ``::`` matches nothing. XLA
filters by fingerprint, merges equal names and cuts ``.remat`` off. Source:
``FilterWithFingerprint`` in openxla/xla ``xla/service/gpu/gpu_hlo_schedule.cc`` and the table of
``xla/service/profile_guided_latency_estimator.cc``; checked against the compiler in
`tests/costs/test_profile_against_xla.py`.
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

Entry = tuple[
    str, float
]  # name as written in a file, with any ``fingerprint::``, and µs
_REMAT_SUFFIX = re.compile(r"\.remat[0-9]*\Z")


def split_name(written: str) -> tuple[str, str]:
    """Fingerprint (empty: every module) and instruction name; any other ``::`` than one in the
    middle stays in it.
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
    """The name without a ``.remat`` or ``.remat7`` at its end, which marks a copy made by
    rematerialisation.
    """
    return _REMAT_SUFFIX.sub("", name) if has_remat(name) else name


def has_remat(name: str) -> bool:
    """Whether a name of a profile makes XLA strip all its names and average equal ones: it need not
    be at the end.
    """
    return ".remat" in name


# thirty years; a longer cost is no measurement, and sums of such costs are no numbers.
MAX_COST_US = 1e15
Time = Annotated[
    float, Meta(ge=0, le=MAX_COST_US)
]  # microseconds, as far as msgspec reads them


class Origin(StrEnum):
    """Where a cost comes from; anything but `MEASURED` is labelled in every output."""

    MEASURED = "measured"
    UNKNOWN = "unknown"  # read from a profile without sidecar
    SAME_SHAPE = (
        "same-shape"  # taken from measured instructions of the same opcode and shapes
    )
    ESTIMATED = "estimated"  # from the roofline and the communication model of a target
    SIMULATED = "simulated"  # measured on the simulated GPU

    @property
    def word(self) -> str:
        """What a cost of this origin is called: ``measured``, ``simulated`` or ``estimated``. A
        profile without sidecar is taken at its word.
        """
        if self in (Origin.MEASURED, Origin.UNKNOWN):
            return "measured"
        return "simulated" if self is Origin.SIMULATED else "estimated"


def costs_are(words: Iterable[str]) -> str:
    """What costs of several origins are called together: ``simulated and estimated``.

    Args:
        words: as of `Origin.word`, or of this function.
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
    from pgle.xla.guessed_kinds import guess_kind  # a sidecar knows the kinds

    return CostKind(guess_kind(name))


# the number behind the last dot of a name says nothing of the kind; without it few names remain
DIGITS = "0123456789"


def likely_kind(name: str) -> CostKind:
    """What an instruction of this name does, by the usual names."""
    stem = name.rstrip(DIGITS)
    return _guessed(f"{stem}1" if stem.endswith(".") else name)


class Cost(NamedTuple):
    """The cost of one instruction. A tuple: the million of a large profile are made in a quarter of
    the time.
    """

    name: str  # the instruction's name when LHS ran, without a fingerprint
    cost_us: float  # microseconds per execution of the instruction
    fingerprint: str = ""  # the module it is meant for; empty: every module
    kind: CostKind = CostKind.UNKNOWN  # compute, collective, copy or loop
    # HLO opcode (of a collective: the wrapped one, ``all-gather``); empty where unknown
    opcode: str = ""
    # result shape as text (of a collective: of the wrapped op); empty where unknown
    shape: str = ""
    samples: int = 0  # executions in the statistic; 0 if unknown
    min_us: float = 0.0  # smallest sample
    max_us: float = 0.0  # largest sample
    spread: float = 0.0  # (p90 - p10) / median of the samples; 0 where there is one
    # of compute, on the rank for which the others wait: the cost and what `rank_skew_us` adds; None
    # where ranks were not compared. The cost given to XLA stays the typical one.
    slowest_us: float | None = None
    # the name in the trace where it differs from `name`; empty where it does not
    trace_name: str = ""
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
        """Whether the cost is a time: 0 to `MAX_COST_US`. XLA takes any number, and its schedule
        then means nothing.
        """
        return 0 <= self.cost_us <= MAX_COST_US  # NaN is neither

    @property
    def skew_us(self) -> float | None:
        """How much longer it takes on the slowest rank than the cost says; None where that is
        unknown.
        """
        return None if self.slowest_us is None else self.slowest_us - self.cost_us

    @property
    def likely_kind(self) -> CostKind:
        """The kind; where it is unknown, a guess by name."""
        return self.kind or likely_kind(self.name)


def most_skewed(costs: Sequence[Cost]) -> tuple[Cost, ...]:
    """The five costs that take most longer on the slowest rank, the largest first."""
    slower = [cost for cost in costs if cost.skew_us is not None and cost.skew_us > 0]
    return tuple(
        sorted(slower, key=lambda cost: (-(cost.skew_us or 0.0), cost.full_name))[:5]
    )


@dataclass(frozen=True)
class Profile:
    """Costs of one or several modules."""

    # in file order. XLA takes the last of equal names (`effective` says which).
    costs: tuple[Cost, ...]
    # what the sidecar records: inputs, statistics, versions, flags
    provenance: Mapping[str, object] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()  # what the user should know, one line each

    def __len__(self) -> int:
        return len(self.costs)


def module_records(provenance: Mapping[str, object]) -> tuple[Json, ...]:
    """What the provenance of a profile says of each of its modules, as far as it does."""
    return tuple(cast(Iterable[Json], provenance.get("modules", ())))


def effective_costs(profile: Profile, fingerprint: str = "") -> Mapping[str, Cost]:
    """The costs that XLA uses for a module, by instruction name.

    Names with a prefix count only for the module of that fingerprint. Of equal names the last wins;
    but if any name that counts holds ``.remat``, all lose a trailing ``.remat`` or ``.rematN`` and
    equal ones are averaged.
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
    """Each cost that XLA can use, once: bare names first, then by fingerprint, in file order.

    Costs that XLA never uses are left out. Entries of one fingerprint are merged among themselves;
    a module uses entries with its fingerprint before bare ones.
    """
    found: list[Cost] = []
    for _, costs in sorted(_by_module(profile.costs).items()):
        found += _used(costs).values()
    return tuple(found)


def _by_module(costs: Iterable[Cost]) -> dict[str, list[Cost]]:
    """The costs that XLA keeps for some module, by fingerprint."""
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
    """Costs by the name that XLA gives them."""
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
class Oddity:
    """Something in a profile that does not do what it seems to."""

    fault: Fault  # which kind
    name: str  # as the profile spells it
    message: str  # what XLA does with it, one clause
    # the costs concerned, in file order; none where it is about the whole profile
    values_us: tuple[float, ...] = ()
    effective_us: float | None = None  # what XLA takes; None where it takes nothing


def profile_findings(profile: Profile) -> tuple[Oddity, ...]:
    """What a user should know about a profile before giving it to XLA, in file order within each
    kind.
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
        if fingerprint:  # bare names count for the module too, in file order
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
    """Several costs that become one for a module.

    Without a fingerprint: the costs that become one for every module.
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
    (lambda us: us < 0, Fault.NEGATIVE, "negative cost; XLA uses it as it is"),
    (
        lambda us: us == 0,
        Fault.ZERO,
        "cost is 0; XLA takes it for free, not for unknown",
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
        "cost of a -done; XLA looks up only the start of a collective, and takes other dones for "
        "that long besides",
    ),
    (
        lambda cost: (
            not cost.kind and cost.likely_kind == CostKind.LOOP
        ),  # what was measured as one is as it should be
        Fault.LOOP,
        "whole loop; XLA uses it for the loop, and adds the costs in its body",
    ),
)
"""Oddities of a value and of a name: the first that holds counts."""


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
    """The costs of one kind, each instruction executed once."""

    kind: CostKind  # which
    count: int  # instructions
    guessed: int  # of them, how many are of this kind by name only
    total_us: float  # their sum
    share: float  # of the sum over all kinds but loops; 0 for loops


@dataclass(frozen=True)
class Summary:
    """What a profile holds, as XLA would take it."""

    entries: int  # lines of the profile file
    # each usable cost once, the costliest first, as many as asked for
    costs: tuple[Cost, ...]
    kinds: tuple[KindTotal, ...]  # totals, costliest first, loops last
    total_us: float  # sum over all but loops, whose bodies count already
    names: int  # usable costs
    origins: Mapping[Origin, int]  # instructions by origin
    modules: tuple[str, ...]  # fingerprints that names are prefixed with
    provenance: Mapping[str, object]  # of the sidecar
    findings: tuple[Oddity, ...]  # what XLA takes otherwise than it reads
    warnings: tuple[str, ...]  # one line each
    described: bool  # False where no sidecar says kinds, samples and origins
    # how much longer compute takes on the slowest rank, each instruction executed once; None where
    # unknown
    skew_us: float | None = None
    skewed: tuple[Cost, ...] = ()  # the instructions with most of that, of all kinds


def summarise(profile: Profile, *, top: int = 0) -> Summary:
    """Summarise a profile.

    Args:
        top: list only so many, the costliest; 0: all.
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
    """The costs of one kind; `total_us` is the sum over all kinds but loops."""
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
    """Costs that mean nothing count 0; the findings name them."""
    return cost.cost_us if cost.is_valid else 0.0


class CostChange(StrEnum):
    """What happened to a name."""

    ADDED = "added"
    REMOVED = "removed"
    REPLACED = "replaced"  # same name, another opcode or shape: another instruction
    CHANGED = "changed"
    NOISE = "noise"  # another cost, within the dispersion of the samples
    SAME = "same"


@dataclass(frozen=True, slots=True)
class Difference:
    """One name in two profiles."""

    name: str  # as the newer profile spells it, else the older
    change: CostChange  # what happened
    kind: CostKind  # compute, collective, copy or loop; of the newer profile where it has the name
    kind_is_guess: bool  # True where no sidecar says the kind
    old_us: float | None  # cost in the older profile; None where absent
    new_us: float | None  # cost in the newer profile; None where absent
    # how far two medians may be apart within the samples' dispersion; None where that is unknown
    noise_us: float | None = None
    was: str = ""  # opcode and shape in the older profile, where replaced
    now: str = ""  # opcode and shape in the newer profile, where known

    @property
    def delta_us(self) -> float:
        """New minus old; an absent cost counts 0."""
        return (self.new_us or 0.0) - (self.old_us or 0.0)

    @property
    def ratio(self) -> float | None:
        """New over old; None where either is absent or the old is 0."""
        return (
            self.new_us / self.old_us
            if self.old_us and self.new_us is not None
            else None
        )


@dataclass(frozen=True, slots=True)
class Total:
    """The sum of one kind, each instruction executed once."""

    kind: CostKind
    old_us: float
    new_us: float
    old_count: int
    new_count: int


@dataclass(frozen=True)
class ProfileDiff:
    """Two profiles compared."""

    differences: tuple[Difference, ...]  # every name, the largest absolute change first
    # by kind, where either has any; loops, whose bodies count already, last
    totals: tuple[Total, ...]
    warnings: tuple[str, ...]  # one line each

    def count(self, change: CostChange) -> int:
        """How many names changed in that way."""
        return sum(item.change == change for item in self.differences)


def diff_profiles(old: Profile, new: Profile) -> ProfileDiff:
    """What changed from `old` to `new`, as far as XLA can see it.

    Duplicates are merged and entries that XLA never uses are left out.
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
            f"{odd} costs are not finite or over 30 years, and not in the totals; see `{SHOW}`"
        )
    return ProfileDiff(tuple(found), _totals(found), tuple(warnings))


def _largest_first(item: Difference) -> tuple[float, str]:
    """A key to sort by: NaN, which can hide anything, first; then the largest change."""
    change = math.inf if math.isnan(item.delta_us) else abs(item.delta_us)
    return -change, item.name


def _aligned(
    old: Sequence[Cost], new: Sequence[Cost]
) -> tuple[Mapping[tuple[str, str], Cost], Mapping[tuple[str, str], Cost], list[str]]:
    """Costs by (fingerprint, name); by name alone where one has bare names and the other one
    module's.
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
    """Half the two ranges from p10 to p90 added up; None if a cost has fewer than two samples."""
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
    """Whether a cost can be part of a sum."""
    return abs(cost_us) <= MAX_COST_US
