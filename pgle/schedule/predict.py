"""What a schedule is worth: one prediction per scheduled module, all with the same costs, and how two compare."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pgle.costs.fit.estimate import estimator
from pgle.costs.fit.launch import DEFAULT, Launch, launch_of
from pgle.costs.profile.effective import effective_costs
from pgle.costs.profile.value import Cost, Profile
from pgle.schedule.ceiling import Ceiling, ceiling
from pgle.schedule.contention import contended_us, contention_on
from pgle.schedule.program import Program, read_program
from pgle.schedule.simulate import run_program
from pgle.schedule.timeline import Timeline
from pgle.xla.hardware import Hardware, find_hardware
from pgle.xla.hlo.module import Module
from pgle.xla.targets import Target

ESTIMATE_RANGE = (0.9, 1.4)
"""What two real jobs took over what was estimated for them, summed over collectives and over compute without its
scatters (docs/rehearse.md): made from these two, not yet held against a third."""


MODEL_ERROR = 0.006
"""Steps of two real jobs, costs measured, are met within this (docs/rehearse.md)."""


@dataclass(frozen=True)
class Prediction:
    """A scheduled module on a model of the device.

    Attributes:
        timeline: one step.
        ceiling: lower bound of any schedule of the same instructions.
        costs_are: ``measured``, ``estimated`` or ``mixed``.
        estimated_share: of the activity time, the part whose cost was not measured.
        launch: the gaps that were used.
        contended_us: compute that the step loses where collectives slow the kernels beside them, by the model of
            `pgle.schedule.contention`; costs measured beside collectives hold it already.
        skew_us: part of the step that is the wait for the slowest rank; 0 where ranks were not compared.
    """

    timeline: Timeline
    ceiling: Ceiling
    costs_are: str
    estimated_share: float
    launch: Launch
    contended_us: float = 0.0
    skew_us: float = 0.0

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
        """The step's range: the model's error; of estimates what they were off elsewhere, and contention."""
        low, high = (1 + (factor - 1) * self.estimated_share for factor in ESTIMATE_RANGE)
        contended = self.contended_us * self.estimated_share  # measured costs hold it already
        return self.step_us * (low - MODEL_ERROR), self.step_us * (high + MODEL_ERROR) + contended


@dataclass(frozen=True, slots=True)
class Gain:
    """What a schedule gains over another, as shares of the other's step; positive is shorter.

    Attributes:
        share: with the costs as they are.
        low, high: its range, from no contention to the model's.
        idle_share: the part in which nothing runs, which is the model's noise rather than overlap.
    """

    share: float
    low: float
    high: float
    idle_share: float


def gain(before: Prediction, after: Prediction) -> Gain:
    """What `after` gains over `before`: more hidden communication slows the kernels it hides behind."""
    step = max(before.step_us, 1e-9)
    share = (before.step_us - after.step_us) / step
    contended = share - (after.contended_us - before.contended_us) / step
    idle = (before.timeline.breakdown.idle_us - after.timeline.breakdown.idle_us) / step
    return Gain(share, min(share, contended), max(share, contended), idle)


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
        profile: None: everything is estimated. Costs of another fingerprint are left out.
        target: the GPU, for the estimates.
        launch: gaps between kernels; by default those recorded in the profile, else public figures.
        expand_loops: draw every iteration.

    Raises:
        UserError: the target is unknown.
    """
    hardware = target if isinstance(target, Hardware) else find_hardware(target)
    launch = launch or (launch_of(profile, module.name) if profile is not None else None) or DEFAULT
    typical = effective_costs(profile, module.fingerprint) if profile is not None else {}
    slowest = on_the_slowest_rank(typical)
    program = _program(module, slowest, hardware, launch)
    timeline = run_program(program, launch, name=module.name, expand_loops=expand_loops)
    skew_us = 0.0
    if slowest is not typical:
        skew_us = timeline.step_us - run_program(_program(module, typical, hardware, launch), launch).step_us
    share = timeline.estimated_share
    return Prediction(
        timeline=timeline,
        ceiling=ceiling(module, program, launch, timeline.breakdown),
        costs_are="measured" if share < 1e-9 else "estimated" if share > 1 - 1e-9 else "mixed",
        estimated_share=share,
        launch=launch,
        contended_us=contended_us(timeline, contention_on(hardware)),
        skew_us=skew_us,
    )


def program_of(module: Module, profile: Profile, hardware: Hardware, launch: Launch) -> Program:
    """What the runtime does with a scheduled module, each op with the cost that `predict` takes."""
    return _program(module, on_the_slowest_rank(effective_costs(profile, module.fingerprint)), hardware, launch)


def _program(module: Module, costs: Mapping[str, Cost], hardware: Hardware, launch: Launch) -> Program:
    return read_program(module, costs, estimator(module, hardware), launch.kernels)


def on_the_slowest_rank(costs: Mapping[str, Cost]) -> Mapping[str, Cost]:
    """Costs as they are on the rank for which the others wait; the same mapping where no ranks were compared.

    Every step waits for its slowest rank between one collective and the next (`pgle.costs.measure.skew`).
    """
    if not any(cost.slowest_us is not None for cost in costs.values()):
        return costs
    return {
        name: cost if cost.slowest_us is None else cost._replace(cost_us=cost.slowest_us)
        for name, cost in costs.items()
    }
