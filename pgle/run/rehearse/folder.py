"""The folder of a rehearsal or a search: empty at first, held by one process, nothing of ours in it after a failure."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from pgle.errors import UserError, points_into

_MADE = ("captured", "rehearsal", "all-passes", "default", "baseline", "profiled", "trials", "proof")
"""Folders that a rehearsal or a search for flags makes in the one it is given."""


@contextmanager
def opened(named: str | None, resumes: Callable[[Path], bool]) -> Iterator[Path]:
    """The folder for all files, empty; after a failure nothing of ours stays in it unless the message points there.

    Raises:
        UserError: the user's folder is none, is not empty, or another process is at work in it.
    """
    there_before = named is not None and Path(named).exists()
    out = Path(named) if named else Path(tempfile.mkdtemp(prefix="pgle-rehearsal-"))
    with _held(out):
        if there_before and any(out.iterdir()) and not resumes(out):
            raise UserError("is not an empty directory", where=out, remedy="choose a new one with -o DIR")
        try:
            yield out
        except BaseException as error:
            if not resumes(out):
                for made in [out / name for name in _MADE] if named else [out]:
                    if not points_into(error, made):
                        shutil.rmtree(made, ignore_errors=True)
                if not there_before and out.is_dir() and not any(out.iterdir()):
                    out.rmdir()
            raise


@contextmanager
def _held(out: Path) -> Iterator[None]:
    """The folder, made and kept from other processes that would use it too."""
    if out.exists() and not out.is_dir():
        raise UserError("is a file, a directory is needed", where=out, remedy="choose a new one with -o DIR")
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
