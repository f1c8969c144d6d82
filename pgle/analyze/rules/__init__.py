"""What a measured step loses: one function per finding."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

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
    launch_gaps,
    other_modules,
    scatters,
    short_kernels,
    slow_matmuls,
    slow_steps,
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
    synchronous, exposed, rank_skew, slow_steps, other_modules, scatters, slow_matmuls, off_tensor_cores,
    input_bound, idle, launch_gaps, gaps_before_custom_calls, slow_collectives, small_collectives,
    gradient_reduction, copies, excessive_copies, short_kernels, memory_limit, rematerialised_by_xla,
    rematerialised_for_nothing, stale_profile, recompilation, window,
)  # fmt: skip
"""One function per finding of `THRESHOLDS`."""


UNSIMULATED = frozenset(("rank-skew", "slow-steps", "other-modules", "input-bound", "recompilation", "window"))
"""What the simulated GPU makes up: a host that pauses, ranks that differ, a warm-up."""

BY_EXPOSURE = frozenset(("slow-collective", "small-collectives", "gradient-reduction"))
"""What saves as much as is exposed: a profile run that measures collectives alone does not show that."""

_ALONE = "a profile run exposes every collective to measure it alone; what is exposed in a plain run, its trace says"
_NO_GRAPHS = "a profile run has CUDA graphs off, as its trace needs; a plain run may have them"


def find_findings(step: MeasuredStep) -> tuple[Finding, ...]:
    """Every finding that is the program's own, the one that could save most first."""
    if step.step_us <= 0:
        return ()
    found = [finding for rule in RULES if (finding := rule(step)) is not None]
    if step.trace.simulated:
        found = [finding for finding in found if finding.id not in UNSIMULATED]
    if step.mode:
        found = [replace(finding, share=0.0, unclaimed=why) if (why := _made_by_pgle(step, finding)) else finding
                 for finding in found]  # fmt: skip
    return tuple(sorted(found, key=lambda finding: -finding.share))


def _made_by_pgle(step: MeasuredStep, finding: Finding) -> str:
    """Why a finding on a profile run may be no loss of the program's; empty where it is."""
    if finding.id in BY_EXPOSURE:
        return _ALONE if step.measures_alone else ""
    return _NO_GRAPHS if finding.id in ("short-kernels", "launch-gaps") else ""
