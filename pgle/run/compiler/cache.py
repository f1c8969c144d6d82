"""Compilations kept by content: the same module, flags, profile, target and compiler give the same schedule.

One zip file per compilation in the user's cache directory, written under another name first; the least recently used
go when there are too many bytes. A damaged file counts as none.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
import threading
import time
import zipfile
import zlib
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pgle.costs.profile.files import SUFFIXES
from pgle.errors import UserError
from pgle.files import read_bytes
from pgle.run.ask.flag_probe import cache_directory, installed
from pgle.run.compiler.dumps import BEFORE
from pgle.run.compiler.request import RehearsalResult

FORMAT = 2  # part of every key; to be raised where what is stored, or how a module is read, changes

LIMIT_VARIABLE = "PGLE_CACHE_MIB"
LIMIT_MIB = 2048
ANSWER = ".answer.json"  # what the compiler's process answered, next to its dumps

_STALE_S = 86_400.0  # a name of a process that was killed while writing
_BINARY = (".pb",)
_MOST_BYTES = 2 << 30  # of a compilation as it is read, so that no archive fills the memory


class Cache:
    """A folder of compilations.

    Args:
        folder: may be absent.
        limit_bytes: of all of them together; 0: nothing is kept.
    """

    def __init__(self, folder: Path, limit_bytes: int) -> None:
        self.folder = folder
        self.limit_bytes = limit_bytes

    @staticmethod
    def of_user() -> Cache:
        """That in the user's cache directory, at most `LIMIT_VARIABLE` mebibytes.

        Raises:
            UserError: the variable is no number.
        """
        text = os.environ.get(LIMIT_VARIABLE) or str(LIMIT_MIB)
        if not text.isdigit():
            raise UserError("is not a number of mebibytes", where=f"{LIMIT_VARIABLE}={text}", remedy="0 keeps nothing")
        return Cache(cache_directory() / "schedules", int(text) << 20)

    def load(self, key: str, folder: Path, names: Mapping[str, str]) -> dict[str, Any] | None:
        """Lay the files of a compilation into a folder.

        Args:
            key: of `key_of`.
            folder: empty.
            names: placeholders for paths in stored texts, and the path to write in each place.

        Returns:
            What was stored with them; None where there is no such compilation.
        """
        if not self.limit_bytes:  # what was kept before somebody said 0 does not count
            return None
        path = self.folder / f"{key}.zip"
        try:
            with zipfile.ZipFile(path) as archive:
                if sum(item.file_size for item in archive.infolist()) > _MOST_BYTES:
                    return None
                files = {name: archive.read(name) for name in archive.namelist()}
            answer: Any = json.loads(files.pop(ANSWER))
            os.utime(path)
        except (OSError, zipfile.BadZipFile, zlib.error, KeyError, ValueError, EOFError, RuntimeError, struct.error):
            return None
        if not isinstance(answer, dict) or any(name != Path(name).name for name in files):
            return None
        for name, data in files.items():
            (folder / name).write_bytes(_renamed(name, data, names))
        return dict(answer)

    def store(self, key: str, folder: Path, names: Mapping[str, str], answer: Mapping[str, Any]) -> None:
        """Keep the files of a folder and an answer; a disk that is full or read-only is no failure."""
        if not self.limit_bytes:
            return
        back = {path: name for name, path in names.items()}
        temporary = self.folder / f".{key}.{os.getpid()}.{os.urandom(4).hex()}.tmp"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
                archive.writestr(ANSWER, json.dumps(answer))
                for path in sorted(path for path in folder.iterdir() if path.is_file()):
                    archive.writestr(path.name, _renamed(path.name, path.read_bytes(), back))
            if temporary.stat().st_size <= self.limit_bytes:  # else it would drive out all others, and go itself
                temporary.replace(self.folder / f"{key}.zip")
                self._prune()
        except OSError:
            pass
        finally:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)

    def trusted(self, python: str) -> Path:
        """The file that says that this compiler's scheduling passes can be run alone (`session.py`)."""
        digest = hashlib.sha256(json.dumps(_compiler(python)).encode()).hexdigest()
        return self.folder / f"scheduling-{digest[:16]}.trusted"

    def _prune(self) -> None:
        """Remove the least recently used until the rest keeps to the limit."""
        for path in self.folder.glob(".*.tmp"):
            if time.time() - path.stat().st_mtime > _STALE_S:
                path.unlink(missing_ok=True)
        kept = [(path.stat().st_mtime_ns, path.stat().st_size, path) for path in self.folder.glob("*.zip")]
        total = sum(size for _, size, _ in kept)
        for _, size, path in sorted(kept):
            if total <= self.limit_bytes:
                return
            path.unlink(missing_ok=True)
            total -= size


def key_of(python: str, module: Path, flags: Iterable[str], profile: Path | None, others: Mapping[str, object]) -> str:
    """The key of a compilation: a hash of everything that its result depends on.

    Args:
        python: the interpreter that compiles; of its packages the versions count.
        module: by content.
        flags: with the content of the files that they name; of a folder its name alone.
        profile: by content and suffix; of a folder the profiles in it.
        others: target, topology and the like.
    """
    said = [
        *_compiler(python),
        _digest(module),
        module.suffixes,
        [(flag, _digest(Path(flag.partition("=")[2]))) for flag in flags],
        None if profile is None else (profile.suffix, [_digest(path) for path in _files_of(profile)]),
        sorted(others.items()),
    ]
    return hashlib.sha256(json.dumps(said).encode()).hexdigest()


def _compiler(python: str) -> list[object]:
    """What tells this compiler from others."""
    found = installed(python)
    at = Path(found.jaxlib_at) / "jaxlib" / "version.py"  # nightly builds share a version
    return [FORMAT, sorted(found.versions.items()), at.stat().st_mtime_ns if at.is_file() else 0]


def _files_of(profile: Path) -> list[Path]:
    """The files of a profile, which may be a folder of them."""
    return sorted(path for path in profile.iterdir() if path.suffix in SUFFIXES) if profile.is_dir() else [profile]


def _digest(path: Path) -> str:
    """Of a file's content, decompressed; empty if it is no file."""
    try:
        return hashlib.sha256(read_bytes(path)).hexdigest() if path.is_file() else ""
    except (OSError, UserError):
        return "unreadable"


def _renamed(name: str, data: bytes, paths: Mapping[str, str]) -> bytes:
    """A text with other paths in it."""
    if not name.endswith(_BINARY):
        for before, after in paths.items():
            data = data.replace(before.encode(), after.encode())
    return data


T = TypeVar("T")


@dataclass(frozen=True)
class Stopped:
    """A module as it was before a stage."""

    path: Path
    devices: int  # that it is compiled for


@dataclass(frozen=True)
class Prepared:
    """A module compiled with certain flags, or about to be: it is there before its own schedule is."""

    flags: tuple[str, ...]  # all of them
    whole: Future[RehearsalResult]  # with all passes and without a profile
    module: Stopped | None  # before scheduling; None where only whole compilations are to be trusted
    # the schedule that the scheduling passes alone make of it, where that is tried; None where it is another
    check: Future[RehearsalResult | None] | None = None
    is_from_combining: bool = False  # from where it was before combining

    @property
    def fused(self) -> Stopped | None:
        """The module as it was before combining, where that was kept."""
        path = self.module and self.module.path.with_name(BEFORE["combining"])
        return Stopped(path, self.module.devices) if self.module and path and path.exists() else None

    @property
    def agrees(self) -> bool:
        """Whether the scheduling passes alone may be trusted; waits until that is known."""
        return self.module is not None and (self.check is None or self.check.result() is not None)


def begun(work: Callable[[], T]) -> Future[T]:
    """What a function returns that runs in parallel; a process that ends does not wait for it."""
    found: Future[T] = Future()

    def run() -> None:
        try:
            found.set_result(work())
        except BaseException as error:
            found.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return found


def done(value: T) -> Future[T]:
    """What has been returned already."""
    found: Future[T] = Future()
    found.set_result(value)
    return found
