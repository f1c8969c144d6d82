"""What the GPUs can do at best, for estimates: one table, each figure with its public source.

Peaks are dense tensor-core figures of NVIDIA's data sheets (A100: nvidia-a100-datasheet; H100: h100-datasheet; H200:
h200-datasheet; B200: HGX B200, an eighth of the board's; GB200 and GB300: NVL72, a 72nd of the rack's). Memory
bandwidth, cores and clock come from XLA's descriptions (`data/targets`). FP32 without tensor cores is under ``f32``;
XLA uses TF32 tensor cores for f32 dots only where the precision allows it, so dots of f32 take ``tf32``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from pgle.errors import UserError
from pgle.xla.targets import ALIASES, Target, shipped_name

MATMUL_EFFICIENCY = 0.8
"""Large bf16 matmuls reach 80.3 % of the data-sheet peak on H100 (stas00/ml-engineering at b9e29720eebd,
`compute/accelerator/README.md`, "Maximum Achievable Matmul FLOPS"). An A100 reaches more."""

A100_EFFICIENCY = 0.869  # the same table: A100 SXM

ATTENTION_EFFICIENCY = 0.6
"""Fused attention reaches 50 to 73 % of the A100's peak (FlashAttention-2, arXiv 2307.08691) and up to 75 % of the
H100's (FlashAttention-3, arXiv 2407.08608)."""

ATTENTION_RANGE = (0.5, 0.75)  # what these two papers measured, over sizes

MEMORY_EFFICIENCY = 0.9
"""BabelStream's triad reaches about 0.9 of the data-sheet bandwidth on A100 and H100 (UoB-HPC/BabelStream results)."""

KERNEL_US = 1.8
"""Fixed part of each kernel: XLA's `kKernelLaunchOverhead` of 1 µs (openxla/xla `gpu_performance_model_base.h`) and two
trips to device memory, one to read and one to write, of about 0.4 µs each (466 and 479 cycles on A100 and H100: Luo et
al., "Benchmarking and Dissecting the Nvidia Hopper GPU Architecture", 2024)."""

HOST_LINK_EFFICIENCY = 0.8
"""Pinned copies reach about 0.8 of the line rate: 25 GB/s of 32 on PCIe 4, 50 of 64 on PCIe 5 (`bandwidthTest` of
NVIDIA/cuda-samples), 346 of 450 on the NVLink-C2C of a GH200 (NVIDIA/nvbandwidth issue 23)."""


@dataclass(frozen=True, slots=True)
class Hardware:
    """One GPU and its links."""

    name: str  # of the target
    tflops: Mapping[str, float] = field(hash=False)  # peak by dtype, 10^12 operations per second
    memory_gb_s: float  # device memory bandwidth, 10^9 bytes per second
    cores: int  # streaming multiprocessors
    clock_ghz: float  # of the cores, boosted
    # bus bandwidth of NCCL's rings inside a host: links times the bandwidth per link that NCCL assumes
    # (`SM80_NVLINK_BW` 20, capped at 235 for all; `SM90_NVLINK_BW` 20.6; `SM100_NVLINK_BW` 40.1; NVIDIA/nccl
    # `src/graph/topo.h` and `tuning.cc`)
    nvlink_gb_s: float
    nic_gb_s: float  # network bandwidth per GPU and direction: DGX A100 200 Gbit/s, DGX H100, H200 and B200 400 Gbit/s
    # line rate of the link to the host per direction: PCIe 4 x16 32, PCIe 5 x16 64; NVLink-C2C 225, since the two GPUs
    # of a GB200 or GB300 share the 900 GB/s of both directions (NVIDIA, GB200 NVL72)
    host_gb_s: float
    # the GPU of `TABLE` whose measured tables (`costs.estimate.perf_tables`) are nearest: itself where there are some
    measured_as: str
    devices_per_host: int = 8  # GPUs that share NVLink: of one host, in a rack of all its hosts
    is_rack: bool = False  # whether NVLink joins hosts
    nccl: tuple[int, int] = (2, 22)  # release of NCCL whose rules are taken
    matmul_efficiency: float = MATMUL_EFFICIENCY  # part of the peak that large matrix products reach

    def peak_tflops(self, dtype: str) -> float:
        """Peak of dots of that type."""
        return self.peak_of(dtype_family(dtype))

    def peak_of(self, family: str) -> float:
        """Peak of dots of a `dtype_family`; a type that the GPU lacks is converted to the next wider one."""
        while family not in self.tflops:
            family = _WIDER.get(family, "f32")
        return self.tflops[family]

    def lacks(self, dtype: str) -> bool:
        """Whether its tensor cores lack a type, so that XLA converts operands of it."""
        return dtype_family(dtype) in _WIDER and dtype_family(dtype) not in self.tflops

    def host(self, device: int) -> int:
        """The host of a device id; ids are numbered host by host."""
        return device // self.devices_per_host


_FAMILY = {
    "bf": "f16", "f1": "f16", "f8": "f8", "f4": "f4", "s8": "s8", "u8": "s8", "f6": "f64", "f3": "tf32", "tf": "tf32",
}  # fmt: skip


_WIDER = {"f4": "f8", "f8": "f16"}


def dtype_family(dtype: str) -> str:
    """The key of `Hardware.tflops` for dots of a type; unknown types count as ``f32``."""
    return _FAMILY.get(dtype[:2], "f32")


_A100_TFLOPS = {"f16": 312.0, "tf32": 156.0, "f32": 19.5, "f64": 19.5, "s8": 624.0}
_H100_TFLOPS = {"f16": 989.0, "tf32": 494.0, "f32": 67.0, "f64": 67.0, "s8": 1979.0, "f8": 1979.0}
_B200_TFLOPS = {"f16": 2250.0, "tf32": 1125.0, "f32": 75.0, "f64": 37.0, "s8": 4500.0, "f8": 4500.0, "f4": 9000.0}
_GB200_TFLOPS = {"f16": 2500.0, "tf32": 1250.0, "f32": 80.0, "f64": 40.0, "s8": 5000.0, "f8": 5000.0, "f4": 10000.0}
_GB300_TFLOPS = {"f16": 2500.0, "tf32": 1250.0, "f32": 80.0, "f64": 1.3, "s8": 165.0, "f8": 5000.0, "f4": 15000.0}

_GPUS = (
    Hardware("a100-40gb", _A100_TFLOPS, 1555, 108, 1.41, 235.0, 25, 32, "h100-sxm", matmul_efficiency=A100_EFFICIENCY),
    Hardware("a100-80gb", _A100_TFLOPS, 2039, 108, 1.41, 235.0, 25, 32, "h100-sxm", matmul_efficiency=A100_EFFICIENCY),
    Hardware("h100-sxm", _H100_TFLOPS, 3352, 132, 1.98, 18 * 20.6, 50, 64, "h100-sxm"),
    Hardware("h200-sxm", _H100_TFLOPS, 4800, 132, 1.98, 18 * 20.6, 50, 64, "h100-sxm"),
    Hardware("b200", _B200_TFLOPS, 7672, 148, 1.965, 18 * 40.1, 50, 64, "b200"),
    Hardware("gb200", _GB200_TFLOPS, 7928, 152, 2.062, 18 * 40.1, 50, 225, "gb200", 72, is_rack=True),
    Hardware("gb300", _GB300_TFLOPS, 7928, 152, 2.07, 18 * 40.1, 100, 225, "gb300", 72, is_rack=True),
)
TABLE: Mapping[str, Hardware] = {hardware.name: hardware for hardware in _GPUS}
"""By the names of `pgle.xla.targets`, and the NVL72 racks."""

_BY_CAPABILITY = (((8, 0), "a100-40gb"), ((9, 0), "h100-sxm"), ((10, 0), "b200"), ((10, 3), "gb300"))
"""The GPU used for a compute capability and for higher ones, up to the next row."""


def find_hardware(
    target: str | Target,
    *,
    topology: str | None = None,
    devices_per_host: int | None = None,
    network_gb_s: float | None = None,
) -> Hardware:
    """The hardware of a target, of which one answer uses one value.

    Args:
        target: a name of `TABLE` or an alias of it, or a described GPU: memory bandwidth, cores and clock are its own.
            The rest comes from the same GPU in the table, else from the table's GPU for its compute capability.
        topology: ``SxHxD``: slices, hosts of each, devices of each host. Devices of one host share NVLink, in a rack
            the devices of one slice, but never more than the GPU has in one NVLink domain.
        devices_per_host: GPUs that share NVLink; goes before `topology`.
        network_gb_s: network bandwidth per GPU and direction, 10^9 bytes per second; None: the table's.

    Raises:
        UserError: nothing is known of it.
    """
    if isinstance(target, Target):
        found = TABLE.get(target.name) or TABLE.get(shipped_name(target)) or by_capability(target.compute_capability)
        found = replace(found, name=target.name, memory_gb_s=target.memory_bandwidth / 1e9)
        found = replace(found, cores=target.core_count, clock_ghz=target.clock_ghz)
    else:
        name = target.lower()
        named = TABLE.get(ALIASES.get(name, name))
        if named is None:
            raise UserError(f"no target called {target!r}", remedy=_KNOWN)
        found = named
    return replace(
        found,
        devices_per_host=devices_per_host or _nvlink_domain(found, topology),
        nic_gb_s=network_gb_s or found.nic_gb_s,
    )


def _nvlink_domain(hardware: Hardware, topology: str | None) -> int:
    """Devices that share NVLink in a topology."""
    most = hardware.devices_per_host
    match = re.fullmatch(r"[1-9]\d{0,8}x([1-9]\d{0,8})x([1-9]\d{0,8})", topology or "")
    if match is None or int(match[2]) > most:
        return most
    hosts, devices = int(match[1]), int(match[2])
    return devices * min(hosts, most // devices) if hardware.is_rack else devices


def weaker(hardware: Hardware) -> list[Hardware]:
    """The GPUs of `TABLE` before that which XLA measured in its place, on the same network and with no faster links."""
    order = list(TABLE)
    return [
        replace(each, nic_gb_s=min(each.nic_gb_s, hardware.nic_gb_s), devices_per_host=hardware.devices_per_host)
        for each in map(TABLE.__getitem__, order[: order.index(hardware.measured_as)])
        if each.nvlink_gb_s <= hardware.nvlink_gb_s
    ]


def by_capability(capability: tuple[int, int] | None) -> Hardware:
    """The GPU of `TABLE` for a compute capability; an H100 if none is known."""
    at_most = [name for lowest, name in _BY_CAPABILITY if capability is not None and lowest <= capability]
    unknown = "h100-sxm" if capability is None else "a100-40gb"
    return TABLE[at_most[-1] if at_most else unknown]


_KNOWN = f"choose {', '.join(TABLE)}"
