"""Peak figures of GPUs, and the links and library of their collectives.

FP32 without matrix units is stored under ``f32``. Products of f32 use ``tf32``, which XLA asks of a
library if the precision allows it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

MATMUL_EFFICIENCY = 0.8
"""Large bf16 matmuls reach 80.3 % of the data-sheet peak on H100 (stas00/ml-engineering at
b9e29720eebd, `compute/accelerator/README.md`, "Maximum Achievable Matmul FLOPS"). An A100 reaches
more.
"""

A100_EFFICIENCY = 0.869  # A100 SXM in that table

MEMORY_EFFICIENCY = 0.9
"""BabelStream's triad reaches about 0.9 of the data-sheet bandwidth on A100 and H100
(UoB-HPC/BabelStream results).
"""

KERNEL_US = 1.8
"""Fixed part of each kernel: XLA's `kKernelLaunchOverhead` of 1 µs (openxla/xla
`gpu_performance_model_base.h`) and two trips to device memory, one to read and one to write, of
about 0.4 µs each (466 and 479 cycles on A100 and H100: Luo et al., "Benchmarking and Dissecting the
Nvidia Hopper GPU Architecture", 2024).
"""

HOST_LINK_EFFICIENCY = 0.8
"""Pinned copies reach about 0.8 of the line rate: 25 GB/s of 32 on PCIe 4, 50 of 64 on PCIe 5
(`bandwidthTest` of NVIDIA/cuda-samples), 346 of 450 on the NVLink-C2C of a GH200
(NVIDIA/nvbandwidth issue 23).
"""


@dataclass(frozen=True, slots=True)
class Protocol:
    """One protocol of a collective library with one algorithm.

    It holds latencies in microseconds and the share of the bus bandwidth that it reaches.
    """

    base_us: float
    inside_us: float  # latency of a step inside a host
    network_us: float  # latency of a step between hosts
    bandwidth: float


@dataclass(frozen=True, slots=True)
class CollectiveLibrary:
    """The library that runs collectives, with the figures of its own tuner.

    The protocols of an algorithm are in this order: LL, LL128, Simple.
    """

    name: str  # ``NCCL``
    kernels: tuple[str, ...]  # first letters of its kernel names
    fabric: str  # name of the links inside a host, ``NVLink``
    ring: tuple[Protocol, ...]
    tree: tuple[Protocol, ...]
    channels: int  # channels that share the bytes of a group of calls
    # largest ratio, over the vendor's GPUs, of data-sheet bandwidth to the bandwidth that the tuner
    # assumes, per direction
    over_assumed: float
    # lower limit of the real bandwidth between hosts, as a share of the estimate; 1: measured
    hosts_share: float = 1.0


_NCCL_RING = (
    Protocol(6.6, 0.6, 2.7, 0.25),
    Protocol(14.0, 1.9, 4.0, 0.92),
    Protocol(8.4, 3.4, 14.0, 1.0),
)
_NCCL_TREE = (
    Protocol(6.8, 0.6, 5.0, 0.9 / 3.8),
    Protocol(14.0, 1.25, 8.5, 0.9 * 0.92),
    Protocol(8.4, 4.0, 14.0, 0.9),
)
NCCL = CollectiveLibrary(
    name="NCCL",
    kernels=("ncclDevKernel",),
    fabric="NVLink",
    ring=_NCCL_RING,
    tree=_NCCL_TREE,
    channels=24,
    over_assumed=300 / 235,
)
"""Latencies and shares of bandwidth: NVIDIA/nccl `src/graph/tuning.cc`, 2.18 and later. Channels:
those between NVSwitches (24 on A100). `over_assumed`: A100 300 GB/s over 235 (H100 450 over 371,
B200 900 over 722).
"""


@dataclass(frozen=True, slots=True)
class Hardware:
    """One GPU and its links."""

    name: str  # name of the target
    # peak by dtype, in 10^12 operations per second
    tflops: Mapping[str, float] = field(hash=False)
    memory_gb_s: float  # device memory bandwidth, 10^9 bytes per second
    cores: int  # streaming multiprocessors
    clock_ghz: float  # boost clock of the cores
    # bus bandwidth of NCCL's rings inside a host: links times the bandwidth per link that NCCL
    # assumes (`SM80_NVLINK_BW` 20, capped at 235 for all; `SM90_NVLINK_BW` 20.6; `SM100_NVLINK_BW`
    # 40.1; NVIDIA/nccl `src/graph/topo.h` and `tuning.cc`)
    nvlink_gb_s: float
    # network bandwidth per GPU and direction: DGX A100 200 Gbit/s, DGX H100, H200 and B200 400
    # Gbit/s
    nic_gb_s: float
    # line rate of the link to the host per direction: PCIe 4 x16 32, PCIe 5 x16 64; NVLink-C2C 225,
    # since the two GPUs of a GB200 or GB300 share the 900 GB/s of both directions (NVIDIA, GB200
    # NVL72)
    host_gb_s: float
    # the GPU of `TABLE` with the nearest measured tables (`costs.estimate.communication`); the GPU
    # itself if it has some
    measured_as: str
    # GPUs that share NVLink: those of one host, or of all hosts in a rack
    devices_per_host: int = 8
    # slowest and fastest network that is sold or rented with the GPU, in the unit of `nic_gb_s`;
    # equal if the user names the network
    networks_gb_s: tuple[float, float] = (0.0, 0.0)
    is_rack: bool = False  # whether NVLink joins hosts
    nccl: tuple[int, int] = (2, 22)  # NCCL release whose rules apply
    # share of the peak that large matrix products reach
    matmul_efficiency: float = MATMUL_EFFICIENCY
    # lowest and highest ratio of real to estimated product times, if nobody measured this GPU
    products_range: tuple[float, float] = (1.0, 1.0)
    # library that runs its collectives; one per vendor
    library: CollectiveLibrary = field(default=NCCL, hash=False, compare=False)

    def peak_tflops(self, dtype: str) -> float:
        """Return the peak of dots of that type, in 10^12 operations per second."""
        return self.peak_of(dtype_family(dtype))

    def peak_of(self, family: str) -> float:
        """Return the peak of dots of a `dtype_family`, in 10^12 operations per second.

        A type that the GPU lacks is converted to the next wider one.
        """
        while family not in self.tflops:
            family = _WIDER.get(family, "f32")
        return self.tflops[family]

    def memory_us(self, size_bytes: float) -> float:
        """Return the microseconds in which device memory moves `size_bytes`."""
        return size_bytes / (self.memory_gb_s * MEMORY_EFFICIENCY * 1e3)

    def on_network(self, gb_s: float | None) -> Hardware:
        """Return the GPU with the network bandwidth that the user names; unchanged if None."""
        return (
            self
            if not gb_s
            else replace(self, nic_gb_s=gb_s, networks_gb_s=(gb_s, gb_s))
        )

    @property
    def ends(self) -> tuple[Hardware, Hardware]:
        """Return the GPU with the fastest and with the slowest of its networks."""
        slow, fast = self.networks_gb_s
        fastest = replace(self, nic_gb_s=max(fast, self.nic_gb_s))
        return fastest, replace(
            self, nic_gb_s=min(slow or self.nic_gb_s, self.nic_gb_s)
        )

    def host(self, device: int) -> int:
        """Return the host of a device id. Ids are numbered host by host."""
        return device // self.devices_per_host


_FAMILY = {
    "bf": "f16",
    "f1": "f16",
    "f8": "f8",
    "f4": "f4",
    "s8": "s8",
    "u8": "s8",
    "f6": "f64",
    "f3": "tf32",
    "tf": "tf32",
}


_WIDER = {"f4": "f8", "f8": "f16"}


def dtype_family(dtype: str) -> str:
    """Return the key of `Hardware.tflops` for dots of a type; unknown types count as ``f32``."""
    return _FAMILY.get(dtype[:2], "f32")
