"""The capture hook from outside: its configuration, one variable of the program's environment, and
its facts.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

from pgle.files import read_kept
from pgle.run.ask.jaxlib import PLUGIN_PACKAGES
from pgle.run.directory.directory import RANK_FILES, RANK_LABEL, RankFiles, StageFolder
from pgle.run.process.ranks import LAUNCHERS, Rank
from pgle.xla.log.messages import AUTO_PGLE

HOOK_SITE = Path(__file__).parent / "hook_site"
VARIABLE = "PGLE_HOOK"  # holds the configuration of the hook, as JSON


def hook_module(name: str) -> Any:
    """A module of the hook, for use in this process."""
    sys.path.append(str(HOOK_SITE))
    try:
        return import_module(f"pgle_hook.{name}")
    finally:
        sys.path.remove(str(HOOK_SITE))


def hook_config(
    folder: StageFolder,
    rank: Rank,
    *,
    capture: str,
    window: str,
    flags: tuple[str, ...],
    auto_pgle: bool,
) -> dict[str, Any]:
    """The configuration of the hook.

    Args:
        folder: of the stage.
        rank: the rank that the launcher gave us. If it is alone, the program may start many
            ranks, and each hook finds its own.
        capture: ``jax``, ``nsys`` or ``none``.
        window: the part to trace; ``none``.
        flags: the ones that pgle added to XLA_FLAGS.
        auto_pgle: whether AutoPGLE is watched: the hook gets the wordings of its messages.
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


def with_hook(values: Mapping[str, str], config: Mapping[str, Any]) -> dict[str, str]:
    """An environment in which Python programs start with the hook."""
    path = values.get("PYTHONPATH")
    return {
        **values,
        "PYTHONPATH": f"{HOOK_SITE}{os.pathsep}{path}" if path else str(HOOK_SITE),
        VARIABLE: json.dumps(config),
    }


def read_facts(files: RankFiles) -> dict[str, Any]:
    """What the hook found out; of several processes, from the one with most steps, then most
    compilation.
    """
    paths = [
        path
        for path in sorted(files.folder.glob(f"{files.facts.stem}*.json"))
        if path == files.facts or path.name.startswith(f"{files.facts.stem}.pid")
    ]
    most = max(
        _contents(paths),
        key=lambda item: (item.get("steps", 0), item.get("compile_s", 0.0)),
        default={},
    )
    return {name: value for name, value in most.items() if name != "sources"}


def read_sources(files: RankFiles, *, is_alone: bool) -> dict[str, str]:
    """The modules that the program imported from files of its own: SHA-256 by path.

    Args:
        files: of this rank.
        is_alone: no other pgle runs this stage; then the processes of all ranks are of its program.
    """
    pattern = (
        RANK_FILES["facts"].format(suffix="*")
        if is_alone
        else f"{files.facts.stem}*.json"
    )
    found: dict[str, str] = {}
    for content in _contents(sorted(files.folder.glob(pattern))):
        found.update(content.get("sources", {}))
    return found


def _contents(paths: Iterable[Path]) -> list[dict[str, Any]]:
    """Files of facts, without those that cannot be read."""
    found = []
    for path in paths:
        with suppress(ValueError, RecursionError):
            content = json.loads(read_kept(path) or b"")
            found += [content] if isinstance(content, dict) else []
    return found
