"""The requests of all commands, by name of the command."""

from __future__ import annotations

from collections.abc import Mapping

from pgle.requests.looks import Analyze, Confirm, OrderOfRanks, Report
from pgle.requests.option import Request
from pgle.requests.predictions import Advise, Predict, Releases, Scale, Tune
from pgle.requests.profiles import Carry, Complete, Convert, Verify
from pgle.requests.stages import Auto, Doctor, PerfStage, ProfileStage, Run
from pgle.requests.steps import CompareRuns

COMMANDS: Mapping[str, type[Request]] = {
    "advise": Advise,
    "analyze": Analyze,
    "auto": Auto,
    "carry": Carry,
    "compare": CompareRuns,
    "complete": Complete,
    "confirm": Confirm,
    "convert": Convert,
    "doctor": Doctor,
    "perf": PerfStage,
    "predict": Predict,
    "profile": ProfileStage,
    "ranks": OrderOfRanks,
    "rehearse": Releases,
    "report": Report,
    "run": Run,
    "scale": Scale,
    "tune": Tune,
    "verify": Verify,
}
