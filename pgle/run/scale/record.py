"""Rows on disk, ``rows.jsonl``: a line that says of which program, then a line per row as it was made.

The same command again, or one with more sizes and values, takes the rows that are there.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pgle import __version__
from pgle.errors import UserError
from pgle.files import read_bytes, read_head, sha256, write_files
from pgle.scale.plan import Trial
from pgle.scale.row import Row, decoded, encoded

NAME = "rows.jsonl"
SCHEMA = "pgle.rows/1"


class Record:
    """Rows of one program; `add` is called from one thread at a time.

    Args:
        folder: of all rows.
        about: what a row depends on besides its size and values, as JSON values.

    Raises:
        UserError: the file is of another program, or none of ours.
    """

    def __init__(self, folder: Path, about: Mapping[str, Any]) -> None:
        self._folder, self._path = folder, folder / NAME
        head = {"schema": SCHEMA, "pgle": __version__, **about}
        self._known = self._read(json.loads(json.dumps(head)))
        if not self._path.exists():
            write_files({self._path: json.dumps(head) + "\n"})
        self.resumed = len(self._known)

    def known(self, trial: Trial) -> Row | None:
        """The row of a trial, if it is there with its scheduled module."""
        row = self._known.get(trial.name)
        return row if row is not None and (self._folder / row.scheduled).is_file() else None

    def add(self, trial: Trial, row: Row) -> None:
        """Keep a row. One without a step is not taken again: the reason may have been this machine."""
        if not row.failure:
            self._known[trial.name] = row
            with self._path.open("ab") as file:
                file.write(json.dumps(trial.name).encode() + b"\t" + encoded(row) + b"\n")

    def _read(self, head: Mapping[str, Any]) -> dict[str, Row]:
        if not self._path.exists():
            return {}
        data = read_bytes(self._path)
        if not begun(self._folder):
            raise UserError("is not a record of rows", where=self._path, remedy="choose a new folder with -o DIR")
        first, *lines = data.decode(errors="replace").split("\n")
        was = json.loads(first)
        if other := [name for name, value in head.items() if was.get(name) != value]:
            what = f"holds the rows of another program or setting ({', '.join(other)})"
            raise UserError(what, where=self._path, remedy="choose a new folder with -o DIR")
        if lines[-1]:  # cut short by a kill: what follows must begin on a line of its own
            os.truncate(self._path, data.rindex(b"\n") + 1)
        try:
            pairs = (line.split("\t", 1) for line in lines[:-1])
            return {json.loads(name): decoded(row) for name, row in pairs}
        except ValueError:
            raise UserError("holds a line that is no row", where=self._path, remedy="delete that line") from None


def begun(folder: Path) -> bool:
    """Whether rows have been made in a folder."""
    try:
        line, newline, _ = read_head(folder / NAME, 1 << 20).partition(b"\n")
        head = json.loads(line)
    except (UserError, ValueError, RecursionError):
        return False
    return bool(newline) and isinstance(head, dict) and head.get("schema") == SCHEMA


def digests(words: tuple[str, ...]) -> Mapping[str, str]:
    """Of the words that name files their contents, by a hash: a script that was edited is another program."""
    files = (word for word in words if Path(word).is_file())
    return {word: sha256(read_bytes(Path(word))) for word in files}
