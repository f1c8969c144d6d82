"""The differences between makers of GPUs as one value. Each maker has a file in this folder."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from pgle.xla.hardware import CollectiveLibrary, Hardware


@dataclass(frozen=True, slots=True)
class Architecture:
    """The architecture that code is compiled for: CUDA's compute capability, or ROCm's gfx
    number.
    """

    vendor: str  # the name of a `Vendor`
    version: tuple[int, int]  # (9, 0) for ``sm_9.0``, (9, 5) for ``gfx950``
    name: str = field(default="", compare=False)  # the name that XLA writes


@dataclass(frozen=True, slots=True)
class JaxPlugin:
    """jax's plugin for a vendor's GPUs: a pair of packages for each major version of the vendor's
    toolkit.

    With `stem` ``cuda`` and major 13, the packages are jax-cuda13-plugin and jax-cuda13-pjrt, and
    the module is ``jax_plugins.xla_cuda13``.
    """

    stem: str
    # by major of the toolkit, the first jaxlib with a plugin for it; the major to install comes
    # first
    majors: Mapping[int, str] = field(hash=False)
    library: str  # file name of the library in the module's folder
    # wheels of the toolkit's runtime by major; empty if the system provides the runtime
    runtimes: Mapping[int, str] = field(
        default_factory=lambda: MappingProxyType({}), hash=False
    )
    # how many leading numbers of the plugin's version equal jaxlib's; None means all
    fitting_parts: int | None = None
    # True if it is linked to the toolkit's libraries, so it cannot be loaded without them
    is_linked: bool = False
    # return code for a function of an absent library, so that it reports no device
    absent_code: int = 0
    # first letters of functions that register code while the plugin is loaded
    registering: str = "!"
    # environment variable that disables the plugin's check for the toolkit; empty if there is none
    skip_check: str = ""

    @property
    def modules(self) -> tuple[str, ...]:
        """Modules that may hold the library, one for each major."""
        return tuple(f"jax_plugins.xla_{self.stem}{major}" for major in self.majors)

    def packages(self, major: int) -> tuple[str, str]:
        """Return the packages for a major of the toolkit."""
        return f"jax-{self.stem}{major}-plugin", f"jax-{self.stem}{major}-pjrt"

    @property
    def all_packages(self) -> tuple[str, ...]:
        """All packages, those for the oldest toolkit first."""
        found: list[str] = []
        for major in sorted(self.majors):
            found += self.packages(major)
        return tuple(found)

    def fits(self, version: str, jaxlib: str) -> bool:
        """Whether jax with this jaxlib loads this version of the plugin."""
        return version == self.version_for(jaxlib)

    def version_for(self, jaxlib: str) -> str:
        """Return the plugin's version for a jaxlib."""
        return ".".join(jaxlib.split(".")[: self.fitting_parts])


@dataclass(frozen=True, slots=True)
class Presence:
    """How to find a vendor's GPUs on a machine, and how users hide them."""

    # the vendor's PCI number in Linux's lists of devices (https://pci-ids.ucw.cz)
    pci: str
    driver_file: str  # a file that exists if the driver is loaded
    list_program: str  # the program that lists GPUs; empty if none is needed
    # environment variables that select the GPUs that a program sees
    hiding_variables: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Vendor:
    """A maker of GPUs."""

    name: str  # ``NVIDIA``
    toolkit: str  # ``CUDA``: the toolkit of jax's plugin, kernels and drivers
    platform: str  # jax's name of the platform, ``cuda``
    # the name and version that jax's client reports; kernels are chosen by the name
    client_version: str
    # the field for the architecture in XLA's description of a GPU
    capability_field: str
    # matches an architecture in names of dumps, with groups ``major`` and ``minor``
    architecture: re.Pattern[str]
    architecture_words: str  # the beginning of architecture names, for messages
    # lowest architecture, and the GPU that stands for it and later ones up to the next row
    generations: Sequence[tuple[tuple[int, int], str]]
    gpus: tuple[Hardware, ...] = field(hash=False)
    # the first architecture for which XLA has a cost model, so that it runs the latency-hiding
    # scheduler by default; None if there is none
    modelled_since: tuple[int, int] | None
    plugin: JaxPlugin
    library: CollectiveLibrary
    kernels: str  # matches names of library kernels
    convolutions: str  # the library for convolutions
    # True if it may run a product for each image when it has no better kernel
    convolves_by_image: bool
    graphs: str  # the vendor's name for XLA's command buffers
    # the `implementation` of `jax.nn.dot_product_attention` that is one fused kernel; empty if
    # there is none
    fused_attention: str
    knows_launches: bool  # True if the host's time to launch a kernel is public
    trace_names: tuple[str, ...]  # names of the vendor in traces, in lower case
    presence: Presence
    # pairs of NVIDIA's word and this vendor's word, for findings and remedies
    words: tuple[tuple[str, str], ...] = ()
    runtime: str = ""  # text to add to a GPU description from a release before 0.6

    def find_architecture(self, text: str) -> Architecture | None:
        """Return the architecture that a text names; None if it names none."""
        found = self.architecture.search(text)
        if found is None:
            return None
        minor = found["minor"]  # a hexadecimal digit for ROCm
        number = int(minor) if minor.isdecimal() else int(minor, 16)
        version = int(found["major"]), number
        return Architecture(self.name, version, found[0])

    def worded(self, text: str) -> str:
        """Replace NVIDIA's words in a text by this vendor's."""
        for theirs, ours in self.words:
            text = text.replace(theirs, ours)
        return text

    def is_modelled(self, architecture: Architecture) -> bool:
        """Whether XLA has a cost model for an architecture of this vendor."""
        since = self.modelled_since
        return since is not None and architecture.version >= since
