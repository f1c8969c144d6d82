"""A profile as a module needs it: as it is, or carried over from the module that it was measured on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from pgle.costs.estimate.estimate import estimator
from pgle.costs.lookup.complete import fill
from pgle.costs.lookup.table import LookupTable
from pgle.costs.profile.carry import LEAST_KNOWN, By, carry, known_share, scale_by
from pgle.costs.profile.value import CostKind, Profile
from pgle.errors import UserError, many
from pgle.files import AnyPath
from pgle.run.directory.directory import RunDirectory
from pgle.xla.hlo.dumps import read_dumps
from pgle.xla.log.module_verdict import BOUNDS
from pgle.xla.targets import Hardware


@dataclass(frozen=True)
class Fitted:
    """A profile for one module."""

    profile: Profile
    note: str = ""  # what was carried, in one line; empty: the profile is as it was given


def fitted(path: AnyPath, given: Profile, table: LookupTable, hardware: Hardware) -> Fitted:
    """Carry a profile over if it covers too little of a module and lies in a run directory, which has the measured one.

    Args:
        path: of the profile.
        given: what it holds.
        table: of the module that it is wanted for.
        hardware: the GPU by which costs of another size are scaled.
    """
    costs = table.costs(given).values()
    if all(cost.shape for cost in costs) and _covered(given, table, hardware) >= BOUNDS.time:
        return Fitted(given)
    for old in _measured_on(path, given):
        covered = _covered(given, table, hardware, old)
        if known_share(given, old) < LEAST_KNOWN:
            break
        if covered >= BOUNDS.time or _covered(given, old, hardware) < BOUNDS.time:
            break
        carried = carry(given, old, table, scale_by(old, table, hardware))
        now = _covered(carried.profile, table, hardware)
        if now > covered:
            scaled, left = many(carried.count(By.SCALED), "cost"), many(len(carried.left), "instruction")
            note = (
                f"the profile is of another compilation: it has costs for {100 * covered:.0f} % of this module's time. "
                f"Carried over from {old.module.name} of its run directory: {100 * now:.0f} % ({scaled} scaled by "
                f"estimates, {left} without a cost)"
            )
            profile = replace(carried.profile, warnings=(*given.warnings, note))
            return Fitted(profile, note)
    return Fitted(given)


def under_other_flags(given: Profile, old: LookupTable, new: LookupTable, hardware: Hardware) -> tuple[Profile, int]:
    """A program's costs under the names that other flags give its instructions; each gets a cost.

    Args:
        given: of `old`.
        old: the program by the user's own flags.
        new: the same under other flags.
        hardware: for estimates.

    Returns:
        The profile, and how many collectives the program did not have before: their costs are scaled or estimated.
    """
    carried = carry(given, old, new, scale_by(old, new, hardware))
    costs = {match.name: match.cost for match in carried.matches}
    gaps = [row for name, row in new.rows.items() if name not in costs]
    fills, _ = fill(new, costs, gaps, estimator(new.module, hardware))
    measured = old.costs(given)
    others = (item for item in carried.matches if item.by is By.SCALED)
    scaled = {item.name for item in others if item.cost.cost_us != measured[item.was].cost_us}
    modelled = {row.name for row in gaps} | scaled
    profile = Profile((*costs.values(), *fills.values()), given.provenance)
    return profile, sum(new.rows[name].kind is CostKind.COLLECTIVE for name in modelled)


def _covered(profile: Profile, table: LookupTable, hardware: Hardware, old: LookupTable | None = None) -> float:
    """The share of a module's estimated time for which a profile has a cost that is not known to be of something else.

    Args:
        profile: the costs.
        table: of the module.
        hardware: for the estimates.
        old: of the module that the profile was measured on: says what a name meant there.
    """
    estimate = estimator(table.module, hardware)
    times = {name: estimate(row.instruction) * row.executions for name, row in table.rows.items()}
    before = {} if old is None else old.rows
    own = 0.0
    for name, cost in table.costs(profile).items():
        row, was = table.rows[name], before.get(name)
        if not row.differs(cost) and (was is None or (was.opcode, was.shape) == (row.opcode, row.shape)):
            own += times[name]
    total = sum(times.values())
    return own / total if total else 1.0


def _measured_on(path: AnyPath, profile: Profile) -> Iterator[LookupTable]:
    """What XLA looked up in the profile run, if the profile is in a run directory."""
    if not isinstance(path, Path):
        return
    where = path.resolve()
    for folder in where.parents[:2]:  # RUN/profile.pbtxt, RUN/profiles/profile-HASH.pbtxt
        run = RunDirectory(folder)
        if not run.is_recorded:
            continue
        try:
            dumps = read_dumps([run.stage("profile").rank().hlo])
        except UserError:
            continue
        tables = [LookupTable(module, dumps.lhs_module(module.name)) for module in dumps.modules]
        if tables:
            yield max(tables, key=lambda table: len(table.costs(profile)))
