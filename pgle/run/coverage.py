"""Compare a profile with HLO: `verify` checks it, `complete` fills its gaps, `carry` moves it to
another compilation.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pgle.costs.estimate.estimate import estimator
from pgle.costs.measure.contention import as_if_alone
from pgle.costs.profile.carry import (
    LEAST_KNOWN,
    By,
    Carried,
    carry,
    check_source,
    known_share,
    scale_by,
)
from pgle.costs.profile.coverage import Completion, Coverage, complete_profile, cover
from pgle.costs.profile.files import profile_files, read_profile
from pgle.costs.profile.lookup import LookupTable
from pgle.costs.profile.value import Profile
from pgle.errors import UserError, in_percent, many
from pgle.files import AnyPath, write_files
from pgle.requests.profiles import Carry, Complete
from pgle.run.directory.directory import RunDirectory
from pgle.run.target import gpu_of, same_gpu_of
from pgle.run.written import Written, check_output, write_profiles
from pgle.xla.hlo.dumps import Dumps, no_match, read_dumps, read_module, read_modules
from pgle.xla.hlo.module import Module
from pgle.xla.hlo.schedule_dump import find_schedule_dumps
from pgle.xla.log.verdict import BOUNDS, Bounds
from pgle.xla.targets import Hardware, load_target


def verify(profile: AnyPath, hlo: Sequence[AnyPath], *, module: str = "") -> Coverage:
    """Return what a profile covers of the HLO modules in dumps, files or directories.

    Args:
        profile: the profile file.
        hlo: the dumps; schedule dumps among them are used.
        module: regular expression for module names; empty: all modules.
    """
    given = read_profile(profile)
    if not hlo:
        raise UserError(
            "nothing to verify against", where="pgle verify", remedy="give --hlo DUMP"
        )
    dumps = _dumps(hlo, module)
    chosen = [item for item in dumps.modules if re.search(module, item.name)]
    if not chosen:
        raise no_match(module, [item.name for item in dumps.modules] or dumps.schedules)
    return _covered_by(given, dumps, chosen)


def _dumps(paths: Sequence[AnyPath], wanted: str) -> Dumps:
    """Read the dumps in files and directories. If a directory has schedule dumps only, read the
    modules that match `wanted`.

    The other modules are skipped, since a job that ended early leaves truncated dumps.
    """
    schedules: dict[str, AnyPath] = {}
    for path in paths:
        schedules = (
            {**find_schedule_dumps(path), **schedules} if path.exists() else schedules
        )
    modules: list[Module] = []
    for path in paths:
        try:
            modules += read_modules(path)
        except UserError:
            if not (path.is_dir() and schedules):
                raise
    modules = modules or [
        read_module(file) for name, file in schedules.items() if re.search(wanted, name)
    ]
    return Dumps(tuple(paths), tuple(modules), schedules)


def complete_file(
    request: Complete,
) -> tuple[tuple[Completion, ...], Coverage, Written]:
    """Fill the gaps of a profile with estimates, and write the profile.

    Returns:
        The completion of each module (the last one holds the whole profile), what the profile then
        covers, and the file.

    Raises:
        UserError: the dump is of another generation of GPUs than the target.
    """
    inputs = (request.profile, *request.hlo)
    check_output(request.output, force=request.force, inputs=inputs)
    given = read_profile(request.profile)
    named = load_target(request.target) if request.target else None
    completions: list[Completion] = []
    dumps = read_dumps(request.hlo)
    chosen = _covered_modules(given, dumps, request.module)
    if not chosen:
        remedy = (
            "give --hlo the dump of the program it was made for; 'pgle verify' shows what "
            "matches"
        )
        raise UserError(
            "has no cost of any instruction of the modules given",
            where=request.profile,
            remedy=remedy,
        )
    for final in chosen:  # names without a module would count for other modules too
        lhs_module = dumps.lhs_module(final.name)
        several = len(chosen) > 1
        hardware = replace(
            same_gpu_of(final, named).hardware,
            devices_per_host=request.devices_per_host,
        )
        completions.append(
            complete_profile(
                given, final, hardware, lhs_module=lhs_module, with_fingerprint=several
            )
        )
        given = completions[-1].profile
    (written,) = write_profiles(
        {request.output: given}, force=request.force, inputs=inputs
    )
    return tuple(completions), _covered_by(given, dumps, dumps.modules), written


def _covered_by(profile: Profile, dumps: Dumps, modules: Sequence[Module]) -> Coverage:
    """Return what a profile covers of some modules."""
    lhs_modules = {item.name: dumps.lhs_module(item.name) for item in modules}
    return cover(profile, modules, lhs_modules)


def carry_file(request: Carry) -> tuple[Carried, Coverage, Written]:
    """Move a profile from the module in an old dump to the module in a new dump, and write the
    result.

    Returns:
        The moved profile, what it covers of the new module, and the file.

    Raises:
        UserError: the new dump is of another generation of GPUs than the target.
    """
    profile, module = request.profile, request.module
    inputs = (profile, request.old, request.new)
    check_output(request.output, force=request.force, inputs=inputs)
    given = read_profile(profile)
    before = read_dumps([request.old])
    after = read_dumps([request.new])
    sources = _covered_modules(given, before, module)
    if not sources:
        remedy = "give --from the dump of the program that it was measured on"
        raise UserError(
            "has no cost of any instruction of the old module",
            where=profile,
            remedy=remedy,
        )
    source = sources[0]
    named = [item for item in after.modules if item.name == source.name]
    wanted = named or [
        item for item in after.modules if re.search(module or ".", item.name)
    ]
    if not wanted:
        raise no_match(module or source.name, [item.name for item in after.modules])
    goal = max(wanted, key=lambda item: len(item.instructions))
    one = table_of(before, source)
    other = table_of(after, goal)
    target = load_target(request.target) if request.target else None
    gpu = same_gpu_of(goal, target).hardware
    hardware = replace(gpu, devices_per_host=request.devices_per_host)
    check_source(given, one, profile)
    carried = carry(given, one, other, scale_by(one, other, hardware))
    if not carried.matches:
        remedy = "check --from and --to: these modules share no instruction"
        raise UserError(
            "none of its costs can be carried over", where=profile, remedy=remedy
        )
    (written,) = write_profiles(
        {request.output: carried.profile}, force=request.force, inputs=inputs
    )
    return carried, _covered_by(carried.profile, after, after.modules), written


def _covered_modules(profile: Profile, dumps: Dumps, pattern: str) -> list[Module]:
    """Return the modules to complete: those that `pattern` matches and that the profile has costs
    of.

    Without a pattern, return the module with most costs in the profile, since small helper modules
    share some names by accident. If costs name fingerprints, return every named module.
    """
    found = {(module.name, module.fingerprint): module for module in dumps.modules}
    counts = {
        key: len(LookupTable(module).costs(profile)) for key, module in found.items()
    }
    if pattern:
        chosen = [key for key in found if re.search(pattern, key[0])]
    elif named := {cost.fingerprint for cost in profile.costs} - {""}:
        chosen = [key for key in found if key[1] in named]
    else:
        chosen = [max(counts, key=lambda key: counts[key])]
    return [found[key] for key in chosen if counts[key]]


def carried_over(
    path: AnyPath, given: Profile, table: LookupTable, hardware: Hardware
) -> tuple[Profile, str]:
    """Return the profile. If it covers too little of a module, carry it over to this module.

    The profile must be in a run directory that holds the HLO of the profile run. The hardware
    scales costs of other sizes.

    Returns:
        The profile, and a note on what was carried over (empty if nothing).
    """
    costs = table.costs(given).values()
    if (
        all(cost.shape for cost in costs)
        and _covered(given, table, hardware) >= BOUNDS.time
    ):
        return given, ""
    for old in _measured_on(path, given):
        covered = _covered(given, table, hardware, old)
        if known_share(given, old) < LEAST_KNOWN:
            break
        if covered >= BOUNDS.time or _covered(given, old, hardware) < BOUNDS.time:
            break
        carried = carry(given, old, table, scale_by(old, table, hardware))
        now = _covered(carried.profile, table, hardware)
        if now > covered:
            scaled = many(carried.count(By.SCALED), "cost")
            left = many(len(carried.left), "instruction")
            note = (
                "the profile is of another compilation: it has costs for "
                f"{in_percent(covered, 0)} of this module's time. Carried over from "
                f"{old.module.name} of its run directory: {in_percent(now, 0)} ({scaled} "
                f"scaled by estimates, {left} without a cost)"
            )
            return replace(carried.profile, warnings=(*given.warnings, note)), note
    return given, ""


def measured_for(
    path: Path, table: LookupTable, hardware: Hardware
) -> tuple[Profile, str]:
    """Return a profile's costs for a module, with every kernel as if it ran alone.

    Returns:
        The costs, and a note on what was carried over from another compilation (empty if nothing).

    Raises:
        UserError: the profile has no cost of any instruction of the module.
    """
    given, note = carried_over(path, read_profile(path), table, hardware)
    found = as_if_alone(given, table.module)
    if not table.costs(found):
        remedy = (
            "is it of this program, with these flags? 'pgle verify' shows what matches"
        )
        raise UserError(
            "has no cost of any instruction here", where=path, remedy=remedy
        )
    return found, note


@dataclass(frozen=True)
class MeasuredCosts:
    """Measured costs of a program that other compilations of this program can use."""

    profile: Profile
    table: LookupTable  # what XLA looks up in the unchanged program
    hardware: Hardware  # whose estimates scale costs

    def of(self, other: LookupTable) -> Profile:
        """Return the costs of another compilation's instructions, under its names: of those that
        both share as they are, of those that multiply or store other types scaled by estimates.
        """
        scale = scale_by(self.table, other, self.hardware)
        return carry(self.profile, self.table, other, scale).profile


@dataclass(frozen=True)
class Fit:
    """How well a profile fits the program that will use it."""

    profile: Path  # the profile to use
    coverage: Coverage  # the program's instructions for which XLA finds a cost
    note: str = ""  # what was carried over from another compilation; empty if nothing


def find_fit(profile: Path, hlo: Path, bounds: Bounds) -> Fit:
    """Return how well a profile fits the program in a folder of HLO.

    If the profile covers too little, carry it over and write the result next to it. If that is not
    possible, return the fit of the original profile.
    """
    found = verify(profile, [hlo])
    if found.is_ok(bounds):
        return Fit(profile, found)
    carried, note = _carried(profile, hlo)
    if carried is None:
        return Fit(profile, found)
    path = profile.with_name("profile.carried.pbtxt")
    write_files(profile_files(path, carried), force=True)
    return Fit(path, verify(path, [hlo]), note)


def _carried(profile: Path, hlo: Path) -> tuple[Profile | None, str]:
    """Return the profile, carried over to the program in a folder of HLO, and a note. The profile
    is None if nothing was carried over.
    """
    dumps = read_dumps([hlo])
    module = max(dumps.modules, key=lambda item: len(LookupTable(item).rows))
    table = table_of(dumps, module)
    given = read_profile(profile)
    carried, note = carried_over(profile, given, table, gpu_of(module.source).hardware)
    return (carried, note) if note else (None, "")


def table_of(dumps: Dumps, module: Module) -> LookupTable:
    """Return what XLA looks up for a module."""
    return LookupTable(module, dumps.lhs_module(module.name))


def _covered(
    profile: Profile,
    table: LookupTable,
    hardware: Hardware,
    old: LookupTable | None = None,
) -> float:
    """Return the share (0 to 1) of a module's estimated time for which the profile has a valid
    cost. A cost is invalid if it is known to belong to a different instruction.

    Args:
        profile: the profile.
        table: the names that XLA looks up for the module.
        hardware: the GPU of the estimates.
        old: the names of the module that was measured, to detect names with a changed meaning.
    """
    estimate = estimator(table.module, hardware)
    times = {
        name: estimate(row.instruction) * row.executions
        for name, row in table.rows.items()
    }
    before = {} if old is None else old.rows
    own = 0.0
    for name, cost in table.costs(profile).items():
        row = table.rows[name]
        was = before.get(name)
        is_same = was is None or (was.opcode, was.shape) == (row.opcode, row.shape)
        if is_same and not row.differs(cost):
            own += times[name]
    total = sum(times.values())
    return own / total if total else 1.0


def _measured_on(path: AnyPath, profile: Profile) -> Iterator[LookupTable]:
    """Yield what XLA looked up in the profile run, if the profile is in a run directory."""
    folders = path.resolve().parents[:2] if isinstance(path, Path) else ()
    # RUN/profile.pbtxt, RUN/profiles/profile-HASH.pbtxt
    for run in map(RunDirectory, folders):
        if not run.is_recorded:
            continue
        try:
            dumps = read_dumps([run.stage("profile").rank().hlo])
        except UserError:
            continue
        tables = [table_of(dumps, module) for module in dumps.modules]
        if tables:
            yield max(tables, key=lambda table: len(table.costs(profile)))
