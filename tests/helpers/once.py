"""What many tests read of testdata is read once in a process, since it is frozen: modules,
estimates of their instructions, measured and predicted steps.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import pytest

from pgle.analyze.analysis import MeasuredStep
from pgle.costs.estimate import estimate
from pgle.files import Progress
from pgle.requests.predictions import Predict
from pgle.run import analyze, predict
from pgle.run.analyze import StepInput
from pgle.run.predict import Predicted
from pgle.xla.hardware import Hardware
from pgle.xla.hlo import proto
from pgle.xla.hlo.module import Instruction, Module

TESTDATA = Path(__file__).parents[2] / "testdata"
_read = proto.module_from_bytes
_module = cache(_read)
_compute = estimate.compute_us
_measure = analyze.measured_step
_predict = predict.predict_file


_steps: dict[tuple[object, ...], MeasuredStep] = {}
"""By what is measured, wherever it was measured from: a path and one relative to it are the same
recording.
"""


def _module_of(data: bytes, source: str) -> Module:
    is_ours = Path(source).resolve().is_relative_to(TESTDATA)
    if not is_ours:
        return _read(data, source)
    module = _module(data, source)
    _kept[id(module)] = module
    return module


_kept: dict[int, Module] = {}
"""The modules that live to the end, by identity."""

_costs: dict[tuple[int, str, Hardware], float] = {}


def _compute_us(module: Module, instruction: Instruction, hardware: Hardware) -> float:
    if id(module) not in _kept:
        return _compute(module, instruction, hardware)
    what = id(module), instruction.name, hardware
    if what not in _costs:
        _costs[what] = _compute(module, instruction, hardware)
    return _costs[what]


def _step_of(side: StepInput, progress: Progress | None = None) -> MeasuredStep:
    places = tuple(Path(str(path)).resolve() for path in (*side.inputs, *side.hlo))
    is_ours = side.profile is None and all(
        place.is_relative_to(TESTDATA) for place in places
    )
    if not is_ours:
        return _measure(side, progress)
    what = side.target, len(side.inputs), places
    if what not in _steps:
        _steps[what] = _measure(side, progress)
    return _steps[what]


_predicted: dict[Predict, Predicted] = {}
"""By what is asked, with the paths as they were typed: answers name them."""


def _predicted_of(asked: Predict) -> Predicted:
    is_ours = Path(str(asked.hlo)).resolve().is_relative_to(TESTDATA)
    if asked.profile is not None or not is_ours:
        return _predict(asked)
    if asked not in _predicted:
        _predicted[asked] = _predict(asked)
    return _predicted[asked]


@contextmanager
def testdata_is_read_once() -> Iterator[None]:
    """Within, `pgle` in this process reads so."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(proto, "module_from_bytes", _module_of)
        patch.setattr(estimate, "compute_us", _compute_us)
        patch.setattr(analyze, "measured_step", _step_of)
        patch.setattr(predict, "predict_file", _predicted_of)
        yield
