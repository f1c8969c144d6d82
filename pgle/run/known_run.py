"""What is known of a run directory's program. All answers on it choose their next command by it."""

from __future__ import annotations

from dataclasses import replace

from pgle.account.next_move import Known, Measured, known_of
from pgle.account.value import Shown, TimedSteps
from pgle.errors import UserError
from pgle.next import Next, Sentence
from pgle.requests.predictions import Rehearse
from pgle.run.compare import compared_in, timed_of
from pgle.run.directory.directory import RunDirectory
from pgle.run.directory.rounds import are_whole
from pgle.run.inputs.found_flags import search_of
from pgle.run.inputs.next_command import UNKNOWN, pairs_of, stage_left
from pgle.run.timed import timed_steps
from pgle.steps.compare import Comparison
from pgle.steps.verdict import Verdict
from pgle.xla.log.verdict import BOUNDS, ProfileUse


def known_of_run(
    run: RunDirectory,
    found: Comparison | None = None,
    shown: Shown | None = None,
    *,
    is_judged: bool = False,
) -> Known:
    """What its stages, searches and trials have shown, and the account of its step as it will run.

    Args:
        found: the comparison of its stages; None: it is made here.
        shown: what trying edits of its program has shown; None: as it was kept.
        is_judged: its stages are known to be whole, and XLA to use the profile.
    """
    left = stage_left(run)
    unfinished = None if is_judged else _known_of_stages(run, left)
    if unfinished is not None:
        return unfinished
    if found is None and left is not None and compared_in(run.path) is not None:
        return Known(is_unfinished=True)
    # what only compares needs nothing that reads modules
    from pgle.run.kept_trials import trials_of_run
    from pgle.run.predict import account_of_run

    account = account_of_run(run)
    if account is not None:
        trials = trials_of_run(run) if shown is None else shown
        account = account.with_trials(trials)
    timed: TimedSteps | None
    if found is not None:
        timed = timed_of(found)
    elif account is not None:
        timed = account.timed
    else:
        timed = timed_steps(run)
    known = known_of(timed, search=search_of(run), account=account)
    if timed is None:
        return replace(known, measured=Measured.TOO_SHORT)
    return _with_pairs(known, run)


def _known_of_stages(run: RunDirectory, left: Next | None) -> Known | None:
    """A stage that is to be run, a profile that has too few costs, or one that XLA did not use; the
    first that holds. None: its stages are whole, and XLA used the profile.
    """
    if left is not None and left.name in ("profile", "convert"):
        return Known(is_unfinished=True)
    unused = None
    if left is None or left.name == "compare":
        unused = _unused(run)
        if unused is None:
            return None
    if not _is_covered(run):
        return Known(is_covered=False)
    return Known(is_unfinished=unused is None, unused=unused)


def _is_covered(run: RunDirectory) -> bool:
    """Whether the profile has what `verify` asks for; true if there is no HLO to compare with."""
    from pgle.run.coverage import verify

    if run.found_profile is None:
        return True
    try:
        return verify(run.found_profile, [run.dump_to_cover]).is_ok(BOUNDS)
    except UserError:
        return True


def _unused(run: RunDirectory) -> Sentence | None:
    """What to do if the log of the performance run says that XLA did not use the profile; else
    None.
    """
    from pgle.run.confirm import ConfirmRequest, confirm

    try:
        main = confirm(ConfirmRequest(run.stage("perf").path)).main
    except UserError:
        return None
    if main.verdict in (ProfileUse.USED, ProfileUse.CANNOT_TELL):
        return None
    look = ("see with ", Next.of("confirm", run.path), " what the log says of it")
    return main.remedy or Sentence.of(*look)


def _with_pairs(known: Known, run: RunDirectory) -> Known:
    """The same, with the verdict of pairs of runs if the stages alone were undecided."""
    folder = pairs_of(run)
    is_unclear = known.verdict is Verdict.UNDECIDED
    if not is_unclear or folder is None or not are_whole(folder):
        return known
    found = compared_in(folder)
    if found is None or found.simulated:
        return replace(known, is_repeated=True)
    return replace(known, is_repeated=True, verdict=found.verdict)


def can_compile(run: RunDirectory) -> bool:
    """Whether a run directory holds the modules of its program, and says how it is run."""
    from pgle.run.rehearse_program import launch_of_program, understood

    try:
        command = understood(Rehearse((str(run.path),)))
    except UserError:  # it holds no module
        return False
    return launch_of_program(command).words != UNKNOWN
