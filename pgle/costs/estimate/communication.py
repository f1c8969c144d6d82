"""How long a collective takes: XLA's own measurements, and NCCL's model for what they do not cover.

Measured: the tables of `perf_tables`, one NVLink domain of H100, B200, GB200 and GB300. Another GPU or group takes the
nearest measured group, and what NCCL's model (`network`) says that the difference costs. Two rules hold for all of
them: more bytes never take less time, and no GPU takes longer than a weaker one that XLA measured on the same network.
Not modelled here: contention with compute.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import accumulate
from math import inf, log

from pgle.costs.estimate import tables
from pgle.costs.estimate.network import LAUNCH_US, RING, Group, between_hosts_us, nccl_us
from pgle.xla.collectives import KINDS
from pgle.xla.hlo.module import Instruction, Module
from pgle.xla.targets import KERNEL_US, TABLE, Hardware, weaker

CHANNELS = 24  # of NCCL between NVSwitches (24 on A100)
BINNED = (2, 22)  # release of NCCL from which calls of one group have protocols by their size
SAME_PROTOCOL = 4  # calls of one group whose bytes differ by less than this factor get one protocol, by all their bytes
_RACK = TABLE["gb200"]  # whose table has groups of more than one host of others
_SIZES = [2.0**bits for bits in range(41)]  # bytes at which a curve is worked out: up to a tebibyte


def group_of(module: Module, instruction: Instruction, hardware: Hardware) -> Group:
    """The largest replica group of a collective; all devices where it names none."""
    devices = max(module.num_devices, 1)
    groups = instruction.replica_groups or (tuple(range(devices)),)
    found = [_spread(Counter(map(hardware.host, group))) for group in groups if group]
    return max(found, key=lambda group: (group.hosts, group.size), default=Group(devices, 1))


def _spread(hosts: Counter[int]) -> Group:
    """A group by how many of its devices each host has."""
    most = max(hosts.values())
    return Group(hosts.total(), len(hosts), most if most * len(hosts) > hosts.total() else 0)


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
        return group_us(*_pairs(module, instruction, hardware), size, hardware)
    group = group_of(module, instruction, hardware)
    if group.size <= 1:
        return KERNEL_US
    found = group_us(KINDS[kind].measured or kind, group, size, hardware)
    calls = [module.instructions[name].shape.size_bytes for name in instruction.operands if name in module.instructions]
    return found + _queued_us(kind, calls, size, group, hardware)


def _queued_us(kind: str, calls: Collection[int], size: int, group: Group, hardware: Hardware) -> float:
    """What the calls of one group add to one call with all their bytes: calls that share a channel run one by one.

    A collective of many operands is one group of calls and one kernel. NCCL gives each channel the same number of
    bytes, call after call in order of their bytes (NVIDIA/nccl `src/enqueue.cc`, 2.21 and later), so that small calls
    all stand on one channel, and each adds its latency there. To 2.21 the whole group has one protocol, and small
    calls that overlap large ones wait longest; 2.22 and later choose one for calls of about a size (`SAME_PROTOCOL`).

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
    scale = size / sum(ordered)
    latency: list[float] = []
    while len(latency) < len(ordered):
        rest = ordered[len(latency) :]
        alike = [item for item in rest if hardware.nccl < BINNED or item < SAME_PROTOCOL * max(rest[0], 1)]
        latency += [nccl_us(kind, sum(alike) * scale, group, hardware)[1]] * len(alike)
    return latency


def group_us(kind: str, group: Group, size: float, hardware: Hardware) -> float:
    """Microseconds of a collective of a group, by the tables where they hold it.

    Args:
        kind: with a measured table its name there (``all-gather``, ``permute-ring``), else the collective's kind.
        group: who takes part; of a permute two devices.
        size: bytes, as nccl-tests count them.
        hardware: links and network.
    """
    is_covered = group.per_host <= _widest(kind, hardware)
    known = [each for each in weaker(hardware) if group.per_host <= _widest(kind, each) or not is_covered]
    least = min(_by_table(kind, group, size, each) for each in (*known, hardware))
    if is_covered:
        return least
    rack = replace(_RACK, nic_gb_s=hardware.nic_gb_s, devices_per_host=hardware.devices_per_host)
    return max(least, _by_table(kind, group, size, rack))


def _widest(kind: str, hardware: Hardware) -> float:
    """The most devices of one NVLink domain in the table of the nearest GPU."""
    return max(tables.groups_measured(hardware.measured_as, kind), default=inf)


def _by_table(kind: str, group: Group, size: float, hardware: Hardware) -> float:
    """By the table of the nearest GPU alone."""
    measured = tables.groups_measured(hardware.measured_as, kind)
    if not measured:
        return _model_us(kind, size, group, hardware)
    if group.hosts == 1 and group.size <= measured[-1]:
        return _inside_us(kind, group.size, size, hardware)
    near = min(max(group.per_host, measured[0]), measured[-1])
    return tables.read(_curve(kind, group, near, hardware), size)


def _inside_us(kind: str, group: int, size: float, hardware: Hardware) -> float:
    """Of devices of one domain: as the table has them, with slower links what the bytes take that much longer."""
    base = TABLE[hardware.measured_as]
    return tables.collective_us(base.name, kind, group, size, base.nvlink_gb_s / hardware.nvlink_gb_s)


@lru_cache(maxsize=4096)
def _curve(kind: str, group: Group, near: int, hardware: Hardware) -> tables.Curve:
    """Times over sizes: times of `near` devices in one domain, and what NCCL's model says that hosts add.

    Two readings of that; the lesser counts. Either the difference of the model's times is added, so that switches
    which reduce inside a host keep their gain. Or its latency is added, and the whole takes no less than the model
    says, so that a table slower inside a host than NCCL across hosts does not count twice. The curve never falls.
    """
    inside, sizes = Group(near, 1), sorted({*_SIZES, *tables.sizes_measured(hardware.measured_as, kind)})
    latency_us = max(_model_us(kind, 0, group, hardware) - _model_us(kind, 0, inside, hardware), 0.0)

    def time_us(size: float) -> float:
        whole, measured = _model_us(kind, size, group, hardware), _inside_us(kind, near, size, hardware)
        added = measured + max(whole - _model_us(kind, size, inside, hardware), 0.0)
        bounded = max(measured + latency_us, whole)
        return max(min(added, bounded), between_hosts_us(kind, size, group, hardware))

    times = accumulate(map(time_us, sizes), max)
    return [log(size) for size in sizes], [log(time) for time in times]


def _model_us(kind: str, size: float, group: Group, hardware: Hardware) -> float:
    """Without a table: latency and bytes over bandwidth, by NCCL's model; a permute has one link per device."""
    if not kind.startswith("permute"):
        return nccl_us(kind, size, group, hardware)[0]
    link, latency = (
        (hardware.nic_gb_s, RING[0].network_us) if group.hosts > 1 else (hardware.nvlink_gb_s, RING[0].nvlink_us)
    )
    return LAUNCH_US + latency + size / (link * 1e3)


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


def _pairs(module: Module, instruction: Instruction, hardware: Hardware) -> tuple[str, Group]:
    """Which table of permutes, pairs that swap or a ring, and whether a pair crosses hosts.

    One direction is as fast as a ring.
    """
    pairs = instruction.source_target_pairs
    crosses = (
        any(hardware.host(source) != hardware.host(target) for source, target in pairs)
        if pairs
        else module.num_devices > hardware.devices_per_host
    )
    kind = "permute-swap" if pairs and all((b, a) in pairs for a, b in pairs) else "permute-ring"
    return kind, Group(2, 1 + crosses)
