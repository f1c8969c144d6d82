"""Interpreters with another release of jax, made by uv and kept in the user's cache."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pgle.errors import UserError, cut, many
from pgle.files import sha256
from pgle.next import Next
from pgle.run.ask.jaxlib import installed, wanted_major
from pgle.run.ask.programs import ran
from pgle.run.directory.directory import cache_directory
from pgle.xla.flags.catalogue import release
from pgle.xla.vendors import Vendor

GIB_EACH = 0.9
"""Disk space of one environment, in GiB. Measured: 913 MiB for jax 0.10.1 with its CUDA 13 plugin,
938 MiB for 0.11.2. uv shares files with its cache on the same file system.
"""
OLDEST_PYTHON = (("0.11.0", (3, 12)), ("0", (3, 11)))
"""First release of jax, and the oldest Python for it and later ones, which must also run the
compiler's process (wheel metadata Requires-Python: jax 0.10.1 has 3.11, 0.11.2 has 3.12).
"""
_LAST = 120  # characters of uv's output line that an error shows

Consent = Callable[[str], bool]
"""Ask the user once, with a text that says what would be made. Return whether the user agrees."""


@dataclass(frozen=True)
class Environment:
    """A Python environment with one release of jax and its plugin, in its own folder."""

    release: str  # release of jax, such as ``0.12.0.1``
    folder: Path
    packages: tuple[str, ...]  # requirements for uv, such as ``jax==0.12.0.1``

    @property
    def python(self) -> Path:
        """Path of the environment's interpreter."""
        return self.folder / "bin" / "python"

    @property
    def is_made(self) -> bool:
        """Whether the environment exists. Its folder gets its final name only when it is
        complete.
        """
        return self.python.exists()


def environment_of(jax: str, vendor: Vendor) -> Environment:
    """Return the environment for a release of jax and a vendor's GPUs. It may not exist yet."""
    plugin = vendor.plugin
    wheels = plugin.packages(wanted_major(plugin, jax))
    version = plugin.version_for(jax)
    packages = (f"jax=={jax}", *(f"{name}=={version}" for name in wheels))
    digest = sha256(" ".join(packages).encode())[:8]
    folder = cache_directory() / "environments" / f"jax-{jax}-{digest}"
    return Environment(jax, folder, packages)


def ready(found: Sequence[Environment], consent: Consent) -> None:
    """Make the missing environments after the user agrees."""
    missing = [item for item in found if not item.is_made]
    if not missing:
        return
    uv = find_uv()
    words = proposal(missing)
    if not consent(words):
        raise UserError(words, remedy="add --yes to make them")
    for item in missing:
        make(item, uv)


def proposal(missing: Sequence[Environment]) -> str:
    """Return one line that says what would be made, its size and its folder."""
    releases = ", ".join(item.release for item in missing)
    size = GIB_EACH * len(missing)
    place = missing[0].folder.parent
    return (
        f"uv would make {many(len(missing), 'environment')} with jax {releases} and its plugin, "
        f"about {size:.1f} GiB, in {place}"
    )


def find_uv() -> str:
    """Return the path of uv: next to pgle's Python, or on PATH."""
    here = Path(sys.executable).with_name("uv")
    found = str(here) if here.exists() else shutil.which("uv")
    if found:
        return found
    remedy = str(Next((sys.executable, "-m", "pip", "install", "uv")))
    raise UserError(
        "uv is not installed, and pgle makes environments of other releases with it",
        remedy=remedy,
    )


def make(wanted: Environment, uv: str) -> None:
    """Make an environment. Its folder gets its final name only when it is complete."""
    place = wanted.folder.parent
    place.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=".new-", dir=place))
    try:
        new = temporary / "env"
        _run(wanted, (uv, "venv", "--quiet", "--python", _python(wanted), new))
        python = new / "bin" / "python"
        install = (uv, "pip", "install", "--quiet", "--python", python)
        _run(wanted, (*install, *wanted.packages))
        if not wanted.is_made:  # otherwise another pgle process made it first
            new.rename(wanted.folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _python(wanted: Environment) -> str:
    """Return pgle's own Python if the release supports it. Else return the oldest version that the
    release supports; uv finds or downloads it.
    """
    at = release(wanted.release)
    oldest = next(python for since, python in OLDEST_PYTHON if at >= release(since))
    if sys.version_info[:2] >= oldest:
        return sys.executable
    return ".".join(map(str, oldest))


def _run(wanted: Environment, command: Sequence[str | Path]) -> None:
    done = ran(command)
    if done.returncode == 0:
        return
    lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
    # what failed, and the root cause
    ends = dict.fromkeys((*lines[:1], *lines[-1:]))
    said = "; ".join(cut(line, _LAST) for line in ends) or f"code {done.returncode}"
    remedy = "check release and network, or name an interpreter: --jax PYTHON"
    if _python(wanted) != sys.executable:
        remedy = f"install Python {_python(wanted)}; {remedy}"
    raise UserError(
        f"uv cannot make an environment with jax {wanted.release} ({said})",
        where=wanted.folder,
        remedy=remedy,
    )


def release_of(python: str) -> str:
    """Return the version of jaxlib that an interpreter has."""
    found = installed(python).jaxlib
    if not found:
        raise UserError(
            "has no jaxlib",
            where=python,
            remedy="name an interpreter with jax and its plugin, or a release",
        )
    return found
