"""The least that an instruction can take: its operations at the GPU's peak, its bytes at the peak of the links.

A bound and no estimate, so it leaves out what a cache or another algorithm may save: bytes of device memory,
convolutions (Winograd), attention (masks) and transfers whose size data decides.
"""

from __future__ import annotations

from pgle.costs.estimate.communication import group_of, payload_bytes
from pgle.costs.estimate.estimate import transferred_bytes
from pgle.costs.estimate.products import is_convolution, matmuls
from pgle.xla.collectives import collective_kind, is_host_copy, result_shape
from pgle.xla.hardware import Hardware, dtype_family
from pgle.xla.hlo.module import Instruction, Module

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
