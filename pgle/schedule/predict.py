"""What a schedule is worth: one prediction per scheduled module, all with the same costs, and how two compare."""

from __future__ import annotations

from dataclasses import dataclass

from pgle.costs.fit.estimate import estimator
from pgle.costs.fit.launch import DEFAULT, Launch, launch_of
from pgle.costs.profile.effective import effective_costs
from pgle.costs.profile.value import Profile
from pgle.schedule.ceiling import Ceiling, ceiling
from pgle.schedule.program import read_program
from pgle.schedule.simulate import run_program
from pgle.schedule.timeline import Timeline
from pgle.xla.hardware import Hardware, find_hardware
from pgle.xla.hlo.module import Module
from pgle.xla.targets import Target


@dataclass(frozen=True)
class Prediction:
    """A scheduled module on a model of the device.

    Attributes:
        timeline: one step.
        ceiling: lower bound of any schedule of the same instructions.
        costs_are: ``measured``, ``estimated`` or ``mixed``.
        estimated_share: of the activity time, the part whose cost was not measured.
        launch: the gaps that were used.
    """

    timeline: Timeline
    ceiling: Ceiling
    costs_are: str
    estimated_share: float
    launch: Launch

    @property
    def step_us(self) -> float:
        """Predicted length of the step."""
        return self.timeline.step_us

    @property
    def exposed_us(self) -> float:
        """Predicted time during which collectives run and nothing computes."""
        return self.timeline.breakdown.exposed_communication_us


def predict(
    module: Module,
    profile: Profile | None,
    target: str | Target | Hardware,
    *,
    launch: Launch | None = None,
    expand_loops: bool = False,
) -> Prediction:
    """Predict one step of a scheduled module: measured costs where there are any, estimates elsewhere.

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
    costs = effective_costs(profile, module.fingerprint) if profile is not None else {}
    program = read_program(module, costs, estimator(module, hardware), launch.kernels)
    timeline = run_program(program, launch, name=module.name, expand_loops=expand_loops)
    share = timeline.estimated_share
    kind = "measured" if share < 1e-9 else "estimated" if share > 1 - 1e-9 else "mixed"
    return Prediction(timeline, ceiling(module, program, launch), kind, share, launch)
