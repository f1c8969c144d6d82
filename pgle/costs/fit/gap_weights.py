"""How much time hangs on instructions that a profile has no cost for: neighbours first, then scaled estimates."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from statistics import median

from pgle.costs.fit.estimate import estimator
from pgle.costs.fit.wanted import Wanted
from pgle.costs.profile.value import CostKind
from pgle.xla.checker import compute_capability
from pgle.xla.hardware import Hardware, find_hardware
from pgle.xla.hlo.module import Module

_TARGETS: Mapping[int, str] = {8: "a100-40gb", 9: "h100-sxm", 10: "b200", 12: "b200"}
_DEFAULT_TARGET = "h100-sxm"
_CALIBRATED_ON = 300
"""Covered instructions of one kind that are estimated too, to scale the estimates; more change little."""


class Basis(StrEnum):
    """What the weight of an instruction stands on."""

    PROFILE = "profile"
    SAME_SHAPE = "same-shape"
    ESTIMATED = "estimated"


def hardware_of(module: Module) -> Hardware:
    """The GPU whose roofline is used: the one of the dump's file name, else an H100."""
    capability = compute_capability(module)
    return find_hardware(_TARGETS.get(capability[0], _DEFAULT_TARGET) if capability else _DEFAULT_TARGET)


def weigh_gaps(
    module: Module, hardware: Hardware, covered: Sequence[tuple[Wanted, float]], gaps: Sequence[Wanted]
) -> list[tuple[float, Basis]]:
    """Microseconds per execution of each gap, and what the figure stands on.

    Args:
        module: that the instructions are of.
        hardware: for estimates.
        covered: instructions with their costs.
        gaps: instructions without.

    Returns:
        The median cost of covered instructions of the same opcode, fusion kind and shape; else an estimate, scaled by
        the median ratio of cost to estimate of the covered instructions of that kind.
    """
    neighbours: dict[tuple[str, str, str], list[float]] = defaultdict(list)
    for item, cost in covered:
        if math.isfinite(cost):
            neighbours[_key(item)].append(cost)
    estimate = estimator(module, hardware)
    scales: dict[CostKind, float] = {}
    weights = []
    for gap in gaps:
        same = neighbours.get(_key(gap))
        if same:
            weights.append((median(same), Basis.SAME_SHAPE))
            continue
        if gap.kind not in scales:
            scales[gap.kind] = _scale(estimate, [pair for pair in covered if pair[0].kind == gap.kind])
        weights.append((estimate(gap.instruction) * scales[gap.kind], Basis.ESTIMATED))
    return weights


def _key(item: Wanted) -> tuple[str, str, str]:
    return item.opcode, item.instruction.fusion_kind or item.instruction.custom_call_target, item.shapes[0]


def _scale(estimate: Callable[..., float], covered: Sequence[tuple[Wanted, float]]) -> float:
    step = max(len(covered) // _CALIBRATED_ON, 1)
    ratios = [
        cost / guess
        for item, cost in covered[::step]
        if (guess := estimate(item.instruction)) > 0 and cost > 0 and math.isfinite(cost)
    ]
    return median(ratios) if len(ratios) >= 3 else 1.0
