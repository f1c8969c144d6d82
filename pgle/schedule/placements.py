"""Where schedules put their collectives, why collectives stay exposed, and how two schedules
differ.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from pgle.schedule.simulate import Stream, Timeline
from pgle.trace.columns import distinct
from pgle.xla.async_pairs import async_pairs
from pgle.xla.collectives import collective_kind, walk_collectives
from pgle.xla.hlo.module import Computation, Module
from pgle.xla.lhs_names import lhs_names

BLOCK = 4096  # instructions that are looked at together

EXPOSED_SHARE = 0.05
"""A collective needs no reason if no larger share of it is exposed. Launch gaps around it alone
take a few microseconds.
"""

# `Placement.reason`: no other instruction is independent of the collective
NOTHING_INDEPENDENT = "nothing is independent of it"
UNREAD = "nothing reads its result, and XLA runs it all the same"

_ACTING = (
    "send",
    "recv",
    "outfeed",
    "infeed",
    "custom-call",
    "while",
    "conditional",
    "call",
    "copy-start",
)

DISABLE_ASYNC = "--xla_gpu_disable_async_collectives"
"""Its value lists kinds without hyphens, separated by commas, or says ``allcollectives``."""


@dataclass(frozen=True, slots=True)
class Placement:
    """One collective in one schedule."""

    name: str  # its name when LHS ran
    kind: str  # ``all-gather`` …
    sync: bool  # no compute instruction overlaps it
    between: int  # number of compute instructions from its start to its done
    cover_us: float  # time of these instructions
    cost_us: float  # its own time, one execution
    # time in a step, over all its executions, during which nothing computes
    exposed_us: float
    # compute in its computation that neither needs it nor is needed by it
    independent_us: float
    count: int = 1  # its executions in a step
    arrays: int = 1  # arrays that it moves; several if XLA combined collectives
    kept_by: str = ""  # the flag that keeps it synchronous; empty if none does
    # no instruction on the way to the computation's result needs it
    unread: bool = False

    @property
    def is_stuck(self) -> bool:
        """Whether (nearly) no compute in its computation is independent of it."""
        return self.independent_us < 0.01 * self.cost_us

    @property
    def hideable_us(self) -> float:
        """The part of its exposed time that independent compute could hide, if that compute does
        not run next to it already.
        """
        return min(
            self.exposed_us, max(self.independent_us - self.cover_us, 0.0) * self.count
        )

    @property
    def reason(self) -> str:
        """Why it is exposed, in words; empty if at most `EXPOSED_SHARE` of it is exposed."""
        if self.exposed_us <= EXPOSED_SHARE * max(self.cost_us * self.count, 1e-9):
            return ""
        if self.unread:
            return UNREAD
        if self.kept_by:
            return f"synchronous by {self.kept_by}"
        if self.is_stuck:
            return NOTHING_INDEPENDENT
        if self.sync:
            return "nothing is scheduled next to it"
        if self.independent_us < self.cost_us:
            return "too little independent compute"
        return "independent compute is not scheduled next to it"


@dataclass(frozen=True, slots=True)
class Move:
    """One collective in two schedules. A placement is None if its schedule has no such name."""

    name: str
    before: Placement | None
    after: Placement | None

    @property
    def moved(self) -> bool:
        """Whether start and done have moved. They have if it became synchronous or asynchronous,
        or if another number of compute instructions runs between them.
        """
        if self.before is None or self.after is None:
            return True
        return (self.before.sync, self.before.between) != (
            self.after.sync,
            self.after.between,
        )


def placements(
    module: Module, timeline: Timeline, flags: Iterable[str] = ()
) -> Mapping[str, Placement]:
    """The placement of every collective in a scheduled module, by its name when LHS ran.

    Args:
        timeline: a step of the module, with its costs.
        flags: the XLA flags of the compilation. If one is given twice, the last one counts.
    """
    names = lhs_names(module)
    given = [
        flag.partition("=")[2]
        for flag in flags
        if flag.partition("=")[0] == DISABLE_ASYNC
    ]
    disabled = (
        {name.strip().lower() for name in given[-1].split(",")} if given else set[str]()
    )
    cost = _cost_by_name(timeline)
    compute = {
        timeline.names[code]
        for code in distinct(timeline.instruction[timeline.stream == Stream.COMPUTE])
    }
    exposures = {item.name: item for item in timeline.exposures}
    dones = {
        pair.start: pair.done for pair in async_pairs(module) if pair.is_collective
    }
    # collectives, each with its kind, by computation
    chosen: dict[str, list[tuple[str, str]]] = {}
    for item, kind in walk_collectives(module):
        if item.name in cost:
            chosen.setdefault(item.computation, []).append((item.name, kind))
    found: dict[str, Placement] = {}
    for computation, inside in (
        (module.computations[of], inside) for of, inside in chosen.items()
    ):
        where = {item.name: at for at, item in enumerate(computation.instructions)}
        free_us = _independent_us(
            computation, [start for start, _ in inside], cost, compute
        )
        read = _read(computation)
        for start, kind in inside:
            between = computation.instructions[
                where[start] + 1 : where[dones.get(start, start)]
            ]
            covering = [
                item.name
                for item in between
                if item.name in compute and collective_kind(module, item) is None
            ]
            name = names.get(start, start)
            exposure = exposures.get(start)
            is_disabled = bool(disabled & {"allcollectives", kind.replace("-", "")})
            cover_us = sum(cost.get(other, 0.0) for other in covering)
            exposed_us = 0.0 if exposure is None else exposure.exposed_us
            count = 1 if exposure is None else exposure.count
            found[name] = Placement(
                name=name,
                kind=kind,
                sync=not covering,
                between=len(covering),
                cover_us=cover_us,
                cost_us=cost[start],
                exposed_us=exposed_us,
                independent_us=free_us[start],
                count=count,
                kept_by=DISABLE_ASYNC if is_disabled else "",
                unread=start not in read,
                arrays=len(module.instructions[start].operands),
            )
    return found


def compare_placements(
    before: Mapping[str, Placement], after: Mapping[str, Placement]
) -> tuple[Move, ...]:
    """Every collective of either schedule. The one whose exposed time changes most is first."""
    moves = (
        Move(name, before.get(name), after.get(name)) for name in {**before, **after}
    )
    change = {
        move: abs(_exposed_us(move.before) - _exposed_us(move.after)) for move in moves
    }
    return tuple(sorted(change, key=lambda move: (-change[move], move.name)))


def _cost_by_name(timeline: Timeline) -> dict[str, float]:
    """Microseconds per execution of every instruction of a timeline."""
    size = len(timeline.names)
    total = np.bincount(
        timeline.instruction, weights=timeline.duration_us, minlength=size
    )
    count = timeline.executions
    return {
        timeline.names[code]: float(total[code] / count[code])
        for code in np.flatnonzero(count).tolist()
    }


def _independent_us(
    computation: Computation,
    names: Sequence[str],
    cost: Mapping[str, float],
    compute: Collection[str],
) -> Mapping[str, float]:
    """How much compute could overlap each of some instructions in any schedule, in microseconds.

    Args:
        names: the instructions.
        cost: microseconds by instruction.
        compute: names of compute instructions.

    Each name has a bit, which marks the instructions that need it or that it needs. So one pass
    over the schedule in each direction is enough, whatever the number of names.
    """
    bits = {name: 1 << number for number, name in enumerate(names)}
    needs = dict(bits)
    needed = dict(bits)
    edges = [
        (item.name, (*item.operands, *item.control_predecessors))
        for item in computation.instructions
    ]
    for name, operands in edges:
        for operand in operands:
            needs[name] = needs.get(name, 0) | needs.get(operand, 0)
    for name, operands in reversed(edges):
        for operand in operands if needed.get(name) else ():
            needed[operand] = needed.get(operand, 0) | needed[name]
    compute_names = [name for name, _ in edges if name in compute and name in cost]
    size = -(-len(bits) // 8)
    free_us = np.zeros(len(bits))
    for first in range(0, len(compute_names), BLOCK):
        block = compute_names[first : first + BLOCK]
        tied = b"".join(
            (needs.get(name, 0) | needed.get(name, 0)).to_bytes(size, "little")
            for name in block
        )
        packed = np.frombuffer(tied, np.uint8).reshape(len(block), size)
        is_tied = np.unpackbits(packed, axis=1, count=len(bits), bitorder="little")
        free_us += np.array([cost[name] for name in block]) @ (1 - is_tied)
    return dict(zip(bits, free_us.tolist(), strict=True))


def _read(computation: Computation) -> set[str]:
    """Names of the instructions that matter: the computation's result depends on them, or they
    have other effects or feed one that has.
    """
    operands = {item.name: item.operands for item in computation.instructions}
    acts = (
        item.name
        for item in computation.instructions
        if item.opcode in _ACTING or item.is_host_transfer
    )
    read: set[str] = set()
    todo = [computation.root, *acts]
    while todo:
        name = todo.pop()
        if name not in read:
            read.add(name)
            todo += operands.get(name, ())
    return read


@dataclass(frozen=True, slots=True)
class ExposedGroup:
    """Collectives of one kind that are exposed for the same reason, or hidden."""

    kind: str  # ``all-gather`` …
    # why they are exposed in the second schedule, else why in the first; empty if hidden in both
    why: str
    name: str  # the most exposed one, by its name when LHS ran
    # whether they are exposed in the second schedule by more than `EXPOSED_SHARE` of their time
    is_left: bool = True
    count: int = 0  # their executions in a step
    time_us: float = 0.0  # time of all executions
    # before_us, after_us: exposed time of all executions in the first and the second schedule
    before_us: float = 0.0
    after_us: float = 0.0

    @property
    def most_us(self) -> float:
        """Exposed time in the schedule that exposes more."""
        return max(self.before_us, self.after_us)


def groups(moves: Iterable[Move]) -> tuple[ExposedGroup, ...]:
    """Group collectives by kind and reason. The most exposed in the second schedule are first."""
    found: dict[tuple[str, str, bool], ExposedGroup] = {}
    for move in sorted(
        moves,
        key=lambda move: (
            -_exposed_us(move.after),
            -_exposed_us(move.before),
            move.name,
        ),
    ):
        known = move.after or move.before
        if known is None:
            continue
        is_left = move.after is not None and bool(move.after.reason)
        why = "" if move.before is None else move.before.reason
        if is_left and move.after is not None:
            why = move.after.reason
        group = found.setdefault(
            (known.kind, why, is_left),
            ExposedGroup(known.kind, why, move.name, is_left),
        )
        found[known.kind, why, is_left] = replace(
            group,
            count=group.count + known.count,
            time_us=group.time_us + known.cost_us * known.count,
            before_us=group.before_us + _exposed_us(move.before),
            after_us=group.after_us + _exposed_us(move.after),
        )
    return tuple(
        sorted(found.values(), key=lambda group: (-group.after_us, -group.before_us))
    )


def in_one(placed: Iterable[Placement]) -> tuple[ExposedGroup, ...]:
    """Group the collectives of one schedule, the most exposed first."""
    return groups(Move(item.name, item, item) for item in placed)


def _exposed_us(placement: Placement | None) -> float:
    return 0.0 if placement is None else placement.exposed_us
