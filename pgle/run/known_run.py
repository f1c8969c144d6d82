"""What is known about a run directory's program. All answers choose their next command from these
facts.
"""

from __future__ import annotations

from dataclasses import replace

from pgle.account.next_move import Known, Measured, known_of
from pgle.account.value import Shown, TimedSteps
from pgle.errors import UserError
from pgle.next import Next, Sentence
from pgle.requests.predictions import Rehearse
from pgle.run.compare import compared_in, timed_of
from pgle.run.directory.directory import RunDirectory
from pgle.run.directory.manifest import kept_bounds
from pgle.run.directory.rounds import are_whole
from pgle.run.inputs.found_flags import search_of
from pgle.run.inputs.next_command import UNKNOWN, pairs_of, stage_left
from pgle.run.timed import timed_steps
from pgle.steps.compare import Comparison
from pgle.steps.verdict import Verdict
from pgle.xla.log.verdict import Bounds, ProfileUse


def known_of_run(
    run: RunDirectory,
    found: Comparison | None = None,
    shown: Shown | None = None,
    *,
    is_judged: bool = False,
) -> Known:
    """Return what stages, searches and trials show, with the account of the program's final step.

    Args:
        run: the run directory.
        found: the comparison of its stages; None: compare them here.
        shown: the trials of edits of the program; None: the saved ones.
        is_judged: whether the caller knows that all stages are complete and that XLA uses the
            profile.
    """
    left = stage_left(run)
    unfinished = None if is_judged else _known_of_stages(run, left)
    if unfinished is not None:
        return unfinished
    if found is None and left is not None and compared_in(run.path) is not None:
        return Known(is_unfinished=True)
    # imported late: a comparison needs no code that reads modules
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
    """Return the first problem of the stages: a stage has to run, the profile lacks costs, or XLA
    did not use the profile. None: there is no problem.
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
    """Whether the profile covers as much as `verify` asks for. True if there is no HLO to compare
    with.
    """
    from pgle.run.coverage import verify

    if run.found_profile is None:
        return True
    try:
        covered = verify(run.found_profile, [run.dump_to_cover])
        return covered.is_ok(_bounds(run))
    except UserError:
        return True


def _bounds(run: RunDirectory) -> Bounds:
    asked = kept_bounds(run.path)
    return Bounds(asked.min_time_coverage, asked.min_collectives)


def _unused(run: RunDirectory) -> Sentence | None:
    """Return the remedy if the performance run's log says that XLA did not use the profile; else
    None.
    """
    from pgle.run.confirm import ConfirmRequest, confirm

    try:
        perf = run.stage("perf").path
        main = confirm(ConfirmRequest(perf, bounds=_bounds(run))).main
    except UserError:
        return None
    if main.verdict in (ProfileUse.USED, ProfileUse.CANNOT_TELL):
        return None
    look = ("see with ", Next.of("confirm", run.path), " what the log says of it")
    return main.remedy or Sentence.todo(*look)


def _with_pairs(known: Known, run: RunDirectory) -> Known:
    """Return the facts; if the stages alone leave the verdict open, add the verdict of pairs of
    runs.
    """
    folder = pairs_of(run)
    is_unclear = known.verdict is Verdict.UNDECIDED
    if not is_unclear or folder is None or not are_whole(folder):
        return known
    found = compared_in(folder)
    if found is None or found.simulated:
        return replace(known, is_repeated=True)
    return replace(known, is_repeated=True, verdict=found.verdict)


def can_compile(run: RunDirectory) -> bool:
    """Whether a run directory holds the program's modules and its command line."""
    from pgle.run.rehearse_program import launch_of_program, understood

    try:
        command = understood(Rehearse((str(run.path),)))
    except UserError:  # the run directory holds no module
        return False
    return launch_of_program(command).words != UNKNOWN
