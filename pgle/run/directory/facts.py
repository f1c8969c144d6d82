"""The hook's findings inside the program, read from its files in a stage's folder."""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import TypedDict, cast

from pgle.files import Json, read_kept
from pgle.run.directory.directory import RANK_FILES, RankFiles


class WindowFacts(TypedDict, total=False):
    """The traced window, or why nothing was traced."""

    steps: list[int]  # numbers of the first and the last step
    seconds: float
    executions: int  # executions of the heaviest module
    none: str  # why nothing was traced
    remedy: str


class AutoPgleFacts(TypedDict, total=False):
    """What AutoPGLE's messages report."""

    recompiled: dict[str, int]  # bytes of costs, by module
    loaded: list[str]  # modules from the cache that AutoPGLE had optimized
    missed: list[str]  # modules that the cache had only without AutoPGLE's costs
    hits: list[str]  # modules from the cache
    found_optimised: int  # number of modules that an earlier run had optimized
    ahead_of_time: int  # functions that the program compiled by `lower().compile()`


class HookFacts(TypedDict, total=False):
    """What one process of a program did, and its environment."""

    pid: int
    host: str
    executable: str
    versions: dict[str, str]  # of packages, by name
    xla_flags: str
    platform: str  # of jax's devices
    device_kind: str
    local_devices: int
    devices: int  # number over all processes
    process_index: int
    process_count: int
    compilations: int
    compile_s: float
    compiled_at: list[float]  # seconds since the epoch, of the first compilations
    steps: int  # number of marked steps
    step_source: str
    steps_file: str
    module: str  # name of the heaviest module
    window: WindowFacts
    window_opened: float  # seconds since the epoch
    window_closed: float
    own_traces: list[str]  # folders of the program's own profiler
    auto_pgle: AutoPgleFacts
    ranks_differ: str  # the first difference between two ranks, in a line
    finished: bool  # whether the program ended by itself


def read_facts(files: RankFiles) -> HookFacts:
    """Read the hook's findings. Of several processes take the one with most steps, then most
    compilations.
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
    found = {name: value for name, value in most.items() if name != "sources"}
    return cast(HookFacts, found)


def read_sources(files: RankFiles, *, is_alone: bool) -> dict[str, str]:
    """The modules that the program imported from files of its own: SHA-256 by path.

    Args:
        files: files of this rank.
        is_alone: whether no other pgle runs this stage. If so, the processes of all ranks belong to
        its program.
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


def _contents(paths: Iterable[Path]) -> list[Json]:
    """The content of fact files, without unreadable ones."""
    found: list[Json] = []
    for path in paths:
        with suppress(ValueError, RecursionError):
            content = json.loads(read_kept(path) or b"")
            if isinstance(content, dict):
                found.append(content)
    return found
