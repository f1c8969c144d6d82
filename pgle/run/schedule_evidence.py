"""What the dumps of a compilation prove about a profile.

A schedule dump shows the times that LHS assumed. The final modules show the names.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from pgle.costs.profile.value import Profile, effective_costs
from pgle.errors import UserError
from pgle.files import AnyPath, as_path
from pgle.xla.hlo.dumps import read_modules
from pgle.xla.hlo.module import Module
from pgle.xla.hlo.schedule_dump import (
    LhsSchedule,
    find_schedule_dumps,
    read_schedule_dump,
)
from pgle.xla.log.verdict import KnownCoverage, ScheduleEvidence

if TYPE_CHECKING:
    from pgle.costs.profile.coverage import ModuleCoverage
    from pgle.costs.profile.lookup import LookupTable

_DUMP = (
    "dump with XLA_FLAGS='--xla_dump_to=DIR "
    "--xla_dump_latency_hiding_schedule=true', LHS on"
)


def evidence_of(
    dump: AnyPath | LhsSchedule, wanted: str, profile: Profile
) -> ScheduleEvidence:
    """Return what a module's schedule dump proves about a profile.

    Args:
        dump: a schedule dump, parsed or not, or a folder of dumps.
        wanted: regular expression for the module; empty: the only one.
        profile: the profile that XLA was given.
    """
    schedule = dump if isinstance(dump, LhsSchedule) else _chosen(dump, wanted)
    return compare(schedule, profile)


def check_dumps(schedule: AnyPath) -> None:
    """Raise `UserError` if a file is not a schedule dump, or if a folder has none."""
    if not find_schedule_dumps(schedule):
        what = "no schedule dump in it" if schedule.is_dir() else "not a schedule dump"
        raise UserError(what, where=schedule, remedy=_DUMP)
    if not schedule.is_dir():
        read_schedule_dump(schedule)


def covered_by_final_names(
    profile: Profile, folder: AnyPath
) -> tuple[str, KnownCoverage]:
    """Return the name of the main module in a dump of final modules, and what the profile covers of
    it.
    """
    from pgle.costs.profile.coverage import cover

    covered = cover(profile, read_modules(folder)).main[0]
    return covered.module, _known(covered)


def compare(schedule: LhsSchedule, profile: Profile) -> ScheduleEvidence:
    """Return what a module's dump proves: whether LHS used the profile's costs, and how many costs
    were missing.
    """
    from pgle.costs.profile.lookup import LookupTable

    table = LookupTable(_on_gpu(schedule.module), schedule.module)
    costs = table.costs(profile)
    # costs of 0 µs cover no time
    if table.lacking(costs) or not any(cost.cost_us for cost in costs.values()):
        known = _weighed(table, profile)
    else:
        count = len(costs)
        known = KnownCoverage(
            covered=count, wanted=count, time_coverage=1.0, kept_share=1.0, mismatched=0
        )
    found = schedule_evidence(
        schedule, {name: cost.cost_us for name, cost in costs.items()}
    )
    return replace(found, coverage=known)


def schedule_evidence(
    schedule: LhsSchedule, costs: Mapping[str, float]
) -> ScheduleEvidence:
    """Compare the times that LHS assumed with a profile's effective costs, in microseconds by
    name.
    """
    seen = {
        name: us
        for name, us in schedule.assumed_us.items()
        if us is not None and name in costs
    }
    return ScheduleEvidence(
        module=schedule.module.name,
        compared=len(seen),
        # times are doubles since the start of the computation: in long ones, differences lose
        # digits
        equal=sum(
            math.isclose(us, costs[name], rel_tol=1e-3, abs_tol=1e-2)
            for name, us in seen.items()
        ),
        instructions=len(schedule.assumed_us),
        source=schedule.source,
    )


def _on_gpu(module: Module) -> Module:
    """Return the module of a dump with the GPU that weighs its gaps. Only the final module's file
    names the GPU.
    """
    final = sorted(
        as_path(module.source).parent.glob("*.sm_*_gpu_after_optimizations*")
    )
    return replace(module, source=str(next(iter(final), module.source)))


def _weighed(table: LookupTable, profile: Profile) -> KnownCoverage:
    """Return the coverage of a module that lacks costs, weighed as in `pgle verify`."""
    from pgle.costs.profile.coverage import cover_module

    return _known(
        cover_module(profile, table, effective_costs(profile, table.final.fingerprint))
    )


def _known(module: ModuleCoverage) -> KnownCoverage:
    return KnownCoverage(
        covered=round(module.count.covered),
        wanted=round(module.count.total),
        time_coverage=module.time.value,
        kept_share=module.kept_share,
        mismatched=module.mismatched,
    )


def _chosen(schedule: AnyPath, wanted: str) -> LhsSchedule:
    """Return the dump of the module that `wanted` matches; if `wanted` is empty, the only dump."""
    dumps = find_schedule_dumps(schedule)
    found = [path for name, path in dumps.items() if re.search(wanted, name)]
    if not found:
        having = ", ".join(sorted(dumps)[:5]) or "no schedule dump"
        raise UserError(
            f"no schedule dump of {wanted.strip('^$') or 'a module'} (it has {having})",
            where=schedule,
            remedy=_DUMP,
        )
    if len(found) > 1 and not wanted:
        raise UserError(
            f"holds dumps of {len(found)} modules",
            where=schedule,
            remedy="choose one with --module",
        )
    return read_schedule_dump(found[0])
