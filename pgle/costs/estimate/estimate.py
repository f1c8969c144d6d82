"""Costs that nobody measured: every schedulable instruction of a module on a given GPU, from shapes alone.

Collectives and matrix products come from XLA's measured tables (`perf_tables`), scaled where there is none for a GPU or
a fabric (`communication`, `compute`); the rest is a roofline. All that comes out is `Origin.ESTIMATED`. How far it is
from two real jobs: docs/evidence/rehearse.md and `benchmarks/estimate.py`.
"""

from __future__ import annotations

from collections.abc import Callable

from pgle.costs.estimate.communication import collective_us
from pgle.costs.estimate.kernels import compute_us
from pgle.costs.estimate.network import LAUNCH_US
from pgle.costs.lookup.table import LookupTable
from pgle.costs.profile.value import Origin, Profile
from pgle.xla.checker import compute_capability
from pgle.xla.collectives import collective_kind, is_host_copy, result_shape
from pgle.xla.hardware import HOST_LINK_EFFICIENCY, Hardware, by_capability
from pgle.xla.hlo.module import Instruction, Module
from pgle.xla.hlo.names import FREE_TARGETS


def hardware_of(module: Module) -> Hardware:
    """The GPU that a module was compiled for, by the file name of its dump; an H100 where that does not tell."""
    return by_capability(compute_capability(module))


def estimator(module: Module, hardware: Hardware) -> Callable[[Instruction], float]:
    """A function from an instruction of `module` to its microseconds per execution on `hardware`."""

    def estimate(instruction: Instruction) -> float:
        if instruction.custom_call_target in FREE_TARGETS:
            return 0.0
        if instruction.latency_ns is not None:
            return instruction.latency_ns / 1e3
        wrapped = module.wrapped(instruction)
        kind = collective_kind(module, instruction)
        if kind is not None:
            return collective_us(module, kind, wrapped or instruction, hardware)
        if is_host_copy(module, instruction) or instruction.is_host_transfer:
            size = transferred_bytes(module, instruction)
            return LAUNCH_US + size / (hardware.host_gb_s * HOST_LINK_EFFICIENCY * 1e3)
        return compute_us(module, wrapped or instruction, hardware)

    return estimate


def estimate_profile(module: Module, hardware: Hardware) -> Profile:
    """A profile of estimates for every schedulable instruction of a module.

    Args:
        module: scheduled or not; collectives are filed under the name they had when LHS ran.
    """
    estimate = estimator(module, hardware)
    rows = LookupTable(module).rows.values()
    costs = tuple(row.cost(estimate(row.instruction), Origin.ESTIMATED) for row in rows)
    return Profile(costs, provenance={"estimated_for": hardware.name})


def transferred_bytes(module: Module, instruction: Instruction) -> int:
    """What a copy between device and host memory moves: of an update in place, the update alone."""
    inner = module.wrapped(instruction) or instruction
    computation = module.fused(inner)
    root = inner if computation is None else module.instructions[computation.root]
    if root.opcode == "dynamic-update-slice":
        return module.instructions[root.operands[1]].shape.size_bytes
    return result_shape(module, instruction).size_bytes
