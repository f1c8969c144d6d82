"""What the hook found out inside the program, from its files in a stage's folder."""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import TypedDict, cast

from pgle.files import Json, read_kept
from pgle.run.directory.directory import RANK_FILES, RankFiles


class WindowFacts(TypedDict, total=False):
    """What was traced; or why nothing was."""

    steps: list[int]  # the first and the last
    seconds: float
    executions: int  # of the heaviest module
    none: str  # why nothing was traced
    remedy: str


class AutoPgleFacts(TypedDict, total=False):
    """What AutoPGLE's messages said."""

    recompiled: dict[str, int]  # bytes of costs by module
    loaded: list[str]  # modules from the cache, as AutoPGLE had left them
    missed: list[str]  # modules that the cache did not have so
    hits: list[str]  # modules from the cache
    found_optimised: int  # how many an earlier run had optimised
    ahead_of_time: int  # functions that the program compiled by `lower().compile()`


class HookFacts(TypedDict, total=False):
    """What one process of a program did, and with what."""

    pid: int
    host: str
    executable: str
    versions: dict[str, str]  # of packages, by name
    xla_flags: str
    platform: str  # of jax's devices
    device_kind: str
    local_devices: int
    devices: int  # of all processes
    process_index: int
    process_count: int
    compilations: int
    compile_s: float
    compiled_at: list[float]  # seconds since the epoch; the first ones
    steps: int  # that were marked
    step_source: str
    steps_file: str
    module: str  # the heaviest
    window: WindowFacts
    window_opened: float  # seconds since the epoch
    window_closed: float
    own_traces: list[str]  # folders of the program's own profiler
    auto_pgle: AutoPgleFacts
    ranks_differ: str  # the first difference of two ranks, in a line
    finished: bool  # the program ended by itself


def read_facts(files: RankFiles) -> HookFacts:
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
    found = {name: value for name, value in most.items() if name != "sources"}
    return cast(HookFacts, found)


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


def _contents(paths: Iterable[Path]) -> list[Json]:
    """Files of facts, without those that cannot be read."""
    found: list[Json] = []
    for path in paths:
        with suppress(ValueError, RecursionError):
            content = json.loads(read_kept(path) or b"")
            if isinstance(content, dict):
                found.append(content)
    return found
