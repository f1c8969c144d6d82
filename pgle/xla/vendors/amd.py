"""AMD: its GPUs, jax's ROCm plugin, and the names that its tools and libraries use.

Peaks are dense matrix figures from AMD's data sheets of the MI300X, MI325X, MI350X and MI355X.
Products of f32 take the FP32 figure, because XLA requests no reduced precision for them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from pgle.xla.hardware import CollectiveLibrary, Hardware, Protocol
from pgle.xla.vendors.vendor import JaxPlugin, Presence, Vendor

_RING = (
    Protocol(12.0, 0.8, 9.5, 0.08),
    Protocol(12.0, 0.8, 9.5, 0.08),
    Protocol(17.0, 2.1, 25.0, 1.0),
)
_TREE = (
    Protocol(12.0, 0.9, 10.5, 0.06),
    Protocol(12.0, 0.9, 10.5, 0.06),
    Protocol(17.0, 2.3, 25.0, 0.59),
)
RCCL = CollectiveLibrary(
    name="RCCL",
    kernels=("ncclDevKernel", "ncclKernel", "rccl_", "mscclKernel"),
    fabric="xGMI",
    ring=_RING,
    tree=_TREE,
    channels=64,
    over_assumed=76.8 / 48.0,
    hosts_share=0.59,
)
"""Latencies, shares of bandwidth and channels: ROCm/rocm-systems
`projects/rccl/src/graph/tuning.cc` at 03a89144e7d8, the models of gfx942 and gfx950 hosts.

A ring's Simple step between hosts has 320 µs there, which makes RCCL choose trees. pgle takes the
tree's 25 µs instead. `over_assumed`: an MI350X link has 153.6 GB/s in both directions (its data
sheet), and the tuner assumes 48 per direction. No series of RCCL between hosts is public. So pgle
takes the law of NCCL's hosts, and at worst the share that RCCL gives its trees.
"""

_LINK_GB_S = 48.0
"""The bandwidth that RCCL assumes for an xGMI link and direction (`GFX94X_XGMI_WIDTH` and
`GFX95X_XGMI_WIDTH` in `projects/rccl/src/graph/topo.h`, same commit). It is also the reachable part
of the 64 GB/s of an MI300X link (ROCm blogs, "Understanding RCCL Bandwidth and xGMI Performance on
AMD Instinct MI300X", 2025).
"""
_LINKS = 7  # links of each GPU: one to every other GPU of its host

_MI300X_TFLOPS = {
    "f16": 1307.4,
    "tf32": 163.4,
    "f32": 163.4,
    "f64": 163.4,
    "s8": 2614.9,
    "f8": 2614.9,
}
_MI350X_TFLOPS = {
    "f16": 2306.9,
    "tf32": 144.2,
    "f32": 144.2,
    "f64": 72.1,
    "s8": 4613.7,
    "f8": 4613.7,
    "f4": 9227.5,
}
_MI355X_TFLOPS = {
    "f16": 2516.6,
    "tf32": 157.3,
    "f32": 157.3,
    "f64": 78.6,
    "s8": 5033.2,
    "f8": 5033.2,
    "f4": 10066.3,
}

_NETWORKS_GB_S = (25.0, 50.0)
"""Slowest and fastest network. The fastest is a card of 400 Gbit/s per GPU, as rented with MI300X
and MI355X (Azure ND MI300X v5, Oracle BM.GPU.MI300X.8 and MI355X.8). The slowest is a card of 200
Gbit/s.
"""

_MI300X_EFFICIENCY, _MI325X_EFFICIENCY = 708.4 / 1307.4, 784.9 / 1307.4
"""Share of the peak that large bf16 products reach (stas00/ml-engineering,
`compute/accelerator/README.md`, "Maximum Achievable Matmul FLOPS", which quotes AMD's own figures).
"""
_GFX950_EFFICIENCY = 1426.4 / 2306.9
"""The fastest bf16 product in XLA's gfx950 table (`data/perf_tables`), divided by the MI350X's
peak. An MI355X, which draws more power, is assumed to reach the same share.
"""


_UNMEASURED = (0.59, 1.41)
"""Ratio of time to roofline for bf16 products in XLA's gfx950 table, relative to the median ratio:
10th and 90th percentile. It is the range for a GPU without a table, whose products are scaled by
rooflines.
"""


def _gpu(
    name: str, tflops: Mapping[str, float], memory_gb_s: float, clock_ghz: float
) -> Hardware:
    """Return a GPU in a host of eight, each with a network card of 400 Gbit/s and PCIe 5 x16."""
    return Hardware(
        name,
        tflops=tflops,
        memory_gb_s=memory_gb_s,
        cores=256,
        clock_ghz=clock_ghz,
        nvlink_gb_s=_LINKS * _LINK_GB_S,
        nic_gb_s=50,
        host_gb_s=64,
        measured_as="mi350x",
        networks_gb_s=_NETWORKS_GB_S,
        matmul_efficiency=_GFX950_EFFICIENCY,
        library=RCCL,
    )


_GPUS = (
    replace(
        _gpu("mi300x", _MI300X_TFLOPS, memory_gb_s=5300, clock_ghz=2.1),
        cores=304,
        matmul_efficiency=_MI300X_EFFICIENCY,
        products_range=_UNMEASURED,
    ),
    replace(
        _gpu("mi325x", _MI300X_TFLOPS, memory_gb_s=6000, clock_ghz=2.1),
        cores=304,
        matmul_efficiency=_MI325X_EFFICIENCY,
        products_range=_UNMEASURED,
    ),
    _gpu("mi350x", _MI350X_TFLOPS, memory_gb_s=7782, clock_ghz=2.2),
    replace(
        _gpu("mi355x", _MI355X_TFLOPS, memory_gb_s=7782, clock_ghz=2.4),
        products_range=(1.0, 2516.6 / 2306.9),  # at worst as slow as an MI350X
    ),
)

_PLUGIN = JaxPlugin(
    stem="rocm",
    majors=MappingProxyType({7: "0.7.1", 10: "0.12.0"}),
    library="xla_rocm_plugin.so",
    fitting_parts=3,
    is_linked=True,
    absent_code=100,  # hipErrorNoDevice (ROCm/HIP `hip_runtime_api.h`)
    registering="__hip",
)

_WORDS = (
    ("CUDA graph", "HIP graph"),
    ("Tensor Cores", "matrix cores"),
    ("nvidia-smi -q -d PERFORMANCE", "amd-smi metric --clock --power"),
    ("nvidia-smi nvlink -e", "amd-smi xgmi --metric"),
    ("nvidia-smi topo -m", "amd-smi topology"),
    ("NVLink", "xGMI"),
    ("NCCL's choice", "RCCL's choice"),
    ("NCCL takes", "RCCL takes"),
    ("bandwidth and SMs", "bandwidth and compute units"),
)

_KERNELS = (
    r"Cijk_|rocblas_|MIOpen|miopen|igemm_|naive_conv|ck_tile|_ZN2ck"
    r"|kernel_grouped_conv|fmha"
)

_ARCHITECTURE = re.compile(r"\bgfx(?P<major>\d{1,2})(?P<minor>[0-9a-f])[0-9a-f]")

_PRESENCE = Presence(
    pci="0x1002",
    driver_file="/dev/kfd",
    list_program="",
    hiding_variables=(
        "ROCR_VISIBLE_DEVICES",
        "HIP_VISIBLE_DEVICES",
        "CUDA_VISIBLE_DEVICES",
    ),
)

AMD = Vendor(
    name="AMD",
    toolkit="ROCm",
    platform="rocm",
    client_version="rocm 70200",
    capability_field="rocm_compute_capability",
    architecture=_ARCHITECTURE,
    architecture_words="gfx…",
    generations=(((9, 4), "mi300x"), ((9, 5), "mi350x")),
    gpus=_GPUS,
    modelled_since=None,
    plugin=_PLUGIN,
    library=RCCL,
    kernels=_KERNELS,
    convolutions="MIOpen",
    convolves_by_image=True,  # ROCm/MIOpen `src/solver/gemm.cpp`, `gemm_bwd.cpp`, `gemm_wrw.cpp`
    graphs="HIP graphs",
    # jax lowers no fused attention for ROCm: `jax/_src/cudnn/fused_attention_stablehlo.py`
    fused_attention="",
    knows_launches=False,
    trace_names=("amd",),
    words=_WORDS,
    presence=_PRESENCE,
)
