"""What the timed steps of a run say, for other answers about its program."""

from __future__ import annotations

from pgle.account.value import TimedSteps
from pgle.run.directory.directory import RunDirectory


def timed_steps(run: RunDirectory | None) -> TimedSteps | None:
    """The comparison of a run's timed steps.

    None without a run, or unless all its stages are there and their step times were compared.
    """
    if run is None:
        return None
    # a module without a run is answered without what reads and compares step times
    from pgle.run.compare import compared_in, timed_of
    from pgle.run.inputs.next_command import stage_left

    if stage_left(run) is not None:
        return None
    found = compared_in(run.path)
    return None if found is None else timed_of(found)
