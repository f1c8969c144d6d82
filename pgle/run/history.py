"""The history file: JSON lines that a repository can keep."""

from __future__ import annotations

import fcntl
import json
import os
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

import msgspec

from pgle.errors import UserError
from pgle.files import TextLines, check_file
from pgle.next import Next
from pgle.steps.estimate import Entry

_OTHER = "choose another --file"


def add_entry(path: Path, entry: Entry) -> None:
    """Append an entry to the history file; create a missing file. Refuse to write to any other
    file.
    """
    is_new = not path.exists()
    text = json.dumps(asdict(entry), ensure_ascii=False) + "\n"
    line = text.encode(errors="backslashreplace")
    if not is_new and not path.is_file():
        raise UserError("is not a file", where=path, remedy=_OTHER)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a+b", buffering=0) as file:
            with suppress(OSError):  # some file systems cannot lock
                fcntl.flock(file, fcntl.LOCK_EX)
            size = os.fstat(file.fileno()).st_size
            if size:
                read_history(path)  # raises an error for any other kind of file
                file.seek(-1, os.SEEK_END)
                line = line if file.read(1) == b"\n" else b"\n" + line
            try:
                if file.write(line) < len(line):
                    raise OSError("the disk is full")
            except OSError:
                file.truncate(size)
                raise
    except OSError as error:
        with suppress(OSError):
            if is_new and path.stat().st_size == 0:
                path.unlink()
        what = f"cannot be written ({error.strerror or error})"
        raise UserError(what, where=path, remedy=_OTHER) from None


def read_history(path: Path) -> tuple[list[Entry], list[str]]:
    """Return the entries in file order, and one line per entry that cannot be read."""
    words = ("add", "RUN", "--file", path, "--name", "NAME")
    add_to = Next.of("history", *words)
    if not path.exists():
        raise UserError("no such history", where=path, remedy=add_to)
    if not path.is_file():
        raise UserError("is not a file", where=path, remedy=_OTHER)
    check_file(path)
    entries: list[Entry] = []
    warnings: list[str] = []
    lines = TextLines(path, f"a history is JSON lines; {_OTHER}")
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            entries.append(msgspec.convert(json.loads(line), Entry, strict=False))
        except (ValueError, RecursionError) as error:
            reason = "nested too deep" if isinstance(error, RecursionError) else error
            warnings.append(f"{path}: entry {number} could not be read ({reason})")
    if warnings and not entries:
        raise UserError("is not a history of pgle", where=path, remedy=_OTHER)
    if not entries:
        raise UserError("holds no entry", where=path, remedy=add_to)
    return entries, warnings
