"""The time of instructions in a step, and the places in the program that they come from."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from math import fsum

from pgle.account.step_costs import StepCosts
from pgle.account.value import Opportunity, Place

MOST_PLACES = 10  # an opportunity names at most so many
_GIB = 1 << 30


def taken_us(step: StepCosts, names: Iterable[str]) -> float:
    """Microseconds of a step that instructions take together. Their order does not change the
    sum.
    """
    return fsum(step.us.get(name, 0.0) for name in names)


def with_shortened(step: StepCosts, item: Opportunity) -> Opportunity:
    """The opportunity with the time of each instruction that it shortens, if its lever does not
    say more.
    """
    if item.shortened:
        return item
    return replace(
        item, shortened={name: _us(step, name) for name in item.instructions}
    )


def room_bytes(step: StepCosts) -> int | None:
    """Device memory that the step leaves free; None if unknown."""
    if step.peak_bytes is None or step.limit_bytes is None:
        return None
    return max(step.limit_bytes - step.peak_bytes, 0)


def in_gib(size_bytes: int) -> str:
    """A size as a number of GiB: ``1.5``."""
    return f"{size_bytes / _GIB:.3g}"


def places(step: StepCosts, names: Iterable[str]) -> tuple[Place, ...]:
    """At most `MOST_PLACES` of these instructions, the costliest first."""
    costly = sorted(names, key=lambda name: (-_us(step, name), name))
    return tuple(_place(step, name) for name in costly[:MOST_PLACES])


def _place(step: StepCosts, name: str) -> Place:
    item = step.module.instructions[name]
    fused = step.module.fused(item)
    inside = () if fused is None else fused.instructions
    alike = [item, *reversed(inside)]
    op_name = next((each.op_name for each in alike if each.op_name), "")
    placed = next((each for each in alike if each.source), item)
    return Place(
        instruction=name,
        us=_us(step, name),
        note=str(item.shape),
        op_name=op_name,
        source=placed.line,
    )


def _us(step: StepCosts, name: str) -> float:
    """Microseconds of an instruction in a step; for an asynchronous one, its exposed time."""
    return step.us.get(name, 0.0) or step.exposed_us.get(name, 0.0)
