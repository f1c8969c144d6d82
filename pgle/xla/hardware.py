"""What a GPU can do at best, and the links and the library that its collectives take.

FP32 without matrix units is under ``f32``; products of f32 take ``tf32``, the arithmetic that XLA
asks of a library where the precision allows it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

MATMUL_EFFICIENCY = 0.8
"""Large bf16 matmuls reach 80.3 % of the data-sheet peak on H100 (stas00/ml-engineering at
b9e29720eebd, `compute/accelerator/README.md`, "Maximum Achievable Matmul FLOPS"). An A100 reaches
more.
"""

A100_EFFICIENCY = 0.869  # the same table: A100 SXM

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
    """One protocol of a library for collectives on one algorithm: latencies in microseconds, share
    of the bus bandwidth that it reaches.
    """

    base_us: float
    inside_us: float  # of a step inside a host
    network_us: float  # of a step between hosts
    bandwidth: float


@dataclass(frozen=True, slots=True)
class CollectiveLibrary:
    """The library that runs collectives, and what its own tuner says that they take.

    The protocols of an algorithm are in this order: LL, LL128, Simple.
    """

    name: str  # ``NCCL``
    kernels: tuple[str, ...]  # how names of its kernels begin
    fabric: str  # the links inside a host, ``NVLink``
    ring: tuple[Protocol, ...]
    tree: tuple[Protocol, ...]
    channels: int  # that share the bytes of a group of calls
    # the data sheets' bandwidth per direction over what the tuner assumes, the largest ratio of
    # the vendor's GPUs
    over_assumed: float
    # how much of the estimated bandwidth between hosts there may be; 1: it is measured
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
between NVSwitches (24 on A100). Over what the tuner assumes: A100 300 GB/s over 235 (H100 450 over
371, B200 900 over 722).
"""


@dataclass(frozen=True, slots=True)
class Hardware:
    """One GPU and its links."""

    name: str  # of the target
    tflops: Mapping[str, float] = field(
        hash=False
    )  # peak by dtype, 10^12 operations per second
    memory_gb_s: float  # device memory bandwidth, 10^9 bytes per second
    cores: int  # streaming multiprocessors
    clock_ghz: float  # of the cores, boosted
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
    # the GPU of `TABLE` whose measured tables (`costs.estimate.communication`) are nearest: itself
    # where there are some
    measured_as: str
    # GPUs that share NVLink: of one host, in a rack of all its hosts
    devices_per_host: int = 8
    # the slowest and the fastest network that is rented or sold with the GPU, as `nic_gb_s`; the
    # same if it is named
    networks_gb_s: tuple[float, float] = (0.0, 0.0)
    is_rack: bool = False  # whether NVLink joins hosts
    nccl: tuple[int, int] = (2, 22)  # release of NCCL whose rules are taken
    # part of the peak that large matrix products reach
    matmul_efficiency: float = MATMUL_EFFICIENCY
    # what products may take over what is estimated, if nobody measured them on this GPU
    products_range: tuple[float, float] = (1.0, 1.0)
    # what runs its collectives; the same for all GPUs of a vendor
    library: CollectiveLibrary = field(default=NCCL, hash=False, compare=False)

    def peak_tflops(self, dtype: str) -> float:
        """Peak of dots of that type."""
        return self.peak_of(dtype_family(dtype))

    def peak_of(self, family: str) -> float:
        """Peak of dots of a `dtype_family`; a type that the GPU lacks is converted to the next
        wider one.
        """
        while family not in self.tflops:
            family = _WIDER.get(family, "f32")
        return self.tflops[family]

    def memory_us(self, size_bytes: float) -> float:
        """Microseconds in which device memory moves so many bytes."""
        return size_bytes / (self.memory_gb_s * MEMORY_EFFICIENCY * 1e3)

    def on_network(self, gb_s: float | None) -> Hardware:
        """The GPU on a network that the user names; itself if none is named."""
        return (
            self
            if not gb_s
            else replace(self, nic_gb_s=gb_s, networks_gb_s=(gb_s, gb_s))
        )

    @property
    def ends(self) -> tuple[Hardware, Hardware]:
        """The GPU on the fastest and on the slowest of its networks."""
        slow, fast = self.networks_gb_s
        fastest = replace(self, nic_gb_s=max(fast, self.nic_gb_s))
        return fastest, replace(
            self, nic_gb_s=min(slow or self.nic_gb_s, self.nic_gb_s)
        )

    def host(self, device: int) -> int:
        """The host of a device id; ids are numbered host by host."""
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
    """The key of `Hardware.tflops` for dots of a type; unknown types count as ``f32``."""
    return _FAMILY.get(dtype[:2], "f32")
