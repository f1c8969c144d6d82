"""Makers of GPUs. To add one, write a file in this folder and list it in `VENDORS`."""

from __future__ import annotations

from collections.abc import Mapping

from pgle.xla.hardware import Hardware
from pgle.xla.vendors.amd import AMD
from pgle.xla.vendors.nvidia import NVIDIA
from pgle.xla.vendors.vendor import Architecture, JaxPlugin, Vendor

__all__ = [
    "AMD",
    "NVIDIA",
    "VENDORS",
    "Architecture",
    "JaxPlugin",
    "Vendor",
    "architecture_in",
    "is_modelled",
    "maker_of",
    "traced_architecture",
    "vendor_named",
    "vendor_of",
]

VENDORS: Mapping[str, Vendor] = {vendor.name: vendor for vendor in (NVIDIA, AMD)}
"""Vendors by name. The first is assumed if nothing names a vendor."""


def vendor_of(architecture: Architecture | None) -> Vendor:
    """Return the vendor of an architecture; NVIDIA if the architecture is unknown."""
    return NVIDIA if architecture is None else VENDORS[architecture.vendor]


def maker_of(hardware: Hardware) -> Vendor:
    """Return the vendor of a GPU."""
    makers = (item for item in VENDORS.values() if item.library == hardware.library)
    return next(makers)


def is_modelled(architecture: Architecture | None) -> bool:
    """Whether XLA has a cost model for a GPU, and runs the latency-hiding scheduler by it without
    being asked.
    """
    if architecture is None:
        return False
    return vendor_of(architecture).is_modelled(architecture)


def vendor_named(name: str) -> Vendor | None:
    """Return the vendor that a trace names; None if it is unknown."""
    known = (item for item in VENDORS.values() if name.lower() in item.trace_names)
    return next(known, None)


def architecture_in(text: str) -> Architecture | None:
    """Return the architecture that a text names; None if it names none. A dump's file name has it
    before ``_gpu_``.
    """
    found = (vendor.find_architecture(text) for vendor in VENDORS.values())
    return next(filter(None, found), None)


def traced_architecture(
    vendor: str, version: tuple[int, int] | None
) -> Architecture | None:
    """Return the architecture of the GPUs in a trace; None if vendor or version is unknown.

    An empty vendor means NVIDIA.
    """
    known = vendor_named(vendor) if vendor else NVIDIA
    if known is None or version is None:
        return None
    return Architecture(known.name, version)
