"""GPUs: what each can do at best, and the descriptions by which XLA compiles for one that is not
there.

Peaks are dense tensor-core figures of NVIDIA's data sheets (A100: nvidia-a100-datasheet; H100:
h100-datasheet; H200: h200-datasheet; B200: HGX B200, an eighth of the board's; GB200 and GB300:
NVL72, a 72nd of the rack's). Memory bandwidth, cores and clock come from XLA's descriptions
(`data/targets`). FP32 without tensor cores is under ``f32``; XLA uses TF32 tensor cores for f32
dots only where the precision allows it, so dots of f32 take ``tf32``.

A target is the text of a ``stream_executor.GpuTargetConfigProto``. Some are shipped in
``data/targets`` (figures from openxla/xla, as each says at its top); any other is read from the
``*.gpu_target_config.pbtxt`` that each ``--xla_dump_to`` run leaves.
"""

from __future__ import annotations

import glob
import math
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from importlib import resources
from pathlib import Path

from pgle.errors import UserError, suggestion
from pgle.files import AnyPath, as_path, read_bytes

MATMUL_EFFICIENCY = 0.8
"""Large bf16 matmuls reach 80.3 % of the data-sheet peak on H100 (stas00/ml-engineering at
b9e29720eebd, `compute/accelerator/README.md`, "Maximum Achievable Matmul FLOPS"). An A100 reaches
more.
"""

A100_EFFICIENCY = 0.869  # the same table: A100 SXM

ATTENTION_EFFICIENCY = 0.6
"""Fused attention reaches 50 to 73 % of the A100's peak (FlashAttention-2, arXiv 2307.08691) and up
to 75 % of the H100's (FlashAttention-3, arXiv 2407.08608).
"""

ATTENTION_RANGE = (0.5, 0.75)  # what these two papers measured, over sizes

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

_GPUS = (
    Hardware(
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
    ),
    Hardware(
        "a100-80gb",
        tflops=_A100_TFLOPS,
        memory_gb_s=2039,
        cores=108,
        clock_ghz=1.41,
        nvlink_gb_s=235.0,
        nic_gb_s=25,
        host_gb_s=32,
        measured_as="h100-sxm",
        matmul_efficiency=A100_EFFICIENCY,
    ),
    Hardware(
        "h100-sxm",
        tflops=_H100_TFLOPS,
        memory_gb_s=3352,
        cores=132,
        clock_ghz=1.98,
        nvlink_gb_s=18 * 20.6,
        nic_gb_s=50,
        host_gb_s=64,
        measured_as="h100-sxm",
    ),
    Hardware(
        "h200-sxm",
        tflops=_H100_TFLOPS,
        memory_gb_s=4800,
        cores=132,
        clock_ghz=1.98,
        nvlink_gb_s=18 * 20.6,
        nic_gb_s=50,
        host_gb_s=64,
        measured_as="h100-sxm",
    ),
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
_NETWORKS_GB_S = {"a100": (1.56, 25.0), "h100": (12.5, 50.0), "h200": (25.0, 50.0)}
"""Per GPU: of Google's a2-highgpu-8g (100 Gbit/s for 8 GPUs), a3-highgpu-8g (four cards of 200
Gbit/s) and a3-ultragpu (cloud.google.com/compute/docs/gpus/gpu-network-bandwidth) to NVIDIA's DGX
of the generation.
"""

# ConnectX-8 (NVIDIA, GB300 NVL72 and DGX B300), which Blackwell hosts may have
_FASTEST_GB_S = 100.0
_SLOWEST_GB_S = 50.0  # ConnectX-7, one a GPU (NVIDIA, DGX B200)


def _networks(name: str) -> tuple[float, float]:
    """The networks that a GPU is sold or rented with."""
    return _NETWORKS_GB_S.get(name.split("-")[0], (_SLOWEST_GB_S, _FASTEST_GB_S))


TABLE: Mapping[str, Hardware] = {
    hardware.name: replace(hardware, networks_gb_s=_networks(hardware.name))
    for hardware in _GPUS
}
"""By the names of `pgle.xla.targets`, and the NVL72 racks."""

_BY_CAPABILITY = (
    ((8, 0), "a100-40gb"),
    ((9, 0), "h100-sxm"),
    ((10, 0), "b200"),
    ((10, 3), "gb300"),
)
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
        target: a name of `TABLE` or an alias of it, or a described GPU: memory bandwidth, cores and
            clock are its own. The rest comes from the same GPU in the table, else from the table's
            GPU for its compute capability.
        topology: ``SxHxD``: slices, hosts of each, devices of each host. Devices of one host share
            NVLink, in a rack the devices of one slice, but never more than the GPU has in one
            NVLink domain.
        devices_per_host: GPUs that share NVLink; goes before `topology`.
        network_gb_s: network bandwidth per GPU and direction, 10^9 bytes per second; None: the
            table's.

    Raises:
        UserError: nothing is known of it.
    """
    if isinstance(target, Target):
        found = (
            TABLE.get(target.name)
            or TABLE.get(shipped_name(target))
            or by_capability(target.compute_capability)
        )
        found = replace(
            found, name=target.name, memory_gb_s=target.memory_bandwidth / 1e9
        )
        found = replace(found, cores=target.core_count, clock_ghz=target.clock_ghz)
    else:
        name = target.lower()
        named = TABLE.get(ALIASES.get(name, name))
        if named is None:
            raise UserError(f"no target called {target!r}", remedy=_KNOWN)
        found = named
    domain = devices_per_host or _nvlink_domain(found, topology)
    return replace(found.on_network(network_gb_s), devices_per_host=domain)


def _nvlink_domain(hardware: Hardware, topology: str | None) -> int:
    """Devices that share NVLink in a topology."""
    most = hardware.devices_per_host
    match = re.fullmatch(r"[1-9]\d{0,8}x([1-9]\d{0,8})x([1-9]\d{0,8})", topology or "")
    if match is None or int(match[2]) > most:
        return most
    hosts, devices = int(match[1]), int(match[2])
    return devices * min(hosts, most // devices) if hardware.is_rack else devices


def weaker(hardware: Hardware) -> list[Hardware]:
    """The GPUs of `TABLE` before that which XLA measured in its place, on the same network and with
    no faster links.
    """
    order = list(TABLE)
    return [
        replace(
            each,
            nic_gb_s=min(each.nic_gb_s, hardware.nic_gb_s),
            devices_per_host=hardware.devices_per_host,
        )
        for each in map(TABLE.__getitem__, order[: order.index(hardware.measured_as)])
        if each.nvlink_gb_s <= hardware.nvlink_gb_s
    ]


def by_capability(capability: tuple[int, int] | None) -> Hardware:
    """The GPU of `TABLE` for a compute capability; an H100 if none is known."""
    at_most = [
        name
        for lowest, name in _BY_CAPABILITY
        if capability is not None and lowest <= capability
    ]
    unknown = "h100-sxm" if capability is None else "a100-40gb"
    return TABLE[at_most[-1] if at_most else unknown]


_KNOWN = f"choose {', '.join(TABLE)}"


MAX_BYTES = 1 << 20
_MAX_FIGURE = 1e18

_SHIPPED = resources.files("pgle.xla").joinpath("data/targets")
_SUFFIX = ".txtpb"
BUILT_IN = tuple(
    sorted(
        file.name.removesuffix(_SUFFIX)
        for file in _SHIPPED.iterdir()
        if file.name.endswith(_SUFFIX)
    )
)
"""Names of the shipped targets."""

ALIASES: Mapping[str, str] = {
    short: name
    for name in reversed(BUILT_IN)
    for short in (name.split("-")[0], name.removesuffix("gb"))
    if short != name
}
"""Shorter names of the shipped targets: ``a100-80`` of a100-80gb; ``a100`` of the first that begins
so.
"""

# What releases before 0.10 do not know, and can do without: their models use none of it.
_RECENT_SCALAR = re.compile(
    r"\b(?:feature_extension|pcie_bandwidth|thread_dim_limit_[xyz]|device_vendor|platform_version|model_str|name"
    r"|device_address_bits|ecc_enabled|driver_version|runtime_version|compile_time_toolkit_version|dnn_version"
    r'|cub_version)\s*:\s*(?:"[^"]*"|[-\w.]+)'
)
_RECENT_BLOCKS = (
    "scalar_unit_description",
    "matrix_unit_description",
    "device_interconnect_info",
)


@dataclass(frozen=True)
class Target:
    """A GPU to compile for."""

    name: str  # ``h100-sxm``, or the file's path
    text: str  # GpuTargetConfigProto in text form
    device: str  # what the description calls the device, ``NVIDIA H100 80GB HBM3``
    memory_bytes: int  # device memory
    memory_bandwidth: int  # bytes per second
    core_count: int  # streaming multiprocessors
    clock_ghz: float  # clock of the cores
    compute_capability: tuple[int, int]  # (major, minor)

    @property
    def texts(self) -> tuple[str, ...]:
        """`text` and what older releases know of it. XLA refuses a description with an unknown
        field, and understands the first of these that it does not refuse; the last is for releases
        before 0.6, without ``runtime_version``.
        """
        portable = _top_level(_RECENT_SCALAR.sub("", self.text))
        return self.text, portable, _without_block(portable, "runtime_version")


def load_target(name_or_path: str) -> Target:
    """The target of that name, or described by that file.

    Args:
        name_or_path: a name of `BUILT_IN` or `ALIASES` in any case, or a
            ``gpu_target_config.pbtxt``, may be ``.xz``.

    Raises:
        UserError: no such target, or not a GPU description.
    """
    name = name_or_path.lower()
    name = ALIASES.get(name, name)
    if name in BUILT_IN:
        return parse_target(
            _SHIPPED.joinpath(f"{name}{_SUFFIX}").read_text(encoding="utf-8"), name=name
        )
    path = as_path(name_or_path)
    looks_like_path = (
        not isinstance(path, Path) or len(path.parts) > 1 or bool(path.suffix)
    )
    if not looks_like_path and not path.exists():
        known = f"{suggestion(name, (*BUILT_IN, *ALIASES))} choose {', '.join(BUILT_IN)}".strip()
        remedy = (
            f"{known}, or give the *.gpu_target_config.pbtxt of an --xla_dump_to run"
        )
        raise UserError(f"no target called {name_or_path!r}", remedy=remedy)
    data = read_bytes(path, max_bytes=MAX_BYTES)
    try:
        text = data.decode()
    except UnicodeDecodeError:
        raise UserError(
            "not a text description of a GPU", where=path, remedy=_DUMP_HINT
        ) from None
    if (
        "runtime_version" not in text
    ):  # of a dump by a release before 0.6; XLA would take CUDA for too old for fp8
        text = f"{text.rstrip()}\n{_RUNTIME}\n"
    return parse_target(text, name=name_or_path)


_RUNTIME = "runtime_version { major: 12 minor: 9 }"
"""What ``jax[cuda12]`` installs."""


def target_beside(source: str) -> Target | None:
    """The GPU that a dump was compiled for, by the description of it that XLA writes for each
    module.

    Args:
        source: path of the dump, ``module_0042.jit_step.….hlo.pb``; a description in the same
            folder will do.

    Returns:
        The description, under the name of the shipped target where that is the same GPU by its
        figures, else under that of the device; None if absent that can be read.
    """
    file = description_beside(source)
    if file is None:
        return None
    with suppress(UserError):
        given = load_target(str(file))
        return replace(given, name=shipped_name(given) or given.device)
    return None


def description_beside(source: str) -> AnyPath | None:
    """The description that XLA wrote for a dump, or another one in its folder; None without one."""
    path = as_path(source)
    stem = glob.escape(".".join(path.name.split(".")[:2]))
    for pattern in (f"{stem}.*", "*"):
        found = sorted(path.parent.glob(pattern + _DESCRIPTION))
        if found:
            return found[0]
    return None


def shipped_name(target: Target) -> str:
    """The name of the shipped target that is the same GPU by its figures; empty if absent."""
    for name in BUILT_IN:
        known = load_target(name)
        alike = (
            known.compute_capability == target.compute_capability
            and known.core_count == target.core_count
        )
        if alike and math.isclose(
            known.memory_bytes, target.memory_bytes, rel_tol=0.1
        ):  # drivers keep some memory
            return name
    return ""


_DESCRIPTION = "gpu_target_config.pbtxt*"
_DUMP_HINT = "give the *.gpu_target_config.pbtxt of an --xla_dump_to run"


def parse_target(text: str, *, name: str) -> Target:
    """Read the figures of a GpuTargetConfigProto text.

    Raises:
        UserError: a figure that a GPU description always has is missing.
    """
    clean = re.sub(r"(?m)#[^\n\"]*$", "", text)
    capability = re.search(r"cuda_compute_capability\s*\{([^}]*)\}", clean)
    if capability is None:
        raise UserError(
            "not a description of an NVIDIA GPU (no cuda_compute_capability)",
            where=name,
            remedy=_DUMP_HINT,
        )
    parts = {
        key: int(value)
        for key, value in re.findall(r"\b(major|minor)\s*:\s*(\d+)", capability[1])
    }
    device = re.search(r'\bdevice_description_str\s*:\s*"([^"]*)"', clean)
    return Target(
        name=name,
        text=text,
        device=device[1] if device else name,
        memory_bytes=int(_figure(clean, "device_memory_size", name)),
        memory_bandwidth=int(_figure(clean, "memory_bandwidth", name)),
        core_count=int(_figure(clean, "core_count", name)),
        # the unit descriptions have a clock_rate_ghz, too; the device's own is outside of every
        # nested block
        clock_ghz=_figure(_top_level(clean), "clock_rate_ghz", name),
        compute_capability=(parts.get("major", 0), parts.get("minor", 0)),
    )


def _figure(text: str, field: str, name: str) -> float:
    """A figure of the device, which is above zero."""
    found = re.search(rf"\b{field}\s*:\s*([^\s,;}}]+)", text)
    if found is None:
        raise UserError(
            f"not a description of a GPU (no {field})", where=name, remedy=_DUMP_HINT
        )
    try:
        value = float(found[1])
    except ValueError:
        value = math.nan
    if not 0 < value < _MAX_FIGURE:
        raise UserError(
            f"not a description of a GPU ({field}: {found[1]})",
            where=name,
            remedy=_DUMP_HINT,
        )
    return value


def _top_level(text: str) -> str:
    for block in _RECENT_BLOCKS:
        text = _without_block(text, block)
    return text


def _without_block(text: str, name: str) -> str:
    """`text` without the message field `name { … }`, nested braces included."""
    while (found := re.search(rf"\b{name}\s*:?\s*\{{", text)) is not None:
        depth, end = 1, found.end()
        while depth and end < len(text):
            depth += {"{": 1, "}": -1}.get(text[end], 0)
            end += 1
        text = text[: found.start()] + text[end:]
    return text
