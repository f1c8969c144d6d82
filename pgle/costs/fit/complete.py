"""Fill the gaps of a profile: an instruction without a cost gets a constant from XLA, which distorts the schedule.

First choice is the median of measured instructions that are the same thing: opcode, shapes of result and operands, what
is fused, size of the replica group. Else the estimate for a target, times what measured instructions of the same kind
cost relative to their estimates. What is filled in is marked (`Cost.origin`), and the provenance says how much it is.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite
from statistics import median

from pgle.costs.fit.estimate import describe, estimator
from pgle.costs.profile.effective import effective_costs
from pgle.costs.profile.value import Cost, CostKind, Origin, Profile
from pgle.xla.collectives import collective_kind, group_size, is_start
from pgle.xla.hardware import Hardware
from pgle.xla.hlo.module import Instruction, Module, trip_count
from pgle.xla.hlo.names import lhs_names, schedulable

MIN_NEIGHBOURS = 3
"""Measured instructions of a kind that it takes to scale the estimates of that kind."""

FILLED = (Origin.SAME_SHAPE, Origin.ESTIMATED)
"""Costs of these origins were filled in before: nothing else stands on them."""

_CONTROL = ("conditional", "call")


@dataclass(frozen=True, slots=True)
class Scale:
    """What estimates of one kind of instruction are multiplied by.

    Attributes:
        kind: ``all-gather``, ``fusion kLoop`` …; ``compute`` and ``collective`` where the kind itself has too few.
        factor: median of measured / estimated; 1 where nothing was measured.
        neighbours: measured instructions that it stands on.
    """

    kind: str
    factor: float
    neighbours: int


@dataclass(frozen=True)
class Completion:
    """A profile with its gaps filled for one module.

    Attributes:
        profile: the given costs in their order, then the filled ones by name.
        module: name of the module.
        target: the hardware that was estimated for.
        wanted: instructions and loops of the module that take a cost.
        measured: of them, those that the given profile covers.
        filled: the new costs.
        scales: what estimates were multiplied by, of each kind that needed one.
    """

    profile: Profile
    module: str
    target: str
    wanted: int
    measured: int
    filled: tuple[Cost, ...]
    scales: tuple[Scale, ...]

    def count(self, origin: Origin) -> int:
        """How many of `filled` are of that origin."""
        return sum(cost.origin is origin for cost in self.filled)


def complete_profile(
    profile: Profile, module: Module, hardware: Hardware, *, lhs_module: Module | None = None
) -> Completion:
    """Give every schedulable instruction of a module a cost.

    Args:
        profile: any; what it has is kept as it is.
        module: the module to complete it for, final or as LHS saw it.
        hardware: the GPU for estimates.
        lhs_module: the module as LHS saw it, where `module` is the final one and a schedule dump exists.
    """
    filler = _Filler(profile, module, hardware, lhs_module)
    filled = sorted(filler.fill(), key=lambda cost: cost.name)
    prefix = filler.prefix()
    new = tuple(replace(cost, fingerprint=prefix) for cost in filled)
    notes = {
        "module": module.name,
        "fingerprint": module.fingerprint,
        "target": hardware.name,
        "filled": {origin.value: sum(cost.origin is origin for cost in new) for origin in FILLED},
        "scales": {scale.kind: round(scale.factor, 4) for scale in filler.used},
    }
    before = profile.provenance.get("completed")
    earlier = list(before) if isinstance(before, Sequence) and not isinstance(before, str) else []
    result = replace(
        profile, costs=profile.costs + new, provenance={**profile.provenance, "completed": [*earlier, notes]}
    )
    return Completion(
        result, module.name, hardware.name, filler.wanted, filler.wanted - len(new), new, tuple(filler.used)
    )


class _Filler:
    """One completion in the making."""

    def __init__(self, profile: Profile, module: Module, hardware: Hardware, lhs_module: Module | None) -> None:
        self.profile, self.module = profile, module
        self.known = effective_costs(profile, module.fingerprint)
        self.renamed = lhs_names(module, lhs_module)
        self.estimate = estimator(module, hardware)
        self.items = [item for item in schedulable(module) if item.opcode not in _CONTROL]
        loops = [item for item in module.entry_computation.instructions if item.opcode == "while"]
        self.loops = [loop for loop in loops if trip_count(loop) is not None]
        self.wanted = len(self.items) + len(self.loops)
        self.costs: dict[str, float] = {}
        self.used: list[Scale] = []

    def fill(self) -> Iterator[Cost]:
        """The costs that are missing."""
        missing: list[Instruction] = []
        same: dict[Hashable, list[float]] = defaultdict(list)
        for item in self.items:
            cost = self.find(item)
            if cost is None:
                missing.append(item)
                continue
            self.costs[item.name] = cost.cost_us
            if cost.origin not in FILLED:
                same[signature(self.module, item)].append(cost.cost_us)
        scales: Mapping[str, Scale] | None = None
        for item in missing:
            neighbours = same.get(signature(self.module, item))
            if neighbours:
                value, origin = median(neighbours), Origin.SAME_SHAPE
            else:
                scales = self.scales() if scales is None else scales
                scale = self.scale(scales, item)
                value, origin = self.estimate(item) * scale.factor, Origin.ESTIMATED
            self.costs[item.name] = value
            name = self.renamed.get(item.name, item.name)
            yield replace(describe(self.module, item, name, value), origin=origin)
        for loop in self.loops:
            if loop.name not in self.known:
                yield self.loop_cost(loop)

    def find(self, item: Instruction) -> Cost | None:
        """The cost that XLA would find, by the start's name, else by the wrapped one."""
        wrapped = self.module.wrapped(item)
        for name in (self.renamed.get(item.name, item.name), item.name, wrapped.name if wrapped else ""):
            cost = self.known.get(name)
            if cost is not None and isfinite(cost.cost_us) and cost.cost_us >= 0:
                return cost
        return None

    def scales(self) -> dict[str, Scale]:
        """Median of measured / estimated by kind, and over all compute and all collectives."""
        ratios: dict[str, list[float]] = defaultdict(list)
        for item in self.items:
            cost = self.find(item)
            if cost is None or cost.origin in FILLED or cost.cost_us <= 0:
                continue
            ratio = cost.cost_us / self.estimate(item)
            for kind in self.kinds(item):
                ratios[kind].append(ratio)
        return {kind: Scale(kind, median(found), len(found)) for kind, found in ratios.items()}

    def kinds(self, item: Instruction) -> tuple[str, str]:
        """The kind of an instruction, and the wider one to fall back to."""
        kind = collective_kind(self.module, item)
        if kind is not None:
            return kind, "collective"
        wrapped = self.module.wrapped(item) or item
        return f"{wrapped.opcode} {wrapped.fusion_kind}{wrapped.custom_call_target}".strip(), "compute"

    def scale(self, scales: Mapping[str, Scale], item: Instruction) -> Scale:
        """The narrowest scale that stands on enough; it is noted as used."""
        chosen = next(
            (scales[kind] for kind in self.kinds(item) if kind in scales and scales[kind].neighbours >= MIN_NEIGHBOURS),
            Scale(self.kinds(item)[0], 1.0, 0),
        )
        if chosen not in self.used:
            self.used.append(chosen)
        return chosen

    def loop_cost(self, loop: Instruction) -> Cost:
        """A loop costs its trips times the compute of its body; LHS looks it up under its own name."""
        value = self.body_us(loop) * (trip_count(loop) or 1)
        return Cost(
            loop.name, value, kind=CostKind.LOOP, opcode="while", shape=str(loop.shape), origin=Origin.ESTIMATED
        )

    def body_us(self, loop: Instruction) -> float:
        """What runs on the compute stream in one iteration."""
        total = 0.0
        for name in loop.called:
            computation = self.module.computations.get(name)
            for item in computation.instructions if computation is not None else ():
                if item.opcode == "while":
                    total += self.body_us(item) * (trip_count(item) or 1)
                elif not is_start(item):
                    total += self.costs.get(item.name, 0.0)
        return total

    def prefix(self) -> str:
        """The fingerprint of the module where the profile names its costs by it, else nothing."""
        mine = self.module.fingerprint
        return mine if mine and any(cost.fingerprint == mine for cost in self.profile.costs) else ""


def signature(module: Module, item: Instruction) -> Hashable:
    """What two instructions share when one's measurement is good for the other."""
    inner = module.wrapped(item) or item
    operands = tuple(str(module.instructions[name].shape) for name in inner.operands if name in module.instructions)
    fused = module.computations.get(inner.called[0]) if inner.opcode == "fusion" and inner.called else None
    contents = frozenset(Counter(op.opcode for op in fused.instructions).items()) if fused is not None else frozenset()
    group = group_size(module, item) if collective_kind(module, item) else 0
    return (
        collective_kind(module, item) or inner.opcode,
        str(inner.shape),
        operands,
        inner.fusion_kind,
        inner.custom_call_target,
        contents,
        group,
    )
