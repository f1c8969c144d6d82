"""How well a profile fits HLO modules: what is covered, what is missing, what matches only by name, what is unused.

A cost counts where XLA would find it: under the name an instruction had when LHS ran. Where the profile knows opcode
and shape, a name that now belongs to another instruction is a mismatch and no coverage.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from pgle.costs.estimate.estimate import estimator, hardware_of
from pgle.costs.lookup.fill import FILLED
from pgle.costs.lookup.gaps import Gap, Mismatch, NearNames, Unused, find_unused, weigh, weigh_gaps
from pgle.costs.lookup.table import LookupTable
from pgle.costs.profile.effective import Fault, Finding, effective_costs, profile_findings
from pgle.costs.profile.value import Cost, CostKind, Origin, Profile, module_records
from pgle.errors import UserError
from pgle.next import COMPLETE, CONVERT, PROFILE, PROFILE_SYNC
from pgle.xla.checker import CheckerCounts, checker_counts, fallback_of
from pgle.xla.collectives import is_done
from pgle.xla.hlo.module import Module
from pgle.xla.hlo.schedule_dump import LhsSchedule
from pgle.xla.log.module_verdict import MOSTLY_UNKNOWN, Bounds

GAPS_WITH_NEAR_NAMES = 200  # gaps, heaviest first, for which similar names are looked for; nobody reads more


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
    against: str  # ``schedule dump``, ``scheduling names`` or ``final names``: where LHS names come from
    # instructions with a cost, of those that want one; copies and conditions of loops that LHS does not schedule only
    # where they have one
    count: Share
    time: Share  # µs per execution of the module; see `Gap.weight_us` for what gaps weigh
    collectives: Share  # collectives with a cost
    costs: Mapping[str, Cost]  # what XLA finds, by the name when LHS ran, whatever it is worth
    step_us: float  # time of one execution, gaps as estimated
    lost_us: float  # weight of collectives without a cost
    basis: Mapping[str, int]  # instructions by the source of their cost: ``profile``, ``same-shape``, ``estimated``
    estimated_for: str  # the GPU of the estimates, empty where none was needed
    filled_in: int  # covered by costs that nobody measured
    gaps: tuple[Gap, ...]  # without a cost, heaviest first; mismatches are among them
    mismatches: tuple[Mismatch, ...]  # names that belong to another instruction
    unchecked: int  # covered names of which the profile knows neither opcode nor shape
    own_names: int  # costs under this module's fingerprint; `bare_names`: under none; `other_names`: under others
    bare_names: int
    other_names: int
    # asynchronous fusions and copies whose done has a cost; XLA adds it to the cost of the start
    dones: tuple[str, ...]
    log: CheckerCounts | None  # what XLA's accuracy checker would count; None without a schedule dump
    fallback: str  # what XLA takes gaps for: ``T-shirt sizes``, or its ``speed-of-light model``
    hints: tuple[str, ...] = ()  # what to do, each with a command

    @property
    def kept_share(self) -> float:
        """1 less what collectives without a cost weigh, as a part of the step; not below 0."""
        return max(1 - self.lost_us / self.step_us, 0.0) if self.step_us > 0 else 1.0

    def meets(self, bounds: Bounds) -> bool:
        """Whether enough of it is covered."""
        return bounds.are_met(self.time.value or 0.0, self.kept_share)


@dataclass(frozen=True)
class Coverage:
    """A profile compared with modules, the main module first."""

    modules: tuple[ModuleCoverage, ...]  # one each
    unused: tuple[Unused, ...]  # costs that no module takes
    findings: tuple[Finding, ...]  # what is odd about the profile itself
    warnings: tuple[str, ...]  # one line each
    inherited: tuple[str, ...] = ()  # those of the profile itself, which its conversion gave already

    @property
    def main(self) -> tuple[ModuleCoverage, ...]:
        """Every compilation of the main module; each process may have its own."""
        return tuple(module for module in self.modules if module.is_main)

    @property
    def invalid(self) -> tuple[Finding, ...]:
        """Costs that are negative or not finite; XLA takes them as they are."""
        return tuple(item for item in self.findings if item.fault in (Fault.NOT_FINITE, Fault.NEGATIVE))

    def is_ok(self, bounds: Bounds) -> bool:
        """Whether every compilation of the main module meets the bounds and every cost is a number of microseconds."""
        return bool(self.main) and all(module.meets(bounds) for module in self.main) and not self.invalid


def cover(profile: Profile, modules: Sequence[Module], schedules: Mapping[str, LhsSchedule] | None = None) -> Coverage:
    """Hold a profile against modules.

    Args:
        modules: final modules; a module of a schedule dump will do where it is all there is.
        schedules: schedule dumps by module name.

    Raises:
        UserError: there is no module.
    """
    if not modules:
        raise UserError("no HLO module to hold the profile against", remedy="give --hlo a dump")
    dumps = {name: schedule.module for name, schedule in (schedules or {}).items()}
    tables = [LookupTable(module, dumps.get(module.name)) for module in modules]
    named = {cost.fingerprint for cost in profile.costs}
    keys = [module.fingerprint if module.fingerprint in named else "" for module in modules]
    effective = {key: effective_costs(profile, key) for key in dict.fromkeys(keys)}
    found = [cover_module(profile, table, effective[key]) for table, key in zip(tables, keys, strict=True)]
    unused = find_unused(profile, tables, [effective[key] for key in keys])
    main = _main(profile, found)
    near = NearNames(unused)
    done = []
    for item, table in zip(found, tables, strict=True):
        marked = replace(item, is_main=(item.module, item.program_id) == main)
        done.append(_with_hints(marked, table, near) if marked.is_main or marked.count.covered else marked)
    done.sort(key=lambda item: (not item.is_main, -item.step_us))
    return Coverage(tuple(done), unused, profile_findings(profile), tuple(_warnings(done[0], dumps)), profile.warnings)


def _main(profile: Profile, found: Sequence[ModuleCoverage]) -> tuple[str, int | None]:
    """Name and program id of the main module: of those that the profile was made for, else of all, the heaviest.

    Processes share program ids; another compilation of the same name in one process has its own and is another module.
    """
    for record in module_records(profile.provenance):
        named = [item for item in found if item.module == record.get("name")]
        same = [item for item in named if item.program_id == record.get("program_id")]
        if named:
            found = same or named
            break
    main = max(found, key=lambda item: (item.time.covered, item.step_us))
    return main.module, main.program_id


def cover_module(profile: Profile, table: LookupTable, effective: Mapping[str, Cost]) -> ModuleCoverage:
    """Hold a profile against one module, by what `effective_costs` gives for it; without hints."""
    module, rows = table.final, table.rows
    found = table.find(effective)
    covered = {name: cost for name, cost in found.items() if cost.is_valid and not rows[name].differs(cost)}
    lost = {name: found.get(name) for name in rows if name not in covered}
    hardware = hardware_of(module)
    missed = {name: cost for name, cost in lost.items() if cost is not None or not rows[name].is_optional}
    gaps = weigh_gaps(table, covered, missed, estimator(table.module, hardware))
    covered_us = sum(weigh(cost.cost_us, rows[name]) for name, cost in covered.items())
    basis = {str(origin): sum(gap.basis == origin for gap in gaps) for origin in FILLED}
    dones = {item.name for item in table.module.walk() if is_done(item)}
    prefixes = [cost.fingerprint for cost in profile.costs]
    return ModuleCoverage(
        module=module.name,
        program_id=module.program_id,
        fingerprint=module.fingerprint,
        source=module.source,
        is_main=False,
        against=_against(table),
        count=Share(len(covered), len(covered) + len(gaps)),
        time=Share(covered_us, covered_us + sum(gap.weight_us for gap in gaps)),
        collectives=Share(
            sum(rows[name].kind is CostKind.COLLECTIVE for name in covered),
            sum(row.kind is CostKind.COLLECTIVE for row in rows.values()),
        ),
        costs=found,
        step_us=covered_us + sum(gap.total_us for gap in gaps),
        lost_us=sum(gap.weight_us for gap in gaps if gap.kind is CostKind.COLLECTIVE),
        basis={"profile": len(covered)} | {origin: count for origin, count in basis.items() if count},
        estimated_for=hardware.name if basis[Origin.ESTIMATED] else "",
        filled_in=sum(cost.origin in (*FILLED, Origin.SIMULATED) for cost in covered.values()),
        gaps=gaps,
        mismatches=tuple(
            Mismatch(cost.name, cost.cost_us, f"{cost.opcode} {cost.shape}", f"{row.opcode} {row.shape}")
            for name, cost in lost.items()
            if cost is not None and cost.is_valid and (row := rows[name])
        ),
        unchecked=sum(not cost.opcode and not cost.shape for cost in covered.values()),
        own_names=sum(bool(prefix) and prefix == module.fingerprint for prefix in prefixes),
        bare_names=prefixes.count(""),
        other_names=sum(bool(prefix) and prefix != module.fingerprint for prefix in prefixes),
        dones=tuple(name for name in effective if name in table.consulted and name in dones),
        log=checker_counts(table.module, effective) if table.lhs_module is not None else None,
        fallback=fallback_of(module),
    )


def _against(table: LookupTable) -> str:
    if table.lhs_module is not None:
        return "schedule dump"
    annotated = any(row.instruction.scheduling_name for row in table.rows.values())
    return "scheduling names" if annotated else "final names"


def _with_hints(item: ModuleCoverage, table: LookupTable, near: NearNames) -> ModuleCoverage:
    by_lhs_name: dict[str, list[str]] = {}
    for run_time, name in table.run_time_names.items():
        by_lhs_name.setdefault(name, []).append(run_time)
    gaps = [near.hint(gap, by_lhs_name.get(gap.name, ())) for gap in item.gaps[:GAPS_WITH_NEAR_NAMES]]
    full = replace(item, gaps=(*gaps, *item.gaps[GAPS_WITH_NEAR_NAMES:]))
    return replace(full, hints=tuple(_hints(full, len(table.ambiguous))))


def _hints(item: ModuleCoverage, ambiguous: int) -> Iterator[str]:
    """Remedies for what a module lacks, the likeliest cause first."""
    if item.other_names and not item.own_names and not item.bare_names:
        yield f"every name is for another fingerprint; this module is {item.fingerprint or 'without one'}"
    is_foreign = (item.count.value or 0.0) < MOSTLY_UNKNOWN
    if is_foreign:
        also = f" ({len(item.mismatches)} names are of another opcode or shape there)" if item.mismatches else ""
        yield (
            f"this profile was made by another program, flags or jax version{also}: profile this program with "
            f"'{PROFILE}'"
        )
    lost = [gap for gap in item.gaps if gap.kind is CostKind.COLLECTIVE and not is_foreign]
    if any(gap.hint for gap in lost):
        yield (
            f"the profile has collectives under other names: '{CONVERT}' translates them, if LHS "
            "was on in the profile run, or DUMP has a schedule dump of the performance run"
        )
    elif lost and not ambiguous:
        yield (
            "the profile lacks collectives: convert the trace of all streams with its HLO "
            f"('{CONVERT}'), or profile again ('{PROFILE}')"
        )
    if ambiguous:
        yield (
            f"{ambiguous} collectives were renamed after scheduling and the dump does not say from what: "
            f"give --schedule, or profile with LHS on ('{PROFILE_SYNC}')"
        )
    if item.mismatches and not is_foreign:
        yield (
            "names of another opcode or shape come from another program or another jax: profile this one again with "
            f"'{PROFILE}'"
        )
    if item.gaps and not is_foreign:
        yield f"fill gaps from same-shape instructions and estimates with '{COMPLETE}'"


def _warnings(main: ModuleCoverage, dumps: Mapping[str, Module]) -> Iterator[str]:
    if main.unchecked:
        yield f"the profile says neither opcode nor shape of {main.unchecked} of its names: they may match by accident"
    if main.own_names + main.bare_names == 0 and main.other_names:
        yield f"XLA takes nothing of it for {main.module}: every name carries another fingerprint"
    if main.dones:
        yield (
            f"{len(main.dones)} costs are of dones of asynchronous fusions or copies (first {main.dones[0]}): XLA "
            "adds each to the cost of its start; leave them out"
        )
    dump = dumps.get(main.module)
    if dump is not None and dump.fingerprint != main.fingerprint and dump.fingerprint:
        yield (
            f"the schedule dump is of fingerprint {dump.fingerprint[:12]}…, the HLO of {main.fingerprint[:12]}…: names "
            "are compared with the schedule dump"
        )
