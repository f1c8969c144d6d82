"""NVIDIA: its GPUs, jax's CUDA plugin, and the names that its tools and libraries use.

Peaks are dense tensor-core figures from NVIDIA's data sheets (A100: nvidia-a100-datasheet; H100:
h100-datasheet; H200: h200-datasheet; B200: HGX B200, an eighth of the board's; GB200 and GB300:
NVL72, a 72nd of the rack's). Memory bandwidth, cores and clock come from XLA's descriptions
(`data/targets`).
"""

from __future__ import annotations

import re
from dataclasses import replace
from types import MappingProxyType

from pgle.xla.hardware import A100_EFFICIENCY, NCCL, Hardware
from pgle.xla.vendors.vendor import JaxPlugin, Presence, Vendor

_A100_TFLOPS = {"f16": 312.0, "tf32": 156.0, "f32": 19.5, "f64": 19.5, "s8": 624.0}
_H100_TFLOPS = {
    "f16": 989.0,
    "tf32": 494.0,
    "f32": 67.0,
    "f64": 67.0,
    "s8": 1979.0,
    "f8": 1979.0,
}
_B200_TFLOPS = {
    "f16": 2250.0,
    "tf32": 1125.0,
    "f32": 75.0,
    "f64": 37.0,
    "s8": 4500.0,
    "f8": 4500.0,
    "f4": 9000.0,
}
_GB200_TFLOPS = {
    "f16": 2500.0,
    "tf32": 1250.0,
    "f32": 80.0,
    "f64": 40.0,
    "s8": 5000.0,
    "f8": 5000.0,
    "f4": 10000.0,
}
_GB300_TFLOPS = {
    "f16": 2500.0,
    "tf32": 1250.0,
    "f32": 80.0,
    "f64": 1.3,
    "s8": 165.0,
    "f8": 5000.0,
    "f4": 15000.0,
}

_A100 = Hardware(
    "a100-40gb",
    tflops=_A100_TFLOPS,
    memory_gb_s=1555,
    cores=108,
    clock_ghz=1.41,
    nvlink_gb_s=235.0,
    nic_gb_s=25,
    host_gb_s=32,
    measured_as="h100-sxm",
    matmul_efficiency=A100_EFFICIENCY,
)
_H100 = Hardware(
    "h100-sxm",
    tflops=_H100_TFLOPS,
    memory_gb_s=3352,
    cores=132,
    clock_ghz=1.98,
    nvlink_gb_s=18 * 20.6,
    nic_gb_s=50,
    host_gb_s=64,
    measured_as="h100-sxm",
)
_GPUS = (
    _A100,
    replace(_A100, name="a100-80gb", memory_gb_s=2039),
    _H100,
    replace(_H100, name="h200-sxm", memory_gb_s=4800),
    Hardware(
        "b200",
        tflops=_B200_TFLOPS,
        memory_gb_s=7672,
        cores=148,
        clock_ghz=1.965,
        nvlink_gb_s=18 * 40.1,
        nic_gb_s=50,
        host_gb_s=64,
        measured_as="b200",
    ),
    Hardware(
        "gb200",
        tflops=_GB200_TFLOPS,
        memory_gb_s=7928,
        cores=152,
        clock_ghz=2.062,
        nvlink_gb_s=18 * 40.1,
        nic_gb_s=50,
        host_gb_s=225,
        measured_as="gb200",
        devices_per_host=72,
        is_rack=True,
    ),
    Hardware(
        "gb300",
        tflops=_GB300_TFLOPS,
        memory_gb_s=7928,
        cores=152,
        clock_ghz=2.07,
        nvlink_gb_s=18 * 40.1,
        nic_gb_s=100,
        host_gb_s=225,
        measured_as="gb300",
        devices_per_host=72,
        is_rack=True,
    ),
)
_NETWORKS_GB_S = {"a100": (1.56, 25.0), "h100": (9.4, 50.0), "h200": (50.0, 50.0)}
"""Slowest and fastest network per GPU, in GB/s. The slowest is Google's A2 (100 Gbit/s for 8 GPUs),
A3 Edge (600 Gbit/s, all cards counted) or A3 Ultra (3,200 Gbit/s;
https://cloud.google.com/compute/docs/gpus/gpu-network-bandwidth). The fastest is NVIDIA's DGX of
the generation.
"""

# ConnectX-8, which Blackwell hosts may have (NVIDIA, GB300 NVL72 and DGX B300)
_FASTEST_GB_S = 100.0
_SLOWEST_GB_S = 50.0  # ConnectX-7, one per GPU (NVIDIA, DGX B200)


def _networks(name: str) -> tuple[float, float]:
    """Return the slowest and the fastest network that is sold or rented with a GPU, in GB/s."""
    return _NETWORKS_GB_S.get(name.split("-")[0], (_SLOWEST_GB_S, _FASTEST_GB_S))


_PLUGIN = JaxPlugin(
    stem="cuda",
    majors=MappingProxyType({13: "0.7.2", 12: "0.4.26"}),
    library="xla_cuda_plugin.so",
    runtimes=MappingProxyType(
        {12: "nvidia-cuda-runtime-cu12", 13: "nvidia-cuda-runtime"}
    ),
    skip_check="JAX_SKIP_CUDA_CONSTRAINTS_CHECK",
)

_GENERATIONS = (
    ((8, 0), "a100-40gb"),
    ((9, 0), "h100-sxm"),
    ((10, 0), "b200"),
    ((10, 3), "gb300"),
)

_ARCHITECTURE = re.compile(r"\bsm_(?P<major>\d+)\.(?P<minor>\d+)")

_PRESENCE = Presence(
    pci="0x10de",
    driver_file="/proc/driver/nvidia/version",
    list_program="nvidia-smi",
    hiding_variables=("CUDA_VISIBLE_DEVICES",),
)

NVIDIA = Vendor(
    name="NVIDIA",
    toolkit="CUDA",
    platform="cuda",
    client_version="cuda 12090",
    capability_field="cuda_compute_capability",
    architecture=_ARCHITECTURE,
    architecture_words="sm_…",
    generations=_GENERATIONS,
    gpus=tuple(replace(gpu, networks_gb_s=_networks(gpu.name)) for gpu in _GPUS),
    modelled_since=(9, 0),
    plugin=_PLUGIN,
    library=NCCL,
    kernels=r"nvjet|xmma|hmma|gmma|cutlass|(?:\d|[sdhc])gemm|convolve|cudnn|flash_|fmha",
    convolutions="cuDNN",
    convolves_by_image=False,
    graphs="CUDA graphs",
    fused_attention="cudnn",
    knows_launches=True,
    trace_names=("nvidia",),
    presence=_PRESENCE,
    runtime="runtime_version { major: 12 minor: 9 }",  # what ``jax[cuda12]`` installs
)
