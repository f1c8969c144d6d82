"""The names that collectives had when the latency-hiding scheduler (LHS) ran.

XLA looks costs up by these names. Ordinary instructions keep their name; collectives may not. The
only link back is ``metadata.scheduling_name``, which exists only if LHS ran in that compilation.
pgle uses it for collectives only: simplifications after LHS can leave a neighbour's name on others.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping

from pgle.xla.async_opcodes import is_start
from pgle.xla.async_pairs import result_shape
from pgle.xla.collectives import collective_kind, walk_collectives
from pgle.xla.hlo.module import Instruction, Module

_Start = tuple[str, Hashable]  # name and key of a collective in the module that LHS saw


def lhs_names(module: Module, lhs_module: Module | None = None) -> dict[str, str]:
    """Return the name when LHS ran, for every name under which a collective may run.

    Args:
        module: the final (after optimizations) module.
        lhs_module: the module as LHS saw it, from a schedule dump of this compilation or of another
            compilation of the program.

    Returns:
        Names of starts, plain collectives and wrapped operations → the start's name when LHS ran. A
        name maps to itself if nothing is known about it.
    """
    names: dict[str, str] = {}
    unknown: list[Instruction] = []
    known = None if lhs_module is None else _starts(lhs_module)
    for item, _ in walk_collectives(module):
        wrapped = module.wrapped(item)
        name = item.scheduling_name or item.name
        if known is not None:
            found = _known_start(module, item, known)
            if not found:
                unknown.append(item)
            name = found or name
        names[item.name] = name
        if wrapped is not None:
            names[wrapped.name] = name
    if lhs_module is not None and unknown:
        names |= _match(module, unknown, lhs_module, set(names.values()))
    return names


def _known_start(module: Module, item: Instruction, known: Mapping[str, _Start]) -> str:
    """Return the name of the start that LHS saw for a collective; empty if none of its names leads
    to an equal one.
    """
    key = _key(module, item)
    for name in _candidates(item, module.wrapped(item)):
        if name in known:
            start, start_key = known[name]
            if start_key == key:
                return start
    return ""


def _candidates(item: Instruction, wrapped: Instruction | None) -> list[str]:
    """Return the names that a collective may have in the module that LHS saw.

    A plain collective has none: XLA gave it a new name after LHS.
    """
    if item.scheduling_name:
        return [item.scheduling_name]
    if not is_start(item):
        return []
    return [item.name] if wrapped is None else [item.name, wrapped.name]


def _starts(module: Module) -> dict[str, _Start]:
    """Return name and key of each collective of a module, by its own name and by its wrapped
    name.
    """
    known: dict[str, _Start] = {}
    for item, _ in walk_collectives(module):
        start = (item.name, _key(module, item))
        wrapped = module.wrapped(item)
        if wrapped is not None:
            known.setdefault(wrapped.name, start)
        known[item.name] = start
    return known


def _match(
    module: Module, items: list[Instruction], lhs_module: Module, taken: set[str]
) -> dict[str, str]:
    """Pair collectives of two compilations by kind, channel and shape, in order.

    A group of equal ones is paired only if both compilations have the same number of them. Channel
    ids are unique in programs that jit partitioned. Inside `shard_map` all are 1, so shape,
    framework name and order decide too.
    """
    names: dict[str, str] = {}
    free = [item for item, _ in walk_collectives(lhs_module) if item.name not in taken]
    keys: tuple[Callable[[Module, Instruction], Hashable], ...] = (
        lambda of, item: (*_key(of, item), _channel(of, item), item.op_name),
        lambda of, item: (*_key(of, item), _channel(of, item)),
        _key,
    )
    for key in keys:
        ours = _grouped(module, items, key)
        theirs = _grouped(lhs_module, free, key)
        for value, group in ours.items():
            partners = theirs.get(value, [])
            if len(partners) != len(group):
                continue
            for item, partner in zip(group, partners, strict=True):
                operation = module.operation(item)
                names[item.name] = partner.name
                names[operation.name] = partner.name
        items = [item for item in items if item.name not in names]
        free = [item for item in free if item.name not in names.values()]
    return names


def _key(
    module: Module, item: Instruction
) -> tuple[str, str, tuple[tuple[int, ...], ...]]:
    kind = collective_kind(module, item) or ""
    operation = module.operation(item)
    return kind, str(result_shape(module, item)), operation.replica_groups


def _channel(module: Module, item: Instruction) -> int | None:
    wrapped = module.wrapped(item)
    if wrapped is None or item.channel_id is not None:
        return item.channel_id
    return wrapped.channel_id


def _grouped(
    module: Module,
    items: Iterable[Instruction],
    key: Callable[[Module, Instruction], Hashable],
) -> dict[Hashable, list[Instruction]]:
    groups: dict[Hashable, list[Instruction]] = {}
    for item in items:
        groups.setdefault(key(module, item), []).append(item)
    return groups
