"""Write files whole or not at all, and read files with a bound on their size."""

from __future__ import annotations

import errno
import gzip
import hashlib
import io
import lzma
import os
import stat
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeAlias, cast

from pgle.errors import UserError

if TYPE_CHECKING:
    from etils import epath

AnyPath: TypeAlias = "Path | epath.Path"
"""A local path, or a path in an object store. Both have the methods of `pathlib.Path`."""

Progress: TypeAlias = Callable[[int, int], None]
"""A function that is called with (done, total) in any unit. A total of 0 means unknown. Pure layers
take one as an optional argument.
"""

Json: TypeAlias = Mapping[str, Any]
"""An object of JSON or TOML that another process or a file exchanges with pgle. Known fields get a
type when they are read.
"""

MAX_FILE_BYTES = 8 << 30
"""Largest file that is read into memory whole. A protocol buffer of this size cannot be parsed
anyway (2 GiB limit).
"""

MAX_EXPANSION = {".gz": 150, ".xz": 1500}
"""How many times larger an archive may become, beyond the first `FREE_BYTES`. Dumps and logs become
5 to 100 times larger (more if xz finds equal ones in a row). Zeros, the cheapest way to fill
memory, become 228 (gz) and 7,000 (xz) times larger.
"""

FREE_BYTES = 32 << 20

_PIECE_BYTES, _BUFFER_BYTES, _ZEROS = 16 << 20, 1 << 20, 64

LFS_POINTER = b"version https://git-lfs.github.com/spec/"
"""First bytes of a file that is only a pointer, because Git LFS has not fetched its content
(https://github.com/git-lfs/git-lfs/blob/main/docs/spec.md).
"""
ZIP_MAGIC = b"PK\x03\x04"
SEVEN_ZIP_MAGIC = b"7z\xbc\xaf\x27\x1c"
TAR_MAGIC = b"ustar"
TAR_MAGIC_AT = 257
"""The first bytes of archives: section 4.3.7 of PKWARE's APPNOTE, 7zFormat.txt of 7-Zip, and POSIX
pax.
"""
TEXT_HEAD_BYTES = 4096  # the first bytes of a file decide whether it is text
NO_PIPE = "is stdin or stdout, and a file is needed"  # error for the path ``-``

LONGEST_READ_LINE = 1 << 20  # characters; the rest of a longer line is left out

# a file is refused if its first `MANY_LINES` lines have fewer than `SHORTEST_MEAN` characters on
# average, line ends included: they cannot contain steps, and an archive may have a billion
MANY_LINES, SHORTEST_MEAN = 1 << 20, 4

_COMPRESSED: dict[str, Any] = {
    ".xz": lzma.LZMAFile,
    ".gz": lambda file: gzip.GzipFile(fileobj=file),
}


def is_archive(head: bytes) -> bool:
    """Whether a file that begins with `head` is an archive of files."""
    is_tar = head[TAR_MAGIC_AT:].startswith(TAR_MAGIC)
    return is_tar or head.startswith((ZIP_MAGIC, SEVEN_ZIP_MAGIC))


def as_path(text: str | os.PathLike[str]) -> AnyPath:
    """Make a local path, or an `etils.epath` path if the text has a scheme such as ``gs://``.

    Raises:
        UserError: the text is empty, or nothing installed reads such an address.
    """
    if isinstance(text, Path):
        return text
    name = os.fspath(text)
    if not name:
        raise UserError("an empty path is given", remedy="is a shell variable unset?")
    if "://" not in name:
        return Path(name)
    from etils import epath

    try:
        path = epath.Path(name)
        path.exists()  # the first access imports the package that reads such addresses
    except ImportError as error:
        raise UserError(
            f"cannot be read ({error})",
            where=name,
            remedy="install that package, or copy it here",
        ) from None
    except (KeyError, NotImplementedError, ValueError):
        raise UserError(
            "no way to read such an address", where=name, remedy="copy it here first"
        ) from None
    return path


def check_exists(path: AnyPath) -> None:
    """Raise `UserError` if a path does not exist."""
    if not path.exists():
        raise UserError(
            "no such file or directory", where=path, remedy="check the path"
        )


def check_file(path: AnyPath, *, pipe: bool = False) -> None:
    """Raise `UserError` if a path is not a file to read: it is absent, a directory, a device or a
    socket.

    Args:
        pipe: whether a pipe that this process was given open counts as a file, such as
            ``<(command)`` of a shell. Nobody may ever write to a named pipe.
    """
    try:
        if not isinstance(path, Path):
            return
        mode = path.stat().st_mode
    except FileNotFoundError:
        raise UserError("no such file", where=path, remedy="check the path") from None
    except (OSError, ValueError) as error:
        raise _unreadable(path, error) from None
    if stat.S_ISDIR(mode):
        raise UserError(
            "is a directory, a file is needed", where=path, remedy="name a file in it"
        )
    is_open_pipe = pipe and stat.S_ISFIFO(mode) and _is_descriptor(path)
    if not (stat.S_ISREG(mode) or is_open_pipe):
        kind = "socket" if stat.S_ISSOCK(mode) else "device"
        if stat.S_ISFIFO(mode):
            kind = "pipe"
        remedy = "save what it gives in a file first"
        if str(path) == "/dev/stdin":
            remedy = "name it -"
        raise UserError(f"is a {kind}, a file is needed", where=path, remedy=remedy)


def check_listable(folder: AnyPath) -> None:
    """Raise `UserError` if this process may not list a folder, which a glob takes for empty."""
    try:
        next(iter(folder.iterdir()), None)
    except OSError as error:
        raise _unreadable(folder, error) from None


def _is_descriptor(path: Path) -> bool:
    """Whether a path stands for an open file of a process: ``/dev/fd/63`` or ``/dev/stdin``."""
    return os.path.realpath(path).startswith(("/dev/fd/", "/proc/"))


def _unreadable(path: AnyPath, error: Exception) -> UserError:
    reason = getattr(error, "strerror", "") or error
    return UserError(
        f"cannot be read ({reason})",
        where=path,
        remedy="check the path and who may read it",
    )


def _too_large(path: AnyPath, max_bytes: int) -> UserError:
    return UserError(
        f"larger than {max_bytes:,} bytes",
        where=path,
        remedy="give the part that matters",
    )


def open_bytes(
    path: AnyPath, *, max_bytes: int | None = None, pipe: bool = False
) -> io.BufferedReader:
    """Open a file as a stream. ``.xz`` and ``.gz`` are decompressed on reading. The caller must
    close it.

    Args:
        max_bytes: bound on its content; None to bound only the expansion of an archive.
        pipe: as in `check_file`.

    Raises:
        UserError: it is not a file, unreadable or too large; also while reading.
    """
    check_file(path, pipe=pipe)
    try:
        is_plain = isinstance(path, Path) and path.suffix not in _COMPRESSED
        if max_bytes is not None and is_plain and path.stat().st_size > max_bytes:
            raise _too_large(path, max_bytes)
        file = cast(IO[bytes], path.open("rb") if pipe else _opened(path))
    except OSError as error:
        raise _unreadable(path, error) from None
    return io.BufferedReader(_Bounded(file, path, max_bytes), _BUFFER_BYTES)


def _opened(path: AnyPath) -> IO[bytes]:
    """Open a file without ever waiting for a writer, even if a pipe has replaced it since the
    check.
    """
    if not isinstance(path, Path):
        return cast(IO[bytes], path.open("rb"))
    return open(path, "rb", opener=lambda name, how: os.open(name, how | os.O_NONBLOCK))


class _Bounded(io.RawIOBase):
    """The decompressed content of a file. Every failure to read it is a `UserError`."""

    def __init__(self, file: IO[bytes], path: AnyPath, max_bytes: int | None) -> None:
        opener = _COMPRESSED.get(path.suffix)
        self._file = file
        self._path = path
        self._max_bytes = max_bytes
        self._archive: IO[bytes] | None = None if opener is None else opener(file)
        self._expansion = MAX_EXPANSION.get(path.suffix, 1)
        self._size = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        source = self._archive or self._file
        try:
            data = source.read(min(len(buffer), _PIECE_BYTES)) or b""
        except (lzma.LZMAError, gzip.BadGzipFile, zlib.error, EOFError) as error:
            raise UserError(
                f"damaged archive ({error})", where=self._path, remedy="copy it again"
            ) from None
        except OSError as error:
            raise _unreadable(self._path, error) from None
        if not self._size and data.startswith(LFS_POINTER):
            raise UserError(
                "a Git LFS pointer, not the file itself",
                where=self._path,
                remedy="run: git lfs pull",
            )
        if not self._size and is_archive(data):
            raise UserError(
                "an archive of files, which pgle does not open",
                where=self._path,
                remedy="unpack it, and give what it holds",
            )
        buffer[: len(data)] = data
        self._size += len(data)
        if self._max_bytes is not None and self._size > self._max_bytes:
            raise _too_large(self._path, self._max_bytes)
        if self._archive:
            self._check_expansion()
        return len(data)

    def _check_expansion(self) -> None:
        """Raise `UserError` if an archive becomes much larger than such archives do."""
        most_bytes = FREE_BYTES + self._expansion * self._file.tell()
        if self._size > most_bytes:
            raise UserError(
                f"unpacking makes it more than {self._expansion} times larger",
                where=self._path,
                remedy="if you trust it, unpack it first",
            )

    def close(self) -> None:
        self._file.close()
        super().close()


def read_bytes(path: AnyPath, *, max_bytes: int = MAX_FILE_BYTES) -> bytes:
    """Read a whole file. ``.xz`` and ``.gz`` are decompressed.

    Raises:
        UserError: it is not a file, unreadable, too large, or begins with zeros.
    """
    with open_bytes(path, max_bytes=max_bytes) as file:
        head = file.peek()
        if len(head) >= _BUFFER_BYTES and not any(head[:_ZEROS]):
            # every reader would refuse it, but only after reading all of it
            raise UserError(
                "begins with zeros, as no trace, module or profile does",
                where=path,
                remedy="copy it again; was a disk full when it was written?",
            )
        # Read it in one piece if its size is known, since joining pieces needs twice the memory.
        # ``read()`` without a size would reserve `max_bytes`, which ``ulimit -v`` and Slurm refuse.
        plain = isinstance(path, Path) and path.suffix not in _COMPRESSED
        data = file.read(path.stat().st_size if plain else 0)
        rest = b"".join(iter(lambda: file.read(_PIECE_BYTES), b""))
        return data + rest if data else rest


def read_head(path: AnyPath, size: int) -> bytes:
    """The first `size` bytes of a file's content, or all if it is shorter."""
    with open_bytes(path) as file:
        return file.read(size)


MAX_KEPT_BYTES = 64 << 20
"""Largest file that pgle reads back from a folder. Another file may have replaced its own."""


def read_kept(path: AnyPath, *, max_bytes: int = MAX_KEPT_BYTES) -> bytes | None:
    """The content of a file that pgle wrote earlier; None if it is absent, unreadable, too large or
    not a regular file.
    """
    try:
        return read_bytes(path, max_bytes=max_bytes)
    except UserError:
        return None


def content_digest(path: Path) -> tuple[str, int]:
    """SHA-256 (hexadecimal) and size in bytes of a regular file. If the file grows meanwhile, only
    its size at the start counts.

    For anything else, such as a pipe, which could block, the result is an empty text and 0.
    """
    if not path.is_file():
        return "", 0
    digest = hashlib.sha256()
    size = 0
    with _opened(path) as file:
        left = path.stat().st_size
        while left and (piece := file.read(min(left, _PIECE_BYTES))):
            digest.update(piece)
            size += len(piece)
            left -= len(piece)
    return digest.hexdigest(), size


_IN_TEXT = b"\a\b\t\n\v\f\r\x1b"
_CONTROLS = bytes({*range(1, 32), 127} - {*_IN_TEXT})
"""Control characters that no text uses. Of compressed data they are 9 %."""


def is_text(head: bytes) -> bool:
    """Whether a file that begins with `head` is text. A file system may leave a few zero bytes;
    many mean binary data, and so do control characters.
    """
    size = len(head)
    zeros = head.count(0)
    controls = size - len(head.translate(None, _CONTROLS))
    return zeros <= size // 10 and controls <= size // 20


class TextLines:
    """The lines of a text file, without line ends. Each iteration reads the file again, so that
    memory does not grow with its size.

    ``.gz`` and ``.xz`` are decompressed. Iteration raises `UserError` for a file that is not text.
    """

    def __init__(
        self, path: Path, remedy: str = "give a log, CSV or JSON lines"
    ) -> None:
        self.path = path
        self.remedy = remedy

    def has_more_than(self, lines: int) -> bool:
        """Whether there are more than `lines` lines. It counts line feeds, which is a hundred times
        faster than reading lines.
        """
        with open_bytes(self.path) as file:
            count = 0
            while count <= lines and (piece := file.read(1 << 20)):
                count += piece.count(b"\n")
        return count > lines

    def __iter__(self) -> Iterator[str]:
        with open_bytes(self.path) as file:
            if not is_text(file.peek(TEXT_HEAD_BYTES)[:TEXT_HEAD_BYTES]):
                raise UserError("is not text", where=self.path, remedy=self.remedy)
            text = io.TextIOWrapper(file, "utf-8-sig", errors="replace")
            lines = characters = 0
            while line := text.readline(LONGEST_READ_LINE):
                yield line.rstrip("\n")
                lines = lines + 1
                characters = characters + len(line)
                if lines > MANY_LINES and characters < SHORTEST_MEAN * lines:
                    raise UserError(
                        f"its first {MANY_LINES:,} lines are nearly empty",
                        where=self.path,
                        remedy=self.remedy,
                    )
                while len(line) == LONGEST_READ_LINE and not line.endswith("\n"):
                    line = text.readline(LONGEST_READ_LINE)


def check_absent(path: AnyPath, *, force: bool, inputs: Iterable[AnyPath] = ()) -> None:
    """Raise `UserError` if a file cannot be written.

    Args:
        force: whether an existing file may be overwritten.
        inputs: files that the output is made from. Even `force` does not overwrite these.
    """
    if path.is_dir():
        raise UserError(
            "is a directory, a file is to be written",
            where=path,
            remedy="choose another name",
        )
    if path.exists():
        if any(_same(path, item) for item in inputs):
            raise UserError("is an input too", where=path, remedy="choose another name")
        if not force:
            raise UserError(
                "already exists",
                where=path,
                remedy="choose another name or pass --force",
            )
        check_file(path)
    if not isinstance(path, Path):
        return
    if path.is_symlink() and not path.exists():
        raise UserError(
            "is a link to nothing",
            where=path,
            remedy="remove the link or choose another name",
        )
    there = (folder for folder in path.absolute().parents if folder.exists())
    above = next(there, path.parent)
    if not above.is_dir():
        raise UserError(
            "is a file, not a directory",
            where=above,
            remedy="choose another place to write to",
        )
    if not os.access(above, os.W_OK | os.X_OK):
        raise UserError(
            "no permission to write there",
            where=above,
            remedy="choose another place to write to",
        )


def is_bare(name: str) -> bool:
    """Whether a name, read from a file, is a bare file name: neither a path nor ``..``."""
    return name not in ("", ".", "..") and "/" not in name and "\0" not in name


def _same(path: AnyPath, other: AnyPath) -> bool:
    if isinstance(path, Path) and isinstance(other, Path):
        return other.exists() and path.samefile(other)
    return str(path) == str(other)


def write_files(
    files: Mapping[AnyPath, bytes | str],
    *,
    force: bool = False,
    inputs: Iterable[AnyPath] = (),
) -> None:
    """Write several files so that a failure leaves none of them. Each is written under a temporary
    name; then all are renamed.

    If several processes write one file without `force`, exactly one succeeds.

    Args:
        files: content by path. Text is written as UTF-8. Parent folders are made.
        force: overwrite existing files. A link stays, and its target is overwritten.
        inputs: as in `check_absent`.

    Raises:
        UserError: a file exists, is an input or a directory, or cannot be written.
    """
    given = tuple(inputs)
    for path in files:
        check_absent(path, force=force, inputs=given)
    staged: list[tuple[Path, Path]] = []
    made: list[Path] = []
    folders: list[Path] = []
    try:
        for path, content in files.items():
            data = content
            if isinstance(data, str):
                data = data.encode(errors="backslashreplace")
            if isinstance(path, Path):
                folders += [folder for folder in path.parents if not folder.exists()]
            path.parent.mkdir(parents=True, exist_ok=True)
            if not isinstance(path, Path):  # object stores write whole objects or none
                path.write_bytes(data)
                continue
            temporary = _temporary_name(path)
            staged.append((temporary, path))
            temporary.write_bytes(data)
        for temporary, path in staged:
            if force:
                temporary.replace(path.resolve() if path.is_symlink() else path)
            else:
                _put(temporary, path)
                made.append(path)
        made.clear()
        folders.clear()
    except FileExistsError as error:  # another process wrote it after `check_absent`
        where = error.filename2 or error.filename
        raise UserError(
            "already exists", where=where, remedy="choose another name or pass --force"
        ) from None
    except OSError as error:
        mine = {str(temporary): path for temporary, path in staged}
        where = mine.get(str(error.filename)) or error.filename or next(iter(files))
        remedy = "free some space, or choose another place to write to"
        if error.errno == errno.EFBIG:
            remedy = "raise the limit on the size of a file: ulimit -f unlimited"
        raise UserError(
            f"cannot be written ({error.strerror or error})", where=where, remedy=remedy
        ) from None
    finally:
        for leftover in (*made, *(temporary for temporary, _ in staged)):
            with suppress(OSError):
                leftover.unlink(missing_ok=True)
        folders.sort(key=lambda folder: -len(folder.parts))
        for folder in folders:
            with suppress(OSError):  # folders that are not empty stay
                folder.rmdir()


def _temporary_name(path: Path) -> Path:
    """A name next to a file that no other process takes. Ranks on other hosts or in containers may
    have the same pid.
    """
    unique = f"{os.getpid()}.{os.urandom(4).hex()}"
    return path.with_name(f".{path.name[:60]}.{unique}.tmp")


def _put(temporary: Path, path: Path) -> None:
    """Give a finished file its name.

    Raises:
        FileExistsError: something already has that name.
    """
    try:
        path.hardlink_to(temporary)
    except FileExistsError:
        raise
    except OSError:  # no hard links here (FUSE, FAT), so reserve the name first
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
        try:
            temporary.replace(path)
        except OSError:
            path.unlink()
            raise


def sha256(data: bytes) -> str:
    """The SHA-256 of `data` as hexadecimal digits."""
    return hashlib.sha256(data).hexdigest()
