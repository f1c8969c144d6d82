"""jax's CUDA plugin: which wheels the jax at hand needs, and the command that mends a missing, double or old one.

Nothing here moves jax, and nothing adds a second plugin: wheels are named with jaxlib's version, without dependencies.
Standard library only, since the compiler's process may be another Python than ours.
"""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pgle.next import Next

PACKAGES = (
    "jax",
    "jaxlib",
    "jax-cuda12-plugin",
    "jax-cuda12-pjrt",
    "jax-cuda13-plugin",
    "jax-cuda13-pjrt",
    "nvidia-cuda-runtime-cu12",
    "nvidia-cuda-runtime",
    "numpy",
    "protobuf",
    "flax",
)
"""Those whose versions decide how a program compiles and runs."""

HALVES = ("plugin", "pjrt")
FIRST_CUDA13 = (0, 7, 2)  # the jaxlib that brought the CUDA 13 plugin
RUNTIMES = {12: "nvidia-cuda-runtime-cu12", 13: "nvidia-cuda-runtime"}
"""The wheel that `jax[cudaN]` brings with its plugin. Its CUDA is the one that this environment runs on."""


@dataclass(frozen=True, slots=True)
class Repair:
    """The plugin's problem, and what mends it."""

    what: str  # a clause
    fails: bool  # whether jax will not run on GPUs so; else only rehearsals are not possible
    line: str  # the command that mends it


def repair(versions: Mapping[str, str], python: str = sys.executable) -> Repair | None:
    """What to do about the plugin of an environment; None: nothing.

    Args:
        versions: of its packages: jaxlib, the plugin's wheels, CUDA's runtime; only installed ones.
        python: its interpreter.
    """
    jaxlib = versions.get("jaxlib", "")
    if not jaxlib:
        return None
    majors = sorted(
        {int(match[1]) for name in versions if (match := re.match(r"jax-cuda(\d+)-(?:plugin|pjrt)$", name))}
    )
    if not majors:
        cuda = 13 if _numbers(jaxlib) >= FIRST_CUDA13 else 12
        return Repair("none is installed", False, _install(python, cuda, jaxlib))
    kept = _kept(majors, versions, jaxlib)
    if len(majors) > 1:
        surplus = [name for name in sorted(versions) if name.startswith("jax-cuda") and f"cuda{kept}-" not in name]
        return Repair("two CUDA versions, of which jax can load one", True, _remove(python, surplus))
    names = [f"jax-cuda{kept}-{half}" for half in HALVES]
    if absent := [name for name in names if name not in versions]:
        return Repair(f"{absent[0]} is missing", True, _install(python, kept, jaxlib))
    if any(versions[name] != jaxlib for name in names):
        return Repair(f"not of jaxlib {jaxlib}, so jax leaves it out", True, _install(python, kept, jaxlib))
    return None


def install_command() -> str:
    """The one command that gives this interpreter what it needs to compile for GPUs."""
    mended = repair(versions(PACKAGES)[0])
    return mended.line if mended else str(Next((*_pip(sys.executable, "install"), "pgle[rehearse-cuda13]")))


def versions(packages: Sequence[str]) -> tuple[dict[str, str], str]:
    """The versions that this interpreter would import, its own too, and where jaxlib is.

    Other interpreters are sent the source of this function: standard library only, of Python 3.9.
    """
    import platform
    from importlib import metadata

    found = {"python": platform.python_version()}
    for name in packages:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found, str(metadata.distribution("jaxlib").locate_file("")) if "jaxlib" in found else ""


def _kept(majors: list[int], versions: Mapping[str, str], jaxlib: str) -> int:
    """Of several plugins the one whose CUDA is installed, else the one of jaxlib's version, else the older."""
    running = [cuda for cuda in majors if RUNTIMES.get(cuda) in versions]
    fitting = [cuda for cuda in majors if all(versions.get(f"jax-cuda{cuda}-{half}") == jaxlib for half in HALVES)]
    return next((found[0] for found in (running, fitting) if len(found) == 1), majors[0])


def _install(python: str, cuda: int, jaxlib: str) -> str:
    wheels = (f"jax-cuda{cuda}-{half}=={jaxlib}" for half in HALVES)
    return str(Next((*_pip(python, "install"), "--no-deps", *wheels)))


def _remove(python: str, names: list[str]) -> str:
    words = _pip(python, "uninstall")
    return str(Next((*words, *(() if words[0] == "uv" else ("-y",)), *names)))


def _pip(python: str, verb: str) -> tuple[str, ...]:
    """pip of an interpreter; uv where it has none, as uv's own environments."""
    if not any(Path(python).parent.glob("pip*")) and shutil.which("uv"):
        return "uv", "pip", verb, "--python", python
    return python, "-m", "pip", verb


def _numbers(release: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", release)[:3])
