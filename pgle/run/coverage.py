"""A profile and the HLO that it is for: `verify` checks it, `complete` fills its gaps, `carry` moves it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from pgle.costs.estimate.estimate import hardware_of
from pgle.costs.lookup.complete import Completion, complete_profile
from pgle.costs.lookup.coverage import Coverage, cover
from pgle.costs.lookup.table import LookupTable
from pgle.costs.profile.carry import Carried, carry, check_source, scale_by
from pgle.costs.profile.files import read_profile
from pgle.costs.profile.value import Profile
from pgle.errors import UserError
from pgle.files import AnyPath
from pgle.run.profiles import Written, check_output, write_profiles
from pgle.xla.hlo.dumps import Dumps, no_match, read_dumps
from pgle.xla.hlo.module import Module
from pgle.xla.hlo.reader import read_modules
from pgle.xla.hlo.schedule_dump import LhsSchedule, find_schedule_dumps, read_schedule_dump
from pgle.xla.targets import find_hardware, load_target


def verify(profile: AnyPath, hlo: Sequence[AnyPath], *, schedule: AnyPath | None = None, module: str = "") -> Coverage:
    """Hold a profile against HLO modules.

    Args:
        profile: the profile.
        hlo: dump files or directories; schedule dumps in them are used.
        schedule: a schedule dump, or a directory of them; of the compilation that the profile is meant for.
        module: regular expression searched in module names; empty: all.

    Raises:
        UserError: an input is missing or damaged, or nothing is left to compare.
    """
    return cover(read_profile(profile), *_modules_and_schedules(hlo, schedule, module))


def _modules_and_schedules(
    hlo: Sequence[AnyPath], schedule: AnyPath | None, pattern: str
) -> tuple[list[Module], dict[str, LhsSchedule]]:
    """The modules that `pattern` matches, and schedule dumps by module name."""
    if not hlo and schedule is None:
        raise UserError("nothing to verify against", where="pgle verify", remedy="give --hlo DUMP")
    if schedule is not None and not schedule.exists():
        raise UserError("no such file or directory", where=schedule, remedy="check the path")
    places = [schedule] if schedule is not None else [path for path in hlo if path.exists()]
    dumps: dict[str, AnyPath] = {}
    for place in places:
        dumps = {**find_schedule_dumps(place), **dumps}
    if schedule is not None and not dumps:
        raise UserError(
            "no schedule dump (MODULE.schedule.txt or .pb)",
            where=schedule,
            remedy="dump with XLA_FLAGS='--xla_dump_to=DIR --xla_dump_latency_hiding_schedule=true'",
        )
    schedules = {name: read_schedule_dump(file) for name, file in dumps.items() if re.search(pattern, name)}
    modules = _modules(hlo, schedules)
    chosen = [module for module in modules if re.search(pattern, module.name)]
    if not chosen:
        raise no_match(pattern, modules)
    if schedule is not None and not schedules.keys() & {module.name for module in chosen}:
        what = f"schedule of {', '.join(dumps)}, not of {chosen[0].name}"
        raise UserError(what, where=schedule, remedy="give the dump of the same program, or leave --schedule out")
    return chosen, schedules


def _modules(paths: Sequence[AnyPath], schedules: Mapping[str, LhsSchedule]) -> list[Module]:
    """The modules of the HLO dumps; where there are schedule dumps only, the modules of these."""
    modules: list[Module] = []
    for path in paths:
        try:
            modules += read_modules(path)
        except UserError:
            if not (path.is_dir() and schedules):
                raise
    by_source = {schedule.source: schedule.module for schedule in schedules.values()}
    # a schedule dump given as --hlo is read twice: the very object tells that it needs no translation
    modules = [by_source.get(module.source, module) for module in modules]
    return modules or [schedule.module for schedule in schedules.values()]


def complete_file(
    profile: AnyPath,
    hlo: Sequence[AnyPath],
    output: AnyPath,
    *,
    target: str,
    module: str = "",
    devices_per_host: int = 8,
    force: bool = False,
) -> tuple[tuple[Completion, ...], Written]:
    """Read, fill and write.

    Args:
        profile: may have gaps.
        hlo: dump files or directories.
        output: ``.pbtxt`` or ``.pb``.
        target: a GPU's name or description.
        module: regular expression searched in module names; empty: the module that the profile has most costs of.
        devices_per_host: GPUs that share NVLink.
        force: overwrite.

    Returns:
        What was filled, for each module, of which the last holds the whole profile; and its file.

    Raises:
        UserError: an input is bad, no module matches, or the output exists; nothing is then written.
    """
    inputs = (profile, *hlo)
    check_output(output, force=force, inputs=inputs)
    given, hardware = read_profile(profile), find_hardware(load_target(target), devices_per_host=devices_per_host)
    completions: list[Completion] = []
    dumps = read_dumps(hlo)
    chosen = _covered_modules(given, dumps, module)
    if not chosen:
        raise UserError(
            "has no cost of any instruction of the modules given",
            where=profile,
            remedy="give --hlo the dump of the program it was made for; 'pgle verify' shows what matches",
        )
    for final in chosen:  # bare names of one module would count for the others
        lhs_module = dumps.lhs_module(final.name)
        several = len(chosen) > 1
        completions.append(complete_profile(given, final, hardware, lhs_module=lhs_module, with_fingerprint=several))
        given = completions[-1].profile
    (written,) = write_profiles({output: given}, force=force, inputs=inputs)
    return tuple(completions), written


def carry_file(
    profile: AnyPath,
    old: AnyPath,
    new: AnyPath,
    output: AnyPath,
    *,
    target: str = "",
    devices_per_host: int = 8,
    module: str = "",
    force: bool = False,
) -> tuple[Carried, Written]:
    """Read, carry and write.

    Args:
        profile: of `old`.
        old: dump file or directory of the module that the profile was measured on.
        new: of the module that it is wanted for.
        output: ``.pbtxt`` or ``.pb``.
        target: the GPU by whose links collectives of another size are scaled; empty: as the new dump says.
        devices_per_host: GPUs that share NVLink.
        module: regular expression searched in module names; empty: the module that the profile has most costs of.
        force: overwrite.

    Raises:
        UserError: an input is bad, no module matches, nothing can be carried, or the output exists.
    """
    check_output(output, force=force, inputs=(profile, old, new))
    given, before, after = read_profile(profile), read_dumps([old]), read_dumps([new])
    sources = _covered_modules(given, before, module)
    if not sources:
        remedy = "give --from the dump of the program that it was measured on"
        raise UserError("has no cost of any instruction of the old module", where=profile, remedy=remedy)
    source = sources[0]
    named = [item for item in after.modules if item.name == source.name]
    wanted = named or [item for item in after.modules if re.search(module or ".", item.name)]
    if not wanted:
        raise no_match(module or source.name, after.modules)
    target_module = max(wanted, key=lambda item: len(item.instructions))
    one, other = (
        LookupTable(source, before.lhs_module(source.name)),
        LookupTable(target_module, after.lhs_module(target_module.name)),
    )
    found = (
        find_hardware(load_target(target), devices_per_host=devices_per_host) if target else hardware_of(target_module)
    )
    check_source(given, one, profile)
    carried = carry(given, one, other, scale_by(one, other, found))
    if not carried.matches:
        remedy = "check --from and --to: these modules share no instruction"
        raise UserError("nothing of it can be carried", where=profile, remedy=remedy)
    (written,) = write_profiles({output: carried.profile}, force=force, inputs=(profile, old, new))
    return carried, written


def _covered_modules(profile: Profile, dumps: Dumps, pattern: str) -> list[Module]:
    """The modules to complete for, which `pattern` matches and the profile has costs of.

    By default the one that the profile has most costs of: small helper modules share a name or two by accident. Where
    costs are named by fingerprint, each module that is named.
    """
    found = {(module.name, module.fingerprint): module for module in dumps.modules}
    counts = {key: len(LookupTable(module).costs(profile)) for key, module in found.items()}
    if pattern:
        chosen = [key for key in found if re.search(pattern, key[0])]
    elif named := {cost.fingerprint for cost in profile.costs} - {""}:
        chosen = [key for key in found if key[1] in named]
    else:
        chosen = [max(counts, key=lambda key: counts[key])]
    return [found[key] for key in chosen if counts[key]]
