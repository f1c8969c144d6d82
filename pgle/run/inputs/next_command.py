"""What to type next, by the files in a run directory.

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

ON_GPU = "jax"  # the profiler that every GPU has; without a GPU it is refused
UNKNOWN = ("COMMAND",)  # placeholder for an unknown program

_OPTIONS: Mapping[str, object] = {
    item.name: None
    for item in (*declared(OnDevices), *declared(Captured))
    if item.option.is_repeated
}
_OF_PROFILING = {
    item.name: item.default for item in (*declared(InMode), *declared(Windowed))
}
"""Options of all stages and of stages that profile, with the default, which is not repeated."""


@dataclass(frozen=True)
class ProgramLaunch:
    """How a program is run by pgle."""

    words: tuple[str, ...] = UNKNOWN  # of its command line
    options: tuple[str, ...] = ()  # of every command of pgle that starts programs
    profiling: tuple[str, ...] = ()  # options of commands that profile it
    capture: str = ""  # the profiler; empty: left to the machine
    run: RunDirectory | None = (
        None  # the run directory in which it was measured; None: it was not yet
    )
    bounds: tuple[str, ...] = ()  # options of commands that judge its profile

    def with_flags(self, flags: Sequence[str]) -> ProgramLaunch:
        """The same with more XLA flags."""
        return replace(
            self, options=(*self.options, *(f"--flag={flag}" for flag in flags))
        )

    def on_gpus(self) -> ProgramLaunch:
        """The same where there are GPUs: a workload of pgle that was only compiled has to run
        there.
        """
        ours = "pgle.workloads" in self.words
        words = tuple(
            word for word in self.words if not (ours and word == "--compile-only")
        )
        return replace(self, words=words, capture=ON_GPU)

    def line(self, command: str, run_dir: Path, *more: object) -> Next:
        """``pgle run``, ``profile`` or ``perf`` of the program into a run directory."""
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
    """How the program of a run directory was run; what its profile stage was asked for says
    most.
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
    """The options that ask for what a profile must cover there; none for the default."""
    return tuple(kept_bounds(run.path).next_words(Bounded))


def _words(asked: Json, defaults: Mapping[str, object]) -> list[str]:
    """The options that do not have their default."""
    words = []
    for name, default in defaults.items():
        if asked.get(name, default) != default:
            words += [f"--{name}", str(asked[name])]
    return words


def stage_left(run: RunDirectory) -> Next | None:
    """The command of what is missing or out of date: a stage or the comparison; None if
    nothing.
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
    """The command that explains why a step got longer; None if a stage left nothing to read."""
    baseline, perf = (run.stage(name) for name in COMPARED)
    if not all(stage.traces() or stage.dumps() for stage in (baseline, perf)):
        return None
    return Next.of("analyze", perf.path, "--against", baseline.path)


def more_runs(run: RunDirectory) -> Next:
    """Pairs of runs of a program, without and with the profile of its run directory; those that
    were begun are continued.
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
    """The newest folder of pairs of runs that is newer than the performance run; None if none."""
    steps = run.stage("perf").rank().log
    found = [
        path
        for path in run.path.glob(f"{PAIRS}*")
        if path.is_dir() and not _written_before(path, steps)
    ]
    return max(found, key=time_written, default=None)


def by_every_rank(run: RunDirectory) -> bool:
    """Whether every rank of a job ran pgle, so that the next command is for a launcher too."""
    return any(record.ranks > 1 for record in _manifest(run).stages)


def _written_before(path: Path, other: Path) -> bool:
    """Whether a file was last written before another; one that is not there is not."""
    return 0 < time_written(path) < time_written(other)


def _asked(run: RunDirectory) -> Json:
    """What the stages of a run were asked for; the profile stage says most."""
    manifest = _manifest(run)
    records = (manifest.last(name) for name in ("profile", *COMPARED, "capture"))
    for record in filter(None, records):
        if record.asked.get("command"):
            return dict(record.asked)
    return {}


def _flags(asked: Json) -> list[Flag]:
    """The flags that are not in the environment, where the next command has them too."""
    if not asked.get("XLA_FLAGS"):
        return []
    here: tuple[Flag, ...] = ()
    with suppress(UserError):
        here = user_flags(os.environ).flags
    return [flag for flag in parse_flags(asked["XLA_FLAGS"]).flags if flag not in here]


def _manifest(run: RunDirectory) -> Manifest:
    """The records; none where they cannot be read, which the next command says."""
    try:
        return read_manifest(run.path)
    except UserError:
        return Manifest()


def time_written(path: Path) -> float:
    """When a file was last written, in seconds since 1970; 0 if it is not there."""
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
