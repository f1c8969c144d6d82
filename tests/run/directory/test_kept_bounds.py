"""What a profile must cover in a run directory is what was asked for there."""

from pathlib import Path

from pgle.run.directory.directory import RunDirectory
from pgle.run.directory.manifest import keep_bounds
from pgle.run.inputs.next_command import bound_words


def test_the_next_command_asks_for_the_bounds_that_were_asked_for_last(
    tmp_path: Path,
) -> None:
    run = RunDirectory(tmp_path)
    assert bound_words(run) == ()
    keep_bounds(tmp_path, 0.5, 0.99)
    assert bound_words(run) == ("--min-time-coverage", "0.5")
    keep_bounds(tmp_path, 0.95, 0.99)
    assert bound_words(run) == ()
