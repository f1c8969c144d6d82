"""A step whose instructions take what a test says."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from pgle.account.levers import find_levers
from pgle.account.levers.flow import Flow
from pgle.account.step_costs import StepCosts
from pgle.account.value import Basis, Opportunity, OpportunityKind
from pgle.costs.estimate.estimate import estimator
from pgle.xla.hlo.dumps import read_module
from pgle.xla.hlo.module import Module
from pgle.xla.hlo.text import module_from_text
from pgle.xla.targets import find_hardware


def priced(
    text: str,
    us: Mapping[str, float],
    *,
    gpu: str = "a100-40gb",
    step_us: float | None = None,
    peak_bytes: int | None = None,
    limit_bytes: int | None = None,
) -> StepCosts:
    """A step of HLO text.

    Args:
        us: microseconds by instruction, each of one execution.
        step_us: None: their sum.
    """
    return StepCosts(
        module=module_from_text(text.encode(), "step.txt"),
        hardware=find_hardware(gpu),
        step_us=sum(us.values()) if step_us is None else step_us,
        us=us,
        count=dict.fromkeys(us, 1.0),
        basis=Basis.MEASURED,
        peak_bytes=peak_bytes,
        limit_bytes=limit_bytes,
    )


def lever_of(step: StepCosts, *kinds: OpportunityKind) -> Opportunity | None:
    """The first lever of a step that is of one of these kinds; None if there is none."""
    found = (item for item in find_levers(step) if item.kind in kinds)
    return next(found, None)


def estimated(path: Path, gpu: str) -> StepCosts:
    """A step of a dump without loops, each instruction at its estimate."""
    module = read_module(path)
    us = _estimates(module, gpu)
    return StepCosts(
        module=module,
        hardware=find_hardware(gpu),
        step_us=sum(us.values()),
        us=us,
        count=dict.fromkeys(us, 1.0),
        basis=Basis.ESTIMATED,
    )


def _estimates(module: Module, gpu: str) -> dict[str, float]:
    estimate = estimator(module, find_hardware(gpu))
    kernels = dict.fromkeys(Flow(module).kernel.values())
    found = {name: estimate(module.instructions[name]) for name in kernels}
    return {name: us for name, us in found.items() if us > 0}
