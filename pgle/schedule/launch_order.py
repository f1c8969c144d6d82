"""The order in which a scheduled module starts its collectives.

This file and its imports need only the standard library. The hook imports it inside the user's
program, whose interpreter may lack pgle's other dependencies.
"""

from __future__ import annotations

from pgle.schedule.launches import (
    POINT_TO_POINT,
    Collective,
    Launches,
    Line,
    lane,
    launches,
)
from pgle.xla.async_opcodes import GENERIC_OPCODES, is_done
from pgle.xla.async_pairs import result_shape, start_of
from pgle.xla.collectives import collective_kind, is_sync
from pgle.xla.hlo.module import Instruction, Module
from pgle.xla.hlo.text import module_from_text
from pgle.xla.hlo.trips import trip_count

_CALLERS = ("call", "conditional")


def launch_order(module: Module) -> Launches:
    """The order in which a scheduled module starts its collectives."""
    computations = {
        name: _lines(module, computation.instructions)
        for name, computation in module.computations.items()
        if not computation.is_fusion
    }
    return launches(module.entry, computations, module.num_devices)


def launches_in(text: str) -> Launches:
    """The order of a compiled module, from its HLO text as XLA prints it."""
    return launch_order(module_from_text(text.encode(), "HLO text"))


def _lines(module: Module, instructions: tuple[Instruction, ...]) -> list[Line]:
    lines = (_line(module, item) for item in instructions)
    return [line for line in lines if line is not None]


def _line(module: Module, item: Instruction) -> Line | None:
    """The part of an instruction that the order depends on; None if it does not matter."""
    if item.opcode == "while":
        body, condition = item.called[:2]
        trips = trip_count(module, item)
        return Line(item.name, "loop", called=(condition, body), trips=trips)
    if item.opcode in _CALLERS:
        return Line(item.name, "call", called=item.called)
    kind = collective_kind(module, item)
    if kind is None:
        # several collectives in one asynchronous computation have no kind of their own
        is_wrapper = item.opcode == "async-start"
        return Line(item.name, "async", called=item.called) if is_wrapper else None
    if is_done(item):
        start = start_of(module, item)
        operand = "" if start is None else start.name
        return Line(item.name, "done", operand=operand)
    if item.opcode == "async-update":
        return None
    role = "sync" if is_sync(module, item) else "start"
    return Line(item.name, role, _collective(module, item, kind, role))


def _collective(module: Module, item: Instruction, kind: str, role: str) -> Collective:
    inner = module.wrapped(item) if item.opcode in GENERIC_OPCODES else None
    for found in () if item.opcode != "fusion" else module.called_instructions(item):
        if collective_kind(module, found) == kind:
            inner = found
    stated = inner or item
    everything = (tuple(range(module.num_devices)),)
    groups = stated.replica_groups or everything
    if kind in POINT_TO_POINT:
        groups = stated.source_target_pairs
    return Collective(
        kind=kind,
        shape=str(result_shape(module, item)),
        groups=groups,
        lane=lane(kind, role),
        label=stated.op_name or item.op_name,
        channel=stated.channel_id or 0,
    )
