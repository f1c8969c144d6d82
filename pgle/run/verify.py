"""Reading what `pgle verify` compares: a profile, HLO dumps, schedule dumps."""

from __future__ import annotations

import gc
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pgle.costs.fit.coverage import Coverage, cover
from pgle.costs.profile.files import read_profile
from pgle.errors import UserError
from pgle.files import AnyPath
from pgle.xla.hlo.module import Module
from pgle.xla.hlo.reader import read_modules
from pgle.xla.hlo.schedule_dump import LhsSchedule, find_schedule_dumps, read_schedule_dump


@dataclass(frozen=True)
class VerifyRequest:
    """What to verify.

    Attributes:
        profile: the profile.
        hlo: dump files or directories; schedule dumps in them are used.
        schedule: a schedule dump, or a directory of them; of the compilation that the profile is meant for.
        module: regular expression searched in module names; empty: all.
    """

    profile: AnyPath
    hlo: Sequence[AnyPath]
    schedule: AnyPath | None = None
    module: str = ""


def verify(request: VerifyRequest) -> Coverage:
    """Hold a profile against HLO modules.

    Raises:
        UserError: an input is missing or damaged, or nothing is left to compare.
    """
    was_enabled = gc.isenabled()
    gc.disable()  # a module has a million values and no cycles; each collection would walk them all
    try:
        return _verify(request)
    finally:
        if was_enabled:
            gc.enable()


def _verify(request: VerifyRequest) -> Coverage:
    profile = read_profile(request.profile)
    if not request.hlo and request.schedule is None:
        raise UserError("nothing to verify against", where="pgle verify", remedy="give --hlo DUMP")
    pattern = _pattern(request.module)
    if request.schedule is not None and not request.schedule.exists():
        raise UserError("no such file or directory", where=request.schedule, remedy="check the path")
    places = [request.schedule] if request.schedule is not None else [path for path in request.hlo if path.exists()]
    dumps: dict[str, AnyPath] = {}
    for place in places:
        for name, file in find_schedule_dumps(place).items():
            dumps.setdefault(name, file)
    if request.schedule is not None and not dumps:
        raise UserError(
            "no schedule dump (MODULE.schedule.txt or .pb)",
            where=request.schedule,
            remedy="dump with XLA_FLAGS='--xla_dump_to=DIR --xla_dump_latency_hiding_schedule=true'",
        )
    schedules = {name: read_schedule_dump(file) for name, file in dumps.items() if pattern.search(name)}
    modules = _modules(request.hlo, schedules)
    chosen = [module for module in modules if pattern.search(module.name)]
    if not chosen:
        names = ", ".join(dict.fromkeys(module.name for module in modules[:5]))
        raise UserError("no module of the dump matches", where=f"--module {request.module}", remedy=f"it has {names}")
    if request.schedule is not None and not schedules.keys() & {module.name for module in chosen}:
        what = f"schedule of {', '.join(dumps)}, not of {chosen[0].name}"
        raise UserError(
            what, where=request.schedule, remedy="give the dump of the same program, or leave --schedule out"
        )
    return cover(profile, chosen, schedules)


def _pattern(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as error:
        raise UserError(f"invalid regular expression ({error})", where=f"--module {text}") from None


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
