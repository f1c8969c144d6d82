"""A measured step at one size: it moves the predicted steps of all sizes, and the answer says how."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Anchor:
    """A measured step and what was predicted for it, microseconds."""

    devices: int
    measured_us: float
    predicted_us: float

    @property
    def factor(self) -> float:
        """What predicted steps are multiplied by: costs are taken to be off by the same share at every size."""
        return self.measured_us / self.predicted_us

    def likely_us(self, step_us: float) -> float:
        """A predicted step, multiplied."""
        return step_us * self.factor

    def ends_us(self, step_us: float) -> tuple[float, float]:
        """The step multiplied and the step with the difference added instead, the smaller first. One measured size
        cannot tell the two apart; they are equal there."""
        added = max(step_us + self.measured_us - self.predicted_us, 0.0)
        low, high = sorted((self.likely_us(step_us), added))
        return low, high
