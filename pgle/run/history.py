"""The file of a history: JSON lines, to keep in a repository."""

from __future__ import annotations

import fcntl
import json
import os
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from pgle.errors import UserError
from pgle.files import check_file
from pgle.next import Next
from pgle.run.ask.machine import read_gpus, this_machine
from pgle.run.inputs.logs import TextLines
from pgle.steps.history import Entry, parse_entry

_OTHER = "choose another --file"


def add(path: Path, entry: Entry) -> None:
    """Append an entry; a missing file is made. Another kind of file is left as it is."""
    _check_regular(path)
    is_new = not path.exists()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _add_line(path, json.dumps(asdict(entry), ensure_ascii=False).encode(errors="backslashreplace") + b"\n")
    except OSError as error:
        with suppress(OSError):
            if is_new and path.stat().st_size == 0:
                path.unlink()
        raise UserError(f"cannot be written ({error.strerror or error})", where=path, remedy=_OTHER) from None


def _check_regular(path: Path) -> None:
    if path.exists() and not path.is_file():
        raise UserError("is not a file", where=path, remedy=_OTHER)


def _add_line(path: Path, line: bytes) -> None:
    with path.open("a+b", buffering=0) as file:
        with suppress(OSError):  # some file systems cannot lock
            fcntl.flock(file, fcntl.LOCK_EX)
        size = os.fstat(file.fileno()).st_size
        if size:
            read(path)  # refuses any other file
            file.seek(-1, os.SEEK_END)
            line = line if file.read(1) == b"\n" else b"\n" + line
        try:
            if file.write(line) < len(line):
                raise OSError("the disk is full")
        except OSError:
            file.truncate(size)
            raise


def read(path: Path) -> tuple[list[Entry], list[str]]:
    """The entries in the order kept, and a line for each that cannot be read."""
    _check_regular(path)
    if not path.exists():
        raise UserError("no such history", where=path, remedy=_add_to(path))
    check_file(path)
    entries: list[Entry] = []
    warnings: list[str] = []
    for number, line in enumerate(TextLines(path, f"a history is JSON lines; {_OTHER}"), 1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
            if not isinstance(record, dict):
                raise ValueError("not a JSON object")
            entries.append(parse_entry(record))
        except (ValueError, RecursionError) as error:
            reason = "nested too deep" if isinstance(error, RecursionError) else error
            warnings.append(f"{path}: entry {number} could not be read ({reason})")
    if warnings and not entries:
        raise UserError("is not a history of pgle", where=path, remedy=_OTHER)
    if not entries:
        raise UserError("holds no entry", where=path, remedy=_add_to(path))
    return entries, warnings


def _add_to(path: Path) -> Next:
    return Next.of("history", "add", "RUN", "--file", path, "--name", "NAME")


def hardware_name() -> str:
    """The GPUs of this host as a name for files and keys, such as ``8x-nvidia-h100-80gb-hbm3``; ``no-gpu``."""
    gpus = read_gpus(this_machine())
    if not gpus:
        return "no-gpu"
    slug = "".join(sign if sign.isalnum() else "-" for sign in gpus[0].name.lower()).strip("-")
    return f"{len(gpus)}x-{slug}"
