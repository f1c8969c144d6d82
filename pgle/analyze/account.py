"""The account of a measured step. Findings and edits of the program are its opportunities."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np

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
    Place,
    StepBase,
    StepBounds,
    StepPart,
    TimedSteps,
    UnreadWork,
    in_order,
)
from pgle.analyze.analysis import MeasuredStep
from pgle.analyze.collectives import MeasuredCollective
from pgle.analyze.findings import StepFinding
from pgle.analyze.layers import MeasuredInstruction
from pgle.analyze.rules import RULES
from pgle.analyze.unread import find_unread
from pgle.analyze.window import RowGroup
from pgle.costs.measure.contention import lost_us, with_assumed
from pgle.errors import in_words
from pgle.next import Next
from pgle.xla.hlo.module import Module
from pgle.xla.matrix_products import is_product
from pgle.xla.targets import Hardware

BY_LEVER = frozenset((OpportunityKind.REMAT,))
"""Kinds whose saving a lever computes from HLO, including the cost of the edit. If HLO is missing,
the finding of the kind counts.
"""


def account_of_trace(
    step: MeasuredStep,
    findings: Iterable[StepFinding],
    search: Next | None = None,
    *,
    advise: Next | None = None,
    is_searched: bool = False,
    timed: TimedSteps | None = None,
) -> Account:
    """Make the account of a measured step.

    Args:
        findings: the step's findings.
        search: the command that searches for flags; None if unknown.
        advise: the command that tries edits of the program; None if unknown.
        is_searched: whether a search for flags was made and found nothing better.
        timed: the timed steps of its run directory.
    """
    basis = Basis.SIMULATED if step.trace.simulated else Basis.MEASURED
    facts = _step_costs(step, basis)
    levers = () if facts is None else tried_by(advise, find_levers(facts))
    read = {item.kind for item in levers}
    if facts is not None:
        read |= BY_LEVER
    if OpportunityKind.CAST in read:  # of the same products
        read.add(OpportunityKind.PRECISION)
    of_findings = _of_findings(findings, basis, step.hardware)
    others = tuple(item for item in of_findings if item.kind not in read)
    found = {item.kind for item in others}
    idle = _between_steps(step, basis) if OpportunityKind.INPUT not in found else ()
    schedule = () if is_searched else _of_schedule(step, basis, search)
    base = StepBase.ALONE if step.measures_alone else StepBase.TRACED
    contention = _contention(step)
    parts = parts_of(step.breakdown, step.breakdown.other_us)
    return Account(
        module=step.costs.program.key.name,
        base=base,
        step_us=step.step_us,
        least_us=step.step_us,
        most_us=step.step_us,
        basis=basis,
        parts=parts,
        bounds=_bounds(step, contention),
        opportunities=in_order((*levers, *others, *idle, *schedule)),
        timed=timed,
        unread=_unread(step),
        contention=contention,
    )


def _unread(step: MeasuredStep) -> UnreadWork | None:
    """Work that pgle cannot price without HLO; None if the HLO is known."""
    if step.module is not None:
        return None
    return find_unread(step.compute, step.step_us)


def _bounds(step: MeasuredStep, contention: ContentionLoss | None) -> StepBounds:
    """The lower bounds of the step. Without HLO, contention is unknown and counts as 0."""
    best_us = step.step_us
    if step.overlap is not None:
        best_us = best_order_us(
            step.step_us,
            hideable_us=step.overlap.hideable_us,
            shortest_us=step.overlap.shortest_us,
        )
    return bounds_of(
        step.breakdown,
        best_order_us=best_us,
        contended_us=0.0 if contention is None else contention.us,
    )


def _contention(step: MeasuredStep) -> ContentionLoss | None:
    """The time that recorded kernels lost to collectives; None if it is 0, or without HLO."""
    module, measured = step.module, step.costs.contention
    if module is None or measured is None or not measured.beside:
        return None
    found = with_assumed(measured)
    shares = measured.beside
    ran = [item for item in step.compute if item.name in shares]
    overlapped_us = np.array([item.us * shares[item.name] for item in ran])
    products = np.array([_multiplies(module, item) for item in ran], bool)
    us = lost_us(overlapped_us, products, found.likely)
    return loss_by(found, us)


def _multiplies(module: Module, item: MeasuredInstruction) -> bool:
    return item.instruction is not None and is_product(module, item.instruction)


def _of_findings(
    findings: Iterable[StepFinding], basis: Basis, hardware: Hardware | None
) -> Iterator[Opportunity]:
    """Findings that save time, as opportunities. If the GPU is unknown, some have only an upper
    bound (`Rule.needs_gpu`).
    """
    for finding in findings:
        rule = RULES[finding.id]
        if rule.kind is None or finding.unclaimed or finding.lost_us <= 0:
            continue
        is_bound = rule.is_bound or (rule.needs_gpu and hardware is None)
        where = (
            Place(row.name.removeprefix("before "), row.us, row.note, row.op_name)
            for row in finding.evidence
        )
        yield Opportunity(
            kind=rule.kind,
            expected_us=None if is_bound else finding.lost_us,
            least_us=0.0,
            most_us=finding.lost_us,
            part=rule.part,
            basis=basis,
            title=finding.todo,
            why=finding.number,
            edit=finding.remedy,
            where=tuple(where),
        )


def _between_steps(step: MeasuredStep, basis: Basis) -> Iterator[Opportunity]:
    """The pause after each step as an opportunity, for pauses below the limit of their rule."""
    us = sum(step.parts.of(RowGroup.BETWEEN).values())
    if step.trace.simulated or us <= 0:
        return
    yield Opportunity(
        kind=OpportunityKind.INPUT,
        expected_us=us,
        least_us=0.0,
        most_us=us,
        part=StepPart.IDLE,
        basis=basis,
        title=RULES["input-bound"].todo,
        why=f"{in_words(us)} without a kernel after each",
        edit="look at the host",
        where=(Place(str(RowGroup.BETWEEN), us),),
    )


def _of_schedule(
    step: MeasuredStep, basis: Basis, search: Next | None
) -> Iterator[Opportunity]:
    """A search for flags as an opportunity: the exposed transfers that flags could hide."""
    if step.measures_alone:
        return
    exposed = [item for item in step.collectives if item.transfer_exposed_us > 0]
    exposed_us = sum(item.transfer_exposed_us for item in exposed)
    if exposed_us <= 0:
        return
    exposed.sort(key=lambda item: -item.transfer_exposed_us)
    where = tuple(
        Place(item.name, item.transfer_exposed_us, item.why, item.op_name)
        for item in exposed
    )
    reach_us = reach_of_flags_us(map(_in_reach, step.collectives))
    has_waits = any(item.wait_us > 0 for item in exposed)
    yield from search_for_flags(
        reach_us, exposed_us, basis, search, where, has_waits=has_waits
    )


def _in_reach(item: MeasuredCollective) -> PlacedCollective:
    arrays = 1 if item.instruction is None else len(item.instruction.operands)
    return PlacedCollective(
        kind=item.kind,
        us=max(item.transfer_exposed_us, 0.0),
        count=item.count,
        is_stuck=item.is_stuck,
        arrays=arrays,
    )


def _step_costs(step: MeasuredStep, basis: Basis) -> StepCosts | None:
    """The costs that levers read; None if the scheduled module or the GPU is unknown."""
    module, hardware, memory = step.module, step.hardware, step.memory
    if module is None or hardware is None or not module.is_scheduled:
        return None
    known = [
        (item.instruction.name, item)
        for item in step.compute
        if item.instruction is not None
    ]
    moved = [
        (item.instruction.name, item)
        for item in step.collectives
        if item.instruction is not None
    ]
    # no edit of the program shortens a wait for the last rank
    exposed_us = {name: item.transfer_exposed_us for name, item in moved}
    moved_us = {name: item.count * item.time_us for name, item in moved}
    costs = StepCosts(
        module=module,
        hardware=hardware,
        step_us=step.step_us,
        us={name: item.us for name, item in known},
        count={name: item.count for name, item in known},
        basis=basis,
        peak_bytes=None if memory is None else memory.plan.peak_bytes,
        limit_bytes=None if memory is None else memory.limit_bytes,
    )
    return replace(costs, exposed_us=exposed_us, communication_us=moved_us)
