"""The commands that lead on in a run directory, by what its stages have shown."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pgle.account.next_move import Known, Move, known_of, next_move
from pgle.next import Commands, Next, Sentence
from pgle.report.account import end_words
from pgle.run.compare import timed_of
from pgle.run.directory.directory import RunDirectory
from pgle.run.inputs import next_command

if TYPE_CHECKING:
    from pgle.steps.compare import Comparison


def after_stages(run: RunDirectory, found: Comparison | None) -> Commands:
    """Return what follows the comparison of a run directory's stages. None: there were too few
    steps to compare.
    """
    if found is None:
        return (next_command.launch_of(run).line("run", run.path),)
    timed = timed_of(found)
    is_searched = next_command.is_searched(run)
    known = known_of(timed, is_searched=is_searched)
    if next_move(known) in (Move.SEARCH, Move.END):
        from pgle.run.kept_trials import trials_of_run
        from pgle.run.predict import account_of_run

        account = account_of_run(run)
        if account is not None:
            account = account.with_trials(trials_of_run(run))
        known = known_of(timed, is_searched=is_searched, account=account)
    return way_of_run(run, known)


def way_of_run(run: RunDirectory, known: Known) -> Commands:
    """Return the next move as a command for this run directory, or its end in words."""
    launch = next_command.launch_of(run)
    move = next_move(known)
    if move is Move.PROVE:
        there = run.path.with_name(f"{run.path.name}-gpu")
        return (launch.on_gpus().line("run", there),)
    search = next_command.tune(run)
    if move is Move.SEARCH and search is not None:
        return (search,)
    if move is Move.ADVISE:
        return (Next.of("advise", run.path),)
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
