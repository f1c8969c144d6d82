"""GPUs by name: the table of all vendors, and the descriptions by which XLA compiles for an absent
GPU.

A target is the text of a ``stream_executor.GpuTargetConfigProto``. pgle ships some in
``data/targets``; each names its source in openxla/xla at its top. pgle reads any other from the
``*.gpu_target_config.pbtxt`` that each ``--xla_dump_to`` run writes.
"""

from __future__ import annotations

import glob
import math
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path

from pgle.errors import UserError, suggestion
from pgle.files import AnyPath, as_path, read_bytes
from pgle.xla.hardware import HOST_LINK_EFFICIENCY as HOST_LINK_EFFICIENCY
from pgle.xla.hardware import KERNEL_US as KERNEL_US
from pgle.xla.hardware import MEMORY_EFFICIENCY as MEMORY_EFFICIENCY
from pgle.xla.hardware import Hardware as Hardware
from pgle.xla.hardware import dtype_family as dtype_family
from pgle.xla.vendors import VENDORS, Architecture, Vendor, vendor_of


def _table() -> dict[str, Hardware]:
    found: dict[str, Hardware] = {}
    for vendor in VENDORS.values():
        found |= {gpu.name: gpu for gpu in vendor.gpus}
    return found


TABLE: Mapping[str, Hardware] = _table()
"""GPUs by target name, weaker ones of a vendor first."""


def find_hardware(
    target: str | Target,
    *,
    topology: str | None = None,
    devices_per_host: int | None = None,
    network_gb_s: float | None = None,
) -> Hardware:
    """Return the hardware of a target, with its network and NVLink domain.

    Args:
        target: a name of `TABLE` or an alias, or a described GPU. A described GPU keeps its own
            memory bandwidth, cores and clock. The rest comes from the same GPU in the table, else
            from the table's GPU for its architecture.
        topology: ``SxHxD``: slices, hosts per slice, devices per host. Devices of one host share
            NVLink; in a rack, devices of one slice do. The GPU's own NVLink domain is the limit.
        devices_per_host: GPUs that share NVLink; overrides `topology`.
        network_gb_s: network bandwidth per GPU and direction, in 10^9 bytes per second; None takes
            the table's.

    Raises:
        UserError: the table has no GPU of this name.
    """
    if isinstance(target, Target):
        found = (
            TABLE.get(target.name)
            or TABLE.get(shipped_name(target))
            or by_architecture(target.architecture)
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
    """Return the number of devices that share NVLink in a topology."""
    most = hardware.devices_per_host
    match = re.fullmatch(r"[1-9]\d{0,8}x([1-9]\d{0,8})x([1-9]\d{0,8})", topology or "")
    if match is None or int(match[2]) > most:
        return most
    hosts = int(match[1])
    devices = int(match[2])
    return devices * min(hosts, most // devices) if hardware.is_rack else devices


def weaker(hardware: Hardware) -> list[Hardware]:
    """Return the GPUs of `TABLE` that come before `hardware.measured_as`, on the same network.

    GPUs with another collective library or faster links are left out.
    """
    order = list(TABLE)
    return [
        replace(
            each,
            nic_gb_s=min(each.nic_gb_s, hardware.nic_gb_s),
            devices_per_host=hardware.devices_per_host,
        )
        for each in map(TABLE.__getitem__, order[: order.index(hardware.measured_as)])
        if each.library == hardware.library and each.nvlink_gb_s <= hardware.nvlink_gb_s
    ]


def by_architecture(architecture: Architecture | None) -> Hardware:
    """Return the GPU of `TABLE` for an architecture; an H100 if it is None."""
    if architecture is None:
        return TABLE["h100-sxm"]
    generations = vendor_of(architecture).generations
    at_most = [name for lowest, name in generations if lowest <= architecture.version]
    _, oldest = generations[0]
    return TABLE[at_most[-1] if at_most else oldest]


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


def _aliases() -> Iterator[tuple[str, str]]:
    for name in reversed(BUILT_IN):
        for short in (name.split("-")[0], name.removesuffix("gb")):
            if short != name:
                yield short, name


ALIASES: Mapping[str, str] = dict(_aliases())
"""Shorter names of shipped targets: ``a100-80`` for a100-80gb, and ``a100`` for the first target
that begins so.
"""

# fields that releases before 0.10 do not know and do not need: their models do not use them
_RECENT_SCALAR = re.compile(
    r"\b(?:feature_extension|pcie_bandwidth|thread_dim_limit_[xyz]|device_vendor"
    "|platform_version|model_str|name"
    "|device_address_bits|ecc_enabled|driver_version|runtime_version"
    "|compile_time_toolkit_version|dnn_version"
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

    name: str  # ``h100-sxm``, or the path of a file
    text: str  # GpuTargetConfigProto in text form
    device: str  # the device's name in the description, ``NVIDIA H100 80GB HBM3``
    memory_bytes: int  # bytes of device memory
    memory_bandwidth: int  # bytes per second
    core_count: int  # streaming multiprocessors
    clock_ghz: float  # clock of the cores, in GHz
    architecture: Architecture  # architecture of the cores

    @property
    def vendor(self) -> Vendor:
        """The GPU's vendor."""
        return vendor_of(self.architecture)

    @property
    def compute_capability(self) -> str:
        """The architecture as jax names it: ``9.0``, ``gfx950``."""
        return self.architecture.name.removeprefix("sm_")

    @property
    def texts(self) -> tuple[str, ...]:
        """`text`, then versions of it for older releases.

        XLA refuses a description with an unknown field. The first text that it accepts is the right
        one. The last text is for releases before 0.6 and has no ``runtime_version``.
        """
        portable = _top_level(_RECENT_SCALAR.sub("", self.text))
        return self.text, portable, _without_block(portable, "runtime_version")


def load_target(name_or_path: str) -> Target:
    """Return a target by its name, or from a description.

    Args:
        name_or_path: a name of `BUILT_IN` or `ALIASES` in any case, or the path of a
            ``gpu_target_config.pbtxt``, possibly ``.xz``.

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
    found = parse_target(text, name=name_or_path)
    runtime = found.vendor.runtime
    if runtime and "runtime_version" not in text:
        # The dump is from a release before 0.6. Without this field XLA assumes a CUDA that is too
        # old for fp8.
        return replace(found, text=f"{text.rstrip()}\n{runtime}\n")
    return found


def target_beside(source: str) -> Target | None:
    """Return the GPU that a dump was compiled for, from a description in the dump's folder.

    XLA writes a description for each module.

    Args:
        source: path of the dump, ``module_0042.jit_step.….hlo.pb``. If it has no description,
            another one in the folder is taken.

    Returns:
        The target, under the name of the shipped target with the same figures, else under the
        device's name. None if there is no readable description.
    """
    file = description_beside(source)
    if file is None:
        return None
    with suppress(UserError):
        given = load_target(str(file))
        return replace(given, name=shipped_name(given) or given.device)
    return None


def description_beside(source: str) -> AnyPath | None:
    """Return the description that XLA wrote for a dump, or another one in its folder; None if there
    is none.
    """
    path = as_path(source)
    stem = glob.escape(".".join(path.name.split(".")[:2]))
    for pattern in (f"{stem}.*", "*"):
        found = sorted(path.parent.glob(pattern + _DESCRIPTION))
        if found:
            return found[0]
    return None


def shipped_name(target: Target) -> str:
    """Return the name of the shipped target with the same figures; empty if there is none."""
    for name in BUILT_IN:
        known = load_target(name)
        alike = (
            known.architecture == target.architecture
            and known.core_count == target.core_count
        )
        if alike and math.isclose(
            known.memory_bytes, target.memory_bytes, rel_tol=0.1
        ):  # drivers reserve some memory
            return name
    return ""


_DESCRIPTION = "gpu_target_config.pbtxt*"
_DUMP_HINT = "give the *.gpu_target_config.pbtxt of an --xla_dump_to run"


def parse_target(text: str, *, name: str) -> Target:
    """Read the figures from the text of a GpuTargetConfigProto.

    Args:
        name: name of the target; errors show it.

    Raises:
        UserError: the text lacks a figure that every GPU description has.
    """
    clean = re.sub(r"(?m)#[^\n\"]*$", "", text)
    architecture = _architecture(clean)
    if architecture is None:
        makers = " or ".join(VENDORS)
        fields = ", ".join(vendor.capability_field for vendor in VENDORS.values())
        raise UserError(
            f"not a description of a GPU of {makers} (none of {fields})",
            where=name,
            remedy=_DUMP_HINT,
        )
    device = re.search(r'\bdevice_description_str\s*:\s*"([^"]*)"', clean)
    return Target(
        name=name,
        text=text,
        device=device[1] if device else name,
        memory_bytes=int(_figure(clean, "device_memory_size", name)),
        memory_bandwidth=int(_figure(clean, "memory_bandwidth", name)),
        core_count=int(_figure(clean, "core_count", name)),
        # unit descriptions also have a clock_rate_ghz; the device's own is outside of nested blocks
        clock_ghz=_figure(_top_level(clean), "clock_rate_ghz", name),
        architecture=architecture,
    )


def _architecture(text: str) -> Architecture | None:
    """Return the architecture in a description: CUDA gives numbers, ROCm a name. None if there is
    none.
    """
    for vendor in VENDORS.values():
        found = re.search(rf"{vendor.capability_field}\s*\{{([^}}]*)\}}", text)
        if found is None:
            continue
        numbers = dict(re.findall(r"\b(major|minor)\s*:\s*(\d+)", found[1]))
        if not numbers:
            return vendor.find_architecture(found[1])
        version = int(numbers.get("major", 0)), int(numbers.get("minor", 0))
        return Architecture(vendor.name, version, f"sm_{version[0]}.{version[1]}")
    return None


def _figure(text: str, field: str, name: str) -> float:
    """Return a figure of the device.

    Raises:
        UserError: the figure is missing, or not a positive number.
    """
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
    """Remove the message field `name { … }` from `text`, with nested braces."""
    while (found := re.search(rf"\b{name}\s*:?\s*\{{", text)) is not None:
        depth = 1
        end = found.end()
        while depth and end < len(text):
            depth += {"{": 1, "}": -1}.get(text[end], 0)
            end += 1
        text = text[: found.start()] + text[end:]
    return text
