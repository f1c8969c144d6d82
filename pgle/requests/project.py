"""Find the configuration file of a project."""

from __future__ import annotations

from os.path import lexists
from pathlib import Path

from pgle.files import read_bytes

OWN, SHARED = "pgle.toml", "pyproject.toml"
"""Configuration files, in the order in which pgle looks for them. Other tools share the second."""
MOST_BYTES = 1 << 20  # largest configuration file


def project_file(folder: Path) -> Path | None:
    """The configuration file in a folder, else in the nearest folder above; None if there is
    none.
    """
    for place in (folder, *folder.parents):
        own = place / OWN
        if lexists(own):  # reading says what is wrong with a pipe or a dead link
            return own
        shared = place / SHARED
        if not shared.is_file():
            continue
        if b"tool.pgle" in read_bytes(shared, max_bytes=MOST_BYTES):
            return shared
    return None
