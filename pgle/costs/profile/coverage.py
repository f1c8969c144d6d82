"""How well a profile fits HLO modules: covered, missing, matched only by name, unused; and its gaps
filled.

A cost counts where XLA would find it: under the name an instruction had when LHS ran. Where the
profile knows opcode and shape, a name that now belongs to another instruction is a mismatch and no
coverage.

XLA gives a gap, an instruction without a cost, a constant, which distorts the schedule. What fills
gaps here: first the median of measured instructions that are the same thing: opcode, shapes of
result and operands, fusions, size of the replica group. Else an estimate, times what measured
instructions of the same kind cost relative to their estimates. Filled-in costs are marked
(`Cost.origin`), and the provenance says how much it is. A completed profile gives every measured
instruction the cost that it had before, read as XLA reads it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import (
    Callable,
    Collection,
    Container,
    Hashable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from math import isfinite
from statistics import median
from typing import cast

from pgle.costs.estimate.estimate import estimator, hardware_of
from pgle.costs.estimate.known import basis_of
from pgle.costs.estimate.unknown import range_of
from pgle.costs.profile.lookup import (
    LIGHT_SPEED,
    T_SHIRT_SIZES,
    LookupRow,
    LookupTable,
    default_us,
    fallback_of,
)
from pgle.costs.profile.value import (
    Cost,
    CostKind,
    Fault,
    Oddity,
    Origin,
    Profile,
    costs_are,
    effective_costs,
    has_remat,
    module_records,
    profile_findings,
    strip_remat,
)
from pgle.errors import UserError, many, some
from pgle.next import CARRY, COMPLETE, CONVERT, PROFILE, PROFILE_SYNC, Sentence
from pgle.xla.async_opcodes import is_start
from pgle.xla.collectives import group_size
from pgle.xla.hlo.module import Instruction, Module
from pgle.xla.hlo.trips import trip_count
from pgle.xla.log.verdict import MOSTLY_UNKNOWN, Bounds
from pgle.xla.targets import Hardware


@dataclass(frozen=True, slots=True)
class Gap:
    """An instruction without a cost."""

    name: str  # when LHS ran
    kind: CostKind  # what the scheduler does with it
    opcode: str  # of a collective the wrapped one
    shape: str  # of the result
    # how much of an execution of the module the profile leaves open here: the larger of its
    # probable cost and the cost that XLA assumes
    weight_us: float
    cost_us: float  # what it probably costs, once; nobody measured it
    total_us: float  # the same per execution of the module
    basis: Origin  # the source of `cost_us`
    # the cost that XLA assumes: its T-shirt size; in a mismatch, the other instruction's cost
    assumed_us: float
    is_mismatch: bool = False  # the profile has the name, for another instruction
    # where its cost went, or what the profile has instead, a clause; empty if nothing is known
    hint: str = ""


MOST_OFF, HEAVY = 30.0, 0.01
"""A cost belongs to something else if it is `MOST_OFF` times more or less than its estimate.

A cost is judged if it or its estimate takes at least the share `HEAVY` of the step.

Of two recorded jobs the largest was 8.1 times: an all-gather whose ranks arrive at different times
(``benchmarks/estimate.py``). Costs that data decides, and custom calls that nobody knows, may be
any.
"""


@dataclass(frozen=True, slots=True)
class Implausible:
    """A cost that its instruction cannot have."""

    name: str
    cost_us: float
    estimate_us: float  # the nearer end if the estimate is a range


def weigh(cost_us: float, row: LookupRow) -> float:
    """Microseconds per execution of the module; 0 for negative or non-finite values."""
    return cost_us * row.executions if isfinite(cost_us) and cost_us > 0 else 0.0


def _weighed(
    table: LookupTable,
    costs: Mapping[str, Cost],
    gaps: Mapping[str, Cost | None],
    estimate: Estimator,
) -> tuple[Gap, ...]:
    """The gaps with their weights, heaviest first.

    Args:
        costs: what the profile covers, to fill the gaps from.
        gaps: by row name, the wrong cost that XLA takes; None if it finds no cost.
    """
    rows = [table.rows[name] for name in gaps]
    fills = fill(table, costs, rows, estimate)
    has_sizes = fallback_of(table.final) == T_SHIRT_SIZES
    found = []
    for row in rows:
        taken = gaps[row.name]
        filled = fills[row.name]
        total_us = weigh(filled.cost_us, row)
        weight_us = total_us
        if taken is None:
            assumed_us = default_us(table.module, row.instruction)
            hint = ""
        else:
            assumed_us = taken.cost_us
            hint = f"its cost is {taken.cost_us:g}"
        is_mismatch = taken is not None and taken.is_valid
        if taken is not None and is_mismatch:
            hint = f"a cost of {taken.opcode} {taken.shape}"
        if has_sizes or taken is not None:
            weight_us = max(total_us, weigh(assumed_us, row))
        gap = Gap(
            name=row.name,
            kind=row.kind,
            opcode=row.opcode,
            shape=row.shape,
            weight_us=weight_us,
            cost_us=filled.cost_us,
            total_us=total_us,
            basis=filled.origin,
            assumed_us=assumed_us,
            is_mismatch=is_mismatch,
            hint=hint,
        )
        found.append(gap)
    return tuple(sorted(found, key=lambda gap: (-gap.weight_us, gap.name)))


def _unused(
    profile: Profile,
    tables: Sequence[LookupTable],
    effective: Iterable[Mapping[str, Cost]],
) -> tuple[Cost, ...]:
    """The costs that none of the modules takes, in file order, each name once."""
    taken: set[tuple[str, str]] = set()
    for table, costs in zip(tables, effective, strict=True):
        used = table.consulted.intersection(costs)
        taken.update((costs[name].fingerprint, name) for name in used)
    unused = {}
    for cost in profile.costs:
        spellings = (cost.name, strip_remat(cost.name))
        if not any((cost.fingerprint, name) in taken for name in spellings):
            unused[cost.full_name] = cost
    return tuple(unused.values())


@dataclass(frozen=True, slots=True)
class Share:
    """Part of a whole."""

    covered: float
    total: float

    @property
    def value(self) -> float | None:
        """0 to 1; None of nothing."""
        return self.covered / self.total if self.total > 0 else None


@dataclass(frozen=True)
class ModuleCoverage:
    """A profile compared with one module."""

    module: str  # its name
    program_id: int | None  # None where unknown
    fingerprint: str  # empty where unknown
    source: str  # the dump it was read from
    is_main: bool  # the module that the verdict is about
    # ``schedule dump``, ``scheduling names`` or ``final names``: where LHS names come from
    against: str
    # instructions with a cost, of all that want one; copies and conditions of loops that LHS does
    # not schedule only where they have one
    count: Share
    # µs per execution of the module; see `Gap.weight_us` for what gaps weigh
    time: Share
    collectives: Share  # collectives with a cost
    # what XLA finds, by the name when LHS ran, whatever it is worth
    costs: Mapping[str, Cost]
    step_us: float  # time of one execution, gaps as estimated
    gaps: tuple[Gap, ...]  # without a cost, heaviest first
    is_of_others: bool  # every cost is under another fingerprint
    # covered by a cost that is far off the estimate, heaviest first
    implausible: tuple[Implausible, ...]
    fallback: str  # what XLA takes gaps for: ``T-shirt sizes``, or its ``speed-of-light model``
    hints: tuple[Sentence, ...] = ()  # what to do, whatever the bounds; see `remedies`
    estimated_us: float = 0.0  # of `time.covered`, the part that estimates cover
    # collectives that nobody can name as LHS did: a cost for them finds no place
    ambiguous: tuple[str, ...] = ()

    @cached_property
    def covered(self) -> Mapping[str, Cost]:
        """The costs that count: all but those of gaps, which are wrong."""
        missed = {gap.name for gap in self.gaps}
        return {name: cost for name, cost in self.costs.items() if name not in missed}

    @property
    def filled_in(self) -> int:
        """Instructions whose cost nobody measured on a GPU."""
        return sum(
            cost.origin in (*FILLED, Origin.SIMULATED) for cost in self.covered.values()
        )

    @property
    def costs_are(self) -> str:
        """What the covered costs that nobody filled in are called; ``measured`` without any."""
        given = (cost.origin for cost in self.covered.values())
        return (
            costs_are(item.word for item in given if item not in FILLED) or "measured"
        )

    @property
    def unchecked(self) -> int:
        """Covered names of which the profile knows neither opcode nor shape."""
        return sum(not cost.opcode and not cost.shape for cost in self.covered.values())

    @property
    def lost_us(self) -> float:
        """Weight of the collectives without a cost."""
        return sum(
            gap.weight_us for gap in self.gaps if gap.kind is CostKind.COLLECTIVE
        )

    @property
    def measured(self) -> Share:
        """The time that costs of a measurement cover: without estimates, which fill gaps."""
        return Share(self.time.covered - self.estimated_us, self.time.total)

    @property
    def is_modelled(self) -> bool:
        """Whether XLA takes gaps for what its speed-of-light model says."""
        return self.fallback == LIGHT_SPEED

    @property
    def mismatched(self) -> int:
        """Gaps whose name in the profile is of another opcode or shape."""
        return sum(gap.is_mismatch for gap in self.gaps)

    @property
    def kept_share(self) -> float:
        """1 less what collectives without a cost weigh, as a part of the step; not below 0."""
        return self._kept_share(self.lost_us)

    def _kept_share(self, lost_us: float) -> float:
        if self.step_us <= 0:
            return 1.0
        return max(1 - lost_us / self.step_us, 0.0)

    @property
    def is_foreign(self) -> bool:
        """Whether most costs are of another program."""
        return (self.count.value or 0.0) < MOSTLY_UNKNOWN

    def meets(self, bounds: Bounds) -> bool:
        """Whether measured costs cover enough of it."""
        return bounds.are_met(self.measured.value or 0.0, self.kept_share)

    @property
    def measured_if_filled(self) -> float:
        """What `measured` would be without gaps, 0 to 1. Costs of the same shape count as measured,
        estimates do not.
        """
        same_us = sum(
            gap.total_us for gap in self.gaps if gap.basis is Origin.SAME_SHAPE
        )
        return Share(self.measured.covered + same_us, self.step_us).value or 0.0

    def meets_if_filled(self, bounds: Bounds) -> bool:
        """Whether it would meet the bounds with its gaps filled."""
        lost_us = sum(gap.weight_us for gap in self.gaps if gap.name in self.ambiguous)
        return bounds.are_met(self.measured_if_filled, self._kept_share(lost_us))

    def remedies(self, bounds: Bounds) -> tuple[Sentence, ...]:
        """What to do, each with a command; to fill gaps only if that can meet the bounds."""
        if self.is_foreign:
            return self.hints
        if self.measured_if_filled < bounds.time and not self.mismatched:
            return (*self.hints, MEASURE)
        if self.gaps and self.meets_if_filled(bounds):
            return (*self.hints, FILL)
        return self.hints


@dataclass(frozen=True)
class Coverage:
    """A profile compared with modules, the main module first."""

    modules: tuple[ModuleCoverage, ...]  # one each
    unused: tuple[Cost, ...]  # costs that no module takes
    findings: tuple[Oddity, ...]  # oddities of the profile itself
    warnings: tuple[str, ...]  # one line each
    # those of the profile itself, which its conversion gave already
    inherited: tuple[str, ...] = ()

    @property
    def main(self) -> tuple[ModuleCoverage, ...]:
        """Every compilation of the main module; each process may have its own."""
        return tuple(module for module in self.modules if module.is_main)

    @property
    def invalid(self) -> tuple[Oddity, ...]:
        """Costs that are negative or not finite; XLA takes them as they are."""
        return tuple(
            item
            for item in self.findings
            if item.fault in (Fault.NOT_FINITE, Fault.NEGATIVE)
        )

    @property
    def least_measured(self) -> ModuleCoverage:
        """The compilation of the main module of which measured costs cover least."""
        return min(self.main, key=lambda module: module.measured.value or 0.0)

    def is_ok(self, bounds: Bounds) -> bool:
        """Whether every compilation of the main module meets the bounds and every cost is a number
        of microseconds.
        """
        return (
            bool(self.main)
            and all(module.meets(bounds) for module in self.main)
            and not self.invalid
        )


def cover(
    profile: Profile,
    modules: Sequence[Module],
    lhs_modules: Mapping[str, Module | None] | None = None,
) -> Coverage:
    """Compare a profile with modules.

    Args:
        modules: final modules; a module of a schedule dump will do if there is no other.
        lhs_modules: by name, as LHS saw them.

    Raises:
        UserError: there is no module.
    """
    if not modules:
        raise UserError(
            "no HLO module to hold the profile against", remedy="give --hlo a dump"
        )
    dumps = lhs_modules or {}
    tables = [LookupTable(module, dumps.get(module.name)) for module in modules]
    named = {cost.fingerprint for cost in profile.costs}
    costs_of = cache(partial(effective_costs, profile))
    effective = []
    for module in modules:
        is_named = module.fingerprint in named
        effective.append(costs_of(module.fingerprint if is_named else ""))
    found = [
        cover_module(profile, table, costs)
        for table, costs in zip(tables, effective, strict=True)
    ]
    unused = _unused(profile, tables, effective)
    main = _main(profile, found)
    done = []
    for item, table in zip(found, tables, strict=True):
        is_main = (item.module, item.program_id) == main
        marked = replace(item, is_main=is_main)
        if is_main or item.count.covered:
            marked = _with_hints(marked, table, unused)
        done.append(marked)
    done.sort(key=lambda item: (not item.is_main, -item.step_us))
    return Coverage(
        modules=tuple(done),
        unused=unused,
        findings=profile_findings(profile),
        warnings=tuple(_warnings(done[0], dumps)),
        inherited=profile.warnings,
    )


def _main(profile: Profile, found: Sequence[ModuleCoverage]) -> tuple[str, int | None]:
    """Name and program id of the main module: the heaviest that the profile was made for, else the
    heaviest.

    Processes share program ids; another compilation of the same name in one process has its own and
    is another module.
    """
    for record in module_records(profile.provenance):
        named = [item for item in found if item.module == record.get("name")]
        same = [item for item in named if item.program_id == record.get("program_id")]
        if named:
            found = same or named
            break
    main = max(found, key=lambda item: (item.time.covered, item.step_us))
    return main.module, main.program_id


def cover_module(
    profile: Profile, table: LookupTable, effective: Mapping[str, Cost]
) -> ModuleCoverage:
    """Compare a profile with one module.

    Args:
        effective: what `effective_costs` gives for the module.

    Returns:
        The coverage, without hints.
    """
    module = table.final
    rows = table.rows
    found = table.find(effective)
    missed = table.lacking(found)
    covered = {name: cost for name, cost in found.items() if name not in missed}
    hardware = hardware_of(module)
    estimate = estimator(table.module, hardware)
    gaps = _weighed(table, covered, missed, estimate)
    weights_us = {
        name: weigh(cost.cost_us, rows[name]) for name, cost in covered.items()
    }
    covered_us = sum(weights_us.values())
    estimated_us = sum(
        weights_us[name]
        for name, cost in covered.items()
        if cost.origin is Origin.ESTIMATED
    )
    count = Share(len(covered), len(covered) + len(gaps))
    time = Share(covered_us, covered_us + sum(gap.weight_us for gap in gaps))
    step_us = covered_us + sum(gap.total_us for gap in gaps)
    communicating = [
        name for name, row in rows.items() if row.kind is CostKind.COLLECTIVE
    ]
    with_cost = sum(name in covered for name in communicating)
    collectives = Share(with_cost, len(communicating))
    own = ("", module.fingerprint)
    is_of_others = all(cost.fingerprint not in own for cost in profile.costs)
    implausible = _implausible(table, covered, step_us, hardware, estimate)
    return ModuleCoverage(
        module=module.name,
        program_id=module.program_id,
        fingerprint=module.fingerprint,
        source=module.source,
        is_main=False,
        against=_source_of_names(table),
        count=count,
        time=time,
        collectives=collectives,
        costs=found,
        step_us=step_us,
        gaps=gaps,
        is_of_others=is_of_others,
        implausible=implausible,
        fallback=fallback_of(module),
        estimated_us=estimated_us,
        ambiguous=table.ambiguous,
    )


def _source_of_names(table: LookupTable) -> str:
    """Where the names come from that instructions had when LHS ran."""
    if table.lhs_module is not None:
        return "schedule dump"
    if any(row.instruction.scheduling_name for row in table.rows.values()):
        return "scheduling names"
    return "final names"


def _implausible(
    table: LookupTable,
    costs: Mapping[str, Cost],
    step_us: float,
    hardware: Hardware,
    estimate: Estimator,
) -> tuple[Implausible, ...]:
    """The costs that are far off their estimate, heaviest first."""
    found = []
    for name, cost in costs.items():
        row = table.rows[name]
        us = estimate(row.instruction)
        if not us or not basis_of(table.module, row.instruction).is_model:
            continue
        weight_us = weigh(cost.cost_us, row)
        if max(weight_us, weigh(us, row)) < HEAVY * step_us:
            continue
        by_data = range_of(table.module, row.instruction, hardware, us)
        least = us if by_data is None else by_data.least_us
        most = us if by_data is None else by_data.possible_us
        if not least / MOST_OFF <= cost.cost_us <= most * MOST_OFF:
            nearest = min(max(cost.cost_us, least), most)
            found.append((weight_us, Implausible(name, cost.cost_us, nearest)))
    found.sort(key=lambda pair: -pair[0])
    return tuple(item for _, item in found)


def _with_hints(
    item: ModuleCoverage, table: LookupTable, unused: Iterable[Cost]
) -> ModuleCoverage:
    """The coverage with remedies, and with the run-time names that gaps have in the profile."""
    free = {cost.name for cost in unused if cost.fingerprint in ("", item.fingerprint)}
    found = {
        name: run_time
        for run_time, name in table.run_time_names.items()
        if run_time in free
    }
    gaps = []
    renamed = False
    for gap in item.gaps:
        if gap.name in found:
            renamed = renamed or gap.kind is CostKind.COLLECTIVE
            hint = gap.hint or f"in the profile as {found[gap.name]}"
            gap = replace(gap, hint=hint)
        gaps.append(gap)
    full = replace(item, gaps=tuple(gaps))
    return replace(full, hints=tuple(_hints(full, renamed)))


FILL = Sentence.todo(
    "fill gaps from same-shape instructions and estimates with ", COMPLETE
)
MEASURE = Sentence.todo(
    "estimated costs do not count here, so more of them do not help: measure this program with ",
    PROFILE,
    ", or ask for less with --min-time-coverage",
)


def _hints(item: ModuleCoverage, renamed: bool) -> Iterator[Sentence]:
    """Remedies for what a module lacks, the likeliest cause first; `renamed`: it has collectives by
    other names.
    """
    if item.is_of_others:
        yield Sentence.todo(
            "every name is for another fingerprint; this module is "
            f"{item.fingerprint or 'without one'}"
        )
    if item.is_foreign:
        also = (
            f" ({item.mismatched} names are of another opcode or shape there)"
            if item.mismatched
            else ""
        )
        made_by = (
            f"this profile was made by another program, flags or jax version{also}"
        )
        yield Sentence.todo(f"{made_by}: profile this program with ", PROFILE)
    lost = [
        gap
        for gap in item.gaps
        if gap.kind is CostKind.COLLECTIVE and not item.is_foreign
    ]
    if lost and renamed:
        yield Sentence.todo(
            "the profile has collectives under other names: ",
            CONVERT,
            " translates them, if LHS was on in the profile run, or DUMP has a schedule dump of "
            "the performance run",
        )
    elif lost and not item.ambiguous:
        yield Sentence.todo(
            "the profile lacks collectives: convert the trace of all streams with its HLO (",
            CONVERT,
            "), or profile again (",
            PROFILE,
            ")",
        )
    if item.ambiguous:
        yield Sentence.todo(
            f"{len(item.ambiguous)} collectives were renamed after scheduling and the dump does "
            "not say from what: give its schedule dump in --hlo too "
            "(--xla_dump_latency_hiding_schedule=true), or profile with LHS on (",
            PROFILE_SYNC,
            ")",
        )
    if item.mismatched and not item.is_foreign:
        yield Sentence.todo(
            "names of another opcode or shape come from another program or another jax: profile "
            "this one again with ",
            PROFILE,
        )


def _warnings(
    main: ModuleCoverage, dumps: Mapping[str, Module | None]
) -> Iterator[str]:
    if main.unchecked:
        yield (
            f"the profile says neither opcode nor shape of {main.unchecked} of its names: they "
            "may match by accident"
        )
    dump = dumps.get(main.module)
    if dump is not None and dump.fingerprint != main.fingerprint and dump.fingerprint:
        yield (
            f"the schedule dump is of fingerprint {dump.fingerprint[:12]}…, the HLO of "
            f"{main.fingerprint[:12]}…: names "
            "are compared with the schedule dump"
        )


Estimator = Callable[[Instruction], float]
"""Microseconds per execution of an instruction, by its shapes."""

FILLED = (Origin.SAME_SHAPE, Origin.ESTIMATED)
"""Costs of these origins were filled in before: no other cost is derived from them."""

# measured instructions of a kind that it takes to scale the estimates of that kind
MIN_NEIGHBOURS = 3

CALIBRATED_ON = 300
"""Measured instructions of one kind that are estimated too, to scale the estimates; more change
little.
"""


def fill(
    table: LookupTable,
    costs: Mapping[str, Cost],
    gaps: Collection[LookupRow],
    estimate: Estimator,
) -> dict[str, Cost]:
    """A cost for each gap, by row name."""
    measured = [
        (row, cost.cost_us)
        for name, cost in costs.items()
        if gaps
        and cost.origin not in FILLED
        and cost.is_valid
        and not (row := table.rows[name]).differs(cost)
    ]
    same = _medians_of_same(table, measured, gaps)
    factor = _factors(measured, estimate)
    fills = {}
    for row in gaps:
        value = same.get(_signature(table, row)) if same else None
        if value is not None:
            fills[row.name] = row.cost(value, Origin.SAME_SHAPE)
        else:
            fills[row.name] = row.cost(
                estimate(row.instruction) * factor(row), Origin.ESTIMATED
            )
    return fills


def _medians_of_same(
    table: LookupTable,
    measured: Iterable[tuple[LookupRow, float]],
    gaps: Iterable[LookupRow],
) -> Mapping[Hashable, float]:
    """By signature, medians of measured instructions that are the same thing as some gap."""
    # signatures look into fusions: only where one may be wanted
    alike = {(row.opcode, row.shape) for row in gaps}
    found: dict[Hashable, list[float]] = defaultdict(list)
    for row, cost_us in measured:
        if (row.opcode, row.shape) in alike:
            found[_signature(table, row)].append(cost_us)
    return {signature: median(values) for signature, values in found.items()}


def _signature(table: LookupTable, row: LookupRow) -> Hashable:
    """What two instructions share when one's measurement is good for the other."""
    group = (
        group_size(table.module, row.instruction)
        if row.kind is CostKind.COLLECTIVE
        else 0
    )
    return row.opcode, row.shape, table.module.work(row.instruction), group


def _factors(
    measured: Iterable[tuple[LookupRow, float]], estimate: Estimator
) -> Callable[[LookupRow], float]:
    """What an estimate is multiplied by: the median of measured / estimated, of the narrowest kind
    with enough of both.

    1 if no kind has enough.
    """
    known: dict[str, list[tuple[LookupRow, float]]] = defaultdict(list)
    for row, cost_us in measured:
        for kind in _kinds_of(row) if cost_us > 0 else ():
            known[kind].append((row, cost_us))

    @cache
    def of_kind(kind: str) -> float | None:
        sample = known[kind][:: max(len(known[kind]) // CALIBRATED_ON, 1)]
        ratios = [
            cost_us / guess
            for row, cost_us in sample
            if (guess := estimate(row.instruction)) > 0
        ]
        return median(ratios) if len(ratios) >= MIN_NEIGHBOURS else None

    def factor(row: LookupRow) -> float:
        return next(
            (found for kind in _kinds_of(row) if (found := of_kind(kind)) is not None),
            1.0,
        )

    return factor


def _kinds_of(row: LookupRow) -> tuple[str, str]:
    """The kind of an instruction, and the wider one to fall back to."""
    if row.kind is CostKind.COLLECTIVE:
        return row.opcode, "collective"
    return (
        f"{row.opcode} {row.instruction.fusion_kind}{row.instruction.custom_call_target}".strip(),
        "compute",
    )


@dataclass(frozen=True)
class Completion:
    """A profile with its gaps filled for one module."""

    profile: Profile  # the given costs in their order, then the filled ones by name
    module: str  # name of the module
    target: str  # the hardware that was estimated for
    wanted: int  # instructions and loops of the module that take a cost
    measured: int  # of them, the ones that the given profile covers
    filled: tuple[Cost, ...]  # the new costs
    warnings: tuple[str, ...] = ()  # costs that were no time, or of something else

    def count(self, origin: Origin) -> int:
        """How many of `filled` are of that origin."""
        return sum(cost.origin is origin for cost in self.filled)


def complete_profile(
    profile: Profile,
    module: Module,
    hardware: Hardware,
    *,
    lhs_module: Module | None = None,
    with_fingerprint: bool = False,
) -> Completion:
    """Give every schedulable instruction of a module a cost.

    Args:
        profile: any. Its costs are kept as they are. Negative and non-finite ones count as gaps,
            and so do those of another opcode or shape.
        lhs_module: the module as LHS saw it, if `module` is the final one and a schedule dump
            exists.
        with_fingerprint: name the filled costs by the module's fingerprint. This also happens if
            any name of the profile has a fingerprint.
    """
    with_fingerprint = with_fingerprint or any(
        cost.fingerprint for cost in profile.costs
    )
    prefix = module.fingerprint if with_fingerprint else ""
    table = LookupTable(module, lhs_module)
    valid = _without_invalid(profile)
    own = _without_others(valid, table)
    effective = effective_costs(own, module.fingerprint)
    known = table.find(effective)
    for name in table.ambiguous:
        if name in effective:
            known[name] = effective[name]
    rows = [
        row
        for row in table.rows.values()
        if row.instruction.opcode not in ("conditional", "call")
    ]
    gaps = [row for row in rows if row.name not in known]
    fills = fill(table, known, gaps, estimator(table.module, hardware))
    loops = [
        item
        for item in table.module.entry_computation.instructions
        if item.opcode == "while" and trip_count(table.module, item) is not None
    ]
    costs_us = {
        table.rows[name].instruction.name: cost.cost_us
        for name, cost in (known | fills).items()
    }
    of_loops = [
        Cost(
            loop.name,
            _loop_us(table.module, loop, costs_us),
            kind=CostKind.LOOP,
            opcode="while",
            shape=str(loop.shape),
            origin=Origin.ESTIMATED,
        )
        for loop in loops
        if loop.name not in effective
    ]
    new = _writable(own, prefix, effective, [*fills.values(), *of_loops])
    filled = Counter(cost.origin for cost in new)
    notes = {
        "module": module.name,
        "fingerprint": module.fingerprint,
        "target": hardware.name,
        "filled": {origin.value: filled[origin] for origin in FILLED},
    }
    earlier = cast(Sequence[object], profile.provenance.get("completed", ()))
    # a new cost with a fingerprint wins over a bare one, which other modules may need
    kept = valid.costs if prefix else own.costs
    result = replace(
        own,
        costs=kept + new,
        provenance={**valid.provenance, "completed": [*earlier, notes]},
    )
    wanted = len(rows) + len(loops)
    return Completion(
        profile=result,
        module=module.name,
        target=hardware.name,
        wanted=wanted,
        measured=wanted - len(gaps) - len(of_loops),
        filled=new,
        warnings=own.warnings[len(profile.warnings) :],
    )


def estimate_profile(module: Module, hardware: Hardware) -> Profile:
    """A profile of estimates for every schedulable instruction of a module."""
    estimate = estimator(module, hardware)
    rows = LookupTable(module).rows.values()
    costs = tuple(row.cost(estimate(row.instruction), Origin.ESTIMATED) for row in rows)
    return Profile(costs, provenance={"estimated_for": hardware.name})


def _without_invalid(profile: Profile) -> Profile:
    """The profile without costs that are no time, with a warning that names them."""
    invalid = [
        f"{cost.full_name} ({cost.cost_us:g})"
        for cost in profile.costs
        if not cost.is_valid
    ]
    if not invalid:
        return profile
    warning = f"{len(invalid)} costs are no times and count as gaps: {some(invalid, 4)}"
    valid = tuple(cost for cost in profile.costs if cost.is_valid)
    return replace(profile, costs=valid, warnings=(*profile.warnings, warning))


def _without_others(profile: Profile, table: LookupTable) -> Profile:
    """The profile without costs that XLA would take for an instruction of another opcode or shape,
    with a warning that names them.
    """
    effective = effective_costs(profile, table.final.fingerprint)
    wrong = set()
    for row in table.rows.values():
        for name in row.accepted:
            if name not in effective:
                continue
            if not row.differs(effective[name]):
                break
            wrong.add(name)
    if not wrong:
        return profile
    warning = (
        f"{many(len(wrong), 'name')} of another opcode or shape here: filled like gaps "
        f"({some(sorted(wrong), 2)}). `{CARRY}` keeps what was measured on the other program"
    )
    mine = ("", table.final.fingerprint)
    kept = tuple(
        cost
        for cost in profile.costs
        if cost.fingerprint not in mine or strip_remat(cost.name) not in wrong
    )
    return replace(profile, costs=kept, warnings=(*profile.warnings, warning))


def _writable(
    profile: Profile, prefix: str, effective: Container[str], costs: Iterable[Cost]
) -> tuple[Cost, ...]:
    """The costs under names that change none of the profile's costs for this or any other module,
    by name.

    The last of equal names wins, a bare name counts for every module, and a name that holds
    ``.remat`` makes XLA average equal names.
    """
    taken = (
        set() if prefix else {cost.name for cost in profile.costs if cost.fingerprint}
    )
    return tuple(
        cost._replace(fingerprint=prefix)
        for cost in sorted(costs, key=lambda cost: cost.name)
        if not has_remat(cost.name)
        and cost.name not in taken
        and cost.name not in effective
    )


def _loop_us(module: Module, loop: Instruction, costs_us: Mapping[str, float]) -> float:
    """A loop costs its trips times what runs on the compute stream in one iteration."""
    total = 0.0
    for item in module.called_instructions(loop):
        if item.opcode == "while":
            total += _loop_us(module, item, costs_us)
        elif not is_start(item):
            total += costs_us.get(item.name, 0.0)
    return total * (trip_count(module, loop) or 1)
