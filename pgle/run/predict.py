"""`pgle predict` as a function: a scheduled module and perhaps a profile to a prediction, with no compiler."""

from __future__ import annotations

import re
from dataclasses import dataclass

from pgle.costs.estimate.unsure import opaque_warnings
from pgle.costs.profile.effective import effective_costs
from pgle.costs.profile.files import read_profile
from pgle.errors import UserError
from pgle.files import AnyPath
from pgle.schedule.predict import Prediction, predict
from pgle.xla.hardware import find_hardware
from pgle.xla.hlo.dumps import no_match
from pgle.xla.hlo.module import Module
from pgle.xla.hlo.reader import read_modules
from pgle.xla.targets import load_target


@dataclass(frozen=True)
class PredictRequest:
    """What to predict.

    Attributes:
        hlo: a scheduled module, or a dump directory.
        profile: its costs; None: all are estimated.
        target: the GPU, by name or description.
        module: regular expression searched in module names; empty: the one whose step is longest.
        devices_per_host: GPUs that share NVLink; None: as the target usually has.
    """

    hlo: AnyPath
    profile: AnyPath | None
    target: str
    module: str = ""
    devices_per_host: int | None = None


@dataclass(frozen=True)
class Predicted:
    """A module with its prediction.

    Attributes:
        module: scheduled.
        target: the GPU's name.
        prediction: one step.
        others: names of further modules of the dump that were looked at.
        warnings: one line each.
    """

    module: Module
    target: str
    prediction: Prediction
    others: tuple[str, ...]
    warnings: tuple[str, ...]


def predict_file(request: PredictRequest) -> Predicted:
    """Predict a step of the main module.

    Raises:
        UserError: an input is bad, or no module is scheduled.
    """
    profile = read_profile(request.profile) if request.profile is not None else None
    hardware = find_hardware(load_target(request.target), devices_per_host=request.devices_per_host)
    modules = read_modules(request.hlo)
    scheduled = [module for module in modules if module.is_scheduled]
    if not scheduled:
        raise UserError(
            "no module is scheduled yet",
            where=request.hlo,
            remedy=f"compile it: pgle rehearse {request.hlo} --target {request.target}",
        )
    chosen = [module for module in scheduled if re.search(request.module, module.name)]
    if not chosen:
        raise no_match(request.module, scheduled)
    found = [(predict(module, profile, hardware), module) for module in chosen]
    prediction, module = max(found, key=lambda pair: pair[0].step_us)
    return Predicted(
        module=module,
        target=hardware.name,
        prediction=prediction,
        others=tuple(other.name for _, other in found if other is not module),
        warnings=(
            *opaque_warnings(module, () if profile is None else effective_costs(profile, module.fingerprint)),
            *(profile.warnings if profile is not None else ()),
            *prediction.timeline.warnings,
        ),
    )
