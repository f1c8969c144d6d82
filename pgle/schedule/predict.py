"""What a schedule is worth: one prediction per scheduled module, all with the same costs, and how two compare.

The second part says where schedules put their collectives, and why collectives stay exposed.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from pgle.costs.estimate.estimate import Range, range_of
from pgle.costs.measure.contention import (
    ASSUMED,
    DEFAULT,
    LEAST_OVERLAP,
    Contention,
    Factors,
    LaunchGaps,
    contention_of,
    launch_of,
)
from pgle.costs.profile.value import Cost, Origin, Profile, effective_costs
from pgle.schedule.program import (
    COLLECTIVES,
    ORIGINS,
    HostAction,
    Op,
    Program,
    Stream,
    Timeline,
    ceiling,
    read_program,
)
from pgle.schedule.simulate import run_program
from pgle.trace.columns import distinct
from pgle.trace.intervals import covered
from pgle.xla.collectives import async_pairs, collective_kind, lhs_names, walk_collectives
from pgle.xla.hlo.module import Computation, Module
from pgle.xla.targets import Hardware, Target, find_hardware

ESTIMATE_RANGE = (0.9, 1.4)
"""What two real jobs took over what was estimated, by kind of kernel: 0.86 to 1.39 and 0.93 to 1.37. Either range holds
what the other job's compute took, 1.15 and 1.08 (docs/evidence/rehearse.md); no third job has been compared."""


MODEL_ERROR = 0.014
"""Steps of two real jobs are met within this from their own measured costs: −0.89 to −0.53 % on the one, +1.12 to
+1.32 % on the other (docs/evidence/simulator.md). No third job has been compared."""


class Steps(NamedTuple):
    """Microseconds of a step, with one thing changed in each but the first."""

    likely: float  # as it is predicted
    # least_contention, most_contention: without contention, and with twice the likely slowdown
    least_contention: float
    most_contention: float
    # least_data, most_data: with all costs that data decides at their least and at their most
    least_data: float
    most_data: float


@dataclass(frozen=True, slots=True)
class Uncertain:
    """An instruction whose estimate data decides, microseconds per execution."""

    name: str  # the instruction
    cost_us: float  # that the prediction takes
    range: Range  # what it may be, and why
    count: int  # executions in the step


DIFFERING = 0.1  # share of a measured cost that data decides, from which on its range is shown
NOTICEABLE = 0.005  # of the step: an effect that is not modelled and may be larger is listed
HELD = 0.9  # part of further executions that the range of a measured cost holds


@dataclass(frozen=True)
class Prediction:
    """A scheduled module on a model of the device."""

    timeline: Timeline  # one step
    ceiling_us: float  # lower bound of any schedule of the same instructions
    program: Program  # what the runtime does, each op with the cost that the timeline takes
    costs_are: str  # ``measured``, ``estimated`` or ``mixed``
    estimated_share: float  # of the activity time, the part whose cost was not measured
    launch: LaunchGaps  # the gaps that were used
    contention: Contention  # how much longer kernels take while a collective runs, measured or assumed; the step has it
    steps_us: Steps  # the step as it is likely to be and at the ends of each uncertainty
    uncertain: tuple[Uncertain, ...] = ()  # costs that data decides, the widest range first
    contended_us: float = 0.0  # compute that the step loses to contention
    skew_us: float = 0.0  # part of the step that is the wait for the slowest rank; 0 where ranks were not compared
    not_modelled: tuple[str, ...] = ()  # what could change this answer and is in no figure, one line each

    @property
    def step_us(self) -> float:
        """Predicted length of the step, contention included."""
        return self.timeline.step_us

    @property
    def lower_bound(self) -> bool:
        """Whether `step_us` is the least that it takes: of a loop of unknown length one iteration is counted."""
        return self.timeline.lower_bound

    @property
    def exposed_us(self) -> float:
        """Predicted time during which collectives run and nothing computes."""
        return self.timeline.breakdown.exposed_communication_us

    @property
    def interval_us(self) -> tuple[float, float]:
        """The step's range.

        What estimates were off elsewhere, contention from none to twice the likely, and costs that data decides have
        nothing to do with each other, so their reaches add up as the sides of a right angle; the model's error comes on
        top. Never below what the GPU's peaks and links allow; without end if the step is a lower bound.
        """
        down, up = (abs(factor - 1) * self.estimated_share * self.step_us for factor in ESTIMATE_RANGE)
        likely, *ends = self.steps_us
        contention, data = ([end - likely for end in pair] for pair in (ends[:2], ends[2:]))
        low = math.hypot(down, min(0.0, *contention), min(0.0, *data)) + MODEL_ERROR * self.step_us
        high = math.hypot(up, max(0.0, *contention), max(0.0, *data)) + MODEL_ERROR * self.step_us
        most_us = math.inf if self.lower_bound else self.step_us + high
        return max(self.step_us - low, min(self.program.least_us, self.step_us)), most_us


@dataclass(frozen=True, slots=True)
class Gain:
    """What a schedule gains over another, as shares of the other's step; positive is shorter."""

    share: float  # with the likely contention
    # low, high: its range: contention from none to twice the likely, costs that data decides at either end
    low: float
    high: float
    idle_share: float  # the part in which nothing runs, which is the model's noise rather than overlap


def gain(before: Prediction, after: Prediction) -> Gain:
    """What `after` gains over `before`: more hidden communication slows the kernels it hides behind."""
    step = max(before.step_us, 1e-9)
    share = (before.step_us - after.step_us) / step
    shares = [(a - b) / max(a, 1e-9) for a, b in zip(before.steps_us, after.steps_us, strict=True)]
    idle = (before.timeline.breakdown.idle_us - after.timeline.breakdown.idle_us) / step
    return Gain(share, min(shares), max(shares), idle)


def predict(
    module: Module,
    profile: Profile | None,
    target: str | Target | Hardware,
    *,
    launch: LaunchGaps | None = None,
    contention: Contention | None = None,
    expand_loops: bool = False,
) -> Prediction:
    """Predict one step of a scheduled module: measured costs where there are any, estimates elsewhere.

    Every rank waits for the slowest: where the profile says what compute takes there, the step is that rank's. Kernels
    are slowed while a collective runs. Measured costs may hold that already: it is taken out by the share of its time
    that each kernel ran during collectives when it was measured. Where nobody recorded that share, the costs are taken
    to be measured on this schedule.

    Args:
        profile: None: everything is estimated. Costs of another fingerprint are left out.
        contention: by default as the profile records it, else as on two real jobs. Give the first prediction's
            to predictions of other schedules with the same costs.

    Raises:
        UserError: the target is unknown.
    """
    hardware = target if isinstance(target, Hardware) else find_hardware(target)
    launch = launch or (launch_of(profile, module.name) if profile is not None else None) or DEFAULT
    typical = effective_costs(profile, module.fingerprint) if profile is not None else {}
    slowest = on_the_slowest_rank(typical)

    def read(costs: Mapping[str, Cost]) -> Program:
        return read_program(module, costs, hardware, launch.kernels)

    contention = contention or (ASSUMED if profile is None else contention_of(profile, module.name))
    if contention.beside is None:
        contention = replace(contention, beside=_beside(run_program(read(slowest), launch)) if typical else {})

    def with_contention(times: float) -> Timeline:
        factors = contention.at(times)
        program = read(contention.alone(module, slowest, factors)) if contention.beside else likely
        return run_program(program, launch, factors)

    factors = contention.likely
    likely = read(contention.alone(module, slowest, factors))
    timeline = run_program(likely, launch, factors, name=module.name, expand_loops=expand_loops)
    step_us, share = timeline.step_us, timeline.estimated_share
    skew_us = 0.0
    if slowest is not typical:
        skew_us = step_us - run_program(read(contention.alone(module, typical, factors)), launch, factors).step_us
    uncertain = _uncertain(module, likely, timeline, hardware, typical)
    data = (
        run_program(likely, launch, factors, costs=costs).step_us if uncertain else step_us
        for costs in (
            {item.name: item.range.least_us for item in uncertain},
            {item.name: item.range.most_us for item in uncertain},
        )
    )
    return Prediction(
        timeline=timeline,
        ceiling_us=ceiling(module, likely, launch, timeline.breakdown, slower=min(factors)),
        program=likely,
        costs_are="measured" if share < 1e-9 else "estimated" if share > 1 - 1e-9 else "mixed",
        estimated_share=share,
        launch=launch,
        contention=contention,
        steps_us=Steps(step_us, with_contention(0).step_us, with_contention(2).step_us, *data),
        uncertain=uncertain,
        contended_us=contended_us(timeline, factors),
        skew_us=skew_us,
        not_modelled=_not_modelled(likely, timeline),
    )


def _beside(timeline: Timeline) -> Mapping[str, float]:
    """By instruction whose cost was measured, the share of its time during which a collective runs in a schedule."""
    given = [ORIGINS.index(origin) for origin in (Origin.MEASURED, Origin.UNKNOWN)]
    rows = np.flatnonzero((timeline.stream == Stream.COMPUTE) & ~timeline.sync & np.isin(timeline.origin, given))
    during = covered(timeline.busy(Stream.COMMUNICATION), timeline.start_us[rows], timeline.end_us[rows])
    size, code = len(timeline.names), timeline.instruction[rows]
    total, shared = (np.bincount(code, column, size) for column in (timeline.duration_us[rows], during))
    found = shared / np.maximum(total, 1e-9)
    return {timeline.names[at]: float(found[at]) for at in np.flatnonzero(found >= LEAST_OVERLAP).tolist()}


def _in_flight(ops: Sequence[Op]) -> int:
    """The most asynchronous collectives that have begun in a computation and that nothing has waited for yet."""
    most, begun = 0, set[str]()
    for op in ops:
        if op.action is HostAction.START and op.lane == COLLECTIVES:
            begun.add(op.name)
        begun.discard(op.start)
        most = max(most, len(begun))
    return most


def _not_modelled(program: Program, timeline: Timeline) -> tuple[str, ...]:
    """What could change a prediction by half a per cent of the step, and is in no figure of it."""
    parts, enough = timeline.breakdown, NOTICEABLE * timeline.step_us
    hidden_us = parts.communication_us - parts.exposed_communication_us
    lines = []
    if parts.idle_us > enough:
        lines.append(f"CUDA graphs (XLA's command buffers): they may save up to {parts.idle_us:,.0f} µs of launch gaps")
    if hidden_us > enough:
        lines.append("collectives slowed by the kernels that hide them: two real jobs show none in the mean")
    if any(_in_flight(ops) > 1 for ops in program.computations.values()):
        lines.append("several collective streams: collectives run one by one, as XLA does by default")
    if program.uncounted:
        lines.append(f"all but one iteration of loops of unknown length ({', '.join(program.uncounted[:3])})")
    return tuple(lines)


def _uncertain(
    module: Module, program: Program, timeline: Timeline, hardware: Hardware, measured: Mapping[str, Cost]
) -> tuple[Uncertain, ...]:
    """The costs of a program that data decides: estimates by their possible range, measured ones by their samples."""
    counts = np.bincount(timeline.instruction, weights=timeline.count, minlength=len(timeline.names))
    executions = dict(zip(timeline.names, counts.astype(int).tolist(), strict=True))
    found = []
    for op in (op for ops in program.computations.values() for op in ops if op.name in executions):
        known = range_of(module, module.instructions[op.name], hardware, op.cost_us)
        if known is not None and op.origin is Origin.MEASURED:
            known = _of_samples(measured.get(op.lhs_name), op.cost_us)
        if known is not None and (op.origin in (Origin.ESTIMATED, Origin.MEASURED)):
            found.append(Uncertain(op.name, op.cost_us, known, executions[op.name]))
    return tuple(sorted(found, key=lambda item: (item.range.least_us - item.range.most_us) * item.count))


def _of_samples(cost: Cost | None, us: float) -> Range | None:
    """The interval of one more execution, if the samples of all ranks come from one normal distribution: Student's
    prediction interval around `us`, the deviation from the samples' deciles. None where they agree."""
    if cost is None or cost.samples < 3:
        return None
    from scipy.special import stdtrit  # only here, since its import takes a tenth of a second

    count, normal = cost.samples, NormalDist()
    decile = normal.inv_cdf((0.9 * count - 0.275) / (count + 0.25))  # of so few samples: Blom (1958), interpolated
    t = float(stdtrit(count - 1, (1 + HELD) / 2))
    reach = t * cost.spread * cost.cost_us / (2 * decile) * math.sqrt(1 + 1 / count)
    if reach < DIFFERING * us:
        return None
    return Range(max(us - reach, 0.0), us + reach, "measured, it differs with the data")


def contended_us(timeline: Timeline, slower: Factors) -> float:
    """How much compute a schedule loses to the collectives that run at the same time.

    Returns:
        Microseconds of a step: in the time that a kernel shares with a collective it gets done a part of its work.
    """
    compute = timeline.stream == Stream.COMPUTE
    overlapped = covered(timeline.busy(Stream.COMMUNICATION), timeline.start_us[compute], timeline.end_us[compute])
    is_product = np.array([kind == "matmul" for kind in timeline.kinds], bool)
    factor = np.where(is_product[timeline.instruction[compute]], slower.product, slower.other)
    return float((overlapped * (1.0 - 1.0 / factor)).sum())


def on_the_slowest_rank(costs: Mapping[str, Cost]) -> Mapping[str, Cost]:
    """Costs as they are on the rank for which the others wait; the same mapping where no ranks were compared.

    Every step waits for its slowest rank between one collective and the next (`pgle.costs.measure.samples`).
    """
    if not any(cost.slowest_us is not None for cost in costs.values()):
        return costs
    return {
        name: cost if cost.slowest_us is None else cost._replace(cost_us=cost.slowest_us)
        for name, cost in costs.items()
    }


BLOCK = 4096  # instructions that are looked at together

EXPOSED_SHARE = 0.05
"""Collectives of which less is exposed need no reason: launch gaps around them already are a few microseconds."""

NOTHING_INDEPENDENT = "nothing is independent of it"
UNREAD = "nothing reads its result, and XLA runs it all the same"

_ACTING = ("send", "recv", "outfeed", "infeed", "custom-call", "while", "conditional", "call", "copy-start")

DISABLE_ASYNC = "--xla_gpu_disable_async_collectives"
"""Names kinds without their hyphens, separated by commas, or all of them: ``allcollectives``."""


@dataclass(frozen=True, slots=True)
class Placement:
    """One collective in one schedule."""

    name: str  # when LHS ran
    kind: str  # ``all-gather`` …
    sync: bool  # nothing overlaps it
    between: int  # compute instructions from its start to its done
    cover_us: float  # their time
    cost_us: float  # its own time, once
    exposed_us: float  # the part of all its executions in a step during which nothing computes
    independent_us: float  # compute of its computation that neither needs it nor is needed by it
    count: int = 1  # its executions in a step
    kept_by: str = ""  # the flag that keeps it synchronous; empty where none does
    unread: bool = False  # no instruction on the way to the computation's result needs it

    @property
    def hideable_us(self) -> float:
        """As much of its exposed time as there is independent compute that does not run next to it already."""
        return min(self.exposed_us, max(self.independent_us - self.cover_us, 0.0) * self.count)

    @property
    def reason(self) -> str:
        """Why it is exposed, in words; empty where less than a twentieth of it is."""
        if self.exposed_us <= EXPOSED_SHARE * max(self.cost_us * self.count, 1e-9):
            return ""
        if self.unread:
            return UNREAD
        if self.kept_by:
            return f"synchronous by {self.kept_by}"
        if self.independent_us < 0.01 * self.cost_us:
            return NOTHING_INDEPENDENT
        if self.sync:
            return "nothing is scheduled next to it"
        if self.independent_us < self.cost_us:
            return "too little independent compute"
        return "independent compute is not scheduled next to it"


@dataclass(frozen=True, slots=True)
class Move:
    """One collective in two schedules; None where a schedule has none of that name."""

    name: str
    before: Placement | None
    after: Placement | None

    @property
    def moved(self) -> bool:
        """Whether start and done stand otherwise: synchronous or not, or another number of instructions between."""
        if self.before is None or self.after is None:
            return True
        return (self.before.sync, self.before.between) != (self.after.sync, self.after.between)


def placements(module: Module, timeline: Timeline, flags: Iterable[str] = ()) -> Mapping[str, Placement]:
    """Every collective of a scheduled module, by its name when LHS ran.

    Args:
        flags: the XLA flags that it was compiled with, the last of a name counts.
    """
    names = lhs_names(module)
    given = [flag.partition("=")[2] for flag in flags if flag.partition("=")[0] == DISABLE_ASYNC]
    disabled = {name.strip().lower() for name in given[-1].split(",")} if given else set[str]()
    cost = _cost_by_name(timeline)
    compute = {timeline.names[code] for code in distinct(timeline.instruction[timeline.stream == Stream.COMPUTE])}
    exposures = {item.name: item for item in timeline.exposures}
    dones = {pair.start: pair.done for pair in async_pairs(module) if pair.is_collective}
    chosen: dict[str, list[tuple[str, str]]] = {}  # collectives, each with its kind, by computation
    for item, kind in walk_collectives(module):
        if item.name in cost:
            chosen.setdefault(item.computation, []).append((item.name, kind))
    found: dict[str, Placement] = {}
    for computation, inside in ((module.computations[of], inside) for of, inside in chosen.items()):
        where = {item.name: at for at, item in enumerate(computation.instructions)}
        free_us = _independent_us(computation, [start for start, _ in inside], cost, compute)
        read = _read(computation)
        for start, kind in inside:
            between = computation.instructions[where[start] + 1 : where[dones.get(start, start)]]
            covering = [item.name for item in between if item.name in compute and collective_kind(module, item) is None]
            name = names.get(start, start)
            found[name] = Placement(
                name=name,
                kind=kind,
                sync=not covering,
                between=len(covering),
                cover_us=sum(cost.get(other, 0.0) for other in covering),
                cost_us=cost[start],
                exposed_us=exposures[start].exposed_us if start in exposures else 0.0,
                independent_us=free_us[start],
                count=exposures[start].count if start in exposures else 1,
                kept_by=DISABLE_ASYNC if disabled & {"allcollectives", kind.replace("-", "")} else "",
                unread=start not in read,
            )
    return found


def compare_placements(before: Mapping[str, Placement], after: Mapping[str, Placement]) -> tuple[Move, ...]:
    """Every collective of either schedule, the one whose exposed time changes most first."""
    moves = (Move(name, before.get(name), after.get(name)) for name in {**before, **after})
    change = {move: abs(_exposed_us(move.before) - _exposed_us(move.after)) for move in moves}
    return tuple(sorted(change, key=lambda move: (-change[move], move.name)))


def _cost_by_name(timeline: Timeline) -> dict[str, float]:
    """Microseconds per execution of every instruction of a timeline."""
    size = len(timeline.names)
    total = np.bincount(timeline.instruction, weights=timeline.duration_us, minlength=size)
    count = np.bincount(timeline.instruction, weights=timeline.count, minlength=size)
    return {timeline.names[code]: float(total[code] / count[code]) for code in np.flatnonzero(count).tolist()}


def _independent_us(
    computation: Computation, names: Sequence[str], cost: Mapping[str, float], compute: Collection[str]
) -> Mapping[str, float]:
    """Time of the compute instructions that could overlap each of some instructions, whatever the schedule.

    A bit per name says what needs it, and what it needs: one pass over the schedule each way, whatever their number.
    """
    bits = {name: 1 << number for number, name in enumerate(names)}
    needs, needed = dict(bits), dict(bits)
    edges = [(item.name, (*item.operands, *item.control_predecessors)) for item in computation.instructions]
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
        tied = b"".join((needs.get(name, 0) | needed.get(name, 0)).to_bytes(size, "little") for name in block)
        packed = np.frombuffer(tied, np.uint8).reshape(len(block), size)
        is_tied = np.unpackbits(packed, axis=1, count=len(bits), bitorder="little")
        free_us += np.array([cost[name] for name in block]) @ (1 - is_tied)
    return dict(zip(bits, free_us.tolist(), strict=True))


def _read(computation: Computation) -> set[str]:
    """What the result of a computation depends on, and what does something besides giving a result."""
    operands = {item.name: item.operands for item in computation.instructions}
    acts = (item.name for item in computation.instructions if item.opcode in _ACTING or item.is_host_transfer)
    read: set[str] = set()
    todo = [computation.root, *acts]
    while todo:
        name = todo.pop()
        if name not in read:
            read.add(name)
            todo += operands.get(name, ())
    return read


LEAST_GAIN = 0.005
"""Gains below half a per cent of the step are called not worth a job: controlled PGLE gains that users report on tuned
models are 1 to 2 %, and null results are common (see docs)."""


MOSTLY = 0.5  # of the exposed time, from which on what has nothing to hide behind is the answer


def stuck_share(prediction: Prediction, placed: Sequence[Placement]) -> float:
    """The part of a schedule's exposed time, of its placements, that no other order of its instructions hides."""
    exposed_us = prediction.exposed_us + prediction.timeline.breakdown.exposed_copy_us
    stuck_us = sum(item.exposed_us for item in placed if item.reason == NOTHING_INDEPENDENT)
    return min(stuck_us / max(exposed_us, 1e-9), 1.0)  # collectives may overlap each other


@dataclass(frozen=True, slots=True)
class ExposedGroup:
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


def groups(moves: Iterable[Move]) -> tuple[ExposedGroup, ...]:
    """Collectives in groups, the most exposed in the second schedule first."""
    found: dict[tuple[str, str, bool], ExposedGroup] = {}
    for move in sorted(moves, key=lambda move: (-_exposed_us(move.after), -_exposed_us(move.before), move.name)):
        known = move.after or move.before
        if known is None:
            continue
        is_left = move.after is not None and bool(move.after.reason)
        why = move.after.reason if is_left and move.after else move.before.reason if move.before else ""
        group = found.setdefault((known.kind, why, is_left), ExposedGroup(known.kind, why, move.name, is_left))
        found[known.kind, why, is_left] = replace(
            group,
            count=group.count + known.count,
            time_us=group.time_us + known.cost_us * known.count,
            before_us=group.before_us + _exposed_us(move.before),
            after_us=group.after_us + _exposed_us(move.after),
        )
    return tuple(sorted(found.values(), key=lambda group: (-group.after_us, -group.before_us)))


def in_one(placed: Iterable[Placement]) -> tuple[ExposedGroup, ...]:
    """The collectives of one schedule in groups."""
    return groups(Move(item.name, item, item) for item in placed)


def _exposed_us(placement: Placement | None) -> float:
    return 0.0 if placement is None else placement.exposed_us
