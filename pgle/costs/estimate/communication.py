"""How long a collective takes: XLA's own measurements, and NCCL's model for what they do not cover.

Measured: the tables in `pgle/xla/data/perf_tables`, one NVLink domain of H100, B200, GB200 and
GB300 (their README names the sources), read between neighbouring points on logarithmic scales.
Another GPU or group takes the nearest measured group, and what NCCL's model says that the
difference costs. Two rules hold for all of them: more bytes never take less time, and no GPU takes
longer than a weaker one that XLA measured on the same network. Not modelled here: contention with
compute.

A collective of NCCL takes a latency and its bytes over a bandwidth; NCCL takes the algorithm and
protocol with the least sum. Small messages so get LL or LL128, large ones Simple, whose steps
between hosts take five times as long. Latencies and shares of bandwidth are each vendor's
(`pgle.xla.vendors`). Bus bandwidths are as nccl-tests defines them
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

# logarithms of bytes, ascending, and of microseconds, never falling
Curve = tuple[Sequence[float], Sequence[float]]


def inside_us(kind: str, group: int, size_bytes: float, hardware: Hardware) -> float:
    """What a collective takes inside one NVLink domain, by the table of the nearest GPU; KeyError
    without one.

    Slower links make the bytes take that much longer, without the latency.

    Args:
        group: devices; between the table's counts on a logarithmic scale, beyond them the nearest.
        size_bytes: as nccl-tests count them.

    Returns:
        Microseconds; below the smallest size of the table the smallest size's time, above the
        largest in proportion to the bytes.
    """
    base = TABLE[hardware.measured_as]
    x = log(max(size_bytes, 1.0))
    curves = _curves(base.name, kind, base.nvlink_gb_s / hardware.nvlink_gb_s)
    times = [_at(each, x) for each in curves.values()]
    return exp(_between(log(max(group, 1)), [log(known) for known in curves], times))


def groups_measured(gpu: str, kind: str) -> Sequence[int]:
    """The group sizes of a table, ascending."""
    return sorted(_points().get((gpu, kind), ()))


def _at(curve: Curve, x: float) -> float:
    sizes, times = curve
    return _between(x, sizes, times) + max(x - sizes[-1], 0.0)


@cache
def _points() -> Mapping[tuple[str, str], Mapping[int, list[tuple[float, float]]]]:
    points: dict[tuple[str, str], dict[int, list[tuple[float, float]]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for gpu, kind, group, size, us in rows("collectives.tsv"):
        points[gpu, kind][int(group)].append((log(float(size)), log(float(us))))
    return points


def _measured_sizes(
    groups: Iterable[Sequence[tuple[float, float]]],
) -> list[float]:
    """Logarithms of the bytes that any group was measured at, ascending."""
    found: set[float] = set()
    for points in groups:
        found.update(size for size, _ in points)
    return sorted(found)


@lru_cache(maxsize=256)
def _curves(gpu: str, kind: str, slower: float) -> Mapping[int, Curve]:
    """Curves by group, ascending, of which a larger group never takes less; all have the sizes of
    all.
    """
    groups = _points()[gpu, kind]
    sizes = _measured_sizes(groups.values())
    found: dict[int, Curve] = {}
    beyond = [inf] * len(sizes)
    for group in sorted(groups, reverse=True):
        places, times = curve(groups[group])
        least = exp(times[0])  # links that are slower only slow the levels above
        own = places, [log(least + (exp(time) - least) * slower) for time in times]
        beyond = [
            min(_at(own, size), more) for size, more in zip(sizes, beyond, strict=True)
        ]
        found[group] = sizes, beyond
    return dict(sorted(found.items()))


def curve(points: Sequence[tuple[float, float]]) -> Curve:
    """Points as a curve that never falls: each takes the least time of all that move as many bytes
    or more.

    More bytes take no less time, and what disturbs a measurement only adds to it. The tables of
    H100 and B200 have 123 µs for an all-reduce of a kilobyte between two GPUs, 15 µs for one of 64;
    up to 1 MiB this curve is a fifth below their median. XLA's later and quieter tables (GB200) and
    real jobs agree with the curve, not with the median (docs/evidence/estimates.md).
    """
    sizes, times = zip(*sorted(points), strict=True)
    return sizes, tuple(accumulate(reversed(times), min))[::-1]


def _between(x: float, places: Sequence[float], values: Sequence[float]) -> float:
    """The value at `x` between two neighbours; outside, the value of the nearest."""
    index = bisect_right(places, x)
    if index in (0, len(places)):
        return values[max(index - 1, 0)]
    part = (x - places[index - 1]) / (places[index] - places[index - 1])
    return values[index - 1] * (1 - part) + values[index] * part


def rows(name: str) -> list[list[str]]:
    """The rows of a shipped table, ``collectives.tsv`` or ``matmuls.tsv``, as text."""
    text = (
        resources.files("pgle.xla")
        .joinpath(f"data/perf_tables/{name}")
        .read_text(encoding="utf-8")
    )
    return [line.split("\t") for line in text.splitlines()[1:]]


HOSTS_A, HOSTS_B = 0.9089, 0.0546
"""The law of hosts, relative to NCCL's bandwidth inside an H100 host (370.8 GB/s): least squares of
the reduce-scatter on 4, 8 and 16 hosts of 8 H100 in NVIDIA/nccl issue 1229 (360, 345 and 320 GB/s),
less the latency of a ring, which the model counts by itself. The size of its messages is not
published; 8 GiB is taken (`benchmarks/hosts.py` repeats it).
"""

LAUNCH_US = 5.0
"""XLA's `kNcclKernelLaunchOverhead` (openxla/xla `gpu_performance_model_base.h`), for transfers
that NCCL's table of latencies does not cover.
"""


@dataclass(frozen=True, slots=True)
class DeviceGroup:
    """The devices that talk to each other."""

    size: int  # devices
    hosts: int  # hosts they are on
    widest: int = 0  # devices on the host with most of them; 0: they are spread evenly

    @property
    def per_host(self) -> int:
        """Devices of the group on one host, the one with most of them."""
        return self.widest or max(ceil(self.size / self.hosts), 1)


def bus_bandwidth_gb_s(group: DeviceGroup, hardware: Hardware) -> float:
    """Bus bandwidth of a ring: NVLink inside a host; across hosts the network cards of its devices,
    by the law.
    """
    if group.hosts <= 1:
        return hardware.nvlink_gb_s
    line = min(hardware.nvlink_gb_s, hardware.nic_gb_s * group.per_host)
    return line / max(HOSTS_A + HOSTS_B * log2(group.hosts), 1.0)


def between_hosts_us(
    kind: str, size: float, group: DeviceGroup, hardware: Hardware
) -> float:
    """What the network cards take at least for what must cross hosts, however the algorithm orders
    it.
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
    """Microseconds by NCCL's model, and how much of them is latency.

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
    """Bytes that a tree moves over the slowest link: up and down.

    Between two hosts both halves of the sum cross at once, each in its own direction (NVIDIA/nccl
    `tuning.cc` takes the bandwidth inside a host there, too): what they then take inside the hosts
    bounds it.
    """
    if group.hosts != 2:
        return 2 * size
    return max(
        size, 2 * size * bus_bandwidth_gb_s(group, hardware) / hardware.nvlink_gb_s
    )


BINNED = (
    2,
    22,
)  # release of NCCL from which calls of one group have protocols by their size
# calls of one group whose bytes differ by less than this factor get one protocol, by all their
# bytes
SAME_PROTOCOL = 4
_RACK = TABLE["gb200"]  # whose table has groups of more than one host of others
_SIZES = [
    2.0**bits for bits in range(41)
]  # bytes at which a curve is worked out: up to a tebibyte


def group_of(
    module: Module, instruction: Instruction, hardware: Hardware
) -> DeviceGroup:
    """The largest replica group of a collective; all devices where it names none."""
    devices = max(module.num_devices, 1)
    groups = instruction.replica_groups or (tuple(range(devices)),)
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
        default=DeviceGroup(devices, 1),
    )


def collective_us(
    module: Module, kind: str, instruction: Instruction, hardware: Hardware
) -> float:
    """Microseconds of one collective with all ranks arriving together.

    Args:
        kind: ``all-gather``, ``all-reduce`` …, of an async op the wrapped one.
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
    """What the calls of one group add to one call with all their bytes: calls that share a channel
    run one by one.

    A collective of many operands is one group of calls and one kernel. NCCL gives each channel the
    same number of bytes, call after call in order of their bytes (NVIDIA/nccl `src/enqueue.cc`,
    2.21 and later), so that small calls all go to one channel, and each adds its latency there.
    To 2.21 the whole group has one protocol, and small calls that overlap large ones wait longest;
    2.22 and later choose one for calls of about a size (`SAME_PROTOCOL`).

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
    """Of each call of a group, in order of bytes, the latency of the protocol that NCCL chooses for
    those like it.
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
    """Microseconds of a collective of a group, by the tables where they hold it.

    Args:
        kind: with a measured table its name there (``all-gather``, ``permute-ring``), else the
            collective's kind.
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
    """The most devices of one NVLink domain in the table of the nearest GPU."""
    return max(groups_measured(hardware.measured_as, kind), default=inf)


def _by_table(kind: str, group: DeviceGroup, size: float, hardware: Hardware) -> float:
    """By the table of the nearest GPU alone."""
    measured = groups_measured(hardware.measured_as, kind)
    if not measured:
        return _model_us(kind, size, group, hardware)
    if group.hosts == 1 and group.size <= measured[-1]:
        return inside_us(kind, group.size, size, hardware)
    near = min(max(group.per_host, measured[0]), measured[-1])
    return exp(_at(_curve(kind, group, near, hardware), log(max(size, 1.0))))


@lru_cache(maxsize=4096)
def _curve(kind: str, group: DeviceGroup, near: int, hardware: Hardware) -> Curve:
    """Times over sizes: times of `near` devices in one domain, and what NCCL's model says that
    hosts add.

    Two readings of that; the lesser counts. Either the difference of the model's times is added, so
    that switches which reduce inside a host keep their gain. Or its latency is added, and the whole
    takes no less than the model says, so that a table slower inside a host than NCCL across hosts
    does not count twice. The curve never falls.
    """
    points = _points()[hardware.measured_as, kind].values()
    inside = DeviceGroup(near, 1)
    sizes = sorted({*_SIZES, *map(exp, _measured_sizes(points))})
    latency_us = max(
        _model_us(kind, 0, group, hardware) - _model_us(kind, 0, inside, hardware), 0.0
    )

    def time_us(size: float) -> float:
        whole = _model_us(kind, size, group, hardware)
        measured = inside_us(kind, near, size, hardware)
        added = measured + max(whole - _model_us(kind, size, inside, hardware), 0.0)
        bounded = max(measured + latency_us, whole)
        return max(min(added, bounded), between_hosts_us(kind, size, group, hardware))

    times = accumulate(map(time_us, sizes), max)
    return [log(size) for size in sizes], [log(time) for time in times]


def _model_us(kind: str, size: float, group: DeviceGroup, hardware: Hardware) -> float:
    """Without a table: latency and bytes over bandwidth, by NCCL's model; a permute has one link
    per device.
    """
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
    """The S of nccl-tests' formulas: bytes gathered, to be scattered, or reduced, on one device."""
    operands = module.operand_shapes(instruction)
    given = sum(shape.size_bytes for shape in operands if shape.dtype != "token")
    if KINDS[kind].payload == "first" and operands:
        # the second is the output, the others say where rows go
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
    """Which table of permutes, pairs that swap or a ring, and whether a pair crosses hosts.

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
