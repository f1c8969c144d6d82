"""A step as the levers read it: a scheduled module, and the time of each instruction."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from pgle.account.value import Basis
from pgle.xla.hlo.module import Module
from pgle.xla.targets import Hardware


@dataclass(frozen=True)
class StepCosts:
    """The costs of one step, from a trace or from a simulated schedule."""

    module: Module  # as XLA scheduled it
    hardware: Hardware  # the GPU
    step_us: float
    # microseconds of a step by instruction, over all its executions; only time on the compute
    # stream
    us: Mapping[str, float]
    count: Mapping[str, float]  # executions in a step, by instruction
    basis: Basis  # how `us` was found
    peak_bytes: int | None = None  # device memory by XLA's plan; None if unknown
    limit_bytes: int | None = None  # memory that a program can have; None if unknown
    # exposed microseconds of a step, by the instruction that starts an asynchronous operation; if
    # several run at the same time, each has all of this time
    exposed_us: Mapping[str, float] = field(default_factory=dict)
    # microseconds of the same operations, hidden or not; if one is missing, use `exposed_us`
    communication_us: Mapping[str, float] = field(default_factory=dict)
    # like `us`, for instructions that another edit removes
    replaced_us: Mapping[str, float] = field(default_factory=dict)
    # microseconds of a step in which only copies run, of all copies together
    exposed_copies_us: float = 0.0

    @property
    def whole_us(self) -> Mapping[str, float]:
        """`us` with the instructions that other edits remove."""
        return {**self.us, **self.replaced_us}

    def without(self, names: Collection[str]) -> StepCosts:
        """The costs that are left after another edit removes some instructions."""
        left = {name: us for name, us in self.us.items() if name not in names}
        gone = {name: us for name, us in self.us.items() if name in names}
        return replace(self, us=left, replaced_us={**self.replaced_us, **gone})
