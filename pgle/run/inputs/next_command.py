"""The next commands of an experiment, from the files in its run directory.

Each can be typed unchanged: it has the program's own words and the options of the earlier stages.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pgle.errors import UserError
from pgle.masking import kept_argv
from pgle.next import quoted, typed
from pgle.run.directory.directory import COMPARED, STORED, RunDirectory, free

if TYPE_CHECKING:
    from pgle.run.directory.manifest import Manifest
    from pgle.steps.compare import Comparison
    from pgle.xla.flags.text import Flag

COMPARE = "compare"  # stage of the manifest: the step times were compared
UNKNOWN = ("COMMAND",)  # placeholder for an unknown program

_OPTIONS = ("target", "devices", "topology", "choose")
_OF_PROFILING = {"mode": "sync", "window": "auto"}
"""Options of stages that profile, with the default, which is not repeated."""


@dataclass(frozen=True)
class Launch:
    """How a program is run by pgle."""

    words: tuple[str, ...] = UNKNOWN  # of its command line
    options: tuple[str, ...] = ()  # of every command of pgle that starts programs
    profiling: tuple[str, ...] = ()  # options of commands that profile it
    capture: str = ""  # the profiler; empty: left to the machine
    run: RunDirectory | None = None  # the run directory in which it was measured; None: it was not yet

    def with_flags(self, flags: Sequence[str]) -> Launch:
        """The same with more XLA flags."""
        return replace(self, options=(*self.options, *(f"--flag={flag}" for flag in flags)))

    def on_gpus(self) -> Launch:
        """The same where there are GPUs: a workload of pgle that was only compiled has to run there."""
        ours = any(word.startswith("pgle.workloads.") for word in self.words)
        words = tuple(word for word in self.words if not (ours and word == "--compile-only"))
        return replace(self, words=words, capture="")

    def line(self, command: str, run_dir: Path, *more: object) -> str:
        """``pgle run``, ``profile`` or ``perf`` of the program into a run directory."""
        capture = ("--capture", self.capture) if self.capture else ()
        profiling = () if command == "perf" else self.profiling
        options = (*capture, *self.options, *profiling, *more)
        return typed("pgle", command, "--run-dir", run_dir, *options, "--", *kept_argv(self.words))


def launch_of(run: RunDirectory) -> Launch:
    """How the program of a run directory was run; what its profile stage was asked for says most."""
    asked = _asked(run)
    if not asked:
        return Launch(run=run)
    options = [word for name in _OPTIONS if asked.get(name) is not None for word in (f"--{name}", str(asked[name]))]
    judged = run.judged_flags.read_text().splitlines() if run.judged_flags.is_file() else []
    options += [f"--flag={flag.word}" for flag in _flags(asked) if flag.word not in judged]
    options += ["--flags-file", str(run.judged_flags)] if judged else []
    profiling = [
        word
        for name, default in _OF_PROFILING.items()
        if asked.get(name, default) != default
        for word in (f"--{name}", str(asked[name]))
    ]
    return Launch(tuple(asked["command"]), tuple(options), tuple(profiling), asked.get("capture") or "", run)


def following(run: RunDirectory) -> str:
    """The command that leads on: to the stage that is missing or out of date, then to the comparison, to the page."""
    baseline, perf = (run.stage(name).path for name in COMPARED)
    profile, traces = run.found_profile, run.stage("profile").trace_files()
    if profile is None and not perf.exists():
        return typed("pgle", "convert", run.path) if traces else launch_of(run).line("profile", run.path, "--force")
    if profile is not None and any(_is_older(profile, trace) for trace in traces):
        return typed("pgle", "convert", "--force", run.path)
    if not perf.exists():
        return launch_of(run).line("perf", run.path)
    if profile is not None and _is_older(run.stage("perf").rank().log, profile):
        return launch_of(run).line("perf", run.path, "--force")
    if not baseline.exists():
        return launch_of(run).line("perf", run.path, "--baseline")
    return look_closer(run) if _is_compared(_manifest(run)) else typed("pgle", "compare", baseline, perf)


def look_closer(run: RunDirectory) -> str:
    """The page on a run; where that is written already, where the step's time goes."""
    page = run.path / "report.html"
    return typed("pgle", "analyze", run.path) if page.exists() else typed("pgle", "report", run.path, "-o", page)


def tune(run: RunDirectory) -> str:
    """The search for flags by what was measured in a run; empty if one there has found nothing better."""
    searches = [path.parent for path in run.path.glob(f"tuned*/{STORED}")]
    if any(not (folder / "flags.txt").exists() for folder in searches):
        return ""
    return typed("pgle", "tune", run.path, "-o", free(run.path / "tuned"))


def more_runs(run: RunDirectory) -> str:
    """Pairs of runs of a program, without and with the profile of its run directory."""
    from pgle.xla.flags.text import format_flags

    flags = format_flags(_flags(_asked(run)))
    before = f'XLA_FLAGS="$XLA_FLAGS "{quoted(flags)} ' if flags else ""
    profile, folder = run.found_profile or run.profile, free(run.path / "abba")
    return before + typed("pgle", "compare", *abba_words(3, profile, folder, launch_of(run).words))


def abba_words(rounds: int, profile: Path | None, folder: Path, words: Sequence[str]) -> tuple[object, ...]:
    """The words after ``pgle compare`` that run a program, or two, in A-B-B-A order."""
    return ("--abba", rounds, *(("--profile", profile) if profile else ()), "--run-dir", folder, "--", *words)


def by_every_rank(run: RunDirectory) -> bool:
    """Whether every rank of a job ran pgle, so that the next command is for a launcher too."""
    return any(record.ranks > 1 for record in _manifest(run).stages)


def record_comparison(run: RunDirectory, found: Comparison) -> None:
    """Keep in the manifest that the step times were compared; where it cannot be written, they were none the less."""
    from pgle.run.directory.manifest import StageRecord, extend_manifest, now, read_manifest

    facts = {"verdict": found.verdict.value, "change": found.change}
    with suppress(UserError, OSError):
        if not _is_compared(read_manifest(run.path)):
            extend_manifest(run.path, StageRecord(COMPARE, started=now(), ended=now(), exit_code=0, facts=facts))


def _is_compared(manifest: Manifest) -> bool:
    """Whether the step times were compared since the last of their stages was run."""
    last = next((record.stage for record in reversed(manifest.stages) if record.stage in (COMPARE, *COMPARED)), "")
    return last == COMPARE


def _is_older(path: Path, other: Path) -> bool:
    """Whether a file was last written before another; one that is not there is not."""
    try:
        return path.stat().st_mtime < other.stat().st_mtime
    except OSError:
        return False


def _asked(run: RunDirectory) -> dict[str, Any]:
    """What the stages of a run were asked for; the profile stage says most."""
    manifest = _manifest(run)
    records = (manifest.last(name) for name in ("profile", *COMPARED, "capture"))
    return next((dict(record.asked) for record in records if record is not None and record.asked.get("command")), {})


def _flags(asked: dict[str, Any]) -> list[Flag]:
    """The flags that are not in the environment, where the next command has them too."""
    if not asked.get("XLA_FLAGS"):
        return []
    from pgle.run.process.environment import user_flags
    from pgle.xla.flags.text import parse_flags

    here: tuple[Flag, ...] = ()
    with suppress(UserError):
        here = user_flags(os.environ).flags
    return [flag for flag in parse_flags(asked["XLA_FLAGS"]).flags if flag not in here]


def _manifest(run: RunDirectory) -> Manifest:
    """The records; none where they cannot be read, which the next command says."""
    from pgle.run.directory.manifest import Manifest, read_manifest

    try:
        return read_manifest(run.path)
    except UserError:
        return Manifest()
