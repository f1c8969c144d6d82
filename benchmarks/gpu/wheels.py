"""Unpack the wheels that a Python lacks: ``python wheels.py FOLDER SITE``. Needs no package and
installs nothing.
"""

from __future__ import annotations

import sys
import zipfile
from importlib import metadata
from pathlib import Path

HERE = f"cp{sys.version_info.major}{sys.version_info.minor}"


def unpack(wheels: Path, site: Path) -> tuple[str, ...]:
    """Unpack wheels into `site`, but those of packages that this Python has. Returns the names of
    the unpacked.
    """
    found = sorted(wheels.glob("*.whl"))
    if not found:
        sys.exit(
            f"{wheels}: no wheels in this folder; make them with: make gpu-wheels WHEELS={wheels}"
        )
    unpacked = []
    for wheel in found:
        name, _, python, interface, *_ = wheel.name.split("-")
        if _is_installed(name):
            continue
        if not _runs_here(python, interface):
            sys.exit(
                f"{wheel.name}: for another Python than {HERE}; make gpu-wheels for this one"
            )
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(site)
        unpacked.append(name)
    return tuple(unpacked)


def _is_installed(name: str) -> bool:
    try:
        metadata.version(name)
    except metadata.PackageNotFoundError:
        return False
    return True


def _runs_here(python: str, interface: str) -> bool:
    """Whether a wheel's tags of Python and its interface fit this Python."""
    tags = python.split(".")
    if HERE in tags or "py3" in tags:
        return True
    minors = [int(tag.removeprefix("cp3")) for tag in tags if tag.startswith("cp3")]
    return interface == "abi3" and any(
        minor <= sys.version_info.minor for minor in minors
    )


if __name__ == "__main__":
    unpack(Path(sys.argv[1]), Path(sys.argv[2]))
