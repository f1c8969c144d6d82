"""Estimate how long a collective takes, from XLA's own measurements and NCCL's model.

The tables in `pgle/xla/data/perf_tables` measure one NVLink domain of H100, B200, GB200 and GB300
(their README names the sources). pgle interpolates between neighbouring points on logarithmic
scales. For another GPU or group, it takes the nearest measured group, and adds the difference by
NCCL's model. Two rules hold for all of them. More bytes never take less time. No GPU takes longer
than a weaker one that XLA measured on the same network. Contention with compute is not modelled
here.

By NCCL's model, a collective takes a latency, and its bytes divided by a bandwidth. NCCL chooses
the algorithm and the protocol with the smallest sum. So small messages use LL or LL128, and large
ones use Simple, whose steps between hosts take five times as long. `pgle.xla.vendors` has each
vendor's latencies and shares of bandwidth. Bus bandwidths are defined as in nccl-tests
(NVIDIA/nccl-tests `doc/PERFORMANCE.md`). The law of hosts is `1 / bandwidth = a + b * log2(hosts)`.
It is fitted on one public series and judged on others: docs/evidence/estimates.md.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from importlib import resources
from itertools import accumulate
from math import ceil, exp, inf, log, log2

from pgle.xla.collective_kinds import KINDS
from pgle.xla.hlo.module import Instruction, Module
from pgle.xla.targets import KERNEL_US, TABLE, Hardware, weaker

# logarithms of bytes, ascending, and logarithms of µs, which never fall
Curve = tuple[Sequence[float], Sequence[float]]


def inside_us(kind: str, group: int, size_bytes: float, hardware: Hardware) -> float:
    """Return the µs of a collective inside one NVLink domain, from the table of the nearest GPU.

    On slower links the bytes take longer in proportion, but the latency stays.

    Args:
        group: number of devices. Between the table's counts it is interpolated on a logarithmic
            scale; beyond them the nearest count is taken.
        size_bytes: as nccl-tests count them. Below the table's smallest size, the time of the
            smallest counts; above the largest, time grows in proportion to the bytes.

    Raises:
        KeyError: there is no table for this GPU and kind.
    """
    base = TABLE[hardware.measured_as]
    x = log(max(size_bytes, 1.0))
    curves = _curves(base.name, kind, base.nvlink_gb_s / hardware.nvlink_gb_s)
    times = [_at(each, x) for each in curves.values()]
    return exp(_between(log(max(group, 1)), [log(known) for known in curves], times))


def groups_measured(gpu: str, kind: str) -> Sequence[int]:
    """Return the group sizes in a table, ascending; empty without a table."""
    return sorted(_points().get((gpu, kind), ()))


def _at(curve: Curve, x: float) -> float:
    """Return a curve's value at x. Beyond its last size, time grows as the size does."""
    sizes, times = curve
    return _between(x, sizes, times) + max(x - sizes[-1], 0.0)


@cache
def _points() -> Mapping[tuple[str, str], Mapping[int, list[tuple[float, float]]]]:
    """Return the measured collectives: logarithms of size and time in µs, by (GPU, kind) and group
    size.
    """
    points: dict[tuple[str, str], dict[int, list[tuple[float, float]]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for gpu, kind, group, size, us in rows("collectives.tsv"):
        points[gpu, kind][int(group)].append((log(float(size)), log(float(us))))
    return points


def _measured_sizes(
    groups: Iterable[Sequence[tuple[float, float]]],
) -> list[float]:
    """Return the logarithms of the bytes at which any group was measured, ascending."""
    found: set[float] = set()
    for points in groups:
        found.update(size for size, _ in points)
    return sorted(found)


@lru_cache(maxsize=256)
def _curves(gpu: str, kind: str, slower: float) -> Mapping[int, Curve]:
    """Return a curve for each group size, ascending. All curves hold the sizes of all groups.

    A larger group never takes less time.
    """
    groups = _points()[gpu, kind]
    sizes = _measured_sizes(groups.values())
    found: dict[int, Curve] = {}
    beyond = [inf] * len(sizes)
    for group in sorted(groups, reverse=True):
        places, times = curve(groups[group])
        least = exp(times[0])  # slower links add only to the time above the latency
        own = places, [log(least + (exp(time) - least) * slower) for time in times]
        beyond = [
            min(_at(own, size), more) for size, more in zip(sizes, beyond, strict=True)
        ]
        found[group] = sizes, beyond
    return dict(sorted(found.items()))


def curve(points: Sequence[tuple[float, float]]) -> Curve:
    """Turn points into a curve that never falls: each takes the least time of all points with as
    many bytes or more.

    More bytes take no less time, and disturbances only add to a measurement. For an all-reduce
    between two GPUs, the tables of H100 and B200 have 123 µs for one kilobyte but 15 µs for 64. Up
    to 1 MiB this curve is a fifth below their median. XLA's later and quieter tables (GB200) and
    real jobs agree with the curve, not with the median (docs/evidence/estimates.md).
    """
    sizes, times = zip(*sorted(points), strict=True)
    return sizes, tuple(accumulate(reversed(times), min))[::-1]


def _between(x: float, places: Sequence[float], values: Sequence[float]) -> float:
    """Return the value at `x`, interpolated between two neighbours; outside, the value of the
    nearest.
    """
    index = bisect_right(places, x)
    if index in (0, len(places)):
        return values[max(index - 1, 0)]
    part = (x - places[index - 1]) / (places[index] - places[index - 1])
    return values[index - 1] * (1 - part) + values[index] * part


def rows(name: str) -> list[list[str]]:
    """Return the rows of a shipped table, ``collectives.tsv`` or ``matmuls.tsv``, as text."""
    text = (
        resources.files("pgle.xla")
        .joinpath(f"data/perf_tables/{name}")
        .read_text(encoding="utf-8")
    )
    return [line.split("\t") for line in text.splitlines()[1:]]


HOSTS_A, HOSTS_B = 0.9089, 0.0546
"""The law of hosts, relative to NCCL's bandwidth inside an H100 host (370.8 GB/s).

Least squares of the reduce-scatter on 4, 8 and 16 hosts of 8 H100 in NVIDIA/nccl issue 1229: 360,
345 and 320 GB/s. The latency of a ring is subtracted, because the model adds it separately. The
issue does not state the message size; 8 GiB is assumed (`benchmarks/hosts.py` repeats the fit).
"""

LAUNCH_US = 5.0
"""XLA's `kNcclKernelLaunchOverhead` (openxla/xla `gpu_performance_model_base.h`), for transfers
that are not in NCCL's table of latencies.
"""


@dataclass(frozen=True, slots=True)
class DeviceGroup:
    """The devices of one collective, and how they are spread over hosts."""

    size: int  # number of devices
    hosts: int  # number of hosts
    widest: int = 0  # devices on the host with the most; 0 if they are spread evenly

    @property
    def per_host(self) -> int:
        """Number of devices on the host with the most."""
        return self.widest or max(ceil(self.size / self.hosts), 1)


def bus_bandwidth_gb_s(group: DeviceGroup, hardware: Hardware) -> float:
    """Return the bus bandwidth of a ring: NVLink inside a host; across hosts the network cards of
    its devices, by the law of hosts.
    """
    if group.hosts <= 1:
        return hardware.nvlink_gb_s
    line = min(hardware.nvlink_gb_s, hardware.nic_gb_s * group.per_host)
    return line / max(HOSTS_A + HOSTS_B * log2(group.hosts), 1.0)


def between_hosts_us(
    kind: str, size: float, group: DeviceGroup, hardware: Hardware
) -> float:
    """Return the least µs that the network cards take for the bytes that must cross hosts.

    No algorithm can be faster.
    """
    if group.hosts <= 1:
        return 0.0
    if kind.startswith("all-to-all"):
        return (
            size
            * (group.size - group.per_host)
            / group.size
            / (hardware.nic_gb_s * 1e3)
        )
    rounds = KINDS[kind].rounds if kind in KINDS else 1
    share = (
        1.0 if kind.startswith("permute") else rounds * (group.hosts - 1) / group.hosts
    )
    return size * share / (hardware.nic_gb_s * group.per_host * 1e3)


def nccl_us(
    kind: str, size: float, group: DeviceGroup, hardware: Hardware
) -> tuple[float, float]:
    """Return the µs of a collective by NCCL's model, and the part that is latency.

    Args:
        size: bytes, as nccl-tests count them.
    """
    ring = hardware.library.ring
    if kind in ("all-to-all", "ragged-all-to-all"):
        latency = LAUNCH_US + (
            ring[2].network_us if group.hosts > 1 else ring[2].inside_us
        )
        inside = size * (group.per_host - 1) / group.size / hardware.nvlink_gb_s
        outside = size * (group.size - group.per_host) / group.size / hardware.nic_gb_s
        return latency + max(inside, outside) / 1e3, latency
    bandwidth = bus_bandwidth_gb_s(group, hardware) * 1e3
    moved = (
        size
        * KINDS[kind].rounds
        * (1 if kind == "collective-broadcast" else (group.size - 1) / group.size)
    )
    across = KINDS[kind].rounds * (group.hosts - 1)  # steps of a ring between hosts
    within = KINDS[kind].rounds * (group.size - 1) - across
    found = [
        (
            item.base_us + within * item.inside_us + across * item.network_us,
            moved / (bandwidth * item.bandwidth),
        )
        for item in ring
    ]
    if kind == "all-reduce":  # a tree over the hosts, and chains inside them
        moved = _tree_bytes(size, group, hardware)
        chain = group.per_host - 1
        levels = log2(group.hosts)
        found += [
            (
                item.base_us + 2 * (chain * item.inside_us + levels * item.network_us),
                moved / (bandwidth * item.bandwidth),
            )
            for item in hardware.library.tree
        ]
    return min((latency + transfer, latency) for latency, transfer in found)


def _tree_bytes(size: float, group: DeviceGroup, hardware: Hardware) -> float:
    """Return the bytes that a tree moves over the slowest link: up and down.

    Between two hosts, both halves of the sum cross at once, each in its own direction (NVIDIA/nccl
    `tuning.cc` also takes the bandwidth inside a host there). Their time inside the hosts then
    bounds it.
    """
    if group.hosts != 2:
        return 2 * size
    return max(
        size, 2 * size * bus_bandwidth_gb_s(group, hardware) / hardware.nvlink_gb_s
    )


# NCCL release since which calls of one group have protocols by their size
BINNED = (2, 22)
# Calls of one group get one protocol, chosen by their total bytes, if their sizes differ by less
# than this factor.
SAME_PROTOCOL = 4
_RACK = TABLE["gb200"]  # its table has groups larger than one host of other GPUs
# bytes at which a curve is computed, up to a tebibyte
_SIZES = [2.0**bits for bits in range(41)]


def group_of(
    module: Module, instruction: Instruction, hardware: Hardware
) -> DeviceGroup:
    """Return the replica group on the most hosts, the largest of equals; all devices if the
    collective names none.
    """
    devices = max(module.num_devices, 1)
    groups = instruction.replica_groups or (tuple(range(devices)),)
    return largest_group(groups, hardware) or DeviceGroup(devices, 1)


def largest_group(
    groups: Iterable[Sequence[int]], hardware: Hardware
) -> DeviceGroup | None:
    """The largest of some groups of devices; None if all are empty."""
    found = []
    for group in filter(None, groups):
        hosts = Counter(map(hardware.host, group))
        most = max(hosts.values())
        found.append(
            DeviceGroup(
                len(group), len(hosts), most if most * len(hosts) > len(group) else 0
            )
        )
    return max(
        found,
        key=lambda group: (group.hosts, group.size),
        default=None,
    )


def collective_us(
    module: Module, kind: str, instruction: Instruction, hardware: Hardware
) -> float:
    """Return the µs of one collective if all ranks arrive together.

    Args:
        kind: ``all-gather``, ``all-reduce`` …; for an async operation, the wrapped one.
    """
    size = payload_bytes(module, kind, instruction)
    if not KINDS[kind].ends_together:
        return group_us(*_pairs(module, instruction, hardware), size, hardware)
    group = group_of(module, instruction, hardware)
    if group.size <= 1:
        return KERNEL_US
    found = group_us(KINDS[kind].measured or kind, group, size, hardware)
    calls = [shape.size_bytes for shape in module.operand_shapes(instruction)]
    return found + _queued_us(kind, calls, size, group, hardware)


def _queued_us(
    kind: str, calls: Collection[int], size: int, group: DeviceGroup, hardware: Hardware
) -> float:
    """Return the extra µs of several calls in one group, compared with one call of all their bytes.

    Calls that share a channel run one after the other. A collective with many operands is one group
    of calls and one kernel. NCCL gives each channel the same number of bytes, and assigns the calls
    in order of their bytes (NVIDIA/nccl `src/enqueue.cc`, 2.21 and later). So small calls all go to
    one channel, and each adds its latency there. Up to 2.21 the whole group has one protocol, and
    small calls that overlap large ones wait longest. 2.22 and later choose a protocol for calls of
    similar size (`SAME_PROTOCOL`).

    Args:
        calls: bytes of each operand.
    """
    if kind in ("all-to-all", "ragged-all-to-all") or len(calls) < 2 or not sum(calls):
        return 0.0
    ordered = sorted(calls)
    channels = hardware.library.channels
    share = sum(calls) / channels
    queued, longest = [0.0] * channels, [0.0] * channels
    begin = 0
    for each, latency in zip(
        ordered, _latencies_us(kind, ordered, size, group, hardware), strict=True
    ):
        end = begin + each
        for at in range(
            int(begin / share), min(int((end - 1) / share), channels - 1) + 1
        ):
            queued[at] += latency
            longest[at] = max(longest[at], latency)
        begin = end
    return max(total - once for total, once in zip(queued, longest, strict=True))


def _latencies_us(
    kind: str, ordered: Sequence[int], size: int, group: DeviceGroup, hardware: Hardware
) -> list[float]:
    """Return the latency of each call of a group, in order of bytes. NCCL chooses one protocol for
    calls of similar size.
    """
    scale = size / sum(ordered)
    latency: list[float] = []
    while len(latency) < len(ordered):
        rest = ordered[len(latency) :]
        alike = [
            item
            for item in rest
            if hardware.nccl < BINNED or item < SAME_PROTOCOL * max(rest[0], 1)
        ]
        latency += [nccl_us(kind, sum(alike) * scale, group, hardware)[1]] * len(alike)
    return latency


def group_us(kind: str, group: DeviceGroup, size: float, hardware: Hardware) -> float:
    """Return the µs of a collective in one group, from the tables if they hold it.

    Args:
        kind: the name in a measured table if there is one (``all-gather``, ``permute-ring``), else
            the collective's kind.
        size: bytes, as nccl-tests count them.
    """
    is_covered = group.per_host <= _widest(kind, hardware)
    known = [
        each
        for each in weaker(hardware)
        if group.per_host <= _widest(kind, each) or not is_covered
    ]
    least = min(_by_table(kind, group, size, each) for each in (*known, hardware))
    if is_covered:
        return least
    rack = replace(
        _RACK, nic_gb_s=hardware.nic_gb_s, devices_per_host=hardware.devices_per_host
    )
    return max(least, _by_table(kind, group, size, rack))


def _widest(kind: str, hardware: Hardware) -> float:
    """Return the largest number of devices in one NVLink domain of the nearest GPU's table."""
    return max(groups_measured(hardware.measured_as, kind), default=inf)


def _by_table(kind: str, group: DeviceGroup, size: float, hardware: Hardware) -> float:
    """Return the µs from the table of the nearest GPU alone, or from the model if there is none."""
    measured = groups_measured(hardware.measured_as, kind)
    if not measured:
        return _model_us(kind, size, group, hardware)
    if group.hosts == 1 and group.size <= measured[-1]:
        return inside_us(kind, group.size, size, hardware)
    near = min(max(group.per_host, measured[0]), measured[-1])
    return exp(_at(_curve(kind, group, near, hardware), log(max(size, 1.0))))


@lru_cache(maxsize=4096)
def _curve(kind: str, group: DeviceGroup, near: int, hardware: Hardware) -> Curve:
    """Return times over sizes: times of `near` devices in one domain, plus what hosts add by NCCL's
    model.

    The smaller of two values counts. The first adds the difference of the model's times, so that
    switches that reduce inside a host keep their gain. The second adds the difference of latencies,
    and is at least the model's time. It avoids counting twice if a table is slower inside a host
    than NCCL across hosts. The curve never falls.
    """
    points = _points()[hardware.measured_as, kind].values()
    inside = DeviceGroup(near, 1)
    sizes = sorted({*_SIZES, *map(exp, _measured_sizes(points))})
    latency_us = max(
        _model_us(kind, 0, group, hardware) - _model_us(kind, 0, inside, hardware), 0.0
    )

    def time_us(size: float) -> float:
        """Return the time of a collective of this size in bytes over several hosts."""
        whole = _model_us(kind, size, group, hardware)
        measured = inside_us(kind, near, size, hardware)
        added = measured + max(whole - _model_us(kind, size, inside, hardware), 0.0)
        bounded = max(measured + latency_us, whole)
        return max(min(added, bounded), between_hosts_us(kind, size, group, hardware))

    times = accumulate(map(time_us, sizes), max)
    return [log(size) for size in sizes], [log(time) for time in times]


def _model_us(kind: str, size: float, group: DeviceGroup, hardware: Hardware) -> float:
    """Return the µs by NCCL's model, without a table. In a permute each device uses one link."""
    if not kind.startswith("permute"):
        return nccl_us(kind, size, group, hardware)[0]
    ring = hardware.library.ring
    link, latency = (
        (hardware.nic_gb_s, ring[0].network_us)
        if group.hosts > 1
        else (hardware.nvlink_gb_s, ring[0].inside_us)
    )
    return LAUNCH_US + latency + size / (link * 1e3)


def payload_bytes(module: Module, kind: str, instruction: Instruction) -> int:
    """Return the bytes that one device gathers, scatters or reduces: the size S in nccl-tests'
    formulas.
    """
    operands = module.operand_shapes(instruction)
    given = sum(shape.size_bytes for shape in operands if shape.dtype != "token")
    if KINDS[kind].payload == "first" and operands:
        # the second operand is the output, and the others tell where rows go
        return operands[0].size_bytes
    if KINDS[kind].payload == "result":
        result = instruction.shape
        # all-gather-start returns (operands, results)
        if instruction.opcode.endswith("-start") and len(result.elements) == 2:
            result = result.elements[1]
        return max(result.size_bytes, given)
    return given or instruction.shape.size_bytes


def _pairs(
    module: Module, instruction: Instruction, hardware: Hardware
) -> tuple[str, DeviceGroup]:
    """Return the table for a permute (pairs that swap, or a ring), and a group that tells whether a
    pair crosses hosts.

    One direction is as fast as a ring.
    """
    pairs = instruction.source_target_pairs
    crosses = (
        any(hardware.host(source) != hardware.host(target) for source, target in pairs)
        if pairs
        else module.num_devices > hardware.devices_per_host
    )
    kind = (
        "permute-swap"
        if pairs and all((b, a) in pairs for a, b in pairs)
        else "permute-ring"
    )
    return kind, DeviceGroup(2, 1 + crosses)
