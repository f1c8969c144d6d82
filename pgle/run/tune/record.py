"""The record of trials, ``trials.jsonl``: a line that says what is tuned, then a line per trial, in order.

An interrupted search continues from it: the descent is deterministic, so it asks for the same settings again, and
those on record are answered at once.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pgle import __version__
from pgle.errors import UserError
from pgle.files import check_absent, read_bytes, read_head, sha256, write_files
from pgle.run.inputs.folder import PAGE_FILES
from pgle.run.tune.request import FOUND, TuneRequest
from pgle.tune.trial import Flags, Trial, decoded, encoded, key_of

NAME = "trials.jsonl"
SCHEMA = "pgle.trials/2"


class Record:
    """Trials on disk; `add` may be called from one thread at a time.

    Args:
        request: what is tuned.
        jaxlib: that compiles.

    Raises:
        UserError: the file is of another search, or none of ours.
    """

    def __init__(self, request: TuneRequest, jaxlib: str) -> None:
        self.path = request.out / NAME
        self._head = _head(request, jaxlib)
        self._known = _read(self.path, self._head)
        if not self.path.exists():
            write_files({self.path: json.dumps(self._head) + "\n"})
        self.resumed = len(self._known)

    def known(self, flags: Flags) -> Trial | None:
        """A trial on record; None where there is none of this setting."""
        return self._known.get(key_of(flags))

    def add(self, trial: Trial) -> None:
        """Keep a trial. A line that is cut short by a kill is left aside when the file is read."""
        self._known[key_of(trial.flags)] = trial
        with self.path.open("ab") as file:
            file.write(encoded(trial) + b"\n")

    def forget(self) -> None:
        """Answer nothing from the record any more."""
        self._known.clear()


def begun(folder: Path) -> bool:
    """Whether a search has begun in a folder: the first line of its record is whole, and ours."""
    try:
        line, newline, _ = read_head(folder / NAME, 1 << 20).partition(b"\n")
        head = json.loads(line)
    except (UserError, ValueError, RecursionError):
        return False
    return bool(newline) and isinstance(head, dict) and head.get("schema") == SCHEMA


def check(request: TuneRequest) -> None:
    """What needs no compiler to be refused; which jaxlib compiles is not known.

    Raises:
        UserError: as of `Record`; or something else has the place of what the search writes.
    """
    for name in (*FOUND, *PAGE_FILES, NAME):
        check_absent(request.out / name, force=True)
    for name in ("trials", "proof"):
        folder = request.out / name
        if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
            what = "is a link or a file, a folder is to be written"
            raise UserError(what, where=folder, remedy="move it away")
    _read(request.out / NAME, {name: value for name, value in _head(request, "").items() if name != "jaxlib"})


def _read(path: Path, expected: Mapping[str, Any]) -> dict[str, Trial]:
    """Trials on record, by setting, of a search whose first line holds these; none where there is no file."""
    if not path.exists():
        return {}
    if not begun(path.parent):
        raise UserError("is not a record of trials", where=path, remedy="choose a new folder with -o DIR")
    data = read_bytes(path)
    lines = data.decode(errors="replace").split("\n")
    head = json.loads(lines[0])
    other = [name for name, value in expected.items() if head.get(name) != value]
    if other:
        what = f"holds the trials of another search ({', '.join(other)} differ{'s' if len(other) == 1 else ''})"
        raise UserError(what, where=path, remedy="choose a new folder with -o DIR")
    if lines[-1]:  # cut short: what follows must begin on a line of its own
        os.truncate(path, data.rindex(b"\n") + 1)
    trials = [_trial(path, number, line, expected["worlds"]) for number, line in enumerate(lines[1:-1], 2) if line]
    # What did not compile is tried again: the reason may have been this machine's memory or disk.
    return {key_of(trial.flags): trial for trial in trials if not trial.failure}


def _trial(path: Path, number: int, line: str, worlds: int) -> Trial:
    try:
        return decoded(line, worlds)
    except (ValueError, RecursionError):
        what = f"line {number} is not a trial"
        raise UserError(what, where=path, remedy="delete that line, or choose a new folder with -o DIR") from None


def _head(request: TuneRequest, jaxlib: str) -> Mapping[str, Any]:
    """All that a trial depends on, but its flags."""
    return {
        "schema": SCHEMA,
        "pgle": __version__,
        "module": sha256(read_bytes(request.setting.module)),
        "profile": "" if request.profile is None else sha256(read_bytes(request.profile)),
        "flags": list(request.setting.flags),
        "target": sha256(request.target.text.encode()),
        "topology": request.topology,
        "network_gb_s": request.network_gb_s,
        "memory_fraction": request.setting.memory_fraction,
        "jaxlib": jaxlib,
        "worlds": request.worlds,
        "seed": request.seed,
    }
