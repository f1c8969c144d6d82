"""Compare a profile with HLO modules: which costs are covered, missing, mismatched or unused. Fill
the gaps.

XLA looks a cost up by the name that the instruction had when LHS (XLA's latency-hiding scheduler)
ran. A cost counts only if XLA would find it so. If the profile states opcode or shape, and the name
now belongs to another instruction, that is a mismatch. A mismatch does not count as covered.

A gap is an instruction without a cost. XLA then assumes a constant, which distorts the schedule, or
asks its own model (`fallback_of`). pgle fills a gap with the median of measured instructions that
do the same work. They have equal opcodes, shapes of result and operands, fused operations, and
sizes of replica groups. If there are none, pgle takes an estimate. It multiplies the estimate by
the median of measured / estimated over instructions of the same kind.

Filled costs are marked (`Cost.origin`), and the provenance counts them. For every measured
instruction, XLA reads the same cost from the completed profile as from the given one.
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
from pgle.costs.estimate.products import multiplies_as
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

    name: str  # the name when LHS ran
    kind: CostKind  # what the scheduler does with it
    opcode: str  # for a collective, the opcode of the wrapped operation
    shape: str  # shape of the result
    # µs per execution of the module that the missing cost leaves open: `total_us`, or the time of
    # `assumed_us` if XLA takes that and it is larger
    weight_us: float
    # the probable cost of one execution of the instruction; not measured
    cost_us: float
    total_us: float  # `cost_us` times the executions per execution of the module
    basis: Origin  # the source of `cost_us`
    # T-shirt size of the instruction, or the wrong cost that the profile has for it
    assumed_us: float
    # True if the profile has a cost of another opcode or shape under this name
    is_mismatch: bool = False
    # a clause: the name that holds the cost, or the wrong cost in the profile; empty if neither is
    # known
    hint: str = ""


MOST_OFF, HEAVY = 30.0, 0.01
"""A cost is implausible if it is more than `MOST_OFF` times its estimate, or less than the estimate
divided by `MOST_OFF`.

A cost is judged only if it or its estimate takes at least the share `HEAVY` of the step. If data
decides the cost, it is compared with a range. Custom calls that pgle does not know are not judged.

In two recorded jobs the largest factor was 8.1: an all-gather whose ranks arrive at different times
(``benchmarks/estimate.py``).
"""


@dataclass(frozen=True, slots=True)
class Implausible:
    """A cost too far from its estimate to belong to its instruction."""

    name: str
    cost_us: float
    estimate_us: float  # the nearest value of the range if the estimate is a range


def weigh(cost_us: float, row: LookupRow) -> float:
    """Return a cost in µs per execution of the module; 0 if the cost is negative or not finite."""
    return cost_us * row.executions if isfinite(cost_us) and cost_us > 0 else 0.0


def _weighed(
    table: LookupTable,
    costs: Mapping[str, Cost],
    gaps: Mapping[str, Cost | None],
    estimate: Estimator,
) -> tuple[Gap, ...]:
    """Return the gaps with their weights, heaviest first.

    Args:
        costs: the covered costs, by row name; they fill the gaps.
        gaps: by row name, the wrong cost that XLA takes; None if XLA finds no cost.
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
    """Return the costs that no module takes, in file order, each name once."""
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
    """A part of a whole, both in one unit."""

    covered: float
    total: float

    @property
    def value(self) -> float | None:
        """The share, 0 to 1; None if the whole is 0."""
        return self.covered / self.total if self.total > 0 else None


@dataclass(frozen=True)
class ModuleCoverage:
    """A profile compared with one module."""

    module: str  # name of the module
    program_id: int | None  # None if unknown
    fingerprint: str  # empty if unknown
    source: str  # the dump that the module was read from
    is_main: bool  # True if the verdict is about this module
    # the source of the names when LHS ran: ``schedule dump``, ``scheduling names`` or ``final
    # names``
    against: str
    # instructions with a cost, of all that need one. Copies and unscheduled loop conditions count
    # only if they have a cost.
    count: Share
    # µs per execution of the module: covered costs, of covered costs plus the weights of the gaps
    # (`Gap.weight_us`)
    time: Share
    collectives: Share  # collectives with a cost, of all
    # the cost that XLA finds, right or wrong, by the name when LHS ran
    costs: Mapping[str, Cost]
    step_us: float  # time of one execution: covered costs, and `Gap.total_us`
    gaps: tuple[Gap, ...]  # instructions without a cost, heaviest first
    is_of_others: bool  # True if every cost has the fingerprint of another module
    # covered costs that are far off their estimates, heaviest first
    implausible: tuple[Implausible, ...]
    # what XLA assumes for gaps: ``T-shirt sizes`` or its ``speed-of-light model``
    fallback: str
    # what to do, for any bounds; `remedies` adds what depends on them
    hints: tuple[Sentence, ...] = ()
    estimated_us: float = 0.0  # the part of `time.covered` that comes from estimates
    # collectives whose name when LHS ran is unknown, so XLA's lookup of their cost is unknown, too
    ambiguous: tuple[str, ...] = ()

    @cached_property
    def covered(self) -> Mapping[str, Cost]:
        """The costs that count: `costs` without those of gaps, which belong to other instructions
        or are not times.
        """
        missed = {gap.name for gap in self.gaps}
        return {name: cost for name, cost in self.costs.items() if name not in missed}

    @property
    def filled_in(self) -> int:
        """Number of covered instructions whose cost was not measured on a GPU."""
        return sum(
            cost.origin in (*FILLED, Origin.SIMULATED) for cost in self.covered.values()
        )

    @property
    def costs_are(self) -> str:
        """The word for the origins of the covered costs that pgle did not fill in; ``measured`` if
        there are none.
        """
        given = (cost.origin for cost in self.covered.values())
        return (
            costs_are(item.word for item in given if item not in FILLED) or "measured"
        )

    @property
    def unchecked(self) -> int:
        """Number of covered names for which the profile states neither opcode nor shape."""
        return sum(not cost.opcode and not cost.shape for cost in self.covered.values())

    @property
    def lost_us(self) -> float:
        """Summed weight of the collectives without a cost, in µs per execution of the module."""
        return sum(
            gap.weight_us for gap in self.gaps if gap.kind is CostKind.COLLECTIVE
        )

    @property
    def measured(self) -> Share:
        """The time that costs cover without estimates. Costs from instructions of the same shape
        count as measured.
        """
        return Share(self.time.covered - self.estimated_us, self.time.total)

    @property
    def is_modelled(self) -> bool:
        """Whether XLA assumes the time of its speed-of-light model for gaps."""
        return self.fallback == LIGHT_SPEED

    @property
    def mismatched(self) -> int:
        """Number of gaps under whose name the profile has a cost of another opcode or shape."""
        return sum(gap.is_mismatch for gap in self.gaps)

    @property
    def kept_share(self) -> float:
        """Share of the step, 0 to 1, that remains after subtracting the weight of collectives
        without a cost.
        """
        return self._kept_share(self.lost_us)

    def _kept_share(self, lost_us: float) -> float:
        """Return the share of the step, 0 to 1, that remains after subtracting some time."""
        if self.step_us <= 0:
            return 1.0
        return max(1 - lost_us / self.step_us, 0.0)

    @property
    def is_foreign(self) -> bool:
        """Whether so few instructions have a cost that the profile probably belongs to another
        program.
        """
        return (self.count.value or 0.0) < MOSTLY_UNKNOWN

    def meets(self, bounds: Bounds) -> bool:
        """Whether the covered costs meet the bounds, without estimates."""
        return bounds.are_met(self.measured.value or 0.0, self.kept_share)

    @property
    def measured_if_filled(self) -> float:
        """The share of the step, 0 to 1, that `measured` would cover if the gaps were filled.

        Costs from instructions of the same shape count as measured; estimates do not.
        """
        same_us = sum(
            gap.total_us for gap in self.gaps if gap.basis is Origin.SAME_SHAPE
        )
        return Share(self.measured.covered + same_us, self.step_us).value or 0.0

    def meets_if_filled(self, bounds: Bounds) -> bool:
        """Whether the module would meet the bounds if the gaps were filled.

        Ambiguous collectives stay gaps: no name is known under which XLA would find their costs.
        """
        lost_us = sum(gap.weight_us for gap in self.gaps if gap.name in self.ambiguous)
        return bounds.are_met(self.measured_if_filled, self._kept_share(lost_us))

    def remedies(self, bounds: Bounds) -> tuple[Sentence, ...]:
        """Return what to do, each with a command. Filling gaps is proposed only if it can meet the
        bounds.
        """
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

    modules: tuple[ModuleCoverage, ...]  # one per module, the main module first
    unused: tuple[Cost, ...]  # costs that no module takes, in file order
    findings: tuple[Oddity, ...]  # oddities of the profile itself
    warnings: tuple[str, ...]  # one line each
    # the profile's own warnings; the conversion has already shown them
    inherited: tuple[str, ...] = ()

    @property
    def main(self) -> tuple[ModuleCoverage, ...]:
        """Every compilation of the main module; each process may have its own."""
        return tuple(module for module in self.modules if module.is_main)

    @property
    def invalid(self) -> tuple[Oddity, ...]:
        """Costs that are negative or not finite. XLA uses them unchanged."""
        return tuple(
            item
            for item in self.findings
            if item.fault in (Fault.NOT_FINITE, Fault.NEGATIVE)
        )

    @property
    def least_measured(self) -> ModuleCoverage:
        """The compilation of the main module with the smallest measured share."""
        return min(self.main, key=lambda module: module.measured.value or 0.0)

    def is_ok(self, bounds: Bounds) -> bool:
        """Whether every compilation of the main module meets the bounds, and no cost is negative or
        not finite.
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
        modules: final modules. A module from a schedule dump also works if there is no final one.
        lhs_modules: modules as LHS saw them, by module name.

    Raises:
        UserError: `modules` is empty.
    """
    if not modules:
        raise UserError(
            "no HLO module to compare the profile with", remedy="give --hlo a dump"
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
    """Return name and program id of the main module.

    It is the heaviest of the modules that the profile was made for, else the heaviest of all. All
    processes give one compilation the same program id. Another compilation of the same name in one
    process has another id and counts as another module.
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
        effective: the costs that `effective_costs` returns for the module.

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
    """Return where the names that instructions had when LHS ran come from."""
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
    """Return the costs that are far off their estimates, heaviest first."""
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
    """Add remedies to the coverage. If the profile holds a gap's cost under its run-time name, add
    that name to the gap.
    """
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
    """Yield remedies for what a module lacks, the likeliest cause first.

    Args:
        renamed: True if the profile has collectives of the module under their run-time names.
    """
    if item.is_of_others:
        yield Sentence.todo(
            "every name has another module's fingerprint; this module has "
            f"{item.fingerprint or 'none'}"
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
    """Yield what makes the coverage of a module doubtful."""
    if main.unchecked:
        yield (
            f"the profile states no opcode and no shape for {main.unchecked} of its names: they "
            "may match by accident"
        )
    dump = dumps.get(main.module)
    if dump is not None and dump.fingerprint != main.fingerprint and dump.fingerprint:
        yield (
            f"the schedule dump has fingerprint {dump.fingerprint[:12]}…, the HLO has "
            f"{main.fingerprint[:12]}…: names "
            "are compared with the schedule dump"
        )


Estimator = Callable[[Instruction], float]
"""Returns the estimated µs of one execution of an instruction, from its opcode and shapes."""

FILLED = (Origin.SAME_SHAPE, Origin.ESTIMATED)
"""Origins of costs that pgle filled in. No other cost is derived from such a cost."""

# fewest measured instructions of a kind that scale the estimates of that kind
MIN_NEIGHBOURS = 3

CALIBRATED_ON = 300
"""About the most measured instructions of a kind that scale its estimates. More change the factor
little.
"""


def fill(
    table: LookupTable,
    costs: Mapping[str, Cost],
    gaps: Collection[LookupRow],
    estimate: Estimator,
) -> dict[str, Cost]:
    """Return a cost for each gap, by row name.

    Args:
        costs: the known costs, by row name; valid ones of measured instructions fill the gaps.
        estimate: gives the cost if no measured instruction does the same work.
    """
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
    """Return the median cost in µs of measured instructions that do the same work as some gap, by
    signature.
    """
    # signatures look into fusions, which is slow, so rows that no gap can use are skipped
    alike = {(row.opcode, row.shape) for row in gaps}
    found: dict[Hashable, list[float]] = defaultdict(list)
    for row, cost_us in measured:
        if (row.opcode, row.shape) in alike:
            found[_signature(table, row)].append(cost_us)
    return {signature: median(values) for signature, values in found.items()}


def _signature(table: LookupTable, row: LookupRow) -> Hashable:
    """Return a key that is equal for instructions that do the same work."""
    group = (
        group_size(table.module, row.instruction)
        if row.kind is CostKind.COLLECTIVE
        else 0
    )
    return (
        row.opcode,
        row.shape,
        table.module.work(row.instruction),
        multiplies_as(table.module, row.instruction),
        group,
    )


def _factors(
    measured: Iterable[tuple[LookupRow, float]], estimate: Estimator
) -> Callable[[LookupRow], float]:
    """Return a function from a row to the factor for its estimate.

    The factor is the median of measured / estimated over the narrowest kind with enough
    instructions. It is 1 if no kind has enough.
    """
    known: dict[str, list[tuple[LookupRow, float]]] = defaultdict(list)
    for row, cost_us in measured:
        for kind in _kinds_of(row) if cost_us > 0 else ():
            known[kind].append((row, cost_us))

    @cache
    def of_kind(kind: str) -> float | None:
        """Return the median ratio of measured costs to estimates; None if too few were measured."""
        sample = known[kind][:: max(len(known[kind]) // CALIBRATED_ON, 1)]
        ratios = [
            cost_us / guess
            for row, cost_us in sample
            if (guess := estimate(row.instruction)) > 0
        ]
        return median(ratios) if len(ratios) >= MIN_NEIGHBOURS else None

    def factor(row: LookupRow) -> float:
        """Return by how much to multiply the estimate of a row, from the first kind that tells."""
        return next(
            (found for kind in _kinds_of(row) if (found := of_kind(kind)) is not None),
            1.0,
        )

    return factor


def _kinds_of(row: LookupRow) -> tuple[str, str]:
    """Return the kind of an instruction, then a wider kind to use if the first has too few
    measurements.
    """
    if row.kind is CostKind.COLLECTIVE:
        return row.opcode, "collective"
    return (
        f"{row.opcode} {row.instruction.fusion_kind}{row.instruction.custom_call_target}".strip(),
        "compute",
    )


@dataclass(frozen=True)
class Completion:
    """A profile with its gaps filled for one module."""

    profile: Profile  # the kept costs in their order, then the filled ones by name
    module: str  # name of the module
    target: str  # the hardware of the estimates
    wanted: int  # instructions and loops of the module that need a cost
    measured: int  # how many of `wanted` the given profile covers
    filled: tuple[Cost, ...]  # the new costs
    # about costs that were not times, or belonged to other instructions
    warnings: tuple[str, ...] = ()

    def count(self, origin: Origin) -> int:
        """Return how many of `filled` have this origin."""
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
        profile: any profile. Its valid costs are kept unchanged. Invalid costs (`Cost.is_valid`),
            and costs of another opcode or shape, count as gaps.
        lhs_module: the module as LHS saw it, if `module` is the final one and a schedule dump
            exists.
        with_fingerprint: prefix the names of filled costs with the module's fingerprint. This also
            happens if any name in the profile has a fingerprint.
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
    # A new cost comes last, so with a fingerprint it wins over a bare one. The bare one stays:
    # other modules may need it.
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
    """Return a profile of estimates for every schedulable instruction of a module."""
    estimate = estimator(module, hardware)
    rows = LookupTable(module).rows.values()
    costs = tuple(row.cost(estimate(row.instruction), Origin.ESTIMATED) for row in rows)
    return Profile(costs, provenance={"estimated_for": hardware.name})


def _without_invalid(profile: Profile) -> Profile:
    """Drop the costs that are not times, with a warning that names them."""
    invalid = [
        f"{cost.full_name} ({cost.cost_us:g})"
        for cost in profile.costs
        if not cost.is_valid
    ]
    if not invalid:
        return profile
    warning = (
        f"{len(invalid)} costs are not times, so they count as gaps: {some(invalid, 4)}"
    )
    valid = tuple(cost for cost in profile.costs if cost.is_valid)
    return replace(profile, costs=valid, warnings=(*profile.warnings, warning))


def _without_others(profile: Profile, table: LookupTable) -> Profile:
    """Drop the costs that XLA would use for an instruction of another opcode or shape, with a
    warning that names them.
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
    """Return the costs that can be written without changing the profile's costs for any module, by
    name.

    XLA takes the last of equal names, and uses a bare name for every module. A name that holds
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
    """Return the cost of a loop in µs: its trip count times the compute-stream time of one
    iteration.
    """
    total = 0.0
    for item in module.called_instructions(loop):
        if item.opcode == "while":
            total += _loop_us(module, item, costs_us)
        elif not is_start(item):
            total += costs_us.get(item.name, 0.0)
    return total * (trip_count(module, loop) or 1)
