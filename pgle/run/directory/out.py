"""The folder of a rehearsal or a search: empty at first, held by one process, nothing of ours in it after a failure.

While one is at work, after one that was killed, and in a search that can be continued, a file in the folder lists what
was made there: that alone may be deleted.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from pgle.errors import UserError, points_into
from pgle.files import is_bare, read_head
from pgle.masking import mask_file

LOG = "xla.log"  # of the compiler

_UNFINISHED = ".unfinished"
_MOST_BYTES = 1 << 20  # of that list
_DEEPEST = 3  # ``trials/SETTING/names`` is the deepest folder that is made


@contextmanager
def opened(named: str | None, resumes: Callable[[Path], bool]) -> Iterator[Path]:
    """The folder for all files, empty; after a failure nothing of ours stays in it unless the message points there.

    The next one deletes what stayed, and what a killed one left.
    """
    there_before = named is not None and Path(named).exists()
    out = Path(named) if named else Path(tempfile.mkdtemp(prefix="pgle-rehearsal-"))
    with _held(out):
        check_folder(out, resumes)
        mark = out / _UNFINISHED
        if not resumes(out):
            _remove_made(out)
        mark.touch()
        try:
            yield out
        except BaseException as error:
            if resumes(out):
                pass
            elif named:
                log = None if isinstance(error, Exception) else _log_kept(out)  # a signal: it may tell what took long
                _remove_made(out, error)
                if log is not None:
                    mark.write_text(f"{log.name}\n", encoding="utf-8")
                if not there_before and out.is_dir() and not any(out.iterdir()):
                    out.rmdir()
            elif not points_into(error, out):
                shutil.rmtree(out, ignore_errors=True)
            raise
        if not resumes(out):
            mark.unlink(missing_ok=True)


def _log_kept(out: Path) -> Path | None:
    """Move the compiler's last log out of the folders that are deleted; None if absent."""
    logs = [path for name in _made(out) for path in (out / name).rglob(LOG) if path.is_file()]
    if not logs or (out / LOG).exists():
        return None
    kept = max(logs, key=lambda path: path.stat().st_mtime_ns).rename(out / LOG)
    mask_file(kept)
    return kept


def check_folder(out: Path, resumes: Callable[[Path], bool]) -> None:
    """Refuse a folder that holds anything but what an unfinished search or rehearsal of ours left."""
    _check_is_folder(out)
    if not out.exists() or resumes(out):
        return
    others = {path.name for path in out.iterdir()} - {*_made(out), _UNFINISHED}
    if others:
        raise UserError("is not an empty directory", where=out, remedy="choose a new one with -o DIR")


def claim(path: Path) -> bool:
    """Put a file or folder that is about to be made on the list, if it is in a folder of `opened`.

    Returns whether it is on the list, and so may be deleted; raises `OSError` if the list cannot be written.
    """
    for out in path.absolute().parents[:_DEEPEST]:
        mark = out / _UNFINISHED
        name = path.absolute().relative_to(out).parts[0]
        if mark.is_file() and not mark.is_symlink():
            if name in _made(out):
                return True
            if (out / name).exists() or (out / name).is_symlink():
                return False
            with mark.open("ab") as file:
                file.write(os.fsencode(f"{name}\n"))
            return True
    return False


def emptied(folder: Path) -> None:
    """Delete a folder that we made, to make it anew."""
    check_ours(folder)
    shutil.rmtree(folder, ignore_errors=True)


def check_ours(path: Path) -> None:
    """Refuse to replace what we did not make."""
    if (path.exists() or path.is_symlink()) and not claim(path):
        raise UserError("was not made by pgle, which would replace it", where=path, remedy="move it away")


def _made(out: Path) -> list[str]:
    """The names on the list: of siblings of the list, never a path elsewhere."""
    mark = out / _UNFINISHED
    if mark.is_symlink() or not mark.is_file():
        return []
    names = (os.fsdecode(name) for name in read_head(mark, _MOST_BYTES).split(b"\n"))
    return [name for name in dict.fromkeys(names) if is_bare(name)]


def _remove_made(out: Path, error: BaseException | None = None) -> None:
    """Delete what the list names, but for what a message points into; then the list, unless it names something yet."""
    left = False
    for path in (out / name for name in _made(out)):
        if error is not None and points_into(error, path):
            left = True
            continue
        with suppress(OSError):
            path.unlink() if path.is_symlink() or not path.is_dir() else shutil.rmtree(path)
        left = left or path.exists() or path.is_symlink()
    if not left:
        (out / _UNFINISHED).unlink(missing_ok=True)


def _check_is_folder(out: Path) -> None:
    if out.exists() and not out.is_dir():
        raise UserError("is a file, a directory is needed", where=out, remedy="choose a new one with -o DIR")


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
        remedy = "wait, or choose another with -o DIR"
        raise UserError("another pgle is at work in it", where=out, remedy=remedy) from None
    except OSError:
        pass  # a file system without locks
    try:
        yield
    finally:
        os.close(folder)
