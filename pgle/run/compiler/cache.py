"""Compilations kept by content in the user's cache directory, each in one file; a damaged file
counts as none.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
import zlib
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from pgle.costs.profile.files import SUFFIXES
from pgle.errors import UserError
from pgle.files import is_bare, read_bytes, read_kept, write_files
from pgle.run.ask.jaxlib import installed
from pgle.run.directory.directory import cache_directory

FORMAT = 4  # part of every key; raise it if the stored data, or the reading of a module, changes

LIMIT_VARIABLE, LIMIT_MIB = "PGLE_CACHE_MIB", 2048

_STALE_S = 86_400.0  # a name of a process that was killed while writing
_MOST_BYTES = (
    2 << 30
)  # of a compilation as it is read, so that no file fills the memory


MOST_DEVICES, LONGEST_COMPILE_S = 1 << 20, 1e9  # what is more is damage


class Compiled(msgspec.Struct, frozen=True):
    """What the compiler's process says of a compilation that succeeded."""

    module_name: str
    num_devices: Annotated[int, Meta(ge=1, le=MOST_DEVICES)]
    compile_s: Annotated[float, Meta(ge=0, le=LONGEST_COMPILE_S)]
    jaxlib: Annotated[str, Meta(pattern=r"^\d+\.\d+[\w.+-]*$")]
    # flags that it needs only without a GPU (`deviceless.DETOURS`)
    detours: tuple[str, ...] = ()


class _Entry(msgspec.Struct):
    """A compilation as it is kept."""

    answer: Compiled
    files: dict[str, bytes]  # by name


@dataclass(frozen=True)
class Cache:
    """A folder of compilations."""

    folder: Path  # may be absent
    limit_bytes: int  # of all of them together; 0: nothing is kept

    @staticmethod
    def of_user() -> Cache:
        """That in the user's cache directory, at most `LIMIT_VARIABLE` mebibytes, which must be a
        number.
        """
        text = os.environ.get(LIMIT_VARIABLE) or str(LIMIT_MIB)
        if not text.isdigit():
            raise UserError(
                "is not a number of mebibytes",
                where=f"{LIMIT_VARIABLE}={text}",
                remedy="0 keeps nothing",
            )
        return Cache(cache_directory() / "schedules", int(text) << 20)

    def load(self, key: str, folder: Path, names: Mapping[str, str]) -> Compiled | None:
        """Lay the files of a compilation into an empty folder, in texts the paths that `names` has
        for placeholders; None where there is no such compilation, or another thing than a file of
        ours has its name.
        """
        path = self.folder / key
        unpacked = zlib.decompressobj()
        try:
            data = read_kept(path, max_bytes=min(self.limit_bytes, _MOST_BYTES)) or b""
            entry = msgspec.msgpack.decode(
                unpacked.decompress(data, _MOST_BYTES), type=_Entry
            )
            os.utime(path)
        except (OSError, zlib.error, msgspec.MsgspecError, ValueError, RecursionError):
            return None
        if (
            not unpacked.eof
            or not self.limit_bytes
            or not all(map(is_bare, entry.files))
        ):
            return None  # what was kept before somebody asked for 0 does not count
        for name, data in entry.files.items():
            (folder / name).write_bytes(_renamed(name, data, names))
        return entry.answer

    def store(
        self, key: str, folder: Path, names: Mapping[str, str], answer: Compiled
    ) -> None:
        """Keep the files of a folder and an answer; a disk that is full or read-only is no
        failure.
        """
        back = {path: name for name, path in names.items()}
        files = {
            path.name: _renamed(path.name, path.read_bytes(), back)
            for path in folder.iterdir()
            if path.is_file()
        }
        data = zlib.compress(msgspec.msgpack.encode(_Entry(answer, files)), 1)
        if len(data) > self.limit_bytes:  # it would drive out all others, and go itself
            return
        with suppress(OSError, UserError):
            write_files({self.folder / key: data}, force=True)
            self._prune()

    def drop(self, key: str) -> None:
        """Forget a compilation whose files nobody can read."""
        with suppress(OSError):
            (self.folder / key).unlink(missing_ok=True)

    def trusted(self, python: str, vendor: str) -> Path | None:
        """The file that says that this compiler's scheduling passes can be run alone
        (`Session`). Return None if the cache keeps nothing.
        """
        if not self.limit_bytes:
            return None
        digest = hashlib.sha256(
            json.dumps([*_compiler(python), vendor]).encode()
        ).hexdigest()
        return self.folder / f"scheduling-{digest[:16]}.trusted"

    def _prune(self) -> None:
        """Remove the least recently used until the rest keeps to the limit; some may be of an older
        pgle.
        """
        files = [
            (path.stat(), path)
            for path in self.folder.iterdir()
            if path.suffix != ".trusted"
        ]
        total = sum(stat.st_size for stat, _ in files)
        for stat, path in sorted(files, key=lambda item: item[0].st_mtime_ns):
            is_begun = path.suffix == ".tmp"
            if (total > self.limit_bytes and not is_begun) or (
                is_begun and time.time() - stat.st_mtime > _STALE_S
            ):
                path.unlink(missing_ok=True)
                total -= stat.st_size


def key_of(
    python: str,
    module: Path,
    flags: Iterable[str],
    profile: Path | None,
    others: Mapping[str, object],
) -> str:
    """The key of a compilation: a hash of everything that its result depends on.

    These are the versions of the compiling Python's packages, and the content of the module, of the
    files that flags name, and of the profile or of the profiles in a folder.
    """
    flags_and_files = [(flag, _digest(Path(flag.partition("=")[2]))) for flag in flags]
    parts = [
        *_compiler(python),
        _digest(module),
        module.suffixes,
        flags_and_files,
        None if profile is None else _profile_key(profile),
        sorted(others.items()),
    ]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def _profile_key(profile: Path) -> tuple[str, list[object]]:
    files = [profile]
    if profile.is_dir():
        files = sorted(path for path in profile.iterdir() if path.suffix in SUFFIXES)
    return profile.suffix, [_digest(path) for path in files]


def _compiler(python: str) -> list[object]:
    """What distinguishes this compiler from others."""
    found = installed(python)
    return [FORMAT, sorted(found.versions.items()), found.built_ns]


def _digest(path: Path) -> str:
    """Of a file's content, decompressed; empty if it is no file."""
    try:
        return hashlib.sha256(read_bytes(path)).hexdigest() if path.is_file() else ""
    except (OSError, UserError):
        return "unreadable"


def _renamed(name: str, data: bytes, paths: Mapping[str, str]) -> bytes:
    """A text with other paths in it."""
    if not name.endswith(".pb"):
        for before, after in paths.items():
            data = data.replace(before.encode(), after.encode())
    return data
