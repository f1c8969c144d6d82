"""A step as the levers read it: a scheduled module, and what each of its instructions takes."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

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
    # microseconds of a step in which an asynchronous operation runs and nothing computes, by the
    # instruction that starts it; of operations at the same time, each has all of it
    exposed_us: Mapping[str, float] = field(default_factory=dict)
    # of the same operations, all that they take; of what is missing here, no more is known
    communication_us: Mapping[str, float] = field(default_factory=dict)
    # of instructions that another edit takes away, as `us`
    replaced_us: Mapping[str, float] = field(default_factory=dict)
    # of the step, in which only copies run: the part of all of them together
    exposed_copies_us: float = 0.0

    @property
    def whole_us(self) -> Mapping[str, float]:
        """As `us`, if no other edit takes anything away."""
        return {**self.us, **self.replaced_us}

    def without(self, names: Collection[str]) -> StepCosts:
        """The costs that are left if another edit takes some instructions away."""
        left = {name: us for name, us in self.us.items() if name not in names}
        gone = {name: us for name, us in self.us.items() if name in names}
        return replace(self, us=left, replaced_us={**self.replaced_us, **gone})
