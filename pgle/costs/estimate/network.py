"""How collectives grow with devices and hosts: NCCL's own model, and how bandwidth falls with the number of hosts.

A collective of NCCL takes a latency and its bytes over a bandwidth; NCCL takes the algorithm and protocol with the
least sum. Small messages so get LL or LL128, large ones Simple, whose steps between hosts take five times as long.
Latencies and shares of bandwidth: NVIDIA/nccl `src/graph/tuning.cc`, 2.18 and later. Bus bandwidths are as nccl-tests
defines them (NVIDIA/nccl-tests `doc/PERFORMANCE.md`).

The law of hosts is `1 / bandwidth = a + b * log2(hosts)`. It is fitted on one public series and judged on others:
docs/evidence/estimates.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, log2

from pgle.xla.collectives import KINDS
from pgle.xla.targets import Hardware

HOSTS_A, HOSTS_B = 0.9089, 0.0546
"""The law of hosts, relative to NCCL's bandwidth inside an H100 host (370.8 GB/s): least squares of the reduce-scatter
on 4, 8 and 16 hosts of 8 H100 in NVIDIA/nccl issue 1229 (360, 345 and 320 GB/s), less the latency of a ring, which the
model counts by itself. The size of its messages is not published; 8 GiB is taken (`benchmarks/hosts.py` repeats it)."""

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
    """The devices that talk to each other."""

    size: int  # devices
    hosts: int  # hosts they are on
    widest: int = 0  # devices on the host with most of them; 0: they are spread evenly

    @property
    def per_host(self) -> int:
        """Devices of the group on one host, the one with most of them."""
        return self.widest or max(ceil(self.size / self.hosts), 1)


def bus_bandwidth_gb_s(group: Group, hardware: Hardware) -> float:
    """Bus bandwidth of a ring: NVLink inside a host; across hosts the network cards of its devices, by the law."""
    if group.hosts <= 1:
        return hardware.nvlink_gb_s
    line = min(hardware.nvlink_gb_s, hardware.nic_gb_s * group.per_host)
    return line / max(HOSTS_A + HOSTS_B * log2(group.hosts), 1.0)


def wire_us(kind: str, size: float, group: Group, hardware: Hardware) -> float:
    """What the bytes take on the links alone: size in bytes, as nccl-tests count them."""
    if kind in ("all-to-all", "ragged-all-to-all"):
        inside = size * (group.per_host - 1) / group.size / hardware.nvlink_gb_s
        outside = size * (group.size - group.per_host) / group.size / hardware.nic_gb_s
        return max(inside, outside) / 1e3
    return KINDS[kind].rounds * size * (group.size - 1) / group.size / (bus_bandwidth_gb_s(group, hardware) * 1e3)


def between_hosts_us(kind: str, size: float, group: Group, hardware: Hardware) -> float:
    """What the network cards take at least for what must cross hosts, however the algorithm orders it."""
    if group.hosts <= 1:
        return 0.0
    if kind.startswith("all-to-all"):
        return size * (group.size - group.per_host) / group.size / (hardware.nic_gb_s * 1e3)
    rounds = KINDS[kind].rounds if kind in KINDS else 1
    share = 1.0 if kind.startswith("permute") else rounds * (group.hosts - 1) / group.hosts
    return size * share / (hardware.nic_gb_s * group.per_host * 1e3)


def nccl_us(kind: str, size: float, group: Group, hardware: Hardware) -> tuple[float, float]:
    """Microseconds by NCCL's model, and how much of them is latency.

    Args:
        kind: of the collective.
        size: bytes, as nccl-tests count them.
        group: who takes part.
        hardware: links and network.
    """
    if kind in ("all-to-all", "ragged-all-to-all"):
        latency = LAUNCH_US + (RING[2].network_us if group.hosts > 1 else RING[2].nvlink_us)
        return latency + wire_us(kind, size, group, hardware), latency
    bandwidth = bus_bandwidth_gb_s(group, hardware) * 1e3
    moved = size * KINDS[kind].rounds * (1 if kind == "collective-broadcast" else (group.size - 1) / group.size)
    found = [(_ring_us(kind, group, item), moved / (bandwidth * item.bandwidth)) for item in RING]
    if kind == "all-reduce":
        found += [
            (_tree_us(group, item), _tree_bytes(size, group, hardware) / (bandwidth * item.bandwidth)) for item in TREE
        ]
    return min((latency + transfer, latency) for latency, transfer in found)


def _ring_us(kind: str, group: Group, protocol: Protocol) -> float:
    """Latency of a ring."""
    rounds = KINDS[kind].rounds
    steps, between_hosts = rounds * (group.size - 1), rounds * (group.hosts - 1)
    return protocol.base_us + (steps - between_hosts) * protocol.nvlink_us + between_hosts * protocol.network_us


def _tree_bytes(size: float, group: Group, hardware: Hardware) -> float:
    """Bytes that a tree moves over the slowest link: up and down.

    Between two hosts both halves of the sum cross at once, each in its own direction (NVIDIA/nccl `tuning.cc` takes the
    bandwidth inside a host there, too): what they then take inside the hosts bounds it.
    """
    if group.hosts != 2:
        return 2 * size
    return max(size, 2 * size * bus_bandwidth_gb_s(group, hardware) / hardware.nvlink_gb_s)


def _tree_us(group: Group, protocol: Protocol) -> float:
    """Latency of a tree over the hosts and chains inside them."""
    return protocol.base_us + 2 * ((group.per_host - 1) * protocol.nvlink_us + log2(group.hosts) * protocol.network_us)
