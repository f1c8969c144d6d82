"""What a schedule is worth: one prediction per scheduled module, all with the same costs, and how two compare."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from pgle.costs.estimate.estimate import estimator
from pgle.costs.estimate.unsure import Range, range_of
from pgle.costs.fit.contention import Contention, Factors, contention_of, contention_on
from pgle.costs.fit.launch import DEFAULT, Launch, launch_of
from pgle.costs.profile.effective import effective_costs
from pgle.costs.profile.value import Cost, Origin, Profile
from pgle.schedule.ceiling import Ceiling, ceiling
from pgle.schedule.program import Program, read_program
from pgle.schedule.simulate import run_program
from pgle.schedule.timeline import Stream, Timeline
from pgle.trace.intervals import covered
from pgle.xla.hardware import Hardware, find_hardware
from pgle.xla.hlo.module import Module
from pgle.xla.targets import Target

ESTIMATE_RANGE = (0.9, 1.4)
"""What two real jobs took over what was estimated, by kind of kernel: 0.86 to 1.39 and 0.93 to 1.37. Either range holds
what the other job's compute took, 1.15 and 1.08 (docs/rehearse.md); no third job has been held against it."""


MODEL_ERROR = 0.006  # steps of two real jobs, costs measured, are met within this (docs/rehearse.md)


class Steps(NamedTuple):
    """Microseconds of a step, with one thing changed in each but the first."""

    likely: float  # as it is predicted
    # least_contention, most_contention: at the ends of the range of contention
    least_contention: float
    most_contention: float
    # least_data, most_data: with all costs that data decides at their least and at their most
    least_data: float
    most_data: float


@dataclass(frozen=True, slots=True)
class Unsure:
    """An instruction whose estimate data decides, microseconds per execution."""

    name: str  # the instruction
    cost_us: float  # that the prediction takes
    range: Range  # what it may be, and why
    count: int  # executions in the step


DIFFERING = 0.1  # share of a measured cost that data decides, from which on its range is said
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
    # how much longer kernels take beside collectives: measured, and then the timeline holds it; else a range, and the
    # timeline holds none
    contention: Contention
    steps_us: Steps  # the step as it is likely to be and at the ends of what is not known
    unsure: tuple[Unsure, ...] = ()  # costs that data decides, the widest range first
    contended_us: float = 0.0  # compute that the step loses to it: the likely one where it was measured, else the most
    skew_us: float = 0.0  # part of the step that is the wait for the slowest rank; 0 where ranks were not compared

    @property
    def step_us(self) -> float:
        """Predicted length of the step."""
        return self.timeline.step_us

    @property
    def exposed_us(self) -> float:
        """Predicted time during which collectives run and nothing computes."""
        return self.timeline.breakdown.exposed_communication_us

    @property
    def interval_us(self) -> tuple[float, float]:
        """The step's range: the model's error; of estimates what they were off elsewhere; contention; data."""
        low, high = (1 + (factor - 1) * self.estimated_share for factor in ESTIMATE_RANGE)
        likely, least, most, less, more = self.steps_us
        # Without a measurement of contention, costs that were measured hold it already, unknown how much.
        part = 1.0 if self.contention.samples else self.estimated_share
        down = part * (min(least, most) - likely) + min(less - likely, 0.0)
        up = part * (max(least, most) - likely) + max(more - likely, 0.0)
        return self.step_us * (low - MODEL_ERROR) + down, self.step_us * (high + MODEL_ERROR) + up


@dataclass(frozen=True, slots=True)
class Gain:
    """What a schedule gains over another, as shares of the other's step; positive is shorter."""

    share: float  # with the costs as they are
    # low, high: its range, from the least contention to the most
    low: float
    high: float
    idle_share: float  # the part in which nothing runs, which is the model's noise rather than overlap
    samples: int = 0  # launches that the contention was measured on; 0: it is a model's


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
    expand_loops: bool = False,
) -> Prediction:
    """Predict one step of a scheduled module: measured costs where there are any, estimates elsewhere.

    Every rank waits for the slowest: where the profile says what compute takes there, the step is that rank's.

    Args:
        module: scheduled: the final one, or as LHS saw it.
        profile: None: everything is estimated. Costs of another fingerprint are left out. What its trace showed of
            contention is taken out of costs measured beside collectives, and put on whatever runs beside one here.
        target: the GPU, for the estimates.
        launch: gaps between kernels; by default those recorded in the profile, else public figures.
        expand_loops: draw every iteration.

    Raises:
        UserError: the target is unknown.
    """
    hardware = target if isinstance(target, Hardware) else find_hardware(target)
    launch = launch or (launch_of(profile, module.name) if profile is not None else None) or DEFAULT
    typical = effective_costs(profile, module.fingerprint) if profile is not None else {}
    contention = contention_on(hardware) if profile is None else contention_of(profile, module.name, hardware)
    slowest = on_the_slowest_rank(typical)

    def program(costs: Mapping[str, Cost], factors: Factors) -> Program:
        alone = contention.alone(module, costs, factors)
        return read_program(module, alone, estimator(module, hardware), launch.kernels)

    def at(factors: Factors) -> Timeline:
        if factors == contention.likely:
            return timeline
        return run_program(program(slowest, factors) if contention.beside else likely, launch, factors)

    likely = program(slowest, contention.likely)
    timeline = run_program(likely, launch, contention.likely, name=module.name, expand_loops=expand_loops)
    step_us, share = timeline.step_us, timeline.estimated_share
    skew_us = 0.0
    if slowest is not typical:
        skew_us = step_us - run_program(program(typical, contention.likely), launch, contention.likely).step_us
    least, most = at(contention.at(0)), at(contention.at(1))
    unsure = _unsure(module, likely, timeline, hardware, typical)
    data = (
        run_program(likely, launch, contention.likely, costs=costs).step_us if unsure else step_us
        for costs in (
            {item.name: item.range.least_us for item in unsure},
            {item.name: item.range.most_us for item in unsure},
        )
    )
    return Prediction(
        timeline=timeline,
        ceiling=ceiling(module, likely, launch, timeline.breakdown),
        program=likely,
        costs_are="measured" if share < 1e-9 else "estimated" if share > 1 - 1e-9 else "mixed",
        estimated_share=share,
        launch=launch,
        contention=contention,
        steps_us=Steps(step_us, least.step_us, most.step_us, *data),
        unsure=unsure,
        contended_us=contended_us(timeline, contention.likely)
        if contention.samples
        else contended_us(most, contention.at(1)),
        skew_us=skew_us,
    )


def _unsure(
    module: Module, program: Program, timeline: Timeline, hardware: Hardware, measured: Mapping[str, Cost]
) -> tuple[Unsure, ...]:
    """The costs of a program that data decides: estimates by what is possible, measured ones by their samples."""
    counts = np.bincount(timeline.instruction, weights=timeline.count, minlength=len(timeline.names))
    executions = dict(zip(timeline.names, counts.astype(int).tolist(), strict=True))
    found = []
    for op in (op for ops in program.computations.values() for op in ops if op.name in executions):
        known = range_of(module, module.instructions[op.name], hardware, op.cost_us)
        if known is not None and op.origin is Origin.MEASURED:
            known = _of_samples(measured.get(op.lhs_name), op.cost_us)
        if known is not None and (op.origin in (Origin.ESTIMATED, Origin.MEASURED)):
            found.append(Unsure(op.name, op.cost_us, known, executions[op.name]))
    return tuple(sorted(found, key=lambda item: (item.range.least_us - item.range.most_us) * item.count))


def _of_samples(cost: Cost | None, us: float) -> Range | None:
    """Where a further execution lies, were the samples of all ranks drawn from one normal distribution: Student's
    prediction interval around `us`, the deviation from the samples' deciles. None where they agree."""
    if cost is None or cost.samples < 3:
        return None
    count, normal = cost.samples, NormalDist()
    decile = normal.inv_cdf((0.9 * count - 0.275) / (count + 0.25))  # of so few samples: Blom (1958), interpolated
    z, freedom = normal.inv_cdf((1 + HELD) / 2), count - 1
    terms = ((z**3 + z) / 4, (5 * z**5 + 16 * z**3 + 3 * z) / 96, (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384)
    t = z + sum(term / freedom**power for power, term in enumerate(terms, 1))  # Abramowitz and Stegun 26.7.5
    reach = t * cost.spread * cost.cost_us / (2 * decile) * math.sqrt(1 + 1 / count)
    if reach < DIFFERING * us:
        return None
    return Range(max(us - reach, 0.0), us + reach, "measured, it differs with the data")


def contended_us(timeline: Timeline, slower: Factors) -> float:
    """How much compute a schedule loses to the collectives that it hides.

    Args:
        timeline: whose kernels take `slower` times as long beside them.

    Returns:
        Microseconds of a step: in the time that a kernel shares with a collective it gets done a part of its work.
    """
    compute = timeline.stream == Stream.COMPUTE
    beside = covered(timeline.busy(Stream.COMMUNICATION), timeline.start_us[compute], timeline.end_us[compute])
    is_product = np.array([kind == "matmul" for kind in timeline.kinds] or [False])
    factor = np.where(is_product[timeline.instruction[compute]], slower.product, slower.other)
    return float((beside * (1.0 - 1.0 / factor)).sum())


def on_the_slowest_rank(costs: Mapping[str, Cost]) -> Mapping[str, Cost]:
    """Costs as they are on the rank for which the others wait; the same mapping where no ranks were compared.

    Every step waits for its slowest rank between one collective and the next (`pgle.costs.measure.reduce`).
    """
    if not any(cost.slowest_us is not None for cost in costs.values()):
        return costs
    return {
        name: cost if cost.slowest_us is None else cost._replace(cost_us=cost.slowest_us)
        for name, cost in costs.items()
    }
