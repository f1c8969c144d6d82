"""Check a module that a reader made: unique names, and calls and sizes that a compiler can make.

Other code follows calls without checks, and a file may hold anything.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from graphlib import CycleError, TopologicalSorter

from pgle.errors import UserError
from pgle.xla.hlo.module import DEEPEST, Computation, Instruction, Module
from pgle.xla.hlo.replica_groups import Groups, groups_from_text
from pgle.xla.hlo.trips import trip_count

MOST_BYTES = (1 << 63) - 1  # limit of one array: XLA counts bytes in 64 bits
MOST_WORK = 100_000_000
"""Limit of instructions, with every call followed and loops twice. The largest dumps seen so far
have some 10 million.
"""
MOST_RUNS = 1 << 53
"""Limit of runs of one instruction in a step, over all loops around it. A larger count is not exact
as a float.
"""
_LOOP_TIMES = 2


def groups_in(text: str) -> Groups:
    """Return replica groups as `groups_from_text` reads them. Malformed groups raise
    `UserError`.
    """
    try:
        return groups_from_text(text)
    except ValueError as error:
        raise UserError(str(error)) from None


def checked(module: Module) -> Module:
    """Check a module, and give each instruction a unique name.

    Raises:
        UserError: a computation calls itself, calls are nested too deep or are too many, or an
            array is too large.
    """
    module = replace(module, computations=_own_names(module))
    wrong = _wrong_shape(module) or _wrong_operands(module) or _wrong_calls(module)
    if wrong:
        raise UserError(
            f"{wrong}; no compiler writes that",
            where=module.source,
            remedy="dump it again",
        )
    return module


def _own_names(module: Module) -> Mapping[str, Computation]:
    """Return the computations with instruction names that are unique in the module.

    HLO text needs unique names only within a computation (XLA's parser accepts one name in two
    computations). If instructions share a name, the one in the entry keeps it, else the first. The
    others become ``computation/name``.
    """
    owner: dict[str, str] = {}
    again: set[str] = set()
    for name in (module.entry, *module.computations):
        for item in module.computations[name].instructions:
            if owner.setdefault(item.name, name) != name:
                again.add(name)
    if not again:
        return module.computations
    computations = dict(module.computations)
    for name in again:
        computations[name] = _renamed(computations[name], owner)
    return computations


def _renamed(computation: Computation, owner: Mapping[str, str]) -> Computation:
    """Return a computation with the names of other computations' instructions replaced."""

    def new(name: str) -> str:
        """Return the name of an instruction, unique in the module."""
        is_own = owner.get(name) == computation.name
        return name if is_own else f"{computation.name}/{name}"

    items = [
        replace(
            item,
            name=new(item.name),
            operands=tuple(map(new, item.operands)),
            control_predecessors=tuple(map(new, item.control_predecessors)),
        )
        for item in computation.instructions
    ]
    return replace(computation, instructions=tuple(items), root=new(computation.root))


def _wrong_shape(module: Module) -> str:
    """Describe a shape that no memory can hold; empty if there is none."""
    seen: set[int] = set()
    for item in module.walk():
        if id(item.shape) not in seen:
            seen.add(id(item.shape))
            if item.shape.size_bytes > MOST_BYTES:
                return f"{item.name} holds more bytes than there are addresses"
    return ""


_LEAST_OPERANDS = {
    "bitcast": 1,
    "broadcast": 1,
    "copy": 1,
    "dot": 2,
    "dynamic-slice": 1,
    "dynamic-update-slice": 2,
    "gather": 2,
    "get-tuple-element": 1,
    "reduce": 2,
    "reshape": 1,
    "scatter": 3,
    "slice": 1,
    "sort": 1,
    "transpose": 1,
    "while": 1,
}
"""Operands that an instruction needs at least, by opcode."""


def _wrong_operands(module: Module) -> str:
    """Describe an instruction with too few operands; empty if there is none."""
    for item in module.walk():
        if len(item.operands) < _LEAST_OPERANDS.get(item.opcode, 0):
            return f"{item.name} ({item.opcode}) lacks operands"
        fused = module.fused(item)
        inside = () if fused is None else fused.instructions
        numbers = [
            one.parameter_number for one in inside if one.parameter_number is not None
        ]
        if max(numbers, default=-1) >= len(item.operands):
            return f"{item.name} has fewer operands than what it calls has parameters"
    return ""


def _wrong_calls(module: Module) -> str:
    """Describe a call that cannot be followed: of itself, too deep or too often; empty if there is
    none.
    """
    calls = {name: _calls(item) for name, item in module.computations.items()}
    graph = {name: [called for _, called in found] for name, found in calls.items()}
    try:
        order = tuple(TopologicalSorter(graph).static_order())
    except CycleError as error:
        return f"computation {error.args[1][0]} calls itself"
    work: dict[str, int] = {}
    depth: dict[str, int] = {}
    runs: dict[str, int] = {}
    for name in order:
        found = calls.get(name, ())  # a call may name a missing computation
        work[name] = 0
        if name in module.computations:
            work[name] = len(module.computations[name].instructions)
        depth[name] = runs[name] = 1
        for item, called in found:
            times = _LOOP_TIMES if item.opcode == "while" else 1
            work[name] += times * work[called]
            depth[name] = max(depth[name], 1 + depth[called])
            trips = max(trip_count(module, item) or 1, 1)
            runs[name] = max(runs[name], trips * runs[called])
        if runs[name] > MOST_RUNS:
            return f"loops in {name} run more than 2^53 times"
        if depth[name] > DEEPEST:
            return f"more than {DEEPEST} calls within calls"
        if work[name] > MOST_WORK:
            return (
                f"computation {name} has more than {MOST_WORK:,} instructions, "
                "with all computations that it calls"
            )
    return ""


def _calls(computation: Computation) -> list[tuple[Instruction, str]]:
    """Return each call: the calling instruction and the name of the called computation."""
    found: list[tuple[Instruction, str]] = []
    for item in computation.instructions:
        found += [(item, called) for called in item.called]
    return found
