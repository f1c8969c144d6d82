"""What a measured step loses: every rule with its limit and its source, and the findings of a step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from pgle.analyze.analysis import LEAST_SAVED, Finding, Found, MeasuredStep
from pgle.analyze.rules import communication, device


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule; it is a finding where what it finds reaches the limit."""

    find: Callable[[MeasuredStep], Found | None]
    title: str  # what the finding is called
    limit: float  # what the number must reach; a share of the step where `rule` says nothing else
    rule: str  # in words
    source: str  # who says so
    simulated: bool = True  # False: the simulated GPU makes it up (a host that pauses, ranks that differ, its costs)
    # why it saves nothing in a profile run, whose flags make it; and whether that is so in those alone that keep
    # collectives synchronous
    unclaimed: str = ""
    where_alone: bool = False


_OWN = "pgle's proposal"
_TENSORFLOW = "TensorFlow guide, Optimize GPU performance"
# What saves as much as is exposed: a profile run that measures collectives alone does not show that.
_ALONE = "a profile run exposes every collective to measure it alone; the trace of a plain run shows what stays exposed"
_NO_GRAPHS = "a profile run has CUDA graphs off, as its trace needs; a plain run may have them"
RULES: Mapping[str, Rule] = {
    "synchronous-collective": Rule(communication.synchronous, "synchronous collectives", 0.01,
        "exposed time of synchronous collectives above 1 % of the step", "marin-community/marin#8054"),
    "exposed-communication": Rule(communication.exposed, "exposed communication", 0.03,
        "exposed asynchronous communication of at least 3 % of the step", f"{_OWN}: what PGLE can give"),
    "rank-skew": Rule(communication.rank_skew, "waits for the slowest rank", 0.02,
        "ranks wait for the last one for at least 2 % of the step, compared within each step", _OWN, simulated=False),
    "slow-steps": Rule(device.slow_steps, "slow steps", 0.01,
        "steps that take 5 % longer than the median step, and lengthen the mean step by at least 1 %", _OWN,
        simulated=False),
    "other-modules": Rule(device.other_modules, "other modules", 0.01,
        "modules but the main one run alone for at least 1 % of the step", _OWN, simulated=False),
    "scatter-add": Rule(device.scatters, "scatters", 0.05,
        "scatters of at least 5 % of the step", "openxla/xla#46225, #26371"),
    "slow-matmul": Rule(device.slow_matmuls, "slow matrix products", LEAST_SAVED,
        "matrix products below 50 % of the speed that XLA's table and a roofline give", f"{_OWN}; XLA's table"),
    "off-tensor-cores": Rule(device.off_tensor_cores, "matrix products off the Tensor Cores", 0.01,
        "matrix products of at least 1 % of the step off the Tensor Cores, by kernel name, else by type and precision",
        _TENSORFLOW),
    "input-bound": Rule(device.input_bound, "idle between steps", 0.05,
        "idle between steps for at least 5 % of the time", f"{_OWN}; {_TENSORFLOW}", simulated=False),
    "idle": Rule(device.idle, "host gaps inside steps", 0.01,
        "gaps over 20 µs inside steps, for at least 1 % of the step", _OWN),
    "launch-gaps": Rule(device.launch_gaps, "launch gaps", 0.05,
        "gaps of up to 20 µs inside steps, for at least 5 % of the step", _OWN, unclaimed=_NO_GRAPHS),
    "gaps-before-custom-calls": Rule(device.gaps_before_custom_calls, "gaps before custom calls", device.MANY_GAPS,
        "at least 3 gaps over 20 µs before custom calls in a step", f"{_OWN}; 4 × H100 MaxText job of JAX-Toolbox"),
    "slow-collective": Rule(communication.slow_collectives, "slow collectives", LEAST_SAVED,
        "collectives below 70 % of the speed that XLA's table gives for size and group", f"{_OWN}; XLA's table",
        unclaimed=_ALONE, where_alone=True),
    "small-collectives": Rule(communication.small_collectives, "small collectives", LEAST_SAVED,
        "at least 8 collectives of one kind in a computation, below 1 MiB each", "marin-community/marin: 1,009",
        unclaimed=_ALONE, where_alone=True),
    "exposed-copies": Rule(device.copies, "exposed copies", 0.01,
        "exposed copies of at least 1 % of the step", "openxla/xla#45983"),
    "excessive-copies": Rule(device.excessive_copies, "excessive copies", 0.1,
        "copies, hidden ones and kernels that only copy, of at least 10 % of the step", f"{_OWN}; {_TENSORFLOW}"),
    "short-kernels": Rule(device.short_kernels, "short kernels", 0.05,
        "kernels below 3 µs and the gaps before them take at least 5 % of the step", f"{_OWN}; NVIDIA blog: 2.9 µs",
        unclaimed=_NO_GRAPHS),
    "memory": Rule(device.memory_limit, "memory near its limit", 0.95,
        "peak memory within 5 % of what a program can have", _OWN),
    "rematerialised-by-xla": Rule(device.rematerialised_by_xla, "rematerialisation by XLA", 0.01,
        "instructions that XLA computes again, of at least 1 % of the step", _OWN),
    "needless-rematerialisation": Rule(device.rematerialised_for_nothing, "needless rematerialisation", 0.03,
        "rematerialisation of at least 3 % of the step while half of the memory is free", _OWN),
    "stale-profile": Rule(device.stale_profile, "stale profile", 0.1,
        "costs of the scheduler's profile that are off by at least 10 % of the step", _OWN, simulated=False),
    "recompilation": Rule(device.recompilation, "repeated compilation", 1,
        "another version of the main program between its steps, while XLA compiles", "Mocz, GPU/JAX Profiling",
        simulated=False),
    "window": Rule(device.window, "more than steady steps in the trace", 1,
        "warm-up, CUDA graphs, several fingerprints, or autotuning of at least 1 % of GPU time in the trace", _OWN,
        simulated=False),
}  # fmt: skip
"""Every rule, by the id of its finding."""


def find_findings(step: MeasuredStep) -> tuple[Finding, ...]:
    """Every finding that is the program's own, the one that could save most first."""
    if step.step_us <= 0:
        return ()
    findings = []
    for name, rule in RULES.items():
        found = rule.find(step) if rule.simulated or not step.trace.simulated else None
        if found is None:
            continue
        share = found.lost_us / step.step_us
        if (share if found.reached is None else found.reached) < rule.limit:
            continue
        why = rule.unclaimed if step.mode and (step.measures_alone or not rule.where_alone) else ""
        claimed = 0.0 if why else share
        findings.append(Finding(name, rule.title, claimed, found.number, found.evidence, found.remedy, why))
    return tuple(sorted(findings, key=lambda finding: -finding.share))
