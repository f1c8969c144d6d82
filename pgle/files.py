"""Files that are written whole or not at all, and read with a bound."""

from __future__ import annotations

import gzip
import hashlib
import io
import lzma
import os
import stat
import zlib
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeAlias, cast

from pgle.errors import UserError

if TYPE_CHECKING:
    from etils import epath

AnyPath: TypeAlias = "Path | epath.Path"
"""A local path or one of an object store; both have the methods of `pathlib.Path`."""

MAX_FILE_BYTES = 8 << 30
"""Bound on one whole file read into memory; a larger protocol buffer cannot be parsed anyway (2 GiB limit)."""

MAX_EXPANSION = 400
"""Bound on how many times its size an archive may become, beyond the first `FREE_BYTES`. Dumps and logs become 5 to 100
times larger; an archive made to fill the memory 1,000 (gzip) to 7,000 times (xz)."""

FREE_BYTES = 32 << 20

_PIECE_BYTES = 16 << 20

_COMPRESSED: dict[str, Any] = {".xz": lzma.LZMAFile, ".gz": lambda file: gzip.GzipFile(fileobj=file)}


def as_path(text: str | os.PathLike[str]) -> AnyPath:
    """A local path, or an `etils.epath` path where the text has a scheme such as ``gs://``.

    Raises:
        UserError: the text is empty, or nothing installed reads the scheme.
    """
    name = os.fspath(text)
    if not name:
        raise UserError("an empty path is given", remedy="is a shell variable unset?")
    if "://" not in name:
        return Path(name)
    from etils import epath

    try:
        path = epath.Path(name)
        path.exists()  # the package that reads it is imported at the first access
    except ImportError as error:
        raise UserError(
            f"cannot be read ({error})", where=name, remedy="install that package, or copy it here"
        ) from None
    except (KeyError, NotImplementedError, ValueError):
        raise UserError("no way to read such an address", where=name, remedy="copy it here first") from None
    return path


def check_file(path: AnyPath, *, pipe: bool = False) -> None:
    """Raise `UserError` where there is no file to read; a pipe may never be written to, and is one only if `pipe`.

    Raises:
        UserError: nothing is there, or it is a directory, a device, a socket or (without `pipe`) a named pipe.
    """
    try:
        if not isinstance(path, Path):
            return
        mode = path.stat().st_mode
    except FileNotFoundError:
        raise UserError("no such file", where=path, remedy="check the path") from None
    except (OSError, ValueError) as error:
        raise UserError(f"cannot be read ({getattr(error, 'strerror', '') or error})", where=path) from None
    if stat.S_ISDIR(mode):
        raise UserError("is a directory, a file is needed", where=path, remedy="name a file in it")
    if not (stat.S_ISREG(mode) or (pipe and stat.S_ISFIFO(mode))):
        kind = "pipe" if stat.S_ISFIFO(mode) else "socket" if stat.S_ISSOCK(mode) else "device"
        raise UserError(f"is a {kind}, a file is needed", where=path, remedy="save what it gives in a file first")


def open_bytes(path: AnyPath, *, max_bytes: int | None = None, pipe: bool = False) -> IO[bytes]:
    """A file as a stream; ``.xz`` and ``.gz`` are decompressed as they are read. To be closed by the caller.

    Args:
        path: the file.
        max_bytes: bound on its content; None: an archive's expansion alone is bounded.
        pipe: a named pipe is taken too.

    Raises:
        UserError: it is missing, unreadable or no file; while it is read: damaged, larger than `max_bytes`, or an
            archive that becomes more than `MAX_EXPANSION` times larger.
    """
    check_file(path, pipe=pipe)
    try:
        file = cast(IO[bytes], path.open("rb"))
    except OSError as error:
        raise UserError(f"cannot be read ({error.strerror or error})", where=path) from None
    return cast(IO[bytes], io.BufferedReader(_Bounded(file, path, max_bytes), 1 << 20))


class _Bounded(io.RawIOBase):
    """The content of a file, decompressed; every failure on the way is a `UserError`."""

    def __init__(self, file: IO[bytes], path: AnyPath, max_bytes: int | None) -> None:
        opener = _COMPRESSED.get(path.suffix)
        self._file, self._path, self._max_bytes = file, path, max_bytes
        self._archive: IO[bytes] | None = None if opener is None else opener(file)
        self._size = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        try:
            data = (self._archive or self._file).read(len(buffer))
        except (lzma.LZMAError, gzip.BadGzipFile, zlib.error, EOFError) as error:
            raise UserError(f"damaged archive ({error})", where=self._path, remedy="copy it again") from None
        except OSError as error:
            raise UserError(f"cannot be read ({error.strerror or error})", where=self._path) from None
        buffer[: len(data)] = data
        self._size += len(data)
        if self._max_bytes is not None and self._size > self._max_bytes:
            raise UserError(
                f"larger than {self._max_bytes:,} bytes", where=self._path, remedy="give the part that matters"
            )
        if self._archive and self._size > FREE_BYTES + MAX_EXPANSION * self._file.tell():
            raise UserError(
                f"an archive that becomes more than {MAX_EXPANSION} times larger",
                where=self._path,
                remedy="if you trust it, unpack it first",
            )
        return len(data)

    def close(self) -> None:
        self._file.close()
        super().close()


def read_bytes(path: AnyPath, *, max_bytes: int = MAX_FILE_BYTES) -> bytes:
    """The content of a file; ``.xz`` and ``.gz`` are decompressed.

    Raises:
        UserError: as `open_bytes`.
    """
    # ``read()`` at once would reserve `max_bytes`, which ``ulimit -v`` and Slurm refuse.
    with open_bytes(path, max_bytes=max_bytes) as file:
        return b"".join(iter(lambda: file.read(_PIECE_BYTES), b""))


def read_head(path: AnyPath, size: int) -> bytes:
    """The first `size` bytes of a file's content, or all of it. Raises as `open_bytes`."""
    with open_bytes(path) as file:
        return file.read(size)


def check_absent(path: AnyPath, *, force: bool) -> None:
    """Raise `UserError` where `path` cannot be written, or would overwrite a file and `force` is not given."""
    if path.is_dir():
        raise UserError("is a directory, a file is to be written", where=path, remedy="choose another name")
    if path.exists() and not force:
        raise UserError("already exists", where=path, remedy="choose another name or pass --force")
    if not isinstance(path, Path):
        return
    above = next((folder for folder in path.absolute().parents if folder.exists()), path.parent)
    if not above.is_dir():
        raise UserError("is a file, not a directory", where=above, remedy="choose another place to write to")
    if not os.access(above, os.W_OK | os.X_OK):
        raise UserError("no permission to write there", where=above, remedy="choose another place to write to")


def write_files(files: Mapping[AnyPath, bytes | str], *, force: bool = False) -> None:
    """Write several files so that a failure leaves none of them: each to a temporary name, then all renamed.

    Args:
        files: content by path; text is written as UTF-8. Parent folders are made.
        force: overwrite what exists.

    Raises:
        UserError: one exists (without `force`) or cannot be written; nothing has then been changed.
    """
    for path in files:
        check_absent(path, force=force)
    staged: list[tuple[Path, Path]] = []
    try:
        for path, content in files.items():
            data = content.encode() if isinstance(content, str) else content
            if not isinstance(path, Path):  # object stores write whole objects or none
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(data)
                continue
            path.parent.mkdir(parents=True, exist_ok=True)
            # Ranks on other hosts, in containers above all, may have our pid.
            temporary = path.with_name(f".{path.name[:60]}.{os.getpid()}.{os.urandom(4).hex()}.tmp")
            staged.append((temporary, path))
            temporary.write_bytes(data)
        for temporary, path in staged:
            temporary.replace(path)
    except OSError as error:
        mine = {str(temporary): path for temporary, path in staged}
        where = mine.get(str(error.filename)) or error.filename or next(iter(files))
        raise UserError(f"cannot be written ({error.strerror or error})", where=where) from None
    finally:
        for temporary, _ in staged:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)


def sha256(data: bytes) -> str:
    """The SHA-256 of `data` as hexadecimal digits."""
    return hashlib.sha256(data).hexdigest()
