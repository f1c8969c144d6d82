"""The account of a step that XLA scheduled and pgle priced. No GPU ran it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from math import isfinite
from typing import TYPE_CHECKING

import numpy as np

from pgle.account.captured_program import (
    NOTHING_KNOWN,
    CapturedFacts,
    opportunities_of,
)
from pgle.account.levers import find_levers
from pgle.account.parts_and_bounds import (
    PlacedCollective,
    best_order_us,
    bounds_of,
    loss_by,
    parts_of,
    reach_of_flags_us,
    search_for_flags,
    tried_by,
)
from pgle.account.step_costs import StepCosts
from pgle.account.value import (
    Account,
    Basis,
    ContentionLoss,
    Opportunity,
    OpportunityKind,
    StepBase,
    StepPart,
    TimedSteps,
    in_order,
)
from pgle.next import Next
from pgle.schedule.placements import Placement, placements
from pgle.schedule.predict import Prediction
from pgle.schedule.simulate import Stream, Timeline
from pgle.xla.hlo.module import Module
from pgle.xla.targets import Hardware

if TYPE_CHECKING:
    from pgle.schedule.control import Controlled

BASES: Mapping[str, Basis] = {
    "measured": Basis.MEASURED,
    "simulated": Basis.SIMULATED,
}
"""The basis of a predicted step by the origin of all its costs. Other origins mean estimated."""


@dataclass(frozen=True, slots=True)
class PlannedMemory:
    """Device memory of a step, in bytes; None if unknown."""

    peak_bytes: int | None = None  # by XLA's plan
    limit_bytes: int | None = None  # the most that the program can have


def account_of_schedule(
    module: Module,
    prediction: Prediction,
    hardware: Hardware,
    *,
    tried: Iterable[Opportunity] = (),
    facts: CapturedFacts = NOTHING_KNOWN,
    memory: PlannedMemory = PlannedMemory(),
    search: Next | None = None,
    advise: Next | None = None,
    is_searched: bool = False,
    base: StepBase = StepBase.NOW,
    timed: TimedSteps | None = None,
) -> Account:
    """Take a predicted step apart.

    Args:
        module: the scheduled module.
        prediction: its predicted step.
        tried: gains of other schedules of the same program over this step.
        facts: facts from the program's capture.
        memory: device memory of the step.
        search: the command that searches for flags; None if unknown.
        advise: the command that tries edits of the program; None if unknown.
        is_searched: whether a search for flags was made and found nothing better.
        base: which step it is.
        timed: the timed steps of its run directory.
    """
    parts = prediction.timeline.breakdown
    placed = placements(module, prediction.timeline)
    best_us = best_order_us(
        prediction.step_us,
        hideable_us=sum(item.hideable_us for item in placed.values()),
        shortest_us=prediction.shortest_us,
    )
    bounds = bounds_of(
        parts,
        best_order_us=best_us,
        contended_us=prediction.contended_us,
    )
    least_us, most_us = prediction.interval_us
    basis = BASES.get(prediction.costs_are, Basis.ESTIMATED)
    limit_us = prediction.step_us - bounds.best_order_us
    costs = step_costs(module, prediction, hardware, memory)
    levers = tried_by(advise, find_levers(costs))
    exposed_us = parts.exposed_communication_us
    untried: tuple[Opportunity, ...] = ()
    if not is_searched:
        reach_us = reach_of_flags_us(map(_in_reach, placed.values()))
        untried = search_for_flags(reach_us, exposed_us, basis, search)
    program = opportunities_of(facts, module.num_devices, prediction.step_us)
    found = (*program, *within(tried, limit_us), *levers, *untried)
    return Account(
        module=module.name,
        base=base,
        step_us=prediction.step_us,
        least_us=least_us,
        most_us=most_us if isfinite(most_us) else None,
        basis=basis,
        parts=parts_of(parts),
        bounds=bounds,
        opportunities=in_order(found),
        timed=timed,
        contention=contention_of(prediction),
    )


def contention_of(prediction: Prediction) -> ContentionLoss | None:
    """What a predicted step loses to contention; None if it loses nothing."""
    return loss_by(prediction.contention, prediction.contended_us)


def _in_reach(item: Placement) -> PlacedCollective:
    return PlacedCollective(
        kind=item.kind,
        us=item.exposed_us,
        count=item.count,
        is_stuck=item.is_stuck,
        arrays=item.arrays,
    )


def within(tried: Iterable[Opportunity], limit_us: float) -> Iterator[Opportunity]:
    """Limit the saving of a profile to the saving of the best order of instructions.

    Args:
        limit_us: microseconds that the best order saves.
    """
    for item in tried:
        if item.kind is OpportunityKind.PROFILE:
            most_us = min(item.most_us, max(limit_us, item.known_saving_us))
            least_us = min(item.least_us, most_us)
            item = replace(item, most_us=most_us, least_us=least_us)
        yield item


def gained(
    kind: OpportunityKind,
    found: Controlled,
    step_us: float,
    *,
    title: str,
    why: str = "",
    edit: str = "",
    command: Next | None = None,
    flag: str = "",
) -> Opportunity:
    """The gain of one compiled schedule over another, as an opportunity.

    Args:
        found: the gain by both compilations, as shares of `step_us`.
        step_us: the step of the other schedule.
    """
    answer = found.answer
    tried = "it depends on what autotuning picks" if found.depends else ""
    return Opportunity(
        kind=kind,
        expected_us=answer.share * step_us,
        least_us=answer.low * step_us,
        most_us=answer.high * step_us,
        part=StepPart.COMMUNICATION,
        basis=Basis.COMPILED,
        title=title,
        why=why,
        edit=edit,
        command=command,
        flag=flag,
        tried=tried,
    )


def step_costs(
    module: Module,
    prediction: Prediction,
    hardware: Hardware,
    memory: PlannedMemory = PlannedMemory(),
) -> StepCosts:
    """The costs of a predicted step by instruction."""
    timeline = prediction.timeline
    computes = timeline.stream == Stream.COMPUTE
    us = _by_name(timeline, np.where(computes, timeline.duration_us, 0.0))
    count = _by_name(timeline, timeline.count)
    exposures = timeline.exposures
    exposed_us = {item.name: item.exposed_us for item in exposures}
    return StepCosts(
        module=module,
        hardware=hardware,
        step_us=prediction.step_us,
        us=us,
        count=count,
        basis=BASES.get(prediction.costs_are, Basis.ESTIMATED),
        peak_bytes=memory.peak_bytes,
        limit_bytes=memory.limit_bytes,
        exposed_us=exposed_us,
        communication_us={item.name: item.duration_us for item in exposures},
        exposed_copies_us=timeline.breakdown.exposed_copy_us,
    )


def _by_name(timeline: Timeline, values: np.ndarray) -> Mapping[str, float]:
    """Sums of a column by instruction, without sums of 0."""
    size = len(timeline.names)
    sums = np.bincount(timeline.instruction, weights=values, minlength=size)
    return {timeline.names[at]: float(sums[at]) for at in np.flatnonzero(sums).tolist()}
