"""What every rank must have alike, since it may change the schedule: flags, and the content of
files that they name.

What this file imports needs the standard library only: the hook imports it inside the user's
program.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

PROFILE = "xla_gpu_pgle_profile_file_or_directory_path"
AUTOTUNING = "xla_gpu_load_autotune_results_from"
_BY_CONTENT = {PROFILE: "the profile", AUTOTUNING: "the autotuning results"}


def shared_settings(flags: Mapping[str, str | None]) -> dict[str, str]:
    """What flags say, in words: files by a hash of their content. What no GPU
    program depends on is left out.

    Args:
        flags: values by name, without dashes; None of a bare flag.
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
    """A file, or the files of a folder, by a hash."""
    top = Path(path)
    files = sorted(top.iterdir()) if top.is_dir() else [top]
    digest = hashlib.sha256()
    try:
        for file in files:
            digest.update(file.read_bytes())
    except OSError:
        return f"{path}, which cannot be read here"
    return f"sha256 {digest.hexdigest()[:12]}…"
