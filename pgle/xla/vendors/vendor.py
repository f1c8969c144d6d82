"""What differs between makers of GPUs, as one value: a file of this folder for each."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from pgle.xla.hardware import CollectiveLibrary, Hardware


@dataclass(frozen=True, slots=True)
class Architecture:
    """What code is compiled for: a compute capability of CUDA, a gfx number of ROCm."""

    vendor: str  # the name of a `Vendor`
    version: tuple[int, int]  # (9, 0) of ``sm_9.0``, (9, 5) of ``gfx950``
    name: str = field(default="", compare=False)  # as XLA writes it


@dataclass(frozen=True, slots=True)
class JaxPlugin:
    """jax's plugin for a vendor's GPUs: a pair of packages for each major of the vendor's toolkit.

    Of `stem` ``cuda`` and major 13: packages jax-cuda13-plugin and jax-cuda13-pjrt, module
    ``jax_plugins.xla_cuda13``.
    """

    stem: str
    # majors of the toolkit, the one to install first, and the first jaxlib that had a plugin
    # for each
    majors: Mapping[int, str] = field(hash=False)
    library: str  # the file in the module's folder
    # wheels of the toolkit's runtime by major; empty where the system brings it
    runtimes: Mapping[int, str] = field(
        default_factory=lambda: MappingProxyType({}), hash=False
    )
    # how many numbers of the plugin's version must be jaxlib's; None: all
    fitting_parts: int | None = None
    # whether it is linked to the toolkit's libraries, and cannot be loaded without
    is_linked: bool = False
    # what functions of absent libraries return: that there is no device
    absent_code: int = 0
    registering: str = (
        "!"  # how names of functions begin that register code as it is loaded
    )
    # a variable that keeps it from looking for the toolkit, if there is one
    skip_check: str = ""

    @property
    def modules(self) -> tuple[str, ...]:
        """Modules that bring the library."""
        return tuple(f"jax_plugins.xla_{self.stem}{major}" for major in self.majors)

    def packages(self, major: int) -> tuple[str, str]:
        """The packages for a major of the toolkit."""
        return f"jax-{self.stem}{major}-plugin", f"jax-{self.stem}{major}-pjrt"

    @property
    def all_packages(self) -> tuple[str, ...]:
        """All packages, oldest toolkit first."""
        found: list[str] = []
        for major in sorted(self.majors):
            found += self.packages(major)
        return tuple(found)

    def fits(self, version: str, jaxlib: str) -> bool:
        """Whether jax of that jaxlib loads a plugin of that version."""
        return version == self.version_for(jaxlib)

    def version_for(self, jaxlib: str) -> str:
        """The plugin's version for a jaxlib."""
        return ".".join(jaxlib.split(".")[: self.fitting_parts])


@dataclass(frozen=True, slots=True)
class Presence:
    """How a machine shows that it has a vendor's GPUs, and how they are hidden."""

    pci: str  # its number in Linux's lists of devices (https://pci-ids.ucw.cz)
    driver_file: str  # where the loaded driver is to be seen
    list_program: str  # lists GPUs, and is needed for it; empty: none is
    hiding_variables: tuple[str, ...]  # that choose the GPUs which a program sees


@dataclass(frozen=True, slots=True)
class Vendor:
    """A maker of GPUs."""

    name: str  # ``NVIDIA``
    toolkit: str  # ``CUDA``: what jax's plugin, kernels and drivers belong to
    platform: str  # as jax lowers for it, ``cuda``
    # how jax's client calls itself, in which kernels are chosen by the name
    client_version: str
    capability_field: str  # of XLA's description of a GPU
    # an architecture in names of dumps, with groups ``major`` and ``minor``
    architecture: re.Pattern[str]
    architecture_words: str  # how such names begin, for people
    # the GPU of `gpus` for an architecture and for later ones, up to the next row
    generations: Sequence[tuple[tuple[int, int], str]]
    gpus: tuple[Hardware, ...] = field(hash=False)
    # the first architecture for which XLA knows costs, and so runs the latency-hiding scheduler
    # without being asked; None: it never does
    modelled_since: tuple[int, int] | None
    plugin: JaxPlugin
    library: CollectiveLibrary
    kernels: str  # a pattern of names of kernels that libraries bring
    convolutions: str  # the library of convolutions
    # whether it may run a product for each image, where it has no better kernel
    convolves_by_image: bool
    graphs: str  # what XLA's command buffers are
    # the `implementation` of `jax.nn.dot_product_attention` that is one fused kernel; empty: none
    fused_attention: str
    # whether the host's time to launch a kernel is public
    knows_launches: bool
    trace_names: tuple[str, ...]  # how traces name the vendor, in lower case
    presence: Presence
    # this vendor's words for NVIDIA's, in findings and remedies
    words: tuple[tuple[str, str], ...] = ()
    # what releases of XLA before 0.6 miss in a description of a GPU
    runtime: str = ""

    def find_architecture(self, text: str) -> Architecture | None:
        """The architecture that a text names."""
        found = self.architecture.search(text)
        if found is None:
            return None
        minor = found["minor"]  # of ROCm a hexadecimal digit
        number = int(minor) if minor.isdecimal() else int(minor, 16)
        version = int(found["major"]), number
        return Architecture(self.name, version, found[0])

    def worded(self, text: str) -> str:
        """A text about NVIDIA's GPUs in this vendor's words."""
        for theirs, ours in self.words:
            text = text.replace(theirs, ours)
        return text

    def is_modelled(self, architecture: Architecture) -> bool:
        """Whether XLA knows costs for a GPU of this vendor."""
        since = self.modelled_since
        return since is not None and architecture.version >= since
