"""The commands that lead on from an answer; the first is the one to type now."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from pgle.files import AnyPath
from pgle.next import Commands, Next, Sentence
from pgle.run.directory.directory import RunDirectory, stage_of
from pgle.run.inputs import next_command

if TYPE_CHECKING:
    from pgle.account.next_move import Known
    from pgle.steps.compare import Comparison, LimitCheck
    from pgle.xla.log.verdict import LogVerdict

DUMP = "DUMP"  # the HLO dump of a job, if none was named

NO_DUMP = Sentence.todo(
    "give the profile to the job in --xla_gpu_pgle_profile_file_or_directory_path; "
    "the job's dump (--xla_dump_to) says with ",
    Next.of("verify"),
    " what of it fits",
)
GIVE_IT = (
    "the profile fits; give it to the job in XLA_FLAGS: "
    "--xla_gpu_pgle_profile_file_or_directory_path="
)


def after_conversion(profile: AnyPath, hlo: Sequence[AnyPath]) -> Commands:
    """Check the profile against the module; if no HLO is known, look at the costs."""
    if not hlo:
        return (Next.of("show", profile),)
    dumps = chain.from_iterable(("--hlo", path) for path in hlo)
    return (Next.of("verify", profile, *dumps),)


def after_verification(profile: AnyPath, hlo: Sequence[AnyPath]) -> Commands:
    """Run with a profile that fits; outside a run directory predict its effect first."""
    run = _run_of_profile(profile)
    if run is not None:
        return (next_command.following(run),)
    return (Next.of("predict", hlo[0], "--profile", profile),)


def after_summary(
    profile: AnyPath, modules: Mapping[str, Collection[str]] | None = None
) -> Commands:
    """Check a profile against its modules.

    Args:
        profile: that was looked at.
        modules: its modules, their fingerprints by name; a dump of them is looked for in its folder
            and in its run.
    """
    from pgle.run.inputs.folder import dump_near

    run = _run_of_profile(profile)
    dump = None
    if run is not None:
        dump = run.dump_to_cover
    elif isinstance(profile, Path) and modules:
        dump = dump_near(profile.parent, modules)
    return (NO_DUMP,) if dump is None else after_conversion(profile, [Path(dump)])


def after_confirmation(log: AnyPath, found: LogVerdict) -> Commands:
    """Ask whether it is faster; a profile that was not used is checked first."""
    stage = stage_of(log) or stage_of(log.parent)
    if found.main.verdict != "used":
        if stage is None:
            unknown = Sentence.todo("see what the log says of the profile")
            return (found.main.remedy or unknown,)
        return after_summary(stage.run.profile)
    if stage is not None:
        return (next_command.following(stage.run),)
    words = "XLA used the profile; compare the step times of both jobs"
    return (Sentence.todo(words),)


def after_comparison(
    found: Comparison, checks: Sequence[LimitCheck] = (), more: Sequence[object] = ()
) -> Commands:
    """By the verdict: keep a faster setting, analyze a slower one, run more if undecided.

    Args:
        found: the comparison.
        checks: of it; one that cannot tell asks for more runs.
        more: the words after ``pgle compare`` that run more of both sides, if they are known.
    """
    from pgle.run.compare import compared_run
    from pgle.steps.compare import explanation

    run = compared_run(found)
    if run is not None:
        return after_stages(run, found)
    if found.verdict == "undecided" or any(check.ok is None for check in checks):
        words = more or ("--abba", 3, "--", "COMMAND_A", "--vs", "COMMAND_B")
        return (Next.of("compare", *words),)
    if found.verdict == "slower":
        return (explanation(found),)
    if found.verdict == "same":
        return (Sentence.of("both sides take the same time"),)
    return (Sentence.todo(f"keep {found.new.label}: it is faster"),)


def after_entry(path: Path) -> Commands:
    """Return the option with which a comparison takes the launch spread from a history."""
    option = Next(("--history", str(path)))
    return (Sentence.todo("give it to a comparison with ", option),)


def after_lint(flags: Sequence[str], file: str | None, *, clean: bool) -> Commands:
    """Rehearse with correct flags; the answer has remedies for the others."""
    if not clean:
        return ()
    given = tuple(f"--flag={flag}" for flag in flags)
    if file:
        given = ("--flags-file", file)
    command = Next.of("rehearse", *given)
    return (Sentence.of("no error; what they do is shown by ", command),)


def after_stages(run: RunDirectory, found: Comparison | None) -> Commands:
    """Return what follows the comparison of a run directory's stages. None: there were too few
    steps to compare.
    """
    if found is None:
        return (next_command.launch_of(run).line("run", run.path),)
    from pgle.account.next_move import Move, known_of, next_move
    from pgle.run.compare import timed_of
    from pgle.run.predict import account_of_run

    timed = timed_of(found)
    is_searched = next_command.is_searched(run)
    known = known_of(timed, is_searched=is_searched)
    if next_move(known) in (Move.SEARCH, Move.END):
        account = account_of_run(run)
        known = known_of(timed, is_searched=is_searched, account=account)
    return way_of_run(run, known)


def way_of_run(run: RunDirectory, known: Known) -> Commands:
    """Return the next move as a command for this run directory, or its end in words."""
    from pgle.account.next_move import Move, next_move
    from pgle.report.account import end_words

    launch = next_command.launch_of(run)
    move = next_move(known)
    if move is Move.PROVE:
        there = run.path.with_name(f"{run.path.name}-gpu")
        return (launch.on_gpus().line("run", there),)
    search = next_command.tune(run)
    if move is Move.SEARCH and search is not None:
        return (search,)
    if move is Move.REPEAT:
        return (next_command.more_runs(run),)
    if move is Move.EXPLAIN:
        perf = run.stage("perf").path
        baseline = run.stage("baseline").path
        return (Next.of("analyze", perf, "--against", baseline),)
    if move is Move.KEEP:
        profile = run.found_profile or run.profile
        keep = Next.of("flags", "preset", "pgle-perf", "--profile", profile)
        words = "keep the profile; the job's script needs what "
        return (Sentence.of(words, keep, " prints"),)
    return (end_words(known),)


def _run_of_profile(profile: AnyPath) -> RunDirectory | None:
    """The run directory that a profile belongs to; None if it is not the profile of one."""
    path = Path(str(profile))
    run = RunDirectory(path.parent)
    is_of_run = run.is_recorded and path.stem == run.profile.stem
    return run if is_of_run else None
