"""Files that are written whole or not at all, and read with a bound."""

from __future__ import annotations

import gzip
import hashlib
import lzma
import os
import zlib
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeAlias

from pgle.errors import UserError

if TYPE_CHECKING:
    from etils import epath

AnyPath: TypeAlias = "Path | epath.Path"
"""A local path or one of an object store; both have the methods of `pathlib.Path`."""

MAX_FILE_BYTES = 8 << 30
"""Bound on one whole file read into memory; a larger protocol buffer cannot be parsed anyway (2 GiB limit)."""

_PIECE_BYTES = 64 << 20

_COMPRESSED = {".xz": lzma.open, ".gz": gzip.open}


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


def read_bytes(path: AnyPath, *, max_bytes: int = MAX_FILE_BYTES) -> bytes:
    """The content of a file; ``.xz`` and ``.gz`` are decompressed.

    Raises:
        UserError: it is missing, unreadable, damaged or larger than `max_bytes` once decompressed.
    """
    try:
        if isinstance(path, Path):
            opener: Any = _COMPRESSED.get(path.suffix, open)
            with opener(path, "rb") as file:
                data = _read_at_most(file, max_bytes + 1)
        else:
            data = path.read_bytes()
            if path.suffix == ".xz":
                data = lzma.decompress(data)
            elif path.suffix == ".gz":
                data = gzip.decompress(data)
    except FileNotFoundError:
        raise UserError("no such file", where=path, remedy="check the path") from None
    except IsADirectoryError:
        raise UserError("is a directory, a file is needed", where=path) from None
    except (lzma.LZMAError, gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise UserError(f"damaged archive ({error})", where=path, remedy="copy it again") from None
    except OSError as error:
        raise UserError(f"cannot be read ({error.strerror or error})", where=path) from None
    if len(data) > max_bytes:
        raise UserError(f"larger than {max_bytes:,} bytes", where=path)
    return data


def _read_at_most(file: IO[bytes], limit: int) -> bytes:
    """Up to `limit` bytes; ``read(limit)`` would reserve all of them first, which ``ulimit -v`` and Slurm refuse."""
    pieces = []
    while limit > 0 and (piece := file.read(min(limit, _PIECE_BYTES))):
        pieces.append(piece)
        limit -= len(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


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
