"""Where one rank of a real stage keeps its files, and what the hook inside the program is told.

RUN/STAGE/output.log, facts.json, steps.jsonl, hlo/   of rank 0; ``output.rank0003.log`` … of rank 3
RUN/STAGE/trace/rank0003…                             its trace: a folder, or a report of nsys
RUN/STAGE/.hook.json .hook.seen .control .traced…     what launcher and hook tell each other
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pgle.errors import UserError
from pgle.files import sha256, write_files
from pgle.run.experiment.stage import StageFiles, StageRequest, new_folder
from pgle.run.launch.ranks import LAUNCHERS, Rank

HOOK_SITE = Path(__file__).parent / "hook_site"


@dataclass(frozen=True)
class RealFiles:
    """The files of one rank in one stage."""

    stage: StageFiles
    rank: Rank

    @property
    def folder(self) -> Path:
        """Of the stage, shared by all ranks."""
        return self.stage.folder

    @property
    def log(self) -> Path:
        """What this rank printed."""
        return self.folder / f"output{self.rank.suffix}.log"

    @property
    def steps(self) -> Path:
        """Its step times."""
        return self.stage.steps(self.rank.rank)

    @property
    def facts(self) -> Path:
        """What the hook found out."""
        return self.folder / f"facts{self.rank.suffix}.json"

    @property
    def trace(self) -> Path:
        """The folder of its trace; nsys adds its suffix to this name."""
        return self.stage.trace / f"rank{self.rank.rank:04d}"

    @property
    def hlo(self) -> Path:
        """Its dumps; those of ranks would overwrite each other in one folder."""
        return self.stage.hlo.with_name(f"hlo{self.rank.suffix}")

    @property
    def hook(self) -> Path:
        """The hook's configuration."""
        return self.folder / f".hook{self.rank.suffix}.json"

    @property
    def seen(self) -> Path:
        """There once a Python with the hook has started."""
        return self.folder / f".hook{self.rank.suffix}.seen"

    @property
    def control(self) -> Path:
        """Step numbers for the hook, found in the output."""
        return self.folder / f".control{self.rank.suffix}"


def make_folder(request: StageRequest, files: RealFiles, *, force: bool) -> None:
    """Make the stage's folder. Ranks share it and wait for nobody, so only a single process sets an old one aside.

    Raises:
        UserError: this rank has run the stage already, or was given another profile than the others.
    """
    if files.rank.is_alone:
        new_folder(request.files, force=force)
    elif files.log.exists():
        raise UserError(
            f"rank {files.rank.rank} has run {request.stage} into it already",
            where=request.run_dir,
            remedy="choose another --run-dir (--force is for single processes)",
        )
    (files.stage.trace if request.is_traced else files.folder).mkdir(parents=True, exist_ok=True)
    if request.profile is not None:
        _check_same_profile(request.profile, files)


def _check_same_profile(profile: Path, files: RealFiles) -> None:
    """Each rank leaves a sign with the hash of its profile, then looks for others: one file per hash, for any number
    of ranks. Ranks with different profiles get different schedules, and their collectives deadlock."""
    mine = profile_digest(profile)[:16]
    (files.folder / f".profile-{mine}").touch()
    others = sorted(path.name.removeprefix(".profile-") for path in files.folder.glob(".profile-*"))
    if others != [mine]:
        other = next(item for item in others if item != mine)
        raise UserError(
            f"another rank was given another profile (sha256 {other}…, this one has {mine}…)",
            where=profile,
            remedy="give every rank the same file and start again in a new --run-dir; else collectives deadlock",
        )


def profile_digest(profile: Path) -> str:
    """SHA-256 of a profile; of a directory, of the names and contents in it."""
    return sha256(b"".join(path.name.encode() + b"\0" + path.read_bytes() for path in profile_files(profile)))


def profile_files(profile: Path) -> tuple[Path, ...]:
    """The files of a profile: itself, or those of a directory."""
    if not profile.is_dir():
        return (profile,)
    return tuple(sorted(path for path in profile.iterdir() if path.suffix in (".pb", ".pbtxt")))


def write_hook_config(request: StageRequest, files: RealFiles, flags: tuple[str, ...]) -> None:
    """Tell the hook what to do.

    Args:
        request: what is traced and how.
        files: of this rank.
        flags: those that pgle added to XLA_FLAGS.
    """
    traced = request.is_traced
    config = {
        "folder": str(files.folder.resolve()),
        "rank": files.rank.rank,
        "ranks": 1 if files.rank.is_alone else 2,
        "launchers": [(rank, size) for _, rank, size, _ in LAUNCHERS],
        "capture": request.capture if traced else "none",
        "window": request.window if traced else "none",
        "flags": flags,
        "auto_pgle": request.stage in ("auto", "auto-nsys"),
    }
    write_files({files.hook: json.dumps(config) + "\n"}, force=True)


def with_hook(values: Mapping[str, str], hook: Path) -> dict[str, str]:
    """An environment in which Python programs start with the hook."""
    path = values.get("PYTHONPATH")
    return {
        **values,
        "PYTHONPATH": f"{HOOK_SITE}{os.pathsep}{path}" if path else str(HOOK_SITE),
        "PGLE_HOOK": str(hook.resolve()),
    }


def read_facts(files: RealFiles) -> dict[str, Any]:
    """What the hook found out; of several processes, that of the one with most steps, then most compilation."""
    found = []
    for path in sorted(files.folder.glob(f"{files.facts.stem}*.json")):
        if path != files.facts and not path.name.startswith(f"{files.facts.stem}.pid"):
            continue
        try:
            content = json.loads(path.read_text())
        except (OSError, ValueError):
            continue
        if isinstance(content, dict):
            found.append(content)
    return max(found, key=lambda item: (item.get("steps", 0), item.get("compile_s", 0.0)), default={})
