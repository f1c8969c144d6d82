"""What to type next, according to the files in a run directory.

Each command can be typed unchanged: it has the program's own words and the options of the earlier
stages.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from pgle.errors import UserError
from pgle.files import Json, read_kept
from pgle.masking import kept_argv
from pgle.next import Next
from pgle.requests.option import declared
from pgle.requests.shared import Bounded, Captured, OnDevices
from pgle.requests.stages import InMode, Windowed
from pgle.run.directory.directory import COMPARED, RunDirectory, free
from pgle.run.directory.manifest import (
    Manifest,
    is_compared,
    kept_bounds,
    read_manifest,
)
from pgle.run.directory.rounds import PAIRS, abba_words, are_whole
from pgle.run.process.flags import user_flags
from pgle.xla.flags.text import Flag, format_flags, parse_flags

ON_GPU = "jax"  # the profiler that every GPU has; refused without a GPU
UNKNOWN = ("COMMAND",)  # placeholder for an unknown program

_OPTIONS: Mapping[str, object] = {
    item.name: None
    for item in (*declared(OnDevices), *declared(Captured))
    if item.option.is_repeated
}
_OF_PROFILING = {
    item.name: item.default for item in (*declared(InMode), *declared(Windowed))
}
"""Options of all stages, and of stages that profile, with their defaults, which commands leave
out.
"""


@dataclass(frozen=True)
class ProgramLaunch:
    """How pgle runs a program."""

    words: tuple[str, ...] = UNKNOWN  # words of the program's command line
    options: tuple[str, ...] = ()  # options of every pgle command that starts programs
    profiling: tuple[str, ...] = ()  # options of commands that profile it
    capture: str = ""  # the profiler; empty: pgle chooses
    # the run directory with its measurements; None: not measured yet
    run: RunDirectory | None = None
    bounds: tuple[str, ...] = ()  # options of commands that judge its profile

    def with_flags(self, flags: Sequence[str]) -> ProgramLaunch:
        """Return this launch with more XLA flags."""
        return replace(
            self, options=(*self.options, *(f"--flag={flag}" for flag in flags))
        )

    def on_gpus(self) -> ProgramLaunch:
        """Return this launch for a machine with GPUs. A workload of pgle that was only compiled
        must run there.
        """
        ours = "pgle.workloads" in self.words
        words = tuple(
            word for word in self.words if not (ours and word == "--compile-only")
        )
        return replace(self, words=words, capture=ON_GPU)

    def line(self, command: str, run_dir: Path, *more: object) -> Next:
        """The command ``pgle run``, ``profile`` or ``perf`` for the program, with a run
        directory.
        """
        capture = ("--capture", self.capture) if self.capture else ()
        profiling = () if command == "perf" else self.profiling
        bounds = self.bounds if command in ("run", "perf") else ()
        options = (*capture, *self.options, *profiling, *bounds, *more)
        return Next.of(
            command,
            "--run-dir",
            run_dir,
            *options,
            "--",
            *kept_argv(self.words),
        )


def launch_of(run: RunDirectory) -> ProgramLaunch:
    """Return how the program of a run directory was run, mainly from the request of its profile
    stage.
    """
    asked = _asked(run)
    if not asked:
        return ProgramLaunch(run=run)
    options = _words(asked, _OPTIONS)
    judged = (read_kept(run.judged_flags) or b"").decode(errors="replace").splitlines()
    flags = [flag.word for flag in _flags(asked)]
    options += [f"--flag={word}" for word in flags if word not in judged]
    if judged:
        options += ["--flags-file", str(run.judged_flags)]
    profiles = asked.get("mode") not in COMPARED
    return ProgramLaunch(
        words=tuple(asked["command"]),
        options=tuple(options),
        profiling=tuple(_words(asked, _OF_PROFILING)) if profiles else (),
        capture=asked.get("capture") or "",
        run=run,
        bounds=bound_words(run),
    )


def bound_words(run: RunDirectory) -> tuple[str, ...]:
    """Return the options for the coverage that a profile must reach; none for the default."""
    return tuple(kept_bounds(run.path).next_words(Bounded))


def _words(asked: Json, defaults: Mapping[str, object]) -> list[str]:
    """Return the options that differ from their defaults."""
    words = []
    for name, default in defaults.items():
        if asked.get(name, default) != default:
            words += [f"--{name}", str(asked[name])]
    return words


def stage_left(run: RunDirectory) -> Next | None:
    """Return the command for what is missing or out of date, a stage or the comparison; None if
    nothing is.
    """
    baseline, perf = (run.stage(name).path for name in COMPARED)
    profile = run.found_profile
    traces = run.stage("profile").trace_files()
    if profile is None and not perf.exists():
        if traces:
            return Next.of("convert", run.path)
        again = () if _manifest(run).last("profile") is None else ("--force",)
        return launch_of(run).line("profile", run.path, *again)
    if profile is not None and any(_written_before(profile, trace) for trace in traces):
        return Next.of("convert", "--force", run.path)
    if not perf.exists():
        return launch_of(run).line("perf", run.path)
    if profile is not None and _written_before(run.stage("perf").rank().log, profile):
        return launch_of(run).line("perf", run.path, "--force")
    if not baseline.exists():
        return launch_of(run).line("perf", run.path, "--baseline")
    if not is_compared(_manifest(run)):
        return Next.of("compare", baseline, perf)
    return None


def both_stages(run: RunDirectory) -> Next | None:
    """Return the command that explains why a step got longer; None if a stage left nothing
    readable.
    """
    baseline, perf = (run.stage(name) for name in COMPARED)
    if not all(stage.traces() or stage.dumps() for stage in (baseline, perf)):
        return None
    return Next.of("analyze", perf.path, "--against", baseline.path)


def more_runs(run: RunDirectory) -> Next:
    """Return the command for pairs of runs, without and with the run directory's profile. Begun
    pairs are continued.
    """
    flags = format_flags(_flags(_asked(run)))
    profile = run.found_profile or run.profile
    begun = pairs_of(run)
    folder = free(run.path / PAIRS)
    if begun is not None and not are_whole(begun):
        folder = begun
    words = abba_words(3, profile, folder, launch_of(run).words)
    return replace(Next.of("compare", *words), xla_flags=flags)


def pairs_of(run: RunDirectory) -> Path | None:
    """Return the newest folder with pairs of runs that is newer than the performance run; None if
    there is none.
    """
    steps = run.stage("perf").rank().log
    found = [
        path
        for path in run.path.glob(f"{PAIRS}*")
        if path.is_dir() and not _written_before(path, steps)
    ]
    return max(found, key=time_written, default=None)


def by_every_rank(run: RunDirectory) -> bool:
    """Whether every rank of a job ran pgle. Then the next command needs a launcher too."""
    return any(record.ranks > 1 for record in _manifest(run).stages)


def _written_before(path: Path, other: Path) -> bool:
    """Whether a file was last written before another; false if it does not exist."""
    return 0 < time_written(path) < time_written(other)


def _asked(run: RunDirectory) -> Json:
    """Return the options that the stages of a run got, mainly from the profile stage."""
    manifest = _manifest(run)
    records = (manifest.last(name) for name in ("profile", *COMPARED, "capture"))
    for record in filter(None, records):
        if record.asked.get("command"):
            return dict(record.asked)
    return {}


def _flags(asked: Json) -> list[Flag]:
    """Return the flags that are not in the environment, so that the next command must repeat
    them.
    """
    if not asked.get("XLA_FLAGS"):
        return []
    here: tuple[Flag, ...] = ()
    with suppress(UserError):
        here = user_flags(os.environ).flags
    return [flag for flag in parse_flags(asked["XLA_FLAGS"]).flags if flag not in here]


def _manifest(run: RunDirectory) -> Manifest:
    """Return the records; none if they are unreadable, which the next command will report."""
    try:
        return read_manifest(run.path)
    except UserError:
        return Manifest()


def time_written(path: Path) -> float:
    """Return when a file was last written, in seconds since 1970; 0 if it does not exist."""
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
