"""How long a collective takes: latency + size / bandwidth for the algorithms that NCCL chooses from.

The model and its constants are those of NCCL's own tuner (NVIDIA/nccl `src/graph/tuning.cc`, 2.18 and later; times in
microseconds); bus bandwidths are as nccl-tests defines them (NVIDIA/nccl-tests `doc/PERFORMANCE.md`). Not modelled:
NVLink SHARP, CollNet, the ramp of bandwidth with size, contention with compute.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, log2

from pgle.xla.hardware import KERNEL_US, Hardware
from pgle.xla.hlo.module import Instruction, Module

LAUNCH_US = 5.0
"""XLA's `kNcclKernelLaunchOverhead` (openxla/xla `gpu_performance_model_base.h`), for transfers that NCCL's table of
latencies does not cover."""


@dataclass(frozen=True, slots=True)
class Protocol:
    """One of NCCL's protocols on one algorithm: latencies in microseconds, share of the bus bandwidth it reaches."""

    base_us: float
    nvlink_us: float
    network_us: float
    bandwidth: float


RING = (
    Protocol(6.6, 0.6, 2.7, 0.25),  # LL
    Protocol(14.0, 1.9, 4.0, 0.92),  # LL128
    Protocol(8.4, 3.4, 14.0, 1.0),  # Simple
)
TREE = (
    Protocol(6.8, 0.6, 5.0, 0.9 / 3.8),
    Protocol(14.0, 1.25, 8.5, 0.9 * 0.92),
    Protocol(8.4, 4.0, 14.0, 0.9),
)


@dataclass(frozen=True, slots=True)
class Group:
    """The devices that talk to each other.

    Attributes:
        size: devices.
        hosts: hosts they are on.
    """

    size: int
    hosts: int

    @property
    def per_host(self) -> int:
        """Devices of the group on one host."""
        return max(ceil(self.size / self.hosts), 1)


def group_of(module: Module, instruction: Instruction, hardware: Hardware) -> Group:
    """The largest replica group of a collective; all devices where it names none."""
    devices = max(module.num_partitions * module.num_replicas, 1)
    groups = instruction.replica_groups or (tuple(range(devices)),)
    found = [Group(len(group), len({hardware.host(device) for device in group})) for group in groups if group]
    return max(found, key=lambda group: (group.hosts, group.size), default=Group(devices, 1))


def bus_bandwidth_gb_s(group: Group, hardware: Hardware) -> float:
    """Of a ring: NVLink inside a host; across hosts the network cards of the group's devices on one host."""
    if group.hosts <= 1:
        return hardware.nvlink_gb_s
    return min(hardware.nvlink_gb_s, hardware.nic_gb_s * group.per_host)


def collective_us(module: Module, kind: str, instruction: Instruction, hardware: Hardware) -> float:
    """Microseconds of one collective with all ranks arriving together.

    Args:
        module: holds it.
        kind: ``all-gather``, ``all-reduce`` …, of an async op the wrapped one.
        instruction: the wrapped or plain op.
        hardware: links and devices per host.
    """
    size = payload_bytes(module, kind, instruction)
    if kind in ("collective-permute", "send", "recv"):
        return _permute_us(instruction, size, hardware, module)
    group = group_of(module, instruction, hardware)
    if group.size <= 1:
        return KERNEL_US
    if kind in ("all-to-all", "ragged-all-to-all"):
        return _all_to_all_us(size, group, hardware)
    bandwidth = bus_bandwidth_gb_s(group, hardware) * 1e3  # bytes per microsecond
    ring = _ring_us(kind, size, group, bandwidth)
    return min(ring, _tree_us(size, group, bandwidth)) if kind == "all-reduce" else ring


def payload_bytes(module: Module, kind: str, instruction: Instruction) -> int:
    """The S of nccl-tests' formulas: bytes gathered, to be scattered, or reduced, on one device."""
    operands = [module.instructions[name].shape for name in instruction.operands if name in module.instructions]
    given = sum(shape.size_bytes for shape in operands if shape.dtype != "token")
    if kind == "all-gather":
        result = instruction.shape
        # all-gather-start returns (operands, results)
        if instruction.opcode.endswith("-start") and len(result.elements) == 2:
            result = result.elements[1]
        return max(result.size_bytes, given)
    return given or instruction.shape.size_bytes


def _ring_us(kind: str, size: int, group: Group, bandwidth: float) -> float:
    rounds = 2 if kind == "all-reduce" else 1
    steps = rounds * (group.size - 1)
    between_hosts = rounds * (group.hosts - 1)
    moved = size if kind == "collective-broadcast" else size * steps / group.size
    return min(
        protocol.base_us
        + (steps - between_hosts) * protocol.nvlink_us
        + between_hosts * protocol.network_us
        + moved / (bandwidth * protocol.bandwidth)
        for protocol in RING
    )


def _tree_us(size: int, group: Group, bandwidth: float) -> float:
    return min(
        protocol.base_us
        + 2 * ((group.per_host - 1) * protocol.nvlink_us + log2(group.hosts) * protocol.network_us)
        + 2 * size / (bandwidth * protocol.bandwidth)
        for protocol in TREE
    )


def _all_to_all_us(size: int, group: Group, hardware: Hardware) -> float:
    inside = size * (group.per_host - 1) / group.size / (hardware.nvlink_gb_s * 1e3)
    outside = size * (group.size - group.per_host) / group.size / (hardware.nic_gb_s * 1e3)
    latency = RING[2].network_us if group.hosts > 1 else RING[2].nvlink_us
    return LAUNCH_US + latency + max(inside, outside)


def _permute_us(instruction: Instruction, size: int, hardware: Hardware, module: Module) -> float:
    pairs = instruction.source_target_pairs
    devices = module.num_partitions * module.num_replicas
    if pairs:
        crosses = any(hardware.host(source) != hardware.host(target) for source, target in pairs)
    else:
        crosses = devices > hardware.devices_per_host
    bandwidth = hardware.nic_gb_s if crosses else hardware.nvlink_gb_s
    latency = RING[2].network_us if crosses else RING[2].nvlink_us
    return LAUNCH_US + latency + size / (bandwidth * 1e3)
