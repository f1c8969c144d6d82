"""Compilations kept by content in the user's cache directory, each in one file. A damaged file
counts as absent.
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

#: part of every key; raise it if the stored data, or the way a module is read, changes
FORMAT = 4

LIMIT_VARIABLE, LIMIT_MIB = "PGLE_CACHE_MIB", 2048

#: seconds after which a temporary file belongs to a process that was killed
_STALE_S = 86_400.0
# most bytes of a compilation that is read, so that no file fills the memory
_MOST_BYTES = 2 << 30


# larger values mean that the file is damaged
MOST_DEVICES, LONGEST_COMPILE_S = 1 << 20, 1e9


class Compiled(msgspec.Struct, frozen=True):
    """The answer of the compiler's process for a successful compilation."""

    module_name: str
    num_devices: Annotated[int, Meta(ge=1, le=MOST_DEVICES)]
    compile_s: Annotated[float, Meta(ge=0, le=LONGEST_COMPILE_S)]
    jaxlib: Annotated[str, Meta(pattern=r"^\d+\.\d+[\w.+-]*$")]
    # flags that only a compilation without a GPU needs (`deviceless.DETOURS`)
    detours: tuple[str, ...] = ()


class _Entry(msgspec.Struct):
    """A compilation as it is stored."""

    answer: Compiled
    files: dict[str, bytes]  # by name


@dataclass(frozen=True)
class Cache:
    """A folder of compilations."""

    folder: Path  # may not exist yet
    limit_bytes: int  # limit for all of them together; 0: nothing is stored

    @staticmethod
    def of_user() -> Cache:
        """Return the cache in the user's cache directory. It holds at most as many mebibytes as the
        variable `LIMIT_VARIABLE` says.
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
        """Write the files of a stored compilation into an empty folder. In texts, `names` maps
        placeholders to paths. Return None if the compilation is not stored, or if its name belongs
        to something else.
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
            return None  # with a limit of 0 earlier files do not count either
        for name, data in entry.files.items():
            (folder / name).write_bytes(_renamed(name, data, names))
        return entry.answer

    def store(
        self, key: str, folder: Path, names: Mapping[str, str], answer: Compiled
    ) -> None:
        """Store the files of a folder and an answer. A full or read-only disk is not an error."""
        back = {path: name for name, path in names.items()}
        files = {
            path.name: _renamed(path.name, path.read_bytes(), back)
            for path in folder.iterdir()
            if path.is_file()
        }
        data = zlib.compress(msgspec.msgpack.encode(_Entry(answer, files)), 1)
        # it would displace all others, and then itself
        if len(data) > self.limit_bytes:
            return
        with suppress(OSError, UserError):
            write_files({self.folder / key: data}, force=True)
            self._prune()

    def drop(self, key: str) -> None:
        """Delete a compilation whose files cannot be read."""
        with suppress(OSError):
            (self.folder / key).unlink(missing_ok=True)

    def trusted(self, python: str, vendor: str) -> Path | None:
        """Return the file that records that this compiler's scheduling passes can run alone (see
        `Session`); None if nothing is stored.
        """
        if not self.limit_bytes:
            return None
        digest = hashlib.sha256(
            json.dumps([*_compiler(python), vendor]).encode()
        ).hexdigest()
        return self.folder / f"scheduling-{digest[:16]}.trusted"

    def _prune(self) -> None:
        """Remove the least recently used until the rest is within the limit. Some may come from an
        older pgle.
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
    """Return the key of a compilation: a hash of everything that decides its result.

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
    """Identify this compiler."""
    found = installed(python)
    return [FORMAT, sorted(found.versions.items()), found.built_ns]


def _digest(path: Path) -> str:
    """The digest of a file's decompressed content; empty if it is not a file."""
    try:
        return hashlib.sha256(read_bytes(path)).hexdigest() if path.is_file() else ""
    except (OSError, UserError):
        return "unreadable"


def _renamed(name: str, data: bytes, paths: Mapping[str, str]) -> bytes:
    """Replace paths in a text."""
    if not name.endswith(".pb"):
        for before, after in paths.items():
            data = data.replace(before.encode(), after.encode())
    return data
