"""What is known of a run directory's program: the facts by which all answers on it lead on."""

from __future__ import annotations

from dataclasses import replace

from pgle.account.next_move import Known, Measured, known_of
from pgle.account.value import Shown
from pgle.errors import UserError
from pgle.requests.predictions import Rehearse
from pgle.run.compare import CompareRequest, run_compare, timed_of
from pgle.run.directory.directory import RunDirectory
from pgle.run.inputs.found_flags import search_of
from pgle.run.inputs.next_command import UNKNOWN, stage_left
from pgle.steps.compare import Comparison


def known_of_run(
    run: RunDirectory, found: Comparison | None = None, shown: Shown | None = None
) -> Known:
    """What its stages, searches and trials have shown, and the account of its step as it will run.

    Args:
        found: the comparison of its stages; None: it is made here.
        shown: what trying edits of its program has shown; None: as it was kept.
    """
    left = stage_left(run)
    if left is not None and left.name != "compare":
        return Known(is_unfinished=True)
    is_compared = found is not None or left is None
    if found is None:
        found = _compared(run)
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
    return known if found else replace(known, measured=Measured.TOO_SHORT)


def _compared(run: RunDirectory) -> Comparison | None:
    """The comparison of its stages; None if there are too few steps for one."""
    try:
        return run_compare(CompareRequest((str(run.path),)))[0]
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
