"""Estimates in order: more work never takes less, a stronger GPU never takes more, nothing is
faster than its peak.

More than ten thousand collectives and as many matrix products: kinds, sizes, groups, GPUs, devices
per host.
"""

from collections.abc import Hashable, Iterator
from dataclasses import replace
from itertools import pairwise, product

import pytest

from pgle.costs.estimate.communication import DeviceGroup, group_us
from pgle.costs.estimate.products import Matmul, matmul_us
from pgle.xla.targets import TABLE, find_hardware

# Each has at least as much of everything as the one before; NVLink per direction in GB/s (data
# sheets).
NVLINK = {
    "a100-40gb": 300,
    "a100-80gb": 300,
    "h100-sxm": 450,
    "h200-sxm": 450,
    "b200": 900,
    "gb200": 900,
    "gb300": 900,
}
HOSTS = (8, 72)  # devices
CONTIGUOUS = (2, 3, 4, 8, 9, 12, 16, 64, 72, 144, 576, 1024)
STRIDED = (2, 4, 16, 128)  # one device of each host
BYTES = tuple(factor << bits for bits in range(0, 36, 5) for factor in (1, 3))
TABLE_KINDS = (
    "all-reduce",
    "all-gather",
    "reduce-scatter",
    "all-to-all",
    "collective-broadcast",
)
SLACK = 1 + 1e-9  # of rounding


def contiguous(size: int, per_host: int) -> DeviceGroup:
    uneven = size > per_host and size % per_host
    return DeviceGroup(size, -(-size // per_host), per_host if uneven else 0)


def ordered(
    times: dict[tuple[Hashable, ...], float],
    axis: int,
    order: tuple[Hashable, ...],
    sign: int,
) -> list[str]:
    """The points whose time changes the wrong way along an axis; `sign` is 1 where it must not
    fall.
    """
    after = dict(pairwise(order))
    wrong = []
    for key, us in times.items():
        if key[axis] in after:
            other = times[*key[:axis], after[key[axis]], *key[axis + 1 :]]
            first, then = (us, other) if sign > 0 else (other, us)
            if then * SLACK < first:
                wrong.append(f"{key} → {after[key[axis]]}: {us:.6g}, {other:.6g} µs")
    return wrong


def collectives(
    kind: str, per_host: int, groups: dict[int, DeviceGroup]
) -> dict[tuple[Hashable, ...], float]:
    gpus = {name: replace(TABLE[name], devices_per_host=per_host) for name in NVLINK}
    return {
        (name, size, bytes_): group_us(kind, groups[size], bytes_, gpus[name])
        for name, size, bytes_ in product(gpus, groups, BYTES)
    }


def series() -> Iterator[tuple[str, int, dict[int, DeviceGroup]]]:
    for per_host in HOSTS:
        for kind in TABLE_KINDS:
            yield (
                kind,
                per_host,
                {size: contiguous(size, per_host) for size in CONTIGUOUS},
            )
            yield kind, per_host, {size: DeviceGroup(size, size) for size in STRIDED}
        for kind in ("permute-ring", "permute-swap"):
            yield kind, per_host, {1: DeviceGroup(2, 1), 2: DeviceGroup(2, 2)}


def least_us(kind: str, group: DeviceGroup, bytes_: int, name: str) -> float:
    """By the physical links: what each device must send at least, and what must leave a host.

    A switch can add up, so that an all-reduce moves its bytes once.
    """
    nvlink, nic = NVLINK[name] * 1e3, TABLE[name].nic_gb_s * 1e3
    if kind.startswith("permute"):
        return bytes_ / (nic if group.hosts > 1 else nvlink)
    if kind == "all-to-all":
        outside = bytes_ * (group.size - group.per_host) / group.size / nic
        return max(outside, bytes_ * (group.per_host - 1) / group.size / nvlink)
    rounds = 2 if kind == "all-reduce" else 1
    outside = rounds * bytes_ * (group.hosts - 1) / group.hosts / (nic * group.per_host)
    return max(outside, bytes_ * (group.size - 1) / group.size / nvlink)


def test_more_than_ten_thousand_collectives_are_in_order() -> None:
    wrong, points = [], 0
    for kind, per_host, groups in series():
        times = collectives(kind, per_host, groups)
        points += len(times)
        found = (
            ordered(times, 0, tuple(NVLINK), -1)
            + ordered(times, 1, tuple(groups), 1)
            + ordered(times, 2, BYTES, 1)
        )
        wrong += [f"{kind}, {per_host} per host: {each}" for each in found]
        for (name, size, bytes_), us in times.items():
            if us * SLACK < least_us(kind, groups[size], bytes_, name):
                wrong.append(
                    f"{kind}: {name}, {groups[size]}, {bytes_} bytes: faster than the links"
                )
    assert points > 10_000
    assert wrong == []


SIDES, BATCHES = (1, 100, 256, 1536, 5000, 28672), (1, 3, 96)


@pytest.mark.parametrize("dtype", ["bf16", "f32", "f8e4m3fn"])
def test_thousands_of_products_are_in_order(dtype: str) -> None:
    gpus = ("a100-40gb", "a100-80gb", "h100-sxm", "h200-sxm", "b200", "gb200")
    keys = list(product(gpus, BATCHES, SIDES, SIDES, SIDES))
    items = {key: Matmul(*key[1:], dtype) for key in keys}
    times: dict[tuple[Hashable, ...], float] = {
        key: matmul_us(items[key], TABLE[key[0]]) for key in keys
    }
    wrong = ordered(times, 0, gpus, -1) + ordered(times, 1, BATCHES, 1)
    for axis in (2, 3, 4):
        wrong += ordered(times, axis, SIDES, 1)
    assert wrong == []
    for key, item in items.items():
        gpu, (b, m, n, k) = TABLE[key[0]], key[1:]
        moved = b * (m * k + k * n + m * n) * item.item_bytes / (gpu.memory_gb_s * 1e3)
        assert times[key] * SLACK >= max(
            item.operations / (gpu.peak_tflops(dtype) * 1e6), moved
        )


def test_a_slower_network_never_takes_less() -> None:
    def us(gb_s: float) -> float:
        return group_us(
            "all-reduce",
            DeviceGroup(64, 8),
            1 << 28,
            find_hardware("h100", network_gb_s=gb_s),
        )

    times = [us(gb_s) for gb_s in (1.0, 12.5, 25.0, 50.0, 100.0)]
    assert times == sorted(times, reverse=True)
    assert times[1] > 3 * times[3]
