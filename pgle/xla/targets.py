"""Targets: the GPUs that XLA can compile for without having one.

A target is the text of a ``stream_executor.GpuTargetConfigProto``. Some are shipped in ``data/targets`` (figures from
openxla/xla, as each says at its top); any other is read from the ``*.gpu_target_config.pbtxt`` that each
``--xla_dump_to`` run leaves.
"""

from __future__ import annotations

import glob
import math
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path

from pgle.errors import UserError, suggestion
from pgle.files import as_path, read_bytes

MAX_BYTES = 1 << 20
_MAX_FIGURE = 1e18

_SHIPPED = resources.files("pgle.xla").joinpath("data/targets")
_SUFFIX = ".txtpb"
BUILT_IN = tuple(sorted(file.name.removesuffix(_SUFFIX) for file in _SHIPPED.iterdir() if file.name.endswith(_SUFFIX)))
"""Names of the shipped targets."""

ALIASES: Mapping[str, str] = {
    short: name
    for name in reversed(BUILT_IN)
    for short in (name.split("-")[0], name.removesuffix("gb"))
    if short != name
}
"""Shorter names of the shipped targets: ``a100-80`` of a100-80gb; ``a100`` of the first that begins so."""

# What releases before 0.10 do not know, and can do without: their models use none of it.
_RECENT_SCALAR = re.compile(
    r"\b(?:feature_extension|pcie_bandwidth|thread_dim_limit_[xyz]|device_vendor|platform_version|model_str|name"
    r"|device_address_bits|ecc_enabled|driver_version|runtime_version|compile_time_toolkit_version|dnn_version"
    r'|cub_version)\s*:\s*(?:"[^"]*"|[-\w.]+)'
)
_RECENT_BLOCKS = ("scalar_unit_description", "matrix_unit_description", "device_interconnect_info")


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
    def portable_text(self) -> str:
        """`text` without the fields that older XLA does not know; XLA refuses a description with an unknown field.

        It keeps ``runtime_version { … }``, which releases before 0.6 do not know (`without_runtime`).
        """
        return _top_level(_RECENT_SCALAR.sub("", self.text))

    @property
    def texts(self) -> tuple[str, ...]:
        """`text` and what older releases know of it; XLA understands the first that it does not refuse."""
        return self.text, self.portable_text, without_runtime(self.portable_text)


def load_target(name_or_path: str) -> Target:
    """The target of that name, or described by that file.

    Args:
        name_or_path: a name of `BUILT_IN` or `ALIASES` in any case, or a ``gpu_target_config.pbtxt``, may be ``.xz``.

    Raises:
        UserError: no such target, or not a GPU description.
    """
    name = name_or_path.lower()
    name = ALIASES.get(name, name)
    if name in BUILT_IN:
        return parse_target(_SHIPPED.joinpath(f"{name}{_SUFFIX}").read_text(encoding="utf-8"), name=name)
    path = as_path(name_or_path)
    looks_like_path = not isinstance(path, Path) or len(path.parts) > 1 or bool(path.suffix)
    if not looks_like_path and not path.exists():
        known = f"{suggestion(name, (*BUILT_IN, *ALIASES))} choose {', '.join(BUILT_IN)}".strip()
        remedy = f"{known}, or give the *.gpu_target_config.pbtxt of an --xla_dump_to run"
        raise UserError(f"no target called {name_or_path!r}", remedy=remedy)
    data = read_bytes(path, max_bytes=MAX_BYTES)
    try:
        text = data.decode()
    except UnicodeDecodeError:
        raise UserError("not a text description of a GPU", where=path, remedy=_DUMP_HINT) from None
    if "runtime_version" not in text:  # of a dump by a release before 0.6; XLA would take CUDA for too old for fp8
        text = f"{text.rstrip()}\n{_RUNTIME}\n"
    return parse_target(text, name=name_or_path)


def without_runtime(text: str) -> str:
    """A description for releases that do not know ``runtime_version { … }``."""
    return _without_block(text, "runtime_version")


_RUNTIME = "runtime_version { major: 12 minor: 9 }"
"""What ``jax[cuda12]`` installs."""


def target_beside(source: str) -> Target | None:
    """The GPU that a dump was compiled for, by the description of it that XLA writes for each module.

    Args:
        source: path of the dump, ``module_0042.jit_step.….hlo.pb``; a description in the same folder will do.

    Returns:
        The description, under the name of the shipped target where that is the same GPU by its figures, else under that
        of the device; None where there is none that can be read.
    """
    path = as_path(source)
    stem = glob.escape(".".join(path.name.split(".")[:2]))
    found = [file for pattern in (f"{stem}.*", "*") for file in sorted(path.parent.glob(pattern + _DESCRIPTION))]
    for file in found[:1]:
        with suppress(UserError):
            given = load_target(str(file))
            return replace(given, name=shipped_name(given) or given.device)
    return None


def shipped_name(target: Target) -> str:
    """The name of the shipped target that is the same GPU by its figures; empty if there is none."""
    return next((name for name in BUILT_IN if _is_same(load_target(name), target)), "")


def _is_same(one: Target, other: Target) -> bool:
    """Whether two descriptions are of one GPU; drivers keep some memory for themselves, more or less of it."""
    alike = one.compute_capability == other.compute_capability and one.core_count == other.core_count
    return alike and math.isclose(one.memory_bytes, other.memory_bytes, rel_tol=0.1)


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
            "not a description of an NVIDIA GPU (no cuda_compute_capability)", where=name, remedy=_DUMP_HINT
        )
    parts = {key: int(value) for key, value in re.findall(r"\b(major|minor)\s*:\s*(\d+)", capability[1])}
    device = re.search(r'\bdevice_description_str\s*:\s*"([^"]*)"', clean)
    return Target(
        name=name,
        text=text,
        device=device[1] if device else name,
        memory_bytes=int(_figure(clean, "device_memory_size", name)),
        memory_bandwidth=int(_figure(clean, "memory_bandwidth", name)),
        core_count=int(_figure(clean, "core_count", name)),
        # the unit descriptions have a clock_rate_ghz, too; the device's own is outside of every nested block
        clock_ghz=_figure(_top_level(clean), "clock_rate_ghz", name),
        compute_capability=(parts.get("major", 0), parts.get("minor", 0)),
    )


def _figure(text: str, field: str, name: str) -> float:
    """A figure of the device, which is above zero."""
    found = re.search(rf"\b{field}\s*:\s*([^\s,;}}]+)", text)
    if found is None:
        raise UserError(f"not a description of a GPU (no {field})", where=name, remedy=_DUMP_HINT)
    try:
        value = float(found[1])
    except ValueError:
        value = math.nan
    if not 0 < value < _MAX_FIGURE:
        raise UserError(f"not a description of a GPU ({field}: {found[1]})", where=name, remedy=_DUMP_HINT)
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
