"""What a schedule is worth: one prediction per scheduled module, all with the same costs, and how
two compare.

`read_program` says what the runtime does with each instruction, and what it costs: by the profile,
else by an estimate. Queues model XLA's streams. Asynchronous collectives share one
(`kDefaultNumCommunicationStreams` is 2 only with
``--xla_gpu_experimental_enable_collective_multi_streaming``; openxla/xla
`backends/gpu/runtime/execution_stream_id.h`); sends and receives have their own, and so has each
direction of copies between host and device. XLA runs asynchronous compute on other streams too, but
these share one GPU: here it takes its turn on the compute stream, since two kernels at once get no
more done than one after the other.
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

MOST_EXECUTED = 300_000  # instructions in one step, loops counted once

ESTIMATE_RANGE = (0.9, 1.4)
"""What two real jobs took over what was estimated, by kind of kernel: 0.86 to 1.39 and 0.93 to
1.37. Either range holds what the other job's compute took, 1.15 and 1.08
(docs/evidence/rehearse.md); no third job has been compared.
"""


MODEL_ERROR = 0.014
"""Steps of two real jobs are met within this from their own measured costs: −0.93 to −0.25 % on the
one, +0.94 to +1.33 % on the other (docs/evidence/simulator.md). No third job has been compared.
"""


class Steps(NamedTuple):
    """Microseconds of a step, with one thing changed in each but the first."""

    likely: float  # as it is predicted
    # least_contention, most_contention: without contention, and with twice the likely slowdown
    least_contention: float
    most_contention: float
    # least_data, most_data: with all costs that data decides at their least and at their most
    least_data: float
    most_data: float
    # least_network, most_network: with estimated collectives on the fastest and on the slowest
    # network of the GPU
    least_network: float
    most_network: float


@dataclass(frozen=True, slots=True)
class Uncertain:
    """An instruction whose estimate data decides, microseconds per execution."""

    name: str  # the instruction
    cost_us: float  # that the prediction takes
    range: Range  # what it may be, and why
    count: int  # executions in the step


DIFFERING = (
    0.1  # share of a measured cost that data decides, from which on its range is shown
)
HELD = 0.9  # part of further executions that the range of a measured cost holds


@dataclass(frozen=True)
class Prediction:
    """A scheduled module on a model of the device."""

    timeline: Timeline  # one step
    shortest_us: float  # lower bound of any schedule of the same instructions
    # what the runtime does, each op with the cost that the timeline takes
    program: Program
    costs_are: str  # as of `costs_are` in `pgle.costs.profile.value`
    estimated_share: float  # of the activity time, the part whose cost was not measured
    launch: LaunchGaps  # the gaps that were used
    # how much longer kernels take while a collective runs, measured or assumed; the step has it
    contention: Contention
    # the step as it is likely to be and at the ends of each uncertainty
    steps_us: Steps
    # costs that data decides, the widest range first
    uncertain: tuple[Uncertain, ...] = ()
    contended_us: float = 0.0  # compute that the step loses to contention
    # part of the step that is the wait for the slowest rank; 0 where ranks were not compared
    skew_us: float = 0.0
    # what could change this answer and is in no figure, one line each
    not_modelled: tuple[str, ...] = ()

    @property
    def step_us(self) -> float:
        """Predicted length of the step, contention included."""
        return self.timeline.step_us

    @property
    def lower_bound(self) -> bool:
        """Whether `step_us` is the least that it takes, and there is no upper end."""
        return self.timeline.lower_bound

    @property
    def lower_bound_why(self) -> str:
        """Why it is: a loop of unknown length, of which one iteration counts, or a cost of which
        only a bound is known.
        """
        return self.program.lower_bound_why

    @property
    def exposed_us(self) -> float:
        """Predicted time during which collectives run and nothing computes."""
        return self.timeline.breakdown.exposed_communication_us

    @property
    def interval_us(self) -> tuple[float, float]:
        """The step's range.

        Four errors are independent, so they add in quadrature: errors of estimates as measured on
        other jobs, contention from none to twice the likely one, costs that data decides, and an
        assumed network. The model's error is added to that. The range never begins below what the
        GPU's peaks and links allow. It has no end if the step is a lower bound.
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
    """What a schedule gains over another, as shares of the other's step; positive is shorter."""

    share: float  # with the likely contention
    # low, high: its range: contention from none to twice the likely, costs that data decides at
    # either end
    low: float
    high: float
    # the part in which nothing runs, which is the model's noise rather than overlap
    idle_share: float
    # at the ends of what is estimated, in the order of `Steps`; empty: not known
    at_ends: tuple[float, ...] = ()


def gain(before: Prediction, after: Prediction, work: float = 1.0) -> Gain:
    """What `after` gains over `before`: more hidden communication slows the kernels it hides
    behind.

    Args:
        work: how many times as much `after` does: its times are those of the same work.
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
    """Predict one step of a scheduled module: measured costs where there are any, estimates
    elsewhere.

    Every rank waits for the slowest: where the profile says what compute takes there, the step is
    that rank's. Kernels are slowed while a collective runs. Measured costs may hold that already:
    it is taken out by the share of its time that each kernel ran during collectives when it was
    measured. Where nobody recorded that share, the costs are taken to be measured on this schedule.

    Args:
        profile: None: everything is estimated. Costs of another fingerprint are left out.
        contention: by default as the profile records it, else as on two real jobs. Give the first
            prediction's to predictions of other schedules with the same costs.

    Raises:
        UserError: the target is unknown.
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
        """What ops of the profile take alone, on the slowest rank, if contention was so many times
        the likely.
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
        """Microseconds of the likely step with other costs; without any the step itself."""
        if not changed:
            return step_us
        return run_program(likely, launch, factors, costs=changed).step_us

    if contends.beside is None:  # so far nothing is taken out
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
    """What the runtime does with a scheduled module.

    Args:
        costs: by the name that LHS looks up: a collective by its start.
        hardware: the GPU, for estimates of what has no cost.
        kernels: launches of one run of an instruction, if not one.

    Raises:
        UserError: its calls run a few instructions millions of times.
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
        """Fill `computations` for one computation and all it calls."""
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
        """Refuse calls of calls that run a few instructions millions of times; XLA flattens calls
        before it schedules.

        Raises:
            UserError: more than `MOST_EXECUTED` are run, most of them again and again.
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
        # the condition of a counted loop runs on the host
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
        """The name when LHS ran, and the cost that XLA finds; else the one under the run-time
        name.
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
    """Whether an asynchronous start, of no collective, only moves bytes: another engine than the
    cores does it.
    """
    return (
        start.opcode == "copy-start"
        or start.is_host_transfer
        or is_host_copy(module, start)
    )


def _beside(timeline: Timeline) -> Mapping[str, float]:
    """By instruction whose cost was measured, the share of its time during which a collective runs
    in a schedule.
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
    """The most asynchronous collectives that have begun in a computation and that nothing has
    waited for yet.
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
    """What could change a prediction by half a per cent of the step, and is in no figure of it."""
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
    """Estimated costs of collectives that cross hosts, on the fastest and on the slowest network;
    none if it is named.
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
    """The costs of a program that data decides: estimates by their possible range, measured ones by
    their samples.
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
    """That a vendor's convolutions have no public model: one line if they matter, else none."""
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
    """The interval of one more execution, if the samples of all ranks come from one normal
    distribution: Student's prediction interval around `us`, the deviation from the samples'
    deciles. None where they agree.
    """
    if cost is None or cost.samples < 3:
        return None
    from scipy.special import (
        stdtrit,
    )  # only here, since its import takes a tenth of a second

    count = cost.samples
    # of so few samples: Blom (1958), interpolated
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
