"""Collectives of a schedule in groups by kind, and why each stays exposed."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from pgle.schedule.compare import NOTHING_INDEPENDENT, Move, Placement
from pgle.schedule.program import FREE
from pgle.xla.collectives import async_pairs, collective_kind, walk_collectives
from pgle.xla.hlo.module import Instruction, Module
from pgle.xla.hlo.names import lhs_names, loops


@dataclass(frozen=True, slots=True)
class Group:
    """Collectives of one kind that are exposed for the same reason, or hidden."""

    kind: str  # ``all-gather`` …
    why: str  # why they are exposed in the second schedule, else why they were in the first; empty: hidden in both
    name: str  # of the one with the most exposed time, when LHS ran
    is_left: bool = True  # whether they are exposed in the second schedule; a few per cent of their time do not count
    count: int = 0  # their executions in a step
    time_us: float = 0.0  # of all executions
    # before_us, after_us: exposed time of all executions in either schedule
    before_us: float = 0.0
    after_us: float = 0.0

    @property
    def most_us(self) -> float:
        """Exposed time in the schedule that exposes more."""
        return max(self.before_us, self.after_us)


def groups(moves: Iterable[Move]) -> tuple[Group, ...]:
    """Collectives in groups, the most exposed in the second schedule first.

    Args:
        moves: each collective in two schedules (`pgle.schedule.compare.compare_placements`).
    """
    found: dict[tuple[str, str, bool], Group] = {}
    for move in sorted(moves, key=lambda move: (-_exposed(move.after), -_exposed(move.before), move.name)):
        known = move.after or move.before
        if known is None:
            continue
        is_left = move.after is not None and bool(move.after.reason)
        why = move.after.reason if is_left and move.after else move.before.reason if move.before else ""
        group = found.setdefault((known.kind, why, is_left), Group(known.kind, why, move.name, is_left))
        found[known.kind, why, is_left] = replace(
            group,
            count=group.count + known.count,
            time_us=group.time_us + known.cost_us * known.count,
            before_us=group.before_us + _exposed(move.before),
            after_us=group.after_us + _exposed(move.after),
        )
    return tuple(sorted(found.values(), key=lambda group: (-group.after_us, -group.before_us)))


def in_one(placed: Iterable[Placement]) -> tuple[Group, ...]:
    """The collectives of one schedule in groups."""
    return groups(Move(item.name, item, item) for item in placed)


def _exposed(placement: Placement | None) -> float:
    return 0.0 if placement is None else placement.exposed_us


SHOWN = 3
FAR = 2_000  # instructions that are looked at for the nearest one with a name of the program

_BACKWARD = "transpose("  # in the names that jax gives the instructions of a backward pass
_GRADIENTS = (
    "accumulate gradients over micro-batches, so that the next one's compute hides this one's reduction, or give the "
    "optimizer's update of other weights to overlap it"
)
_PARTIAL_SUMS = (
    "gather the weights of that product before it, or shard them along a dimension that it does not sum over "
    "(jax.lax.with_sharding_constraint), so that no partial sums travel"
)
_WEIGHTS = "gather a layer's weights while the layer before computes (a scan over layers with pipelined all-gathers)"
_HALVES = "split the batch in two halves whose layers alternate, so that one computes while the other communicates"
_TOKENS = "split the tokens in two halves, so that one's experts compute while the other's tokens travel"
_NOTHING: Mapping[str, str] = {
    "all-reduce": _HALVES,
    "reduce-scatter": _GRADIENTS,
    "all-gather": _HALVES,
    "all-to-all": _TOKENS,
    "ragged-all-to-all": _TOKENS,
    "collective-permute": "take more micro-batches, and send the one before while this one computes",
}
_GROUPS = "put it and the compute into one scheduling group (jax.experimental.scheduling_groups)"
_BYTES = "send fewer bytes (a narrower type, a larger batch on each device), since the compute next to it is too short"


@dataclass(frozen=True, slots=True)
class Reason:
    """One collective that stays exposed."""

    name: str  # when LHS ran
    kind: str  # ``all-gather`` …
    exposed_us: float  # of the step, all executions together
    why: str  # in words
    made_by: str  # what makes its operand, in the program's words with the source line; empty where nothing says so
    needed_by: str  # the first that needs its result; empty: the step returns it
    loop: str  # the loop around it with its iterations; empty if absent
    help: str  # what change of the program would help


def reasons(module: Module, placed: Iterable[Placement], count: int = SHOWN) -> tuple[Reason, ...]:
    """The collectives that stay exposed, the most exposed first.

    Args:
        module: scheduled.
        placed: `pgle.schedule.compare.placements` of it.
        count: how many at most.
    """
    names = lhs_names(module)
    dones = {pair.start: pair.done for pair in async_pairs(module)}
    starts = {names.get(item.name, item.name): item for item, _ in walk_collectives(module)}
    worst = sorted((item for item in placed if item.reason), key=lambda item: -item.exposed_us)[:count]
    return tuple(_reason(module, item, starts[item.name], dones) for item in worst if item.name in starts)


def _reason(module: Module, placed: Placement, start: Instruction, dones: Mapping[str, str]) -> Reason:
    inside = module.computations[start.computation].instructions
    items = {item.name: item for item in inside}
    users: dict[str, list[str]] = {}
    for item in inside:
        for operand in item.operands:
            users.setdefault(operand, []).append(item.name)
    made = _nearest(module, start.operands, items, lambda item: item.operands)
    done = dones.get(start.name, start.name)
    needed = _nearest(module, users.get(done, ()), items, lambda item: users.get(item.name, ()))
    around = loops(module, start.name)
    loop = "" if not around else f"{around[-1][0]} × {around[-1][1] or 'unknown'}"
    return Reason(
        name=placed.name,
        kind=placed.kind,
        exposed_us=placed.exposed_us,
        why=placed.reason,
        made_by="" if made is None else in_words(made),
        needed_by="" if needed is None else in_words(needed),
        loop=loop,
        help=_help(placed, made, needed, bool(around)),
    )


def _nearest(
    module: Module,
    first: Iterable[str],
    items: Mapping[str, Instruction],
    following: Callable[[Instruction], Iterable[str]],
) -> Instruction | None:
    """The nearest instruction that computes and has a name of the program."""
    seen, queue = set(first), deque(first)
    while queue and len(seen) < FAR:
        item = items.get(queue.popleft())
        if item is None:
            continue
        if item.op_name and item.opcode not in FREE and collective_kind(module, item) is None:
            return item
        new = [name for name in following(item) if name not in seen]
        seen.update(new)
        queue.extend(new)
    return None


def in_words(item: Instruction) -> str:
    """An instruction in the program's words: its operation without the name of the jitted function, and its line."""
    operation = re.sub(r"^(jit|pjit|pmap)\([^)]*\)/", "", item.op_name)
    return f"{operation} at {item.source.rpartition('/')[2]}" if item.source else operation


def _help(placed: Placement, made: Instruction | None, needed: Instruction | None, looped: bool) -> str:
    if placed.kept_by:
        return f"leave out {placed.kept_by}"
    if placed.reason != NOTHING_INDEPENDENT:
        return _BYTES if placed.independent_us < placed.cost_us else _GROUPS
    if placed.kind == "all-gather" and made is None:
        return _WEIGHTS
    if placed.kind == "reduce-scatter" and made is not None and _BACKWARD not in made.op_name:
        return _PARTIAL_SUMS
    if placed.kind == "all-reduce" and needed is None and not looped:
        return _GRADIENTS
    return _NOTHING.get(placed.kind, _HALVES)
