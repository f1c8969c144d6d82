"""The ceiling: how short a step could be if every collective and copy were hidden as well as the data allows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from pgle.costs.fit.launch import DEFAULT, Launch
from pgle.schedule.program import COLLECTIVES, Action, Op, Program
from pgle.schedule.timeline import Breakdown, Stream
from pgle.xla.hlo.module import Module


@dataclass(frozen=True, slots=True)
class Ceiling:
    """A lower bound of the step time of any schedule of a module; XLA need not be able to reach it."""

    step_us: float  # the bound: the largest of the following, and no less than the step without what is exposed
    compute_us: float  # all compute and its launch gaps, one after the other
    communication_us: float  # the busiest communication queue
    copy_us: float  # the copy queue
    dependencies_us: float  # the longest chain of instructions that need each other's results

    @property
    def bound(self) -> str:
        """Which of the four it is."""
        parts = {
            "compute": self.compute_us,
            "communication": self.communication_us,
            "copy": self.copy_us,
            "dependencies": self.dependencies_us,
        }
        return max(parts, key=lambda key: parts[key])


def ceiling(module: Module, program: Program, launch: Launch = DEFAULT, breakdown: Breakdown | None = None) -> Ceiling:
    """The bound of one step; a loop's iterations follow each other, and the loop is compute to what is around it.

    Args:
        module: what `program` was read from.
        program: its ops with their costs.
        launch: gaps between kernels.
        breakdown: of a schedule of the module: hiding can save what it exposes, not the time in which nothing runs.
    """
    bound = _bound(module, program, program.entry, launch, {})
    if breakdown is None:
        return bound
    kept_us = breakdown.step_us - breakdown.exposed_communication_us - breakdown.exposed_copy_us
    return replace(bound, step_us=max(bound.step_us, kept_us))


def _bound(module: Module, program: Program, name: str, launch: Launch, known: dict[str, Ceiling]) -> Ceiling:
    if name in known:
        return known[name]
    ops = {op.name: op for op in program.computations.get(name, ())}
    inner = {op.name: _inner_us(module, program, op, launch, known) for op in ops.values() if op.bodies}
    compute, copy = sum(inner.values()), 0.0
    queues: dict[str, float] = {}
    for op in ops.values():
        if op.stream is Stream.COMMUNICATION:
            lane = COLLECTIVES if op.lane == "compute" else op.lane
            queues[lane] = queues.get(lane, 0.0) + op.cost_us
        elif op.stream is Stream.COPY:
            copy += op.cost_us
        elif op.action is Action.LAUNCH:
            compute += op.cost_us + launch.gap_us * op.kernels
    communication = max(queues.values(), default=0.0)
    chain = _longest_chain(module, name, ops, inner)
    compute = max(compute - launch.gap_us, 0.0)
    known[name] = Ceiling(max(compute, communication, copy, chain), compute, communication, copy, chain)
    return known[name]


def _inner_us(module: Module, program: Program, op: Op, launch: Launch, known: dict[str, Ceiling]) -> float:
    bodies = [_bound(module, program, body, launch, known).step_us for body in op.bodies]
    if op.action is Action.BRANCH:
        return max(bodies, default=0.0)
    return sum(bodies) * (op.trips if op.action is Action.LOOP else 1)


def _longest_chain(module: Module, name: str, ops: Mapping[str, Op], inner: Mapping[str, float]) -> float:
    """Longest path through operands and control dependencies, without launch gaps."""
    computation = module.computations.get(name)
    finish: dict[str, float] = {}
    arrival: dict[str, float] = {}  # of what an async start began
    for item in computation.instructions if computation is not None else ():
        ready = max((finish.get(other, 0.0) for other in (*item.operands, *item.control_predecessors)), default=0.0)
        op = ops.get(item.name)
        if op is None:
            finish[item.name] = ready
        elif op.action is Action.START:
            finish[item.name], arrival[item.name] = ready, ready + op.cost_us
        elif op.action is Action.DONE:
            finish[item.name] = max(ready, arrival.get(op.start, 0.0))
        else:
            finish[item.name] = ready + inner.get(op.name, op.cost_us)
    return max([*finish.values(), *arrival.values()], default=0.0)
