"""Costs that nobody measured: each schedulable instruction of a module on a given GPU, and the least it can take.

A bound and no estimate, so it leaves out what a cache or another algorithm may save: bytes of device memory,
convolutions (Winograd), attention (masks) and transfers whose size data decides.

Collectives and matrix products come from XLA's measured tables (`perf_tables`), scaled for a GPU that has no table, or
a fabric (`communication`, `compute`); the rest is a roofline. All that comes out is `Origin.ESTIMATED`. How far it is
from two real jobs: docs/evidence/rehearse.md and `benchmarks/estimate.py`.
"""

from __future__ import annotations

from collections.abc import Callable

from pgle.costs.estimate.communication import collective_us, group_of, payload_bytes
from pgle.costs.estimate.kernels import compute_us, is_convolution, matmuls
from pgle.costs.estimate.network import LAUNCH_US
from pgle.costs.lookup.table import LookupTable
from pgle.costs.profile.value import Origin, Profile
from pgle.xla.collectives import collective_kind, is_host_copy, result_shape
from pgle.xla.hlo.module import Instruction, Module
from pgle.xla.hlo.names import FREE_TARGETS
from pgle.xla.log.evidence import compute_capability
from pgle.xla.targets import HOST_LINK_EFFICIENCY, Hardware, by_capability, dtype_family

NVLINK_OVER_NCCL = 300 / 235
"""The data sheets' bandwidth per direction over what NCCL's tuner assumes, the largest ratio of the table's GPUs: A100
300 GB/s over 235 (H100 450 over 371, B200 900 over 722)."""

_FASTER = ("f8", "f4", "s8")  # families whose products can beat the peak of 16-bit floats


def least_us(module: Module, instruction: Instruction, hardware: Hardware, *, hosts: bool = True) -> float:
    """Microseconds below which no execution of an instruction can be; 0 if nothing is known.

    Args:
        module: holds it.
        instruction: of any kind; of an asynchronous operation its start.
        hardware: peaks and links.
        hosts: bytes between hosts take the network; without, NVLink.
    """
    if instruction.latency_ns is not None:  # the program states its cost
        return 0.0
    kind = collective_kind(module, instruction)
    inner = module.wrapped(instruction) or instruction
    if kind is not None:
        return _transfer_us(module, kind, inner, hardware, hosts=hosts)
    if is_host_copy(module, instruction) or instruction.is_host_transfer:
        return transferred_bytes(module, instruction) / (hardware.host_gb_s * 1e3)
    if is_convolution(inner) or (inner.opcode == "custom-call" and "__cublas" not in inner.custom_call_target):
        return 0.0
    return sum(item.operations / (peak_tflops(item.dtype, hardware) * 1e6) for item in matmuls(module, instruction))


def peak_tflops(dtype: str, hardware: Hardware) -> float:
    """The fastest way to multiply matrices of a type: XLA may compute wider ones from 16-bit parts."""
    family, half = dtype_family(dtype), hardware.tflops["f16"]
    return max(hardware.tflops.get(family, half), half) if family in _FASTER else half


def _transfer_us(module: Module, kind: str, inner: Instruction, hardware: Hardware, *, hosts: bool) -> float:
    """What has to enter a device, or a host, at the links' peak; a switch may reduce and copy on the way."""
    if kind == "ragged-all-to-all":
        return 0.0
    nvlink = hardware.nvlink_gb_s * NVLINK_OVER_NCCL * 1e3
    if kind in ("send", "recv"):
        return result_shape(module, inner).size_bytes / nvlink
    size = payload_bytes(module, kind, inner)
    if kind == "collective-permute":
        return size / nvlink if any(source != target for source, target in inner.source_target_pairs) else 0.0
    group = group_of(module, inner, hardware)
    inside = size * (1 - 1 / group.size) / nvlink
    if not hosts or group.hosts <= 1:
        return inside
    # Of an all-to-all each device has bytes of its own for the other hosts; of the rest a host needs each byte once.
    senders = group.per_host if kind == "all-to-all" else 1
    return max(inside, size * senders * (1 - 1 / group.hosts) / (hardware.nic_gb_s * group.per_host * 1e3))


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
