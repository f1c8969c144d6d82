"""The file of a history: JSON lines (to keep in a repository) or SQLite (by the suffix)."""

from __future__ import annotations

import fcntl
import json
import os
import sqlite3
from contextlib import closing, suppress
from dataclasses import asdict, fields
from pathlib import Path

from pgle.errors import UserError
from pgle.files import check_file
from pgle.next import Next
from pgle.run.doctor.machine import read_gpus, this_machine
from pgle.run.inputs.texts import TextLines
from pgle.steps.history import Entry, parse_entry

DATABASES = (".sqlite", ".sqlite3", ".db")
COLUMNS = tuple(item.name for item in fields(Entry))
BUSY_S = 60  # how long a writer waits for others
_OTHER = "choose another --file"
TYPES = {"median_s": "REAL", "spread": "REAL", "runs": "INTEGER", "steps": "INTEGER", "simulated": "INTEGER"}


def add(path: Path, entry: Entry) -> None:
    """Append an entry; the file is made where there is none. Another kind of file is left as it is.

    Raises:
        UserError: the file cannot be read or written, or is no history.
    """
    _check_regular(path)
    is_new = not path.exists()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix in DATABASES:
            _add_row(path, entry)
        else:
            _add_line(path, json.dumps(asdict(entry), ensure_ascii=False).encode(errors="backslashreplace") + b"\n")
    except (sqlite3.Error, OSError) as error:
        with suppress(OSError):
            if is_new and path.stat().st_size == 0:
                path.unlink()
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"cannot be written ({reason})", where=path, remedy=_OTHER) from None


def _check_regular(path: Path) -> None:
    if path.exists() and not path.is_file():
        raise UserError("is not a file", where=path, remedy=_OTHER)


def _add_line(path: Path, line: bytes) -> None:
    with path.open("a+b", buffering=0) as file:
        with suppress(OSError):  # some file systems cannot lock
            fcntl.flock(file, fcntl.LOCK_EX)
        size = os.fstat(file.fileno()).st_size
        if size:
            read(path)  # refuses what is no history
            file.seek(-1, os.SEEK_END)
            line = line if file.read(1) == b"\n" else b"\n" + line
        try:
            if file.write(line) < len(line):
                raise OSError("the disk is full")
        except OSError:
            file.truncate(size)
            raise


def read(path: Path) -> tuple[list[Entry], list[str]]:
    """The entries in the order kept, and a line for each that cannot be read.

    Raises:
        UserError: there is no such file, or it is no history.
    """
    _check_regular(path)
    if not path.exists():
        raise UserError("no such history", where=path, remedy=_add_to(path))
    check_file(path)
    rows = _rows(path) if path.suffix in DATABASES else _lines(path)
    entries: list[Entry] = []
    warnings: list[str] = []
    for number, row in rows:
        try:
            record = json.loads(row) if isinstance(row, str) else row
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


def _add_to(path: Path) -> str:
    return str(Next.of("history", "add", "RUN", "--file", path, "--name", "NAME"))


def _lines(path: Path) -> list[tuple[int, str | dict[str, object]]]:
    return [(number, line) for number, line in enumerate(TextLines(path), 1) if line.strip()]


def _rows(path: Path) -> list[tuple[int, str | dict[str, object]]]:
    try:
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as database:
            database.row_factory = sqlite3.Row
            found = database.execute("SELECT * FROM steps ORDER BY rowid").fetchall()
    except sqlite3.Error as error:
        raise UserError(f"is not a history of pgle ({error})", where=path, remedy=_OTHER) from None
    return [(number, dict(row)) for number, row in enumerate(found, 1)]


def _add_row(path: Path, entry: Entry) -> None:
    names = ", ".join(f'"{name}"' for name in COLUMNS)  # commit is a keyword
    columns = ", ".join(f'"{name}" {TYPES.get(name, "TEXT")}' for name in COLUMNS)
    values = asdict(entry)
    with closing(sqlite3.connect(path, timeout=BUSY_S)) as database, database:
        tables = {name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        if tables and "steps" not in tables:
            raise sqlite3.DatabaseError("a database of something else")
        database.execute(f"CREATE TABLE IF NOT EXISTS steps ({columns})")
        marks = ", ".join("?" * len(COLUMNS))
        database.execute(f"INSERT INTO steps ({names}) VALUES ({marks})", [values[name] for name in COLUMNS])


def hardware_name() -> str:
    """The GPUs of this host as a name for files and keys, such as ``8x-nvidia-h100-80gb-hbm3``; ``no-gpu``."""
    gpus = read_gpus(this_machine())
    if not gpus:
        return "no-gpu"
    slug = "".join(sign if sign.isalnum() else "-" for sign in gpus[0].name.lower()).strip("-")
    return f"{len(gpus)}x-{slug}"
