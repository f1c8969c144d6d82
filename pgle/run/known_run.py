"""What is known of a run directory's program: the facts by which all answers on it lead on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from pgle.account.next_move import Known, Measured, known_of
from pgle.account.value import Shown
from pgle.errors import UserError
from pgle.next import Next, Sentence
from pgle.requests.predictions import Rehearse
from pgle.run.compare import CompareRequest, run_compare, timed_of
from pgle.run.directory.directory import RunDirectory
from pgle.run.directory.rounds import are_whole
from pgle.run.inputs.found_flags import search_of
from pgle.run.inputs.next_command import UNKNOWN, pairs_of, stage_left
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
    known = _known_of_stages(run, left) if not is_judged else Known()
    if known != Known():
        return known
    is_compared = found is not None or left is None
    if found is None:
        found = _compared(run.path)
    if found is not None and not is_compared:
        return Known(is_unfinished=True)
    # what only compares needs nothing that reads modules
    from pgle.run.kept_trials import trials_of_run
    from pgle.run.predict import account_of_run

    account = account_of_run(run)
    if account is not None:
        trials = trials_of_run(run) if shown is None else shown
        account = account.with_trials(trials)
    timed = None if found is None else timed_of(found)
    known = known_of(timed, search=search_of(run), account=account)
    if not found:
        return replace(known, measured=Measured.TOO_SHORT)
    return _with_pairs(known, run)


def _known_of_stages(run: RunDirectory, left: Next | None) -> Known:
    """A stage that is to be run, a profile that has too few costs, or one that XLA did not use; the
    first that holds.
    """
    if left is not None and left.name in ("profile", "convert"):
        return Known(is_unfinished=True)
    unused = None
    if left is None or left.name == "compare":
        unused = _unused(run)
        if unused is None:
            return Known()
    if not _is_covered(run):
        return Known(is_covered=False)
    return Known(is_unfinished=unused is None, unused=unused)


def _is_covered(run: RunDirectory) -> bool:
    """Whether the profile has what `verify` asks for; yes where no HLO tells it."""
    from pgle.run.coverage import verify

    if run.found_profile is None:
        return True
    try:
        return verify(run.found_profile, [run.dump_to_cover]).is_ok(BOUNDS)
    except UserError:
        return True


def _unused(run: RunDirectory) -> Sentence | None:
    """What to do where the log of the performance run says that XLA did not use the profile."""
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
    found = _compared(folder)
    if found is None or found.simulated:
        return replace(known, is_repeated=True)
    return replace(known, is_repeated=True, verdict=found.verdict)


def _compared(folder: Path) -> Comparison | None:
    """The comparison of both sides in a folder; None if there are too few steps for one."""
    try:
        return run_compare(CompareRequest((str(folder),)))[0]
    except UserError:  # `pgle compare` says why
        return None


def can_compile(run: RunDirectory) -> bool:
    """Whether a run directory holds the modules of its program, and says how it is run."""
    from pgle.run.rehearse_program import launch_of_program, understood

    try:
        command = understood(Rehearse((str(run.path),)))
    except UserError:  # it holds no module
        return False
    return launch_of_program(command).words != UNKNOWN
