"""Collectives of a schedule in groups: their sums by kind and by the reason why they are exposed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from pgle.schedule.moves import Move, Placement


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
        moves: each collective in two schedules (`pgle.schedule.moves.compare_placements`).
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
