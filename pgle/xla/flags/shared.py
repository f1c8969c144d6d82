"""Settings that all ranks must share because they may change the schedule: flags and files they
name.

This file imports only the standard library: the hook imports it inside the user's program.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

PROFILE = "xla_gpu_pgle_profile_file_or_directory_path"
AUTOTUNING = "xla_gpu_load_autotune_results_from"
_BY_CONTENT = {PROFILE: "the profile", AUTOTUNING: "the autotuning results"}


def shared_settings(flags: Mapping[str, str | None]) -> dict[str, str]:
    """Return flags in words, with a hash for the content of each file.

    Flags that no GPU program depends on are left out.

    Args:
        flags: values by name without dashes; None for a bare flag.
    """
    values = {name: (value or "").strip("\"'") for name, value in flags.items()}
    found = {}
    for name, what in _BY_CONTENT.items():
        if path := values.pop(name, ""):
            found[what] = content_of(path)
    for name in sorted(values):
        if "_dump" not in name and not name.startswith("xla_cpu"):
            found[f"--{name}"] = values[name]
    return found


def content_of(path: str) -> str:
    """Return a hash of a file, or of the files in a folder."""
    top = Path(path)
    files = sorted(top.iterdir()) if top.is_dir() else [top]
    digest = hashlib.sha256()
    try:
        for file in files:
            digest.update(file.read_bytes())
    except OSError:
        return f"{path}, which cannot be read here"
    return f"sha256 {digest.hexdigest()[:12]}…"
