"""The next move in a run directory, as a command."""

from __future__ import annotations

from pgle.account.next_move import Known, Move, next_move
from pgle.next import Commands, Next, Sentence
from pgle.report.account import end_words
from pgle.run.directory.directory import RunDirectory
from pgle.run.inputs import found_flags, next_command
from pgle.run.known_run import can_compile


def way_of_run(run: RunDirectory, known: Known) -> Commands:
    """Return the next move as a command for this run directory, or a sentence if no command
    follows.
    """
    move = next_move(known)
    command = _command(run, known, move)
    if command is not None:
        return (command,)
    if move is Move.USE and known.unused is not None:
        return (Sentence.done("XLA did not use the profile").then(known.unused),)
    if move is Move.KEEP:
        profile = run.found_profile or run.profile
        keep = Next.of("flags", "preset", "pgle-perf", "--profile", profile)
        words = "keep the profile; the job's script needs what "
        return (Sentence.todo(words, keep, " prints"),)
    if move is Move.LENGTHEN:
        why = (
            " says why the steps cannot be compared; ",
            "run more of them, then again",
        )
        return (Sentence.todo(Next.of("compare", run.path), *why),)
    return (end_words(known),)


def _command(run: RunDirectory, known: Known, move: Move) -> Next | None:
    """The command of a move; None if the move has no command here."""
    if move is Move.FINISH:
        return next_command.stage_left(run)
    if move is Move.VERIFY:
        profile = run.found_profile or run.profile
        bounds = next_command.bound_words(run)
        return Next.of("verify", profile, "--hlo", run.dump_to_cover, *bounds)
    if move is Move.MEASURE:
        return found_flags.tuned_run(run)
    if move is Move.PROVE:
        return next_command.launch_of(run).on_gpus().line("run", run.sibling("gpu"))
    if move is Move.REPEAT:
        return next_command.more_runs(run)
    if move is Move.EXPLAIN:
        return next_command.both_stages(run)
    if move is Move.SEARCH and can_compile(run):
        return found_flags.tune(run)
    if move is Move.ADVISE and can_compile(run):
        lever = known.lever
        tries = None if lever is None else lever.command
        return tries or Next.of("advise", run.path)
    return None
