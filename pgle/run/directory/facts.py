"""What the hook found out inside the program, from its files in a stage's folder."""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from pgle.files import read_kept
from pgle.run.directory.directory import RANK_FILES, RankFiles


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
