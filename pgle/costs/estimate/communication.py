"""How long a collective takes: XLA's own measurements where there are some, scaled by latency and bandwidth elsewhere.

Measured: the tables of `perf_tables`, one NVLink domain of H100, B200, GB200 and GB300. Other GPUs and groups across
hosts take the nearest table: its latency stays, what bytes take is scaled by the bandwidths and by the bytes that each
device sends, and the latencies of further steps are added. Latencies and the choice of algorithm are those of NCCL's
tuner (NVIDIA/nccl `src/graph/tuning.cc`, 2.18 and later; microseconds); bus bandwidths are as nccl-tests defines them
(NVIDIA/nccl-tests `doc/PERFORMANCE.md`). Not modelled here: contention with compute.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from math import ceil, log2

from pgle.costs.estimate import perf_tables
from pgle.xla.hardware import KERNEL_US, TABLE, Hardware
from pgle.xla.hlo.module import Instruction, Module
from pgle.xla.kinds import KINDS

LAUNCH_US = 5.0
"""XLA's `kNcclKernelLaunchOverhead` (openxla/xla `gpu_performance_model_base.h`), for transfers that NCCL's table of
latencies does not cover."""


CHANNELS = 24  # of NCCL between NVSwitches (24 on A100)
BINNED = (2, 22)  # release of NCCL from which calls of one group have protocols by their size
SAME_PROTOCOL = 4  # calls of one group whose bytes differ by less than this factor get one protocol, by all their bytes


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

    @property
    def per_host(self) -> int:
        """Devices of the group on one host."""
        return max(ceil(self.size / self.hosts), 1)


def group_of(module: Module, instruction: Instruction, hardware: Hardware) -> Group:
    """The largest replica group of a collective; all devices where it names none."""
    devices = max(module.num_devices, 1)
    groups = instruction.replica_groups or (tuple(range(devices)),)
    found = [Group(len(group), len({hardware.host(device) for device in group})) for group in groups if group]
    return max(found, key=lambda group: (group.hosts, group.size), default=Group(devices, 1))


def bus_bandwidth_gb_s(group: Group, hardware: Hardware) -> float:
    """Bus bandwidth of a ring: NVLink inside a host, across hosts the network cards of the group's devices on one."""
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
    if not KINDS[kind].ends_together:
        return _permute_us(instruction, size, hardware, module)
    group = group_of(module, instruction, hardware)
    if group.size <= 1:
        return KERNEL_US
    found = _measured_us(kind, size, group, hardware) or _formula_us(kind, size, group, hardware)
    calls = [module.instructions[name].shape.size_bytes for name in instruction.operands if name in module.instructions]
    return found + _queued_us(kind, calls, size, group, hardware)


def _queued_us(kind: str, calls: Collection[int], size: int, group: Group, hardware: Hardware) -> float:
    """What the calls of one group add to one call with all their bytes: those that share a channel run one by one.

    A collective of many operands is one group of calls and one kernel. NCCL gives each channel the same number of
    bytes, call after call in order of their bytes (NVIDIA/nccl `src/enqueue.cc`, 2.21 and later), so that small calls
    all stand on one channel, and each adds its latency there. To 2.21 the whole group has one protocol, and small
    calls beside large ones wait longest; 2.22 and later choose one for calls of about a size (`SAME_PROTOCOL`).

    Args:
        kind: of the collective.
        calls: bytes of each operand.
        size: payload of all.
        group: who takes part.
        hardware: links; its `nccl` says which rule holds.
    """
    if kind in ("all-to-all", "ragged-all-to-all") or len(calls) < 2 or not sum(calls):
        return 0.0
    ordered, share = sorted(calls), sum(calls) / CHANNELS
    queued, longest = [0.0] * CHANNELS, [0.0] * CHANNELS
    begin = 0
    for each, latency in zip(ordered, _latencies_us(kind, ordered, size, group, hardware), strict=True):
        end = begin + each
        for at in range(int(begin / share), min(int((end - 1) / share), CHANNELS - 1) + 1):
            queued[at] += latency
            longest[at] = max(longest[at], latency)
        begin = end
    return max(total - once for total, once in zip(queued, longest, strict=True))


def _latencies_us(kind: str, ordered: Sequence[int], size: int, group: Group, hardware: Hardware) -> list[float]:
    """Of each call of a group, in order of bytes, the latency of the protocol that NCCL chooses for those like it."""
    bandwidth, scale = bus_bandwidth_gb_s(group, hardware) * 1e3, size / sum(ordered)
    latency: list[float] = []
    while len(latency) < len(ordered):
        rest = ordered[len(latency) :]
        alike = [item for item in rest if hardware.nccl < BINNED or item < SAME_PROTOCOL * max(rest[0], 1)]
        latency += [_least(kind, sum(alike) * scale, group, bandwidth)[1]] * len(alike)
    return latency


def _measured_us(kind: str, size: int, group: Group, hardware: Hardware) -> float | None:
    """From the nearest table; None where there is none."""
    kind, base = KINDS[kind].measured, TABLE[hardware.measured_as]
    groups = perf_tables.groups_measured(base.name, kind)
    if not groups:
        return None
    near = Group(min(group.size, groups[-1]), 1)
    if near == group and hardware.nvlink_gb_s == base.nvlink_gb_s:
        return perf_tables.collective_us(base.name, kind, near.size, size)
    return _scaled_us(
        kind,
        near.size,
        size,
        base,
        slower=_wire_us(kind, size, group, hardware) / max(_wire_us(kind, size, near, base), 1e-9),
        later_us=_latency_us(kind, group) - _latency_us(kind, near),
    )


def _scaled_us(kind: str, group: int, size: int, base: Hardware, *, slower: float, later_us: float) -> float | None:
    """A measured time, of which what the bytes take is `slower` times as long and the latency `later_us` longer."""
    least, measured = (perf_tables.collective_us(base.name, kind, group, each) for each in (1, size))
    return None if least is None or measured is None else least + (measured - least) * slower + max(later_us, 0.0)


def _wire_us(kind: str, size: int, group: Group, hardware: Hardware) -> float:
    """What the bytes take on the links alone."""
    if kind == "all-to-all":
        inside = size * (group.per_host - 1) / group.size / hardware.nvlink_gb_s
        outside = size * (group.size - group.per_host) / group.size / hardware.nic_gb_s
        return max(inside, outside) / 1e3
    return KINDS[kind].rounds * size * (group.size - 1) / group.size / (bus_bandwidth_gb_s(group, hardware) * 1e3)


def _latency_us(kind: str, group: Group) -> float:
    """Latency of the steps of the algorithm with fewest, by NCCL's LL protocol."""
    if kind == "all-to-all":
        return RING[0].network_us if group.hosts > 1 else RING[0].nvlink_us
    ring = _steps_us(kind, group, RING[0])
    return min(ring, _tree_steps_us(group, TREE[0])) if kind == "all-reduce" else ring


def _formula_us(kind: str, size: int, group: Group, hardware: Hardware) -> float:
    """Without a table: latency + size / bandwidth of NCCL's protocols."""
    if kind in ("all-to-all", "ragged-all-to-all"):
        latency = RING[2].network_us if group.hosts > 1 else RING[2].nvlink_us
        return LAUNCH_US + latency + _wire_us("all-to-all", size, group, hardware)
    return _least(kind, size, group, bus_bandwidth_gb_s(group, hardware) * 1e3)[0]


def payload_bytes(module: Module, kind: str, instruction: Instruction) -> int:
    """The S of nccl-tests' formulas: bytes gathered, to be scattered, or reduced, on one device."""
    operands = [module.instructions[name].shape for name in instruction.operands if name in module.instructions]
    given = sum(shape.size_bytes for shape in operands if shape.dtype != "token")
    if KINDS[kind].payload == "first" and operands:  # the second is the output, the others say where rows go
        return operands[0].size_bytes
    if KINDS[kind].payload == "result":
        result = instruction.shape
        # all-gather-start returns (operands, results)
        if instruction.opcode.endswith("-start") and len(result.elements) == 2:
            result = result.elements[1]
        return max(result.size_bytes, given)
    return given or instruction.shape.size_bytes


def _steps_us(kind: str, group: Group, protocol: Protocol) -> float:
    """Latency of a ring."""
    rounds = KINDS[kind].rounds
    steps, between_hosts = rounds * (group.size - 1), rounds * (group.hosts - 1)
    return protocol.base_us + (steps - between_hosts) * protocol.nvlink_us + between_hosts * protocol.network_us


def _tree_steps_us(group: Group, protocol: Protocol) -> float:
    """Latency of a tree over the hosts and chains inside them."""
    return protocol.base_us + 2 * ((group.per_host - 1) * protocol.nvlink_us + log2(group.hosts) * protocol.network_us)


def _least(kind: str, size: float, group: Group, bandwidth: float) -> tuple[float, float]:
    """Microseconds of the fastest algorithm and protocol, and of these its latency; `bandwidth` in bytes per us."""
    moved = size * KINDS[kind].rounds * (1 if kind == "collective-broadcast" else (group.size - 1) / group.size)
    found = [(_steps_us(kind, group, item), moved / (bandwidth * item.bandwidth)) for item in RING]
    if kind == "all-reduce":
        found += [(_tree_steps_us(group, item), 2 * size / (bandwidth * item.bandwidth)) for item in TREE]
    return min((latency + transfer, latency) for latency, transfer in found)


def _permute_us(instruction: Instruction, size: int, hardware: Hardware, module: Module) -> float:
    pairs = instruction.source_target_pairs
    if pairs:
        crosses = any(hardware.host(source) != hardware.host(target) for source, target in pairs)
    else:
        crosses = module.num_devices > hardware.devices_per_host
    base, bandwidth = TABLE[hardware.measured_as], hardware.nic_gb_s if crosses else hardware.nvlink_gb_s
    later = RING[0].network_us - RING[0].nvlink_us if crosses else 0.0
    found = _scaled_us(_pattern(pairs), 2, size, base, slower=base.nvlink_gb_s / bandwidth, later_us=later)
    if found is not None:
        return found
    latency = RING[2].network_us if crosses else RING[2].nvlink_us
    return LAUNCH_US + latency + size / (bandwidth * 1e3)


def _pattern(pairs: Collection[tuple[int, int]]) -> str:
    """Which table of permutes: pairs that swap, or a ring; one direction is as fast as a ring."""
    return "permute-swap" if pairs and all((b, a) in pairs for a, b in pairs) else "permute-ring"
