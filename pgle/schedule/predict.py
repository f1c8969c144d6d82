"""Predict the step of a scheduled module, and compare predictions of two schedules with the same
costs.

`read_program` says what the runtime does with each instruction, and its cost: from the profile,
else from an estimate. Queues model XLA's streams:
- Asynchronous collectives share one queue. XLA has two streams for them only with
  ``--xla_gpu_experimental_enable_collective_multi_streaming`` (`kDefaultNumCommunicationStreams`;
  openxla/xla `backends/gpu/runtime/execution_stream_id.h`).
- Sends and receives have a queue each, and so has each direction of copies between host and device.
- XLA runs asynchronous compute on other streams, but all streams share one GPU. Here it takes its
  turn on the compute queue: two kernels at once are no faster than one after the other.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from pgle.costs.estimate.estimate import estimator
from pgle.costs.estimate.known import KnownCost, estimates
from pgle.costs.estimate.unknown import Range, range_of
from pgle.costs.measure.contention import (
    ASSUMED,
    DEFAULT,
    LEAST_OVERLAP,
    Contention,
    Factors,
    LaunchGaps,
    contention_of,
    launch_of,
    lost_us,
)
from pgle.costs.profile.lookup import LookupTable
from pgle.costs.profile.value import Cost, Origin, Profile, effective_costs
from pgle.errors import UserError, many
from pgle.next import VERIFY
from pgle.schedule.bounds import (
    gpu_least_us,
    latency_decides,
    shortest_step_us,
    too_short,
)
from pgle.schedule.simulate import (
    COLLECTIVES,
    ORIGINS,
    HostAction,
    Op,
    Program,
    Stream,
    Timeline,
    run_program,
)
from pgle.trace.intervals import covered
from pgle.worth import LEAST_GAIN
from pgle.xla.async_opcodes import is_done, is_start
from pgle.xla.async_pairs import result_shape, start_of
from pgle.xla.collectives import collective_kind, is_sync
from pgle.xla.hlo.module import HOST_MEMORY_SPACE, Instruction, Module
from pgle.xla.hlo.trips import loop_body, trip_count
from pgle.xla.host_copies import is_host_copy
from pgle.xla.instruction_kinds import FREE_TARGETS, kind_of
from pgle.xla.matrix_products import is_convolution
from pgle.xla.targets import Hardware, Target, find_hardware
from pgle.xla.vendors import maker_of

FREE = frozenset(
    (
        "parameter",
        "constant",
        "get-tuple-element",
        "tuple",
        "bitcast",
        "after-all",
        "add-dependency",
        "opt-barrier",
        "optimization-barrier",
        "domain",
        "get-dimension-size",
        "async-update",
    )
)
"""Opcodes that launch nothing on XLA:GPU."""

MOST_EXECUTED = 300_000  # instructions in one step, if each loop runs once

ESTIMATE_RANGE = (0.9, 1.4)
"""Measured time divided by estimated time. By kind of kernel, two real jobs took 0.86 to 1.39 and
0.93 to 1.37 times the estimate. Each range holds the ratio of the other job's whole compute, 1.15
and 1.08 (docs/evidence/rehearse.md). No third job has been compared.
"""


MODEL_ERROR = 0.014
"""The relative error of the simulated step, if all costs were measured in the same job. It was
−0.93 to −0.25 % for one real job and +0.94 to +1.33 % for another (docs/evidence/simulator.md). No
third job has been compared.
"""


class Steps(NamedTuple):
    """The predicted step in microseconds, and how long it is if one assumption changes."""

    likely: float  # the prediction
    # least_contention, most_contention: without contention, and with twice the likely slowdown
    least_contention: float
    most_contention: float
    # least_data, most_data: all costs that depend on data are at their least, and at their most
    least_data: float
    most_data: float
    # least_network, most_network: with estimated collectives on the fastest and on the slowest
    # network of the GPU
    least_network: float
    most_network: float


@dataclass(frozen=True, slots=True)
class Uncertain:
    """An instruction whose cost depends on data. Times are microseconds per execution."""

    name: str  # the instruction
    cost_us: float  # its cost in the prediction
    range: Range  # the range of its cost, and the reason
    count: int  # executions in the step


# share of a measured cost; pgle shows a range that reaches at least so far
DIFFERING = 0.1
HELD = 0.9  # probability that one more execution is in the range of a measured cost


@dataclass(frozen=True)
class Prediction:
    """The predicted step of a scheduled module."""

    timeline: Timeline  # one step
    shortest_us: float  # lower bound over all schedules of the same instructions
    # what the runtime does; each op has the cost that the timeline uses
    program: Program
    costs_are: str  # origins in words, by `costs_are` of `pgle.costs.profile.value`
    estimated_share: float  # share of the activity time whose cost was not measured
    launch: LaunchGaps  # the gaps that the simulation used
    # how much longer kernels take while a collective runs, measured or assumed; `step_us` has it
    contention: Contention
    # the likely step, and the step at the ends of each uncertainty
    steps_us: Steps
    # costs that depend on data, the widest range first
    uncertain: tuple[Uncertain, ...] = ()
    contended_us: float = 0.0  # compute that the step loses to contention
    # part of the step spent waiting for the slowest rank; 0 if ranks were not compared
    skew_us: float = 0.0
    # effects that could change this prediction but are in no figure, one line each
    not_modelled: tuple[str, ...] = ()

    @property
    def step_us(self) -> float:
        """Predicted length of the step in microseconds, contention included."""
        return self.timeline.step_us

    @property
    def lower_bound(self) -> bool:
        """Whether `step_us` is only a lower bound, so that its range has no upper end."""
        return self.timeline.lower_bound

    @property
    def lower_bound_why(self) -> str:
        """Why `step_us` is a lower bound: a loop of unknown length counts once, or only a bound of
        a cost is known. Empty if it is not.
        """
        return self.program.lower_bound_why

    @property
    def exposed_us(self) -> float:
        """Predicted time during which collectives run and nothing computes."""
        return self.timeline.breakdown.exposed_communication_us

    @property
    def interval_us(self) -> tuple[float, float]:
        """The range of the step, in microseconds.

        Four errors are independent, so they add in quadrature: errors of estimates as measured on
        other jobs, contention from none to twice the likely one, costs that depend on data, and an
        assumed network. The model's error is added to that. The range never begins below the
        program's `least_us`. Its end is infinite if the step is a lower bound.
        """
        down, up = (
            abs(factor - 1) * self.estimated_share * self.step_us
            for factor in ESTIMATE_RANGE
        )
        likely, *ends = self.steps_us
        pairs = (ends[:2], ends[2:4], ends[4:])
        reaches = [[end - likely for end in pair] for pair in pairs]
        shorter = [min(0.0, *reach) for reach in reaches]
        longer = [max(0.0, *reach) for reach in reaches]
        low = math.hypot(down, *shorter) + MODEL_ERROR * self.step_us
        high = math.hypot(up, *longer) + MODEL_ERROR * self.step_us
        most_us = math.inf if self.lower_bound else self.step_us + high
        return max(
            self.step_us - low, min(self.program.least_us, self.step_us)
        ), most_us


@dataclass(frozen=True, slots=True)
class Gain:
    """The gain of a schedule over another, as shares of the other's step. Positive is shorter."""

    share: float  # with the likely contention
    # low, high: the range of the gain, over all entries of `Steps`
    low: float
    high: float
    # the part that comes from less idle time: noise of the model rather than overlap
    idle_share: float
    # the gain at the ends of each uncertainty, in the order of `Steps`; empty if unknown
    at_ends: tuple[float, ...] = ()


def gain(before: Prediction, after: Prediction, work: float = 1.0) -> Gain:
    """The gain of `after` over `before`. Both have contention: communication slows the kernels that
    hide it.

    Args:
        work: how many times as much work `after` does. Its times are divided by it.
    """
    step = max(before.step_us, 1e-9)
    share = (before.step_us - after.step_us / work) / step
    shares = [
        (a - b / work) / max(a, 1e-9)
        for a, b in zip(before.steps_us, after.steps_us, strict=True)
    ]
    idle_before = before.timeline.breakdown.idle_us
    idle = (idle_before - after.timeline.breakdown.idle_us / work) / step
    return Gain(share, min(shares), max(shares), idle, tuple(shares[1:]))


def predict(
    module: Module,
    profile: Profile | None,
    target: str | Target | Hardware,
    *,
    launch: LaunchGaps | None = None,
    contention: Contention | None = None,
    expand_loops: bool = False,
) -> Prediction:
    """Predict one step of a scheduled module from measured costs, and from estimates if a cost is
    missing.

    Every rank waits for the slowest. So if the profile has the compute times of the slowest rank,
    the prediction uses them.

    Kernels run slower while a collective runs (contention). A measured cost may contain that
    already. pgle removes it by the share of its time that the kernel ran during collectives in the
    measurement. If the profile lacks these shares, pgle takes them from this schedule.

    Args:
        profile: if None, all costs are estimated. pgle skips costs of another fingerprint.
        target: the GPU, or its name.
        launch: by default the gaps that the profile records, else `DEFAULT`.
        contention: by default as the profile records it, else as on two real jobs. To predict other
            schedules with the same costs, pass the first prediction's contention.
        expand_loops: draw every iteration of a loop in the timeline.

    Raises:
        UserError: the target is unknown, or the module runs too many instructions
            (`read_program`).
    """
    hardware = target if isinstance(target, Hardware) else find_hardware(target)
    launch = (
        launch
        or (launch_of(profile, module.name) if profile is not None else None)
        or DEFAULT
    )
    given = effective_costs(profile, module.fingerprint) if profile is not None else {}
    program = read_program(module, given, hardware, launch.kernels)
    program = replace(program, least_us=gpu_least_us(module, program, hardware))
    contends = contention or (
        ASSUMED if profile is None else contention_of(profile, module.name)
    )

    def costs(times: float, *, slowest: bool = True) -> dict[str, float]:
        """Costs without contention, in microseconds by op, if contention was `times` times the
        likely one. Costs are the slowest rank's if `slowest`.
        """
        factors = contends.at(times)
        found = {}
        for op in program.ops:
            if op.cost is None:
                continue
            alone = contends.alone(module, op.cost, factors)
            us = alone.cost_us
            if slowest and alone.slowest_us is not None:
                us = alone.slowest_us
            found[op.name] = max(us, op.least_us)
        return found

    def likely_us(changed: Mapping[str, float]) -> float:
        """Microseconds of the likely step with some costs changed."""
        if not changed:
            return step_us
        return run_program(likely, launch, factors, costs=changed).step_us

    if contends.beside is None:  # the profile does not say what ran during collectives
        beside = _beside(run_program(program, launch, costs=costs(0))) if given else {}
        contends = replace(contends, beside=beside)
    likely = program.at(costs(1))
    factors = contends.likely
    timeline = run_program(
        likely, launch, factors, name=module.name, expand_loops=expand_loops
    )
    if launch.origin is Origin.ESTIMATED:
        why = latency_decides(likely, timeline, hardware, launch.host_us)
        likely = replace(likely, bound_why=why)
        timeline = replace(timeline, lower_bound=bool(likely.lower_bound_why))
    step_us = timeline.step_us
    ends = (
        run_program(program, launch, contends.at(times), costs=costs(times)).step_us
        for times in (0, 2)
    )
    skew_us = 0.0
    if any(cost.slowest_us is not None for cost in given.values()):
        typical = costs(1, slowest=False)
        skew_us = step_us - run_program(program, launch, factors, costs=typical).step_us
    uncertain = _uncertain(module, likely, timeline, hardware, given)
    timeline = replace(
        timeline,
        warnings=(
            *timeline.warnings,
            *too_short(module, likely, timeline, hardware),
            *_unmodelled_convolutions(module, uncertain, step_us, hardware),
        ),
    )
    by_data = (
        {item.name: item.range.least_us for item in uncertain},
        {item.name: item.range.most_us for item in uncertain},
    )
    data = map(likely_us, by_data)
    network = map(likely_us, _on_networks(module, likely, hardware))
    shortest_us = shortest_step_us(
        module, likely, launch, timeline.breakdown, slower=min(factors)
    )
    return Prediction(
        timeline=timeline,
        shortest_us=shortest_us,
        program=likely,
        costs_are=timeline.costs_are,
        estimated_share=timeline.estimated_share,
        launch=launch,
        contention=contends,
        steps_us=Steps(step_us, *ends, *data, *network),
        uncertain=uncertain,
        contended_us=contended_us(timeline, factors),
        skew_us=skew_us,
        not_modelled=_not_modelled(likely, timeline, hardware),
    )


def read_program(
    module: Module,
    costs: Mapping[str, Cost],
    hardware: Hardware,
    kernels: Mapping[str, float] = {},
) -> Program:
    """Read what the runtime does with a scheduled module, and the cost of each op.

    Args:
        costs: by the name that LHS looks up; for a collective, the name of its start.
        hardware: the GPU, for estimates of missing costs.
        kernels: launches per execution, by instruction; 1 if missing.

    Raises:
        UserError: calls of calls run a few instructions millions of times.
    """
    reader = _ProgramReader(
        module=module,
        costs=costs,
        hardware=hardware,
        kernels=kernels,
        table=LookupTable(module),
        estimate=estimates(module, hardware),
    )
    reader.read(module.entry)
    reader.check_size(module.entry)
    found = Program(module.entry, reader.computations, ())
    warnings = []
    if found.uncounted:
        first, *more = found.uncounted
        loops = f"{first} and {many(len(more), 'more loop')}" if more else first
        warnings.append(
            f"the step is a lower bound: XLA does not know how often {loops} runs, "
            "and one iteration is counted; "
            "give the loop a constant length (jax.lax.scan, or fori_loop with constant bounds)"
        )
    if reader.others:
        warnings.append(
            "left out of the profile's costs, since that name is another opcode or shape here: "
            f"{len(reader.others)} (first {reader.others[0]}); "
            f"is it of this program? '{VERIFY}' shows what matches"
        )
    return replace(found, warnings=tuple(warnings))


@dataclass
class _ProgramReader:
    """Walks from the entry into bodies, branches and calls."""

    module: Module
    costs: Mapping[str, Cost]
    hardware: Hardware
    kernels: Mapping[str, float]
    table: LookupTable
    estimate: Callable[[Instruction], KnownCost]
    computations: dict[str, tuple[Op, ...]] = field(default_factory=dict)
    others: list[str] = field(default_factory=list)

    def read(self, name: str) -> None:
        """Fill `computations` for one computation and all that it calls."""
        todo = [name]
        while todo:
            name = todo.pop()
            if name in self.computations or name not in self.module.computations:
                continue
            found = map(self._op, self.module.computations[name].instructions)
            ops = self.computations[name] = tuple(op for op in found if op is not None)
            for op in ops:
                todo.extend(op.bodies)

    def check_size(self, entry: str) -> None:
        """Refuse a module whose calls of calls run a few instructions millions of times. XLA
        flattens calls before it schedules.

        Raises:
            UserError: a step runs more than `MOST_EXECUTED` instructions, and more than four times
                as many as the module has.
        """
        executed: dict[str, int] = {}

        def count(name: str) -> int:
            if name not in executed:
                executed[name] = 0  # a computation that calls itself counts once
                ops = self.computations.get(name, ())
                called = chain.from_iterable(op.bodies for op in ops)
                executed[name] = len(ops) + sum(map(count, called))
            return executed[name]

        distinct = sum(map(len, self.computations.values()))
        if count(entry) > max(MOST_EXECUTED, 4 * distinct):
            what = f"its calls run {distinct:,} instructions {executed[entry]:,} times in one step"
            remedy = (
                "give the module as XLA scheduled it (*after_optimizations*), "
                "where calls are flat"
            )
            raise UserError(what, where=self.module.source, remedy=remedy)

    def _op(self, instruction: Instruction) -> Op | None:
        opcode = instruction.opcode
        if opcode in FREE or instruction.custom_call_target in FREE_TARGETS:
            return None
        if opcode == "while":
            return self._loop(instruction)
        if opcode in ("conditional", "call"):
            action = HostAction.BRANCH if opcode == "conditional" else HostAction.CALL
            return Op(instruction.name, action, bodies=instruction.called)
        if is_done(instruction):
            return self._done(instruction)
        kind = collective_kind(self.module, instruction)
        if kind and is_sync(self.module, instruction):
            return self._priced(
                instruction, HostAction.LAUNCH, Stream.COMMUNICATION, "compute"
            )
        if kind:
            lane = kind if kind in ("send", "recv") else COLLECTIVES
            return self._priced(
                instruction, HostAction.START, Stream.COMMUNICATION, lane
            )
        if is_start(instruction) and is_copy(self.module, instruction):
            to_host = (
                result_shape(self.module, instruction).memory_space == HOST_MEMORY_SPACE
            )
            lane = "copy to host" if to_host or opcode == "send" else "copy to device"
            return self._priced(instruction, HostAction.START, Stream.COPY, lane)
        return self._priced(instruction, HostAction.LAUNCH, Stream.COMPUTE, "compute")

    def _done(self, instruction: Instruction) -> Op | None:
        """A wait, unless the start ran on the compute stream itself."""
        start = start_of(self.module, instruction)
        if start is None:
            return None
        if (
            is_sync(self.module, start)
            if collective_kind(self.module, start)
            else not is_copy(self.module, start)
        ):
            return None
        return Op(instruction.name, HostAction.DONE, start=start.name)

    def _loop(self, instruction: Instruction) -> Op:
        trips = trip_count(self.module, instruction)
        # the host counts the iterations of a counted loop, so its condition takes no GPU time
        body = loop_body(self.module, instruction)
        return Op(
            instruction.name,
            HostAction.LOOP,
            bodies=() if body is None else (body.name,),
            trips=1 if trips is None else trips,
            is_counted=trips is not None,
        )

    def _priced(
        self, instruction: Instruction, action: HostAction, stream: Stream, lane: str
    ) -> Op:
        lhs_name, cost = self._cost(instruction)
        cost = cost if cost is not None and cost.is_valid else None
        origin = Origin.ESTIMATED if cost is None else cost.origin
        cost_us, least, why = 0.0, 0.0, ""
        if origin is Origin.ESTIMATED:
            known = self.estimate(instruction)
            cost_us, least, why = known.us, known.least_us, known.bound_why
        if cost is not None:
            cost_us = cost.cost_us
        cost_us = max(cost_us, least)
        return Op(
            instruction.name,
            action,
            stream=stream,
            lane=lane,
            cost_us=cost_us,
            origin=origin,
            kernels=self.kernels.get(instruction.name, 1.0),
            cost=cost,
            kind=kind_of(self.module, instruction),
            lhs_name=lhs_name,
            least_us=least,
            bound_why=why,
        )

    def _cost(self, instruction: Instruction) -> tuple[str, Cost | None]:
        """The instruction's name when LHS ran, and its cost. The cost is the one that XLA finds,
        else the one under the run-time name; None if it is missing.
        """
        row = self.table.row_of(instruction.name)
        if row is None:
            return instruction.name, self.costs.get(instruction.name)
        found = row.find(self.costs) or self.costs.get(instruction.name)
        if found is not None and row.differs(found):
            self.others.append(instruction.name)
            return row.name, None
        return row.name, found


def is_copy(module: Module, start: Instruction) -> bool:
    """Whether an asynchronous start (not of a collective) only moves bytes. A copy engine does
    that, not the cores.
    """
    return (
        start.opcode == "copy-start"
        or start.is_host_transfer
        or is_host_copy(module, start)
    )


def _beside(timeline: Timeline) -> Mapping[str, float]:
    """The share of an instruction's time during which a collective runs in a schedule, by name.

    Only instructions whose cost was measured count, and only shares from `LEAST_OVERLAP` on.
    """
    given = [ORIGINS.index(origin) for origin in (Origin.MEASURED, Origin.UNKNOWN)]
    rows = np.flatnonzero(
        (timeline.stream == Stream.COMPUTE)
        & ~timeline.sync
        & np.isin(timeline.origin, given)
    )
    during = covered(
        timeline.busy(Stream.COMMUNICATION),
        timeline.start_us[rows],
        timeline.end_us[rows],
    )
    size = len(timeline.names)
    code = timeline.instruction[rows]
    total, shared = (
        np.bincount(code, column, size)
        for column in (timeline.duration_us[rows], during)
    )
    found = shared / np.maximum(total, 1e-9)
    return {
        timeline.names[at]: float(found[at])
        for at in np.flatnonzero(found >= LEAST_OVERLAP).tolist()
    }


def _in_flight(ops: Sequence[Op]) -> int:
    """The largest number of asynchronous collectives in a computation that are in flight at once:
    started, but not waited for yet.
    """
    most = 0
    begun = set[str]()
    for op in ops:
        if op.action is HostAction.START and op.lane == COLLECTIVES:
            begun.add(op.name)
        begun.discard(op.start)
        most = max(most, len(begun))
    return most


def _not_modelled(
    program: Program, timeline: Timeline, hardware: Hardware
) -> tuple[str, ...]:
    """Effects that could change a prediction by `LEAST_GAIN` of the step, but are in no figure."""
    parts, enough = timeline.breakdown, LEAST_GAIN * timeline.step_us
    hidden_us = parts.communication_us - parts.exposed_communication_us
    lines = []
    if parts.idle_us > enough:
        lines.append(
            f"{maker_of(hardware).graphs} (XLA's command buffers): they may save up to "
            f"{parts.idle_us:,.0f} µs of launch gaps"
        )
    if hidden_us > enough:
        lines.append(
            "collectives slowed by the kernels that hide them: two real jobs show none in the mean"
        )
    if any(_in_flight(ops) > 1 for ops in program.computations.values()):
        lines.append(
            "several collective streams: collectives run one by one, as XLA does by default"
        )
    if program.uncounted:
        lines.append(
            f"all but one iteration of loops of unknown length ({', '.join(program.uncounted[:3])})"
        )
    return tuple(lines)


def _on_networks(
    module: Module, program: Program, hardware: Hardware
) -> Iterator[Mapping[str, float]]:
    """Estimated costs of collectives on the fastest network of the GPU, then on the slowest.

    Yields:
        Microseconds by instruction. Empty if all devices are in one host, or if this network is
        already the one of `hardware`.
    """
    crossing = [
        module.instructions[op.name]
        for op in program.ops
        if op.origin is Origin.ESTIMATED and op.stream is Stream.COMMUNICATION
    ]
    is_inside = module.num_devices <= hardware.devices_per_host
    for there in hardware.ends:
        estimate = estimator(module, there)
        is_same = is_inside or there.nic_gb_s == hardware.nic_gb_s
        yield {} if is_same else {item.name: estimate(item) for item in crossing}


def _uncertain(
    module: Module,
    program: Program,
    timeline: Timeline,
    hardware: Hardware,
    measured: Mapping[str, Cost],
) -> tuple[Uncertain, ...]:
    """The costs of a program that depend on data. Estimates have their possible range, measured
    costs the range of their samples.
    """
    counts = timeline.executions.astype(int).tolist()
    executions = dict(zip(timeline.names, counts, strict=True))
    found = []
    for op in (op for op in program.ops if op.name in executions):
        known = range_of(module, module.instructions[op.name], hardware, op.cost_us)
        if known is not None and op.origin is Origin.MEASURED:
            known = _of_samples(measured.get(op.lhs_name), op.cost_us)
        if known is not None and (op.origin in (Origin.ESTIMATED, Origin.MEASURED)):
            found.append(Uncertain(op.name, op.cost_us, known, executions[op.name]))
    return tuple(
        sorted(
            found,
            key=lambda item: (item.range.least_us - item.range.most_us) * item.count,
        )
    )


def _unmodelled_convolutions(
    module: Module,
    uncertain: Sequence[Uncertain],
    step_us: float,
    hardware: Hardware,
) -> list[str]:
    """Warn that a vendor's convolutions have no public model: one line if they matter, else
    none.
    """
    maker = maker_of(hardware)
    if not maker.convolves_by_image:
        return []
    found = [
        item for item in uncertain if is_convolution(module.instructions[item.name])
    ]
    likely_us = sum(item.cost_us * item.count for item in found)
    least_us = sum(item.range.least_us * item.count for item in found)
    most_us = sum(item.range.most_us * item.count for item in found)
    if most_us - likely_us <= LEAST_GAIN * step_us:
        return []
    return [
        f"{many(len(found), 'convolution')} of {maker.convolutions}: {likely_us / 1e3:,.2f} ms "
        f"({least_us / 1e3:,.2f} … {most_us / 1e3:,.2f} ms), since no model of their algorithm is "
        "public; measure them and give the costs with --profile"
    ]


def _of_samples(cost: Cost | None, us: float) -> Range | None:
    """The prediction interval of one more execution, around `us` microseconds.

    It is Student's interval, as if the samples of all ranks came from one normal distribution. The
    standard deviation comes from the samples' deciles. None if the samples are fewer than three or
    agree.
    """
    if cost is None or cost.samples < 3:
        return None
    from scipy.special import (
        stdtrit,
    )  # only here, since its import takes a tenth of a second

    count = cost.samples
    # expected decile of so few samples: Blom (1958), interpolated
    decile = NormalDist().inv_cdf((0.9 * count - 0.275) / (count + 0.25))
    t = float(stdtrit(count - 1, (1 + HELD) / 2))
    reach = t * cost.spread * cost.cost_us / (2 * decile) * math.sqrt(1 + 1 / count)
    if reach < DIFFERING * us:
        return None
    return Range(max(us - reach, 0.0), us + reach, "measured, it differs with the data")


def contended_us(timeline: Timeline, slower: Factors) -> float:
    """How much compute a schedule loses to the collectives that run at the same time.

    Returns:
        Microseconds of a step.
    """
    compute = timeline.stream == Stream.COMPUTE
    overlapped = covered(
        timeline.busy(Stream.COMMUNICATION),
        timeline.start_us[compute],
        timeline.end_us[compute],
    )
    is_product = np.array([kind == "matmul" for kind in timeline.kinds], bool)
    return lost_us(overlapped, is_product[timeline.instruction[compute]], slower)
