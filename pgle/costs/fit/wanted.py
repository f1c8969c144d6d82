"""The costs that a module wants: one per schedulable instruction, by the names that XLA would look up."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod

from pgle.costs.fit.estimate import cost_kind
from pgle.costs.profile.value import CostKind
from pgle.xla.checker import accepted_names
from pgle.xla.collectives import collective_kind, result_shape
from pgle.xla.hlo.module import Instruction, Module
from pgle.xla.hlo.names import lhs_names, loops, schedulable
from pgle.xla.hlo.schedule_dump import LhsSchedule

_REMAT = re.compile(r"\.remat\d*$")


@dataclass(frozen=True, slots=True)
class Wanted:
    """An instruction that wants a cost.

    Attributes:
        name: when LHS ran.
        accepted: the names under which XLA finds a cost, in this order; empty where nobody can tell.
        kind: what the scheduler does with it.
        opcode: of a collective the wrapped one.
        shapes: result shape as text, in the ways that profiles state it; the done's first.
        executions: per execution of the module; loops of unknown length count once.
        instruction: in `WantedCosts.module`.
    """

    name: str
    accepted: tuple[str, ...]
    kind: CostKind
    opcode: str
    shapes: tuple[str, ...]
    executions: int
    instruction: Instruction


@dataclass(frozen=True)
class WantedCosts:
    """All that a module wants.

    Attributes:
        module: that the instructions are of: as LHS saw it where there is a dump, else the final one.
        items: by name.
        run_time_names: run-time name → name when LHS ran, of collectives that have another name at run time.
        is_lhs: names come from a schedule dump.
        unsure: plain collectives of the final module without scheduling name: what LHS called them is unknown.
    """

    module: Module
    items: Mapping[str, Wanted]
    run_time_names: Mapping[str, str]
    is_lhs: bool
    unsure: tuple[str, ...] = ()


def wanted_costs(module: Module, schedule: LhsSchedule | None = None) -> WantedCosts:
    """What a module wants.

    Args:
        module: the final module.
        schedule: its schedule dump, or that of another compilation of the program that the profile is meant for.
    """
    if schedule is not None:
        items = (_wanted(schedule.module, item, item.name) for item in schedulable(schedule.module))
        renamed = lhs_names(module, schedule.module) if module is not schedule.module else {}
        return WantedCosts(schedule.module, {item.name: item for item in items}, _changed(renamed), is_lhs=True)
    names = lhs_names(module)
    found: dict[str, Wanted] = {}
    unsure = []
    for instruction in schedulable(module):
        name = names.get(instruction.name) or _REMAT.sub("", instruction.name)
        if name != instruction.name and name in found:
            continue  # a rematerialised copy, made after LHS
        kind = collective_kind(module, instruction)
        if kind == instruction.opcode and not instruction.scheduling_name and kind not in ("send", "recv"):
            unsure.append(name)
        found[name] = _wanted(module, instruction, name)
    found |= {name: replace(found[name], accepted=()) for name in unsure}
    return WantedCosts(module, found, _changed(names), is_lhs=False, unsure=tuple(unsure))


def _changed(names: Mapping[str, str]) -> dict[str, str]:
    return {run_time: name for run_time, name in names.items() if run_time != name}


def _wanted(module: Module, instruction: Instruction, name: str) -> Wanted:
    wrapped = module.wrapped(instruction) or instruction
    shapes = dict.fromkeys(map(str, (result_shape(module, instruction), wrapped.shape, instruction.shape)))
    return Wanted(
        name=name,
        accepted=(name, *accepted_names(module, instruction)[1:]),
        kind=cost_kind(module, instruction),
        opcode=collective_kind(module, instruction) or wrapped.opcode,
        shapes=tuple(shapes),
        executions=prod(count or 1 for _, count in loops(module, instruction.name)),
        instruction=instruction,
    )
