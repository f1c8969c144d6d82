"""A step as the levers read it: a scheduled module, and what each of its instructions takes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pgle.account.value import Basis
from pgle.xla.hlo.module import Module
from pgle.xla.targets import Hardware


@dataclass(frozen=True)
class StepCosts:
    """Costs of one step, from a trace or from a schedule's model alike."""

    module: Module  # as XLA scheduled it
    hardware: Hardware  # the GPU
    step_us: float
    # microseconds of a step by instruction, all its executions; only what runs on the compute
    # stream, and each as long as it takes there
    us: Mapping[str, float]
    count: Mapping[str, float]  # executions in a step, by instruction
    basis: Basis  # what `us` rests on
    peak_bytes: int | None = None  # device memory by XLA's plan; None where unknown
    limit_bytes: int | None = None  # what a program can have; None where unknown
