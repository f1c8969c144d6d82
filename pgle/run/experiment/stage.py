"""One stage of an experiment: what to run, where its files lie, and what comes back."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal, TypeAlias

from pgle.errors import UserError
from pgle.run.launch.environment import Cache
from pgle.xla.flags.modes import Mode
from pgle.xla.log.reasons import ModuleVerdict, Verdict

Capture: TypeAlias = Literal["auto", "jax", "nsys", "simulated", "none"]
StageName: TypeAlias = Literal["profile", "baseline", "perf", "auto", "auto-nsys"]

_WINDOW = re.compile(r"auto|all|steps:(?P<first>\d+)(-(?P<last>\d+))?|seconds:\d+(\.\d+)?")


@dataclass(frozen=True)
class StageFiles:
    """Where one stage of a run directory keeps its files.

    RUN/STAGE/output.log      what the program printed, with XLA's log lines
    RUN/STAGE/hlo/            XLA's dumps
    RUN/STAGE/ir/             StableHLO of every compiled function
    RUN/STAGE/trace/          traces, one file or folder per rank
    RUN/STAGE/steps*.jsonl    step times, one file per rank
    """

    run_dir: Path
    stage: StageName

    @property
    def folder(self) -> Path:
        """RUN/STAGE."""
        return self.run_dir / self.stage

    @property
    def log(self) -> Path:
        """What the program printed, with XLA's log lines."""
        return self.folder / "output.log"

    @property
    def hlo(self) -> Path:
        """XLA's dumps."""
        return self.folder / "hlo"

    @property
    def ir(self) -> Path:
        """StableHLO of every compiled function."""
        return self.folder / "ir"

    @property
    def trace(self) -> Path:
        """Traces, one file or folder per rank."""
        return self.folder / "trace"

    def steps(self, rank: int = 0) -> Path:
        """Step times of a rank, JSON lines."""
        return self.folder / ("steps.jsonl" if rank == 0 else f"steps.rank{rank:04d}.jsonl")


@dataclass(frozen=True)
class StageRequest:
    """What to run.

    Attributes:
        stage: profile, baseline, perf; auto and auto-nsys of `pgle auto`.
        command: the user's words; may be empty for a simulated stage whose program was captured before.
        run_dir: of the experiment.
        mode: flags: async or sync for profile, else baseline or perf.
        capture: how the profile run is traced; ``simulated`` runs nothing on a GPU.
        profile: cost profile of a perf stage.
        target: GPU to simulate.
        devices: to simulate, and virtual CPU devices of the captured program.
        topology: ``SxHxD`` to simulate; None: one host.
        window: what is traced: ``auto``, ``steps:A-B``, ``seconds:N`` or ``all``.
        quiet_s: a captured program is stopped when it has compiled nothing new for so long.
        seed: of simulated noise.
        flags: more XLA flags, as the user gave them on the command line.
        environment: more variables of a real program; they count, whatever the user has.
        cache: JAX's persistent compilation cache in a real run.
        stdout: where a real program's stdout goes: ours, or 2 (stderr) where ours is for results.
    """

    stage: StageName
    command: tuple[str, ...]
    run_dir: Path
    mode: Mode
    capture: Capture = "auto"
    profile: Path | None = None
    target: str = "h100"
    devices: int = 4
    topology: str | None = None
    window: str = "auto"
    quiet_s: float = 20.0
    seed: int = 0
    flags: tuple[str, ...] = ()
    stdout: Literal[1, 2] = 1
    environment: Mapping[str, str] = field(default_factory=dict)
    cache: Cache = "off"

    def __post_init__(self) -> None:
        """Raise `UserError` where `window` is none."""
        found = _WINDOW.fullmatch(self.window)
        if found is None or (found["last"] and int(found["last"]) < int(found["first"])):
            remedy = "say auto, steps:5-10, seconds:10 or all"
            raise UserError(f"no such window: {self.window!r}", where="--window", remedy=remedy)

    @property
    def is_traced(self) -> bool:
        """Whether a profiler watches the program."""
        return self.stage in ("profile", "auto-nsys") and self.capture in ("jax", "nsys")

    @property
    def files(self) -> StageFiles:
        """Where its files lie."""
        return StageFiles(self.run_dir, self.stage)


@dataclass(frozen=True)
class StageResult:
    """What a stage did.

    Attributes:
        request: what was asked.
        simulated: True where no GPU ran anything.
        exit_code: of the user's program; 0 where none ran.
        verdict: of a perf stage, whether XLA used the profile for the main module.
        step_times_s: of the slowest rank, in order; simulated where `simulated`.
        facts: for the report: name → value.
        warnings: one line each.
        rank: of this process among those of the job.
    """

    request: StageRequest
    simulated: bool
    exit_code: int
    verdict: ModuleVerdict | None = None
    step_times_s: tuple[float, ...] = ()
    facts: Mapping[str, str] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    rank: int = 0

    @property
    def good(self) -> bool:
        """Whether the stage did what it is for: a perf stage, that the main module used the profile."""
        return self.request.stage != "perf" or (self.verdict is not None and self.verdict.verdict is Verdict.USED)


def new_folder(files: StageFiles, *, force: bool) -> None:
    """Make the folder of a stage.

    Raises:
        UserError: it holds something already, and `force` is not given.
    """
    folder = files.folder
    if folder.exists() and any(folder.iterdir()):
        if not force:
            raise UserError(
                f"stage {files.stage} was run into it already",
                where=files.run_dir,
                remedy="choose another --run-dir or pass --force to run it again beside the old files",
            )
        folder.rename(_free_name(folder))
    folder.mkdir(parents=True, exist_ok=True)


def _free_name(folder: Path) -> Path:
    """Where an older run of a stage is kept: ``STAGE.1``, ``STAGE.2`` …"""
    number = 1
    while (kept := folder.with_name(f"{folder.name}.{number}")).exists():
        number += 1
    return kept


def now() -> str:
    """The time, ISO 8601 in UTC."""
    return datetime.now(UTC).isoformat(timespec="microseconds")


def trace_files(run_dir: Path) -> tuple[Path, ...]:
    """The traces of a run directory's profile stage, one per rank."""
    return trace_files_of(StageFiles(run_dir, "profile"))


def trace_files_of(files: StageFiles) -> tuple[Path, ...]:
    """The traces of a stage, one per rank."""
    folder = files.trace
    if not folder.is_dir():
        return ()
    found = sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    reports = {path.stem for path in found if path.suffix == ".nsys-rep"}
    return tuple(
        path for path in found if _holds_trace(path) and (path.suffix != ".qdstrm" or path.stem not in reports)
    )


def _holds_trace(path: Path) -> bool:
    return any(path.iterdir()) if path.is_dir() else path.suffix not in (".json", ".tmp")
