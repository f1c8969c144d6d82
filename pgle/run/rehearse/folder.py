"""The folder of a rehearsal or a search: empty at first, held by one process, nothing of ours in it after a failure."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from pgle.errors import UserError, points_into

_MADE = (
    *("captured", "rehearsal", "all-passes", "default", "baseline", "profiled", "trials", "proof"),
    *("estimated.pbtxt", "estimated.pbtxt.json"),
)
"""What a rehearsal or a search for flags makes in the folder it is given, before it has an answer."""

_UNFINISHED = ".unfinished"  # there while one is at work; what a killed one left beside it is its own


@contextmanager
def opened(named: str | None, resumes: Callable[[Path], bool]) -> Iterator[Path]:
    """The folder for all files, empty; after a failure nothing of ours stays in it unless the message points there.

    What one left that was killed goes, as after any other failure.

    Raises:
        UserError: the user's folder is none, is not empty, or another process is at work in it.
    """
    there_before = named is not None and Path(named).exists()
    out = Path(named) if named else Path(tempfile.mkdtemp(prefix="pgle-rehearsal-"))
    with _held(out):
        mark = out / _UNFINISHED
        if mark.exists() and not resumes(out):
            _remove(out / name for name in (*_MADE, _UNFINISHED))
        check_folder(out, resumes)
        mark.touch()
        try:
            yield out
        except BaseException as error:
            mark.unlink(missing_ok=True)
            if not resumes(out):
                ours = [out / name for name in _MADE] if named else [out]
                _remove(made for made in ours if not points_into(error, made))
                if not there_before and out.is_dir() and not any(out.iterdir()):
                    out.rmdir()
            raise
        mark.unlink(missing_ok=True)


def check_folder(out: Path, resumes: Callable[[Path], bool]) -> None:
    """Refuse a folder that is none, or that holds something else than what can be gone on with.

    Raises:
        UserError: it is a file, or not empty.
    """
    _check_is_folder(out)
    if out.exists() and any(out.iterdir()) and not (resumes(out) or (out / _UNFINISHED).exists()):
        raise UserError("is not an empty directory", where=out, remedy="choose a new one with -o DIR")


def _check_is_folder(out: Path) -> None:
    if out.exists() and not out.is_dir():
        raise UserError("is a file, a directory is needed", where=out, remedy="choose a new one with -o DIR")


def _remove(paths: Iterable[Path]) -> None:
    """Delete files and folders that are ours, as far as they are there."""
    for path in paths:
        with suppress(OSError):
            shutil.rmtree(path) if path.is_dir() else path.unlink()


@contextmanager
def _held(out: Path) -> Iterator[None]:
    """The folder, made and kept from other processes that would use it too."""
    _check_is_folder(out)
    out.mkdir(parents=True, exist_ok=True)
    folder = os.open(out, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(folder)
        raise UserError(
            "another pgle is at work in it", where=out, remedy="wait, or choose another with -o DIR"
        ) from None
    except OSError:
        pass  # a file system without locks
    try:
        yield
    finally:
        os.close(folder)
