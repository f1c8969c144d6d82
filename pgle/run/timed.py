"""The comparison of a run's step times, for other answers about its program."""

from __future__ import annotations

from pgle.account.value import TimedSteps
from pgle.run.directory.directory import RunDirectory


def timed_steps(run: RunDirectory | None) -> TimedSteps | None:
    """Return the comparison of a run's step times.

    None without a run, or unless all stages exist and their step times were compared.
    """
    if run is None:
        return None
    # imported late: an answer without a run needs no code that compares step times
    from pgle.run.compare import compared_in, timed_of
    from pgle.run.inputs.next_command import stage_left

    if stage_left(run) is not None:
        return None
    found = compared_in(run.path)
    return None if found is None else timed_of(found)
