"""What the timed steps of a run say, for other answers about its program."""

from __future__ import annotations

from pgle.account.value import TimedSteps
from pgle.errors import UserError
from pgle.run.directory.directory import RunDirectory


def timed_steps(run: RunDirectory | None) -> TimedSteps | None:
    """The comparison of a run's timed steps.

    None without a run, or unless all its stages are there and their step times were compared.
    """
    if run is None:
        return None
    # a module without a run is answered without what reads and compares step times
    from pgle.run.compare import CompareRequest, run_compare, timed_of
    from pgle.run.inputs.next_command import stage_left

    if stage_left(run) is not None:
        return None
    try:
        found, _ = run_compare(CompareRequest((str(run.path),)))
    except UserError:  # the comparison itself says why
        return None
    return timed_of(found)
