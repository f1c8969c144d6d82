"""Lower bounds of the step over all schedules of a module's instructions: by their costs, and by
the peaks of the GPU and its links.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from pgle.costs.estimate.estimate import least_us
from pgle.costs.measure.contention import DEFAULT, LaunchGaps
from pgle.costs.profile.value import Origin
from pgle.schedule.simulate import (
    COLLECTIVES,
    ROUNDING,
    Breakdown,
    HostAction,
    Op,
    Program,
    Stream,
    Timeline,
)
from pgle.xla.hlo.module import Module
from pgle.xla.targets import Hardware
from pgle.xla.vendors import maker_of

LATENCY_SHARE = 0.5
"""Launches and latencies of collectives may decide the length of a step if they take more than this
share. Launches count with CUDA's public figure.
"""


def latency_decides(
    program: Program, timeline: Timeline, hardware: Hardware, host_us: float
) -> str:
    """Why a step is a lower bound, if the time of a launch on the vendor's GPU is not public.

    It is empty if that time is known, or if kernels and collectives are long enough.

    Args:
        host_us: the time of one launch that the timeline assumes.
    """
    if maker_of(hardware).knows_launches:
        return ""
    counts = timeline.executions.tolist()
    executions = dict(zip(timeline.names, counts, strict=True))
    launches = waits_us = 0.0
    for op in program.ops:
        times = executions.get(op.name, 0)
        launches += op.kernels * times
        if op.stream is Stream.COMMUNICATION:  # `least_us` is the time on the links
            waits_us += max(op.cost_us - op.least_us, 0.0) * times
    half_us = LATENCY_SHARE * timeline.step_us
    if launches * host_us > half_us:
        return f"its {launches:,.0f} kernels are so short that the host's launches may decide"
    if launches * host_us + waits_us > half_us:
        return "its kernels and collectives are so short that launches and latencies may decide"
    return ""


def shortest_step_us(
    module: Module,
    program: Program,
    launch: LaunchGaps = DEFAULT,
    breakdown: Breakdown | None = None,
    slower: float = 1.0,
) -> float:
    """A lower bound of the step over all schedules of a module, in microseconds. XLA may not be
    able to reach it.

    Iterations of a loop run one after another. To the instructions around it, a loop is compute.

    Args:
        breakdown: the time of one schedule. Hiding can save its exposed time, but not its idle
            time.
        slower: the smallest contention factor of kernels that hide a collective. Hiding one
            microsecond saves 1 / `slower`.
    """
    bounds = _Bounds(module, program, lambda op: op.cost_us, launch.gap_us)
    bound = bounds.of(program.entry)
    if breakdown is None:
        return bound
    saved_us = breakdown.exposed_communication_us / slower
    return max(bound, breakdown.step_us - saved_us - breakdown.exposed_copy_us)


def _least_of(module: Module, op: Op, hardware: Hardware) -> float:
    """The least time of an op on the GPU, in microseconds.

    For a measured cost, all devices count as on one host, since the measured run may have placed
    them otherwise.
    """
    if op.origin is Origin.ESTIMATED or not op.kind:
        return op.least_us
    return least_us(module, module.instructions[op.name], hardware, hosts=False)


def gpu_least_us(module: Module, program: Program, hardware: Hardware) -> float:
    """A lower bound of the step by the GPU's peaks and its links, in microseconds. No schedule of
    the program can be shorter.
    """
    least = {op.name: _least_of(module, op, hardware) for op in program.ops}
    return _Bounds(
        module, program, lambda op: least[op.name], 0.0, shares_links=True
    ).of(program.entry)


def too_short(
    module: Module, program: Program, timeline: Timeline, hardware: Hardware
) -> Iterator[str]:
    """Warn if the costs make a step that is shorter than the GPU can reach.

    The warning names the instruction whose cost is furthest below its bound.
    """
    simulated_us = float(timeline.end_us.max(initial=0.0))
    if simulated_us >= program.least_us * (1 - ROUNDING):
        return
    missing, worst = max(
        ((_least_of(module, op, hardware) - op.cost_us, op) for op in program.ops),
        key=lambda it: it[0],
    )
    needs = ""
    if missing > 0:
        needed_us = worst.cost_us + missing
        needs = f" ({worst.name} has {worst.cost_us:,.0f} and needs {needed_us:,.0f})"
    yield (
        f"the costs make a step of {simulated_us:,.0f} µs, "
        f"but the GPU needs at least {program.least_us:,.0f}{needs}: pgle predicts that. "
        "Check that the costs are of this program and of the GPU of --target"
    )


@dataclass
class _Bounds:
    """The bounds of a program's computations, each found once."""

    module: Module  # what the program was read from
    program: Program
    cost: Callable[[Op], float]  # microseconds of one execution of an op
    gap_us: float  # gap before each kernel
    # whether collectives and transfers between two devices share links
    shares_links: bool = False
    known: dict[str, float] = field(default_factory=dict)
    queues: dict[str, Mapping[str, float]] = field(default_factory=dict)

    def of(self, name: str) -> float:
        """The bound of one computation and all that it calls, in microseconds."""
        if name in self.known:
            return self.known[name]
        ops = {op.name: op for op in self.program.computations.get(name, ())}
        inner = {op.name: self._inner_us(op) for op in ops.values() if op.bodies}
        compute = sum(inner.values())
        compute += sum(
            self.cost(op) + self.gap_us * op.kernels
            for op in ops.values()
            if op.stream is Stream.COMPUTE and op.action is HostAction.LAUNCH
        )
        queues = self._queued(name)
        copy = max(
            (us for lane, us in queues.items() if lane.startswith("copy")), default=0.0
        )
        pairs = max(queues.get("send", 0.0), queues.get("recv", 0.0))
        collectives = queues.get(COLLECTIVES, 0.0)
        links = collectives + pairs if self.shares_links else max(collectives, pairs)
        chain = _longest_chain(
            self.module,
            name,
            ops,
            {**{op.name: self.cost(op) for op in ops.values()}, **inner},
        )
        self.known[name] = max(compute - self.gap_us, links, copy, chain)
        return self.known[name]

    def _inner_us(self, op: Op) -> float:
        bodies = [self.of(body) for body in op.bodies]
        return (
            max(bodies, default=0.0)
            if op.action is HostAction.BRANCH
            else sum(bodies) * op.trips
        )

    def _queued(self, name: str) -> Mapping[str, float]:
        """Microseconds of each queue except compute. All iterations of loops count. Branches do
        not count, since the program may take another one.
        """
        if name in self.queues:
            return self.queues[name]
        found: dict[str, float] = {}
        for op in self.program.computations.get(name, ()):
            if op.stream is not Stream.COMPUTE:
                lane = COLLECTIVES if op.lane == "compute" else op.lane
                found[lane] = found.get(lane, 0.0) + self.cost(op)
            for body in op.bodies if op.action is not HostAction.BRANCH else ():
                for lane, us in self._queued(body).items():
                    found[lane] = found.get(lane, 0.0) + us * op.trips
        self.queues[name] = found
        return found


def _longest_chain(
    module: Module, name: str, ops: Mapping[str, Op], us: Mapping[str, float]
) -> float:
    """Microseconds of the longest path through operands and control dependencies, without launch
    gaps.

    Args:
        us: microseconds by name of the op.
    """
    computation = module.computations.get(name)
    finish: dict[str, float] = {}
    arrival: dict[str, float] = {}  # when the work of an async start ends
    for item in computation.instructions if computation is not None else ():
        before = (*item.operands, *item.control_predecessors)
        ready = max((finish.get(other, 0.0) for other in before), default=0.0)
        op = ops.get(item.name)
        if op is None:
            finish[item.name] = ready
        elif op.action is HostAction.START:
            finish[item.name], arrival[item.name] = ready, ready + us[op.name]
        elif op.action is HostAction.DONE:
            finish[item.name] = max(ready, arrival.get(op.start, 0.0))
        else:
            finish[item.name] = ready + us[op.name]
    return max([*finish.values(), *arrival.values()], default=0.0)
