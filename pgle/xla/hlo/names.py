"""Names: as they are at run time, as they were when LHS ran, and what belongs to what.

XLA looks costs up by the name an instruction had when the latency-hiding scheduler (LHS) ran. Ordinary instructions
keep it; collectives may not, and the one link back is ``metadata.scheduling_name``, which is there only if LHS ran in
that compilation. It is used for collectives only: elsewhere simplifications after LHS can leave a neighbour's name.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable

from pgle.xla.collectives import collective_kind, is_start, result_shape, walk_collectives
from pgle.xla.hlo.module import Instruction, Module, trip_count

_CONTROL_FLOW = ("while", "conditional", "call")

NO_OPS = frozenset(
    ("get-tuple-element", "bitcast", "constant", "parameter", "tuple", "partition-id", "replica-id",
     "optimization-barrier", "opt-barrier")
)  # fmt: skip
"""Opcodes that the PGLE accuracy checker never reports as missing (`gpu_latency_hiding_scheduler.cc`)."""


def accepted_names(lhs_module: Module, instruction: Instruction) -> tuple[str, ...]:
    """The names under which XLA looks an instruction up, in this order: its own, and what an async-start wraps."""
    wrapped = lhs_module.wrapped(instruction) if instruction.opcode == "async-start" else None
    return (instruction.name,) if wrapped is None else (instruction.name, wrapped.name)


def lhs_names(module: Module, lhs_module: Module | None = None) -> dict[str, str]:
    """The name when LHS ran for every name under which a collective may run.

    Args:
        module: the final (after optimizations) module.
        lhs_module: the module as LHS saw it, from a schedule dump of this or of another compilation of the program.

    Returns:
        Starts, plain collectives and wrapped operations → the start's name when LHS ran. A name that nothing is known
        of maps to itself.
    """
    names: dict[str, str] = {}
    unknown: list[Instruction] = []
    known = None if lhs_module is None else _starts(lhs_module)
    for item, _ in walk_collectives(module):
        wrapped = module.wrapped(item)
        name = item.scheduling_name or item.name
        if known is not None:
            key = _key(module, item)
            candidates = (known[other] for other in _candidates(item, wrapped) if other in known)
            found = next((start for start, of in candidates if of == key), "")
            if not found:
                unknown.append(item)
            name = found or name
        names[item.name] = name
        if wrapped is not None:
            names[wrapped.name] = name
    if lhs_module is not None and unknown:
        names |= _match(module, unknown, lhs_module, set(names.values()))
    return names


def _candidates(item: Instruction, wrapped: Instruction | None) -> list[str]:
    """What a collective may be called in the module that LHS saw; a plain one's own name is new and says nothing."""
    if item.scheduling_name:
        return [item.scheduling_name]
    if not is_start(item):
        return []
    return [item.name] if wrapped is None else [item.name, wrapped.name]


def _starts(module: Module) -> dict[str, tuple[str, Hashable]]:
    """The name of each collective of a module and what it is otherwise, by its own and by its wrapped name."""
    known: dict[str, tuple[str, Hashable]] = {}
    for item, _ in walk_collectives(module):
        wrapped = module.wrapped(item)
        if wrapped is not None:
            known.setdefault(wrapped.name, (item.name, _key(module, item)))
        known[item.name] = (item.name, _key(module, item))
    return known


def _match(module: Module, items: list[Instruction], lhs_module: Module, taken: set[str]) -> dict[str, str]:
    """Pair collectives of two compilations by kind, channel and shape, in order; only where the counts agree.

    Channel ids are unique in programs that jit partitioned; inside `shard_map` all are 1, so shape, framework name and
    order decide too.
    """
    names: dict[str, str] = {}
    free = [item for item, _ in walk_collectives(lhs_module) if item.name not in taken]
    keys: tuple[Callable[[Module, Instruction], Hashable], ...] = (
        lambda of, item: (*_key(of, item), _channel(of, item), item.op_name),
        lambda of, item: (*_key(of, item), _channel(of, item)),
        _key,
    )
    for key in keys:
        ours, theirs = _grouped(module, items, key), _grouped(lhs_module, free, key)
        for value, group in ours.items():
            partners = theirs.get(value, [])
            for item, partner in zip(group, partners, strict=True) if len(partners) == len(group) else ():
                names[item.name] = names[(module.wrapped(item) or item).name] = partner.name
        items = [item for item in items if item.name not in names]
        free = [item for item in free if item.name not in names.values()]
    return names


def _key(module: Module, item: Instruction) -> tuple[str, str, tuple[tuple[int, ...], ...]]:
    wrapped = module.wrapped(item) or item
    return collective_kind(module, item) or "", str(result_shape(module, item)), wrapped.replica_groups


def _channel(module: Module, item: Instruction) -> int | None:
    wrapped = module.wrapped(item)
    return item.channel_id if wrapped is None or item.channel_id is not None else wrapped.channel_id


def _grouped(
    module: Module, items: Iterable[Instruction], key: Callable[[Module, Instruction], Hashable]
) -> dict[Hashable, list[Instruction]]:
    groups: dict[Hashable, list[Instruction]] = {}
    for item in items:
        groups.setdefault(key(module, item), []).append(item)
    return groups


def owner(module: Module, name: str) -> str | None:
    """The instruction whose time the time of `name` is.

    Itself, if the entry computation, a loop, a branch or a call holds it; the fusion, for one inside a fusion (its
    ``reduce.N`` can have a kernel of its own); the start, for one inside an async computation. None if the
    module has no such name.
    """
    instruction = module.instructions.get(name)
    while instruction is not None:
        callers = module.callers.get(instruction.computation, ())
        if not callers or any(caller.opcode in _CONTROL_FLOW for caller in callers):
            return instruction.name
        instruction = next((caller for caller in callers if is_start(caller)), callers[0])
    return None


def loops(module: Module, name: str) -> tuple[tuple[str, int | None], ...]:
    """The ``while`` instructions around an instruction, outermost first, each with its trip count (None: unknown)."""
    found: list[tuple[str, int | None]] = []
    instruction = module.instructions.get(name)
    while instruction is not None and (callers := module.callers.get(instruction.computation)):
        instruction = callers[0]
        if instruction.opcode == "while":
            found.append((instruction.name, trip_count(instruction)))
    return tuple(reversed(found))


def unscheduled_conditions(module: Module) -> frozenset[str]:
    """The conditions of loops that LHS leaves as they are: they hold nothing asynchronous.

    XLA's accuracy checker looks the costs of their instructions up, and no schedule depends on them. A loop of known
    length does not even run its condition. Where a condition holds a collective, LHS schedules it like a body.
    """
    conditions = {name for item in module.walk() if item.opcode == "while" for name in item.called[1:2]}
    return frozenset(
        name
        for name in conditions.intersection(module.scheduled)  # which stand after the bodies
        if not any(
            is_start(item) or collective_kind(module, item) is not None
            for item in module.computations[name].instructions
        )
    )


FREE_TARGETS = frozenset(("AllocateBuffer", "Sharding", "annotate_device_placement", "MoveToHost", "MoveToDevice"))
"""Custom calls that launch nothing."""


def schedulable(module: Module) -> tuple[Instruction, ...]:
    """Instructions that want a cost: all of scheduled computations, except no-ops, loops, command buffers and dones.

    XLA's accuracy checker misses the same, apart from copies (never missed) and dones of asynchronous fusions (which
    cost nothing). Those in `unscheduled_conditions` may have a cost and can do without.
    """
    scheduled = set(module.scheduled)
    items = (item for name in module.scheduled for item in module.computations[name].instructions)
    return tuple(
        item
        for item in items
        if item.opcode not in NO_OPS | {"while"}
        and not item.opcode.endswith(("-done", "-update"))
        and not (item.opcode == "call" and scheduled.issuperset(item.called))
    )
