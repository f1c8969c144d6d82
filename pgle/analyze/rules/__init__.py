"""What a measured step loses: one function per finding."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pgle.analyze.analysis import MeasuredStep
from pgle.analyze.findings import Finding
from pgle.analyze.rules.communication import (
    exposed,
    gradient_reduction,
    rank_skew,
    slow_collectives,
    small_collectives,
    synchronous,
)
from pgle.analyze.rules.device import (
    copies,
    excessive_copies,
    gaps_before_custom_calls,
    idle,
    input_bound,
    scatters,
    short_kernels,
    slow_matmuls,
)
from pgle.analyze.rules.program import (
    memory_limit,
    off_tensor_cores,
    recompilation,
    rematerialised_by_xla,
    rematerialised_for_nothing,
    stale_profile,
    window,
)

RULES: Sequence[Callable[[MeasuredStep], Finding | None]] = (
    synchronous, exposed, rank_skew, scatters, slow_matmuls, off_tensor_cores, input_bound, idle,
    gaps_before_custom_calls, slow_collectives, small_collectives, gradient_reduction, copies, excessive_copies,
    short_kernels, memory_limit, rematerialised_by_xla, rematerialised_for_nothing, stale_profile, recompilation,
    window,
)  # fmt: skip
"""One function per finding of `THRESHOLDS`."""


def find_findings(step: MeasuredStep) -> tuple[Finding, ...]:
    """Every finding, the one that could save most first."""
    if step.breakdown.step_us <= 0:
        return ()
    found = [finding for rule in RULES if (finding := rule(step)) is not None]
    return tuple(sorted(found, key=lambda finding: -finding.share))
