"""Which instruction owns the time of another one, and which loops surround an instruction."""

from __future__ import annotations

from math import prod

from pgle.xla.async_opcodes import is_start
from pgle.xla.hlo.module import Module
from pgle.xla.hlo.trips import trip_count

_CONTROL_FLOW = ("while", "conditional", "call")


def owner(module: Module, name: str) -> str | None:
    """Return the name of the instruction to which the time of `name` belongs.

    - `name` itself, if the entry computation, a loop, a branch or a call holds it.
    - The fusion, if a fusion holds it: its ``reduce.N`` can have a kernel of its own.
    - The start, if an async computation holds it.
    - None if the module has no such name.
    """
    instruction = module.instructions.get(name)
    while instruction is not None:
        callers = module.callers.get(instruction.computation, ())
        if not callers or any(caller.opcode in _CONTROL_FLOW for caller in callers):
            return instruction.name
        starts = (caller for caller in callers if is_start(caller))
        instruction = next(starts, callers[0])
    return None


def known_times(module: Module, name: str) -> int:
    """Return how often loops run an instruction in a step. Loops of unknown length count once."""
    return prod(trips or 1 for _, trips in loops(module, name))


def loops(module: Module, name: str) -> tuple[tuple[str, int | None], ...]:
    """Return the ``while`` instructions around an instruction, outermost first.

    Each has its trip count, which is None if unknown.
    """
    found: list[tuple[str, int | None]] = []
    instruction = module.instructions.get(name)
    while instruction is not None and (
        callers := module.callers.get(instruction.computation)
    ):
        instruction = callers[0]
        if instruction.opcode == "while":
            found.append((instruction.name, trip_count(module, instruction)))
    return tuple(reversed(found))
