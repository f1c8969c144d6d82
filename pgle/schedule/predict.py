"""What a schedule is worth: one prediction per scheduled module, all with the same costs, and how two compare."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from pgle.costs.estimate.estimate import Range, estimator, range_of
from pgle.costs.measure.contention import (
    ASSUMED,
    DEFAULT,
    LITTLE,
    Contention,
    Factors,
    Launch,
    contention_of,
    launch_of,
)
from pgle.costs.profile.value import Cost, Origin, Profile, effective_costs
from pgle.schedule.program import (
    COLLECTIVES,
    ORIGINS,
    Action,
    Ceiling,
    Op,
    Program,
    Stream,
    Timeline,
    ceiling,
    read_program,
)
from pgle.schedule.simulate import run_program
from pgle.trace.intervals import covered
from pgle.xla.hlo.module import Module
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
    ceiling: Ceiling  # lower bound of any schedule of the same instructions
    program: Program  # what the runtime does, each op with the cost that the timeline takes
    costs_are: str  # ``measured``, ``estimated`` or ``mixed``
    estimated_share: float  # of the activity time, the part whose cost was not measured
    launch: Launch  # the gaps that were used
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
    samples: int = 0  # launches that the contention was measured on; 0: it is assumed


def gain(before: Prediction, after: Prediction) -> Gain:
    """What `after` gains over `before`: more hidden communication slows the kernels it hides behind."""
    step = max(before.step_us, 1e-9)
    share = (before.step_us - after.step_us) / step
    shares = [(a - b) / max(a, 1e-9) for a, b in zip(before.steps_us, after.steps_us, strict=True)]
    idle = (before.timeline.breakdown.idle_us - after.timeline.breakdown.idle_us) / step
    return Gain(share, min(shares), max(shares), idle, min(before.contention.samples, after.contention.samples))


def predict(
    module: Module,
    profile: Profile | None,
    target: str | Target | Hardware,
    *,
    launch: Launch | None = None,
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
    estimate = estimator(module, hardware)

    def read(costs: Mapping[str, Cost]) -> Program:
        return read_program(module, costs, estimate, launch.kernels, hardware)

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
        ceiling=ceiling(module, likely, launch, timeline.breakdown, slower=min(factors)),
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
    return {timeline.names[at]: float(found[at]) for at in np.flatnonzero(found >= LITTLE).tolist()}


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


def _in_flight(ops: Sequence[Op]) -> int:
    """The most asynchronous collectives that have begun in a computation and that nothing has waited for yet."""
    most, begun = 0, set[str]()
    for op in ops:
        if op.action is Action.START and op.lane == COLLECTIVES:
            begun.add(op.name)
        begun.discard(op.start)
        most = max(most, len(begun))
    return most


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
    is_product = np.array([kind == "matmul" for kind in timeline.kinds] or [False])
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
