"""How well a profile fits HLO modules: what is covered, what is missing, what matches only by name, what is unused.

A cost counts where XLA would find it: under the name an instruction had when LHS ran. Where the profile knows opcode
and shape, a name that now belongs to another instruction is a mismatch and no coverage.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from pgle.costs.fit.coverage_hints import hints_of, warnings_of
from pgle.costs.fit.gap_weights import Basis, hardware_of, weigh_gaps
from pgle.costs.fit.gaps import Gap, NearNames, Unused, find_unused
from pgle.costs.fit.wanted import Wanted, WantedCosts, wanted_costs
from pgle.costs.profile.effective import Finding, effective_costs, profile_findings
from pgle.costs.profile.value import Cost, CostKind, Origin, Profile
from pgle.errors import UserError
from pgle.xla.checker import CheckerCounts, assumed_us, checker_counts, compute_capability
from pgle.xla.hlo.module import Module
from pgle.xla.hlo.names import unscheduled_conditions
from pgle.xla.hlo.schedule_dump import LhsSchedule

GAPS_WITH_NEAR_NAMES = 200
"""Gaps, heaviest first, for which similar names are looked for; nobody reads more."""


@dataclass(frozen=True, slots=True)
class Share:
    """Part of a whole."""

    covered: float
    total: float

    @property
    def value(self) -> float | None:
        """0 to 1; None of nothing."""
        return self.covered / self.total if self.total > 0 else None


@dataclass(frozen=True, slots=True)
class Mismatch:
    """A cost whose name belongs to an instruction of another opcode or shape in this module."""

    name: str
    cost_us: float
    profile_op: str
    module_op: str


@dataclass(frozen=True)
class ModuleCoverage:
    """A profile held against one module.

    Attributes:
        module: its name.
        program_id: None where unknown.
        fingerprint: empty where unknown.
        source: the dump it was read from.
        is_main: the module that the verdict is about.
        against: ``schedule dump``, ``scheduling names`` or ``final names``: where LHS names come from.
        count: instructions with a cost, of those that want one; copies and conditions of loops that LHS does not
            schedule only where they have one.
        time: µs per execution of the module; see `time_basis` for what gaps weigh.
        collectives: collectives with a cost.
        time_basis: instructions by what their weight stands on.
        estimated_for: the GPU of the estimates, empty where none was needed.
        filled_in: covered by costs that nobody measured.
        gaps: without a cost, heaviest first; mismatches are among them.
        mismatches: names that belong to another instruction.
        unchecked: covered names of which the profile knows neither opcode nor shape.
        own_names: costs under this module's fingerprint; `bare_names`: under none; `other_names`: under others.
        log: what XLA's accuracy checker would count; None without a schedule dump.
        fallback: what XLA takes gaps for: ``T-shirt sizes``, or its ``speed-of-light model``.
        hints: what to do, each with a command.
    """

    module: str
    program_id: int | None
    fingerprint: str
    source: str
    is_main: bool
    against: str
    count: Share
    time: Share
    collectives: Share
    time_basis: Mapping[Basis, int]
    estimated_for: str
    filled_in: int
    gaps: tuple[Gap, ...]
    mismatches: tuple[Mismatch, ...]
    unchecked: int
    own_names: int
    bare_names: int
    other_names: int
    log: CheckerCounts | None
    fallback: str
    hints: tuple[str, ...]


@dataclass(frozen=True)
class Coverage:
    """A profile held against modules, the main module first.

    Attributes:
        modules: one each.
        unused: costs that no module takes.
        findings: what is odd about the profile itself.
        warnings: one line each.
    """

    modules: tuple[ModuleCoverage, ...]
    unused: tuple[Unused, ...]
    findings: tuple[Finding, ...]
    warnings: tuple[str, ...]

    def is_ok(self, min_time_coverage: float) -> bool:
        """Whether every compilation of the main module (each process may have its own) reaches the bound."""
        main = [module for module in self.modules if module.is_main]
        return bool(main) and all((module.time.value or 0.0) >= min_time_coverage for module in main)


def cover(profile: Profile, modules: Sequence[Module], schedules: Mapping[str, LhsSchedule] | None = None) -> Coverage:
    """Hold a profile against modules.

    Args:
        profile: as read.
        modules: final modules; a module of a schedule dump will do where it is all there is.
        schedules: schedule dumps by module name.

    Raises:
        UserError: there is no module.
    """
    if not modules:
        raise UserError("no HLO module to hold the profile against", remedy="give --hlo a dump")
    schedules = schedules or {}
    wants = [wanted_costs(module, schedules.get(module.name)) for module in modules]
    found = [_cover_one(profile, module, wanted) for module, wanted in zip(modules, wants, strict=True)]
    unused = find_unused(profile, list(zip(modules, wants, strict=True)))
    main = _main(profile, found)
    near = NearNames(unused)
    marked = [replace(item, is_main=(item.module, item.program_id) == main) for item in found]
    done = [
        _with_hints(item, wanted, near) if item.is_main or item.count.covered else item
        for item, wanted in zip(marked, wants, strict=True)
    ]
    done.sort(key=lambda item: (not item.is_main, -item.time.total))
    return Coverage(tuple(done), unused, profile_findings(profile), (*profile.warnings, *warnings_of(done, schedules)))


def _main(profile: Profile, found: Sequence[ModuleCoverage]) -> tuple[str, int | None]:
    """Name and program id of the main module: of those that the profile was made for, else of all, the heaviest.

    Processes share program ids; another compilation of the same name in one process has its own and is another module.
    """
    made_for = profile.provenance.get("modules")
    for record in made_for if isinstance(made_for, Sequence) else ():
        if isinstance(record, Mapping):
            named = [item for item in found if item.module == record.get("name")]
            same = [item for item in named if item.program_id == record.get("program_id")]
            if named:
                found = same or named
                break
    main = max(found, key=lambda item: (item.time.covered, item.time.total))
    return main.module, main.program_id


def _cover_one(profile: Profile, module: Module, wanted: WantedCosts) -> ModuleCoverage:
    costs = effective_costs(profile, module.fingerprint)
    covered: list[tuple[Wanted, Cost]] = []
    gaps: list[Wanted] = []
    mismatches: list[Mismatch] = []
    conditions = unscheduled_conditions(wanted.module)
    for item in wanted.items.values():
        cost = next((costs[name] for name in item.accepted if name in costs), None)
        if cost is None and (item.opcode == "copy" or item.instruction.computation in conditions):
            continue  # copies change their names after LHS, and XLA's checker misses none; no schedule asks the others
        if cost is None:
            gaps.append(item)
        elif _differs(cost, item):
            gaps.append(item)
            mismatches.append(_mismatch(cost, item))
        else:
            covered.append((item, cost))
    hardware = hardware_of(module)
    weights = weigh_gaps(wanted.module, hardware, [(item, cost.cost_us) for item, cost in covered], gaps)
    covered_us = sum(_weight(cost.cost_us, item) for item, cost in covered)
    missing_us = sum(_weight(weight, item) for item, (weight, _) in zip(gaps, weights, strict=True))
    bases = [basis for _, basis in weights]
    mismatched = {item.name for item in mismatches}
    capability = compute_capability(module) or (0, 0)
    prefixes = [cost.fingerprint for cost in profile.costs]
    return ModuleCoverage(
        module=module.name,
        program_id=module.program_id,
        fingerprint=module.fingerprint,
        source=module.source,
        is_main=False,
        against=_against(wanted),
        count=Share(len(covered), len(covered) + len(gaps)),
        time=Share(covered_us, covered_us + missing_us),
        collectives=Share(
            sum(item.kind == CostKind.COLLECTIVE for item, _ in covered),
            sum(item.kind == CostKind.COLLECTIVE for item in wanted.items.values()),
        ),
        time_basis={Basis.PROFILE: len(covered)} | {basis: bases.count(basis) for basis in sorted(set(bases))},
        estimated_for=hardware.name if Basis.ESTIMATED in bases else "",
        filled_in=sum(cost.origin in _FILLED_IN for _, cost in covered),
        gaps=_gaps(wanted.module, gaps, weights, mismatched),
        mismatches=tuple(mismatches),
        unchecked=sum(not cost.opcode and not cost.shape for _, cost in covered),
        own_names=sum(bool(prefix) and prefix == module.fingerprint for prefix in prefixes),
        bare_names=prefixes.count(""),
        other_names=sum(bool(prefix) and prefix != module.fingerprint for prefix in prefixes),
        log=checker_counts(wanted.module, costs) if wanted.is_lhs else None,
        fallback="speed-of-light model" if capability >= (9, 0) else "T-shirt sizes",
        hints=(),
    )


_FILLED_IN = (Origin.ESTIMATED, Origin.SAME_SHAPE, Origin.SIMULATED)


def _against(wanted: WantedCosts) -> str:
    if wanted.is_lhs:
        return "schedule dump"
    annotated = any(item.instruction.scheduling_name for item in wanted.items.values())
    return "scheduling names" if annotated else "final names"


def _weight(cost_us: float, item: Wanted) -> float:
    return cost_us * item.executions if math.isfinite(cost_us) and cost_us > 0 else 0.0


def _differs(cost: Cost, item: Wanted) -> bool:
    opcodes = (item.opcode, item.instruction.opcode, "")
    return cost.opcode not in opcodes or (bool(cost.shape) and cost.shape not in item.shapes)


def _mismatch(cost: Cost, item: Wanted) -> Mismatch:
    return Mismatch(cost.name, cost.cost_us, f"{cost.opcode} {cost.shape}", f"{item.opcode} {item.shapes[0]}")


def _gaps(
    module: Module, items: Sequence[Wanted], weights: Sequence[tuple[float, Basis]], mismatched: set[str]
) -> tuple[Gap, ...]:
    gaps = [
        Gap(
            name=item.name,
            kind=item.kind,
            opcode=item.opcode,
            shape=item.shapes[0],
            weight_us=_weight(weight, item),
            basis=basis,
            assumed_us=assumed_us(module, item.instruction),
            is_mismatch=any(name in mismatched for name in item.accepted),
        )
        for item, (weight, basis) in zip(items, weights, strict=True)
    ]
    return tuple(sorted(gaps, key=lambda gap: (-gap.weight_us, gap.name)))


def _with_hints(item: ModuleCoverage, wanted: WantedCosts, near: NearNames) -> ModuleCoverage:
    by_lhs_name: dict[str, list[str]] = {}
    for run_time, name in wanted.run_time_names.items():
        by_lhs_name.setdefault(name, []).append(run_time)
    gaps = [near.hint(gap, by_lhs_name.get(gap.name, ())) for gap in item.gaps[:GAPS_WITH_NEAR_NAMES]]
    full = replace(item, gaps=(*gaps, *item.gaps[GAPS_WITH_NEAR_NAMES:]))
    return replace(full, hints=tuple(hints_of(full, wanted)))
