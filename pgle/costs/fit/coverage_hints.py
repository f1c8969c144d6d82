"""What a user should do about a coverage, each with a command, and what to be warned of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from pgle.costs.fit.wanted import WantedCosts
from pgle.costs.profile.value import CostKind
from pgle.xla.hlo.schedule_dump import LhsSchedule

if TYPE_CHECKING:
    from pgle.costs.fit.coverage import ModuleCoverage

MOSTLY_UNKNOWN = 0.5
"""Below this count coverage the likeliest cause is a profile of another program."""


def hints_of(item: ModuleCoverage, wanted: WantedCosts) -> list[str]:
    """Remedies for what a module lacks, the likeliest cause first."""
    hints = []
    if item.other_names and not item.own_names and not item.bare_names:
        hints.append(f"every name is for another fingerprint; this module is {item.fingerprint or 'without one'}")
    lost = [gap for gap in item.gaps if gap.kind == CostKind.COLLECTIVE]
    if any(gap.hint for gap in lost):
        hints.append(
            "the profile has collectives under other names: 'pgle convert TRACE --hlo DUMP' translates them, if LHS "
            "was on in the profile run or a schedule dump of the performance run lies in DUMP"
        )
    if wanted.unsure:
        hints.append(
            f"{len(wanted.unsure)} collectives were renamed after scheduling and the dump does not say from what: "
            "give --schedule, or profile with LHS on ('pgle profile --mode sync -- COMMAND')"
        )
    if item.mismatches:
        hints.append("mismatched names come from another program or XLA: profile this one again with 'pgle profile'")
    if (item.count.value or 0.0) < MOSTLY_UNKNOWN:
        hints.append(
            "most names are unknown to the profile: is it of this program, XLA and flags? 'pgle profile -- COMMAND'"
        )
    if item.gaps:
        hints.append(
            "fill gaps from same-shape instructions and estimates with 'pgle complete PROFILE --hlo DUMP -o OUT'"
        )
    return hints


def warnings_of(modules: Sequence[ModuleCoverage], schedules: Mapping[str, LhsSchedule]) -> list[str]:
    """What may mislead about the main module, the first of `modules`."""
    warnings = []
    main = modules[0]
    if main.unchecked:
        warnings.append(
            f"the profile says neither opcode nor shape of {main.unchecked} of its names: they may match by accident"
        )
    if main.own_names + main.bare_names == 0 and main.other_names:
        warnings.append(f"XLA takes nothing of it for {main.module}: every name carries another fingerprint")
    schedule = schedules.get(main.module)
    if schedule and schedule.module.fingerprint != main.fingerprint and schedule.module.fingerprint:
        warnings.append(
            f"the schedule dump is of fingerprint {schedule.module.fingerprint[:12]}…, the HLO of "
            f"{main.fingerprint[:12]}…: names are held against the schedule dump"
        )
    return warnings
