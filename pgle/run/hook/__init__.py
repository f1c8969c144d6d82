"""The capture hook as seen from pgle: its configuration, in a variable of the program's
environment.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, TypedDict

from pgle.run.ask.jaxlib import PLUGIN_PACKAGES
from pgle.run.directory.directory import RANK_FILES, RANK_LABEL, StageFolder
from pgle.run.process.launchers import LAUNCHERS, Rank
from pgle.xla.log.messages import AUTO_PGLE

HOOK_SITE = Path(__file__).parent / "hook_site"
VARIABLE = "PGLE_HOOK"  # contains the hook's configuration, as JSON


def hook_module(name: str) -> Any:
    """Import a module of the hook into this process."""
    sys.path.append(str(HOOK_SITE))
    try:
        return import_module(f"pgle_hook.{name}")
    finally:
        sys.path.remove(str(HOOK_SITE))


class HookConfig(TypedDict):
    """The hook's configuration, in one variable of the program's environment."""

    folder: str
    names: dict[str, str]  # names of files, with a place for the rank
    label: str
    rank: int
    launchers: list[tuple[str, str]]  # variables with rank and size
    packages: tuple[str, ...]
    capture: str
    window: str
    flags: tuple[str, ...]
    auto_pgle: dict[str, str] | None


def hook_config(
    folder: StageFolder,
    rank: Rank,
    *,
    capture: str,
    window: str,
    flags: tuple[str, ...],
    auto_pgle: bool,
) -> HookConfig:
    """Make the hook's configuration.

    Args:
        folder: folder of the stage.
        rank: this process's rank. If it is the only one, the program may start many ranks, and each
            hook finds its own.
        capture: ``jax``, ``nsys`` or ``none``.
        window: the part to trace, or ``none``.
        flags: the flags that pgle added to XLA_FLAGS.
        auto_pgle: whether to watch AutoPGLE. If so, the hook gets the wordings of its messages.
    """
    launchers: list[tuple[str, str]] = []
    if rank.is_alone:
        launchers = [(name, size) for _, name, size in LAUNCHERS]
    wordings = AUTO_PGLE if auto_pgle else None
    return {
        "folder": str(folder.path.absolute()),
        "names": RANK_FILES,
        "label": RANK_LABEL,
        "rank": rank.rank,
        "launchers": launchers,
        "packages": ("jax", "jaxlib", *PLUGIN_PACKAGES, "numpy"),
        "capture": capture,
        "window": window,
        "flags": flags,
        "auto_pgle": wordings,
    }


def with_hook(
    values: Mapping[str, str], config: Mapping[str, object]
) -> dict[str, str]:
    """Return an environment in which Python programs start with the hook."""
    path = values.get("PYTHONPATH")
    return {
        **values,
        "PYTHONPATH": f"{HOOK_SITE}{os.pathsep}{path}" if path else str(HOOK_SITE),
        VARIABLE: json.dumps(config),
    }
