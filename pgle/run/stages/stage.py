"""One stage of an experiment: its request, the back end that runs it, its record, and its
result.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Literal

from pgle.costs.profile.files import read_profile
from pgle.files import AnyPath, Json
from pgle.masking import kept_argv, kept_environment
from pgle.next import Sentence
from pgle.run.ask.machine import all_gpus, git_commit
from pgle.run.confirm import ConfirmRequest, confirm
from pgle.run.directory.directory import (
    PROGRAM_FILES,
    RankFiles,
    RunDirectory,
    StageFolder,
    StageName,
)
from pgle.run.directory.facts import HookFacts
from pgle.run.directory.manifest import (
    StageRecord,
    extend_manifest,
    now,
    put_back,
    read_manifest,
    record_file,
)
from pgle.run.process.efforts import efforts, with_efforts
from pgle.run.process.environment import ChildEnvironment
from pgle.run.process.flags import given_flags
from pgle.run.process.launchers import Rank
from pgle.run.process.process import named_files
from pgle.xla.flags.presets import Mode
from pgle.xla.flags.text import kept_flags
from pgle.xla.log.verdict import BOUNDS, Bounds, ModuleVerdict, ProfileUse


@dataclass(frozen=True)
class StageRequest:
    """The request for a stage, for any back end."""

    stage: StageName  # profile, baseline or perf; auto and auto-nsys for `pgle auto`
    # the user's words; may be empty for a simulated stage with a captured program
    command: tuple[str, ...]
    run: RunDirectory  # the run directory
    mode: Mode  # flags: async or sync for a profile stage, else baseline or perf
    # cost profile of a perf stage; a back end gets a copy in the run directory
    profile: AnyPath | None = None
    # more XLA flags, as the user gave them on the command line
    flags: tuple[str, ...] = ()
    # descriptor for the program's stdout: ours, or 2 (stderr) if ours carries results
    stdout: Literal[1, 2] = 1
    # what the profile of a perf stage must cover to count as used
    bounds: Bounds = BOUNDS

    @property
    def folder(self) -> StageFolder:
        """The folder of the stage's files."""
        return self.run.stage(self.stage)

    def plan(self, versions: Mapping[str, str], **asked: object) -> StageRecord:
        """Make the record of a run, with all that decides its outcome.

        `asked` has the back end's own options, as JSON types. Input files are the profile, and the
        program's files that the command names.
        """
        given = given_flags(os.environ, self.flags)
        flags = with_efforts(given.text, efforts(more=self.flags))
        argv = kept_argv(self.command)
        common = {
            "command": list(argv),
            "mode": self.mode,
            "XLA_FLAGS": kept_flags(flags.text),
        }
        words = named_files(self.command)
        paths = [Path(word) for word in words if word.endswith(PROGRAM_FILES)]
        if isinstance(self.profile, Path):
            paths += files_of_profile(self.profile)
        return StageRecord(
            self.stage,
            mode=self.mode,
            argv=argv,
            versions=versions,
            asked={**common, **asked},
            inputs=tuple(record_file(path, self.run.path) for path in paths),
        )


@dataclass(frozen=True)
class StageResult:
    """The result of a stage."""

    request: StageRequest  # what was asked
    simulated: bool  # whether the GPU was simulated
    # for a perf stage, whether XLA used the profile for the main module
    verdict: ModuleVerdict | None = None
    # step times of the slowest rank, in order; simulated if `simulated`
    step_times_s: tuple[float, ...] = ()
    # for the report: name → value
    facts: Mapping[str, str] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()  # one line each
    rank: int = 0  # of this process in the job
    # why a profile stage left no trace, and what to do; empty if it left one
    failed: str = ""

    @property
    def good(self) -> bool:
        """Whether the stage achieved its goal: a trace for a profile stage, use of the profile for
        perf.

        The program may have succeeded even if this is false.
        """
        used = self.verdict is not None and self.verdict.verdict is ProfileUse.USED
        return not self.failed and (self.request.stage != "perf" or used)


def files_of_profile(profile: Path) -> list[Path]:
    """Return the files of a profile: itself, or a directory's files."""
    if not profile.is_dir():
        return [profile]
    return sorted(
        path for path in profile.iterdir() if path.suffix in (".pb", ".pbtxt")
    )


def begin_record(
    request: StageRequest,
    planned: StageRecord,
    environment: ChildEnvironment,
    *,
    rank: Rank | None = None,
    simulated: bool = False,
    before: str = "",
) -> StageRecord:
    """Write the record of a stage that is about to start.

    `before` comes from `waiting`. A `simulated` stage does not depend on the GPUs and variables of
    this machine, so its record has none.
    """
    rank = rank or Rank()
    findings = [item for item in environment.warnings if item.level != "note"]
    record = replace(
        planned,
        rank=rank.rank,
        ranks=max(rank.size, rank.rank + 1),
        xla_flags=kept_flags(environment.flags.text),
        commit=git_commit(),
        host=socket.gethostname(),
        started=now(),
        warnings=tuple(finding.line() for finding in findings),
        before=before,
    )
    if simulated:
        record = replace(record, environment={}, gpus=(), topology={"simulated": True})
    else:
        variables = kept_environment(environment.values)
        record = replace(record, environment=variables, gpus=all_gpus(), topology={})
    extend_manifest(request.run.path, record)
    return record


def confirm_stage(
    request: StageRequest, files: RankFiles, facts: HookFacts
) -> ModuleVerdict | None:
    """Return what this rank's log and schedule dump prove about the profile of a perf stage; None
    without a profile.

    `facts` come from the hook.
    """
    profile = request.profile
    if profile is None:
        return None
    platform = str(facts.get("platform", ""))
    if platform == "cpu":
        why = (
            "jax ran on CPU devices, whose compiler has no latency-hiding scheduler "
            "and reads no profile"
        )
        remedy = "run it on GPUs, or see what a GPU would do: --capture simulated"
        return ModuleVerdict(
            "",
            ProfileUse.CANNOT_TELL,
            why,
            remedy=Sentence.todo(remedy),
            profile=str(profile),
        )
    if not facts and not files.seen.exists() and not files.log.stat().st_size:
        why = "the program left neither log lines nor facts"
        return ModuleVerdict("", ProfileUse.CANNOT_TELL, why, profile=str(profile))
    return confirm(
        ConfirmRequest(
            files.log,
            schedule=files.schedule_dumps,
            profile=read_profile(profile),
            release=facts.get("versions", {}).get("jax"),
            whole=bool(facts.get("finished")),
            bounds=request.bounds,
        )
    ).main


@dataclass(frozen=True)
class KeptVerdict:
    """The verdict on a profile, as stored in the record of a perf stage.

    It can be judged again with other bounds.
    """

    verdict: str = ""  # a `ProfileUse`
    why: str = ""
    # share of the module's time that has a cost; None: unknown
    time_coverage: float | None = None
    # share of the profile's costs that XLA kept; None: all
    kept_share: float | None = None

    @property
    def text(self) -> str:
        """The verdict and its reason; empty if nothing was recorded."""
        return ": ".join(filter(None, (self.verdict, self.why)))

    def is_used(self, bounds: Bounds) -> bool:
        """Whether XLA used the profile, and enough of it according to these bounds."""
        took_costs = self.verdict in (ProfileUse.USED, ProfileUse.PARTLY_USED)
        if took_costs and self.time_coverage is not None:
            kept = 1.0 if self.kept_share is None else self.kept_share
            return bounds.are_met(self.time_coverage, kept)
        return self.verdict == ProfileUse.USED


def kept_verdict(performed: StageFolder) -> KeptVerdict:
    """Return the verdict that the last run of a stage recorded; an empty one without a run."""
    record = read_manifest(performed.run.path).last(performed.name)
    if record is None:
        return KeptVerdict()
    names = (field.name for field in fields(KeptVerdict))
    return KeptVerdict(
        **{name: record.facts[name] for name in names if name in record.facts}
    )


def end_record(
    run: RunDirectory,
    record: StageRecord,
    exit_code: int,
    *,
    outputs: Iterable[Path] = (),
    warnings: Sequence[str] = (),
    facts: Json | None = None,
    verdict: ModuleVerdict | None = None,
    failed: str = "",
) -> StageRecord:
    """Complete the record of a stage that has ended, and write it; fields as in `StageRecord`.

    The facts of a perf stage include what `KeptVerdict` reads. If the stage failed and an older run
    had finished, that run is restored, and the record names the folder of the new files.
    """
    kept = ("verdict", "why", "proof", "time_coverage", "kept_share")
    judged = {
        name: value
        for name in kept
        if (value := getattr(verdict, name, None)) is not None
    }
    ended = replace(
        record,
        ended=now(),
        exit_code=exit_code,
        outputs=tuple(record_file(path, run.path) for path in outputs),
        warnings=(*record.warnings, *warnings),
        facts={**record.facts, **(facts or {}), **judged},
        failed=failed,
    )
    if ended.before and not ended.is_done:
        return put_back(run, ended)
    extend_manifest(run.path, ended)
    return ended
