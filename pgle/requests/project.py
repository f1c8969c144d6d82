"""The file with the configuration of a project."""

from __future__ import annotations

from pathlib import Path

from pgle.files import read_bytes

OWN, SHARED = "pgle.toml", "pyproject.toml"
"""Files of a project, in the order in which a folder is looked at; the second has other tools'."""
MOST_BYTES = 1 << 20  # of a file


def project_file(folder: Path) -> Path | None:
    """The configuration of a folder, else of the nearest folder above; None: there is none."""
    for place in (folder, *folder.parents):
        if (place / OWN).is_file():
            return place / OWN
        shared = place / SHARED
        if shared.is_file() and b"tool.pgle" in read_bytes(
            shared, max_bytes=MOST_BYTES
        ):
            return shared
    return None
