"""What XLA does with names that a profile lacks: the lines it logs, and the costs it assumes instead.

Source: openxla/xla `xla/service/profile_guided_latency_estimator.cc` and `gpu_latency_hiding_scheduler.cc`; counts and
assumed costs compared with jaxlib 0.10.2 and 0.12.0.1 in the tests.
"""

from __future__ import annotations

import re
from collections.abc import Container
from dataclasses import dataclass

from pgle.xla.collectives import collective_kind, is_done, is_start
from pgle.xla.hlo.module import Instruction, Module
from pgle.xla.hlo.names import NO_OPS, unscheduled_conditions

LOW_US, MEDIUM_US, HIGH_US = 1.0, 1000.0, 5000.0
"""XLA's T-shirt sizes (``kLowCost``, ``kMediumCost``, ``kHighCost``), taken for microseconds under a profile."""

T_SHIRT_SIZES, LIGHT_SPEED = "T-shirt sizes", "speed-of-light model"  # what XLA takes costs for that a profile lacks

_SM = re.compile(r"\bsm_(\d+)\.(\d+)")


@dataclass(frozen=True, slots=True)
class CheckerCounts:
    """The accuracy checker's "Found N instructions" and "Missing M instructions"."""

    found: int  # N
    missing: tuple[str, ...]  # the M names that it lists
    # of these the names that need no cost: dones of asynchronous fusions and copies, which run nothing and are taken
    # for 1 µs without a cost (with one, for that long); their starts where what they wrap has a cost; and what
    # `unscheduled_conditions` hold
    idle: tuple[str, ...] = ()


def checker_counts(lhs_module: Module, names: Container[str]) -> CheckerCounts:
    """What the PGLE accuracy checker would count, as of jaxlib 0.10.2.

    A name is found once for its cost and, if it is the start of an asynchronous operation, once for its latency. Dones
    of asynchronous fusions are looked up like any instruction; copies and loops are never called missing.
    """
    found = 0
    missing: dict[str, None] = {}
    idle: dict[str, None] = {}
    conditions = unscheduled_conditions(lhs_module)
    for computation in lhs_module.scheduled:
        for item in lhs_module.computations[computation].instructions:
            accepted = accepted_names(lhs_module, item)
            is_pair = is_start(item) or is_done(item)
            if not (is_pair and collective_kind(lhs_module, item) is not None):
                if item.name in names:
                    found += 1
                elif item.opcode not in NO_OPS and item.opcode not in ("while", "copy"):
                    missing[item.name] = None
                    if is_done(item) or computation in conditions or any(name in names for name in accepted[1:]):
                        idle[item.name] = None
            if is_start(item):
                if any(name in names for name in accepted):
                    found += 1
                else:
                    missing[item.name] = None
    return CheckerCounts(found, tuple(missing), tuple(idle))


def accepted_names(lhs_module: Module, instruction: Instruction) -> tuple[str, ...]:
    """The names under which XLA looks an instruction up, in this order: its own, and what an async-start wraps."""
    wrapped = lhs_module.wrapped(instruction) if instruction.opcode == "async-start" else None
    return (instruction.name,) if wrapped is None else (instruction.name, wrapped.name)


def assumed_us(module: Module, instruction: Instruction) -> float:
    """The cost that XLA's T-shirt sizes give an instruction without one."""
    opcode = instruction.opcode
    if opcode in ("send", "recv"):
        return 10 * HIGH_US if opcode == "send" else MEDIUM_US
    if is_start(instruction) or collective_kind(module, instruction) is not None:  # a plain one was a start then
        return HIGH_US
    if opcode == "fusion":
        return {"kLoop": MEDIUM_US, "kOutput": HIGH_US}.get(instruction.fusion_kind, LOW_US)
    return {"custom-call": MEDIUM_US, "convolution": HIGH_US}.get(opcode, LOW_US)


def compute_capability(module: Module) -> tuple[int, int] | None:
    """The GPU that a module was compiled for, from its dump's file name (``.sm_9.0_gpu_after_optimizations``)."""
    found = _SM.search(module.source.rpartition("/")[2])
    return None if found is None else (int(found.group(1)), int(found.group(2)))


def fallback_of(module: Module) -> str:
    """What XLA takes the gaps of a module for: its model from Hopper on (jaxlib 0.10.2 and newer), else constants."""
    return LIGHT_SPEED if (compute_capability(module) or (0, 0)) >= (9, 0) else T_SHIRT_SIZES
