"""Asynchronous operations: pairs of a start and a done, and what they compute."""

from __future__ import annotations

from dataclasses import dataclass

from pgle.xla.async_opcodes import is_done, is_start
from pgle.xla.collectives import collective_kind
from pgle.xla.hlo.module import Instruction, Module, Shape


@dataclass(frozen=True, slots=True)
class AsyncPair:
    """An asynchronous operation."""

    start: str  # name of the instruction that begins the operation
    done: str  # name of the instruction that waits for the operation
    computation: str  # name of the computation that holds both
    # one of `COLLECTIVES` for a collective; ``copy`` for a copy-start; else the wrapped opcode
    kind: str
    is_collective: bool  # whether `kind` is one of `COLLECTIVES`


def async_pairs(module: Module) -> tuple[AsyncPair, ...]:
    """All asynchronous operations, computation by computation in the order of their dones.

    A done leads to its start through its operand and any updates. If a loop carries the handle
    (pipelined send and receive), the start of the same channel in the same computation is taken.
    """
    pairs: list[AsyncPair] = []
    for computation in module.computations.values():
        if computation.is_fusion:
            continue
        for done in computation.instructions:
            if not is_done(done):
                continue
            start = start_of(module, done)
            if start is not None:
                pairs.append(_pair(module, start, done))
    return tuple(pairs)


def _pair(module: Module, start: Instruction, done: Instruction) -> AsyncPair:
    kind = collective_kind(module, start)
    wrapped = module.wrapped(start)
    if wrapped is None:
        operation = start.opcode.removesuffix("-start")
    else:
        operation = wrapped.opcode
    return AsyncPair(
        start=start.name,
        done=done.name,
        computation=done.computation,
        kind=kind or operation,
        is_collective=kind is not None,
    )


def followers(module: Module, traced: frozenset[str]) -> dict[str, str]:
    """The first traced instruction after the done of each pair, by the name of the start.

    Both are in one computation; the text is empty if no traced instruction follows.
    """
    after: dict[str, str] = {}
    pairs = async_pairs(module)
    for name in dict.fromkeys(pair.computation for pair in pairs):
        later = ""
        for instruction in reversed(module.computations[name].instructions):
            after[instruction.name] = later
            if instruction.name in traced:
                later = instruction.name
    return {pair.start: after[pair.done] for pair in reversed(pairs)}


def start_of(module: Module, done: Instruction) -> Instruction | None:
    """The start that a done waits for; None if unknown."""
    current = done
    seen = {done.name}
    while current.operands and (before := current.operands[0]) not in seen:
        current = module.instructions[before]
        if is_start(current):
            return current
        if not current.opcode.endswith("-update"):
            break
        seen.add(before)  # a damaged dump may lead in a circle
    if done.channel_id is None:
        return None
    opcode = done.opcode.removesuffix("-done")
    same = [
        item
        for item in module.computations[done.computation].instructions
        if is_start(item)
        and item.channel_id == done.channel_id
        and item.opcode.removesuffix("-start") == opcode
    ]
    return same[0] if len(same) == 1 else None


def result_shape(module: Module, instruction: Instruction) -> Shape:
    """The shape that an operation computes; for an asynchronous one the shape of its done.

    A start's own shape is (operands, results, …). An ``all-reduce-start`` has the shape of the
    results only.
    """
    wrapped = module.wrapped(instruction)
    if wrapped is not None:
        return wrapped.shape
    elements = instruction.shape.elements
    if len(elements) < 2 or not is_start(instruction):
        return instruction.shape
    if instruction.opcode in ("copy-start", "send", "recv"):
        return elements[0]
    if instruction.opcode == "all-reduce-start" and elements[0].dtype != "tuple":
        return instruction.shape
    return elements[1]
