"""The flags that a search found in a run directory, and the command that follows."""

from __future__ import annotations

from pathlib import Path

from pgle.account.next_move import Search
from pgle.next import Next
from pgle.run.directory.directory import COMPARED, STORED, RunDirectory, free
from pgle.run.inputs.next_command import launch_of, time_written

FLAGS = "flags.txt"  # file with the flags that a search found, in its folder
_TUNED = "tuned"  # suffix of the folder for a run with the flags that a search found


def search_of(run: RunDirectory) -> Search:
    """Return the result of a search for flags in a run. Flags that it found count as measured once
    the run that has them is whole.
    """
    if run.judged_flags.exists():
        return Search.IN_VAIN
    searches = _searches(run)
    if _found_flags(searches) is not None:
        tuned = RunDirectory(run.sibling(_TUNED))
        is_whole = all(tuned.stage(name).path.exists() for name in COMPARED)
        return Search.IN_VAIN if is_whole else Search.FOUND
    return Search.IN_VAIN if searches else Search.NOT


def _searches(run: RunDirectory) -> list[Path]:
    """Return the folders of the searches in a run."""
    return [path.parent for path in run.path.glob(f"tuned*/{STORED}")]


def _found_flags(searches: list[Path]) -> Path | None:
    """Return the file of flags from the last search; None if none was found."""
    files = [folder / FLAGS for folder in searches]
    found = [path for path in files if path.exists()]
    return max(found, key=time_written, default=None)


def tuned_run(run: RunDirectory) -> Next | None:
    """Return the command that runs all stages with the flags that a search found; None if it found
    none.
    """
    flags = _found_flags(_searches(run))
    if flags is None:
        return None
    return launch_of(run).line("run", run.sibling(_TUNED), "--flags-file", flags)


def tune(run: RunDirectory) -> Next | None:
    """Return the command that searches for flags with the measurements of a run; None if a search
    found nothing better.
    """
    if search_of(run) is Search.IN_VAIN:
        return None
    return Next.of("tune", run.path, "-o", free(run.path / "tuned"))
